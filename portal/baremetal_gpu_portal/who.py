# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses what since when: what a page of the portal shows, from one look at the scheduler for everybody together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Found
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Job, Session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state
from baremetal_gpu_portal import offers
from baremetal_gpu_portal.gpus import Gpus

OLD_S = 1.0
WAITING_AT_MOST = 200


class Look:
    """What the scheduler told last.

    :ivar at: when, in Unix seconds.
    :ivar found: as `Backend.look` has it; empty until it has answered once.
    :ivar failure: why it does not answer now.
    """

    def __init__(self, at: float, found: Found, sessions: Mapping[Job, Session], failure: str) -> None:
        self.at, self.found, self.sessions, self.failure = at, found, sessions, failure


class Watch:
    """Asks the scheduler at most once a second, and only while somebody wants to know. Thread-safe."""

    def __init__(
        self, ask: Callable[[], tuple[Found, Mapping[Job, Session]]], clock: Callable[[], float] = time.time
    ) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._asked = 0.0
        self._last = Look(0.0, {}, {}, "")

    def look(self) -> Look:
        """What is known, at most a second old while the scheduler answers. Who comes meanwhile waits for the answer."""
        with self._lock:
            now = self._clock()
            # A clock that was set back must not keep an old answer.
            if 0 <= now - self._asked < OLD_S:
                return self._last
            try:
                found, sessions = self._ask()
            except Refused as why:
                self._last = Look(self._last.at, self._last.found, self._last.sessions, str(why))
            else:
                self._last = Look(now, found, sessions, "")
            self._asked = self._clock()
            return self._last


def page(look: Look, partition: str = "", gpus: Gpus | None = None) -> dict[str, Any]:
    """What the page is given. Everything in it is a number or a printable line.

    :param gpus: what each GPU does, where that is known.
    """
    found = look.found
    jobs = found.get("jobs", [])
    nodes = found.get("nodes", [])
    has: dict[str, list[dict[str, Any]]] = {}
    for lease in found.get("leases", []):
        has.setdefault(lease.host, []).append(
            {
                "job": lease.job,
                "what": "session" if lease.name == session.JOB else lease.name,
                "user": lease.user or "",
                "gpus": len(lease.gpus),
                "since": lease.started,
                "until": lease.expected_end,
            }
        )
    usable = offers.in_partition(nodes, partition)
    return {
        "at": look.at,
        "failure": look.failure,
        "models": [
            {"model": one.model, "free": one.free, "total": one.total, "largest": one.largest}
            for one in offers.offers(usable)
        ],
        "nodes": [
            _node(node, has.get(node["name"], []), _tiles(node, jobs, (gpus or {}).get(node["name"], ())))
            for node in nodes
        ],
        "waiting": [
            {
                "job": job["id"],
                "what": "session" if job["name"] == session.JOB else job["name"],
                "user": job["user"],
                "gpus": job["gpus"],
                "since": job["submitted"],
                "why": job["waits_for"],
            }
            for job in jobs
            if job["waits"] and not job["holder"]
        ][:WAITING_AT_MOST],
        "waiting_total": found.get("waiting_total", 0),
    }


def _tiles(
    node: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]], known: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each GPU of a node, with who has it where the scheduler tells which one that is, and `unfenced` on each that is
    fatal and that it still gives to jobs."""
    rows = [{**gpu} for gpu in known]
    if "fenced" in node:
        judged = [{"at": row, "minor": row.get("minor"), "verdict": row.get("verdict")} for row in rows]
        for gpu in state.unfenced(node, judged):
            gpu["at"]["unfenced"] = True
    by_name = {name: row for row in rows for name in (row.get("minor"), row.get("uuid")) if name not in (None, "")}
    for job in (one for one in jobs if not one["waits"]):
        for name in (one for there in job["nodes"] if there["name"] == node["name"] for one in there["minors"]):
            row = by_name.get(name)
            if row is None and not known:
                row = {"minor": name} if isinstance(name, int) else {}
                rows.append(row)
            if row is not None:
                has = {"user": job["user"], "job": job["id"], "since": job["started"], "until": job["ends"]}
                row.update({"held": True} if job["holder"] else has)
    # What nobody has has no name where the scheduler alone is asked.
    rows += [{} for _number in range(node["gpus"] - len(rows))]
    return rows


def _node(node: Mapping[str, Any], leases: list[dict[str, Any]], tiles: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": node["name"],
        "models": [name or "GPU" for name in node["models"]],
        "gpus": node["gpus"],
        "free": offers.startable_gpus(node),
        "held": node.get("gpus_held", 0),
        "cpus": node["cpus"],
        "free_cpus": node["free_cpus"],
        "memory_gib": node["memory_mib"] >> 10,
        "free_memory_gib": node["free_memory_mib"] >> 10,
        "problem": node["problem"],
        "tiles": tiles,
        "leases": sorted(leases, key=lambda one: (one["since"] or 0.0, one["job"])),
    }
