# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus: what it scrapes, its rules, and how much it keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules, settings, targets, tls

Row = dict[str, Any]

ROLE = "prometheus"
UNIT = "prometheus.service"
ARGUMENTS = "/etc/default/prometheus"
CONFIG = "/etc/prometheus/prometheus.yml"
RULES = "/etc/prometheus/rules-baremetal-gpu"
# An operator's own rules.
OWN_RULES = "/etc/prometheus/rules.d"
TARGETS = "/etc/prometheus/targets"
PAGE = "/etc/prometheus/consoles/gpu.html"
NODE_JOB, CEPH_JOB = "node", "ceph"
# The hosts of slurmctld and the control planes of Kubernetes, whose metrics are of other hosts, too. Their series
# have the job `node` as well.
CONTROLLER_JOB = "node-of-scheduler"
CONTROLLERS = {"slurm_controllers", "kubernetes_control_planes"}
# What an earlier version has written.
FORMER_TARGETS = f"{TARGETS}/node-of-slurmctld.json"
JOBS = (NODE_JOB, CONTROLLER_JOB, CEPH_JOB)
# What a host may tell, so that none takes the memory or the space of all. A host with 8 GPUs has about 3,000 series.
BOUNDS = {
    "sample_limit": 50_000,
    "body_size_limit": "64MB",
    "label_limit": 60,
    "label_name_length_limit": 200,
    "label_value_length_limit": 4096,
}
CEPH_BOUNDS = {**BOUNDS, "sample_limit": 1_000_000, "body_size_limit": "512MB"}
# Metrics that only hosts with one of these labels of their targets may give: a node can say nothing of another one.
ONLY_FROM = {
    "slurm_controller": "slurm_.*|gpu_lease_.*",
    "kubernetes_control_plane": "kubernetes_.*",
    "reconciler": "gpuops_reconciler_.*",
    "zookeeper": "zookeeper_.*",
    "log_host": "baremetal_gpu_log_store_.*",
    "portal": "portal_.*",
}
# Where NVIDIA's DCGM exporter would listen on a host: dashboards made for it ask for instance="HOST:9400".
AS_EXPORTER = {
    "source_labels": ["__name__", "host"],
    "regex": "DCGM_.*;(.*)",
    "target_label": "instance",
    "replacement": "$1:9400",
}
_SIZE = re.compile(r"[1-9][0-9]*(?:MB|GB|TB)")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host that Prometheus runs on.

    :param params: ``state``, ``listen``, ``retention_time``, ``retention_size``, ``scrape_interval``, ``remote_write``,
        ``scrape_configs``, ``external_labels``, ``docs_url``, ``external_url``, ``node_tls``, ``ceph`` and
        ``alertmanager``, its address, empty for none.
    :param peers: ``host``, its name in the inventory; ``servers``, the hosts that Prometheus runs on; ``exporters``,
        those of node_exporter; ``groups`` and ``hostvars``, as Ansible has them; and ``certificates``, what
        cluster_certificates has returned; empty before.
    """
    if params["state"] == "absent":
        exporters, _mgrs = _hosts(params, peers)
        return Plan(_absent(has_exporter=peers["host"] in {host.name for host in exporters}))
    exporters, mgrs = _hosts(params, peers)
    is_controller = {host.name: bool(CONTROLLERS & set(host.groups)) for host in exporters}
    problems = (*_problems(params), *_server_problems(peers["servers"]), *targets.problems([*exporters, *mgrs]))
    if problems:
        return Plan(problems=problems)
    by_job = {
        NODE_JOB: [host for host in exporters if not is_controller[host.name]],
        CONTROLLER_JOB: [host for host in exporters if is_controller[host.name]],
        CEPH_JOB: mgrs,
    }
    has_tls = params["node_tls"] == "required"
    certificates = tls.files(peers["certificates"], peers["host"]) if has_tls and peers["certificates"] else []
    page = Path(ROLES, ROLE, "files", "gpu.html").read_text(encoding="utf-8")
    rule_files = {f"{RULES}/{name}": text for name, text in rules.rule_files(params["docs_url"]).items()}
    return Plan(
        doc.Document(
            packages=[doc.Package("prometheus")],
            files=[
                doc.File(ARGUMENTS, settings.arguments(ROLE, _words(params)), early=True),
                *map(doc.Directory, _DIRECTORIES),
                *certificates,
                *(doc.File(path, text) for path, text in rule_files.items()),
                *(
                    doc.File(f"{TARGETS}/{job}.json", targets.text(map(targets.entry, hosts)))
                    for job, hosts in by_job.items()
                ),
                doc.Absent(FORMER_TARGETS),
                doc.Absent(PAGE) if _portal_shows_gpus(peers) else doc.File(PAGE, page),
                doc.File(
                    CONFIG,
                    settings.yaml_text(ROLE, _config(params, peers["host"])),
                    # Those of the operator may have passwords.
                    "0640",
                    group=tls.GROUP,
                    sensitive=bool(params["remote_write"] or params["scrape_configs"]),
                    validate="promtool check config --syntax-only %s",
                ),
            ],
            units=[doc.Unit.running(UNIT, [ARGUMENTS, CONFIG, f"{RULES}/*", tls.AUTHORITY, "prometheus"])],
        ),
        parts={"url": f"http://{params['listen']}"},
    )


_DIRECTORIES = ("/etc/prometheus/consoles", RULES, OWN_RULES, TARGETS)


def _portal_shows_gpus(peers: Mapping[str, Any]) -> bool:
    """Whether everybody sees the GPUs behind the portal's login, so that there is no second page of them."""
    for host in peers["groups"].get("portals") or ():
        row = peers["hostvars"][host]
        has_numbers = host in peers["servers"] if "portal_prometheus" not in row else bool(row["portal_prometheus"])
        return has_numbers and row.get("portal_state") != "absent"
    return False


