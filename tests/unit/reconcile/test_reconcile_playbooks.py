# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks drain, restore and reconcile against stand-ins of Mesos, on this host alone: what they do, whom they
leave alone, and how they go on after a cut.

In the place of the facts of the GPUs there are hand-made ones, and in the place of systemd a program that starts and
stops the stand-in.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local_zookeeper import ROOT
from tests.unit.simulators.mesos_cluster import PROGRAMS, Cluster, free_port, until

pytestmark = pytest.mark.slow

PLAYBOOKS = ROOT / "playbooks"
UUIDS = [f"GPU-{number}" for number in range(3)]


class PlaySite:
    """One host, n1, with three GPUs; `fatal` are those that the facts call so."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.cluster = Cluster(base / "mesos")
        self.fatal: set[str] = set()
        self.said, self.cut = base / "said", base / "cut"
        self.environment = base / "agent.env"
        self.environment.write_text(
            f"BAREMETAL_GPU_UUIDS={','.join(UUIDS)}\n"
            "MESOS_HOSTNAME=n1\n"
            "MESOS_IP=127.0.0.1\n"
            "MESOS_ISOLATION=cgroups/devices,filesystem/linux,gpu/nvidia\n"
            f"MESOS_MASTER=127.0.0.1:{self.cluster.port}\n"
            "MESOS_NVIDIA_GPU_DEVICES=0,1,2\n"
            f"MESOS_PORT={free_port()}\n"
            "MESOS_RESOURCES=cpus:4;mem:4096;gpus:3\n"
            f"MESOS_WORK_DIR={base}/agent\n"
        )
        (base / "agent").mkdir()
        names = {name: str(base / name) for name in ("pid", "said", "cut", "log", "playbook")}
        names["environment"] = str(self.environment)
        site = {**names, "command": [sys.executable, str(PROGRAMS / "agent.py")], "gpus": "ok,ok,ok"}
        (base / "site.json").write_text(json.dumps(site))
        (base / "bin").mkdir()
        fake = base / "bin/systemctl"
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("systemctl.py")} "$@"\n')
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        self.env = {
            **os.environ,
            "PATH": f"{base}/bin:{os.environ['PATH']}",
            "AGENT_SITE": str(base / "site.json"),
            "ANSIBLE_LOCAL_TEMP": str(base / "tmp"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        }
        subprocess.run([fake, "start", "mesos-agent.service"], env=self.env, check=True)
        self.cluster.registered("n1")

    @property
    def agent(self) -> Any:
        return self.cluster.slave("n1")

    def state(self) -> str:
        row = self.agent
        return str(row["drain_info"]["state"]) if "drain_info" in row else "ACTIVE" if row["active"] else "DEACTIVATED"

    def facts(self) -> dict[str, Any]:
        rows = [{"uuid": uuid, "index": index} for index, uuid in enumerate(UUIDS)]
        health = [{**row, "verdict": "fatal" if row["uuid"] in self.fatal else "ok"} for row in rows]
        return {"devices": rows, "health": {"devices": health}}

    def playbook(self, name: str) -> Path:
        """The playbook, with the facts of this site in the place of those of gpu_facts."""
        plays = yaml.safe_load((PLAYBOOKS / f"{name}.yml").read_text())
        for play in plays:
            for place, task in enumerate(play["tasks"]):
                if "baremetal.gpu.gpu_facts" in task:
                    known = {"gpu": self.facts(), "cacheable": True}
                    play["tasks"][place] = {"name": task["name"], "ansible.builtin.set_fact": known}
        made = self.base / f"{name}.yml"
        made.write_text(yaml.safe_dump(plays))
        tasks = self.base / "tasks"
        if not tasks.exists():
            tasks.symlink_to(PLAYBOOKS / "tasks")
        return made

    def play(self, name: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        masters = [self.cluster.url]
        return self.run(self.playbook(name), "n1,", *words, **{"mesos_operator_masters": masters, **more})

    def run(self, playbook: Path, inventory: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        known = {
            "ansible_python_interpreter": sys.executable,
            "target_hosts": "n1",
            "mesos_agent_work_dir": str(self.base / "agent"),
            "mesos_agent_environment_file": str(self.environment),
            "mesos_agent_url": "http://127.0.0.1:9",
            "drain_timeout": 20,
            "restore_timeout": 20,
            "mesos_operator_ledger": str(self.base / "ledger.json"),
            **more,
        }
        command = ["ansible-playbook", "-i", inventory, "-c", "local", str(playbook), "-e", json.dumps(known)]
        process = subprocess.Popen(
            [Path(sys.executable).parent / command[0], *command[1:], *words],
            cwd=self.base,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        (self.base / "playbook").write_text(str(process.pid))
        told, _nothing = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, told)

    def lines(self) -> list[str]:
        return self.said.read_text().splitlines()[1:]

    def stop(self) -> None:
        pid = self.base / "pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)
        self.cluster.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PlaySite]:
    one = PlaySite(tmp_path)
    yield one
    one.stop()


def test_a_host_is_drained_and_restored_and_a_second_run_changes_nothing(site):
    assert "changed=1" in site.play("drain").stdout
    assert site.state() == "DRAINED"
    assert "changed=0" in site.play("drain").stdout
    assert "changed=1" in site.play("restore").stdout
    assert site.state() == "ACTIVE"
    assert "changed=0" in site.play("restore").stdout


def test_what_others_drained_is_neither_restored_nor_given_another_list(site):
    agent = {"value": site.agent["id"]}
    site.cluster.ask("/api/v1", {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": agent}})
    until(lambda: site.state() == "DRAINED")
    refused = site.play("restore")
    assert refused.returncode == 2
    assert "and not by us" in refused.stdout
    site.fatal = {"GPU-1"}
    refused = site.play("reconcile")
    assert refused.returncode == 2
    assert "Nothing was changed" in refused.stdout
    assert site.agent["id"] == agent["value"]
    assert site.lines() == []


def test_as_the_scheduler_of_a_reboot_it_takes_the_masters_of_the_inventory_and_leaves_what_others_drained(site):
    inventory = site.base / "inventory.json"
    master = {"ansible_host": "127.0.0.1", "mesos_master_port": site.cluster.port}
    groups = {"mesos_agents": {"hosts": {"n1": {}}}, "mesos_masters": {"hosts": {"m1": master}}}
    inventory.write_text(json.dumps(groups))

    def enter(entry: str) -> str:
        role = {"name": "baremetal.gpu.mesos_operator", "tasks_from": entry}
        play = {"hosts": "n1", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": role}]}
        made = site.base / f"{entry}_role.yml"
        made.write_text(json.dumps([play]))
        told = site.run(made, str(inventory))
        assert told.returncode == 0, told.stdout
        return told.stdout

    assert "drained, by us" in " ".join(enter("drain").split())
    assert site.state() == "DRAINED"
    enter("restore")
    assert site.state() == "ACTIVE"
    agent = {"value": site.agent["id"]}
    site.cluster.ask("/api/v1", {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": agent}})
    until(lambda: site.state() == "DRAINED")
    assert "and not by us" in " ".join(enter("drain").split())
    assert "and not by us" in " ".join(enter("restore").split())
    assert site.state() == "DRAINED"


def test_a_list_with_a_fatal_gpu_is_changed_and_a_right_one_is_left_alone(site):
    assert "changed=0" in site.play("reconcile").stdout
    assert site.lines() == []
    site.fatal = {"GPU-1"}
    told = site.play("reconcile", "--check")
    assert told.returncode == 0, told.stdout
    assert site.lines() == []
    before = site.agent["id"]
    told = site.play("reconcile")
    assert told.returncode == 0, told.stdout
    row = until(lambda: site.agent if site.agent and site.agent["id"] != before else None)
    assert (row["active"], row["resources"]["gpus"]) == (True, 2.0)
    assert "MESOS_NVIDIA_GPU_DEVICES=0,2\n" in site.environment.read_text()
    assert "changed=0" in site.play("reconcile").stdout
    site.fatal = set()
    assert site.play("reconcile").returncode == 0
    until(lambda: site.agent["resources"]["gpus"] == 3.0)


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_run_that_was_cut_goes_on(site, verb):
    site.fatal = {"GPU-1"}
    site.cut.write_text(verb)
    assert site.play("reconcile").returncode == -signal.SIGKILL
    site.cut.unlink()
    told = site.play("reconcile")
    assert told.returncode == 0, told.stdout
    until(lambda: site.agent and site.state() == "ACTIVE" and site.agent["resources"]["gpus"] == 2.0)


def test_without_hosts_or_masters_nothing_is_done(site):
    for name in ("drain", "restore", "reconcile"):
        told = site.play(name, target_hosts="")
        assert told.returncode == 2
        assert "Say which hosts" in told.stdout
        told = site.play(name, mesos_operator_masters=[])
        assert told.returncode == 2
        assert "n1: no host is in the group mesos_masters, and mesos_operator_masters is empty" in told.stdout
    assert site.state() == "ACTIVE"
