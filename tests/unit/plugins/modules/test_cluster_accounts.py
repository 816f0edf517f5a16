# SPDX-License-Identifier: GPL-3.0-or-later
"""cluster_accounts with the real programs of the host, on a copy of /etc that only the module's process sees."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.system import accounts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import users

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJHh6bJXyGZTBoXfLhbW0fY1rNnPpkFvEoNgTrKZ1oRY alice@laptop"
LEDGER = {"users": {"alice": 10001, "bob": 10002, "carol": 10003, "dave": 59871}, "first": 10001, "last": 59999}
MODULE = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.baremetal.gpu.plugins.modules import cluster_accounts
with patch_module_args(json.load(sys.stdin)):
    cluster_accounts.main()
"""


def row(name: str, uid: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": uid, "gid": uid, "home": f"/home/{name}", "shell": "/bin/bash", **more}


ALICE = row("alice", 10001, full_name="Alice Example", ssh_keys=[KEY], groups=["physics"])
BOB = row("bob", 10002, groups=["physics"])
PHYSICS = {"name": "physics", "gid": 10100}


class Etc:
    """A host whose /etc is kept in a directory, over the real one."""

    def __init__(self, directory: Path) -> None:
        self.upper, self._work = directory / "upper", directory / "work"
        self.upper.mkdir()
        self._work.mkdir()
        (self.upper / "ssh" / "authorized_keys.d").mkdir(parents=True)

    def _words(self, argv: Sequence[str]) -> list[str]:
        mounted = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={self.upper},workdir={self._work} /etc"
        return ["unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh", *argv]

    def run(self, *argv: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._words(argv), input=given, capture_output=True, text=True, timeout=120, check=False)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words(argv), stderr=subprocess.DEVNULL)

    def ask(self, users: list[Any], groups: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        given = {"users": users, "groups": groups or [], "ledger": LEDGER, **more}
        done = self.run(sys.executable, "-c", MODULE, given=json.dumps(given))
        assert done.stdout, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def getent(self, database: str, name: str) -> str:
        return self.run("getent", database, name).stdout.strip()

    def keys(self, name: str) -> str:
        path = self.upper / "ssh" / "authorized_keys.d" / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def etc(tmp_path: Path) -> Etc:
    if os.geteuid() or not shutil.which("useradd"):
        pytest.skip("needs root and useradd")
    made = Etc(tmp_path)
    if made.run("true").returncode:
        pytest.skip("no overlay can be mounted here")
    return made


def test_accounts_are_made_once_with_their_numbers_and_without_a_password(etc: Etc) -> None:
    announced = etc.ask([ALICE, BOB], [PHYSICS], _ansible_check_mode=True)
    assert etc.getent("passwd", "alice") == ""
    told = etc.ask([ALICE, BOB], [PHYSICS])
    assert told["changed"], told
    assert (told["plan"], told["diff"]) == (announced["plan"], announced["diff"])
    assert etc.getent("passwd", "alice") == "alice:x:10001:10001:Alice Example:/home/alice:/bin/bash"
    assert etc.getent("group", "physics") == "physics:x:10100:alice,bob"
    assert etc.getent("shadow", "alice").startswith("alice:!:")
    assert etc.keys("alice") == f"{KEY}\n"
    again = etc.ask([ALICE, BOB], [PHYSICS])
    assert (again["changed"], again["plan"]) == (False, [])
    assert again["diff"]["before"] == again["diff"]["after"]


def test_a_user_is_closed_opened_again_and_removed(etc: Etc) -> None:
    etc.ask([ALICE], [PHYSICS])
    etc.run("usermod", "--password", "$6$hash", "alice")
    told = etc.ask([{**ALICE, "state": "closed"}], [PHYSICS])
    assert told["plan"] == ["remove the SSH keys of alice", "close the account alice", "members of physics: none"]
    assert etc.keys("alice") == ""
    assert etc.getent("passwd", "alice").endswith(":/usr/sbin/nologin")
    # The first day of all: PAM, sshd and cron take it for expired.
    assert etc.getent("shadow", "alice").split(":")[7] == "1"
    assert not etc.ask([{**ALICE, "state": "closed"}], [PHYSICS])["changed"]
    assert etc.ask([ALICE], [PHYSICS])["changed"]
    assert etc.getent("passwd", "alice").endswith(":/bin/bash")
    assert etc.getent("shadow", "alice").split(":")[1::6] == ["$6$hash", ""]
    assert etc.keys("alice") == f"{KEY}\n"
    etc.ask([{**ALICE, "state": "removed"}], [PHYSICS])
    assert etc.getent("passwd", "alice") == etc.getent("group", "alice") == ""
    assert not etc.ask([{**ALICE, "state": "removed"}], [PHYSICS])["changed"]


def test_the_host_itself_closes_an_account_on_its_day(etc: Etc) -> None:
    etc.ask([{**BOB, "groups": [], "until": "2027-03-31"}])
    assert etc.run("chage", "--list", "bob").stdout.count("Mar 31, 2027") == 1


def test_what_differs_is_changed_and_what_others_made_stays(etc: Etc) -> None:
    etc.ask([ALICE], [PHYSICS])
    etc.run("useradd", "--uid", "3000", "byhand")
    etc.run("gpasswd", "--add", "byhand", "physics")
    etc.run("groupadd", "byhand2")
    etc.run("gpasswd", "--add", "alice", "byhand2")
    told = etc.ask([{**ALICE, "shell": "/bin/sh", "full_name": "Alice", "groups": []}], [PHYSICS])
    assert told["plan"] == ["change the account alice: comment Alice, shell /bin/sh", "members of physics: byhand"]
    assert etc.getent("passwd", "alice") == "alice:x:10001:10001:Alice:/home/alice:/bin/sh"
    assert etc.getent("group", "physics") == "physics:x:10100:byhand"
    assert etc.getent("group", "byhand2").endswith(":alice")


@pytest.mark.parametrize(
    ("before", "users", "code", "said"),
    [
        (["useradd --uid 2001 alice"], [ALICE], "other_uid", "`gpuops user change alice --uid 2001`"),
        (["useradd --uid 10001 --non-unique mallory"], [ALICE], "unknown_numbers", "mallory (10001)"),
        (["useradd --system alice"], [ALICE], "system_account", "give the user another name"),
        (["useradd --uid 2001 mallory"], [row("dave", 2001)], "uid_taken", "here mallory has it"),
        (["groupadd --gid 2002 alice"], [ALICE], "other_gid", "groupmod --gid 10001 alice"),
        (["groupadd --gid 10001 nurses"], [ALICE], "gid_taken", "here nurses has it"),
        (["useradd --uid 10044 eve"], [ALICE], "unknown_numbers", "eve (10044)"),
        (["useradd --uid 2001 bob"], [{**BOB, "state": "closed"}], "other_uid", "gpuops user change bob --uid 2001"),
    ],
)
def test_a_host_that_does_not_go_with_the_list_is_left_as_it_is(
    etc: Etc, before: list[str], users: list[Any], code: str, said: str
) -> None:
    for command in before:
        assert etc.run(*command.split()).returncode == 0
    files = etc.run("cat", "/etc/passwd", "/etc/group").stdout
    told = etc.ask(users)
    assert told["failed"], told
    assert [problem["code"] for problem in told["problems"]] == [code]
    assert said in told["msg"]
    assert etc.run("cat", "/etc/passwd", "/etc/group").stdout == files


def test_an_account_whose_number_the_list_names_is_taken_over(etc: Etc) -> None:
    etc.run("useradd", "--uid", "10044", "--home-dir", "/home/eve", "--shell", "/bin/bash", "eve")
    assert etc.ask([row("eve", 10044, listed=True)])["plan"] == []


def test_a_key_of_the_list_opens_sshd_without_a_home_until_the_user_is_closed(etc: Etc, tmp_path: Path) -> None:
    if not Path("/usr/sbin/sshd").is_file() or not Path("/run/sshd").is_dir():
        pytest.skip("needs openssh-server")
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    key = " ".join((tmp_path / "mine.pub").read_text().split())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {tmp_path / 'host'}", "UsePAM yes", "PidFile none"]
    (tmp_path / "sshd_config").write_text(users.SETTING + "\n".join(lines) + "\n")

    def logs_in() -> bool:
        sshd = etc.start("/usr/sbin/sshd", "-D", "-e", "-f", str(tmp_path / "sshd_config"))
        try:
            while b"SSH-2" not in _banner(port):
                assert sshd.poll() is None
            options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
            words = ["ssh", "-F", "none", *options, "-i", str(tmp_path / "mine"), "-p", str(port), "alice@127.0.0.1"]
            done = subprocess.run([*words, "id", "-u"], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode in (0, 255), done.stderr
            return done.stdout == "10001\n"
        finally:
            sshd.terminate()
            sshd.wait()

    etc.ask([{**ALICE, "groups": [], "home": str(tmp_path / "nowhere"), "ssh_keys": [key]}])
    assert logs_in()
    # A key that she has left elsewhere opens nothing either: the account has expired.
    etc.ask([{**ALICE, "groups": [], "home": str(tmp_path / "nowhere"), "ssh_keys": [key], "state": "closed"}])
    (etc.upper / "ssh" / "authorized_keys.d" / "alice").write_text(f"{key}\n")
    assert not logs_in()


def _banner(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as made:
            return made.recv(20)
    except OSError:
        return b""


def test_processes_of_a_closed_user_end(etc: Etc) -> None:
    # They end on this host, whose machines of the lab have users of the usual ids.
    uid = 59871
    etc.ask([row("dave", uid)])
    with subprocess.Popen(["setpriv", f"--reuid={uid}", "--clear-groups", "sleep", "600"]) as process:
        while accounts.processes().get(uid) is None:
            assert process.poll() is None
        told = etc.ask([row("dave", uid, state="closed")])
        assert "end 1 processes of dave" in told["plan"]
        assert process.wait(timeout=60) == -9


def test_jobs_of_closed_users_are_cancelled_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.touch()
    monkeypatch.setattr(accounts, "SQUEUE", str(squeue))
    told: list[str] = []
    left = [["alice", "bob"], ["bob"], []]

    def run(argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        told.append(" ".join(argv[1:]))
        return 0, "\n".join(left.pop(0)) if argv[0] == str(squeue) else "", ""

    assert accounts.jobs(["bob", "carol"], run) == ["bob"]
    accounts.end_jobs(["bob"], run, wait=lambda _seconds: None)
    assert told.count("--user=bob") == 1
    assert left == []
