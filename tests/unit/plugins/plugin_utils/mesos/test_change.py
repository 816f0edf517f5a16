# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent may be told anew under its id: what it would refuse, and what would give a GPU to two tasks.

The stand-in for mesos-agent, which refuses as the real one does, is params for the same changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node
from tests.unit.plugins.mesos_params import agent, file, gpu, gpu_device, node, plan, sentences, variables
from tests.unit.simulators.mesos_cluster import PROGRAMS, Cluster, free_port, until

FOUR = gpu(gpu_device(0), gpu_device(1), gpu_device(2), gpu_device(3))


def written(**params: Any) -> dict[str, str]:
    """The settings of an agent, as a host has them afterwards."""
    return mesos_node.environment(file(plan(agent(**params)), "/etc/agent.env")["content"])


def again(before: dict[str, str], found: dict[str, Any] | None = None, **params: Any) -> list[str]:
    """The problems of giving a registered agent other settings."""
    there = node(environment=before, **{"agent_id": "id-1", "running": True, **(found or {})})
    return sentences(plan(agent(node=there, **params)))


@pytest.fixture(scope="module")
def four() -> dict[str, str]:
    return written(gpu=FOUR, rack="r1")


def test_the_same_settings_are_no_change(four):
    assert again(four, gpu=FOUR, rack="r1") == []


@pytest.mark.parametrize(
    "params",
    [
        {"gpu": FOUR, "rack": "r1", "attributes": {"zone": "a"}},
        {"gpu": FOUR, "rack": "r1", "reserve": {"cpus": 0, "mem": 0, "disk": 0}},
        {"gpu": FOUR, "rack": "r1", "flags": {"containerizers": "mesos"}},
        {"gpu": FOUR, "rack": "r1", "ports": ["31000-33000"]},
        {"gpu": FOUR, "rack": "r1", "ports": ["30000-31500", "31501-32000"]},
    ],
    ids=["a new attribute", "more of everything", "a flag", "more ports", "the same ports and more in two ranges"],
)
def test_what_an_agent_takes_under_its_id_is_written(four, params):
    assert again(four, **params) == []


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"gpu": gpu(gpu_device(0), gpu_device(1, "fatal"), gpu_device(2), gpu_device(3)), "rack": "r1"},
            "changes from 4 to 3, without GPU-1",
        ),
        ({"gpu": gpu(*FOUR["devices"], gpu_device(4)), "rack": "r1"}, "changes from 4 to 5, with GPU-4"),
        (
            {"gpu": gpu(gpu_device(0), gpu_device(1), gpu_device(2), gpu_device(3, uuid="GPU-new")), "rack": "r1"},
            "changes from 4 to 4, without GPU-3 and with GPU-new",
        ),
        (
            {
                "gpu": gpu(gpu_device(1), gpu_device(0, uuid="GPU-4"), gpu_device(2), gpu_device(3)),
                "rack": "r1",
                "exclude_gpus": ["GPU-4"],
            },
            "without GPU-0",
        ),
        ({"gpu": FOUR, "rack": "r2"}, "attribute rack changes from r1 to r2"),
        ({"gpu": FOUR}, "attribute rack changes from r1 to none"),
        ({"gpu": FOUR, "rack": "r1", "hostname": "other"}, "its hostname changes from gpu1 to other"),
        ({"gpu": FOUR, "rack": "r1", "port": 6051}, "its port changes"),
        ({"gpu": FOUR, "rack": "r1", "work_dir": "/srv"}, "its work directory changes"),
        ({"gpu": FOUR, "rack": "r1", "ports": ["31000-31999"]}, "its ports change"),
        ({"gpu": FOUR, "rack": "r1", "ports": ["31001-40000"]}, "its ports change"),
        ({"gpu": FOUR, "rack": "r1", "reserve": {"cpus": 8, "mem": 0, "disk": 0}}, "cpus shrinks from 15 to 8"),
        (
            {
                "gpu": FOUR,
                "rack": "r1",
                "attributes": {"zone": "a"},
                "flags": {"reconfiguration_policy": "equal"},
            },
            "attributes changes under reconfiguration_policy=equal",
        ),
    ],
)
def test_what_an_agent_would_end_at_or_give_out_twice_is_refused_with_the_way(four, params, words):
    told = again(four, **params)
    assert len(told) == 1
    assert told[0].startswith("the agent id-1 would not come back, or give out wrong GPUs: ")
    assert words in told[0]
    assert "drain the agent" in told[0]
    assert "remove /var/lib/mesos/agent/meta/slaves/latest" in told[0]


