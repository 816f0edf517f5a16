# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plans write makes a cluster: three masters, an agent with GPUs and two Marathons, over a real ZooKeeper.

Once without TLS, and once with nothing else. The programs are the stand-ins, which refuse what the real ones refuse.
The files are put where a test may write.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.member_service import is_complete
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import watch as mesos_watch
from ansible_collections.baremetal.gpu.plugins.plugin_utils.certificates import Authority
from tests.local_zookeeper import LocalZooKeeper, NotHere, free_port
from tests.unit.plugins.mesos_params import SECRETS, agent, gpu, gpu_device, marathon, master, node, plan
from tests.unit.simulators.mesos_cluster import until
from tests.unit.simulators.mesos_daemons import packed

pytestmark = pytest.mark.slow

HERE = "127.0.0.1"
LOGIN = {"user": "mesos", "password": "zk-password"}


class Chain:
    """Programs that were started with what a plan has for them."""

    def __init__(self, base: Path, mode: str) -> None:
        self.base, self.mode = base, mode
        self.scheme, self.ca = ("https", str(base / "site/ca.pem")) if mode == "required" else ("http", None)
        self.certificates: dict[str, Any] = {}
        if mode != "off":
            authority = Authority(str(base / "site"))
            authority.make()
            for name in ("m1", "m2", "m3", "gpu1", "gpu1-executor", "x1", "x2"):
                authority.sign(name, [HERE], 2)
                self.certificates[name] = authority.pair(name).described()
        try:
            self.zookeeper = LocalZooKeeper(base / "zookeeper")
        except NotHere as why:
            pytest.skip(str(why))
        self.processes: list[subprocess.Popen[bytes]] = []
        for name, archive in packed(base / "pack").items():
            (base / name).mkdir()
            subprocess.run(["tar", "-xzf", archive["path"], "--strip-components=1", "-C", base / name], check=True)

    def params(self, **more: Any) -> dict[str, Any]:
        there = node(resolved={HERE: [HERE]}, own_ip={HERE: HERE})
        tls = {
            "mode": self.mode,
            "version": "1.11.0",
            "hosts": {},
            "whole": True,
            "directory": "/etc/tls",
            "group": "x",
        }
        made = {"authority": {"path": self.ca, "sha256": "0" * 64}, "certificates": self.certificates}
        zookeeper = [f"{HERE}:{self.zookeeper.port}"]
        return {"address": HERE, "zookeeper": zookeeper, "node": there, "tls": tls, "certificates": made, **more}

    def start(self, name: str, program: str, environment_file: str, wanted: dict[str, Any], **more: str) -> None:
        found = plan(wanted, {})
        assert found["problems"] == []
        place = self.base / name
        place.mkdir()
        for row in found["files"]:
            if row["path"].startswith("/etc/"):
                file = place / row["path"].removeprefix("/etc/")
                if row.get("state") == "directory":
                    file.mkdir()
                else:
                    file.write_text(row["content"] if "content" in row else Path(row["source"]).read_text())
        env = {"PATH": os.environ["PATH"], "STAND_IN_SASL": "yes", **more}
        for line in (place / Path(environment_file).name).read_text().splitlines():
            if not line.startswith("#"):
                variable, value = line.split("=", 1)
                value = value.strip('"').replace('\\"', '"')
                env[variable] = value.replace("/etc/", f"{place}/").replace("/WORK", f"{place}/work")
        with (place / "log").open("wb") as log:
            command = [str(self.base / program), *found["arguments"]]
            self.processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.zookeeper.stop()


@pytest.fixture(scope="module", params=["off", "required"])
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    one = Chain(tmp_path_factory.mktemp("chain"), request.param)
    yield one
    one.stop()


def looked(
    chain: Chain,
    program: str,
    ports: list[int],
    login: tuple[str, str] | None = None,
    gpus: int | None = None,
    masters: list[int] | None = None,
    masters_login: tuple[str, str] | None = None,
) -> Any:
    scheme = "http" if program == "marathon" else chain.scheme
    members = [{"name": str(port), "url": f"{scheme}://{HERE}:{port}"} for port in ports]
    urls = [f"{chain.scheme}://{HERE}:{port}" for port in masters or []]
    transport = mesos_operator.http_transport(5.0, chain.ca)
    known = mesos_watch.Masters(urls, masters_login, transport)
    cluster = mesos_watch.Cluster(program, members, transport, login, gpus, known)
    return cluster.wait_until(is_complete, 90)


