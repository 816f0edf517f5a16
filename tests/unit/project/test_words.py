# SPDX-License-Identifier: GPL-3.0-or-later
"""Words and turns that pages, `--help` texts and messages may not have; docs/words.md says what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from typer.main import get_command

from gpuops.cli import app
from tests.unit.project.tree import ROOT, load_yaml, role_names, tracked

PAGES = [*tracked("docs", ".md"), Path("README.md"), *(Path("roles") / role / "README.md" for role in role_names())]

# The page that shows what not to write.
EXAMPLES = "docs/words.md"
# Programs with texts that people read.
SOURCES = [path for top in ("gpuops", "plugins", "portal", "roles") for path in tracked(top, ".py")]
ROLES_YAML = [path for top in ("playbooks", "roles") for path in tracked(top, ".yml")]

# The turn, and what to write in its place.
PATTERNS = {
    r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer|more|fewer|less|lower|later|other)[a-z]": "is not a, is not",
    r"\btold\b|\b(?:it|he|she) tells\b|\btells? (?:of|on|why|how|whether|since|what|when|who|which)\b": "shows",
    r"\bheed(?:s|ed)?\b": "considers, obeys, reads",
    r"\b(?:no|some)body\b|\bwhoever\b|\bwhomever\b": "no user, another client, a user who; or name the program",
    r"\blets? go\b": "releases",
    r"\bcomes? by ssh\b": "use an SSH tunnel",
    r"\bthe own\b|\bof one's own\b|\bown's\b": "the user's own",
    r"\bway out\b": "internet access",
    r"\bto be had\b|\b(?:is|are) (?:still )?had (?:by|from)\b": "available",
    r"\bdo(?:es)? without\b": "does not need",
    r"\ball the same\b": "still",
    r"\bin vain\b": "without success",
    r"\bmend(?:s|ed|ing)?\b": "repair",
    r"\brun that (?:is|was) cut\b": "an interrupted run",
    r"\bsmall letters\b": "lower case",
    r"\bwhat is seen\b": "what you see",
    r"\band nor\b": "nor",
    r"\btaken? (?:away|off)\b": "removed",
}


def prose(text: str) -> str:
    """What of a page is read as sentences: no code, no addresses, no headings (anchors depend on them)."""
    text = re.sub(r"^ *```.*?^ *```$|^#[^\n]*$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`|\b[A-Z]\([^)]*\)", "`…`", text))
    return re.sub(r"\s+", " ", text)


def faults(text: str) -> list[str]:
    return [
        f"…{text[max(0, match.start() - 40) : match.end() + 30]}… (write: {instead})"
        for pattern, instead in PATTERNS.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for word, part in getattr(command, "commands", {}).items():
        yield from helps(part, f"{name} {word}")


def text_of(node: ast.AST) -> str | None:
    """A text in a program, with … for each value in it; None for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def messages(node: ast.AST) -> Iterator[str]:
    """The sentences among the texts of a program: several words on one line, without docstrings and shell code; and
    those in the documentation of a plugin."""
    text = text_of(node)
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
        yield from texts_of([*yaml.safe_load_all(text_of(node.value) or "")])
    elif text is not None:
        if len(text.split()) > 2 and "\n" not in text.strip() and "$" not in text:
            yield text
    elif not (isinstance(node, ast.Expr) and text_of(node.value) is not None):
        for part in ast.iter_child_nodes(node):
            yield from messages(part)


def texts_of(content: object) -> Iterator[str]:
    """The sentences in a file of a role: names of tasks, messages, descriptions of variables."""
    if isinstance(content, (dict, list)):
        for part in content.values() if isinstance(content, dict) else content:
            yield from texts_of(part)
    elif isinstance(content, str) and len(content.split()) > 2:
        yield content


@pytest.mark.parametrize("page", [page for page in PAGES if str(page) != EXAMPLES], ids=str)
def test_a_page_is_in_plain_words(page: Path):
    assert not faults(prose((ROOT / page).read_text(encoding="utf-8")))


def test_help_texts_are_in_plain_words():
    texts = dict(helps(get_command(app), "gpuops"))
    assert len(texts) > 100
    assert not {name: found for name, text in texts.items() if (found := faults(prose(text)))}


def test_messages_of_programs_are_in_plain_words():
    texts = [
        (path, text) for path in SOURCES for text in messages(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    ]
    assert len(texts) > 3000
    assert not [(str(path), found) for path, text in texts if (found := faults(prose(text)))]


def test_texts_of_roles_are_in_plain_words():
    texts = [(path, text) for path in ROLES_YAML for text in texts_of(load_yaml(path))]
    assert len(texts) > 2000
    assert not [(str(path), found) for path, text in texts if (found := faults(prose(text)))]


def test_a_message_is_found_wherever_it_stands_in_a_program():
    source = """raise Refused(f"{name} is no size", remedy="come by SSH")"""
    assert [text for text in messages(ast.parse(source)) if faults(prose(text))] == ["… is no size", "come by SSH"]
    assert not [*messages(ast.parse('"""That is no message."""'))]


@pytest.mark.parametrize(
    "text",
    [
        "A fatal GPU is told of within 30 seconds",
        "Come by SSH",
        "nobody tells how full it is",
        "then it lets go",
        "asked; whoever leads next will do it",
        "it is no size",
        "it tells how full it is",
    ],
)
def test_the_examples_of_what_not_to_write_are_found(text: str):
    assert faults(prose(text))


@pytest.mark.parametrize(
    "text", ["There is no TLS.", "It is no longer there.", "as `nobody`", "```\nnobody\n```", "## Who is told\n"]
)
def test_what_may_be_written(text: str):
    assert not faults(prose(text))
