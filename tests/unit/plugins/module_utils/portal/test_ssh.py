# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH into sessions: whose key reaches what, and what the jump does with it. Answers of Slurm are made up."""

from __future__ import annotations

import io
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    helper,
    session,
    settings,
    ssh,
    ssh_jump,
    ssh_keys,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.ssh import Target
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission

KEYS = {name: f"ssh-ed25519 {'AAAAC3NzaC1lZDI1NTE5' + name * 8:A<68}" for name in ("alice", "bob", "both")}
ALICE, BOB = Target("alice", "", "192.0.2.7", 25012), Target("alice", "train", "192.0.2.8", 25013)
SITE = Settings(ssh_ports=(25000, 29999))


def test_the_ports_of_sessions_are_halved_where_there_is_ssh() -> None:
    given = {
        "limits": {"gpus": 1, "cpus": 1, "memory_gib": 1, "hours": 1},
        "limits_by_group": {},
        **{name: [] for name in ("environments", "allowed_groups", "admin_groups", "domains")},
        **dict.fromkeys(("partition", "account", "qos"), ""),
        "least_uid": 1000,
        "session_port_first": 20000,
        "session_port_last": 29999,
    }
    without, there = settings.parse(json.dumps(given)), settings.parse(json.dumps({**given, "ssh": True}))
    assert (without.ports, without.ssh_ports) == ((20000, 29999), None)
    assert (there.ports, there.ssh_ports) == ((20000, 24999), (25000, 29999))


