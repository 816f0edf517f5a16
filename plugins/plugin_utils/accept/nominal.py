# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What models of GPUs are sold with, and how much of it a sound one is expected to reach here.

Only data. The figures are those of NVIDIA's data sheets: dense, at boost clock; BF16 on tensor cores, FP32 and FP64
without. A model that is not here is compared with its like in the fleet alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Nominal:
    """10^12 operations a second, and 10^9 bytes a second of memory; None where the data sheet has none."""

    fp32: float | None
    fp64: float | None
    bf16: float | None
    memory: float
    source: str

    def of(self, kind: str) -> float | None:
        value: float | None = getattr(self, kind)
        return value


_SHEET = "NVIDIA {} data sheet"

# By the name that the driver gives the GPU.
NOMINAL: dict[str, Nominal] = {
    "Tesla P100-SXM2-16GB": Nominal(10.6, 5.3, None, 732, _SHEET.format("Tesla P100")),
    "Tesla P100-PCIE-16GB": Nominal(9.3, 4.7, None, 732, _SHEET.format("Tesla P100")),
    "Tesla V100-SXM2-16GB": Nominal(15.7, 7.8, None, 900, _SHEET.format("V100")),
    "Tesla V100-SXM2-32GB": Nominal(15.7, 7.8, None, 900, _SHEET.format("V100")),
    "Tesla V100-PCIE-16GB": Nominal(14.0, 7.0, None, 900, _SHEET.format("V100")),
    "Tesla V100-PCIE-32GB": Nominal(14.0, 7.0, None, 900, _SHEET.format("V100")),
    "Tesla T4": Nominal(8.1, None, None, 320, _SHEET.format("T4")),
    "NVIDIA A10": Nominal(31.2, None, 125, 600, _SHEET.format("A10")),
    "NVIDIA A30": Nominal(10.3, 5.2, 165, 933, _SHEET.format("A30")),
    "NVIDIA A100-PCIE-40GB": Nominal(19.5, 9.7, 312, 1555, _SHEET.format("A100 40GB")),
    "NVIDIA A100-SXM4-40GB": Nominal(19.5, 9.7, 312, 1555, _SHEET.format("A100 40GB")),
    "NVIDIA A100 80GB PCIe": Nominal(19.5, 9.7, 312, 1935, _SHEET.format("A100 80GB")),
    "NVIDIA A100-SXM4-80GB": Nominal(19.5, 9.7, 312, 2039, _SHEET.format("A100 80GB")),
    "NVIDIA L4": Nominal(30.3, None, 121, 300, _SHEET.format("L4")),
    "NVIDIA L40S": Nominal(91.6, None, 362, 864, _SHEET.format("L40S")),
    "NVIDIA H100 PCIe": Nominal(51, 26, 756, 2000, _SHEET.format("H100")),
    "NVIDIA H100 80GB HBM3": Nominal(67, 34, 989, 3350, _SHEET.format("H100")),
    "NVIDIA H200": Nominal(67, 34, 989, 4800, _SHEET.format("H200")),
}

# The share of it below which a GPU fails by itself, without any other to compare it with. These are wide on purpose:
# they find a GPU that is far off, and the fleet's own median finds the rest. The kernels here are plain ones. On Hopper
# and later, mma.sync reaches only a part of what newer instructions do.
FLOOR = {"fp32": 0.5, "fp64": 0.5, "bf16": 0.3, "memory": 0.6}

# PCI Express Base Specification: 10^9 bytes a second of a lane in one direction, after its encoding.
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
PCIE_FLOOR = 0.6
