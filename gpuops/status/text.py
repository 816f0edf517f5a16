# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a site in words, from its document."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import DEGRADED, FATAL, OK, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import KUBERNETES, SLURM
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from gpuops.run.table import table
from gpuops.status.document import NO_GPU, PARTS, SERVICES, UNREACHABLE, worst

# The jobs that wait and are shown.
WAITING_SHOWN = 20
# What a GPU does, as it is told: one that NVML does not list any more is gone.
GONE, USE_UNKNOWN, BUSY, IDLE = "gone", "use not known", "busy", "idle"
DOING = (GONE, FATAL, UNKNOWN, USE_UNKNOWN, BUSY, IDLE)
STYLES = {OK: "good", NO_GPU: "faint", DEGRADED: "changed", FATAL: "bad", UNKNOWN: "changed", UNREACHABLE: "bad"}


def size(count: float | None) -> str:
    """Bytes for people, in powers of 1024."""
    if count is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} PiB"


def lines(document: Mapping[str, Any], width: int) -> list[Line]:
    """The state in words: a line for each part, and then what there is to know of it."""
    parts = {name: _PARTS[name](document[name], width) for name in PARTS if document[name] is not None}
    tasks = (document["mesos"] or {}).get("tasks") or []
    if tasks:
        parts["mesos"] += [_task_line(task) for task in tasks]
    out: list[Line] = [_nodes_head(document["nodes"]), *(told[0] for told in parts.values()), [("plain", "")]]
    out += _node_lines(document["nodes"], width)
    for name, told in parts.items():
        if told[1:]:
            out += [[("plain", "")], [("faint", name)], *told[1:]]
    if document["leases"]:
        out += [[("plain", "")], *_lease_lines(document["leases"], document["time"], width)]
    out += [[("plain", "")], _total(document)]
    return out


def _nodes_head(nodes: Iterable[Mapping[str, Any]]) -> Line:
    rows = list(nodes)
    gpus = [_doing(gpu, row) for row in rows for gpu in row["gpus"]]
    told = Counter(gpus)
    state = worst(row["state"] for row in rows)
    ill = sum(1 for row in rows if row["state"] not in (OK, NO_GPU))
    text = f": {len(rows)} {'host' if len(rows) == 1 else 'hosts'}" + (f", {ill} not well" if ill else "")
    if gpus:
        text += f"; {len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}: "
        text += ", ".join(f"{count} {what}" for what in DOING if (count := told[what]))
    return _head("nodes", {"state": state}, text)


def _node_lines(nodes: Iterable[Mapping[str, Any]], width: int) -> list[Line]:
    # What is wrong comes first.
    rows = sorted(nodes, key=lambda row: row["state"] in (OK, NO_GPU))
    if not rows:
        return [[("faint", "no nodes: the inventory has no group gpu_cluster")]]
    first = max(4, *(len(row["name"]) for row in rows))
    out: list[Line] = [[("faint", f"{'NODE':<{first}}  {'STATE':<11}  {'DRIVER':<11}  GPUS")]]
    for row in rows:
        gpus = _gpus(row)
        head = f"{row['name']:<{first}}  "
        out.append(
            [
                ("plain", head),
                (STYLES.get(row["state"], "plain"), f"{row['state']:<11}"),
                ("plain", f"  {row['driver'] or '-':<11}  {gpus}"),
            ]
        )
        if row["problem"]:
            out += _problem(row["problem"], width)
        for item in row["reasons"]:
            out += _reason("the host", item, width)
        for gpu in row["gpus"]:
            who = f"GPU {gpu['index'] if gpu['index'] is not None else gpu['address'] or gpu['uuid']}"
            for item in gpu["reasons"]:
                out += _reason(who, item, width)
            for user in gpu["users"]:
                memory = "" if user["memory_mib"] is None else f", {user['memory_mib']} MiB"
                out.append([("faint", f"    {who}: "), ("plain", f"{user['name']} (process {user['pid']}{memory})")])
            if gpu["processes"] and not gpu["users"]:
                out.append([("faint", f"    {who}: "), ("plain", f"{gpu['processes']} processes")])
    return out


def _gpus(node: Mapping[str, Any]) -> str:
    models: dict[str, list[Mapping[str, Any]]] = {}
    for gpu in node["gpus"]:
        models.setdefault(gpu["model"] or "gpu", []).append(gpu)
    words = []
    for model, rows in models.items():
        told = Counter(_doing(row, node) for row in rows)
        if told[IDLE] + told[BUSY] == len(rows):
            words.append(f"{len(rows)}x {model}, {f'{told[BUSY]} busy' if told[BUSY] else IDLE}")
        else:
            parts = [what if count == len(rows) else f"{count} {what}" for what in DOING if (count := told[what])]
            words.append(", ".join((f"{len(rows)}x {model}", *parts)))
    return "; ".join(words) or "-"


