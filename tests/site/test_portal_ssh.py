# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH into sessions of the portal on the lab's Slurm. The client is OpenSSH of Debian 12 with what the page says.

The machines share no home, so the test brings keys to where a home would have them. The tests run in order.
"""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal.ssh import HOST_KEY, JUMP_KEY
from tests.site.plays import ROOT, services, ssh, until
from tests.site.portal_lab import PEOPLE, Portal, sessions
from tests.site.test_slurm import CONTROLLER, NODE, OPEN_DEVICES
from tests.unit.roles.portal_browser import Browser

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# A machine that is no part of the cluster.
CLIENT = "gpu2"
JUMP = "baremetal-gpu-portal-ssh.service"
REFUSED = "Permission denied (publickey)"


def as_user(user: str, command: str, machine: str = CLIENT) -> str:
    """What a command says, and how it ends, of a user whose shell reads nothing of the test's standard input."""
    done = f"cd; timeout 120 bash -c {shlex.quote(command)} </dev/null 2>&1; echo status=$?"
    return ssh(machine, f"sudo -Hu {user} bash -c {shlex.quote(done)}")


def put(machine: str, user: str, path: str, text: str) -> None:
    home = f"/home/{user}"
    ssh(
        machine,
        f"sudo -u {user} mkdir -p -m 700 {home}/{path.rpartition('/')[0]} && "
        f"printf %s {shlex.quote(text)} | sudo install -o {user} -g {user} -m 600 /dev/stdin {home}/{path}",
    )


