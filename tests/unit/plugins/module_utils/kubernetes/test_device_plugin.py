# SPDX-License-Identifier: GPL-3.0-or-later
"""The device plugin at a strict stand-in for kubelet."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.device_plugin import DevicePlugin, preferred
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu, Gpus
from tests.simulators.kubelet import Kubelet
from tests.unit.plugins.module_utils.kubernetes.agent_report import UUIDS, Agent, until


class Node(Agent):
    """A node's agent, plugin and kubelet."""

    def __init__(self, base: Path) -> None:
        super().__init__(base / "root")
        self.sockets = base / "sockets"
        self.sockets.mkdir()
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


@pytest.fixture
def node() -> Iterator[Node]:
    # The name of a socket has at most 107 characters, so not tmp_path.
    with tempfile.TemporaryDirectory(prefix="plugin-") as base:
        made = Node(Path(base))
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
