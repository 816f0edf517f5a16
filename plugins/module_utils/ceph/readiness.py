# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is missing until a cluster counts as working. Pure: from what Ceph says to problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

# Of 'ceph fs dump': the state of a rank that serves.
SERVING = "up:active"
# Health checks that stay for two weeks after a daemon died, however well it has been since. The daemons themselves are
# looked at. https://docs.ceph.com/en/latest/rados/operations/health-checks/#recent-crash
PAST = ("RECENT_CRASH", "RECENT_MGR_MODULE_CRASH")
# Warnings of settings and versions that the roles see to. A cluster with one is not as they leave it.
OURS = (
    "AUTH_INSECURE_GLOBAL_ID_RECLAIM",
    "AUTH_INSECURE_GLOBAL_ID_RECLAIM_ALLOWED",
    "MGR_MODULE_DEPENDENCY",
    "MON_CLOCK_SKEW",
    "MON_MSGR2_NOT_ENABLED",
    "POOL_NO_REDUNDANCY",
    "TOO_FEW_OSDS",
)
WARNING = "HEALTH_WARN"
CHECKS = "https://docs.ceph.com/en/latest/rados/operations/health-checks/"
PGS_REMEDY = (
    "`sudo ceph pg dump_stuck` on a monitor's host names them and their OSDs; start OSDs that are down, and wait while "
    "`sudo ceph -s` shows a recovery"
)
ROOM_REMEDY = "see `df -h /var/lib/ceph` on the hosts of the monitors; free space there, or give it a disk of its own"


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
            "warnings": sorted(
                code for code, check in status["health"]["checks"].items() if check.get("severity") == WARNING
            ),
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


def problems(current: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Problem]:
    """What is not as expected.

    :param current: a summary.
    :param expected: fsid, mons (names), mgrs (how many), osds (numbers), filesystems (names), standbys (how many),
        health (whether it must be clean, but for PAST), warnings (whether those of Ceph count, too; those of OURS
        always do), ignored (health checks that do not count). What is left out is not looked at.
    """
    rows: list[Problem] = []
    if expected.get("fsid") and current["fsid"] != expected["fsid"]:
        cause = f"it is the cluster {current['fsid']}, not {expected['fsid']}"
        remedy = "see which cluster /etc/ceph/ceph.conf of the host names"
        rows.append(Problem("other_cluster", "ceph", cause, current["fsid"], remedy))
    if expected.get("mons") is not None:
        rows += _problems_of_mons(current["mons"], expected["mons"])
    if expected.get("mgrs") is not None:
        rows += _problems_of_mgrs(current["mgrs"], expected["mgrs"])
    if expected.get("osds") is not None:
        rows += _problems_of_osds(current["osds"], expected["osds"])
        rows += _problems_of_pgs(current["pgs"])
    if expected.get("filesystems") is not None:
        rows += _problems_of_filesystems(current, expected["filesystems"])
    standbys = len(current.get("standbys", ()))
    if standbys < (expected.get("standbys") or 0):
        cause = f"{standbys} of {expected['standbys']} MDS stand by"
        rows.append(Problem("mds_standby", "mds", cause, str(standbys), _daemons("mds")))
    if expected.get("health"):
        rows += [
            Problem("health_check", code, f"{code}: {text}", text, remedy_for(code))
            for code, text in current["health"]["checks"].items()
            if code not in (*PAST, *expected.get("ignored", ())) and not _only_warns(code, current, expected)
        ]
    return rows


