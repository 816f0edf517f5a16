# SPDX-License-Identifier: GPL-3.0-or-later
"""The DRA driver at strict stand-ins for kubelet and the API server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import dra
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import DRIVER
from tests.simulators.kube_api import KubeApi
from tests.simulators.kubelet import field, fields, texts
from tests.unit.plugins.module_utils.kubernetes.agent_report import UUIDS, Agent, certificate, until

NODE = "n1"
NAMES = [uuid.lower() for uuid in UUIDS]
SLICE = f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpu.baremetal-gpu"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Node(Agent):
    """A node's agent and driver, what kubelet sees of it, and an API server."""

    def __init__(self, base: Path, keeps_taints: bool) -> None:
        super().__init__(base / "root")
        self.api = KubeApi(*certificate(base), keeps_taints)
        self.registry, self.plugins = base / "registry", base / "plugins"
        self.registry.mkdir()
        self.settings = Settings(self.api.url, str(certificate(base)[0]), None)
        self.start()

    def start(self, evicts: bool = False) -> None:
        self.gpus = Gpus(str(self.root))
        self.driver = dra.Driver(self.gpus, Api(self.settings), NODE, evicts, str(self.registry), str(self.plugins))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.driver.run, args=(self.ended,))
        self.thread.start()

    def stop(self) -> None:
        self.ended.set()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self.stop()
        self.api.close()

    def devices(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.api.objects.get(SLICE, {"spec": {}})["spec"].get("devices", ())}

    def free(self) -> set[str]:
        """Those that a claim can get."""
        return {name for name, row in self.devices().items() if not row.get("taints")}

    def claim(self, *names: str, uid: str = "u1", driver: str = DRIVER) -> None:
        results = [{"request": "gpu", "driver": driver, "pool": NODE, "device": name} for name in names]
        allocation = {"allocation": {"devices": {"results": results}}} if names else {}
        self.api.objects[f"{CLAIMS}/c1"] = {"metadata": {"uid": uid, "name": "c1"}, "status": allocation}

    def prepare(self, uid: str = "u1") -> tuple[list[str], str]:
        """(the names of CDI devices, why there are none) as kubelet gets them for the claim."""
        claim = field(1, "default") + field(2, uid) + field(3, "c1")
        with grpc.insecure_channel(f"unix://{self.plugins}/{DRIVER}/dra.sock") as channel:
            method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
            answer = channel.unary_unary(method)(field(1, claim), timeout=10)
        ((_number, entry),) = fields(answer)
        assert texts(entry, 1) == [uid]
        (response,) = (value for number, value in fields(entry) if number == 2)
        found = [name for number, device in fields(response) if number == 1 for name in texts(device, 4)]
        return found, "".join(texts(response, 2))


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    # The name of a socket has at most 107 characters, so not tmp_path.
    with tempfile.TemporaryDirectory(prefix="dra-") as base:
        made = Node(Path(base), getattr(request, "param", True))
        yield made
        made.close()


