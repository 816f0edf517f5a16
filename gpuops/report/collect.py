# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a report, from the records of runs and from one look at the site."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.system import distributions
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, parse, rows, text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import texts as lines
from gpuops import __version__
from gpuops.report import drawings
from gpuops.run import events, host_reports, playbooks, records
from gpuops.site import Site
from gpuops.status.document import SERVICES

VERSION = 1
# Where the role gpu_verify leaves its reports by default, in what gpuops remembers.
PROOFS = "verify"
# Where earlier versions left them: beside the inventory, and where Ansible was started.
EARLIER_BESIDE, EARLIER_HERE = "reports", Path("artifacts/gpu_verify")
REASON_AT_MOST = 2000
# 10^9 bytes per second and lane in one direction, by generation of PCI Express, line coding taken off.
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


class Facts:
    """Takes the events of baremetal.gpu.status: the facts of each host's GPUs."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, Any]] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult) or not event.succeeded or event.task.action != "gpu_facts":
            return
        facts = mapping(event.result.get("ansible_facts")).get("gpu")
        if isinstance(facts, dict):
            self.hosts[event.host] = facts


def system(key: str | None) -> str | None:
    """The name of an operating system, by the key that a plan gives it: Debian 13 for debian13."""
    return str(distributions.SUPPORTED[key]["name"]) if key in distributions.SUPPORTED else key


def memory_nominal(gpu: Mapping[str, Any]) -> float | None:
    """What the GPU's memory can do, in 10^9 bytes per second: two transfers a clock over the whole bus."""
    clock, bits = number(gpu.get("memory_clock_mhz")), number(gpu.get("memory_bus_bits"))
    return clock * 2 * bits / 8 / 1000 if clock and bits else None


def pcie_nominal(pcie: Any) -> float | None:
    """What the GPU's link can do in one direction, in 10^9 bytes per second, as it is trained now."""
    lane = PCIE_LANE_GB_S.get(int(number(mapping(pcie).get("generation")) or 0))
    width = number(mapping(pcie).get("width"))
    return lane * width if lane and width else None


def last_run(site: Site) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """(the last real run with its failures, the reports of hosts); a host keeps the report of an earlier run."""
    runs = [
        (path, record)
        for path, record in records.earlier(site.remembered)
        # Draining a host is no part of bringing up the site.
        if not record.check and record.playbook not in (playbooks.DRAIN, playbooks.RESTORE, playbooks.ACCEPT)
    ]
    known: dict[str, dict[str, Any]] = {}
    for path, record in runs:
        for host, row in host_reports.load(path / host_reports.FILE).items():
            known.setdefault(host, {}).update(row)
            if "verify" in row:
                known[host]["verified"] = record.started
    if not runs:
        return None, known
    path, record = runs[-1]
    return {
        "playbook": record.playbook,
        "limit": "" if record.limit.startswith("@") else record.limit,
        "resumed": record.limit.startswith("@"),
        "tags": record.tags,
        "started": record.started,
        "seconds": record.seconds,
        "interrupted": record.interrupted,
        "stages": record.stages,
        "hosts": record.hosts,
        "cells": record.cells,
        "spans": _at_work(record),
        "failures": _failures(path),
    }, known


def _at_work(record: records.Record) -> dict[str, dict[str, list[float]]]:
    """The spans without those of stages that a host skipped: it was only waiting there for the others."""
    return {
        name: {
            stage: span for stage, span in spans.items() if record.cells.get(name, {}).get(stage) != progress.SKIPPED
        }
        for name, spans in record.spans.items()
    }


def _failures(path: Path) -> list[dict[str, Any]]:
    try:
        found = [parse(row) for row in (path / records.EVENTS).read_text(encoding="utf-8").split("\n") if row]
    except (OSError, ValueError):
        return []
    keys = ("host", "kind", "stage", "task")
    return [
        {**{key: text(row.get(key)) for key in keys}, "reasons": _reasons(row.get("reasons"))}
        for row in rows(found)
        if row.get("event") == "failure"
    ]


def _reasons(found: Any) -> list[dict[str, str]]:
    return [{key: text(row.get(key), REASON_AT_MOST) for key in ("cause", "remedy")} for row in rows(found)]


