# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs and the GPUs that are free, from the document of a site's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import KUBERNETES, MESOS, SLURM
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import WAITING_AT_MOST
from gpuops.status.document import KUBERNETES as KUBERNETES_GROUP
from gpuops.status.document import MESOS as MESOS_GROUP
from gpuops.status.document import NODES, UNREACHABLE
from gpuops.status.document import SLURM as SLURM_GROUP

SCHEMA = Path(__file__).with_name("jobs.schema.json")
VERSION = 1
# The groups of the inventory that it is about.
SCHEDULERS = (SLURM_GROUP, MESOS_GROUP, KUBERNETES_GROUP)
GROUPS = (NODES, *SCHEDULERS)
# With these words of Slurm a job only waits for its turn; with others it waits for something else, such as a limit.
TURN = ("", "None", "Priority", "Resources", "ReqNodeNotAvail")
JOB_KEYS = ("id", "name", "user", "partition", "account", "qos", "state", "cpus", "submitted", "started", "ends")
WAITING_KEYS = ("id", "name", "user", "partition", "account", "qos", "cpus", "gpus", "submitted", "reason", "waits_for")

Row = Mapping[str, Any]


def document(site: Row, user: str = "") -> dict[str, Any]:
    """The jobs by their schema.

    :param site: the document of `gpuops status`.
    :param user: only jobs of this user are listed. Places and GPUs count those of all.
    """
    parts = [(name, site[name]) for name in (SLURM, MESOS, KUBERNETES) if site[name]]
    telling = [(name, part) for name, part in parts if name != MESOS]
    running = [job for name, part in telling for job in _jobs(name, part, site)]
    running += _mesos_tasks(site) if site[MESOS] else []
    waiting = [job for _name, part in telling for job in _waiting(part["jobs"])]
    return {
        "version": VERSION,
        "time": site["time"],
        "user": user or None,
        "schedulers": [{"name": name, "state": part["state"], "problem": part["problem"]} for name, part in parts],
        "running": [job for job in running if user in ("", job["user"])],
        "running_total": len(running),
        "waiting": [job for job in waiting if user in ("", job["user"])],
        "waiting_total": sum(part["waiting_total"] for _name, part in telling),
        "held": [row for _name, part in telling for row in part["held"]],
        "unfenced": [row for _name, part in telling for row in part["unfenced"]],
        "gpus": _gpus(site),
    }


def is_seen(jobs: Row) -> bool:
    """Whether every scheduler of the site has answered."""
    return all(row["state"] not in (UNREACHABLE, UNKNOWN) for row in jobs["schedulers"])


def _jobs(scheduler: str, part: Row, site: Row) -> list[dict[str, Any]]:
    """Jobs with resources, those first that are to end first."""
    leases: dict[str, list[Row]] = {}
    for lease in site["leases"]:
        if lease["scheduler"] == scheduler:
            leases.setdefault(lease["job"], []).append(lease)
    found = [
        {
            "scheduler": scheduler,
            **{key: job[key] for key in JOB_KEYS},
            "hosts": job["hosts"],
            "gpus": [_placed(lease, site["nodes"]) for lease in leases.get(job["id"], [])],
            "gpus_total": job["gpus"],
            "processes": _processes(leases.get(job["id"], [])),
        }
        for job in part["jobs"]
        if not job["waits"]
    ]
    return sorted(found, key=lambda job: (job["ends"] is None, job["ends"] or 0.0))


def _mesos_tasks(site: Row) -> list[dict[str, Any]]:
    """Tasks with GPUs. Of the others Mesos' own pages tell."""
    nothing = dict.fromkeys((*JOB_KEYS, "cpus"))
    return [
        {
            "scheduler": MESOS,
            **nothing,
            "id": lease["job"],
            "name": lease["name"],
            "hosts": [lease["host"]],
            "gpus": [_placed(lease, site["nodes"])],
            "gpus_total": len(lease["gpus"]),
            "processes": lease["processes"],
        }
        for lease in site["leases"]
        if lease["scheduler"] == MESOS
    ]


def _placed(lease: Row, nodes: Iterable[Row]) -> dict[str, Any]:
    """A job's GPUs on a host, and those of them that are out of order."""
    known = {gpu["uuid"]: gpu for node in nodes if node["name"] == lease["host"] for gpu in node["gpus"]}
    bad = []
    for gpu in lease["gpus"]:
        row = known.get(gpu["uuid"])
        if gpu["uuid"] and row and row["verdict"] == FATAL:
            codes = [reason["code"] for reason in row["reasons"] if reason["verdict"] == FATAL]
            bad.append({"index": row["index"], "code": codes[0] if codes else None})
    return {"host": lease["host"], "gpus": lease["gpus"], "bad": bad}