def test_a_socket_that_cannot_be_made_is_a_problem_until_it_can(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.write_text("in the way")
    api = Api(Settings("https://127.0.0.1:1", "/dev/null", None))
    driver = dra.Driver(Gpus(str(tmp_path)), api, NODE, registry=str(tmp_path), plugins=str(plugins))
    ended = threading.Event()
    thread = threading.Thread(target=driver.run, args=(ended,))
    thread.start()
    until(lambda: driver.problem)
    assert thread.is_alive()
    ended.set()
    thread.join(30)


def test_the_slice_has_every_gpu_with_what_a_claim_selects_by(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(NAMES))
    row = node.devices()[NAMES[2]]
    assert row["attributes"] == {
        "uuid": {"string": UUIDS[2]},
        "productName": {"string": "NVIDIA A100-SXM4-40GB"},
        "index": {"int": 2},
        "numaNode": {"int": 1},
    }
    assert row["capacity"] == {"memory": {"value": "40Gi"}}
    assert node.api.objects[SLICE]["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}


def test_kubelet_learns_of_the_driver_by_its_registry(node: Node) -> None:
    (path,) = until(lambda: list(node.registry.glob("*.sock")))
    with grpc.insecure_channel(f"unix://{path}") as channel:
        info = channel.unary_unary("/pluginregistration.Registration/GetInfo")(b"", timeout=10)
        assert (texts(info, 1), texts(info, 2), texts(info, 4)) == (
            ["DRAPlugin"],
            [DRIVER],
            ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
        )
        assert Path(texts(info, 3)[0]).is_socket()
        told = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
        told(field(1, 0) + field(2, "no such version"), timeout=10)
        assert node.driver.refused == "no such version"
        told(field(1, 1), timeout=10)
        assert node.driver.refused == ""
    path.unlink()
    until(path.is_socket)


def test_a_fatal_gpu_has_a_taint_with_its_code_until_it_is_well(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(NAMES))
    node.fatal[UUIDS[1]] = "xid_79"
    node.says()
    until(lambda: node.free() == set(NAMES) - {NAMES[1]})
    (taint,) = node.devices()[NAMES[1]]["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == ("baremetal-gpu/fatal", "xid_79", "NoSchedule")
    # What it was since stays over a restart.
    node.stop()
    node.start()
    until(lambda: not node.gpus.problem and not node.driver.problem)
    assert node.devices()[NAMES[1]]["taints"] == [taint]
    node.fatal.clear()
    node.says()
    until(lambda: node.free() == set(NAMES))
    assert node.api.objects[SLICE]["spec"]["pool"]["generation"] == 3


@pytest.mark.parametrize("node", [False], indirect=True, ids=["drops taints"])
def test_an_api_server_that_drops_taints_gets_a_slice_without_the_gpu(node: Node) -> None:
    node.fatal[UUIDS[1]] = "xid_79"
    node.says()
    until(lambda: set(node.devices()) == set(NAMES) - {NAMES[1]})
    node.fatal.clear()
    node.says()
    until(lambda: set(node.devices()) == set(NAMES))


def test_by_policy_the_pod_on_a_fatal_gpu_is_evicted(node: Node) -> None:
    node.stop()
    node.start(evicts=True)
    node.fatal[UUIDS[0]] = "xid_48"
    node.says()
    (taint,) = until(lambda: node.devices().get(NAMES[0], {}).get("taints"))
    assert taint["effect"] == "NoExecute"


def test_an_api_server_that_is_away_gets_the_slice_when_it_is_back(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(NAMES))
    node.api.down = True
    node.fatal[UUIDS[3]] = "xid_79"
    node.says()
    assert "503" in until(lambda: node.driver.problem)
    node.api.down = False
    until(lambda: node.free() == set(NAMES[:3]))


def test_a_slice_that_another_program_changed_is_put_right(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra, "LOOK_S", 0.2)
    node.fatal[UUIDS[3]] = "xid_79"
    node.says()
    until(lambda: node.free() == set(NAMES[:3]))
    node.api.objects[SLICE]["spec"]["devices"][3].pop("taints")
    until(lambda: node.free() == set(NAMES[:3]))
    del node.api.objects[SLICE]
    until(lambda: node.free() == set(NAMES[:3]))


def test_without_a_change_nothing_is_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra, "LOOK_S", 0.1)
    node.says()
    until(lambda: node.free() == set(NAMES))
    before = list(node.api.writes)
    node.says()
    node.write("{damaged")
    until(lambda: node.gpus.problem)
    assert node.api.writes == before


def test_kubelet_hears_of_the_health_of_each_gpu(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(NAMES))
    with grpc.insecure_channel(f"unix://{node.plugins}/{DRIVER}/dra.sock") as channel:
        stream = channel.unary_stream("/v1alpha1.DRAResourceHealth/NodeWatchResources")(b"", timeout=30)
        rows = [dict(fields(row)) for _number, row in fields(next(stream))]
        assert {texts(row[1], 2)[0]: row[2] for row in rows} == dict.fromkeys(NAMES, 1)
        node.fatal[UUIDS[1]] = "xid_79"
        node.says()
        (bad,) = (row for row in (dict(fields(row)) for _n, row in fields(next(stream))) if row[2] != 1)
        assert (texts(bad[1], 1), texts(bad[1], 2), bad[2]) == (["n1"], [NAMES[1]], 2)
        assert bad[5].decode() == "xid_79: it broke"


def test_a_claim_gets_the_gpus_that_the_scheduler_gave_it(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(NAMES))
    node.claim(NAMES[2], NAMES[0])
    assert node.prepare() == ([f"nvidia.com/gpu={UUIDS[2]}", f"nvidia.com/gpu={UUIDS[0]}"], "")


def test_a_claim_that_cannot_be_served_is_told_why(node: Node) -> None:
    node.fatal[UUIDS[1]] = "xid_79"
    node.says()
    until(lambda: node.free() == set(NAMES) - {NAMES[1]})
    node.claim(NAMES[0], NAMES[1])
    assert node.prepare()[0] == []
    assert f"{UUIDS[1]} is withheld: xid_79" in node.prepare()[1]
    node.claim("gpu-other")
    assert "not a GPU of n1" in node.prepare()[1]
    node.claim()
    assert "no allocation" in node.prepare()[1]
    node.claim(NAMES[0], uid="u2")
    assert "another one by now" in node.prepare()[1]
    del node.api.objects[f"{CLAIMS}/c1"]
    assert "404" in node.prepare()[1]
