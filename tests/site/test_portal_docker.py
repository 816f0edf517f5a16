# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab of one machine: portal, registry and GPUs on one Debian 13, and sessions in its Docker.

Docker, the registry, the image and JupyterHub are real; the two GPUs are simulated. The tests run in order.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.catalogue import gpuops_image, notebook
from tests.site.plays import INVENTORY, Play, lab, run_playbook, services, ssh, until
from tests.site.portal_lab import HUB, PEOPLE, START_S, WHEELS, Pages, fetch_wheels
from tests.unit.roles.portal_browser import PASSWORD, Browser

MISSING = [name for name in ("buildah", "skopeo", "mmdebstrap") if not shutil.which(name)]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"building images needs {', '.join(MISSING)}"),
]

HOST = "box1"
# For an image that the host has not had yet.
FETCH_S = 600
SEES = "import glob, os; print(sorted(glob.glob('/dev/nvidia[0-9]*')), os.getuid())"
# The server of a session is what the kernel ends first.
TAKES = """
for path in /proc/[0-9]*/cmdline; do
  if tr '\\0' ' ' <$path | grep -q '[j]upyterhub-singleuser'; then echo 1000 >${path%cmdline}oom_score_adj; fi
done
exec python3 -c 'import time; kept = b"x" * (3 << 30); time.sleep(60)'
"""


class Site(Pages):
    def __init__(self, base: Path) -> None:
        self.inventory = base / "site"
        self.inventory.mkdir()
        for path in INVENTORY.iterdir():
            if not path.name.startswith("."):
                (self.inventory / path.name).symlink_to(path)
        self.address = ssh(HOST, "hostname -I").split()[0]
        names = ("registries", "registry_clients", "portals")
        groups: dict[str, Any] = {name: {"hosts": {HOST: {}}} for name in names}
        # What pushes an image reads it there.
        groups["all"] = {"vars": {"registry_name": self.address}}
        (self.inventory / "groups.yml").write_text(json.dumps(groups))
        self.variables: dict[str, Any] = {
            "cuda_versions": [],
            "container_runtime_docker_live_restore": True,
            "registry_public": ["catalogue"],
            "registry_min_free": "100M",
            "portal_wheelhouse": str(WHEELS),
            "portal_secrets_path": str(base / ".secrets" / "portal.json"),
            "portal_tls_path": str(base / ".secrets" / "portal-tls"),
            "portal_names": [self.address],
            "portal_origins": "one_for_people_who_trust_each_other",
            "portal_limits": {"gpus": 2, "cpus": 2, "memory_gib": 2, "hours": 2},
            "portal_scheduler": "docker",
            "portal_ssh": False,
            "portal_environments": [{"name": "notebook", "image": "notebook"}],
        }
        self.url = f"https://{self.address}"

    def run(self, playbook: str = "portal.yml", options: str = "--diff", **variables: Any) -> Play:
        return run_playbook(
            playbook,
            limit=HOST,
            extra_vars={**self.variables, **variables},
            options=f"-i {self.inventory} {options}",
        )

    def passes(self, playbook: str = "portal.yml", options: str = "--diff", **variables: Any) -> Play:
        play = self.run(playbook, options, **variables)
        assert play.rc == 0, play.tail()
        return play

    def ready(self, browser: Browser) -> dict[str, Any]:
        found = until(
            lambda: (row := self.server(browser)).get("ready") and row,
            FETCH_S + START_S,
            lambda: ssh(HOST, f"sudo journalctl -u {HUB} -n 60 --no-pager; sudo docker ps -a"),
        )
        assert browser.get(f"{found['url']}lab").status == 200
        return dict(found)


def containers(user: str) -> list[str]:
    """The names of a user's sessions."""
    told = ssh(HOST, f"sudo docker ps -a --filter label=baremetal.gpu.portal.user={user} --format '{{{{.Names}}}}'")
    return told.split()


def container(user: str) -> dict[str, Any]:
    """What Docker tells of the only session of a user."""
    (name,) = containers(user)
    (row,) = json.loads(ssh(HOST, f"sudo docker inspect {name}"))
    return dict(row)


def inside(user: str, command: str) -> str:
    (name,) = containers(user)
    # Docker may let it hang where its container ends meanwhile.
    return ssh(HOST, f"timeout 60 sudo docker exec {name} sh -c {shlex.quote(command)} 2>&1", check=False)


