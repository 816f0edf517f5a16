# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles gpu_agent and gpu_reconciler together on one machine: from a line in the kernel's log to an agent of Mesos
without the GPU, and back.

ZooKeeper is Debian's, the GPUs are simulated, and Mesos is the stand-ins as units of systemd.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.repositories.serve import Server
from tests.roles.conftest import DEBIAN_13, ROOT, Role, host_address, ssh
from tests.roles.zookeeper_cluster import address
from tests.site import plays
from tests.site.plays import KERNEL_LOG, kernel_says

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SECRETS = {"reconciler": "s3cret-r", "gpu1": "s3cret-a", "mesos": "s3cret-m"}
AGENT: dict[str, Any] = {
    "gpu_agent_kernel_log": KERNEL_LOG,
    "gpu_agent_interval": 2,
    "gpu_agent_zookeeper_servers": ["127.0.0.1:2181"],
    "gpu_agent_zookeeper_user": "gpu1",
    "gpu_agent_zookeeper_password": SECRETS["gpu1"],
    "gpu_agent_orders": ["replace"],
}
RECONCILER: dict[str, Any] = {
    "gpu_reconciler_zookeeper_servers": ["127.0.0.1:2181"],
    "gpu_reconciler_zookeeper_user": "reconciler",
    "gpu_reconciler_zookeeper_password": SECRETS["reconciler"],
    "gpu_reconciler_hosts": {"gpu1": {"user": "gpu1", "password": SECRETS["gpu1"]}},
    "gpu_reconciler_mesos_principal": "operator",
    "gpu_reconciler_mesos_secret": SECRETS["mesos"],
    "gpu_reconciler_mode": "act",
    "gpu_reconciler_policy": {"settle_s": 2, "retry_s": 2},
}
WAY = ["deactivate", "drain", "order", "settle", "close"]
# $1 is the URL of the archive with the stand-ins, $2 the UUIDs of both GPUs, $3 the address of the machine.
SITE = """
set -eu
sudo DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends zookeeper >/dev/null
sudo systemd-run --quiet --unit zookeeper --property Restart=always \\
    /usr/share/zookeeper/bin/zkServer.sh start-foreground
python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], "/tmp/stand-ins.tar.gz")' "$1"
sudo tar -xzf /tmp/stand-ins.tar.gz -C /opt
sudo mkdir -p /etc/baremetal-gpu/mesos /var/lib/mesos
printf '{"credentials": [{"principal": "operator", "secret": "SECRET"}]}' | sudo tee /etc/mesos-credentials >/dev/null
sudo chmod 600 /etc/mesos-credentials
sudo systemd-run --quiet --unit mesos-master /opt/mesos/sbin/mesos-master --work_dir=/var/lib/mesos/master \\
    --ip="$3" --port=5050 --authenticate_http_readwrite=true --credentials=file:///etc/mesos-credentials
sudo tee /etc/baremetal-gpu/mesos/agent.env >/dev/null <<END
BAREMETAL_GPU_UUIDS=$2
MESOS_HOSTNAME=gpu1
MESOS_IP=127.0.0.1
MESOS_ISOLATION=cgroups/devices,filesystem/linux,gpu/nvidia
MESOS_MASTER=$3:5050
MESOS_NVIDIA_GPU_DEVICES=0,1
MESOS_PORT=5051
MESOS_RESOURCES="cpus:4;mem:2048;ports:[31000-32000];gpus:2"
MESOS_WORK_DIR=/var/lib/mesos/agent
END
sudo tee /etc/systemd/system/mesos-agent.service >/dev/null <<END
[Service]
EnvironmentFile=/etc/baremetal-gpu/mesos/agent.env
ExecStartPre=/bin/mkdir -p /var/lib/mesos/agent
ExecStart=/opt/mesos/sbin/mesos-agent
KillMode=process
Restart=on-failure
END
sudo systemctl daemon-reload
sudo systemctl start mesos-agent
""".replace("SECRET", SECRETS["mesos"])


