# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops and the progress of a run read fields: no text of a problem, and no title of a task or a play."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.project.tree import ROOT, load_yaml, tracked

READERS = ("gpuops", "plugins/plugin_utils/progress", "plugins/callback")
EVENTS = Path("gpuops/run/events.py")
# What takes a text apart, or looks for something in it.
SEARCHES = {
    *("partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix"),
    *("find", "index", "count", "search", "match", "fullmatch", "finditer", "findall", "compile", "sub"),
}
PROSE = re.compile(r"\b(remedy|to do)\b|has to reboot|install package", re.IGNORECASE)
TITLED = {"task", "play"}


def titles() -> set[str]:
    """The titles of all plays and tasks."""

    def named(node: Any) -> Iterator[str]:
        if isinstance(node, list):
            for part in node:
                yield from named(part)
        elif isinstance(node, dict):
            if isinstance(node.get("name"), str):
                yield node["name"]
            for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from named(node.get(key) or [])

    files = [path for folder in ("playbooks", "roles") for path in tracked(folder, ".yml")]
    return {name for path in files for name in named(load_yaml(path))}


def constants(node: ast.AST) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def is_title(node: ast.AST) -> bool:
    """Whether an expression is the name of a task or a play: task.name, event.task.name, run.play."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return node.attr == "play" or (node.attr == "name" and owner in TITLED)


def violations(path: Path, source: str, known_titles: set[str]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        line = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            searched = [text for argument in node.args for text in constants(argument)]
            found += [f"{line}: looks for {text!r}" for text in searched if PROSE.search(text)]
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found += [f"{line}: looks for {text!r}" for side in sides for text in constants(side) if PROSE.search(text)]
            if any(map(is_title, sides)) and any(constants(side) for side in sides):
                found.append(f"{line}: compares a title")
        if isinstance(node, ast.Constant) and node.value in known_titles and " " in str(node.value):
            found.append(f"{line}: has the title {node.value!r}")
        if isinstance(node, ast.Constant) and node.value == "event_data" and path != EVENTS:
            found.append(f"{line}: reads an event that is not typed")
    return found


def test_no_program_reads_a_text_or_a_title() -> None:
    known = titles()
    assert len(known) > 300
    files = [path for folder in READERS for path in tracked(folder, ".py")]
    assert EVENTS in files
    assert [row for path in files for row in violations(path, (ROOT / path).read_text(), known)] == []


@pytest.mark.parametrize(
    "source",
    [
        'cause, _, remedy = text.partition(" To do: ")',
        'MARKER = re.compile(r"\\b(?:Remedy|To do):")',
        'if "Remedy:" in text: pass',
        'if text.startswith("install package "): pass',
        'if task == "Read the state of ZooKeeper": pass',
        'if event.task.name == "Any": pass',
        'if self.play in ("Any", "Other"): pass',
        'data = event.get("event_data")',
    ],
)
def test_one_that_does_is_found(source: str) -> None:
    assert violations(Path("gpuops/planted.py"), source, titles())


def test_playbooks_have_no_program_in_a_template() -> None:
    assert [str(path) for path in tracked("playbooks", ".yml") if "{%" in (ROOT / path).read_text()] == []
