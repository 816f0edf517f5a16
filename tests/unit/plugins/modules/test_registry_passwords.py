# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords of the registry's users on the controller."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import registry_passwords


def run(capsys: pytest.CaptureFixture[str], path: Path, *users: str, check: bool = False) -> dict[str, Any]:
    given = {"path": str(path), "users": list(users), "_ansible_check_mode": check}
    with patch_module_args(given), pytest.raises(SystemExit):
        registry_passwords.main()
    return dict(json.loads(capsys.readouterr().out))


def fits(hashed: str, password: str) -> bool:
    """As nginx compares."""
    raw = base64.b64decode(hashed.removeprefix("{SSHA}"))
    return hashlib.sha1(password.encode() + raw[20:], usedforsecurity=False).digest() == raw[:20]


def test_each_user_gets_a_password_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "registry"
    first = run(capsys, path, "operator", "alice")
    assert first["changed"]
    passwords = {user: (path / user).read_text().strip() for user in ("operator", "alice")}
    assert len(set(passwords.values())) == 2
    assert all(fits(first["hashes"][user], password) for user, password in passwords.items())
    assert {oct(file.stat().st_mode & 0o777) for file in path.iterdir()} == {"0o600"}
    assert oct(path.stat().st_mode & 0o777) == "0o700"
    second = run(capsys, path, "operator", "alice")
    assert (second["changed"], second["hashes"]) == (False, first["hashes"])
    assert not any(password in json.dumps([first, second]) for password in passwords.values())


def test_a_removed_file_means_another_password(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = run(capsys, tmp_path, "alice", "bob")["hashes"]
    (tmp_path / "alice").unlink()
    second = run(capsys, tmp_path, "alice", "bob")["hashes"]
    assert second["alice"] != first["alice"]
    assert second["bob"] == first["bob"]


def test_who_left_keeps_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, tmp_path, "alice", "bob")
    assert set(run(capsys, tmp_path, "alice")["hashes"]) == {"alice"}
    assert (tmp_path / "bob").exists()


def test_check_mode_makes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = run(capsys, tmp_path / "new", "alice", check=True)
    assert told["changed"]
    assert set(told["hashes"]) == {"alice"}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        ("0123456789abcdef\n", 0o644, "chmod 600"),
        ("short\n", 0o600, "remove the file"),
        ("", 0o600, "remove the file"),
        ("with a blank in it, and long\n", 0o600, "remove the file"),
        ("x" * 200, 0o600, "remove the file"),
    ],
)
def test_a_file_that_will_not_do_is_refused_and_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, mode: int, word: str
) -> None:
    (tmp_path / "alice").write_text(content)
    (tmp_path / "alice").chmod(mode)
    told = run(capsys, tmp_path, "alice", "bob")
    assert told["failed"]
    assert word in told["msg"]
    assert (tmp_path / "alice").read_text() == content
    assert not (tmp_path / "bob").exists()
