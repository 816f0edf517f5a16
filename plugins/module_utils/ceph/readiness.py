# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is missing until a cluster counts as working. Pure: from what Ceph says to a list of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph

# Of 'ceph fs dump': the state of a rank that serves.
SERVING = "up:active"
# Health checks that stay for two weeks after a daemon died, however well it has been since. The daemons themselves are
# looked at. https://docs.ceph.com/en/latest/rados/operations/health-checks/#recent-crash
PAST = ("RECENT_CRASH", "RECENT_MGR_MODULE_CRASH")


def gather(ceph: Ceph, expected: Mapping[str, Any]) -> dict[str, Any]:
    """What the cluster says: answers of 'status' and, where they are asked about, 'mgr dump', 'osd dump', 'fs dump'."""
    everything = not any(expected.get(key) is not None for key in ("mons", "mgrs", "osds", "filesystems"))
    return {
        "status": ceph.json("status"),
        "mgr": ceph.json("mgr", "dump") if everything or expected.get("mgrs") is not None else None,
        "osd": ceph.json("osd", "dump") if everything or expected.get("osds") is not None else None,
        "fs": ceph.json("fs", "dump") if everything or expected.get("filesystems") is not None else None,
    }


def summary(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The same in few words: fsid, mons, pgs, health, and as far as asked mgrs, osds, filesystems and standbys."""
    status, mgr, osd, fs = answers["status"], answers["mgr"], answers["osd"], answers["fs"]
    states = {row["state_name"]: row["count"] for row in status["pgmap"].get("pgs_by_state", [])}
    found: dict[str, Any] = {
        "fsid": status["fsid"],
        "mons": sorted(status["quorum_names"]),
        "pgs": {"total": status["pgmap"].get("num_pgs", 0), "states": states},
        "health": {
            "status": status["health"]["status"],
            "checks": {
                code: check["summary"]["message"]
                for code, check in status["health"]["checks"].items()
                if not check.get("muted")
            },
        },
    }
    if mgr:
        found["mgrs"] = {
            "active": mgr["active_name"] if mgr["available"] else None,
            "standbys": sorted(row["name"] for row in mgr["standbys"]),
            "failed_modules": _failed_modules(mgr),
        }
    if osd:
        found["osds"] = [
            {"id": row["osd"], "up": bool(row["up"]), "in": bool(row["in"]), "uuid": row["uuid"]} for row in osd["osds"]
        ]
    if fs:
        found["filesystems"] = [_filesystem(row["mdsmap"]) for row in fs["filesystems"]]
        found["standbys"] = sorted(row["name"] for row in fs["standbys"])
    return found


def _filesystem(mdsmap: Mapping[str, Any]) -> dict[str, Any]:
    ranks = {row["rank"]: row["state"] for row in mdsmap["info"].values() if row["rank"] >= 0}
    return {
        "name": mdsmap["fs_name"],
        "ranks": {str(rank): ranks.get(rank, "missing") for rank in range(mdsmap["max_mds"])},
        "standby_wanted": mdsmap.get("standby_count_wanted", 0),
    }


def _failed_modules(mgr: Mapping[str, Any]) -> dict[str, str]:
    """Modules that are switched on and cannot run, with the reason."""
    wanted = set(mgr["modules"])
    for names in mgr.get("always_on_modules", {}).values():
        wanted |= set(names)
    return {
        row["name"]: (row.get("error_string") or "it cannot run").strip().splitlines()[-1]
        for row in mgr["available_modules"]
        if row["name"] in wanted and not row["can_run"]
    }


def problems(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What is not as expected.

    :param found: a summary.
    :param expected: fsid, mons (names), mgrs (how many), osds (numbers), filesystems (names), standbys (how many),
        health (whether it must be clean, but for PAST), ignored (health checks that do not count). What is left out is
        not looked at.
    """
    wrong = []
    if expected.get("fsid") and found["fsid"] != expected["fsid"]:
        wrong.append(f"it is the cluster {found['fsid']}, not {expected['fsid']}")
    if expected.get("mons") is not None:
        missing = sorted(set(expected["mons"]) - set(found["mons"]))
        extra = sorted(set(found["mons"]) - set(expected["mons"]))
        wrong += [f"monitors not in the quorum: {', '.join(missing)}"] if missing else []
        wrong += [f"monitors in the quorum that nobody expects: {', '.join(extra)}"] if extra else []
    if expected.get("mgrs") is not None:
        wrong += _problems_of_mgrs(found["mgrs"], expected["mgrs"])
    if expected.get("osds") is not None:
        wrong += _problems_of_osds(found["osds"], expected["osds"])
        wrong += _problems_of_pgs(found["pgs"])
    if expected.get("filesystems") is not None:
        wrong += _problems_of_filesystems(found, expected["filesystems"])
    if len(found.get("standbys", ())) < (expected.get("standbys") or 0):
        wrong.append(f"{len(found['standbys'])} of {expected['standbys']} MDS stand by")
    if expected.get("health"):
        wrong += [
            f"{code}: {text}"
            for code, text in found["health"]["checks"].items()
            if code not in (*PAST, *expected.get("ignored", ()))
        ]
    return wrong


def _problems_of_mgrs(mgrs: Mapping[str, Any], count: int) -> list[str]:
    there = len(mgrs["standbys"]) + bool(mgrs["active"])
    wrong = [] if mgrs["active"] else ["no mgr is active"]
    if mgrs["active"] and there < count:
        wrong.append(f"{there} of {count} mgrs run")
    wrong += [f"the mgr module {name} does not load: {why}" for name, why in sorted(mgrs["failed_modules"].items())]
    return wrong


def _problems_of_osds(osds: list[dict[str, Any]], expected: list[int]) -> list[str]:
    wrong = []
    states = {row["id"]: row for row in osds}
    for number in sorted(expected):
        row = states.get(number)
        if row is None:
            wrong.append(f"osd.{number} is not known to the monitors")
        elif not row["up"]:
            wrong.append(f"osd.{number} is down")
        elif not row["in"]:
            wrong.append(f"osd.{number} is out")
    wrong += [
        f"osd.{number} is in the map and on no host of the inventory" for number in sorted(set(states) - set(expected))
    ]
    return wrong


def _problems_of_pgs(pgs: Mapping[str, Any]) -> list[str]:
    # Scrubbing goes on while a placement group is active and clean.
    bad = {state: count for state, count in pgs["states"].items() if not state.startswith("active+clean")}
    return [f"{count} placement groups are {state}" for state, count in sorted(bad.items())]


def _problems_of_filesystems(found: Mapping[str, Any], expected: list[str]) -> list[str]:
    wrong = []
    there = {row["name"]: row for row in found["filesystems"]}
    for name in expected:
        if name not in there:
            wrong.append(f"there is no file system {name}")
            continue
        wrong += [
            f"rank {rank} of {name} is {state}" for rank, state in there[name]["ranks"].items() if state != SERVING
        ]
    return wrong
