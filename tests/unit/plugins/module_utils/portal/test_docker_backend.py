# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions as containers of Docker on one host, with a stand-in for the command `docker`."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, docker_backend, helper, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.docker_backend import DockerBackend, DockerOrders
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from baremetal_gpu_portal import offers as portal_offers
from tests.unit.plugins.module_utils.portal.stand_in_docker import StandInDocker

IMAGE = f"reg1:5000/catalogue/notebook@sha256:{'a' * 64}"
TOKEN = {"JUPYTERHUB_API_TOKEN": "s3cret", "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/"}
REQUEST = {"gpus": 1, "model": "", "cpus": 1, "memory_gib": 1, "hours": 2, "environment": "notebook"}
MODEL = "a100-sxm4-40gb"


def write_host(root: Path, *uuids: str) -> None:
    """A host with GPUs, of each of which the driver and the CDI specification tell."""
    devices = []
    for minor, uuid in enumerate(uuids):
        place = root / "proc" / "driver" / "nvidia" / "gpus" / f"0000:0{minor}:00.0"
        place.mkdir(parents=True)
        text = f"Model: \t NVIDIA A100-SXM4-40GB\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (place / "information").write_text(text)
        edits = {"deviceNodes": [{"path": f"/dev/nvidia{minor}"}, {"path": f"/dev/dri/card{minor}"}]}
        devices += [{"name": name, "containerEdits": edits} for name in (str(minor), uuid)]
    every = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}}
    (root / "etc" / "cdi").mkdir(parents=True)
    (root / "etc" / "cdi" / "nvidia.json").write_text(json.dumps({"devices": [*devices, every]}))
    (root / "proc" / "meminfo").write_text("MemTotal:       16777216 kB\n")


UUIDS = tuple(f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in (7, 8))


def write_verdict(root: Path, minor: int, verdict: str) -> None:
    """What the agent says of a GPU."""
    (root / "proc" / "sys" / "kernel" / "random").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "sys" / "kernel" / "random" / "boot_id").write_text("b1\n")
    reason = {"code": "xid_79", "verdict": verdict, "text": "it fell off the bus", "remedy": "replace it"}
    part = {"uuid": UUIDS[minor], "verdict": verdict, "reasons": [reason] if verdict == "fatal" else []}
    health = {"verdict": "ok", "reasons": [], "devices": [part]}
    facts = {"devices": [{"uuid": uuid, "minor": number} for number, uuid in enumerate(UUIDS)]}
    now = {"time": time.time(), "uptime": agent_result.uptime(), "interval_s": 60, "boot_id": "b1"}
    path = root / agent_result.RESULT.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**now, "health": health, "facts": facts}))


