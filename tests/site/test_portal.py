# SPDX-License-Identifier: GPL-3.0-or-later
"""portal.yml on a real cluster of Slurm in the lab: the hub, its proxy, sessions with a simulated GPU, and a browser.

The machines share no home, so the directory of a session is made on the node, too. The tests of this file run in order.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site.plays import Play, services, ssh, until
from tests.site.portal_lab import HUB, PASSWORD, PROXY, Portal, sessions
from tests.site.test_slurm import CONTROLLER, NODE
from tests.unit.roles.portal_browser import Browser

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def announced(bare_portal: Portal) -> Play:
    return bare_portal.run("--check --diff")


@pytest.fixture(scope="module")
def portal(bare_portal: Portal, announced: Play) -> Iterator[Portal]:
    with bare_portal.there() as there:
        yield there


@pytest.fixture(scope="module")
def alice(portal: Portal) -> Browser:
    return portal.log_in("alice")


@pytest.fixture(scope="module")
def bob(portal: Portal) -> Browser:
    return portal.log_in("bob")


def test_check_mode_tells_what_a_run_would_install_and_changes_nothing(announced: Play, bare_portal: Portal) -> None:
    assert announced.rc == 0, announced.tail()
    assert "node-configurable-http-proxy" in announced.stdout
    assert "jupyterhub 6" in announced.stdout
    assert ssh(CONTROLLER, "id baremetal-gpu-portal 2>&1 || true").startswith("id:")


def test_a_second_run_changes_nothing_and_restarts_nothing(portal: Portal) -> None:
    before = services(CONTROLLER)
    play = portal.run()
    assert play.rc == 0, play.tail()
    assert play.changed_tasks == {}
    assert services(CONTROLLER) == before


def test_the_hub_has_no_rights_and_the_host_no_secret_that_others_read(portal: Portal) -> None:
    told = ssh(CONTROLLER, f"systemctl show {HUB} -p User,NoNewPrivileges,CapabilityBoundingSet")
    assert "User=baremetal-gpu-portal" in told
    assert "NoNewPrivileges=yes" in told
    for path in ("/etc/baremetal-gpu/portal/proxy.env", "/etc/baremetal-gpu/portal/tls/key.pem"):
        assert "denied" in ssh(CONTROLLER, f"sudo -u alice cat {path} 2>&1 || true")
    order = '{"do": "cancel", "user": "alice", "job": 1}'
    attempt = (
        f"import socket; socket.socket(socket.AF_UNIX).connect('/run/baremetal-gpu-portal-session.sock'); {order!r}"
    )
    assert "PermissionError" in ssh(CONTROLLER, f"sudo -u alice python3 -c {shlex.quote(attempt)} 2>&1 || true")


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("root", PASSWORD), ("nobody-here", PASSWORD)])
def test_others_do_not_come_in(portal: Portal, name: str, password: str) -> None:
    assert portal.log_in(name, password).get("/hub/now/data").url.endswith("/hub/now/data") is False


def test_the_form_says_what_is_free_and_that_a_session_starts_at_once(alice: Browser) -> None:
    page = alice.get("/hub/spawn").text
    assert "a100: 2 of 2 free" in page
    asked = "gpus=1&cpus=1&memory_gib=1&hours=1&environment=notebook"
    assert alice.get(f"/hub/now/forecast?{asked}").json()["answer"] == "now"


def test_a_session_has_its_gpu_and_its_user_alone_reaches_it(portal: Portal, alice: Browser, bob: Browser) -> None:
    alice.start(gpus="1", environment="notebook")
    portal.ready(alice)
    ((_number, user, state, gpus),) = sessions()
    assert (user, state) == ("alice", "RUNNING")
    assert "gpu:1" in gpus or "gpu=1" in gpus
    assert bob.get("/user/alice/lab").status in (403, 404)
    assert portal.log_in("nobody-here").get("/user/alice/api/status").status == 403


def test_a_terminal_of_the_session_sees_one_gpu(portal: Portal, alice: Browser) -> None:
    # What a cell would see: the session's own environment, asked in its cgroup.
    pid = ssh(NODE, "pgrep -u alice -f jupyterhub-singleuser | head -1").strip()
    seen = ssh(NODE, f"sudo cat /proc/{pid}/environ | tr '\\0' '\\n' | grep ^CUDA_VISIBLE_DEVICES=")
    assert re.fullmatch(r"CUDA_VISIBLE_DEVICES=[01]\n?", seen)


def test_everybody_sees_who_has_the_gpu(bob: Browser) -> None:
    told = bob.get("/hub/now/data").json()
    (lease,) = [lease for node in told["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["what"], lease["gpus"]) == ("alice", "session", 1)
    assert told["failure"] == ""
    assert time.time() - told["at"] < 60


def job_starts_are_saved() -> bool:
    """Whether the state that slurmctld would find after a restart is from after the start of every job."""
    starts = ssh(CONTROLLER, "SLURM_TIME_FORMAT=%s squeue -h --states=RUNNING --format=%S").split()
    directory = ssh(CONTROLLER, "scontrol show config | sed -n 's/^StateSaveLocation *= *//p'").strip()
    return int(ssh(CONTROLLER, f"sudo stat --format=%Y {directory}/job_state")) > max(map(int, starts))


def test_a_hub_and_a_slurmctld_that_are_killed_find_the_session_again(portal: Portal, alice: Browser) -> None:
    before = sessions()
    # A slurmctld that is killed before it has saved that a job runs starts that job a second time.
    until(job_starts_are_saved, 120, sessions)
    ssh(CONTROLLER, f"sudo systemctl kill -s KILL {HUB} slurmctld")
    assert alice.get("/user/alice/api/status").status == 200
    ssh(CONTROLLER, "sudo systemctl start slurmctld")
    # The proxy answers with 503 until the hub is back.
    until(
        lambda: alice.get("/hub/home").status == 200 and portal.server(alice).get("ready"),
        120,
        lambda: ssh(CONTROLLER, f"systemctl status {HUB}", check=False),
    )
    assert sessions() == before
    assert alice.get("/user/alice/api/status").status == 200


def test_a_session_that_waits_says_for_what(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="2", environment="notebook")
    until(lambda: len(sessions()) == 2, 60, sessions)
    token = bob.token(bob.get("/hub/home").text)
    event = bob.first_event(f"/hub/api/users/bob/server/progress?_xsrf={token}", "waits")
    assert "no node has enough free resources" in event["message"]
    portal.stop(bob)
    until(lambda: len(sessions()) == 1, 60, sessions)


def test_a_session_out_of_memory_says_so_with_the_remedy(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="0", memory_gib="1", environment="notebook")
    portal.ready(bob)
    # The session's own server takes more than it has, in its cgroup.
    step = ssh(CONTROLLER, "squeue -h --name=portal-session -u bob -o %A").strip()
    ssh(CONTROLLER, f"sudo -u bob srun --overlap --jobid={step} python3 -c 'bytearray(3 << 30)' 2>&1 || true")
    ssh(CONTROLLER, f"sudo scancel {step}", check=False)
    until(lambda: not portal.server(bob), 90, lambda: portal.server(bob))
    assert "To do: start it again" in bob.get("/hub/spawn").text


def test_an_upgrade_leaves_sessions_alone_and_nothing_of_the_former_version(portal: Portal, alice: Browser) -> None:
    """An environment that somebody has changed is made anew, as one of another version would be."""
    former = "/usr/share/baremetal-gpu/portal/python/baremetal_gpu_portal/former.py"
    # That of the test before is ending.
    until(lambda: len(sessions()) == 1, 60, sessions)
    before = sessions()
    ssh(CONTROLLER, "sudo rm -r /opt/baremetal-gpu/portal/lib/python3*/site-packages/certipy-*.dist-info")
    ssh(CONTROLLER, f"sudo touch {former}")
    play = portal.run()
    assert play.rc == 0, play.tail()
    assert "Converge the environment of the hub" in " ".join(play.changed_tasks[CONTROLLER])
    ssh(CONTROLLER, f"test ! -e {former}")
    until(lambda: portal.server(alice).get("ready"), 60, lambda: portal.server(alice))
    assert sessions() == before
    portal.stop(alice)


def test_the_page_is_drawn_and_axe_finds_nothing(portal: Portal, tmp_path: Path) -> None:
    """As the host serves it, with what the hub answers now."""
    from tests.unit import browser
    from tests.unit.roles.test_portal_page_browser import NO_POLICY, READY

    someone = portal.log_in("bob")
    page, data = someone.get("/hub/now").text, someone.get("/hub/now/data").text
    canned = f"<script>window.fetch = async () => new Response({json.dumps(data)});</script>"
    page = page.replace("<title>", f"{canned}{NO_POLICY}", 1)
    (tmp_path / "now.html").write_text(browser.with_axe(page, READY))
    words = ("--virtual-time-budget=6000", "--dump-dom", "--enable-logging=stderr")
    done = browser.draw(browser.find_chromium(), f"file://{tmp_path}/now.html", tmp_path / "profile", 500, 0, *words)
    assert browser.answer_of_axe(done)["violations"] == []


def test_the_database_is_copied(portal: Portal) -> None:
    ssh(CONTROLLER, "sudo systemctl start baremetal-gpu-portal-backup.service")
    assert ssh(CONTROLLER, "sudo ls /var/lib/baremetal-gpu-portal/backups").startswith("jupyterhub-20")


def test_absent_leaves_the_database_and_no_unit(portal: Portal) -> None:
    play = portal.run(portal_state="absent")
    assert play.rc == 0, play.tail()
    assert "jupyterhub.sqlite" in ssh(CONTROLLER, "sudo ls /var/lib/baremetal-gpu-portal")
    assert ssh(CONTROLLER, f"systemctl is-active {HUB} {PROXY} || true").split() == ["inactive", "inactive"]
    assert ssh(CONTROLLER, "ls -d /opt/baremetal-gpu/portal 2>/dev/null || true") == ""
    play = portal.run(portal_state="absent")
    assert play.changed_tasks == {}