def gather(
    site: Site, status: Mapping[str, Any], facts: Mapping[str, dict[str, Any]], proofs: Sequence[Path] | None = None
) -> dict[str, Any]:
    """The whole report as data.

    :param status: the document of gpuops status.
    :param proofs: directories with what the role gpu_verify has left of hosts, also when gpuops did not run it; where
        it leaves that by itself if nothing is given.
    """
    kept = proofs or places(site)
    run, known = last_run(site)
    hosts = []
    for node in status.get("nodes", []):
        name = node["name"]
        remembered = known.get(name, {})
        row = {**remembered, "verify": proof(remembered, node["gpus"], [place / f"{name}.json" for place in kept])}
        try:
            hosts.append(host(node, facts.get(name, {}), row, run))
        except events.UNEXPECTED_SHAPE:
            # What somebody has made of its facts and reports is left out, and the others are in the report as they are.
            hosts.append(host(node, {}, {}, run))
    return {
        "version": VERSION,
        "gpuops": __version__,
        "site": site.directory.parent.name if site.directory.name == "inventory" else site.directory.name,
        "time": round(time.time(), 1),
        "state": status["state"],
        "not_seen": status["not_seen"],
        "hosts": hosts,
        "storage": status["storage"],
        "zookeeper": status["zookeeper"],
        "mesos": status["mesos"],
        "slurm": status["slurm"],
        "kubernetes": status["kubernetes"],
        "portal": status["portal"],
        **{name: status[name] for name in SERVICES},
        "backup": status["backup"],
        "leases": status["leases"],
        "run": run,
    }


def places(site: Site) -> list[Path]:
    """Directories in which the role gpu_verify may have left its reports."""
    return [site.remembered / PROOFS, site.directory / EARLIER_BESIDE, EARLIER_HERE]


def proof(known: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    """What was proved of a host's GPUs: what gpuops remembers, or one of the files where that came later."""
    newest = mapping(known.get("verify"))
    when = known.get("verified") or 0
    for path in paths:
        left = mapping(records.document(path))
        # Another site has hosts of the same name, but not the same GPUs.
        if _uuids(rows(left.get("devices"))) & _uuids(gpus) and (written := path.stat().st_mtime) >= when:
            newest, when = left, written
    return newest


def _uuids(gpus: Sequence[Mapping[str, Any]]) -> set[str]:
    return {gpu["uuid"] for gpu in gpus if isinstance(gpu.get("uuid"), str)}


def host(
    node: Mapping[str, Any], facts: Mapping[str, Any], known: Mapping[str, Any], run: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One host: its state now, its plan, its GPUs with what was measured beside what is nominal."""
    verify, plan, driver = mapping(known.get("verify")), mapping(known.get("plan")), mapping(facts.get("driver"))
    measured = {text(gpu.get("uuid")): gpu for gpu in rows(verify.get("devices"))}
    links = {text(gpu.get("uuid")): gpu for gpu in rows(facts.get("devices"))}
    gpus = [
        {
            **gpu,
            "verification": verification(
                measured.get(text(gpu["uuid"])), mapping(links.get(text(gpu["uuid"]))).get("pcie")
            ),
        }
        for gpu in node["gpus"]
    ]
    name = node["name"]
    return {
        "name": name,
        "state": node["state"],
        "problem": node["problem"],
        "reasons": node["reasons"],
        "plan": lines(plan.get("steps")),
        "system": system(text(mapping(plan.get("os")).get("key")) or None),
        "driver": {key: text(driver.get(key)) or None for key in ("loaded", "branch", "flavour", "cuda")},
        "gpus": gpus,
        "topology": facts.get("topology") if drawings.scores(facts.get("topology")) else None,
        "verified": None if not verify else {"ok": verify.get("ok") is True, "causes": _causes(verify.get("causes"))},
        "stages": (run or {}).get("cells", {}).get(name, {}),
    }


def _causes(found: Any) -> list[dict[str, str]]:
    keys = ("where", "code", "text", "remedy")
    return [{key: text(row.get(key), REASON_AT_MOST) for key in keys} for row in rows(found)]


def verification(measured: Mapping[str, Any] | None, pcie: Any) -> dict[str, Any] | None:
    """What was proved of a GPU, rates in 10^9 bytes per second; None for one that was not verified."""
    if not measured:
        return None
    copy = mapping(measured.get("copy"))
    return {
        "ok": measured.get("ok") is True,
        "host_to_device_gb_s": number(copy.get("host_to_device_gb_s")),
        "device_to_host_gb_s": number(copy.get("device_to_host_gb_s")),
        "pcie_nominal_gb_s": _rounded(pcie_nominal(pcie)),
        "device_to_device_gb_s": number(copy.get("device_to_device_gb_s")),
        # A byte that is copied on the GPU is read and written.
        "copy_nominal_gb_s": _rounded(_half(memory_nominal(measured))),
        "kernel_ok": mapping(measured.get("kernel")).get("ok") is True,
    }


def _half(value: float | None) -> float | None:
    return None if value is None else value / 2


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
