# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test-full` makes the environment of the portal's tests from the role's own wheels. pip is made up."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuops.fetch import wheels
from gpuops.fetch.manifest import ManifestError
from tests import portal_programs


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; python -m venv makes a directory."""
    commands: list[list[str]] = []

    def run(command: list[Any], **_more: Any) -> Any:
        words = [str(word) for word in command]
        commands.append(words)
        if "venv" in words:
            (tmp_path / "environment").mkdir()
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(portal_programs.subprocess, "run", run)
    monkeypatch.setattr(portal_programs, "ENVIRONMENT", tmp_path / "environment")
    monkeypatch.setattr(portal_programs, "MADE_FROM", tmp_path / "environment" / "made-from")
    monkeypatch.setattr(wheels, "fetch", lambda files, directory: len(list(files)))
    monkeypatch.delenv("GPUOPS_JUPYTERHUB", raising=False)
    # Of those for which there are wheels.
    monkeypatch.setattr(portal_programs, "PYTHON", "3.13")
    return commands


def test_it_is_made_once_from_the_wheels_alone(ran: list[list[str]]) -> None:
    assert portal_programs.fetch() == ""
    assert [command[1:3] for command in ran] == [["-m", "venv"], ["install", "--quiet"]]
    assert {"--no-index", "--require-hashes"} <= set(ran[1])
    assert portal_programs.fetch() == ""
    assert len(ran) == 2


def test_another_list_of_wheels_makes_another_one(ran: list[list[str]]) -> None:
    portal_programs.fetch()
    portal_programs.MADE_FROM.write_text("another")
    portal_programs.fetch()
    assert len(ran) == 4


def test_wheels_that_cannot_be_had_are_told(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(files: Any, directory: Path) -> int:
        raise ManifestError("the index has no jupyterhub")

    monkeypatch.setattr(wheels, "fetch", refuse)
    assert portal_programs.fetch() == "the index has no jupyterhub"
    assert ran == []


def test_one_that_is_named_is_taken(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUOPS_JUPYTERHUB", str(tmp_path / "mine"))
    assert portal_programs.fetch() == ""
    assert ran == []
    assert portal_programs.environment() == tmp_path / "mine"


def test_a_python_without_wheels_is_told(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portal_programs, "PYTHON", "3.12")
    assert "no wheels of the portal for Python 3.12" in portal_programs.fetch()
