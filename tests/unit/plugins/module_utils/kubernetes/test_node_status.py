# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes shows of a node's GPUs, at a stand-in for the API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpu
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.node_status import NodeStatus
from tests.simulators.kube_api import KubeApi
from tests.unit.plugins.module_utils.kubernetes.agent_report import certificate

NODE = "/api/v1/nodes/n1"
READY = {"type": "Ready", "status": "True"}
WELL = {name: Gpu(name, "") for name in ("GPU-0", "GPU-1")}
FATAL = {**WELL, "GPU-1": Gpu("GPU-1", "xid_79", "it fell off the bus")}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubeApi]:
    made = KubeApi(*certificate(tmp_path))
    made.objects[NODE] = {"metadata": {"resourceVersion": "1"}, "status": {"conditions": [READY]}}
    yield made
    made.close()


@pytest.fixture
def status(api: KubeApi, tmp_path: Path) -> NodeStatus:
    return NodeStatus(Api(Settings(api.url, str(certificate(tmp_path)[0]), None)), "n1")


def shown(api: KubeApi) -> dict[str, Any]:
    ready, condition = api.objects[NODE]["status"]["conditions"]
    assert ready == READY
    assert condition["type"] == "GpuHealthy"
    return condition


def events(api: KubeApi) -> list[str]:
    return [one["message"] for path, one in api.objects.items() if "/events/" in path]


def test_a_gpu_that_is_withheld_is_named_with_why_and_so_is_its_return(api: KubeApi, status: NodeStatus) -> None:
    status.show(WELL, "", 1000.0)
    assert (shown(api)["status"], events(api)) == ("True", [])
    status.show(FATAL, "", 1001.0)
    assert (shown(api)["status"], shown(api)["lastTransitionTime"]) == ("False", "1970-01-01T00:16:41Z")
    assert "1 of 2 GPUs are withheld: GPU-1: xid_79, it fell off the bus" in shown(api)["message"]
    status.show(WELL, "", 1002.0)
    assert shown(api)["status"] == "True"
    assert events(api) == ["GPU-1: xid_79, it fell off the bus", "GPU-1 is well again"]


def test_a_report_that_cannot_be_used_is_shown_as_unknown(api: KubeApi, status: NodeStatus) -> None:
    status.show(WELL, "it is 90 s old", 1000.0)
    assert (shown(api)["status"], shown(api)["reason"]) == ("Unknown", "NoReport")
    assert "it is 90 s old" in shown(api)["message"]


def test_what_does_not_change_is_written_as_a_heartbeat_alone(api: KubeApi, status: NodeStatus) -> None:
    for now in (1000.0, 1001.0, 1299.0):
        status.show(WELL, "", now)
    assert len(api.writes) == 1
    status.show(WELL, "", 1300.0)
    assert len(api.writes) == 2
    assert shown(api)["lastTransitionTime"] == "1970-01-01T00:16:40Z"


def test_an_api_server_that_is_away_is_told_later(api: KubeApi, status: NodeStatus) -> None:
    api.down = True
    status.show(FATAL, "", 1000.0)
    assert "503" in status.problem
    api.down = False
    status.show(FATAL, "", 1001.0)
    assert "503" in status.problem
    status.show(FATAL, "", 1005.0)
    assert (status.problem, shown(api)["status"], len(events(api))) == ("", "False", 1)


def test_a_plugin_lowers_what_is_allocatable_and_kubelet_alone_raises_it(api: KubeApi, tmp_path: Path) -> None:
    status = NodeStatus(Api(Settings(api.url, str(certificate(tmp_path)[0]), None)), "n1", of_plugin=True)
    # Before kubelet knows of any GPU there is no number to lower.
    status.show(FATAL, "", 1000.0)
    assert "allocatable" not in api.objects[NODE]["status"]
    api.objects[NODE]["status"]["allocatable"] = {"cpu": "8", "nvidia.com/gpu": "2"}
    status.show(WELL, "", 1001.0)
    status.show(FATAL, "", 1002.0)
    assert api.objects[NODE]["status"]["allocatable"] == {"cpu": "8", "nvidia.com/gpu": "1"}
    status.show(WELL, "", 1003.0)
    assert api.objects[NODE]["status"]["allocatable"]["nvidia.com/gpu"] == "1"


def test_with_the_driver_what_is_allocatable_is_not_the_nodes_number(api: KubeApi, status: NodeStatus) -> None:
    api.objects[NODE]["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    status.show(FATAL, "", 1000.0)
    assert api.objects[NODE]["status"]["allocatable"] == {"nvidia.com/gpu": "2"}
