# SPDX-License-Identifier: GPL-3.0-or-later
"""A service account plants things where root writes: what root's files hold, and whose they are, stays as it was."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import host_files
from tests.unit.plugins.service_account import Account, needs_root
from tests.unit.plugins.test_service_account_plants import NAME, WRITERS

pytestmark = [needs_root, pytest.mark.usefixtures("user_ceph")]


class Root:
    """Files of root's that the account would like to have, and a directory of root's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "etc"
        self.directory.mkdir()
        self.shadow = self.directory / "shadow"
        self.shadow.write_text("root:$6$hash\n")
        self.shadow.chmod(0o600)
        self.before = self.state()

    def state(self) -> dict[str, tuple[object, ...]]:
        found = {}
        for path in (self.directory, *self.directory.rglob("*")):
            status = path.lstat()
            text = path.read_text() if path.is_file() else ""
            found[path.name] = (text, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        return found

    def is_untouched(self) -> bool:
        return self.state() == self.before


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "service")


def second_name(account: Account, root: Root, name: str) -> None:
    """The account cannot, where the kernel protects hard links; elsewhere it can."""
    os.link(root.shadow, account.directory / name)


# What is planted at the name that root is going to write.
PLANTS: dict[str, Callable[[Account, Root, str], object]] = {
    "a link": lambda account, root, name: account.does(lambda: os.symlink(root.shadow, name)),
    "a link to a new file": lambda account, root, name: account.does(lambda: os.symlink(root.directory / "new", name)),
    "a chain of links": lambda account, root, name: account.does(
        lambda: (os.symlink(root.shadow, "between"), os.symlink("between", name))
    ),
    "a loop of links": lambda account, root, name: account.does(lambda: os.symlink(name, name)),
    "a hard link": second_name,
    "a pipe": lambda account, root, name: account.does(lambda: os.mkfifo(name)),
}
NEIGHBOURS = (f"{NAME}.new", f".{NAME}.new", f"{NAME}.tmp", f"{NAME}.part", f"{NAME}~", f"{NAME}.lock")


def files(path: Path, **entry: object) -> Callable[[pytest.CaptureFixture[str]], dict[str, object]]:
    def run(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
        with patch_module_args({"entries": [{"path": str(path), **entry}]}), pytest.raises(SystemExit):
            host_files.main()
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return told

    return run


ENTRIES: dict[str, dict[str, object]] = {
    "a file": {"content": "x", "mode": "0644"},
    "a file with an owner": {"content": "x", "mode": "0644", "owner": "nobody"},
    "the owner of a file": {"owner": "nobody", "mode": "0666"},
    "a directory": {"state": "directory", "owner": "nobody", "mode": "0777"},
    "a link": {"state": "link", "src": "/dev/null"},
    "nothing": {"state": "absent"},
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("plant", PLANTS)
def test_host_files_leaves_what_is_roots(
    account: Account, root: Root, plant: str, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PLANTS[plant](account, root, NAME)
    told = files(account.directory / NAME, **ENTRIES[entry])(capsys)
    assert "$6$" not in json.dumps(told)
    assert root.is_untouched()


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("leads", ["etc", "etc/.", "..", "/"])
def test_host_files_goes_no_way_that_the_account_has_turned(
    account: Account, root: Root, leads: str, entry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = {"etc": "../etc", "etc/.": str(root.directory), "..": "..", "/": "/"}[leads]
    rest = {"etc": "shadow", "etc/.": "shadow", "..": "etc/shadow", "/": str(root.shadow).lstrip("/")}[leads]
    account.does(lambda: os.symlink(target, "data"))
    told = files(account.directory / "data" / rest, **ENTRIES[entry])(capsys)
    assert told.get("failed") is True
    assert "data" in str(told["msg"])
    assert root.is_untouched()


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_leads_into_what_is_roots(account: Account, root: Root, name: str, plant: str) -> None:
    PLANTS[plant](account, root, NAME)
    path = account.directory / NAME
    refused = ""
    try:
        WRITERS[name](str(path))
    except OSError as failure:
        refused = str(failure)
    is_written = stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_nlink == 1
    assert is_written or str(path) in refused
    assert root.is_untouched()


@pytest.mark.parametrize("plant", ["a link", "a pipe", "a hard link"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_uses_a_name_that_can_be_guessed(account: Account, root: Root, name: str, plant: str) -> None:
    for neighbour in NEIGHBOURS:
        PLANTS[plant](account, root, neighbour)
    before = {neighbour: (account.directory / neighbour).lstat() for neighbour in NEIGHBOURS}
    WRITERS[name](str(account.directory / NAME))
    assert stat.S_ISREG((account.directory / NAME).lstat().st_mode)
    for neighbour in NEIGHBOURS:
        assert os.path.samestat((account.directory / neighbour).lstat(), before[neighbour])
    assert root.is_untouched()