class Site:
    """The program that works as root on such a host, and the hub that asks it."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.root, self.docker = base, base / "host", StandInDocker([IMAGE])
        write_host(self.root, *UUIDS)
        self.now, self.times, self.hub = time.time(), list[int](), "http://login1:8081"
        for name in ("alice", "bob"):
            (base / name).mkdir()
        for name, path in (("MEASURE", base / "measure"), ("JUPYTER", base / "jupyter")):
            path.touch()
            monkeypatch.setattr(session, name, str(path))
        row = pwd.getpwuid(os.getuid())

        def find(name: str, groups: object, least: int) -> Account:
            return Account(name, 2000, 2000, str(base / name), "/bin/bash", ("lab",))

        def known(name: str) -> pwd.struct_passwd:
            return pwd.struct_passwd((name, "x", row.pw_uid, row.pw_gid, "", str(base / name), "/bin/bash"))

        monkeypatch.setattr(accounts, "find", find)
        monkeypatch.setattr(pwd, "getpwnam", known)
        monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 42100])
        monkeypatch.setattr(submission.Submitter, "as_user", lambda self, user: ["env", f"AS={user}"])
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(docker_backend, "DockerOrders", self.orders)

    def orders(self, run: host_run.Run) -> DockerOrders:
        return DockerOrders(self.run, str(self.root), str(self.base / "lock"), lambda: self.now, self.times.append)

    def run(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        return (self.docker if "docker" in argv[0] else host_run.run)(argv, stdin, timeout)

    def do(self, **order: Any) -> Mapping[str, Any]:
        images = {"notebook": IMAGE, "gone": f"{IMAGE[:-1]}b", "moving": "reg1:5000/site/torch:latest"}
        hub = {"hub_connect_url": self.hub}
        known = Settings(limits=Limits(2, 8, 64, 24), images=images, scheduler="docker", hub=hub)
        return helper.do(json.dumps(order).encode(), known)

    def starts(self, user: str = "alice", server: str = "", **request: Any) -> str:
        given = {**REQUEST, **request}
        answer = self.do(do="submit", user=user, server=server, request=given, variables=TOKEN)
        return str(answer["job"])

    def asked(self, name: str) -> dict[str, Any]:
        """What Docker was asked for a container."""
        found: dict[str, Any] = self.docker.containers[name]["Asked"]
        return found

    def backend(self) -> DockerBackend:
        # As it comes out of the program that works as root.
        return DockerBackend(lambda: json.loads(json.dumps(self.do(do="look"))), lambda: self.now)

    def session(self, name: str) -> session.Session:
        return self.backend().look()[1][name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


# --- how it starts ---------------------------------------------------------------------------------------------------


def test_a_session_is_a_container_of_its_user_with_limits_and_without_rights(site: Site) -> None:
    asked = site.asked(site.starts(server="train", cpus=2, memory_gib=3))
    row = pwd.getpwuid(os.getuid())
    assert (asked["user"], asked["group_add"]) == (f"{row.pw_uid}:{row.pw_gid}", ["42100"])
    assert (asked["cpus"], asked["memory"], asked["memory_swap"]) == ("2", "3072m", "3072m")
    assert int(asked["pids_limit"]) > 100
    assert (asked["security_opt"], asked["cap_drop"]) == (["no-new-privileges"], ["ALL"])
    assert (asked["restart"], asked["network"], asked["image"]) == ("no", "bridge", IMAGE)
    assert asked["device"] == ["nvidia.com/gpu=0"]
    home = site.base / "alice"
    assert f"type=bind,source={home},target={home}" in asked["mount"]
    labels = site.docker.containers[asked["name"]]["Config"]["Labels"]
    wanted = {"user": "alice", "server": "train", "gpus": "0", "ends": str(int(site.now) + 7200)}
    assert labels == {f"baremetal.gpu.portal.{name}": value for name, value in wanted.items()}


def test_a_session_with_gpus_reads_what_the_agent_says_of_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = site.base / "verdicts"
    verdicts.mkdir()
    monkeypatch.setattr(docker_backend, "VERDICTS", str(verdicts))
    mount = f"type=bind,source={verdicts},target={verdicts},readonly"
    assert mount in site.asked(site.starts())["mount"]
    assert mount not in site.asked(site.starts(server="cpu", gpus=0))["mount"]


def test_the_token_is_in_a_script_of_the_users_alone(site: Site) -> None:
    asked = site.asked(site.starts())
    (path,) = (site.base / "alice" / "gpuops-jobs" / "portal-session").glob("script-*")
    assert asked["words"] == [str(path)]
    assert "s3cret" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in json.dumps(site.docker.calls)
    assert "s3cret" not in json.dumps(site.docker.containers)


def test_the_script_runs_the_server_of_the_image_with_its_variables(site: Site) -> None:
    path = site.asked(site.starts())["words"][0]
    programs = site.base / "programs"
    programs.mkdir()
    (programs / "jupyterhub-singleuser").write_text(
        '#!/bin/sh\necho "$JUPYTERHUB_SERVICE_URL $PWD $GPUOPS_SESSION_GPUS"'
    )
    (programs / "jupyterhub-singleuser").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(site.base / "alice")}
    done = subprocess.run(["sh", path], env=environment, capture_output=True, text=True, check=False)
    output = site.base / "alice" / "gpuops-jobs" / "portal-session" / "output.log"
    assert (done.returncode, done.stdout) == (0, "")
    assert output.read_text() == f"https://0.0.0.0:8888/user/alice/ {site.base / 'alice'} 1\n"
    assert output.stat().st_mode & 0o777 == 0o600
    environment["PATH"] = "/usr/bin:/bin"
    assert subprocess.run(["sh", path], env=environment, check=False).returncode == 127
    assert "no jupyterhub-singleuser" in output.read_text()


def test_the_names_of_the_user_are_in_the_container_and_not_left_on_the_host(site: Site) -> None:
    asked = site.asked(site.starts())
    mounts = [one for one in asked["mount"] if one.endswith("target=/etc/passwd,readonly")]
    assert len(mounts) == 1
    assert not list(site.base.glob("baremetal-gpu-portal-*"))


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://login1:8081", ["login1:host-gateway"]),
        ("http://192.0.2.5:8081", []),
        ("http://[2001:db8::5]:8081", []),
    ],
)
def test_a_hub_that_is_known_by_its_name_is_found_from_the_container(site: Site, url: str, hosts: list[str]) -> None:
    site.hub = url
    variables = {**TOKEN, "JUPYTERHUB_API_URL": f"{url}/hub/api"}
    answer = site.do(do="submit", user="alice", request=REQUEST, variables=variables)
    assert site.asked(answer["job"])["add_host"] == hosts


def test_an_image_that_is_there_needs_no_registry_and_one_by_a_tag_is_asked_for_again(site: Site) -> None:
    site.starts()
    assert len(site.docker.done("pull")) == 1
    site.docker.registry.clear()
    site.starts(server="second")
    assert len(site.docker.done("pull")) == 1
    site.docker.registry.append("reg1:5000/site/torch:latest")
    for server in ("third", "fourth"):
        site.starts(server=server, gpus=0, environment="moving")
    assert len(site.docker.done("pull")) == 3
    # It had the time for it, and then no more than others.
    assert site.times[-1] < 100 < site.times[-2]


def test_an_image_that_cannot_be_had_is_told_and_nothing_is_started(site: Site) -> None:
    with pytest.raises(CallFailed, match="manifest unknown") as why:
        site.starts(environment="gone")
    assert "choose another environment" in str(why.value)
    assert site.docker.containers == {}


@pytest.mark.parametrize("environment", ["~/envs/torch", "default", "reg1:5000/alice/mine:v1"])
def test_a_directory_is_no_environment_here(site: Site, environment: str) -> None:
    with pytest.raises(Refused, match="there is no environment"):
        site.starts(environment=environment)
    assert site.docker.calls == []


def test_a_container_that_does_not_start_is_taken_away(site: Site) -> None:
    site.docker.fails = "exec: /bin/sh: no such file or directory"
    with pytest.raises(CallFailed, match="no such file"):
        site.starts()
    assert site.docker.containers == {}
    assert "s3cret" not in json.dumps(site.docker.calls)


def test_a_home_without_room_is_told_and_nothing_is_started(site: Site) -> None:
    (site.base / "alice" / "gpuops-jobs").write_text("a file")
    with pytest.raises(CallFailed, match="script cannot be written"):
        site.starts()
    assert site.docker.containers == {}


# --- who gets which GPU ----------------------------------------------------------------------------------------------


def test_two_never_get_the_same_gpu_and_a_third_is_refused_with_the_reason(site: Site) -> None:
    names = [site.starts(), site.starts("bob", model=MODEL)]
    assert [site.asked(name)["device"] for name in names] == [["nvidia.com/gpu=0"], ["nvidia.com/gpu=1"]]
    with pytest.raises(Refused, match="0 of 2 GPUs are free") as why:
        site.starts("bob", "more")
    assert why.value.problem.code == "no_room"
    site.do(do="cancel", user="alice", job=names[0])
    assert site.asked(site.starts("bob", "more"))["device"] == ["nvidia.com/gpu=0"]


def test_of_many_at_the_same_time_each_gets_another_one(site: Site) -> None:
    got: list[str] = []
    refused: list[str] = []

    def start(number: int) -> None:
        try:
            got.append(site.starts(server=f"s{number}"))
        except Refused as why:
            refused.append(why.problem.code)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["no_room"] * 4
    devices = [site.asked(name)["device"][0] for name in got]
    assert sorted(devices) == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


def test_a_gpu_with_a_fatal_verdict_is_nobodys_and_why_is_told(site: Site) -> None:
    write_verdict(site.root, 0, "fatal")
    assert site.asked(site.starts())["device"] == ["nvidia.com/gpu=1"]
    with pytest.raises(Refused, match="xid_79: it fell off the bus"):
        site.starts("bob")
    (node,) = site.backend().look()[0]["nodes"]
    assert (node["gpus"], node["gpus_used"]) == (1, 1)


def test_a_gpu_without_a_verdict_may_be_had(site: Site) -> None:
    write_verdict(site.root, 0, "unknown")
    assert site.asked(site.starts())["device"] == ["nvidia.com/gpu=0"]


@pytest.mark.parametrize(
    ("more", "why"), [({"cpus": 6}, "4 cores are free"), ({"memory_gib": 10}, "8 GiB of memory are free")]
)
def test_cores_and_memory_are_given_once(site: Site, more: dict[str, int], why: str) -> None:
    site.starts(cpus=4, memory_gib=8)
    with pytest.raises(Refused, match=why):
        site.starts("bob", **more)


def test_gpus_of_another_model_are_refused(site: Site) -> None:
    with pytest.raises(Refused, match="0 of 0 GPUs t4 are free"):
        site.starts(model="t4")


def test_a_host_without_gpus_has_sessions_without(site: Site) -> None:
    (site.root / "etc" / "cdi" / "nvidia.json").unlink()
    assert site.asked(site.starts(gpus=0))["device"] == []
    assert site.backend().look()[0]["nodes"][0]["models"] == {}


def test_a_session_that_cannot_be_read_keeps_its_gpus(site: Site) -> None:
    name = site.starts()
    site.docker.containers[name]["Config"]["Labels"]["baremetal.gpu.portal.gpus"] = "x"
    with pytest.raises(CallFailed, match="cannot be read"):
        site.starts("bob")
    assert len(site.docker.containers) == 1


# --- what the hub is told --------------------------------------------------------------------------------------------


def test_what_is_free_is_said_before_the_button_is_pressed(site: Site) -> None:
    site.starts(gpus=2)
    found, _sessions = site.backend().look()
    assert portal_offers.offers(found["nodes"]) == [portal_offers.Offer(MODEL, 0, 2, 0, 2)]
    answer = portal_offers.forecast(Request(1, "", 1, 1), found["nodes"], found["jobs"], site.now, has_queue=False)
    assert answer.text.startswith("It cannot start now, and nothing waits here, for 1 GPU")
    assert answer.at == int(site.now) + 7200


def test_everybody_sees_who_has_which_gpu_until_when(site: Site) -> None:
    name = site.starts()
    (lease,) = site.backend().look()[0]["leases"]
    assert (lease.scheduler, lease.job, lease.user, lease.gpus) == ("docker", name, "alice", (UUIDS[0],))
    assert lease.expected_end == int(site.now) + 7200
    assert lease.started == pytest.approx(time.time(), abs=60)


def test_a_session_is_reached_at_its_container_and_at_no_port_of_the_host(site: Site) -> None:
    name = site.starts(server="train")
    found = site.session(name)
    assert (found.state, found.user, found.server, found.port) == (session.RUNS, "alice", "train", 8888)
    assert site.backend().address(found) == "172.17.0.2"
    assert not [word for argv in site.docker.calls for word in argv if "publish" in word or word == "-p"]


def test_an_address_that_is_none_is_not_used(site: Site) -> None:
    name = site.starts()
    site.docker.containers[name]["NetworkSettings"]["Networks"]["bridge"]["IPAddress"] = "evil.example.org"
    with pytest.raises(Refused, match="has no address"):
        site.backend().address(site.session(name))


def test_a_container_of_somebody_else_is_none_of_ours(site: Site) -> None:
    name = site.starts()
    foreign = json.loads(json.dumps(site.docker.containers[name]))
    # An image may have the labels of a session.
    site.docker.containers["db"] = {**foreign, "Id": "f" * 64, "Name": "/db", "State": {}}
    assert list(site.backend().look()[1]) == [name]
    site.do(do="cancel", user="alice", job="portal-none")
    assert "db" in site.docker.containers


def test_a_container_that_goes_while_docker_is_asked_is_no_fault(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    name = site.starts()
    listed = site.docker._do(["ps", "--all", "--no-trunc", "--quiet", "--filter=label=baremetal.gpu.portal.user"])
    real = site.docker._do
    monkeypatch.setattr(site.docker, "_do", lambda words: f"{listed}{'e' * 64}\n" if words[0] == "ps" else real(words))
    assert list(site.backend().look()[1]) == [name]


def test_a_docker_that_does_not_answer_is_told_with_what_to_do(site: Site) -> None:
    site.docker._do = lambda words: (_ for _ in ()).throw(RuntimeError)  # type: ignore[method-assign]
    site.run = lambda argv, stdin, timeout: (1, "", "Cannot connect to the Docker daemon")  # type: ignore[method-assign]
    with pytest.raises(CallFailed, match="Cannot connect to the Docker daemon") as why:
        site.backend().look()
    assert "systemctl status docker" in str(why.value)


def test_what_cannot_be_read_is_a_scheduler_that_does_not_answer() -> None:
    with pytest.raises(CallFailed, match="cannot be read"):
        DockerBackend(lambda: {"gpus": [7], "sessions": []}).look()


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "out_of_memory", "code", "cause"),
    [
        (137, True, "out_of_memory", "more memory"),
        (0, False, "ended", "by itself"),
        # A kernel was ended for it, and the session went on.
        (0, True, "ended", "by itself"),
        (127, False, "failed", "no jupyterhub-singleuser"),
        (3, False, "failed", "status 3"),
        (143, False, "failed", "signal 15"),
        (255, False, "failed", "status 255"),
    ],
)
def test_a_session_that_ended_says_why(site: Site, status: int, out_of_memory: bool, code: str, cause: str) -> None:
    name = site.starts()
    site.docker.ends(name, status, out_of_memory)
    found = site.session(name)
    assert found.state == session.ENDED
    assert found.ended
    assert found.ended.code == code
    assert cause in found.ended.cause
    assert found.ended.remedy


def test_a_session_whose_gpu_failed_says_so(site: Site) -> None:
    name = site.starts()
    site.docker.ends(name, 1)
    write_verdict(site.root, 0, "fatal")
    ended = site.session(name).ended
    assert ended
    assert ended.code == "gpu_lost"
    assert "fell off the bus" in ended.cause


def test_its_gpus_are_free_when_it_has_ended(site: Site) -> None:
    name = site.starts(gpus=2)
    site.docker.ends(name, 1)
    assert site.asked(site.starts("bob", gpus=2))["device"] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


def test_its_time_ends_it_for_the_hub_which_then_takes_it_away(site: Site) -> None:
    name = site.starts()
    site.now += 7201
    ended = site.session(name).ended
    assert ended
    assert ended.code == "time_over"
    # It has its GPU until it is gone.
    assert site.backend().look()[0]["nodes"][0]["gpus_used"] == 1
    site.do(do="cancel", user="alice", job=name)
    assert site.docker.containers == {}


def test_a_user_ends_sessions_of_that_user_alone(site: Site) -> None:
    name = site.starts()
    with pytest.raises(Refused, match="not a session of bob"):
        site.do(do="cancel", user="bob", job=name)
    assert list(site.docker.containers) == [name]
    site.do(do="cancel", user="alice", job=name)
    assert [argv[1:] for argv in site.docker.calls[-2:]] == [
        ["stop", "-t", "10", name],
        ["rm", "--force", "--volumes", name],
    ]
    # One that is gone is no fault.
    site.do(do="cancel", user="alice", job=name)


def test_a_session_that_cannot_be_read_keeps_no_other_from_its_end(site: Site) -> None:
    name, odd = site.starts(), site.starts("bob")
    site.docker.containers[odd]["Config"]["Labels"][docker_backend.GPUS] = "some"
    site.do(do="cancel", user="alice", job=name)
    assert list(site.docker.containers) == [odd]
    with pytest.raises(CallFailed, match="cannot be read"):
        site.do(do="cancel", user="bob", job=odd)


@pytest.mark.parametrize("user", ["alice", "a_b", "_x", "a.b-", "x" * 32])
@pytest.mark.parametrize("server", ["", "train", "a" * 30])
def test_the_name_of_every_session_is_one_of_ours(site: Site, user: str, server: str) -> None:
    (site.base / user).mkdir(exist_ok=True)
    name = site.starts(user, server, gpus=0)
    assert docker_backend.NAME.fullmatch(name)
    assert site.session(name).user == user
