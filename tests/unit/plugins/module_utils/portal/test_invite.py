# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that sets passwords: a code is good once, for one person, for a week, and nothing of it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, invite
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from gpuops.users import invitations

ALICE = Account("alice", 10001, 10001, "/home/alice", "/bin/bash", ())
PAM = Settings(hub={"login": {"kind": "pam"}})
PASSWORD = "four words in a row"
NOW, UNTIL = 1000.0, 2000


class Host:
    """Where invitations are, and what chpasswd is told."""

    def __init__(self, base: Path) -> None:
        self.directory, self.places = base / "invitations", base / "places"
        self.directory.mkdir()
        self.places.mkdir()
        self.told: list[str | None] = []
        self.status, self.now = 0, NOW

    def run(self, argv: list[str], stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        assert argv == [invite.CHPASSWD]
        self.told.append(stdin)
        return self.status, "", "chpasswd: no"

    def invited(self, name: str = "alice", uid: int = 10001) -> str:
        code, row = invitations.make(uid, UNTIL)
        entry = invitations.entry(name, row)
        (self.directory / Path(entry["path"]).name).write_text(entry["content"])
        assert code.replace("-", "") not in entry["content"].replace("-", "")
        return code

    def ask(self, code: str, password: str = PASSWORD, user: str = "alice", known: Settings = PAM) -> Any:
        given = json.dumps({"user": user, "code": code, "password": password}).encode()
        places = str(self.places)
        return invite.answer(given, known, self.run, str(self.directory), places, 0.0, lambda: self.now)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    def find(name: str, *_more: object) -> Account:
        if name != "alice":
            raise Refused("there is no such account", code="no_account")
        return ALICE

    monkeypatch.setattr(accounts, "find", find)
    return Host(tmp_path)


def test_a_code_sets_the_password_once(host: Host) -> None:
    code = host.invited()
    assert host.ask(code.upper().replace("-", " ")) == {"name": "alice"}
    assert host.told == [f"alice:{PASSWORD}\n"]
    with pytest.raises(Refused, match="there is none"):
        host.ask(code)
    assert len(host.told) == 1


@pytest.mark.parametrize("code", ["", "22222-22222-22222-22222"])
def test_another_code_is_refused_and_the_right_one_stays_good(host: Host, code: str) -> None:
    right = host.invited()
    with pytest.raises(Refused, match="the code is another one") as refused:
        host.ask(code)
    assert PASSWORD not in str(refused.value)
    assert host.told == []
    assert host.ask(right) == {"name": "alice"}


def test_a_new_code_takes_the_place_of_an_earlier_one(host: Host) -> None:
    first, second = host.invited(), host.invited()
    with pytest.raises(Refused):
        host.ask(first)
    assert host.ask(second) == {"name": "alice"}


def test_a_code_of_last_week_or_of_another_person_sets_nothing(host: Host) -> None:
    code = host.invited()
    host.now = UNTIL
    with pytest.raises(Refused, match="it has expired"):
        host.ask(code)
    host.now = NOW
    with pytest.raises(Refused, match="it is for the uid 10009"):
        host.ask(host.invited(uid=10009))
    assert host.told == []


def test_nobody_else_gets_a_password(host: Host) -> None:
    code = host.invited("root", 0)
    for user in ("root", "bob"):
        with pytest.raises(Refused, match="no such account"):
            host.ask(code, user=user)
    with pytest.raises(Refused, match="archived or removed"):
        host.ask(host.invited(), known=Settings(hub=PAM.hub, closed=frozenset(["alice"])))
    with pytest.raises(Malformed):
        host.ask(host.invited(), known=Settings(hub={"login": {"kind": "ldap"}}))
    assert host.told == []


@pytest.mark.parametrize(
    ("password", "said"),
    [("eleven char", "12 characters"), ("twelve chars\nroot:x", "printable"), ("twelve chars\0", "printable")],
)
def test_a_weak_password_is_refused_and_the_code_stays_good(host: Host, password: str, said: str) -> None:
    code = host.invited()
    with pytest.raises(Refused, match=said) as refused:
        host.ask(code, password)
    assert refused.value.problem.code == "weak_password"
    assert host.ask(code) == {"name": "alice"}


def test_a_password_that_cannot_be_set_leaves_the_code_good(host: Host) -> None:
    code = host.invited()
    host.status = 1
    with pytest.raises(CallFailed, match="chpasswd"):
        host.ask(code)
    host.status = 0
    assert host.ask(code) == {"name": "alice"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"salt": 1, "hash": 2, "until": 3}', '{"salt": "a", "hash": "é", "until": 9999}']
)
def test_a_torn_invitation_is_none(host: Host, text: str) -> None:
    (host.directory / "alice").write_text(text)
    with pytest.raises(Refused, match="no invitation"):
        host.ask("22222-22222-22222-22222")


def test_codes_are_long_and_all_different() -> None:
    codes = {invitations.make(1, 1)[0] for _number in range(200)}
    assert len(codes) == 200
    assert all(
        len(code.replace("-", "")) == invite.CODE_LETTERS and len(invite.LETTERS) ** 20 > 2**95 for code in codes
    )