def shown(page: str, name: str) -> str:
    found = re.search(rf'<pre id="portal-ssh-{name}"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found, page[-3000:]
    return html.unescape(found[1])


@pytest.fixture(scope="module")
def portal(bare_portal: Portal) -> Iterator[Portal]:
    for machine in (CLIENT, NODE):
        install = "sudo apt-get update -qq && sudo apt-get install -qq -y --no-install-recommends rsync"
        ssh(machine, f"which rsync || {{ {install}; }} >/dev/null")
    with bare_portal.there() as there:
        yield there


@pytest.fixture(scope="module")
def people(portal: Portal) -> dict[str, Browser]:
    """Each logs in to the portal, opens its page of SSH, and does on another machine what it says."""
    browsers = {}
    for name, number in PEOPLE.items():
        make = f"sudo useradd --uid {number} --create-home -s /bin/bash {name}"
        ssh(CLIENT, f"id {name} >/dev/null 2>&1 || {make}")
        assert "status=0" in as_user(
            name, "mkdir -p .ssh; test -f .ssh/id_ed25519 || ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519"
        )
        public = ssh(CLIENT, f"sudo cat /home/{name}/.ssh/id_ed25519.pub")
        for machine in (CONTROLLER, NODE):
            put(machine, name, ".ssh/authorized_keys", public)
        browsers[name] = portal.log_in(name)
        page = browsers[name].get("/hub/ssh").text
        put(CLIENT, name, ".ssh/config", shown(page, "config"))
        put(CLIENT, name, ".ssh/known_hosts", shown(page, "known-hosts"))
        put(NODE, name, HOST_KEY, ssh(CONTROLLER, f"sudo cat /home/{name}/{HOST_KEY}"))
    return browsers


@pytest.fixture(scope="module")
def session(portal: Portal, people: dict[str, Browser]) -> int:
    """The number of alice's job."""
    people["alice"].start(gpus="1", environment="notebook")
    portal.ready(people["alice"])
    return next(int(number) for number, user, _state, _gpus in sessions() if user == "alice")


def test_the_jump_has_no_rights_and_its_key_is_its_own(people: dict[str, Browser]) -> None:
    told = ssh(CONTROLLER, f"systemctl show {JUMP} -p User,NoNewPrivileges,CapabilityBoundingSet,ActiveState")
    assert "User=baremetal-gpu-portal-ssh" in told
    assert "NoNewPrivileges=yes" in told
    assert "CapabilityBoundingSet=\n" in told + "\n"
    assert "denied" in ssh(CONTROLLER, f"sudo -u alice cat {JUMP_KEY} 2>&1 || true")
    attempt = "import socket; socket.socket(socket.AF_UNIX).connect('/run/baremetal-gpu-portal-keys.sock')"
    assert "PermissionError" in ssh(CONTROLLER, f"sudo -u alice python3 -c {shlex.quote(attempt)} 2>&1 || true")


def test_without_a_session_a_key_opens_nothing(people: dict[str, Browser]) -> None:
    assert REFUSED in as_user("alice", "ssh -o BatchMode=yes portal true")


def test_a_command_runs_in_the_job_with_its_gpu_and_its_variables(session: int) -> None:
    told = as_user("alice", "ssh -o BatchMode=yes portal 'nvidia-smi -L; env; cat /proc/self/cgroup'")
    assert "status=0" in told
    assert told.count("GPU ") == 1
    assert re.search(r"^CUDA_VISIBLE_DEVICES=[01]$", told, re.MULTILINE)
    assert f"SLURM_JOB_ID={session}\n" in told
    assert f"/job_{session}/" in told
    assert "JUPYTERHUB_API_TOKEN" not in told
    devices = as_user("alice", f"ssh -o BatchMode=yes portal {shlex.quote(OPEN_DEVICES)}").split("\n")[:2]
    assert sorted(line.split()[1] for line in devices) == ["1", "6"]


def test_a_terminal_and_a_shell_that_an_editor_feeds_work(session: int) -> None:
    assert "/dev/pts/" in as_user("alice", "ssh -tt -o BatchMode=yes portal tty")
    told = as_user("alice", "echo 'echo on-$(hostname)' | ssh -T -D 18090 -o BatchMode=yes portal bash")
    assert f"on-{NODE}" in told


def test_files_come_over_by_rsync_sftp_and_scp(session: int) -> None:
    """64 MiB, so that nothing is in one packet."""
    as_user("alice", "mkdir -p data back && head -c 67108864 /dev/urandom >data/big && echo small >data/small")
    wanted = as_user("alice", "cd data && sha256sum big small")
    assert "status=0" in as_user("alice", "rsync -a -e 'ssh -o BatchMode=yes' data/ portal:data/")
    assert as_user("alice", "ssh -o BatchMode=yes portal 'cd data && sha256sum big small'") == wanted
    assert "status=0" in as_user("alice", "echo 'get data/small back/small' | sftp -b - portal")
    assert "status=0" in as_user("alice", "scp -o BatchMode=yes portal:data/big back/big")
    assert as_user("alice", "cd back && sha256sum big small") == wanted


def test_a_port_is_forwarded(session: int) -> None:
    ask = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:18080/small').read().decode())"
    serve = "cd data && exec timeout 60 python3 -m http.server --bind 127.0.0.1 18081"
    told = as_user(
        "alice",
        f"ssh -o BatchMode=yes -o ExitOnForwardFailure=yes -L 18080:127.0.0.1:18081 portal {shlex.quote(serve)} &"
        f" for _ in $(seq 100); do python3 -c {shlex.quote(ask)} 2>/dev/null && break; sleep 0.2; done; kill %1",
    )
    assert "small\n" in told


@pytest.mark.parametrize(
    "words",
    [
        "portal-jump",
        "portal-jump id",
        "portal-jump alice nobody.portal",
        "portal-jump 'alice portal; id'",
        "-tt portal-jump id",
        "-W 127.0.0.1:22 portal-jump",
        f"-W {NODE}:22 portal-jump",
        "-s portal-jump sftp",
    ],
)
def test_the_jump_is_no_login_and_leads_nowhere_else(session: int, words: str) -> None:
    told = as_user("alice", f"ssh -o BatchMode=yes {words}")
    assert "status=0" not in told
    assert "uid=" not in told
    assert "SSH-2.0" not in told
    assert re.search(
        "There is no such session|administratively prohibited|(subsystem|PTY allocation) request failed", told
    )


def test_the_jump_forwards_no_port_to_anybody(session: int) -> None:
    for option in ("-L 18070:127.0.0.1:22", "-R 18071:127.0.0.1:22"):
        told = as_user(
            "alice",
            f"timeout 20 ssh -N -o BatchMode=yes -o ExitOnForwardFailure=yes {option} portal-jump &"
            " sleep 5; timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/18070; head -c 7 <&3'; kill %1",
        )
        assert "SSH-2.0" not in told
    assert "18071" not in ssh(CONTROLLER, "ss -ltn")


def test_what_the_home_has_for_shells_does_not_run_on_the_portals_host(session: int) -> None:
    for name in (".bashrc", ".ssh/rc", ".ssh/environment"):
        put(CONTROLLER, "alice", name, "touch /tmp/ran-on-the-portal\n")
    assert "status=0" in as_user("alice", "ssh -o BatchMode=yes portal true")
    assert ssh(CONTROLLER, "ls /tmp/ran-on-the-portal 2>/dev/null || true") == ""


def test_another_key_than_the_one_shown_is_refused(session: int) -> None:
    ssh(CLIENT, "sudo cp -p ~alice/.ssh/known_hosts ~alice/.ssh/known_hosts.right")
    ssh(CLIENT, f"sudo sed -i 's/^alice.*/{known_host('alice', 'bob')}/' ~alice/.ssh/known_hosts")
    try:
        assert "Host key verification failed" in as_user("alice", "ssh -o BatchMode=yes portal true")
    finally:
        ssh(CLIENT, "sudo mv ~alice/.ssh/known_hosts.right ~alice/.ssh/known_hosts")


def known_host(user: str, with_key_of: str) -> str:
    line = ssh(CLIENT, f"sudo grep ^{with_key_of}.sessions /home/{with_key_of}/.ssh/known_hosts").strip()
    return line.replace(f"{with_key_of}.", f"{user}.", 1).replace("/", r"\/")


def port_of(number: int) -> str:
    """Where the sshd of a job listens."""
    pids = ssh(NODE, "pgrep -u alice -f '^/usr/sbin/sshd -D'").split()
    (line,) = [ssh(NODE, f"sudo cat /proc/{pid}/cmdline | tr '\\0' ' '") for pid in pids]
    found = re.search(r" -p (\d+) ", line)
    assert found
    assert int(found[1]) == 25000 + number % 5000
    return found[1]


def test_nobody_else_comes_in_at_any_point(portal: Portal, people: dict[str, Browser], session: int) -> None:
    # bob has no session: the jump refuses his key.
    assert REFUSED in as_user("bob", "ssh -o BatchMode=yes portal true")
    assert REFUSED in as_user("bob", "ssh -o BatchMode=yes -l alice portal true")
    # From the portal's host, to which he may log in, the port of the session: not as alice, and not as himself.
    key = ssh(CLIENT, "sudo cat ~bob/.ssh/id_ed25519")
    put(CONTROLLER, "bob", ".ssh/id_ed25519", key)
    for user in ("alice", "bob"):
        words = f"ssh -o BatchMode=yes -o StrictHostKeyChecking=no -p {port_of(session)} {user}@{NODE} id"
        assert REFUSED in as_user("bob", words, CONTROLLER)
    # With a session of his own the jump knows his key, and takes him to that one alone.
    people["bob"].start(gpus="0", environment="notebook")
    portal.ready(people["bob"])
    assert "uid=2302(bob)" in as_user("bob", "ssh -o BatchMode=yes portal id")
    for words in ("-l alice portal id", "portal-jump alice portal", "portal-jump alice"):
        told = as_user("bob", f"ssh -o BatchMode=yes {words}")
        assert "There is no such session" in told
        assert "SSH-2.0" not in told
    # Whoever writes somebody's key into the own file reaches nothing with it, and takes nothing away.
    public = ssh(CLIENT, "sudo cat ~alice/.ssh/id_ed25519.pub ~bob/.ssh/id_ed25519.pub")
    put(CONTROLLER, "bob", ".ssh/authorized_keys", public)
    assert "uid=2301(alice)" in as_user("alice", "ssh -o BatchMode=yes portal id")
    portal.stop(people["bob"])


@contextmanager
def connected(user: str) -> Iterator[subprocess.Popen[str]]:
    """Somebody's command in the session that does not end by itself."""
    remote = "ssh -o BatchMode=yes portal 'echo is-there; exec sleep 3000'; echo closed-at=$(date +%s.%N)"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.lab.machines",
            "ssh",
            CLIENT,
            "--",
            f"sudo -Hu {user} bash -c {shlex.quote(remote)}",
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "is-there\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_second_run_changes_nothing_and_a_connection_outlives_it(portal: Portal, session: int) -> None:
    before = services(CONTROLLER)
    with connected("alice") as process:
        play = portal.run()
        assert play.rc == 0, play.tail()
        assert play.changed_tasks == {}
        assert services(CONTROLLER) == before
        ssh(CONTROLLER, f"sudo systemctl reload {JUMP}")
        assert process.poll() is None


def test_a_connection_ends_with_the_session(portal: Portal, people: dict[str, Browser], session: int) -> None:
    with connected("alice") as process:
        assert process.stdout is not None
        portal.stop(people["alice"])
        closed = float(process.stdout.readline().removeprefix("closed-at="))
    told = ssh(CONTROLLER, f"date -d \"$(scontrol show job {session} | sed -n 's/.*EndTime=\\([^ ]*\\).*/\\1/p')\" +%s")
    print(f"the connection was closed {closed - float(told):.1f} s after the lease had ended, by the clock of Slurm")
    assert until(lambda: not ssh(NODE, "pgrep -u alice || true"), 60, lambda: ssh(NODE, "ps -fu alice || true"))
    assert REFUSED in as_user("alice", "ssh -o BatchMode=yes portal true")


def test_the_next_session_is_reached_by_the_same_name_and_key(portal: Portal, people: dict[str, Browser]) -> None:
    ssh(NODE, "sudo -u alice mkdir -p ~alice/gpuops-jobs/portal-session-second")
    people["alice"].start("second", gpus="0", environment="notebook")
    until(
        lambda: portal.server(people["alice"], "second").get("ready"),
        240,
        lambda: ssh(CONTROLLER, "squeue; scontrol show job"),
    )
    assert "uid=2301(alice)" in as_user("alice", "ssh -o BatchMode=yes second.portal id")
    assert "Those that run: second.portal." in as_user("alice", "ssh -o BatchMode=yes portal id")
    assert "second.portal" in people["alice"].get("/hub/ssh").text


def test_without_ssh_nothing_of_it_is_left_but_the_key_of_the_jump(portal: Portal, people: dict[str, Browser]) -> None:
    play = portal.run(portal_ssh=False)
    assert play.rc == 0, play.tail()
    assert ssh(CONTROLLER, f"systemctl is-active {JUMP} baremetal-gpu-portal-keys.socket || true").split() == [
        "inactive",
        "inactive",
    ]
    assert ":2222 " not in ssh(CONTROLLER, "ss -ltn")
    assert people["alice"].get("/hub/ssh").status == 404
    left = ssh(CONTROLLER, "ls /etc/systemd/system/*portal-ssh* /etc/systemd/system/*portal-keys* 2>/dev/null || true")
    assert left == ""
    assert "host_key" in ssh(CONTROLLER, f"sudo ls {JUMP_KEY}")
