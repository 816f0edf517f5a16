# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of the hub's database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import backup

NOW = 1_700_000_000.0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "jupyterhub.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("create table users (name text)")
        made.execute("insert into users values ('alice')")
    (tmp_path / "backups").mkdir()
    return path


def kept(database: Path) -> list[str]:
    return sorted(path.name for path in (database.parent / "backups").iterdir())


def test_a_copy_has_what_was_written_while_the_hub_writes(database: Path) -> None:
    with sqlite3.connect(database) as hub:
        hub.execute("insert into users values ('bob')")
        path = Path(backup.copy(str(database), str(database.parent / "backups"), 3, NOW))
    assert sqlite3.connect(path).execute("select name from users").fetchall() == [("alice",)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_last_few_are_kept_and_what_was_cut_is_removed(database: Path) -> None:
    (database.parent / "backups" / "jupyterhub-x.sqlite.part").touch()
    (database.parent / "backups" / "notes").touch()
    for day in range(5):
        backup.copy(str(database), str(database.parent / "backups"), 3, NOW + 86400 * day)
    days = [f"jupyterhub-202311{day}-221320.sqlite" for day in (16, 17, 18)]
    assert kept(database) == [*days, "notes"]


def test_the_numbers_of_the_users_are_copied_with_the_database(database: Path) -> None:
    (database.parent / "uids.json").write_text('{"alice": 1000}')
    for day in range(3):
        backup.copy(str(database), str(database.parent / "backups"), 1, NOW + 86400 * day)
    assert kept(database) == ["jupyterhub-20231116-221320.sqlite", "jupyterhub-20231116-221320.uids.json"]
    copy = database.parent / "backups" / "jupyterhub-20231116-221320.uids.json"
    assert copy.read_text() == '{"alice": 1000}'
    assert copy.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, b"no database, however long this text may be"])
def test_without_a_database_nothing_is_copied_and_no_copy_is_lost(
    database: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a site that went over to PostgreSQL."""
    directory = str(database.parent / "backups")
    backup.copy(str(database), directory, 1, NOW)
    database.unlink()
    if content:
        database.write_bytes(content)
    assert backup.main([str(database), directory, "1"]) == 1
    assert f"{database} was not copied" in capsys.readouterr().err
    assert "jupyterhub-20231114-221320.sqlite" in kept(database)


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a", "b", "0"], ["a", "b", "many"]])
def test_what_it_does_not_understand_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert backup.main(words) == 2
    assert "DATABASE DIRECTORY COUNT" in capsys.readouterr().err