def warnings(current: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What is told of the health and does not count, each with what to do."""
    return [
        f"Ceph warns: {code}: {text}. To do: {remedy_for(code)}"
        for code, text in current["health"]["checks"].items()
        if expected.get("health") and code not in expected.get("ignored", ()) and _only_warns(code, current, expected)
    ]


def _only_warns(code: str, current: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return not expected.get("warnings", True) and code in current["health"].get("warnings", ()) and code not in OURS


def remedy_for(code: str) -> str:
    """What an administrator does about a health check."""
    if code.startswith("MON_DISK_"):
        return ROOM_REMEDY
    where = f"{CHECKS}#{code.lower().replace('_', '-')}"
    return f"`sudo ceph health detail` on a monitor's host names what it is about, and {where} what to do"


def _daemons(kind: str) -> str:
    """What to look at where daemons of a kind are missing."""
    return f"see 'sudo systemctl status ceph-{kind}@*' on their hosts"


def _problems_of_mons(current: list[str], expected: list[str]) -> list[Problem]:
    missing = ", ".join(sorted(set(expected) - set(current)))
    extra = ", ".join(sorted(set(current) - set(expected)))
    rows = []
    if missing:
        cause = f"monitors not in the quorum: {missing}"
        rows.append(Problem("mon_missing", "mon", cause, missing, _daemons("mon")))
    if extra:
        cause = f"unexpected monitors in the quorum: {extra}"
        remedy = "add their hosts to ceph_mons, or remove them with the playbook baremetal.gpu.storage_remove_mon"
        rows.append(Problem("mon_unexpected", "mon", cause, extra, remedy))
    return rows


def _problems_of_mgrs(mgrs: Mapping[str, Any], count: int) -> list[Problem]:
    running = len(mgrs["standbys"]) + bool(mgrs["active"])
    rows = []
    if not mgrs["active"]:
        rows.append(Problem("mgr_missing", "mgr", "no mgr is active", "", _daemons("mgr")))
    elif running < count:
        rows.append(Problem("mgr_missing", "mgr", f"{running} of {count} mgrs run", str(running), _daemons("mgr")))
    rows += [
        Problem(
            "mgr_module",
            name,
            f"the mgr module {name} does not load: {reason}",
            reason,
            "install what it misses on the hosts of all mgrs, or switch it off in ceph_mgr_modules",
        )
        for name, reason in sorted(mgrs["failed_modules"].items())
    ]
    return rows


def _problems_of_osds(osds: list[dict[str, Any]], expected: list[int]) -> list[Problem]:
    rows = []
    states = {row["id"]: row for row in osds}
    for number in sorted(expected):
        subject, row = f"osd.{number}", states.get(number)
        unit = f"see 'sudo journalctl -u ceph-osd@{number}' on its host"
        if row is None:
            rows.append(Problem("osd_unknown", subject, f"{subject} is not known to the monitors", "", unit))
        elif not row["up"]:
            rows.append(Problem("osd_down", subject, f"{subject} is down", "", unit))
        elif not row["in"]:
            rows.append(
                Problem("osd_out", subject, f"{subject} is out", "", f"'sudo ceph osd in {number}' takes it back")
            )
    rows += [
        Problem(
            "osd_unexpected",
            f"osd.{number}",
            f"osd.{number} is in the map and on no host of the inventory",
            "",
            "list its device in ceph_osd_devices of its host, or take it out with the playbook storage_remove_osd",
        )
        for number in sorted(set(states) - set(expected))
    ]
    return rows


def _problems_of_pgs(pgs: Mapping[str, Any]) -> list[Problem]:
    # Scrubbing goes on while a placement group is active and clean.
    bad = {state: count for state, count in pgs["states"].items() if not state.startswith("active+clean")}
    return [
        Problem("pg_state", "pg", f"{count} placement groups are {state}", state, PGS_REMEDY)
        for state, count in sorted(bad.items())
    ]


def _problems_of_filesystems(current: Mapping[str, Any], expected: list[str]) -> list[Problem]:
    rows = []
    known = {row["name"]: row for row in current["filesystems"]}
    for name in expected:
        if name not in known:
            remedy = "make it with `gpuops up --tags storage`"
            rows.append(Problem("filesystem_missing", name, f"there is no file system {name}", "", remedy))
            continue
        rows += [
            Problem("mds_rank", name, f"rank {rank} of {name} is {state}", state, _daemons("mds"))
            for rank, state in known[name]["ranks"].items()
            if state != SERVING
        ]
    return rows
