# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that checks passwords and accounts as root for the hub: with made up answers of PAM, and the real one."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, login, pam
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle

ALICE = Account("alice", 2000, 2000, "/home/alice", "/bin/bash", ("lab",))
SETTINGS = Settings(hub={"login": {"kind": "pam", "pam_service": "portal", "options": {}}})
RIGHT = "correct horse"


class Host:
    """What PAM is asked, and answers."""

    def __init__(self, places: Path, status: int = pam.SUCCESS) -> None:
        self.places, self.status, self.asked = places, status, list[tuple[Any, ...]]()

    def check(self, *given: Any) -> pam.Answer:
        self.asked.append(given)
        return pam.Answer(self.status if self.status or given[2:] in ((), (RIGHT,)) else 7, "as PAM says")

    def ask(self, known: Settings = SETTINGS, **question: Any) -> Any:
        return login.answer(json.dumps(question).encode(), known, self.check, str(self.places), 0.0)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    def find(name: str, groups: object, least: int) -> Account:
        if name != "alice":
            raise Refused("there is no such account", code="no_account")
        return ALICE

    monkeypatch.setattr(accounts, "find", find)
    return Host(tmp_path)


def test_the_right_password_is_the_account(host: Host) -> None:
    assert host.ask(do="login", user="alice", password=RIGHT) == {"name": "alice"}
    assert host.asked == [("portal", "alice", RIGHT)]


def test_another_password_is_refused_without_being_told(host: Host) -> None:
    with pytest.raises(Refused, match="PAM refuses alice: as PAM says") as refused:
        host.ask(do="login", user="alice", password="guessed")
    assert "guessed" not in str(refused.value)


def test_of_who_may_have_no_sessions_no_password_is_looked_at(host: Host) -> None:
    for name in ("root", "nobody-here"):
        with pytest.raises(Refused, match="no such account"):
            host.ask(do="login", user=name, password=RIGHT)
    assert host.asked == []
    assert list(host.places.iterdir()) == []


def test_an_account_that_is_closed_or_over_is_told_and_what_pam_does_not_know_is_not(host: Host) -> None:
    for status in (pam.PERMISSION_DENIED, pam.ACCOUNT_EXPIRED):
        host.status = status
        with pytest.raises(Refused, match="closed or has expired"):
            host.ask(do="account", user="alice")
    # Such as a password that is old.
    host.status = 12
    assert host.ask(do="account", user="alice") == {"name": "alice"}
    with pytest.raises(Refused):
        host.ask(do="login", user="alice", password=RIGHT)