@pytest.mark.parametrize("job", [1, 4999, 5000, 10**9])
def test_a_port_is_in_the_range_and_the_script_counts_as_the_jump_does(job: int) -> None:
    found = ssh.port(job, (25000, 29999))
    assert 25000 <= found <= 29999
    line = next(line for line in ssh.start((25000, 29999)).splitlines() if "exec /usr/sbin/sshd" in line)
    sum_of = line.partition('-p "')[2].partition('"')[0]
    done = subprocess.run(
        ["bash", "-c", f"echo {sum_of}"], env={"SLURM_JOB_ID": str(job)}, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == found


def test_the_script_of_a_session_starts_no_sshd_without_ssh() -> None:
    account = Account("alice", 2000, 2000, "/home/alice", "/bin/bash", ())
    request = session.Request(environment="default")
    for ports in (None, (25000, 29999)):
        known = Settings(environments={"default": "/opt/notebook"}, ssh_ports=ports)
        text = submission.script(session.job(account, "", request, known, {"JUPYTERHUB_API_TOKEN": "s"}, {}))
        assert ("/usr/sbin/sshd" in text) == bool(ports)
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    # What sshd is given, it may tell to others: it is started before there is a secret.
    assert text.index("/usr/sbin/sshd") < text.index("JUPYTERHUB_API_TOKEN")


def test_the_variables_of_the_job_and_no_others_are_those_of_logins(tmp_path: Path) -> None:
    """With a program in the place of sshd that tells what it was given."""
    stand_in = tmp_path / "sshd"
    stand_in.write_text('#!/bin/sh\n[ "$1" = -t ] && exit 1\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    script = ssh.start((25000, 29999)).replace("/usr/sbin/sshd", str(stand_in)).removesuffix("&")
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "17",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_NAME": 'a" PermitRootLogin=yes',
        "CUDA_VISIBLE_DEVICES": "0,1",
        "JUPYTERHUB_API_TOKEN": "secret",
        "SLURM_LINES": "a\nCUDA_VISIBLE_DEVICES=7 x",
    }
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    words = done.stdout.splitlines()
    assert "25017" in words, done.stderr
    (given,) = [word for word in words if word.startswith("SetEnv=")]
    pairs = given.removeprefix("SetEnv=").split()
    assert sorted(pair.partition("=")[0] for pair in pairs) == [
        "CUDA_VISIBLE_DEVICES",
        "PATH",
        "SLURM_JOB_ID",
        "SLURM_LINES",
        "SLURM_TASKS_PER_NODE",
    ]
    assert "CUDA_VISIBLE_DEVICES=0,1" in pairs
    assert not any("PerSourcePenalties" in word for word in words)


def test_the_key_of_sessions_is_made_once_and_never_replaced(tmp_path: Path) -> None:
    script = f'key="$HOME/{ssh.HOST_KEY}"\n{ssh.MAKE_KEY}'
    told = [
        subprocess.run(
            ["/bin/sh", "-c", script],
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _number in range(2)
    ]
    assert told[0] == told[1]
    assert ssh.KEY.fullmatch(" ".join(told[0].split()[:2]))
    key = tmp_path / ssh.HOST_KEY
    assert list(key.parent.iterdir()) == [key]
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_link", [False, True])
def test_a_named_pipe_in_the_place_of_the_key_keeps_nobody_waiting(tmp_path: Path, is_link: bool) -> None:
    key = tmp_path / ssh.HOST_KEY
    key.parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe" if is_link else key)
    if is_link:
        key.symlink_to(tmp_path / "pipe")
    done = subprocess.run(
        ["/bin/sh", "-c", f'key="$HOME/{ssh.HOST_KEY}"\n{ssh.MAKE_KEY}'],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a file" in done.stderr


# --- keys ------------------------------------------------------------------------------------------------------------


def test_only_keys_without_options_count() -> None:
    text = "\n".join(
        [
            f"{KEYS['alice']} alice@laptop",
            f'command="true" {KEYS["bob"]}',
            f"cert-authority {KEYS['both']}",
            f"# {KEYS['bob']}",
            "ssh-ed25519 no-key",
            "ssh-dss AAAA" + "B" * 60,
            "",
        ]
    )
    assert ssh.keys(text) == {KEYS["alice"]}


@pytest.mark.parametrize(
    "text", ["", "alice//192.0.2.7", "a b//192.0.2.7:1", "alice//$(id)/22", "alice//192.0.2.7/22; id", "alice/../x/22"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a target"):
        ssh.target(text)


def test_a_target_is_read_as_it_is_written() -> None:
    for one in (ALICE, BOB, Target("alice", "", "2001:db8::7", 25012)):
        assert ssh.target(str(one)) == one


def test_the_line_for_a_key_gives_one_program_and_nothing_else() -> None:
    assert ssh.authorized(KEYS["alice"]) == (
        f'restrict,command="/usr/libexec/baremetal-gpu/portal-jump connect {KEYS["alice"]}" {KEYS["alice"]}'
    )


def line(number: int, user: str, server: str = "", state: str = "RUNNING", node: str = "gpu1", home: str = "") -> str:
    """What squeue prints of a job."""
    directory = f"{home or f'/home/{user}'}/gpuops-jobs/portal-session{f'-{server}' if server else ''}"
    return f"{number} {user} {state} {node} {directory}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose files were read."""

    def find(name: str, groups: Any, least: int) -> Account:
        if name == "gone":
            raise Refused("no account")
        return Account(name, 2000, 2000, f"/home/{name}", "/bin/bash", ())

    monkeypatch.setattr(accounts, "find", find)
    return []


def answer(asked: list[str], key: str, lines: list[str], user: str = "", known: Settings = SITE) -> dict[str, Any]:
    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if argv[0].endswith("squeue"):
            assert "--name=portal-session" in argv
            (form,) = [word.partition("=")[2] for word in argv if word.startswith("--format=")]
            mark, _fields = form.split(" ", 1)
            return 0, "".join(f"{mark} {one}\n" for one in lines), ""
        return 0, f"NodeName={argv[-1]} NodeAddr=192.0.2.7 NodeHostName={argv[-1]} ", ""

    def read(people: Any) -> list[tuple[str, set[str]]]:
        asked.extend(one.name for one in people)
        # Anybody can have the public key of anybody.
        return [(one.name, {KEYS.get(one.name, ""), KEYS["both"]}) for one in people]

    question = {"key": key, **({"user": user} if user else {})}
    return ssh_keys.answer(json.dumps(question).encode(), known, run, read)


LINES = [
    line(12, "alice"),
    line(13, "alice", "train"),
    line(14, "bob"),
    line(15, "alice", "waits", "CONFIGURING"),
    line(17, "gone"),
]


def test_a_key_reaches_the_sessions_that_run_of_whoever_has_it_at_home(asked: list[str]) -> None:
    found = answer(asked, KEYS["alice"], LINES, "alice")
    assert found == {"targets": ["alice//192.0.2.7/25012", "alice/train/192.0.2.7/25013"]}
    assert asked == ["alice"]
    assert answer(asked, KEYS["bob"], LINES, "bob") == {"targets": ["bob//192.0.2.7/25014"]}
    assert answer(asked, KEYS["alice"], LINES, "bob") == {"targets": []}
    assert answer(asked, KEYS["both"], LINES, "gone") == {"targets": []}


def test_a_key_is_known_where_somebody_has_it_whose_session_runs(asked: list[str]) -> None:
    assert answer(asked, KEYS["alice"], LINES) == {"known": True}
    assert asked == ["alice", "bob"]
    assert answer(asked, KEYS["bob"], LINES[:2]) == {"known": False}


def test_jobs_of_others_with_the_name_of_sessions_and_the_key_shut_nobody_out(asked: list[str]) -> None:
    jobs = [line(number, f"a{number % 7}", f"s{number}") for number in range(100, 400)]
    lines = [*jobs, *(line(number, "alice") for number in range(500, 700)), line(900, "bob")]
    assert answer(asked, KEYS["both"], lines, "bob") == {"targets": ["bob//192.0.2.7/25900"]}
    assert asked == ["bob"]
    # Nor does a flood of the user's own hide the latest one.
    own = answer(asked, KEYS["both"], lines, "alice")["targets"]
    assert (len(own), own[-1]) == (50, "alice//192.0.2.7/25699")


def test_what_a_user_writes_into_a_directory_s_name_is_no_session_of_another(asked: list[str]) -> None:
    forged = line(12, "mallory", home="/tmp/x\n13 bob RUNNING gpu1 /home/bob")
    assert answer(asked, KEYS["both"], [forged], "bob") == {"targets": []}
    assert answer(asked, KEYS["both"], [line(14, "bob", home="/tmp/a b")], "bob")["targets"] == ["bob//192.0.2.7/25014"]


def test_the_sessions_of_everybody_fit_into_the_memory_of_the_program(asked: list[str]) -> None:
    """Of 10,000 jobs, each of which squeue tells in 9 kB of JSON."""
    lines = [line(number, f"u{number % 50}", f"s{number}") for number in range(10_000)]
    tracemalloc.start()
    try:
        assert answer(asked, KEYS["both"], lines) == {"known": True}
        assert len(answer(asked, KEYS["both"], lines, "u7")["targets"]) == 50
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_without_ssh_no_key_reaches_anything(asked: list[str]) -> None:
    assert answer(asked, KEYS["alice"], LINES, known=Settings()) == {"known": False}
    assert answer(asked, KEYS["alice"], LINES, "alice", Settings()) == {"targets": []}


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"[]",
        b'{"key": "ssh-ed25519 x"}',
        b'{"key": "' + b"A" * 30000 + b'"}',
        json.dumps({"key": KEYS["alice"], "user": "../x"}).encode(),
    ],
)
def test_a_question_that_is_none_is_refused(given: bytes) -> None:
    with pytest.raises(Malformed):
        ssh_keys.answer(given, SITE, lambda *words: (0, "", ""), lambda people: [])


def test_a_file_is_read_by_a_process_of_its_user_and_one_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of others")
    nobody = pwd.getpwnam("nobody")
    for parent in (tmp_path, *tmp_path.parents):
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    people = []
    for name in ("hangs", "secret", "alice"):
        file = tmp_path / name / ssh.AUTHORIZED_KEYS
        file.parent.mkdir(parents=True)
        if name == "hangs":
            os.mkfifo(file)
            os.chown(file, nobody.pw_uid, nobody.pw_gid)
        else:
            file.write_text(f"{KEYS['alice']} x\n")
            # One that root alone may read is nobody's.
            file.chmod(0o600 if name == "secret" else 0o644)
        people.append(Account(name, nobody.pw_uid, nobody.pw_gid, str(tmp_path / name), "/bin/sh", ()))
    # Of a home that hangs there are none; keys of the site's list are there all the same.
    found = dict(ssh_keys.authorized_keys(people, 30.0, str(tmp_path / "none")))
    assert found == {"hangs": set(), "secret": set(), "alice": {KEYS["alice"]}}
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "hangs").write_text(f"{KEYS['bob']} desk\n")
    assert dict(ssh_keys.authorized_keys(people, 30.0, str(tmp_path / "keys")))["hangs"] == {KEYS["bob"]}


def test_what_goes_wrong_is_told_to_the_jump_and_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert ssh_keys.main([], str(tmp_path / "none")) == 1
    out, error = capsys.readouterr()
    assert json.loads(out)["problem"]["code"] == "no_settings"
    assert "cannot be read" in error


# --- the page --------------------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_openssh_understands(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(ssh.config("alice", "portal.example.org", 2222))
    for name in ("portal", "train.portal"):
        done = subprocess.run(
            ["ssh", "-F", str(config), "-G", name], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert "user alice" in done
        assert "hostkeyalias alice.sessions.portal.example.org" in done
        assert "proxycommand ssh portal-jump %r %n" in done
    jump = subprocess.run(
        ["ssh", "-F", str(config), "-G", "portal-jump"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"hostname portal.example.org", "port 2222", f"user {ssh.ACCOUNT}"} <= set(jump)
    hosts = tmp_path / "known_hosts"
    hosts.write_text(ssh.known_hosts("alice", "portal.example.org", 2222, KEYS["bob"], KEYS["alice"]))
    for name, key in (("[portal.example.org]:2222", "bob"), ("alice.sessions.portal.example.org", "alice")):
        found = subprocess.run(
            ["ssh-keygen", "-F", name, "-f", str(hosts)], capture_output=True, text=True, check=True
        ).stdout
        assert KEYS[key] in found


def test_the_keys_for_the_page_are_asked_as_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account("alice", 2000, 2000, "/home/alice", "/bin/bash", ())
    monkeypatch.setattr(accounts, "find", lambda name, groups, least: account)
    person = pwd.struct_passwd(("alice", "x", 2000, 2000, "", "/home/alice", "/bin/bash"))
    monkeypatch.setattr(submission.pwd, "getpwnam", lambda name: person)
    calls: list[list[str]] = []

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        calls.append(argv)
        return 0, KEYS["bob" if argv[0] == "/usr/bin/cat" else "alice"] + " a comment\n", ""

    order = json.dumps({"do": "keys", "user": "alice"}).encode()
    assert helper.do(order, SITE, run) == {"session": KEYS["alice"], "jump": KEYS["bob"]}
    assert [argv[:3] for argv in calls if "/bin/sh" in argv] == [["/usr/sbin/runuser", "-u", "alice"]]
    with pytest.raises(CallFailed, match="the key of the session cannot be had"):
        helper.do(order, SITE, lambda *given: (0, "<script>", ""))


# --- the jump --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("alice portal", ALICE),
        ("alice train.portal", BOB),
        ("alice train.anything.else", BOB),
        ("alice", None),
        ("", None),
        ("bob portal", None),
        ("alice other.portal", None),
        ("alice portal id", None),
        ("alice portal; id", None),
    ],
)
def test_the_jump_takes_the_session_that_is_named(wanted: str, found: Target | None) -> None:
    assert ssh_jump.chosen(wanted, [ALICE, BOB]) == found


def connect(path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, *targets: Target) -> int:
    """What the jump does where the program of root knows these."""
    answering(path, json.dumps({"targets": [str(one) for one in targets]}).encode())
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", wanted)
    return ssh_jump.main(["connect", *KEYS["alice"].split()], str(path))


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ([ALICE, BOB], "There is no such session. Those that run: portal, train.portal.\n"),
        ([], "There is no such session.\n"),
    ],
)
def test_a_session_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    targets: list[Target],
    told: str,
) -> None:
    assert connect(tmp_path / "a", monkeypatch, "alice other.portal", *targets) == 1
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("wanted", ["", "../x portal", "alice"])
def test_who_names_no_user_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wanted: str
) -> None:
    assert connect(tmp_path / "a", monkeypatch, wanted) == 1
    assert "There is no such session" in capsys.readouterr().err


