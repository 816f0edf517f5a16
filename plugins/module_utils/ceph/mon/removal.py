# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitors that leave the map, judged against 'quorum_status'. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# With fewer than this, the first one that fails takes the cluster down.
FEWEST = 3


def known(found: Mapping[str, Any]) -> list[str]:
    """Names of the monitors in the map."""
    return [row["name"] for row in found["monmap"]["mons"]]


def plan(found: Mapping[str, Any], names: Sequence[str], fewer: bool) -> list[Step]:
    """What takes monitors out of the map.

    :param fewer: whether less than three may be left.
    :raises Refused: if the others would have no quorum, or are too few.
    """
    leaving = [name for name in names if name in known(found)]
    if not leaving:
        return []
    left = [name for name in known(found) if name not in leaving]
    serving = [name for name in found["quorum_names"] if name in left]
    if len(serving) * 2 <= len(left):
        raise Refused(
            f"of the monitors that would be left ({', '.join(left) or 'none'}) {len(serving)} are in the quorum, which "
            "is not a majority, so the cluster would stop. Nothing was changed",
            "bring the others back first",
        )
    if len(left) < FEWEST and not fewer:
        raise Refused(
            f"{len(left)} monitors would be left ({', '.join(left)}), and the first that fails would stop the cluster. "
            "Nothing was changed",
            "add others first, or allow fewer by name",
        )
    return [Step(f"take the monitor {name} out of the map", ("mon", "remove", name)) for name in leaving]
