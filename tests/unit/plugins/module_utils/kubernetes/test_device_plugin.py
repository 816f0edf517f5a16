# SPDX-License-Identifier: GPL-3.0-or-later
"""The device plugin at a strict stand-in for kubelet."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.device_plugin import DevicePlugin, preferred
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu, Gpus
from tests.simulators.kubelet import Kubelet

UUIDS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(4)]
# 0 and 1 have NVLinks, and so have 2 and 3.
SCORES = [[None, 210, 10, 10], [210, None, 10, 10], [10, 10, None, 410], [10, 10, 410, None]]


def until(wanted: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while not (found := wanted()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


class Node:
    """A node's agent, plugin and kubelet."""

    def __init__(self, base: Path) -> None:
        self.root, self.sockets = base / "root", base / "sockets"
        self.report = self.root / "run/baremetal-gpu/gpu.json"
        self.report.parent.mkdir(parents=True)
        self.sockets.mkdir()
        boot_id = self.root / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True)
        boot_id.write_text("6f1c2a34-0000-4000-8000-000000000001\n")
        self.fatal: dict[str, str] = {}
        self.unknown: set[str] = set()
        self.missing: set[str] = set()
        self.host: str | None = None
        self.kubelet = Kubelet(self.sockets)
        self.gpus = Gpus(str(self.root))
        self.plugin = DevicePlugin(self.gpus, str(self.sockets))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.plugin.run, args=(self.ended,))
        self.thread.start()

    def close(self) -> None:
        self.ended.set()
        self.thread.join(30)
        self.kubelet.stop()

    @staticmethod
    def part(code: str | None, is_unknown: bool = False) -> dict[str, Any]:
        reasons = [{"code": code, "verdict": "fatal", "action": "reboot", "text": "it broke"}] if code else []
        return {"verdict": "fatal" if code else "unknown" if is_unknown else "ok", "reasons": reasons}

    def says(self, **more: Any) -> None:
        """The agent reports what there is now."""
        devices = [
            {"uuid": uuid, "index": index, **self.part(self.fatal.get(uuid), uuid in self.unknown)}
            for index, uuid in enumerate(UUIDS)
            if uuid not in self.missing
        ]
        rows = [{"uuid": uuid, "numa_node": index // 2} for index, uuid in enumerate(UUIDS)]
        result = {
            "time": time.time(),
            "uptime": agent_result.uptime(),
            "interval_s": 10.0,
            "boot_id": boot.boot_id(str(self.root)),
            "health": {**self.part(self.host), "devices": devices},
            "facts": {"devices": rows, "topology": {"scores": SCORES}},
            **more,
        }
        self.write(json.dumps(result))

    def write(self, text: str) -> None:
        new = self.report.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.report)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_kubelet_gets_every_gpu_that_the_agent_reports_with_its_numa_node(node: Node) -> None:
    assert until(lambda: node.kubelet.registered)
    assert node.kubelet.devices == {}
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))
    assert node.kubelet.resource == "nvidia.com/gpu"
    assert [node.kubelet.devices[uuid][1] for uuid in UUIDS] == [[0], [0], [1], [1]]
    assert node.kubelet.refused == []


def test_a_container_gets_its_gpus_by_their_cdi_names(node: Node) -> None:
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))
    assert node.kubelet.allocate(UUIDS[2], UUIDS[0]) == [f"nvidia.com/gpu={UUIDS[2]}", f"nvidia.com/gpu={UUIDS[0]}"]
    with pytest.raises(grpc.RpcError, match="not a GPU of this node"):
        node.kubelet.allocate("GPU-other")


def test_a_fatal_gpu_is_withheld_and_the_others_are_not(node: Node) -> None:
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))
    node.fatal[UUIDS[1]] = "xid_79"
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS) - {UUIDS[1]})
    with pytest.raises(grpc.RpcError, match="xid_79"):
        node.kubelet.allocate(UUIDS[1])
    node.fatal.clear()
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))


def test_a_fault_of_the_host_withholds_all(node: Node) -> None:
    node.says()
    until(lambda: node.kubelet.healthy())
    node.host = "driver_mismatch"
    node.says()
    until(lambda: node.kubelet.healthy() == set())
    assert set(node.kubelet.devices) == set(UUIDS)


def test_what_the_agent_cannot_tell_changes_nothing(node: Node) -> None:
    node.unknown = {UUIDS[3]}
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS[:3]))
    node.unknown = set(UUIDS)
    node.fatal[UUIDS[0]] = "xid_48"
    node.says()
    until(lambda: node.kubelet.healthy() == {UUIDS[1], UUIDS[2]})
    node.fatal.clear()
    node.says()
    until(lambda: not node.gpus.problem)
    assert node.kubelet.healthy() == {UUIDS[1], UUIDS[2]}
    node.unknown.clear()
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))


def test_a_gpu_that_is_not_reported_any_more_is_withheld_until_it_is(node: Node) -> None:
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))
    node.missing = {UUIDS[2]}
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS) - {UUIDS[2]})
    node.missing = set()
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))


@pytest.mark.parametrize(
    "text", ["{nonsense", "[]", json.dumps({"health": {"verdict": "ok"}}), ""], ids=["cut", "list", "part", "empty"]
)
def test_a_damaged_report_leaves_what_was_known(node: Node, text: str) -> None:
    node.fatal[UUIDS[1]] = "xid_79"
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS) - {UUIDS[1]})
    node.write(text)
    assert until(lambda: node.gpus.problem)
    assert node.kubelet.healthy() == set(UUIDS) - {UUIDS[1]}


def test_a_report_of_another_boot_opens_nothing(node: Node) -> None:
    node.says(boot_id="of the last boot")
    until(lambda: "another boot" in node.gpus.problem)
    assert node.kubelet.devices == {}


def test_kubelet_that_starts_anew_gets_the_gpus_again(node: Node) -> None:
    node.fatal[UUIDS[0]] = "xid_79"
    node.says()
    for number in range(1, 4):
        until(lambda number=number: node.kubelet.registered == number and len(node.kubelet.healthy()) == 3)
        assert node.kubelet.allocate(UUIDS[1]) == [f"nvidia.com/gpu={UUIDS[1]}"]
        node.kubelet.restart()


def test_without_kubelet_it_waits_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    plugin = DevicePlugin(Gpus(str(tmp_path)), str(tmp_path / "sockets"))
    ended = threading.Event()
    thread = threading.Thread(target=plugin.run, args=(ended,))
    thread.start()
    assert until(lambda: plugin.problem)
    ended.set()
    thread.join(30)
    assert not thread.is_alive()


def test_the_nearest_gpus_are_preferred(node: Node) -> None:
    node.says()
    until(lambda: node.kubelet.healthy() == set(UUIDS))
    assert set(node.kubelet.prefer(UUIDS, [], 2)) == {UUIDS[2], UUIDS[3]}
    assert set(node.kubelet.prefer(UUIDS[:3], [UUIDS[1]], 2)) == {UUIDS[0], UUIDS[1]}
    assert set(node.kubelet.prefer(UUIDS, [], 4)) == set(UUIDS)


def test_among_many_gpus_one_is_chosen_after_the_other() -> None:
    names = [f"GPU-{number}" for number in range(40)]
    gpus = {
        name: Gpu(name, "", scores={other: 100 for other in names if int(other[4:]) // 8 == int(name[4:]) // 8})
        for name in names
    }
    chosen = preferred(gpus, names, ["GPU-17"], 8)
    assert sorted(chosen) == [f"GPU-{number}" for number in range(16, 24)]