def cell(user: str, code: str) -> str:
    """What a cell prints, in a kernel of the session's own image."""
    one = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": [], "source": code}
    row = {"cells": [one], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    told = inside(user, f"cd && echo {shlex.quote(json.dumps(row))} >c.ipynb && jupyter execute --inplace c.ipynb")
    found = json.loads(ssh(HOST, f"sudo cat ~{user}/c.ipynb"))["cells"][0]["outputs"]
    assert found, told
    return str("".join(found[0]["text"])).strip()


@pytest.fixture(scope="module")
def bare() -> Iterator[None]:
    lab("up", "--machine", f"{HOST}:trixie:a100-sxm4-40gb-x2")
    yield
    lab("down", "--machine", HOST)


@pytest.fixture(scope="module")
def site(bare: None, tmp_path_factory: pytest.TempPathFactory) -> Site:
    fetch_wheels()
    found = Site(tmp_path_factory.mktemp("portal"))
    found.passes("site.yml", "--tags preflight,driver,containers,agent,registry")
    gpuops_image("build", "notebook")
    gpuops_image("push", "notebook", "-i", str(found.inventory))
    for name, number in PEOPLE.items():
        ssh(HOST, f"sudo groupadd --force --gid 2400 lab; sudo useradd --uid {number} -G lab -m -s /bin/bash {name}")
        ssh(HOST, f"echo {shlex.quote(f'{name}:{PASSWORD}')} | sudo chpasswd")
    return found


@pytest.fixture(scope="module")
def portal(site: Site) -> Site:
    site.passes(options="--check --diff")
    site.passes()
    return site


@pytest.fixture(scope="module")
def alice(portal: Site) -> Browser:
    return portal.log_in("alice")


@pytest.fixture(scope="module")
def bob(portal: Site) -> Browser:
    return portal.log_in("bob")


def test_a_second_run_changes_nothing_and_restarts_nothing(portal: Site) -> None:
    before = services(HOST)
    play = portal.passes()
    assert play.changed_tasks == {}
    assert services(HOST) == before


def test_the_form_says_what_is_free_and_offers_no_directory(alice: Browser) -> None:
    page = alice.get("/hub/spawn").text
    assert "a100-sxm4-40gb: 2 of 2 free" in page
    assert "~/envs" not in page
    asked = "gpus=1&cpus=1&memory_gib=1&hours=1&environment=notebook"
    assert alice.get(f"/hub/now/forecast?{asked}").json()["answer"] == "now"


def test_a_session_starts_in_the_image_of_the_catalogue(portal: Site, alice: Browser, bob: Browser) -> None:
    alice.patience_s = bob.patience_s = 120.0
    alice.start(gpus="1", environment="notebook")
    portal.ready(alice)
    row = container("alice")
    assert row["Config"]["Image"] == notebook(portal.inventory, f"{portal.address}:5000")
    assert bob.get("/user/alice/lab").status in (403, 404)


def test_a_cell_sees_one_gpu_and_is_its_user(portal: Site, alice: Browser) -> None:
    assert cell("alice", SEES) == f"['/dev/nvidia0'] {PEOPLE['alice']}"
    assert inside("alice", "id -un; id -Gn; pwd").split() == ["alice", "alice", "lab", "/home/alice"]


def test_its_limits_hold_and_it_has_no_rights(portal: Site, alice: Browser) -> None:
    limits = container("alice")["HostConfig"]
    assert (limits["Memory"], limits["NanoCpus"], limits["PidsLimit"]) == (1 << 30, 10**9, 4096)
    told = inside("alice", "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status")
    assert [line.split()[1].strip("0") for line in told.splitlines()] == ["", "", "1", "2"]


def test_the_token_is_nowhere_where_others_read_it(portal: Site, alice: Browser) -> None:
    found = ssh(HOST, "sudo sh -c 'cat ~alice/gpuops-jobs/portal-session/script-*'")
    token = found.partition("JUPYTERHUB_API_TOKEN=")[2].split()[0].strip("'")
    assert len(token) > 20
    modes = ssh(HOST, "sudo sh -c 'stat -c %a:%U ~alice/gpuops-jobs/portal-session/*'").split()
    assert set(modes) == {"600:alice"}
    assert token not in json.dumps(container("alice"))
    assert token not in ssh(HOST, "sudo sh -c 'cat /proc/[0-9]*/cmdline' 2>/dev/null", check=False)


def test_nobody_reaches_it_at_a_port_of_the_host(portal: Site, alice: Browser) -> None:
    assert container("alice")["HostConfig"]["PortBindings"] in ({}, None)
    assert ":8888" not in ssh(HOST, "ss -ltnH")


def test_everybody_sees_who_has_the_gpu(bob: Browser) -> None:
    told = bob.get("/hub/now/data").json()
    (lease,) = [lease for node in told["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["what"], lease["gpus"]) == ("alice", "session", 1)
    assert told["failure"] == ""


def test_what_measures_it_runs_in_it_and_sees_its_control_group(portal: Site, alice: Browser) -> None:
    assert "portal-measure" in inside("alice", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    group = inside("alice", "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null; true")
    assert any(line.split()[-1].isdigit() for line in group.splitlines())


def test_a_second_user_gets_no_gpu_that_is_held(portal: Site, bob: Browser) -> None:
    asked = "gpus=2&cpus=1&memory_gib=1&hours=1&environment=notebook"
    assert "It cannot start now" in bob.get(f"/hub/now/forecast?{asked}").json()["text"]
    bob.start(gpus="2", environment="notebook")
    told = "1 of 2 GPUs are free"
    until(lambda: told in bob.get("/hub/spawn-pending/bob").text, 60, lambda: bob.get("/hub/spawn-pending/bob").text)
    assert containers("bob") == []


def test_the_other_gpu_is_for_the_second_user_and_out_of_memory_is_told(portal: Site, bob: Browser) -> None:
    bob.start(gpus="1", environment="notebook")
    portal.ready(bob)
    assert cell("bob", SEES).startswith("['/dev/nvidia1']")
    inside("bob", TAKES)
    told = "it needed more memory than it had asked for"
    until(lambda: told in bob.get("/hub/spawn").text, 120, lambda: bob.get("/hub/spawn").text[-3000:])
    until(lambda: containers("bob") == [], 60, lambda: containers("bob"))


def test_a_hub_that_is_killed_finds_the_session_again(portal: Site, alice: Browser) -> None:
    before = containers("alice")
    ssh(HOST, f"sudo systemctl kill -s KILL {HUB}")
    until(lambda: portal.server(alice).get("ready"), 120, lambda: ssh(HOST, f"systemctl status {HUB}", check=False))
    assert containers("alice") == before
    assert alice.get("/user/alice/api/status").status == 200


def test_a_docker_that_is_restarted_leaves_the_session_as_it_is(portal: Site, alice: Browser) -> None:
    before = container("alice")["State"]["StartedAt"]
    ssh(HOST, "sudo systemctl restart docker")
    time.sleep(10)
    assert container("alice")["State"]["StartedAt"] == before
    assert portal.server(alice).get("ready")
    assert alice.get("/user/alice/api/status").status == 200


def test_stop_server_takes_the_container_away_and_no_other(portal: Site, alice: Browser) -> None:
    ssh(HOST, f"sudo docker run --detach --name other {container('alice')['Config']['Image']} sleep infinity")
    page = alice.get("/hub/home")
    path = f"/hub/api/users/alice/server?_xsrf={alice.token(page.text)}"
    assert alice.ask(path, method="DELETE", Referer=page.url).status in (202, 204)
    until(lambda: containers("alice") == [], 90, lambda: containers("alice"))
    until(lambda: not portal.server(alice), 60, lambda: portal.server(alice))
    assert ssh(HOST, "sudo docker ps --format '{{.Names}}'").split() == ["other"]
    assert ssh(HOST, "ls -d /run/baremetal-gpu-portal-*/ 2>/dev/null || true") == ""


def test_absent_leaves_the_database_and_no_unit(portal: Site) -> None:
    portal.passes(portal_state="absent")
    assert "jupyterhub.sqlite" in ssh(HOST, "sudo ls /var/lib/baremetal-gpu-portal")
    assert ssh(HOST, f"systemctl is-active {HUB} || true").split() == ["inactive"]
    assert portal.passes(portal_state="absent").changed_tasks == {}
