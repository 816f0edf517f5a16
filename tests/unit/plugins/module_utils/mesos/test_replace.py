# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent with another list of GPUs: what is changed, what is refused, and what a cut leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import node_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import Place
from tests.unit.plugins.service_account import Account, needs_root

ENVIRONMENT = """BAREMETAL_GPU_UUIDS=GPU-0,GPU-1,GPU-2
MESOS_ISOLATION=cgroups/devices,filesystem/linux,gpu/nvidia
MESOS_NVIDIA_GPU_DEVICES=0,1,2
MESOS_RESOURCES="cpus:4;ports:[31000-32000];gpus:3"
MESOS_WORK_DIR=/x
"""
DEVICES = [{"uuid": f"GPU-{number}", "index": number} for number in range(3)]


class Cut(Exception):
    """The host lost its power here."""


class Host:
    """A hand-made host with a directory of an agent; `said` are the programs that ran."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.boot = base / "proc/sys/kernel/random/boot_id"
        self.boot.parent.mkdir(parents=True)
        self.boot.write_text("boot-1\n")
        meta = base / "work/meta/slaves"
        (meta / "S0").mkdir(parents=True)
        (meta / "latest").symlink_to("S0")
        self.meta = meta
        self.environment = base / "agent.env"
        self.environment.write_text(ENVIRONMENT)
        self.place = Place(
            work_dir=str(base / "work"),
            environment=str(self.environment),
            url="http://127.0.0.1:9",
            start_s=1,
        )
        self.settings = node_orders.Settings(
            order=str(base / "order.json"),
            answer=str(base / "orders/answer.json"),
            allowed=node_orders.KINDS,
            place=self.place,
            root=str(base),
        )
        self.said: list[str] = []
        self.cut_at = ""
        self.starts = 0

    def run(self, argv: Any) -> tuple[int, str]:
        words = " ".join(argv)
        self.said.append(words)
        if self.cut_at and self.cut_at in words:
            raise Cut
        if words.startswith("systemctl start") and not (self.meta / "latest").is_symlink():
            self.register()
        return (1, "") if "is-failed" in words else (0, "")

    def register(self) -> None:
        self.starts += 1
        (self.meta / f"S{self.starts}").mkdir()
        (self.meta / "latest").symlink_to(f"S{self.starts}")

    def order(self, **more: Any) -> None:
        row = {"id": "n1-1", "kind": "replace", "agent_id": "S0", "gpus": ["GPU-0", "GPU-2"], **more}
        Path(self.settings.order).write_text(json.dumps(row))

    def obey(self) -> dict[str, Any]:
        return node_orders.obey(self.settings, DEVICES, self.run)

    def latest(self) -> str:
        return os.readlink(self.meta / "latest")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_agent_is_stopped_loses_its_checkpoint_and_starts_with_the_new_list(host):
    host.order()
    assert host.obey() == {"id": "n1-1", "state": "done", "boot_id": "boot-1", "end_boot_id": "boot-1"}
    assert host.said == ["systemctl stop mesos-agent.service", "systemctl start mesos-agent.service"]
    assert host.latest() == "S1"
    assert host.environment.read_text() == ENVIRONMENT.replace("0,GPU-1,GPU-2", "0,GPU-2").replace(
        "0,1,2", "0,2"
    ).replace("gpus:3", "gpus:2")
    assert mesos_replace.listed(host.place.environment) == ["GPU-0", "GPU-2"]


def test_an_order_is_carried_out_once(host):
    host.order()
    host.obey()
    host.said.clear()
    assert host.obey()["state"] == "done"
    assert host.said == []


@pytest.mark.parametrize("cut", ["systemctl stop", "systemctl start"])
def test_what_was_cut_is_taken_up_again(host, cut):
    host.order()
    host.cut_at = cut
    with pytest.raises(Cut):
        host.obey()
    host.cut_at = ""
    assert host.obey()["state"] == "done"
    assert host.latest() == "S1"
    assert "gpus:2" in host.environment.read_text()


TLS = "LIBPROCESS_SSL_ENABLED=true\nLIBPROCESS_SSL_CA_FILE=/etc/ca.pem\nLIBPROCESS_SSL_SUPPORT_DOWNGRADE="


@pytest.mark.parametrize(
    ("more", "url", "ca_file"),
    [
        ("", "http://127.0.0.1:5051", None),
        ("MESOS_IP=10.0.0.7\nMESOS_PORT=6051\n", "http://10.0.0.7:6051", None),
        ('MESOS_IP="fd00::7"\n', "http://[fd00::7]:5051", None),
        (f"MESOS_IP=10.0.0.7\n{TLS}true\n", "http://10.0.0.7:5051", "/etc/ca.pem"),
        (f"MESOS_IP=10.0.0.7\n{TLS}false\n", "https://10.0.0.7:5051", "/etc/ca.pem"),
    ],
)
def test_the_agent_is_asked_where_its_environment_has_it_listen(host, more, url, ca_file):
    host.environment.write_text(ENVIRONMENT + more)
    assert Place(environment=str(host.environment)).answers_at() == (url, ca_file)
    given = Place(environment=str(host.environment), url="http://[::1]:1", ca_file="/own.pem")
    assert given.answers_at() == ("http://[::1]:1", "/own.pem")


def test_another_agent_than_was_drained_is_not_touched(host):
    host.order(agent_id="S9")
    answer = host.obey()
    assert answer["state"] == "failed"
    assert "the agent here is S0, and S9 was drained" in answer["error"]
    assert host.said == []
    assert host.environment.read_text() == ENVIRONMENT


def test_an_agent_whose_tasks_live_is_started_again_as_it_was(host):
    with subprocess.Popen(["sleep", "60"]) as task:
        place = host.meta / "S0/frameworks/F/executors/E/runs/R/pids"
        place.mkdir(parents=True)
        (place / "forked.pid").write_text(str(task.pid))
        host.order()
        answer = host.obey()
        task.kill()
    assert answer["state"] == "failed"
    assert f"processes {task.pid} of its tasks live" in answer["error"]
    assert host.said[-1] == "systemctl start mesos-agent.service"
    assert host.latest() == "S0"
    assert host.environment.read_text() == ENVIRONMENT


@pytest.mark.parametrize("over", ["slaves/S0/frameworks/F/executors/E/runs/R/executor.sentinel", "boot_id"])
def test_a_number_of_a_task_that_is_over_belongs_to_somebody_else_now(host, over):
    place = host.meta / "S0/frameworks/F/executors/E/runs/R/pids"
    place.mkdir(parents=True)
    (place / "forked.pid").write_text(str(os.getpid()))
    (host.meta.parent / over).write_text("another boot")
    host.order()
    assert host.obey()["state"] == "done"


def test_an_order_that_was_withdrawn_before_it_began_is_not_carried_out(host):
    host.order(withdrawn=True)
    assert host.obey()["error"] == "withdrawn"
    assert host.said == []


def test_what_the_host_does_not_allow_is_refused(host):
    host.settings.allowed = ("replace",)
    host.order(reboot=["GPU-1"])
    assert "reboot is not allowed on this host" in host.obey()["error"]
    host.order(id="n1-2", kind="reset", gpus=["GPU-1"])
    assert "reset is not allowed on this host" in host.obey()["error"]
    host.order(id="n1-3", kind="rm -rf")
    assert "rm -rf is not allowed" in host.obey()["error"]
    assert host.said == []
    assert host.environment.read_text() == ENVIRONMENT


@pytest.mark.parametrize("missing", [{"gpus": None}, {"agent_id": None}, {"kind": "reset", "gpus": None}])
def test_an_order_that_is_not_whole_is_refused(host, missing):
    host.order(**missing)
    assert "is not a whole order" in host.obey()["error"]
    assert host.said == []
    assert host.environment.read_text() == ENVIRONMENT


def test_a_gpu_is_reset_by_its_uuid(host):
    host.order(kind="reset", gpus=["GPU-1"])
    assert host.obey()["state"] == "done"
    assert host.said == ["nvidia-smi --gpu-reset -i GPU-1"]


def test_a_reboot_is_answered_by_the_next_boot(host):
    host.order(reboot=["GPU-1"])
    assert host.obey()["state"] == "running"
    assert host.said == ["systemctl stop mesos-agent.service", "systemctl reboot"]
    host.boot.write_text("boot-2\n")
    host.register()
    assert host.obey() == {"id": "n1-1", "state": "done", "boot_id": "boot-1", "end_boot_id": "boot-2"}
    assert host.said[2:] == []


def test_a_host_without_mesos_boots_for_an_order_alone(host):
    host.order(kind="reboot", agent_id="", gpus=[], reboot=["GPU-1"])
    assert host.obey()["state"] == "running"
    assert host.said == ["systemctl reboot"]
    host.boot.write_text("boot-2\n")
    assert host.obey() == {"id": "n1-1", "state": "done", "boot_id": "boot-1", "end_boot_id": "boot-2"}
    assert host.said[1:] == []


def test_a_unit_that_does_not_come_back_is_told(host):
    host.order()
    fails = {"systemctl is-failed --quiet mesos-agent.service": (0, "")}
    answer = node_orders.obey(host.settings, DEVICES, lambda argv: fails.get(" ".join(argv), (0, "")))
    assert answer["state"] == "failed"
    assert "fails with the new list" in answer["error"]


def test_a_second_one_at_the_same_time_is_refused(host):
    with (
        node_orders.alone(host.place),
        pytest.raises(Refused, match="another change"),
        node_orders.alone(host.place),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("gpus", "resources", "more"),
    [
        ({1: "GPU-1"}, "cpus:4;gpus:1", "MESOS_NVIDIA_GPU_DEVICES=1\n"),
        ({}, "cpus:4;gpus:0", ""),
        ({3: "GPU-3", 0: "GPU-0"}, "cpus:4;gpus:2", "MESOS_NVIDIA_GPU_DEVICES=0,3\n"),
    ],
)
def test_the_environment_keeps_all_but_the_list_and_stays_in_order(gpus, resources, more):
    before = "MESOS_ISOLATION=gpu/nvidia\nMESOS_RESOURCES='gpus(*):2;cpus:4'\nMESOS_WORK_DIR=/x\n"
    uuids = ",".join(gpus[number] for number in sorted(gpus))
    after = mesos_replace.environment(before, gpus)
    assert after == (
        f"BAREMETAL_GPU_UUIDS={uuids}\nMESOS_ISOLATION=gpu/nvidia\n{more}MESOS_RESOURCES='{resources}'\nMESOS_WORK_DIR=/x\n"
    )
    assert mesos_replace.environment(after, gpus) == after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MESOS_ISOLATION=gpu/nvidia\nMESOS_RESOURCES=[{}]", "is JSON or a file"),
        ("MESOS_ISOLATION=gpu/nvidia\nMESOS_RESOURCES=file:///x", "is JSON or a file"),
        ("MESOS_ISOLATION=cgroups/cpu\nMESOS_RESOURCES=cpus:4", "without the isolator gpu/nvidia"),
        ("MESOS_ISOLATION=gpu/nvidia", "MESOS_RESOURCES is not in"),
    ],
)
def test_an_environment_that_cannot_be_edited_is_refused(text, why):
    with pytest.raises(Refused, match=why):
        mesos_replace.environment(text, {0: "GPU-0"})


def test_a_gpu_without_an_index_is_refused():
    with pytest.raises(Refused, match="GPU-9 have no index"):
        mesos_replace.indices(["GPU-9"], DEVICES)


def test_a_list_that_nobody_wrote_down_is_not_known(tmp_path):
    file = tmp_path / "agent.env"
    assert mesos_replace.listed(str(file)) is None
    file.write_text("MESOS_RESOURCES=gpus:2\n")
    assert mesos_replace.listed(str(file)) is None
    file.write_text("BAREMETAL_GPU_UUIDS=\n")
    assert mesos_replace.listed(str(file)) == []


def test_a_cut_is_known_until_another_agent_has_come(host):
    assert mesos_replace.pending(host.place) is None
    host.order()
    host.cut_at = "systemctl stop"
    with pytest.raises(Cut):
        host.obey()
    assert mesos_replace.pending(host.place) == {"agent_id": "S0"}
    (host.meta / "latest").unlink()
    assert mesos_replace.pending(host.place) == {"agent_id": "S0"}
    host.register()
    assert mesos_replace.pending(host.place) is None


@pytest.mark.parametrize(
    ("said", "unit"),
    [
        ("ActiveState=active\nResult=success\n", "active"),
        ("ActiveState=activating\nResult=exit-code\n", "activating"),
        ("ActiveState=failed\nResult=exit-code\n", "failed"),
        ("ActiveState=inactive\nResult=success\n", "inactive"),
        ("ActiveState=inactive\nResult=exec-condition\n", "held"),
        ("nonsense", "unknown"),
    ],
)
def test_a_host_tells_how_its_agent_stands_and_whether_a_job_of_it_lives(host, said, unit):
    def systemctl(_argv: Any) -> tuple[int, str]:
        return 0, said

    stands = {"agent_id": "S0", "unit": unit, "executors": 0}
    assert mesos_replace.standing(host.place, systemctl) == stands
    # Of an agent that gave its place to the next one, too.
    run = host.meta / "S9/frameworks/f/executors/e/runs/1"
    (run / "pids").mkdir(parents=True)
    (run / "pids/forked.pid").write_text(str(os.getpid()))
    assert mesos_replace.standing(host.place, systemctl)["executors"] == 1
    (host.meta / "latest").unlink()
    assert mesos_replace.standing(host.place, systemctl)["agent_id"] is None
    (host.meta / "latest").mkdir()
    found = mesos_replace.standing(host.place, systemctl)
    assert f"{host.meta}/latest is not a link" in found.pop("unread")
    assert found == {"agent_id": None, "unit": unit, "executors": None}


@needs_root
def test_a_directory_that_the_hosts_agent_may_not_enter_is_named(host, tmp_path):
    """It lacks root's right to pass by modes, as the unit of gpu-agent does."""
    work = Path(host.place.work_dir)
    work.parent.chmod(0o700)
    # Directories of tests may be closed themselves.
    closed = next(path for path in reversed(work.parents) if not path.stat().st_mode & 0o001)
    account = Account(tmp_path / "account")

    def look() -> None:
        found = mesos_replace.standing(host.place, lambda _argv: (0, "ActiveState=failed\n"))
        Path("told.json").write_text(json.dumps(found))

    account.does(look)
    found = json.loads((account.directory / "told.json").read_text())
    assert found == {"agent_id": None, "unit": "failed", "executors": None, "unread": f"{closed}: Permission denied"}


def test_without_systemctl_nobody_knows_how_the_agent_stands(host):
    assert mesos_replace.standing(host.place, lambda _argv: (127, "no systemctl"))["unit"] == "unknown"


def test_an_order_for_an_agent_that_never_came_up_is_carried_out(host):
    (host.meta / "latest").unlink()
    host.order(agent_id="")
    assert host.obey()["state"] == "done"
    assert host.latest() == "S1"