def test_one_who_cannot_be_asked_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "alice portal")
    assert ssh_jump.main(["connect", *KEYS["alice"].split()], "/nowhere") == 1
    assert "To do: try again" in capsys.readouterr().err


def test_words_of_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["shell"], ["keys", "ssh-ed25519"]):
        assert ssh_jump.main(words) == 2
    assert ssh_jump.main(["keys", "ssh-ed25519", "$(id)"]) == 0
    assert capsys.readouterr().out == ""


def answering(path: Path, answer: bytes) -> None:
    """One who answers once at a socket."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as one:
            one.makefile("rb").read()
            one.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


def test_what_is_asked_and_answered_becomes_targets(tmp_path: Path) -> None:
    answering(tmp_path / "a", json.dumps({"targets": [str(ALICE)]}).encode())
    assert ssh_jump.reached_by(KEYS["alice"], "alice", str(tmp_path / "a")) == [ALICE]
    for name, answer in (("b", b'{"problem": {}}'), ("c", b'{"targets": ["$(id)"]}'), ("d", b""), ("e", b"[]")):
        answering(tmp_path / name, answer)
        # That of JSON, or of a target.
        with pytest.raises(ValueError):  # noqa: PT011
            ssh_jump.reached_by(KEYS["alice"], "alice", str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        ssh_jump.reached_by(KEYS["alice"], "alice", str(tmp_path / "none"))


@pytest.mark.parametrize(("known", "lines"), [(True, 1), (False, 0)])
def test_a_key_has_a_line_where_somebody_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], known: bool, lines: int
) -> None:
    answering(tmp_path / "a", json.dumps({"known": known}).encode())
    assert ssh_jump.main(["keys", *KEYS["alice"].split()], str(tmp_path / "a")) == 0
    assert capsys.readouterr().out.splitlines() == [ssh.authorized(KEYS["alice"])] * lines


def test_bytes_go_both_ways_until_one_end_is_closed(tmp_path: Path) -> None:
    """As sshd runs it: an echo that tells when the other side has said all."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as one:
            while data := one.recv(65536):
                one.sendall(data)
            one.sendall(b"end")

    threading.Thread(target=serve, daemon=True).start()
    target = Target("alice", "", "127.0.0.1", server.getsockname()[1])
    answering(tmp_path / "a", json.dumps({"targets": [str(target)]}).encode())
    sent = os.urandom(3 << 20)
    words = ["connect", *KEYS["alice"].split()]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from {ssh_jump.__name__} import main; raise SystemExit(main({words!r}, {str(tmp_path / 'a')!r}))",
        ],
        env={**os.environ, "SSH_ORIGINAL_COMMAND": "alice portal", "PYTHONPATH": os.pathsep.join(sys.path)},
        input=sent,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == sent + b"end", done.stderr
    assert done.returncode == 0


def test_a_session_that_does_not_listen_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert connect(tmp_path / "a", monkeypatch, "alice portal", Target("alice", "", "127.0.0.1", port)) == 1
    assert "The session cannot be reached" in capsys.readouterr().err
