# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much a cluster can hold, and whether what was promised fits: a full cluster stops everybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import shown
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


@dataclass(frozen=True)
class Capacity:
    """In bytes: of all disks, what other pools take of that, copies of each byte, the share that may be used."""

    raw: int
    others: int
    copies: int
    ratio: float

    @property
    def usable(self) -> int:
        """What users can store in the pool before the cluster warns that disks are nearly full."""
        return max(0, int((self.raw * self.ratio - self.others) / self.copies))


def capacity(df: Mapping[str, Any], copies: int, ratio: float, pools: Iterable[str]) -> Capacity:
    """The capacity for what is in some pools.

    :param df: the answer of 'ceph df detail'.
    :param copies: size of the data pool.
    :param ratio: of the disks that may be full; 0.85 is where Ceph begins to warn.
    :param pools: names of the pools that the promised data lies in; all others count as taken.
    """
    ours = set(pools)
    others = sum(pool["stats"]["bytes_used"] for pool in df["pools"] if pool["name"] not in ours)
    return Capacity(df["stats"]["total_bytes"], others, copies, ratio)


def read(ceph: Ceph, pool: str) -> Capacity:
    """The capacity for what is in a pool, up to where Ceph warns that disks are nearly full."""
    # Kept in single precision, which shows as 0.8500000238418579.
    ratio = round(float(ceph.json("osd", "dump")["nearfull_ratio"]), 4)
    copies = int(ceph.json("osd", "pool", "get", pool, "size")["size"])
    return capacity(ceph.json("df", "detail"), copies, ratio, [pool])


def check(found: Capacity, promised: Mapping[str, int], overcommit: float) -> None:
    """Whether what is promised to each (name -> bytes) fits.

    :param overcommit: how many times the usable capacity may be promised; 1 promises nothing that is not there.
    :raises Refused: with the numbers, if it does not fit.
    """
    without = sorted(name for name, size in promised.items() if not size)
    if without and overcommit <= 1:
        raise Refused(
            f"{', '.join(without)} would have no quota, and one of them could fill the cluster for all",
            "give each a size, or allow promising more than there is (overcommit above 1)",
        )
    total = sum(promised.values())
    if total > found.usable * overcommit:
        largest = sorted(promised, key=lambda name: -promised[name])[:3]
        raise Refused(
            f"the quotas add up to {shown(total)}, and {shown(int(found.usable * overcommit))} may be promised: "
            f"{shown(found.raw)} of disks x {found.ratio:g}, less {shown(found.others)} of other pools, / "
            f"{found.copies} copies = {shown(found.usable)} usable, x overcommit {overcommit:g}. Largest: "
            + ", ".join(f"{name} {shown(promised[name])}" for name in largest),
            "make quotas smaller, add disks, or name an overcommit that covers it",
        )
