# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""File systems of Ceph: what is wanted of one against 'fs dump'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# Bit of mdsmap's flags; see CEPH_MDSMAP_ALLOW_STANDBY_REPLAY in Ceph's include/ceph_fs.h.
STANDBY_REPLAY = 1 << 5
SETTINGS = ("max_mds", "standby_count_wanted", "allow_standby_replay")


def view(dump: Mapping[str, Any], pools: Mapping[int, str]) -> dict[str, Any]:
    """'fs dump' in the words of the modules: {standbys, filesystems by name}."""
    found = {}
    for entry in dump["filesystems"]:
        mdsmap = entry["mdsmap"]
        found[mdsmap["fs_name"]] = {
            "name": mdsmap["fs_name"],
            "metadata_pool": pools.get(mdsmap["metadata_pool"], str(mdsmap["metadata_pool"])),
            "data_pools": [pools.get(pool, str(pool)) for pool in mdsmap["data_pools"]],
            "max_mds": mdsmap["max_mds"],
            "standby_count_wanted": mdsmap["standby_count_wanted"],
            "allow_standby_replay": bool(mdsmap["flags"] & STANDBY_REPLAY),
            "daemons": [
                {"name": mds["name"], "rank": mds["rank"], "state": mds["state"].removeprefix("up:")}
                for mds in sorted(mdsmap["info"].values(), key=lambda mds: (mds["rank"], mds["name"]))
            ],
        }
    return {"standbys": sorted(mds["name"] for mds in dump["standbys"]), "filesystems": found}


def read(ceph: Ceph) -> dict[str, Any]:
    """All file systems, the MDS that stand by, and the names of all pools."""
    pools = {pool["pool_id"]: pool["pool_name"] for pool in ceph.json("osd", "pool", "ls", "detail")}
    return {**view(ceph.json("fs", "dump"), pools), "pools": sorted(pools.values())}


def plan(found: Mapping[str, Any], name: str, wanted: Mapping[str, Any], pretend: bool = False) -> list[Step]:
    """What brings a file system into its state; what is None in ``wanted`` stays as it is.

    :param pretend: pools that are not there may be what an earlier task only announced.
    :raises Refused: if it cannot work.
    """
    given = {key: value for key, value in wanted.items() if value is not None}
    there = found["filesystems"].get(name)
    data = given.get("data_pools") or []
    needed = [pool for pool in (given.get("metadata_pool"), *data) if pool and pool not in found["pools"]]
    if needed and not pretend:
        raise Refused(f"the file system {name} needs the pool {', '.join(needed)}", "make it with ceph_pool first")
    steps = []
    if not there:
        if not given.get("metadata_pool") or not data:
            raise Refused(f"the file system {name} is not there", "give metadata_pool and data_pools to make it")
        if not found["standbys"] and not pretend:
            raise Refused(
                f"no MDS stands by, so the file system {name} would be in error from its first second",
                "start an MDS first (role ceph_mds)",
            )
        for other in found["filesystems"].values():
            shared = {other["metadata_pool"], *other["data_pools"]} & {given["metadata_pool"], *data}
            if shared:
                raise Refused(f"the file system {other['name']} uses {', '.join(sorted(shared))}", "use other pools")
        steps.append(Step(f"make the file system {name}", ("fs", "new", name, given["metadata_pool"], data[0])))
    elif given.get("metadata_pool", there["metadata_pool"]) != there["metadata_pool"]:
        raise Refused(f"the file system {name} keeps its metadata in {there['metadata_pool']}, which cannot be changed")
    elif data and data[0] != there["data_pools"][0]:
        raise Refused(f"the first data pool of {name} is {there['data_pools'][0]}, which cannot be changed")
    steps += [
        Step(f"add the data pool {pool} to {name}", ("fs", "add_data_pool", name, pool))
        for pool in data[1:]
        if not there or pool not in there["data_pools"]
    ]
    for key in SETTINGS:
        if key in given and (not there or there[key] != given[key]):
            text = str(given[key]).lower()
            steps.append(Step(f"set {key} of {name} to {text}", ("fs", "set", name, key, text)))
    return steps


def plan_removal(found: Mapping[str, Any], name: str, confirmed: str) -> list[Step]:
    """What removes a file system; its pools stay.

    :raises Refused: unless its name is written a second time.
    """
    if name not in found["filesystems"]:
        return []
    if confirmed != name:
        raise Refused(f"removing the file system {name} loses every file name in it", f"confirm: {name}")
    return [
        Step(f"stop the file system {name}", ("fs", "fail", name)),
        Step(f"remove the file system {name}", ("fs", "rm", name, "--yes-i-really-mean-it")),
    ]
