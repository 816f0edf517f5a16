# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a job has, and what the agent's last report says of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Unclear

BOOT = "5c5d0d0e-29d3-4c9f-8ac1-f4f31a2cb4f1"
UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111")
ADDRESSES = ("0000:3b:00.0", "0000:af:00.0")
# Minor 1 comes first here: positions are not minors.
GRES = """\
AutoDetect=off
NodeName=n2 Name=gpu Type=a100 File=/dev/nvidia7
NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia1
NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-3
"""
XID = {"verdict": "fatal", "code": "xid_fatal", "text": "Xid 79 at 12:00", "remedy": "reboot the host"}
SLOW = {"verdict": "degraded", "code": "pcie_width", "text": "x8 of x16", "remedy": "reseat it"}


def part(index: int, *reasons: dict[str, Any], **more: Any) -> dict[str, Any]:
    verdicts = [reason["verdict"] for reason in reasons]
    verdict = "fatal" if "fatal" in verdicts else "degraded" if verdicts else "ok"
    return {
        "uuid": UUIDS[index],
        "pci_address": ADDRESSES[index],
        "verdict": verdict,
        "reasons": list(reasons),
        **more,
    }


class Host:
    """The files of a host below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.write("run/slurm/conf/gres.conf", GRES)
        for minor, address in enumerate(ADDRESSES):
            self.write(f"proc/driver/nvidia/gpus/{address}/information", f"Model: \t A\nDevice Minor: \t {minor}\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def report(self, *devices: dict[str, Any], reasons: tuple[dict[str, Any], ...] = (), **more: Any) -> None:
        rows = [{"minor": minor, "uuid": uuid} for minor, uuid in enumerate(UUIDS)]
        result = {
            "time": time.time(),
            "uptime": agent_result.uptime(),
            "boot_id": BOOT,
            "interval_s": 15,
            "facts": {"devices": rows},
            "health": {"verdict": "fatal", "reasons": list(reasons), "devices": list(devices)},
            **more,
        }
        self.write("run/baremetal-gpu/gpu.json", json.dumps(result))

    def verdicts(self, job_gpus: str) -> list[str]:
        minors = gpus.minors(job_gpus, "n1", str(self.root))
        return [gpu.verdict for gpu in gpus.judged(minors, str(self.root))[0]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_position_is_looked_up_in_the_order_of_gres_conf(host: Host) -> None:
    assert gpus.minors("0", "n1", str(host.root)) == [1]
    assert gpus.minors("0,1", "n1", str(host.root)) == [1, 0]
    assert gpus.minors("0-1", "n1", str(host.root)) == [1, 0]


@pytest.mark.parametrize("job_gpus", ["2", "0,x", "3-1", "", "0-9999", ",".join(["0"] * 200)])
def test_what_cannot_be_looked_up_is_said_to_be_unclear(host: Host, job_gpus: str) -> None:
    with pytest.raises(Unclear):
        gpus.minors(job_gpus, "n1", str(host.root))


def test_without_gres_conf_or_with_a_strange_one_it_is_unclear(host: Host) -> None:
    (host.root / "run/slurm/conf/gres.conf").write_text("NodeName=n1 Name=gpu Count=2\n")
    with pytest.raises(Unclear, match="without a device file"):
        gpus.minors("0", "n1", str(host.root))
    (host.root / "run/slurm/conf/gres.conf").unlink()
    with pytest.raises(Unclear, match=r"no gres\.conf"):
        gpus.minors("0", "n1", str(host.root))


def test_the_verdict_is_that_of_the_gpu_with_this_minor(host: Host) -> None:
    host.report(part(0, XID), part(1))
    assert host.verdicts("0") == ["ok"]
    assert host.verdicts("1") == ["fatal"]
    assert host.verdicts("0,1") == ["ok", "fatal"]


def test_a_gpu_that_nvml_has_lost_is_found_by_its_address(host: Host) -> None:
    host.report(part(0, XID, uuid=None), part(1), facts={"devices": [{"error": "gone"}]})
    assert host.verdicts("1") == ["fatal"]
    assert host.verdicts("0") == ["ok"]


def test_only_what_is_fatal_is_a_reason(host: Host) -> None:
    host.report(part(0, SLOW, XID), part(1, SLOW))
    judged, why = gpus.judged([0, 1], str(host.root))
    assert why == ""
    assert [gpu.verdict for gpu in judged] == ["fatal", "degraded"]
    assert judged[0].reasons == (gpus.Reason("xid_fatal", "Xid 79 at 12:00", "reboot the host", None),)
    assert judged[1].reasons == ()


def test_a_node_that_is_out_of_order_as_a_whole_has_no_usable_gpu(host: Host) -> None:
    host.report(part(0), part(1), reasons=({**XID, "code": "driver_gone"},))
    assert host.verdicts("0,1") == ["fatal", "fatal"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda host: (host.root / "run/baremetal-gpu/gpu.json").unlink(), "there is none"),
        (lambda host: host.write("run/baremetal-gpu/gpu.json", "{"), "not the JSON"),
        (lambda host: host.report(part(0, XID), time=time.time() - 3600), "s old"),
        (lambda host: host.report(part(0, XID), boot_id="another"), "another boot"),
        (lambda host: host.report(part(0, XID), health={"verdict": "fatal"}), "no readable report"),
    ],
)
def test_a_report_that_cannot_be_relied_on_says_nothing_of_a_gpu(host: Host, spoil: Any, why: str) -> None:
    host.report(part(0, XID), part(1))
    spoil(host)
    judged, told = gpus.judged([0], str(host.root))
    assert judged[0].verdict == "unknown"
    assert why in told


def test_what_a_report_says_is_one_printable_line(host: Host) -> None:
    host.report(part(0, {**XID, "text": "a\nprint b\x1b[2J" + "c" * 5000}), part(1))
    (gpu,), _why = gpus.judged([0], str(host.root))
    assert gpu.reasons[0].text.isprintable()
    assert len(gpu.reasons[0].text) <= 300
