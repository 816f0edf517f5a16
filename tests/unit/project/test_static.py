# SPDX-License-Identifier: GPL-3.0-or-later
"""Lint, format and types. Each tool's settings are its own, so that it says the same when run by hand."""

from __future__ import annotations

from tests.unit.project.tree import BIN, run, tracked_files


def test_ruff_finds_nothing():
    run(BIN / "ruff", "check", "--quiet")


def test_python_is_formatted():
    run(BIN / "ruff", "format", "--check", "--diff")


def test_types_are_right():
    run(BIN / "mypy")


def test_yamllint_finds_nothing():
    files = [path for path in tracked_files() if path.suffix in (".yml", ".yaml") or path.name == ".yamllint"]
    assert files
    run(BIN / "yamllint", "--strict", *files)


def test_changelog_and_its_fragments_are_valid():
    run(BIN / "antsibull-changelog", "lint")
    run(BIN / "antsibull-changelog", "lint-changelog-yaml", "changelogs/changelog.yaml")


def test_ansible_lint_finds_nothing():
    run(BIN / "ansible-lint", "--offline", "--strict")