def _doing(gpu: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """What a GPU does. Only one that is known to be usable and unused is idle.

    A verdict on the node as a whole is one on each of its GPUs.
    """
    if gpu["index"] is None and gpu["model"] is None:
        return GONE
    verdicts = {gpu["verdict"], *(item["verdict"] for item in node["reasons"])}
    for verdict in (FATAL, UNKNOWN):
        if verdict in verdicts:
            return verdict
    return USE_UNKNOWN if gpu["processes"] is None else BUSY if gpu["processes"] else IDLE


def _reason(who: str, item: Mapping[str, Any], width: int) -> list[Line]:
    style = STYLES.get(str(item["verdict"]), "plain")
    return [
        *progress_text.wrapped(f"    {who}: ", f"{item['text'] or item['code']} [{item['code']}]", width, style),
        *progress_text.wrapped("      remedy: ", str(item["remedy"]), width),
    ]


def _problem(problem: Mapping[str, str], width: int) -> list[Line]:
    out = progress_text.wrapped("    cause:  ", problem["cause"], width, "bad")
    return out + (progress_text.wrapped("    remedy: ", problem["remedy"], width) if problem["remedy"] else [])


def _problems(problems: Iterable[Mapping[str, str]], printed: Mapping[str, str] | None, width: int) -> list[Line]:
    """Problems of a part; the one that is printed as its cause is left out."""
    out: list[Line] = []
    for problem in problems:
        if printed is None or problem["cause"] != printed["cause"]:
            out += progress_text.wrapped("    ", problem["cause"], width, "changed")
            out += progress_text.wrapped("    remedy: ", problem["remedy"], width) if problem["remedy"] else []
    return out


def _head(name: str, part: Mapping[str, Any], text: str) -> Line:
    return [("plain", f"{name:<10} "), (STYLES[part["state"]], part["state"]), ("plain", text)]


def _storage_lines(part: Mapping[str, Any], width: int) -> list[Line]:
    osds, room = part["osds"], part["capacity"]
    text = ""
    if osds:
        text += (
            f": {len(part['monitors'])} monitors in quorum, {osds['up']} of {osds['total']} OSDs up, {osds['in']} in"
        )
    if room:
        share = 100 * room["used_bytes"] / room["total_bytes"] if room["total_bytes"] else 0
        text += f"; {size(room['used_bytes'])} of {size(room['total_bytes'])} used ({share:.0f} %)"
    out = [_head("storage", part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    for check in part["checks"]:
        out += progress_text.wrapped("    ", check, width, "changed")
    out += _problems(part["problems"], part["problem"], width)
    for home in part["homes"]:
        quota = f" of {size(home['quota_bytes'])}" if home["quota_bytes"] else ", no quota"
        out.append([("faint", "    home "), ("plain", f"{home['name']}: {size(home['used_bytes'])}{quota}")])
    return out


def _zookeeper_lines(part: Mapping[str, Any], width: int) -> list[Line]:
    serving = sum(1 for row in part["servers"] if row["state"] == "serving")
    text = ""
    if part["servers"]:
        quorum = f"quorum, led by {part['leader']}" if part["quorum"] else "NO QUORUM"
        text = f": {quorum}; {serving} of {len(part['servers'])} servers serve"
    out = [_head("zookeeper", part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    return out + _problems(part["problems"], None, width)


def _mesos_lines(part: Mapping[str, Any], width: int) -> list[Line]:
    text = ""
    if part["leader"]:
        used = sum(row["gpus_used"] for row in part["agents"])
        has = sum(row["gpus"] for row in part["agents"])
        agents = "1 agent" if len(part["agents"]) == 1 else f"{len(part['agents'])} agents"
        text = f": led by {part['leader']}; {agents}, {used:g} of {has:g} GPUs in use"
    out = [_head("mesos", part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    out += [[("changed", f"    {row['host']} is {row['state']}")] for row in part["agents"] if row["state"] != "active"]
    return out


def _task_line(task: Mapping[str, Any]) -> Line:
    gpus = f", {task['gpus']:g} GPUs" if task["gpus"] else ""
    return [
        ("faint", "    task "),
        ("plain", f"{task['name']} of {task['framework']} on {task['host']}{gpus}: {task['state']}"),
    ]


def _jobs_lines(name: str, part: Mapping[str, Any], width: int) -> list[Line]:
    """A scheduler that tells of all its jobs; those of Kubernetes are pods."""
    thing = "pod" if name == KUBERNETES else "job"
    nodes = [row for row in part["nodes"] if not _is_only_control_plane(row)]
    jobs, held = part["jobs"], part["held"]
    waiting = [job for job in jobs if job["waits"]]
    text = ""
    if nodes:
        working = sum(1 for row in nodes if row["takes_jobs"])
        used = sum(row["gpus_used"] for row in nodes)
        # Holders of Slurm have their GPUs as jobs have theirs.
        used = max(used - len(held), 0) if name == SLURM else used
        text = f": {working} of {len(nodes)} nodes accept {thing}s, "
        text += f"{used} of {sum(row['gpus'] for row in nodes)} GPUs in use"
        text += f", {len(held)} held" if held else ""
        running, wait = len(jobs) - len(waiting), part["waiting_total"]
        text += f"; {running} {f'{thing} runs' if running == 1 else f'{thing}s run'}, "
        text += f"{wait} {'waits' if wait == 1 else 'wait'}"
    out = [_head(name, part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    for row in part.get("partitions") or ():
        default = " (default)" if row["default"] else ""
        limit = "" if row["max_time"] in (None, "UNLIMITED") else f", {row['max_time']} at most"
        nodes_of = "1 node" if row["nodes"] == 1 else f"{row['nodes']} nodes"
        style = "plain" if row["state"] == "UP" else "changed"
        out.append([("faint", "    partition "), (style, f"{row['name']}{default}: {row['state']}, {nodes_of}{limit}")])
    for problem in part["unfenced"]:
        out += _problem(problem, width)
    for row in held:
        out.append([("changed", f"    {row['host']} GPU {_index(row)} held: out of service{_code(row)}")])
    out += _problems(part["problems"], None, width)
    if waiting:
        out += _waiting_lines(waiting, part["waiting_total"], width, "NAMESPACE" if name == KUBERNETES else "PARTITION")
    return out


def _is_only_control_plane(row: Mapping[str, Any]) -> bool:
    """Whether a node of Kubernetes takes no pods of users by design."""
    return bool(row.get("control_plane") and row["in_service"] and not row["drained"] and not row["takes_jobs"])


def _portal_lines(part: Mapping[str, Any], width: int) -> list[Line]:
    sessions = part["sessions"]
    text = f": {part['host']}" if part["host"] else ""
    if sessions:
        run, wait = sessions["run"], sessions["wait"]
        text += f"; {run} {'session runs' if run == 1 else 'sessions run'}, {wait} {'waits' if wait == 1 else 'wait'}"
    out = [_head("portal", part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    return out + _problems(part["problems"], None, width)


def _backup_lines(part: Mapping[str, Any], width: int) -> list[Line]:
    times = [host["newest"] for host in part["hosts"]]
    text = f": the oldest of the newest archives is of {_when(min(times), 0)}" if times and all(times) else ""
    out = [_head("backup", part, text)]
    out += _problem(part["problem"], width) if part["problem"] else []
    return out + _problems(part["problems"], None, width)


def _index(gpu: Mapping[str, Any]) -> str:
    return "?" if gpu["index"] is None else str(gpu["index"])


def _code(held: Mapping[str, Any]) -> str:
    return f", {held['code']}" if held["code"] else ""


def _waiting_lines(waiting: list[Mapping[str, Any]], total: int, width: int, place: str) -> list[Line]:
    rows = [
        (job["id"], job["user"], job["partition"] or "-", str(job["gpus"]), f"{job['waits_for']} ({job['reason']})")
        for job in waiting[:WAITING_SHOWN]
    ]
    out = table(("WAITS", "USER", place, "GPUS", "WHY"), rows, width)
    more = total - len(rows)
    return [*out, [("faint", f"    and {more} more")]] if more > 0 else out


def _lease_lines(leases: Iterable[Mapping[str, Any]], now: float, width: int) -> list[Line]:
    rows = [
        (
            lease["host"],
            gpu_indices(lease["gpus"]),
            lease["user"] or "-",
            lease["job"],
            _when(lease["started"], now),
            _when(lease["expected_end"], now),
            lease["name"] + (" (no process on its GPUs)" if lease["processes"] == 0 else ""),
        )
        for lease in leases
    ]
    return table(("HOST", "GPUS", "USER", "JOB", "SINCE", "UNTIL", "NAME"), rows, width, indent="")


def gpu_indices(gpus: Iterable[Mapping[str, Any]]) -> str:
    """The indices, with a question mark for each that is not known."""
    rows = list(gpus)
    if all(gpu["index"] is None for gpu in rows):
        return f"{len(rows)} of ?"
    return ",".join(sorted(map(_index, rows), key=lambda word: (not word.isdigit(), len(word), word)))


def _when(seconds: float | None, now: float) -> str:
    """A moment in the local time; the day is left out where it is today."""
    if seconds is None:
        return "-"
    then, today = time.localtime(seconds), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def _service_lines(name: str, part: Mapping[str, Any], width: int) -> list[Line]:
    out = [_head(name, part, f": {', '.join(part['hosts'])}" if part["hosts"] else "")]
    out += _problem(part["problem"], width) if part["problem"] else []
    return out + _problems(part["problems"], None, width)


_PARTS: dict[str, Callable[[Mapping[str, Any], int], list[Line]]] = {
    "storage": _storage_lines,
    "zookeeper": _zookeeper_lines,
    "mesos": _mesos_lines,
    **{name: functools.partial(_jobs_lines, name) for name in (SLURM, KUBERNETES)},
    "portal": _portal_lines,
    **{name: functools.partial(_service_lines, name) for name in SERVICES},
    "backup": _backup_lines,
}


def _total(document: Mapping[str, Any]) -> Line:
    when = time.strftime("%H:%M:%S", time.localtime(document["time"]))
    line: Line = [("plain", "the site is "), (STYLES[document["state"]], document["state"]), ("faint", f" at {when}")]
    if document["not_seen"]:
        line.append(("bad", f"; not seen: {', '.join(document['not_seen'])}"))
    return line
