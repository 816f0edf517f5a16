# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a job in its container: what is added to the configuration of the OCI runtime."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import command, container

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
SPECIFICATION: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm", "hostPath": "/dev/host-uvm"}],
        "mounts": [{"hostPath": f"{LIBRARY}.550", "containerPath": LIBRARY, "options": ["ro", "nosuid", "rbind"]}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook"]}],
    },
}
BUNDLE: dict[str, Any] = {
    "ociVersion": "1.0.0",
    "process": {"args": ["train"], "env": ["PATH=/bin", "SLURM_STEP_GPUS=1"]},
    "root": {"path": "/homes/alice/rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
}


def mounted(found: dict[str, Any]) -> dict[str, str]:
    """What is mounted in a container: path there -> path of the host."""
    return {row["destination"]: row["source"] for row in found["mounts"]}


def with_usable(*paths: str, bundle: dict[str, Any] = BUNDLE) -> dict[str, Any]:
    return container.with_gpus(bundle, SPECIFICATION, paths.__contains__)


def test_a_container_has_the_gpus_of_its_job_and_no_other() -> None:
    before = copy.deepcopy(BUNDLE)
    found = with_usable("/dev/nvidia1", "/dev/nvidiactl", "/dev/host-uvm")
    assert mounted(found) == {
        "/proc": "proc",
        "/dev/nvidia1": "/dev/nvidia1",
        "/dev/nvidiactl": "/dev/nvidiactl",
        "/dev/nvidia-uvm": "/dev/host-uvm",
        LIBRARY: f"{LIBRARY}.550",
    }
    devices = [row for row in found["mounts"] if row["destination"].startswith("/dev/")]
    assert all("bind" in row["options"] and "nodev" not in row["options"] for row in devices)
    assert found["process"]["env"] == ["PATH=/bin", "SLURM_STEP_GPUS=1", "NVIDIA_VISIBLE_DEVICES=void"]
    assert found["hooks"] == {"createContainer": [{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook"]}]}
    assert before == BUNDLE


def test_a_container_with_both_gpus_has_each_once() -> None:
    found = with_usable("/dev/nvidia0", "/dev/nvidia1")
    assert [row["destination"] for row in found["mounts"]].count("/dev/nvidia0") == 1
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= set(mounted(found))


def test_without_a_gpu_nothing_is_added() -> None:
    assert with_usable("/dev/nvidiactl") == BUNDLE


def test_what_the_bundle_has_itself_stays() -> None:
    own = copy.deepcopy(BUNDLE)
    own["mounts"].append({"destination": LIBRARY, "type": "none", "source": "/opt/mine", "options": ["bind"]})
    own["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    own["hooks"] = {"createContainer": [{"path": "/opt/hook"}]}
    found = with_usable("/dev/nvidia1", bundle=own)
    assert mounted(found)[LIBRARY] == "/opt/mine"
    assert "NVIDIA_VISIBLE_DEVICES=void" not in found["process"]["env"]
    assert [row["path"] for row in found["hooks"]["createContainer"]] == ["/opt/hook", "/usr/bin/nvidia-ctk"]


class Step:
    """The bundle that slurmstepd has made of a job's, on a node."""

    def __init__(self, base: Path) -> None:
        self.root, self.bundle = base / "host", base / "task-0"
        self.bundle.mkdir()
        (self.root / "etc/cdi").mkdir(parents=True)
        self.write(BUNDLE)
        self.specify(SPECIFICATION)

    def write(self, document: Any) -> None:
        (self.bundle / "config.json").write_text(json.dumps(document))

    def specify(self, document: Any) -> None:
        (self.root / "etc/cdi/nvidia.json").write_text(json.dumps(document))

    def add_gpus(self) -> dict[str, Any]:
        container.add_gpus(str(self.bundle), str(self.root))
        found: dict[str, Any] = json.loads((self.bundle / "config.json").read_text())
        return found


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setattr(container.with_gpus, "__defaults__", (lambda path: path == "/dev/nvidia1",))
    return Step(tmp_path)


def test_the_configuration_of_the_step_is_replaced(step: Step) -> None:
    assert "/dev/nvidia1" in mounted(step.add_gpus())


def test_a_job_without_gpus_needs_no_specification(step: Step) -> None:
    os.unlink(step.root / "etc/cdi/nvidia.json")
    alone = {**BUNDLE, "process": {**BUNDLE["process"], "env": ["PATH=/bin"]}}
    step.write(alone)
    assert step.add_gpus() == alone


def test_a_container_has_no_runtime_directory_of_the_login_unless_it_is_mounted(step: Step) -> None:
    os.unlink(step.root / "etc/cdi/nvidia.json")
    alone = {**BUNDLE, "process": {**BUNDLE["process"], "env": ["PATH=/bin", "XDG_RUNTIME_DIR=/run/user/1001"]}}
    step.write(alone)
    assert step.add_gpus()["process"]["env"] == ["PATH=/bin"]
    mounts = [*(BUNDLE.get("mounts") or ()), {"destination": "/run/user/1001", "source": "/x", "type": "none"}]
    step.write({**alone, "mounts": mounts})
    assert step.add_gpus()["process"]["env"] == alone["process"]["env"]


def test_a_job_with_gpus_is_told_that_the_node_has_no_specification(step: Step) -> None:
    os.unlink(step.root / "etc/cdi/nvidia.json")
    with pytest.raises(Refused, match=r"no /etc/cdi/nvidia\.json.*To do: .*gpuops up --tags containers"):
        step.add_gpus()


@pytest.mark.parametrize(
    ("bundle", "specification"),
    [
        ({}, SPECIFICATION),
        ([], SPECIFICATION),
        ({"process": {"env": 5}}, SPECIFICATION),
        ({**BUNDLE, "mounts": [5]}, SPECIFICATION),
        (BUNDLE, {}),
        (BUNDLE, {"devices": 5}),
        (BUNDLE, {**SPECIFICATION, "containerEdits": {"mounts": [{}]}}),
    ],
)
def test_what_is_no_bundle_or_no_specification_is_refused(step: Step, bundle: Any, specification: Any) -> None:
    step.write(bundle)
    step.specify(specification)
    with pytest.raises(Refused, match="not as it should be"):
        step.add_gpus()


def test_the_user_reads_why_a_container_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["container", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


def test_a_device_that_is_not_there_may_not_be_opened_and_one_without_a_driver_may(tmp_path: Path) -> None:
    assert not container.may_open(str(tmp_path / "nothing"))
    assert container.may_open("/dev/null")