GONE = {**gpu(gpu_device(0), gpu_device(1), gpu_device(2)), "pci": FOUR["pci"]}


@pytest.mark.parametrize(
    ("params", "ought"),
    [
        ({"gpu": gpu(gpu_device(0), gpu_device(1, "fatal"), gpu_device(2), gpu_device(3))}, "without GPU-1"),
        ({"gpu": gpu(*FOUR["devices"], gpu_device(4))}, "with GPU-4"),
        ({"gpu": FOUR, "exclude_gpus": ["GPU-2"]}, "without GPU-2"),
        ({"gpu": GONE}, "without GPU-3"),
    ],
    ids=["fatal", "well again", "held back", "gone from the bus"],
)
def test_where_a_reconciler_acts_the_agent_keeps_its_list_and_the_run_says_so(four, params, ought):
    there = node(environment=four, agent_id="id-1", running=True)
    found = plan(agent(node=there, rack="r1", reconciled=True, **params))
    assert found["problems"] == []
    (remark,) = found["remarks"]
    assert remark.startswith("gpu1: the agent keeps its list of 4 GPUs in this run. It ought to be " + ought)
    told = variables(found, "/etc/agent.env")
    same = ("BAREMETAL_GPU_UUIDS", "MESOS_NVIDIA_GPU_DEVICES", "MESOS_RESOURCES", "MESOS_ATTRIBUTES", "MESOS_ISOLATION")
    assert {name: told[name] for name in same} == {name: four[name] for name in same}
    assert found["gpus"] == 4
    # So the agent of the node can tell the reconciler what must never be listed.
    assert told.get("BAREMETAL_GPU_HELD_BACK") == ("GPU-2" if "exclude_gpus" in params else None)


def test_what_no_reconciler_can_see_to_is_refused_beside_it_as_well(four):
    assert "rack changes from r1 to r2" in again(four, gpu=FOUR, rack="r2", reconciled=True)[0]
    # An agent that does not run cannot be drained by it, and would be started with a GPU that is not there.
    rebooted = {"running": False, "rebooted": True}
    assert "changes from 4 to 3, without GPU-3" in again(four, rebooted, gpu=GONE, rack="r1", reconciled=True)[0]
    assert again(four, {"agent_id": None}, gpu=GONE, rack="r1", reconciled=True) == []


def test_gpus_in_mig_mode_are_told_to_the_reconciler_as_held_back():
    sliced = {**gpu_device(1), "mig": {"enabled": True}}
    told = written(gpu=gpu(gpu_device(0), sliced), rack="r1")
    assert (told["BAREMETAL_GPU_UUIDS"], told["BAREMETAL_GPU_HELD_BACK"]) == ("GPU-0", "GPU-1")


@pytest.mark.parametrize(
    "params", [{"gpu": gpu(gpu_device(0)), "rack": "r2"}, {"hostname": "other"}], ids=["GPUs and a rack", "a hostname"]
)
def test_without_a_checkpoint_everything_may_change(four, params):
    assert again(four, {"agent_id": None}, **params) == []


def test_settings_that_nobody_knows_are_not_overwritten():
    assert "settings that are not known here" in again({}, gpu=FOUR)[0]