def _processes(leases: Iterable[Row]) -> int | None:
    counts = [lease["processes"] for lease in leases]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _waiting(jobs: Iterable[Row]) -> list[dict[str, Any]]:
    """Jobs that wait, in the order of their scheduler, with the place of those that only wait for their turn."""
    places: Counter[str | None] = Counter()
    found: list[dict[str, Any]] = []
    for job in jobs:
        if not job["waits"]:
            continue
        word = (job["reason"] or "").split(",")[0].split(" ")[0]
        place = None
        # Not all are told of those that come later.
        if word in TURN and len(found) < WAITING_AT_MOST:
            places[job["partition"]] += 1
            place = places[job["partition"]]
        found.append({"place": place, **{key: job[key] for key in WAITING_KEYS}})
    return found


# --- GPUs by model -------------------------------------------------------------------------------------------------


def _gpus(site: Row) -> list[dict[str, Any]]:
    """For each scheduler and model: how many GPUs it has, and how many of them are free."""
    slurm, mesos, kubernetes = (site[name] for name in (SLURM, MESOS, KUBERNETES))
    found = []
    if slurm:
        rows = [(row["name"], row["gpus"], row["gpus_used"], _startable(row)) for row in slurm["nodes"]]
        found += _by_model(SLURM, rows, site, slurm["held"])
    if kubernetes:
        held = Counter(row["host"] for row in kubernetes["held"])
        # Those that are withheld count as used here, as the holders of Slurm do.
        rows = [
            (row["name"], row["gpus"], row["gpus_used"] + held[row["name"]], _startable(row))
            for row in kubernetes["nodes"]
        ]
        found += _by_model(KUBERNETES, rows, site, kubernetes["held"])
    if mesos:
        agents = [
            (row["host"], gpus, used, gpus - used if row["state"] == "active" else 0)
            for row, gpus, used in ((row, int(row["gpus"]), int(row["gpus_used"])) for row in mesos["agents"])
        ]
        found += _by_model(MESOS, agents, site, [])
    return found


def _startable(row: Row) -> int:
    """How many GPUs of a node a job could get now."""
    free: int = row.get("gpus_free", row["gpus"] - row["gpus_used"])
    return free if row["takes_jobs"] else 0


def _by_model(
    scheduler: str, nodes: Iterable[tuple[str | None, int, int, int]], site: Row, held: Iterable[Row]
) -> list[dict[str, Any]]:
    """:param nodes: of each its name, GPUs, those that are used, and how many a job could get now by its scheduler."""
    counts: dict[str | None, Counter[str]] = {}
    for host, total, in_use, startable in nodes:
        of_host = [row for row in held if row["host"] == host]
        models = {gpu["uuid"]: gpu["model"] for node in site["nodes"] if node["name"] == host for gpu in node["gpus"]}
        # Of one that is gone the model is not known; mostly a host has GPUs of one.
        kinds = set(filter(None, models.values())) or set(models.values())
        models = {uuid: model or next(iter(kinds)) for uuid, model in models.items()} if len(kinds) == 1 else models
        leases = [row for row in site["leases"] if row["scheduler"] == scheduler and row["host"] == host]
        leased = [gpu["uuid"] for lease in leases for gpu in lease["gpus"]]
        out = [row["uuid"] for row in of_host]
        # Those that the scheduler does not have any more are not among its free ones either.
        gone = max(len(models) - total, 0) + out.count(None)
        broken = [uuid for uuid in _unfit(site, host) if uuid not in leased and uuid not in out][gone:]
        if len(kinds) > 1:
            parts = [
                (
                    kind,
                    list(models.values()).count(kind),
                    *(_of(kind, uuids, models) for uuids in (leased, out, broken)),
                )
                for kind in dict.fromkeys(models.values())
            ]
        else:
            # Holders have their GPUs as jobs have theirs.
            parts = [(next(iter(kinds), None), total, max(in_use - len(out), 0), len(out), len(broken))]
        for model, has, used, holds, fatal in parts:
            if not has:
                continue
            left = max(has - used - holds, 0)
            fatal = min(fatal, left)
            free = min(left - fatal, startable)
            row = counts.setdefault(model, Counter())
            row.update(total=has, used=used, held=holds + fatal, free=free, closed=left - fatal - free)
            row["free_on_one_host"] = max(row["free_on_one_host"], free)
            startable -= free
    keys = ("total", "free", "used", "held", "closed", "free_on_one_host")
    return [
        {"scheduler": scheduler, "model": model, **{key: row[key] for key in keys}}
        for model, row in sorted(counts.items(), key=lambda item: (item[0] is None, item[0] or ""))
    ]


def _of(kind: str | None, uuids: Iterable[str | None], models: Mapping[str | None, str | None]) -> int:
    return sum(1 for uuid in uuids if uuid in models and models[uuid] == kind)


def _unfit(site: Row, host: str | None) -> list[str]:
    """The GPUs of a host that are judged fatal, or of which nobody knows, by themselves or with the host."""
    return [
        gpu["uuid"]
        for node in site["nodes"]
        if node["name"] == host
        for gpu in node["gpus"]
        if {FATAL, UNKNOWN} & {gpu["verdict"], *(reason["verdict"] for reason in node.get("reasons", ()))}
    ]
