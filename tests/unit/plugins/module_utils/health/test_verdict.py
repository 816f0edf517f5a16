# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdicts, and the files that cannot import them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import DEGRADED, FATAL, NUMBERS, OK, UNKNOWN
from gpuops.commands.probe import probe
from gpuops.status import document
from tests.unit.project.tree import ROOT


@pytest.mark.parametrize("others", list(itertools.permutations((OK, DEGRADED, UNKNOWN))))
def test_nothing_beats_fatal_and_what_is_not_known_is_no_better_than_what_works(others: tuple[str, ...]) -> None:
    assert verdict.worst(*others, FATAL) == verdict.worst(FATAL, *others) == FATAL
    assert verdict.worst(*others) == UNKNOWN
    assert verdict.worst(OK, DEGRADED) == DEGRADED


def test_a_number_is_the_verdict_that_it_was_made_from_and_any_other_is_unknown() -> None:
    assert {word: verdict.of_number(float(number)) for word, number in NUMBERS.items()} == {
        word: word for word in verdict.VERDICTS
    }
    assert {verdict.of_number(value) for value in (-1.0, 0.5, 4.0, float("nan"))} == {UNKNOWN}


def test_a_site_is_judged_in_the_same_order() -> None:
    for one, other in itertools.product(verdict.VERDICTS, repeat=2):
        assert document.worst((one, other)) == verdict.worst(one, other)
    assert {word: document.EXIT[word] for word in NUMBERS} == NUMBERS


def test_the_page_of_gpus_reads_the_numbers_of_the_metrics() -> None:
    page = (ROOT / "roles" / "prometheus" / "files" / "gpu.html").read_text(encoding="utf-8")
    (words,) = re.findall(r"^const VERDICTS = (\[.*\]);$", page, re.MULTILINE)
    assert {word: number for number, word in enumerate(json.loads(words))} == NUMBERS


def test_the_help_and_the_documentation_have_the_exit_codes() -> None:
    assert verdict.IN_WORDS in str(probe.__doc__)
    assert verdict.IN_WORDS in (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")


def _enums(part: Any) -> Iterator[list[Any]]:
    for value in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _enums(value)
    if isinstance(part, dict) and DEGRADED in part.get("enum", ()):
        yield part["enum"]


@pytest.mark.parametrize("name", ["status", "jobs"])
def test_the_schemas_of_gpuops_have_every_verdict(name: str) -> None:
    found = list(_enums(json.loads((ROOT / "gpuops" / "status" / f"{name}.schema.json").read_text(encoding="utf-8"))))
    assert found
    for words in found:
        assert set(verdict.VERDICTS) <= set(words)


def test_no_other_python_file_lists_them() -> None:
    files = [path for place in ("plugins", "gpuops", "tools") for path in (ROOT / place).rglob("*.py")]
    assert len(files) > 100
    lines = [(path.name, line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    word = re.compile(rf"""["']({"|".join(verdict.VERDICTS)})["']""")
    assert {name for name, line in lines if len(set(word.findall(line))) > 2} == {"verdict.py"}