@pytest.fixture(scope="module")
def masters(chain: Chain) -> list[int]:
    ports = [free_port() for _ in range(3)]
    for number, port in enumerate(ports, 1):
        wanted = master(host=f"m{number}", port=port, login=LOGIN, work_dir="/WORK", **chain.params())
        chain.start(f"m{number}", "mesos/sbin/mesos-master", "/etc/master.env", wanted)
    return ports


def test_three_masters_come_to_one_leader(chain: Chain, masters: list[int]) -> None:
    seen = looked(chain, "master", masters)
    assert seen["problems"] == []
    assert sum(row["leads"] for row in seen["members"]) == 1


def test_an_agent_registers_with_its_healthy_gpus_and_without_a_password(chain: Chain, masters: list[int]) -> None:
    port = free_port()
    gpus = gpu(gpu_device(0), gpu_device(1, "fatal"), gpu_device(2))
    wanted = agent(port=port, login=LOGIN, work_dir="/WORK", gpu=gpus, **chain.params())
    chain.start("a1", "mesos/sbin/mesos-agent", "/etc/agent.env", wanted, STAND_IN_GPUS="ok,GPU is lost,ok")
    own = ("mesos-agent", SECRETS["mesos-agent"])
    assert looked(chain, "agent", [port], gpus=2, masters=masters, masters_login=own)["problems"] == []
    urls = [f"{chain.scheme}://{HERE}:{one}" for one in masters]
    transport = mesos_operator.http_transport(5.0, chain.ca)
    operator = mesos_operator.Operator(urls, transport, "operator", SECRETS["operator"])
    (told,) = operator.agents()
    assert (told["hostname"], told["state"], told["resources"]["gpus"]) == ("gpu1", "active", 2)
    # Only the operator may, and may.
    operator.deactivate(told["id"])
    stranger = mesos_operator.Operator(urls, transport, "marathon", SECRETS["marathon"])
    with pytest.raises(mesos_operator.Failed, match="ACLs do not allow"):
        stranger.reactivate(told["id"])
    operator.reactivate(told["id"])


def test_two_marathons_know_one_leader(chain: Chain, masters: list[int]) -> None:
    ports = [free_port() for _ in range(2)]
    for number, port in enumerate(ports, 1):
        # Only root can open the directories of this test, and so the key of executors.
        login = {"user": "x", "password": "y"}
        wanted = marathon(host=f"x{number}", port=port, login=login, task_user="root", **chain.params())
        library = str(chain.base / "mesos/lib/libmesos.so")
        chain.start(
            f"x{number}", "marathon/bin/marathon", "/etc/marathon.env", wanted, MESOS_NATIVE_JAVA_LIBRARY=library
        )
    own = ("marathon", SECRETS["marathon"])
    seen = looked(chain, "marathon", ports, ("operator", "secret-http"), masters=masters, masters_login=own)
    assert seen["problems"] == []
    assert sum(row["leads"] for row in seen["members"]) == 1
    assert looked_without_a_login(ports[0])
    # The one that leads has found its way to the masters.
    transport = mesos_operator.http_transport(5.0, chain.ca)
    urls = [f"{chain.scheme}://{HERE}:{one}" for one in masters]
    operator = mesos_operator.Operator(urls, transport, "operator", SECRETS["operator"])
    until(lambda: [row["name"] for row in operator.get("/state")["frameworks"]] == ["marathon"])
    # What the agent gives to executors lets them run a task.
    site = Marathon([f"http://{HERE}:{ports[0]}"], mesos_operator.http_transport(5.0), "operator", "secret-http")
    site.create({"id": "/one", "cmd": "exec sleep 1000", "cpus": 0.1, "mem": 32, "gpus": 1, "instances": 1}, False)
    until(lambda: not site.deployments())
    (task,) = operator.tasks()
    assert (task["name"], task["state"], task["resources"]["gpus"]) == ("one", "TASK_RUNNING", 1)
    site.delete("/one", True)
    until(lambda: not operator.tasks())


def looked_without_a_login(port: int) -> bool:
    """Whether Marathon refuses who does not log in."""
    return mesos_operator.http_transport(5.0)("GET", f"http://{HERE}:{port}/v2/apps", {}, None).status == 401
