# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a site, from the events of the playbook baremetal.gpu.status."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import (
    DEGRADED,
    FATAL,
    NUMBERS,
    OK,
    UNKNOWN,
    VERDICTS,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import diagnosis as kubernetes_diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.leases import kubernetes as kubernetes_leases
from ansible_collections.baremetal.gpu.plugins.module_utils.leases import mesos as mesos_leases
from ansible_collections.baremetal.gpu.plugins.module_utils.leases import slurm as slurm_leases
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import Lease
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state as slurm_state
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.problems import problems_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import (
    mapping,
    moment,
    number,
    rows,
    texts,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import text as line
from gpuops.run import events

SCHEMA = Path(__file__).with_name("status.schema.json")
VERSION = 1

UNREACHABLE, NO_GPU = "unreachable", "no_gpu"
# The exit status that a state leads to: as that of gpuops probe. What cannot be looked at is unknown.
EXIT = {**NUMBERS, NO_GPU: NUMBERS[OK], UNREACHABLE: NUMBERS[UNKNOWN]}
# From the best to the worst. What cannot be reached is not known, and may be fatal.
_ORDER = (NO_GPU, *VERDICTS[: VERDICTS.index(FATAL)], UNREACHABLE, FATAL)

NODES = "gpu_cluster"
STORAGE, ZOOKEEPER, MESOS, SLURM = "ceph_mons", "zookeeper", "mesos_masters", "slurm_controllers"
KUBERNETES = "kubernetes_control_planes"
PORTAL, BACKUP = "portals", "backup_hosts"
# Parts of which no more is known than whether their services work, and the groups of their hosts.
SERVICES = {
    "homes": "nfs_servers",
    "registry": "registries",
    "monitoring": "prometheus_servers",
    "logs": "log_hosts",
}
# The parts of a site beside its nodes, in the order in which they are shown.
PARTS = (
    *("slurm", "mesos", "kubernetes", "zookeeper", "storage"),
    *("homes", "portal", "registry", "monitoring", "logs", "backup"),
)
GROUPS = (NODES, STORAGE, ZOOKEEPER, MESOS, SLURM, KUBERNETES, PORTAL, *SERVICES.values(), BACKUP)
FIND_ACTIONS = ("find", "ansible.builtin.find")
# One night may have failed.
BACKUP_DAYS = 2
# Of a job on a host. More than that no host has.
GPUS_AT_MOST = 64
JOB_TEXTS = ("id", "name", "user", "account", "partition", "qos", "state", "waits", "reason", "waits_for")
JOB = (*JOB_TEXTS, "cpus", "gpus", "submitted", "started", "ends")
NODE_SIZES = ("gpus", "gpus_used", "cpus", "free_cpus", "memory_mib", "free_memory_mib")


# Problems of Slurm beside nodes that are down or drained and closed partitions. A reservation is none of them.
DEGRADING = ("controller_down", "holder_waits", "guarded", "no_uid", "failing", "reserved_for_maintenance")


class Reader:
    """Takes the events, one by one; ``document`` is what they amount to."""

    def __init__(self, groups: Mapping[str, Iterable[str]], partial: bool = False) -> None:
        """
        :param groups: the hosts of the inventory's groups.
        :param partial: only some hosts were looked at, so one without a result is none to worry about.
        """
        self._partial = partial
        self._groups = {name: list(hosts) for name, hosts in groups.items()}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, list[dict[str, Any]]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._services: dict[str, dict[str, dict[str, Any]]] = {}
        self._archives: dict[str, dict[str, Any]] = {}
        # Of nodes of Kubernetes.
        self._told: dict[str, dict[str, Any]] = {}
        self._unreached: dict[str, dict[str, str]] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult):
            return
        host, result = event.host, dict(event.result)
        if event.outcome == progress.UNREACHABLE:
            ((cause, remedy),) = progress_text.explain(host, progress.UNREACHABLE, result)
            self._unreached[host] = {"cause": cause, "remedy": remedy}
        elif not event.succeeded:
            return
        elif event.task.action == "gpu_facts":
            self._nodes[host] = result
        elif event.ran("nvidia-smi"):
            self._processes[host] = processes(str(result.get("stdout") or ""))
        elif event.ran("ceph"):
            self._results["df"] = result
        elif event.task.action == "services_info":
            self._services.setdefault(line(result.get("part")), {})[host] = result
        elif event.task.action == "kubernetes_node_info":
            self._told[host] = result
        elif event.task.action in FIND_ACTIONS:
            self._archives[host] = result
        else:
            self._results[event.task.action] = result

    def document(self, now: float) -> dict[str, Any]:
        """The state, by its schema."""
        known = {**self._nodes, **self._unreached}
        names = [name for name in self._groups.get(NODES, []) if name in known or not self._partial]
        names += [name for name in self._nodes if name not in names]
        nodes = [self._contained(name) for name in names]
        parts = {
            "storage": _part("storage", self._storage),
            "zookeeper": _part("zookeeper", self._zookeeper),
            "mesos": _part("mesos", self._mesos),
            "slurm": _part("slurm", lambda: self._slurm(nodes)),
            "kubernetes": _part("kubernetes", lambda: self._kubernetes(nodes)),
            "portal": _part("portal", self._portal),
            **{name: _part(name, functools.partial(self._service, name)) for name in SERVICES},
            "backup": _part("backup", lambda: self._backup(now)),
        }
        states = [node["state"] for node in nodes] + [part["state"] for part in parts.values() if part is not None]
        down = [f"{node['name']} ({node['state']})" for node in nodes if node["state"] in (UNREACHABLE, UNKNOWN)]
        down += [name for name, part in parts.items() if part is not None and part["state"] in (UNREACHABLE, UNKNOWN)]
        return {
            "version": VERSION,
            "time": round(now, 1),
            "state": worst(states),
            "not_seen": down,
            "nodes": nodes,
            **parts,
            "leases": self._leases(nodes),
        }

    def _contained(self, name: str) -> dict[str, Any]:
        """A host; one whose facts nobody can read does not keep the others from being shown."""
        try:
            return self._node(name)
        except events.UNEXPECTED_SHAPE as error:
            return {**_bare(name), "problem": _unreadable(name, error)}

    def _node(self, name: str) -> dict[str, Any]:
        row = _bare(name)
        row["problem"] = self._unreached.get(name)
        if row["problem"]:
            return {**row, "state": UNREACHABLE}
        result = mapping(self._nodes.get(name))
        facts = mapping(result.get("ansible_facts")).get("gpu")
        if not isinstance(facts, dict):
            cause = line(result.get("msg")) or "there is no result of it"
            return {**row, "problem": {"cause": cause, "remedy": f"see what `gpuops doctor {name}` finds"}}
        row["driver"] = line(mapping(facts.get("driver")).get("loaded")) or None
        health = mapping(facts.get("health"))
        # Where an agent reports that something is wrong, there was a GPU, or one is expected.
        if facts.get("present") is False and health.get("verdict") in (None, OK):
            return {**row, "state": NO_GPU}
        verdicts = rows(health.get("devices"))
        row["gpus"] = [self._gpu(name, gpu, _taken(verdicts, gpu)) for gpu in rows(facts.get("devices"))]
        # GPUs that NVML does not list any more have a verdict nevertheless.
        row["gpus"] += [self._gpu(name, gone, gone) for gone in verdicts]
        row["reasons"] = [reason(item) for item in rows(health.get("reasons"))]
        row["state"] = verdict_of(health)
        row["problem"] = self._hindrance(name, facts, health, row["state"])
        return row

    def _hindrance(
        self, name: str, facts: Mapping[str, Any], health: Mapping[str, Any], state: str
    ) -> dict[str, str] | None:
        """Why less is known of a node than could be: what it was judged by then is the second best."""
        causes = [health.get("agent_error"), *texts(health.get("problems"))]
        if state == UNKNOWN:
            causes += [facts.get("reason"), health.get("log_error")]
        texts_of_causes = [line(cause) for cause in causes if cause]
        if not texts_of_causes:
            return None
        return {"cause": "; ".join(dict.fromkeys(texts_of_causes)), "remedy": f"see what `gpuops doctor {name}` finds"}

    def _gpu(self, host: str, gpu: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
        listed = [row for row in self._processes.get(host, []) if row["uuid"] == gpu.get("uuid")]
        return {
            "index": _whole(gpu.get("index")),
            "uuid": line(gpu.get("uuid")) or None,
            "address": line(gpu.get("pci_address")) or None,
            "model": line(gpu.get("name")) or None,
            "memory_mib": _whole(gpu.get("memory_mib")),
            "verdict": verdict_of(verdict or {}),
            "reasons": [reason(item) for item in rows((verdict or {}).get("reasons"))],
            "processes": _whole(gpu.get("process_count")),
            "users": [{key: row[key] for key in ("pid", "name", "memory_mib")} for row in listed],
        }

    def _missing(self, group: str) -> dict[str, str]:
        """Why there is no result of a group's part of the site."""
        hosts = self._groups.get(group, [])
        lost = [host for host in hosts if host in self._unreached]
        if hosts and len(lost) == len(hosts):
            return {
                "cause": f"none of {', '.join(hosts)} can be reached: {self._unreached[lost[0]]['cause']}",
                "remedy": self._unreached[lost[0]]["remedy"],
            }
        return {"cause": "there is no result of it", "remedy": f"run `gpuops doctor {hosts[0]}`" if hosts else ""}

    def _has(self, group: str) -> bool:
        """Whether a part of the site was to be looked at."""
        hosts = self._groups.get(group, [])
        return bool(hosts) and (not self._partial or any(host in self._unreached for host in hosts))

    def _part_result(self, group: str, action: str, key: str) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
        """(the result of a module, why there is none): both None where the site has no such group."""
        result = self._results.get(action)
        if result is None:
            return None, self._missing(group) if self._has(group) else None
        if key in result:
            return result, None
        ((cause, remedy), *_more) = progress_text.explain(group, progress.FAILED, result)
        return None, {"cause": cause, "remedy": remedy}

    def _storage(self) -> dict[str, Any] | None:
        result, problem = self._part_result(STORAGE, "ceph_cluster_info", "cluster")
        if result is None and problem is None:
            return None
        part: dict[str, Any] = {
            "state": UNREACHABLE,
            "health": None,
            "checks": [],
            "monitors": [],
            "osds": None,
            "capacity": None,
            "homes": [],
            "problems": [],
            "problem": problem,
        }
        cluster = (result or {}).get("cluster")
        part["problems"] = _problems(result or {})
        if not isinstance(cluster, dict):
            if result is not None:
                problem = next(iter(part["problems"]), {"cause": "the storage cluster did not answer", "remedy": ""})
                part["problem"] = {**problem, "remedy": problem["remedy"] or "read the logs of the monitors"}
            return part
        health = mapping(cluster.get("health"))
        osds = rows(cluster.get("osds"))
        part["health"] = line(health.get("status")) or None
        part["checks"] = [f"{name}: {text}" for name, text in _pairs(health.get("checks"))]
        part["monitors"] = texts(list(cluster.get("mons") or []))
        part["osds"] = {
            "total": len(osds),
            "up": sum(1 for osd in osds if osd.get("up")),
            "in": sum(1 for osd in osds if osd.get("in")),
        }
        part["capacity"] = capacity(str(self._results.get("df", {}).get("stdout") or ""))
        part["homes"] = homes(self._results.get("ceph_info", {}).get("subvolumes"))
        part["state"] = {"HEALTH_OK": OK, "HEALTH_WARN": DEGRADED, "HEALTH_ERR": FATAL}.get(
            str(part["health"]), UNKNOWN
        )
        return part

    def _zookeeper(self) -> dict[str, Any] | None:
        result, problem = self._part_result(ZOOKEEPER, "zookeeper_info", "servers")
        if result is None:
            return problem and {
                "state": UNREACHABLE,
                "quorum": None,
                "leader": None,
                "servers": [],
                "problems": [],
                "problem": problem,
            }
        return {
            "state": OK if result.get("complete") else DEGRADED if result.get("quorum") else FATAL,
            "quorum": bool(result.get("quorum")),
            "leader": line(result.get("leader")) or None,
            "servers": [
                {key: line(row.get(key)) or None for key in ("host", "state", "mode")}
                for row in rows(result["servers"])
            ],
            "problems": _problems(result),
            "problem": None,
        }

    def _mesos(self) -> dict[str, Any] | None:
        result, problem = self._part_result(MESOS, "mesos_state_info", "agents")
        if result is None:
            return problem and {"state": UNREACHABLE, "leader": None, "agents": [], "tasks": [], "problem": problem}
        agents = rows(result["agents"])
        hosts = {line(row.get("id")): line(row.get("hostname")) or None for row in agents}
        return {
            "state": OK if all(row.get("state") == "active" for row in agents) else DEGRADED,
            "leader": line(result.get("leader")) or None,
            "agents": [
                {
                    "host": line(row.get("hostname")) or None,
                    "state": line(row.get("state")) or None,
                    "gpus": _gpus(row, "resources"),
                    "gpus_used": _gpus(row, "used_resources"),
                }
                for row in agents
            ],
            "tasks": [
                {
                    "name": line(row.get("name")) or None,
                    "framework": line(row.get("framework")) or None,
                    "host": hosts.get(line(row.get("agent_id"))),
                    "state": line(row.get("state")) or None,
                    "gpus": _gpus(row, "resources"),
                }
                for row in rows(result.get("tasks"))
            ],
            "problem": None,
        }

    def _slurm(self, nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        result, problem = self._part_result(SLURM, "slurm_cluster_info", "nodes")
        if result is None:
            return problem and {"state": UNREACHABLE, **_NOTHING["slurm"], "problems": [], "problem": problem}
        listed, partitions = rows(result["nodes"]), rows(result.get("partitions"))
        working = [row for row in listed if row.get("in_service") is True]
        closed = any(row.get("drained") for row in working) or any(row.get("state") != "UP" for row in partitions)
        problems, unfenced = list(problems_of(result)), self._unfenced(listed, nodes)
        ill = any(problem.code in DEGRADING for problem in problems)
        jobs = _jobs(result)
        return {
            "state": FATAL
            if unfenced or not working
            else DEGRADED
            if closed or ill or len(working) < len(listed)
            else OK,
            "nodes": [_slurm_node(row) for row in listed],
            "partitions": [
                {
                    **{key: line(row.get(key)) or None for key in ("name", "state", "max_time")},
                    "default": row.get("default") is True,
                    "nodes": _whole(row.get("nodes")) or 0,
                }
                for row in partitions
            ],
            "jobs": _shown(jobs),
            "waiting_total": _whole(result.get("waiting_total")) or 0,
            "held": [held for job in jobs if job["holder"] for held in self._held(job, nodes)],
            "unfenced": unfenced,
            "problems": [
                {"cause": f"{problem.subject}: {problem.sentence(stop='')}", "remedy": problem.remedy}
                for problem in problems
            ],
            "problem": None,
        }

    def _kubernetes(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        result, problem = self._part_result(KUBERNETES, "kubernetes_cluster_info", "nodes")
        if result is None:
            return problem and {"state": UNREACHABLE, **_NOTHING["kubernetes"], "problems": [], "problem": problem}
        listed = rows(result["nodes"])
        # A control plane with the taint of one takes no pods of users, and that is as it should be.
        workers = [row for row in listed if kubernetes_diagnosis.CONTROL_PLANE not in texts(row.get("closed_by"))]
        working = [row for row in workers if row.get("in_service") is True]
        problems, unfenced = list(problems_of(result)), self._given_though_fatal(listed, nodes)
        is_ill = any(problem.code in kubernetes_diagnosis.DEGRADING for problem in problems)
        leased = {uuid for lease in self._pods_leases() for uuid in lease.gpus} - {None}
        return {
            "state": FATAL if unfenced or not working else DEGRADED if is_ill else OK,
            "nodes": [_kubernetes_node(row) for row in listed],
            "jobs": _shown(_jobs(result)),
            "waiting_total": _whole(result.get("waiting_total")) or 0,
            "held": [held for row in listed for held in _withheld(row, nodes) if held["uuid"] not in leased],
            "unfenced": unfenced,
            "problems": [
                {"cause": f"{problem.subject}: {problem.sentence(stop='')}", "remedy": problem.remedy}
                for problem in problems
            ],
            "problem": None,
        }

    def _given_though_fatal(
        self, listed: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, str]]:
        """What to do about fatal GPUs that Kubernetes can give to pods."""
        found = []
        hosts = {node["name"]: node for node in nodes}
        for row in listed:
            name = line(row.get("name"))
            host, withheld = hosts.get(name, _bare(name)), texts(row.get("withheld"))
            of_host = [item for item in host["reasons"] if item["verdict"] == FATAL]
            fatal = [
                gpu for gpu in host["gpus"] if (of_host or gpu["verdict"] == FATAL) and gpu["uuid"] not in withheld
            ]
            # Which ones these are is not told.
            more = max((_whole(row.get("gpus_held")) or 0) - len(withheld), 0)
            for gpu in fatal[more:] if row.get("takes_jobs") is True and row.get("way") else ():
                see = f"see {kubernetes_diagnosis.DAEMON} there"
                found.append(_still_given(name, gpu, of_host, "Kubernetes still gives it to pods", see))
        return found

    def _portal(self) -> dict[str, Any] | None:
        result, problem = self._part_result(PORTAL, "portal_info", "hub")
        host = next(iter(self._groups.get(PORTAL, [])), None)
        if result is None:
            nothing = {**_NOTHING["portal"], "host": host}
            return problem and {"state": UNREACHABLE, **nothing, "problems": [], "problem": problem}
        works = {name: result.get(name) is True for name in ("hub", "proxy")}
        problems, sessions = _problems(result), mapping(result.get("sessions"))
        return {
            "state": FATAL if not all(works.values()) else DEGRADED if problems else OK,
            "host": host,
            **works,
            "sessions": {name: _whole(sessions.get(name)) or 0 for name in ("run", "wait")} if sessions else None,
            "problems": problems,
            "problem": None,
        }

    def _service(self, name: str) -> dict[str, Any] | None:
        """A part that works while its services do, on each of its hosts."""
        group, results = SERVICES[name], self._services.get(name, {})
        hosts = self._groups.get(group, [])
        lost = [host for host in hosts if host in self._unreached]
        if not results:
            problem = self._missing(group) if self._has(group) else None
            return problem and {"state": UNREACHABLE, "hosts": hosts, "problems": [], "problem": problem}
        problems = [row for result in results.values() for row in _problems(result)]
        state = UNREACHABLE if lost else FATAL if problems else OK
        problem = self._unreached[lost[0]] if lost else None
        return {"state": state, "hosts": hosts, "problems": problems, "problem": problem}

    def _backup(self, now: float) -> dict[str, Any] | None:
        hosts = [host for host in self._groups.get(BACKUP, []) if host in self._archives]
        if not hosts:
            problem = self._missing(BACKUP) if self._has(BACKUP) else None
            return problem and {"state": UNREACHABLE, **_NOTHING["backup"], "problems": [], "problem": problem}
        files = {host: rows(self._archives[host].get("files")) for host in hosts}
        newest = {host: _newest(files[host], of_timer=False) for host in hosts}
        problems = [
            {
                "cause": f"{host} has no archive of the last {BACKUP_DAYS} days",
                "remedy": f"see `sudo journalctl -u baremetal-gpu-backup` on {host}",
            }
            for host, when in newest.items()
            # A timer that is new has not had its night yet.
            if now - max(when, _newest(files[host], of_timer=True)) > BACKUP_DAYS * 86400
        ]
        return {
            "state": DEGRADED if problems else OK,
            "hosts": [{"name": host, "newest": when or None} for host, when in newest.items()],
            "problems": problems,
            "problem": None,
        }

    def _held(self, job: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The GPUs that a holder keeps out of service, and the code of what is wrong with each."""
        uuids = self._uuids()
        return [
            _held_row(node["name"], uuid, job["id"], nodes)
            for node in job["nodes"]
            for uuid in slurm_leases.gpus(node, uuids)
        ]

    def _unfenced(
        self, listed: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, str]]:
        """What to do about fatal GPUs that Slurm can give to jobs. A verdict on a host is one on each of its GPUs."""
        found, uuids = [], self._uuids()
        hosts = {node["name"]: node for node in nodes}
        for row in listed:
            name = line(row.get("name"))
            host = hosts.get(name, _bare(name))
            of_host = [item for item in host["reasons"] if item["verdict"] == FATAL]
            minors = {uuid: minor for minor, uuid in uuids.get(name, {}).items()}
            gpus = [
                {**gpu, "minor": minors.get(gpu["uuid"]), "verdict": FATAL if of_host else gpu["verdict"]}
                for gpu in host["gpus"]
            ]
            node = {"in_service": False, "drained": False, **row, "fenced": _minors(row, "fenced")}
            see = "`sudo gpuops-reconciler status` on the controller says why the GPU is not fenced"
            found += [
                _still_given(name, gpu, of_host, "Slurm still gives it to jobs", see)
                for gpu in slurm_state.unfenced(node, gpus)
            ]
        return found

    def _uuids(self) -> dict[str, dict[int, str]]:
        """Host -> minor -> UUID, of the hosts that have told it."""
        found = {}
        for host, result in self._nodes.items():
            facts = mapping(mapping(mapping(result).get("ansible_facts")).get("gpu"))
            pairs = [(_whole(gpu.get("minor")), line(gpu.get("uuid"))) for gpu in rows(facts.get("devices"))]
            found[host] = {minor: uuid for minor, uuid in pairs if minor is not None and uuid}
        return found

    def _leases(self, nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Who has which GPU, as the schedulers tell it; what cannot be read is nobody's."""
        found: list[Lease] = []
        slurm, mesos = self._results.get("slurm_cluster_info", {}), self._results.get("mesos_state_info", {})
        found += slurm_leases.leases(_jobs(slurm), self._uuids())
        hosts = {line(row.get("id")): line(row.get("hostname")) for row in rows(mesos.get("agents"))}
        found += mesos_leases.leases([_task(row) for row in rows(mesos.get("tasks"))], hosts)
        found += self._pods_leases()
        return [_lease(lease, nodes) for lease in sorted(found, key=lambda lease: (lease.host, lease.job))]

    def _pods_leases(self) -> list[Lease]:
        told = {
            host: {
                f"{line(row.get('namespace'))}/{line(row.get('name'))}": tuple(_texts_or_none(row.get("gpus")))
                for row in rows(result.get("leases"))
            }
            for host, result in self._told.items()
        }
        return kubernetes_leases.leases(_jobs(self._results.get("kubernetes_cluster_info", {})), told)


def _shown(jobs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: job[key] for key in JOB} | {"hosts": [node["name"] for node in job["nodes"]]}
        for job in jobs
        if not job["holder"]
    ]


def _still_given(
    host: str, gpu: Mapping[str, Any], of_host: list[dict[str, Any]], what: str, see: str
) -> dict[str, str]:
    reasons = [item for item in gpu["reasons"] if item["verdict"] == FATAL] + of_host
    which = gpu["uuid"] or gpu["address"] if gpu["index"] is None else gpu["index"]
    code = f" ({reasons[0]['code']})" if reasons else ""
    cause = f"{host}: GPU {which} is fatal{code} and not fenced, so {what}"
    return {"cause": cause, "remedy": f"close the node with `gpuops drain {host}`; {see}"}


def _withheld(row: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs of a node of Kubernetes that no pod gets, and the code of what is wrong with each."""
    host, known = line(row.get("name")), _texts_or_none(row.get("withheld"))
    count = min(_whole(row.get("gpus_held")) or 0, GPUS_AT_MOST)
    uuids: list[str | None] = [*known, *[None] * max(count - len(known), 0)]
    return [_held_row(host, uuid, None, nodes) for uuid in uuids]


def _held_row(host: str, uuid: str | None, job: str | None, nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    gpu = _gpu_of(nodes, host, uuid)
    reasons = sorted(gpu["reasons"], key=lambda row: row["verdict"] != FATAL) if gpu else []
    return {
        "host": host,
        "index": gpu["index"] if gpu else None,
        "uuid": uuid,
        "job": job,
        "code": reasons[0]["code"] if reasons else None,
    }


def _texts_or_none(told: Any) -> list[str | None]:
    """A list of UUIDs in which some are not known."""
    return [line(one) or None for one in told[:GPUS_AT_MOST]] if isinstance(told, list) else []


def _jobs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The jobs of Slurm or Kubernetes, in which everything is what it should be, or None."""
    return [
        {
            **{key: line(row.get(key)) for key in ("id", "name", "user")},
            **{key: line(row.get(key)) or None for key in ("account", "partition", "qos", "state")},
            **{key: line(row.get(key)) or None for key in ("reason", "waits_for")},
            **{key: _whole(row.get(key)) or 0 for key in ("cpus", "gpus")},
            **{key: moment(row.get(key)) for key in ("submitted", "started", "ends")},
            **{key: row.get(key) is True for key in ("waits", "holder")},
            "nodes": [
                {
                    "name": line(node.get("name")),
                    "minors": _minors(node),
                    "gpus": _texts_or_none(node.get("gpus")),
                }
                for node in rows(row.get("nodes"))
            ],
        }
        for row in rows(result.get("jobs"))
        if line(row.get("id"))
    ]


def _minors(node: Mapping[str, Any], key: str = "minors") -> list[int | None]:
    told = node.get(key)
    return [_whole(minor) for minor in told[:GPUS_AT_MOST]] if isinstance(told, list) else []


def _task(row: Mapping[str, Any]) -> dict[str, Any]:
    gpus = min(_gpus(row, "resources"), GPUS_AT_MOST)
    return {**{key: line(row.get(key)) for key in ("id", "name", "agent_id")}, "resources": {"gpus": gpus}}


def _slurm_node(row: Mapping[str, Any]) -> dict[str, Any]:
    is_open = slurm_state.is_open({"in_service": False, "drained": False, **row})
    sizes = {key: _whole(row.get(key)) or 0 for key in NODE_SIZES}
    free = _whole(row.get("gpus_free"))
    return {
        **{key: line(row.get(key)) or None for key in ("name", "state", "reason", "reason_by")},
        **{key: row.get(key) is True for key in ("in_service", "drained")},
        "takes_jobs": is_open,
        **sizes,
        "gpus_free": (max(sizes["gpus"] - sizes["gpus_used"], 0) if free is None else free) if is_open else 0,
        "partitions": texts(row.get("partitions")),
    }


def _kubernetes_node(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: line(row.get(key)) or None for key in ("name", "state", "reason", "version", "way")},
        **{key: row.get(key) is True for key in ("control_plane", "in_service", "drained", "takes_jobs")},
        **{key: _whole(row.get(key)) or 0 for key in (*NODE_SIZES, "gpus_free", "gpus_held")},
    }


def _gpu_of(nodes: Iterable[Mapping[str, Any]], host: str, uuid: str | None) -> Mapping[str, Any] | None:
    found = (gpu for node in nodes if node["name"] == host for gpu in node["gpus"] if gpu["uuid"] == uuid)
    return next(found, None) if uuid else None


def _lease(lease: Lease, nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    gpus = [_gpu_of(nodes, lease.host, uuid) for uuid in lease.gpus]
    counts = [gpu["processes"] if gpu else None for gpu in gpus]
    known = [count for count in counts if count is not None]
    return {
        "scheduler": lease.scheduler,
        "job": lease.job,
        "name": lease.name,
        "user": lease.user,
        "host": lease.host,
        "gpus": [
            {"uuid": uuid, "index": gpu["index"] if gpu else None} for uuid, gpu in zip(lease.gpus, gpus, strict=True)
        ],
        "started": lease.started,
        "expected_end": lease.expected_end,
        "processes": sum(known) if len(known) == len(counts) else None,
    }


def _newest(files: Iterable[Mapping[str, Any]], of_timer: bool) -> float:
    """When the newest archive, or the timer that makes them, was written; 0 for none."""
    chosen = (row for row in files if str(row.get("path")).endswith(".timer") == of_timer)
    return max((moment(row.get("mtime")) or 0 for row in chosen), default=0)


def _problems(result: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"cause": problem.cause, "remedy": problem.remedy} for problem in problems_of(result)]


def _gpus(row: Mapping[str, Any], key: str) -> float:
    return number(mapping(row.get(key)).get("gpus")) or 0


def _bare(name: str) -> dict[str, Any]:
    return {"name": name, "state": UNKNOWN, "driver": None, "gpus": [], "reasons": [], "problem": None}


def _unreadable(name: str, error: Exception) -> dict[str, str]:
    evidence = line(f"{type(error).__name__}: {error}", 200)
    return {
        "cause": f"its results cannot be read ({evidence})",
        "remedy": f"see what `gpuops doctor {name}` finds, and compare the versions that are installed there",
    }


# What each part has where nothing of it is known.
_NOTHING: dict[str, dict[str, Any]] = {
    "storage": {"health": None, "checks": [], "monitors": [], "osds": None, "capacity": None, "homes": []},
    "zookeeper": {"quorum": None, "leader": None, "servers": []},
    "mesos": {"leader": None, "agents": [], "tasks": []},
    "slurm": {"nodes": [], "partitions": [], "jobs": [], "waiting_total": 0, "held": [], "unfenced": []},
    "kubernetes": {"nodes": [], "jobs": [], "waiting_total": 0, "held": [], "unfenced": []},
    "portal": {"host": None, "hub": None, "proxy": None, "sessions": None},
    **{name: {"hosts": []} for name in SERVICES},
    "backup": {"hosts": []},
}


def _part(name: str, made: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """A part of the site; one whose facts nobody can read does not keep the others from being shown."""
    try:
        return made()
    except events.UNEXPECTED_SHAPE as error:
        problems: dict[str, Any] = {} if name == "mesos" else {"problems": []}
        return {"state": UNKNOWN, **_NOTHING[name], **problems, "problem": _unreadable("HOST", error)}


def _taken(verdicts: list[dict[str, Any]], gpu: Mapping[str, Any]) -> dict[str, Any] | None:
    """The verdict on a GPU, which is taken out of the list. One that is lost may not tell its UUID."""
    key = "uuid" if line(gpu.get("uuid")) else "pci_address"
    place = next((at for at, row in enumerate(verdicts) if line(row.get(key)) == line(gpu.get(key)) != ""), None)
    return None if place is None else verdicts.pop(place)


def verdict_of(row: Mapping[str, Any]) -> str:
    """A verdict; one that nobody knows is none."""
    found = row.get("verdict")
    return found if found in VERDICTS else UNKNOWN


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def worst(states: Iterable[str]) -> str:
    return max((OK, *states), key=_ORDER.index)


def reason(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line(row.get(key)) or None for key in ("code", "verdict", "text", "action", "remedy")}


def processes(output: str) -> list[dict[str, Any]]:
    """From nvidia-smi's list of processes that compute. What has no UUID, or no number for its process, is no line of
    it."""
    found = []
    for row in output.splitlines():
        parts = [part.strip() for part in row.split(",")]
        # A name may have commas in it; the others cannot.
        if len(parts) >= 4 and parts[0].startswith(("GPU-", "MIG-")) and parts[1].isdigit():
            memory = int(parts[-1]) if parts[-1].isdigit() else None
            found.append({"uuid": parts[0], "pid": int(parts[1]), "name": ", ".join(parts[2:-1]), "memory_mib": memory})
    return found


def capacity(output: str) -> dict[str, int] | None:
    """From 'ceph df': bytes of all disks together."""
    try:
        stats = json.loads(output)["stats"]
        return {
            "total_bytes": int(stats["total_bytes"]),
            "used_bytes": int(stats["total_used_raw_bytes"]),
            "available_bytes": int(stats["total_avail_bytes"]),
        }
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


def homes(subvolumes: Any) -> list[dict[str, Any]]:
    if not isinstance(subvolumes, Mapping):
        return []
    return [
        {"name": name, "quota_bytes": _whole(row.get("size")) or None, "used_bytes": _whole(row.get("used"))}
        for name, row in sorted(subvolumes.items())
        if isinstance(row, Mapping)
    ]


def _pairs(checks: Any) -> list[tuple[str, Any]]:
    if isinstance(checks, Mapping):
        return list(checks.items())
    return [("", text) for text in checks or []]