def on_host(command: str) -> str:
    return ssh(DEBIAN_13, command).strip()


until = functools.partial(plays.until, seconds=90, told=lambda: entries()[-5:])


def ask(path: str, body: Any = None) -> Any:
    """What the master says; None while it does not answer."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{master()}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as reply:
            return json.load(reply)
    except OSError:
        return None


@functools.cache
def master() -> str:
    return f"http://{address(DEBIAN_13)}:5050"


def slave() -> Any:
    return next(iter((ask("/slaves") or {"slaves": []})["slaves"]), None)


def entries(what: str = "") -> list[dict[str, Any]]:
    text = ssh(DEBIAN_13, "sudo cat /var/lib/baremetal-gpu/reconciler/journal.jsonl 2>/dev/null || true", check=False)
    rows = [json.loads(line) for line in text.splitlines()]
    return [row for row in rows if what in ("", row["what"])]


def way() -> list[str]:
    return [row["kind"] for row in entries("begin") if row["host"] == "gpu1"]


@pytest.fixture(scope="module")
def agent(driven_machine: str) -> Role:
    return Role("gpu_agent", (driven_machine,))


@pytest.fixture(scope="module")
def reconciler(driven_machine: str) -> Role:
    return Role("gpu_reconciler", (driven_machine,))


@pytest.fixture(scope="module")
def site(agent: Role, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """ZooKeeper, a master and the machine's Mesos agent with both GPUs; the value is their UUIDs."""
    base = tmp_path_factory.mktemp("stand-ins")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/simulators/mesos/pack", "--origin", base],
        capture_output=True,
        text=True,
        check=True,
    )
    archive = next(Path(row["path"]).name for row in json.loads(done.stdout).values() if "mesos-" in row["path"])
    agent.converge(AGENT)
    uuids = [row["uuid"] for row in json.loads(on_host("/etc/ansible/facts.d/gpu.fact"))["devices"]]
    with Server(base, host_address()) as server:
        words = shlex.join([f"{server.url}/{archive}", ",".join(uuids), address(DEBIAN_13)])
        ssh(DEBIAN_13, f"set -- {words}\n{SITE}")
    until(slave)
    return uuids


def test_wrong_settings_are_refused_before_anything_is_changed(reconciler: Role) -> None:
    play = reconciler.run({**RECONCILER, "gpu_reconciler_masters": []})
    assert "masters is ()" in " ".join(play.failures[DEBIAN_13])
    masters = ["http://127.0.0.1:5050"]
    more = {"gpu_reconciler_masters": masters, "gpu_reconciler_policy": {"breaker_share": 3}}
    play = reconciler.run({**RECONCILER, **more})
    assert "breaker_share is 3" in " ".join(play.failures[DEBIAN_13])
    nobody = {"gpu_reconciler_zookeeper_user": "", "gpu_reconciler_zookeeper_password": "", "gpu_reconciler_hosts": {}}
    play = reconciler.run({**RECONCILER, "gpu_reconciler_masters": masters, **nobody})
    assert "anybody could then give orders" in " ".join(play.failures[DEBIAN_13])
    shared = dict.fromkeys(("gpu1", "gpu2"), RECONCILER["gpu_reconciler_hosts"]["gpu1"])
    play = reconciler.run({**RECONCILER, "gpu_reconciler_masters": masters, "gpu_reconciler_hosts": shared})
    assert "gpu1 and gpu2 have the same login" in " ".join(play.failures[DEBIAN_13])
    assert on_host("ls /etc/systemd/system | grep -c reconciler || true") == "0"


def test_it_leads_and_a_second_run_changes_nothing(site: list[str], reconciler: Role, agent: Role) -> None:
    wanted = {**RECONCILER, "gpu_reconciler_masters": [master()]}
    reconciler.converge(wanted)
    reconciler.is_converged(wanted)
    agent.is_converged(AGENT)
    until(lambda: "gpu1  ok" in on_host("sudo gpuops-reconciler status"))


