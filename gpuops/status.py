# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a site, from the events of the playbook baremetal.gpu.status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import progress, progress_text
from ansible_collections.baremetal.gpu.plugins.module_utils.outside_text import one_line

SCHEMA = Path(__file__).with_name("status.schema.json")
VERSION = 1

OK, DEGRADED, FATAL, UNKNOWN = "ok", "degraded", "fatal", "unknown"
UNREACHABLE, NO_GPU = "unreachable", "no_gpu"
# The exit status that a state leads to: as that of gpuops probe. What cannot be looked at is unknown.
EXIT = {OK: 0, NO_GPU: 0, DEGRADED: 1, FATAL: 2, UNKNOWN: 3, UNREACHABLE: 3}
# From the one that matters most to somebody on call.
_WORST = (FATAL, UNREACHABLE, UNKNOWN, DEGRADED, OK, NO_GPU)

NODES = "gpu_cluster"
STORAGE, ZOOKEEPER, MESOS = "ceph_mons", "zookeeper", "mesos_masters"


class Reader:
    """Takes the events, one by one; ``document`` is what they amount to."""

    def __init__(self, groups: Mapping[str, Iterable[str]], partial: bool = False) -> None:
        """
        :param groups: the hosts of the inventory's groups.
        :param partial: only some hosts were asked, so one that is silent is none to worry about.
        """
        self._partial = partial
        self._groups = {name: list(hosts) for name, hosts in groups.items()}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._processes: dict[str, list[dict[str, Any]]] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._unreached: dict[str, dict[str, str]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        data = event.get("event_data") or {}
        host, result = data.get("host", ""), data.get("res") or {}
        if event.get("event") == "runner_on_unreachable":
            ((cause, remedy),) = progress_text.explain(host, progress.UNREACHABLE, result)
            self._unreached[host] = {"cause": cause, "remedy": remedy}
        elif event.get("event") == "runner_on_ok":
            action = str(data.get("task_action", "")).removeprefix("baremetal.gpu.")
            if action == "gpu_facts":
                self._nodes[host] = result
            elif data.get("task") == "Ask who computes":
                self._processes[host] = processes(str(result.get("stdout") or ""))
            elif data.get("task") == "Ask how full the storage is":
                self._answers["df"] = result
            else:
                self._answers[action] = result

    def document(self, now: float) -> dict[str, Any]:
        """The state as its schema says."""
        heard = {**self._nodes, **self._unreached}
        names = [name for name in self._groups.get(NODES, []) if name in heard or not self._partial]
        names += [name for name in self._nodes if name not in names]
        mesos = self._mesos()
        nodes = [self._node(name) for name in names]
        parts = {"storage": self._storage(), "zookeeper": self._zookeeper(), "mesos": mesos}
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
        }

    def _node(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = {"name": name, "state": UNKNOWN, "driver": None, "cards": [], "reasons": []}
        row["problem"] = self._unreached.get(name)
        if row["problem"]:
            return {**row, "state": UNREACHABLE}
        result = self._nodes.get(name)
        facts = ((result or {}).get("ansible_facts") or {}).get("gpu")
        if not isinstance(facts, dict):
            text = str((result or {}).get("msg") or "nothing was heard of it")
            return {**row, "problem": {"cause": text, "remedy": f"see what `gpuops doctor {name}` finds"}}
        row["driver"] = (facts.get("driver") or {}).get("loaded")
        health = facts.get("health") or {}
        # Where an agent says that something is wrong, there was a GPU, or one is expected.
        if facts.get("present") is False and health.get("verdict") in (None, "ok"):
            return {**row, "state": NO_GPU}
        verdicts = {card.get("uuid"): card for card in health.get("devices") or []}
        row["cards"] = [
            self._card(name, card, verdicts.pop(card.get("uuid"), None)) for card in facts.get("devices") or []
        ]
        # Cards that NVML does not list any more have a verdict nevertheless.
        row["cards"] += [self._card(name, gone, gone) for gone in verdicts.values()]
        row["reasons"] = [reason(item) for item in health.get("reasons") or []]
        row["state"] = health.get("verdict") or UNKNOWN
        row["problem"] = self._hindrance(name, facts, health, row["state"])
        return row

    def _hindrance(
        self, name: str, facts: Mapping[str, Any], health: Mapping[str, Any], state: str
    ) -> dict[str, str] | None:
        """Why less is known of a node than could be: what it was judged by then is the second best."""
        causes = [health.get("agent_error"), *(health.get("problems") or ())]
        if state == UNKNOWN:
            causes += [facts.get("reason"), health.get("log_error")]
        told = [one_line(cause) for cause in causes if cause]
        if not told:
            return None
        return {"cause": "; ".join(dict.fromkeys(told)), "remedy": f"see what `gpuops doctor {name}` finds"}

    def _card(self, host: str, card: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
        listed = [row for row in self._processes.get(host, []) if row["uuid"] == card.get("uuid")]
        return {
            "index": card.get("index"),
            "uuid": card.get("uuid"),
            "address": card.get("pci_address"),
            "model": card.get("name"),
            "memory_mib": card.get("memory_mib"),
            "verdict": (verdict or {}).get("verdict") or UNKNOWN,
            "reasons": [reason(item) for item in (verdict or {}).get("reasons") or []],
            "processes": card.get("process_count"),
            "users": [{key: row[key] for key in ("pid", "name", "memory_mib")} for row in listed],
        }

    def _silent(self, group: str) -> dict[str, str]:
        """Why a group's part of the site said nothing."""
        hosts = self._groups.get(group, [])
        lost = [host for host in hosts if host in self._unreached]
        if hosts and len(lost) == len(hosts):
            return {
                "cause": f"none of {', '.join(hosts)} can be reached: {self._unreached[lost[0]]['cause']}",
                "remedy": self._unreached[lost[0]]["remedy"],
            }
        return {"cause": "nothing was heard of it", "remedy": f"run `gpuops doctor {hosts[0]}`" if hosts else ""}

    def _has(self, group: str) -> bool:
        """Whether a part of the site was to be asked."""
        hosts = self._groups.get(group, [])
        return bool(hosts) and (not self._partial or any(host in self._unreached for host in hosts))

    def _asked(self, group: str, action: str, key: str) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
        """(the answer of a module, why there is none): both None where the site has no such group."""
        result = self._answers.get(action)
        if result is None:
            return None, self._silent(group) if self._has(group) else None
        if key in result:
            return result, None
        ((cause, remedy), *_more) = progress_text.explain(group, progress.FAILED, result)
        return None, {"cause": cause, "remedy": remedy}

    def _storage(self) -> dict[str, Any] | None:
        result, problem = self._asked(STORAGE, "ceph_cluster_info", "cluster")
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
        part["problems"] = [str(text) for text in (result or {}).get("problems") or []]
        if not isinstance(cluster, dict):
            if result is not None:
                text = part["problems"][0] if part["problems"] else "the storage cluster did not answer"
                cause, _marker, remedy = text.partition(" To do: ")
                part["problem"] = {"cause": cause, "remedy": remedy or "see what the monitors' logs say"}
            return part
        health = cluster.get("health") or {}
        osds = cluster.get("osds") or []
        part["health"] = health.get("status")
        part["checks"] = [f"{name}: {text}" for name, text in _pairs(health.get("checks"))]
        part["monitors"] = list(cluster.get("mons") or [])
        part["osds"] = {
            "total": len(osds),
            "up": sum(1 for osd in osds if osd.get("up")),
            "in": sum(1 for osd in osds if osd.get("in")),
        }
        part["capacity"] = capacity(str(self._answers.get("df", {}).get("stdout") or ""))
        part["homes"] = homes(self._answers.get("ceph_subvolume_info", {}).get("subvolumes"))
        part["state"] = {"HEALTH_OK": OK, "HEALTH_WARN": DEGRADED, "HEALTH_ERR": FATAL}.get(
            str(part["health"]), UNKNOWN
        )
        return part

    def _zookeeper(self) -> dict[str, Any] | None:
        result, problem = self._asked(ZOOKEEPER, "zookeeper_info", "servers")
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
            "leader": result.get("leader"),
            "servers": [
                {"host": row.get("host"), "state": row.get("state"), "mode": row.get("mode")}
                for row in result["servers"]
            ],
            "problems": [str(text) for text in result.get("problems") or []],
            "problem": None,
        }

    def _mesos(self) -> dict[str, Any] | None:
        result, problem = self._asked(MESOS, "mesos_state_info", "agents")
        if result is None:
            return problem and {"state": UNREACHABLE, "leader": None, "agents": [], "tasks": [], "problem": problem}
        agents = result["agents"]
        hosts = {row.get("id"): row.get("hostname") for row in agents}
        return {
            "state": OK if all(row.get("state") == "active" for row in agents) else DEGRADED,
            "leader": result.get("leader"),
            "agents": [
                {
                    "host": row.get("hostname"),
                    "state": row.get("state"),
                    "gpus": (row.get("resources") or {}).get("gpus", 0),
                    "gpus_used": (row.get("used_resources") or {}).get("gpus", 0),
                }
                for row in agents
            ],
            "tasks": [
                {
                    "name": row.get("name"),
                    "framework": row.get("framework"),
                    "host": hosts.get(row.get("agent_id")),
                    "state": row.get("state"),
                    "gpus": (row.get("resources") or {}).get("gpus", 0),
                }
                for row in result.get("tasks") or []
            ],
            "problem": None,
        }


def worst(states: Iterable[str]) -> str:
    found = set(states)
    return next((state for state in _WORST if state in found and state != NO_GPU), OK)


def reason(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("code", "verdict", "text", "action", "remedy")}


def processes(said: str) -> list[dict[str, Any]]:
    """From nvidia-smi's list of processes that compute. What has no UUID, or no number for its process, is no line of
    it."""
    found = []
    for line in said.splitlines():
        parts = [part.strip() for part in line.split(",")]
        # A name may have commas in it; the others cannot.
        if len(parts) >= 4 and parts[0].startswith(("GPU-", "MIG-")) and parts[1].isdigit():
            memory = int(parts[-1]) if parts[-1].isdigit() else None
            found.append({"uuid": parts[0], "pid": int(parts[1]), "name": ", ".join(parts[2:-1]), "memory_mib": memory})
    return found


def capacity(said: str) -> dict[str, int] | None:
    """From 'ceph df': bytes of all disks together."""
    try:
        stats = json.loads(said)["stats"]
        return {
            "total_bytes": int(stats["total_bytes"]),
            "used_bytes": int(stats["total_used_raw_bytes"]),
            "available_bytes": int(stats["total_avail_bytes"]),
        }
    except (ValueError, KeyError, TypeError):
        return None


def homes(subvolumes: Any) -> list[dict[str, Any]]:
    if not isinstance(subvolumes, Mapping):
        return []
    return [
        {"name": name, "quota_bytes": row.get("size") or None, "used_bytes": row.get("used")}
        for name, row in sorted(subvolumes.items())
    ]


def _pairs(checks: Any) -> list[tuple[str, Any]]:
    if isinstance(checks, Mapping):
        return list(checks.items())
    return [("", text) for text in checks or []]