def _words(params: Mapping[str, Any]) -> list[str]:
    return [
        f"--web.listen-address={params['listen']}",
        f"--storage.tsdb.retention.time={params['retention_time']}",
        f"--storage.tsdb.retention.size={params['retention_size']}",
        *settings.external_url(params["external_url"]),
    ]


def _hosts(params: Mapping[str, Any], peers: Mapping[str, Any]) -> tuple[list[targets.Host], list[targets.Host]]:
    """The hosts of node_exporter, and those of Ceph's mgrs that are scraped."""
    groups, hostvars = peers["groups"], peers["hostvars"]
    mgrs = groups.get("ceph_mgrs", ()) if params["ceph"] else ()
    return (
        [
            targets.host_of(name, hostvars[name], groups)
            for name in sorted(peers["exporters"])
            if hostvars[name].get("node_exporter_state") != "absent"
        ],
        [targets.host_of(name, hostvars[name], groups, targets.CEPH_PORT) for name in sorted(mgrs)],
    )


def _config(params: Mapping[str, Any], host: str) -> Row:
    alertmanager = params["alertmanager"]
    return {
        "global": {
            "scrape_interval": params["scrape_interval"],
            "evaluation_interval": params["scrape_interval"],
            **({"external_labels": built_in(params["external_labels"])} if params["external_labels"] else {}),
        },
        # By name: one of a former version is not read any more.
        "rule_files": [*(f"{RULES}/{name}" for name in rules.rule_files()), f"{OWN_RULES}/*.yml"],
        **(
            {"alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}} if alertmanager else {}
        ),
        "scrape_configs": [
            _of_nodes(
                NODE_JOB, params, metric_relabel_configs=[*(_drop(*pair) for pair in ONLY_FROM.items()), AS_EXPORTER]
            ),
            _of_nodes(
                CONTROLLER_JOB,
                params,
                honor_labels=True,
                relabel_configs=[{"target_label": "job", "replacement": NODE_JOB}],
                metric_relabel_configs=[AS_EXPORTER],
            ),
            {
                "job_name": CEPH_JOB,
                "honor_labels": True,
                "file_sd_configs": [{"files": [f"{TARGETS}/{CEPH_JOB}.json"]}],
                **CEPH_BOUNDS,
            },
            _here("prometheus", params["listen"], host),
            *([_here("alertmanager", alertmanager, host)] if alertmanager else []),
            *built_in(params["scrape_configs"]),
        ],
        **({"remote_write": built_in(params["remote_write"])} if params["remote_write"] else {}),
    }


def _of_nodes(job: str, params: Mapping[str, Any], **more: Any) -> Row:
    found: Row = {"job_name": job, "file_sd_configs": [{"files": [f"{TARGETS}/{job}.json"]}], **BOUNDS, **more}
    if params["node_tls"] == "required":
        found |= {
            "scheme": "https",
            "tls_config": {"ca_file": tls.AUTHORITY, "cert_file": tls.CERTIFICATE, "key_file": tls.KEY},
        }
    return found


def _drop(label: str, metrics: str) -> Row:
    """A rule that drops metrics of targets without a label."""
    return {"source_labels": [label, "__name__"], "regex": f";({metrics})", "action": "drop"}


def _here(job: str, address: str, host: str) -> Row:
    return {"job_name": job, "static_configs": [{"targets": [address], "labels": {"host": host}}]}


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    yield from settings.listen_problems("prometheus_listen", str(params["listen"]), "Prometheus", "127.0.0.1:9090")
    yield from settings.link_problems("prometheus_docs_url", str(params["docs_url"]), "https://docs.example.org/gpu/")
    yield from settings.link_problems(
        "prometheus_external_url", str(params["external_url"]), "https://prom.example.org"
    )
    yield from settings.duration_problems("prometheus_retention_time", str(params["retention_time"]))
    yield from settings.duration_problems("prometheus_scrape_interval", str(params["scrape_interval"]))
    if not _SIZE.fullmatch(str(params["retention_size"])):
        yield Problem(
            "wrong_setting",
            "prometheus_retention_size",
            "it is not a valid size, and without one Prometheus may fill the disk",
            str(params["retention_size"]),
            "give a number and MB, GB or TB, such as 20GB",
        )
    jobs = [*JOBS, "prometheus", "alertmanager"]
    for entry in params["scrape_configs"]:
        job = entry.get("job_name") if isinstance(entry, Mapping) else None
        if not isinstance(job, str) or not job or job in jobs:
            yield Problem(
                "wrong_setting",
                "prometheus_scrape_configs",
                "an entry has no job_name, or one that is taken",
                str(job)[:200],
                "give each entry a job_name of its own",
            )
        else:
            jobs.append(job)


def _server_problems(servers: Sequence[str]) -> Iterator[Problem]:
    if len(servers) > 1:
        yield Problem(
            "two_servers",
            "prometheus_servers",
            "each alert would come from each of them",
            ", ".join(servers),
            "let the group have one host; remote_write can copy its data elsewhere",
        )


def _absent(has_exporter: bool) -> doc.Document:
    """The data stays."""
    return doc.Document(
        units=[doc.Unit.stopped(UNIT)],
        packages=[doc.Package("prometheus", "absent")],
        files=[
            *map(doc.Absent, (PAGE, CONFIG, ARGUMENTS, FORMER_TARGETS)),
            *([] if has_exporter else tls.absent()),
            *(doc.Absent(f"{RULES}/{name}") for name in rules.rule_files()),
            *(doc.Absent(f"{TARGETS}/{job}.json") for job in JOBS),
        ],
    )