@pytest.mark.parametrize(
    "question",
    [
        {"do": "login", "user": "alice"},
        {"do": "login", "user": "alice", "password": ""},
        {"do": "login", "user": "alice", "password": "a\0b"},
        {"do": "login", "user": "alice", "password": "geheim" * 100},
        {"do": "login", "user": "alice", "password": ["geheim"]},
        {"do": "login", "user": "../alice", "password": "geheim"},
        {"do": "shell", "user": "alice", "password": "geheim"},
    ],
)
def test_other_questions_are_refused_without_the_password(host: Host, question: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as refused:
        host.ask(**question)
    assert "geheim" not in str(refused.value)
    assert host.asked == []


def test_where_logins_are_of_a_provider_no_password_of_the_host_is_guessed(host: Host) -> None:
    known = Settings(hub={"login": {"kind": "oidc", "pam_service": "portal", "options": {}}})
    with pytest.raises(Malformed):
        host.ask(known, do="login", user="alice", password=RIGHT)
    assert host.asked == []
    assert host.ask(known, do="account", user="alice") == {"name": "alice"}


def test_passwords_of_one_name_are_checked_one_after_the_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has taken over the hub asks as often as it likes."""
    together, most, lock = 0, 0, threading.Lock()
    there = threading.Event()

    def check(*_given: Any) -> pam.Answer:
        nonlocal together, most
        with lock:
            together, most = together + 1, max(most, together + 1)
        there.wait(0.05)
        with lock:
            together -= 1
        return pam.Answer(7, "no")

    monkeypatch.setattr(host, "check", check)

    def guess() -> None:
        with pytest.raises(Refused):
            host.ask(do="login", user="alice", password="guessed")

    threads = [threading.Thread(target=guess) for _number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert most == 1


def test_a_host_without_pam_is_told_and_nobody_gets_in(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "check", lambda *given: pam.check(*given))
    monkeypatch.setattr(pam, "LIBRARY", "libnothing.so.0")
    with pytest.raises(CallFailed, match=r"passwords cannot be checked: libnothing\.so\.0"):
        host.ask(do="login", user="alice", password=RIGHT)


# --- with the real PAM -----------------------------------------------------------------------------------------------

ENTER = """
mount --make-rprivate /
for name in passwd group shadow; do mount --bind {base}/$name /etc/$name; done
mount -t tmpfs tmpfs /etc/pam.d
printf 'auth required pam_unix.so nullok\\naccount required pam_unix.so\\n' >/etc/pam.d/portal
exec "$@"
"""


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program, with accounts of its own."""
    if os.geteuid() != 0 or not Path("/etc/pam.d").is_dir():
        pytest.skip("accounts of its own need root, a mount namespace and PAM")
    base = tmp_path_factory.mktemp("login")
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", RIGHT], check=True, capture_output=True, text=True
    ).stdout.strip()
    rows = {
        "passwd": ["root:x:0:0::/root:/bin/sh"],
        "group": ["root:x:0:", "lab:x:42100:"],
        "shadow": [f"root:{hashed}:1::::::"],
    }
    people = {"alice": hashed, "locked": f"!{hashed}", "empty": "", "expired": hashed, "old": hashed}
    for number, (name, word) in enumerate(people.items(), 42001):
        rows["passwd"].append(f"{name}:x:{number}:42100::/home/{name}:/bin/bash")
        changed, lasts = (1, 9) if name == "old" else (20000, 99999)
        rows["shadow"].append(f"{name}:{word}:{changed}:0:{lasts}:7::{1 if name == 'expired' else ''}:")
    for name, lines in rows.items():
        (base / name).write_text("\n".join(lines) + "\n")
    empty = {"gpus": 1, "cpus": 1, "memory_gib": 1, "hours": 1}
    known = {
        **dict.fromkeys(("partition", "account", "qos"), ""),
        **{name: [] for name in ("environments", "allowed_groups", "admin_groups", "domains")},
        "limits": empty,
        "limits_by_group": {},
        "least_uid": 1000,
        "session_port_first": 21000,
        "session_port_last": 21999,
        "hub": {"login": {"kind": "pam", "pam_service": "portal", "options": {}}},
    }
    (base / "settings.json").write_text(json.dumps(known))
    (base / "enter").write_text(ENTER.format(base=base))
    words = f"[], {str(base / 'settings.json')!r}, {str(base)!r}"
    (base / "program").write_text(bundle("portal.login").replace("entry.main()", f"entry.main({words})"))
    (base / "program").chmod(0o755)
    return ["unshare", "--mount", "sh", str(base / "enter"), str(base / "program")]


@pytest.mark.parametrize(
    ("question", "is_right"),
    [
        ({"do": "login", "user": "alice", "password": RIGHT}, True),
        ({"do": "login", "user": "alice", "password": f"{RIGHT}r"}, False),
        ({"do": "login", "user": "locked", "password": RIGHT}, False),
        ({"do": "login", "user": "empty", "password": " "}, False),
        ({"do": "login", "user": "expired", "password": RIGHT}, False),
        ({"do": "login", "user": "old", "password": RIGHT}, False),
        ({"do": "login", "user": "root", "password": RIGHT}, False),
        ({"do": "account", "user": "alice"}, True),
        ({"do": "account", "user": "old"}, True),
        ({"do": "account", "user": "expired"}, False),
        ({"do": "account", "user": "root"}, False),
    ],
)
def test_what_pam_says_of_an_account_counts(entered: list[str], question: dict[str, Any], is_right: bool) -> None:
    done = subprocess.run(entered, input=json.dumps(question), capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert (told.get("name") == question["user"]) is is_right, (told, done.stderr)
    assert done.returncode == (0 if is_right else 1)
    assert RIGHT not in done.stdout + done.stderr