@pytest.mark.parametrize(
    ("running", "rebooted", "ok"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_other_indices_of_the_same_gpus_are_taken_after_a_reboot_that_no_task_survived(four, running, rebooted, ok):
    moved = gpu(*(gpu_device(index, uuid=f"GPU-{3 - index}") for index in range(4)))
    one_less = gpu(*(gpu_device(index, uuid=f"GPU-{index + 1}") for index in range(3)))
    before = written(gpu={**gpu(gpu_device(1), gpu_device(2), gpu_device(3)), "pci": FOUR["pci"]}, rack="r1")
    found = {"running": running, "rebooted": rebooted}
    assert again(four, found, gpu=moved, rack="r1") == []
    told = again(before, found, gpu={**one_less, "pci": FOUR["pci"]}, rack="r1")
    assert (told == []) is ok
    if not ok:
        assert "their indices change from 1,2,3 to 0,1,2" in told[0]


@given(st.integers(-1200, 1200), st.integers(-9000, 9000))
def test_a_host_that_has_hardly_changed_is_told_the_same(memory, disk):
    before = written(gpu=FOUR)
    there = node(environment=before, agent_id="id-1", memory_mib=64000 + memory, disk_mib=500000 + disk)
    found = plan(agent(node=there, gpu=FOUR))
    assert found["problems"] == []
    assert variables(found, "/etc/agent.env")["MESOS_RESOURCES"] == before["MESOS_RESOURCES"]


def test_memory_that_was_taken_out_is_a_change():
    before = written(gpu=FOUR)
    assert "mem shrinks from 62976 to 30976" in again(before, {"memory_mib": 32000}, gpu=FOUR)[0]


# --- beside the stand-in ---------------------------------------------------------------------------------------------

CHANGES = {
    "nothing": ({"gpu": FOUR, "rack": "r1"}, True),
    "a new attribute": ({"gpu": FOUR, "rack": "r1", "attributes": {"zone": "a"}}, True),
    "more memory": ({"gpu": FOUR, "rack": "r1", "reserve": {"cpus": 1, "mem": 0, "disk": 5120}}, True),
    "more ports": ({"gpu": FOUR, "rack": "r1", "ports": ["31000-33000"]}, True),
    "other ports": ({"gpu": FOUR, "rack": "r1", "ports": ["33000-33999"]}, False),
    "a GPU less": ({"gpu": gpu(*FOUR["devices"][:3], gpu_device(3, "fatal")), "rack": "r1"}, False),
    "another rack": ({"gpu": FOUR, "rack": "r2"}, False),
    "another hostname": ({"gpu": FOUR, "rack": "r1", "hostname": "other"}, False),
    "less memory": ({"gpu": FOUR, "rack": "r1", "reserve": {"cpus": 1, "mem": 32000, "disk": 5120}}, False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_agent_takes_what_is_written_and_ends_at_what_is_refused(tmp_path: Path, name: str) -> None:
    params, taken = CHANGES[name]
    cluster = Cluster(tmp_path)
    # Of the plan, all but what ties it to the addresses of the test.
    own = {
        "MESOS_MASTER": f"127.0.0.1:{cluster.port}",
        "MESOS_IP": "127.0.0.1",
        "MESOS_PORT": str(free_port()),
        "MESOS_WORK_DIR": f"{tmp_path}/agent",
    }

    def environment(**what: Any) -> dict[str, str]:
        told = variables(plan(agent(**{**what, "authentication": "off"})), "/etc/agent.env")
        return {"PATH": os.environ["PATH"], "STAND_IN_GPUS": "ok,ok,ok,ok", **told, **own}

    def start(**what: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAMS / "agent.py")]
        return subprocess.Popen(command, env=environment(**what), stderr=subprocess.PIPE, text=True)

    first = start(gpu=FOUR, rack="r1")
    second = None
    try:
        registered = cluster.registered("gpu1")
        assert registered["resources"]["gpus"] == 4
        assert registered["attributes"]["gpu_model"] == "A100-SXM4-40GB"
        # The master knows it before it has its checkpoint.
        until((tmp_path / "agent/meta/slaves/latest").exists)
        first.terminate()
        first.communicate(timeout=20)
        before = written(gpu=FOUR, rack="r1")
        assert (again(before, **params) == []) is taken
        second = start(**params)
        if taken:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(timeout=1)
        else:
            _, told = second.communicate(timeout=20)
            assert second.returncode != 0
            assert "Failed to perform recovery" in told
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
        cluster.stop()
