# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent's journal says of verdicts: each change once, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.told import Told

UUID = "GPU-8f6cd1ee-5b3d-4c0a-9e3f-2b1f0d6c7a10"


def reason(code: str, verdict: str = "fatal", text: str = "the GPU has fallen off the bus") -> dict[str, Any]:
    return {"code": code, "verdict": verdict, "text": text, "remedy": "reboot the host"}


def report(*of_gpu: dict[str, Any], host: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    device = {"uuid": UUID, "index": 0, "pci_address": "0000:3b:00.0", "reasons": list(of_gpu)}
    return {"reasons": list(host), "devices": [device]}


def test_a_fatal_verdict_is_a_critical_line_in_the_journal_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()
    told.tell(report())
    assert capsys.readouterr().err == ""
    for _look in range(3):
        told.tell(report(reason("gpu_lost")))
    assert capsys.readouterr().err == (
        f"<2>GPU 0 ({UUID}, 0000:3b:00.0) is fatal: gpu_lost: the GPU has fallen off the bus. To do: reboot the host\n"
    )
    told.tell(report())
    assert capsys.readouterr().err == f"<5>GPU 0 ({UUID}, 0000:3b:00.0): gpu_lost is over\n"


def test_a_reason_that_becomes_worse_is_told_again_and_one_of_the_host_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = Told()
    told.tell(report(reason("pcie_width", "degraded")))
    told.tell(report(reason("pcie_width"), host=(reason("driver_gone"),)))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:3] for line in lines] == ["<4>", "<2>", "<2>"]
    assert lines[1].startswith("<2>the host is fatal: driver_gone")


def test_what_a_gpu_makes_up_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    Told().tell(report(reason("gpu_lost", text="a\n<0>b\x1b[2J")))
    (line,) = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line