def test_a_fatal_gpu_goes_out_under_a_running_job_and_comes_back(site: list[str], agent: Role) -> None:
    framework = ask("/stand-in/framework", {"name": "test", "capabilities": ["GPU_RESOURCES"]})["id"]
    # It ends when it is told to, however slow the machine is.
    command = "until test -e /run/the-job-may-end; do sleep 0.2; done"
    task = {"id": "job", "name": "job", "cmd": command, "resources": {"cpus": 0.1, "mem": 32, "gpus": 1}}
    ask("/stand-in/launch", {"framework_id": framework, "agent_id": slave()["id"], "task": task})
    first = slave()["id"]
    kernel_says(DEBIAN_13, "NVRM: Xid (PCI:0000:af:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    until(lambda: slave()["deactivated"])
    until(lambda: any("its jobs may finish: job" in row["why"] for row in entries("wait")))
    assert way() == ["deactivate"]
    ssh(DEBIAN_13, "sudo touch /run/the-job-may-end")
    until(lambda: way() == WAY)
    row = until(slave)
    assert row["id"] != first
    assert (row["active"], row["resources"]["gpus"]) == (True, 1.0)
    tasks = ask("/tasks")["tasks"]
    assert [row["state"] for row in tasks if row["id"] == "job"] == ["TASK_FINISHED"]
    environment = on_host("cat /etc/baremetal-gpu/mesos/agent.env")
    assert f"BAREMETAL_GPU_UUIDS={site[0]}\n" in environment
    assert on_host(f"sudo gpuops-reconciler clear gpu1:{site[1]}").startswith("asked gpu1:")
    until(lambda: way() == WAY * 2)
    assert until(slave)["resources"]["gpus"] == 2.0


def test_an_agent_that_is_stopped_is_suspected(site: list[str]) -> None:
    ssh(DEBIAN_13, "sudo systemctl stop baremetal-gpu-agent")
    until(lambda: any("suspected" in row["why"] for row in entries("wait")))
    assert slave()["active"]
    ssh(DEBIAN_13, "sudo systemctl start baremetal-gpu-agent")
    until(lambda: entries()[-1]["what"] == "well")


def test_it_goes_on_after_it_was_killed(site: list[str]) -> None:
    before = len(entries("lead"))
    ssh(DEBIAN_13, "sudo systemctl kill -s KILL baremetal-gpu-reconciler")
    until(lambda: len(entries("lead")) > before)


def test_no_secret_is_to_be_seen(site: list[str]) -> None:
    shown = on_host("ps -eo args; sudo journalctl --no-pager -u baremetal-gpu-reconciler -u baremetal-gpu-agent")
    shown += on_host("sudo cat /var/lib/baremetal-gpu/reconciler/journal.jsonl")
    # As who is not root.
    shown += on_host("cat /etc/baremetal-gpu/*.json 2>&1 || true")
    assert not [secret for secret in SECRETS.values() if secret in shown]
    modes = on_host(
        "stat -c '%a %n' /etc/baremetal-gpu/*credentials.json /etc/baremetal-gpu/agent-zookeeper.json "
        "/etc/baremetal-gpu/reconciler-hosts.json"
    )
    assert not re.findall(r"^(?!600 ).*$", modes, re.MULTILINE)


def test_both_go_without_a_trace(site: list[str], agent: Role, reconciler: Role) -> None:
    reconciler.converge({"gpu_reconciler_state": "absent"})
    reconciler.is_converged({"gpu_reconciler_state": "absent"})
    agent.converge({"gpu_agent_kernel_log": KERNEL_LOG})
    left = on_host("ls /etc/systemd/system /etc/baremetal-gpu /usr/local/bin")
    assert "reconciler" not in left
    assert "order" not in left
    assert "zookeeper.json" not in left
