# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host of the site alone knows, and the timer that makes an archive of it every night.

The parts are what `gpuops backup` takes from a host and what `gpuops restore-head` writes there, with the timer or
without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import parts as backup_parts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.encryption import PATH as ENCRYPTION
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import unit_path, wrong

Row = dict[str, Any]

ROLE = "backup"
GROUP = "backup_hosts"
# Whose hosts know something that no other host does.
GROUPS = (
    *("slurm_controllers", "slurm_databases", "portals", "registries", "gpu_reconcilers", "zookeeper", "ceph_mons"),
    *("prometheus_servers", "grafana_servers", "kubernetes_control_planes", GROUP),
)
SETTINGS = "/etc/baremetal-gpu/backup.json"
PROGRAM = "/usr/libexec/baremetal-gpu/backup"
UNIT = "baremetal-gpu-backup"
METRICS = "baremetal_gpu_backup.prom"
RECONCILER = "baremetal-gpu-reconciler.service"
PORTAL = "/var/lib/baremetal-gpu-portal"
# kubeadm makes all other certificates and files of /etc/kubernetes from these.
PKI = [
    f"/etc/kubernetes/pki/{name}"
    for name in (
        "sa.pub",
        "sa.key",
        *(f"{of}.{end}" for of in ("ca", "front-proxy-ca", "etcd/ca") for end in ("crt", "key")),
    )
]
_PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
_CALENDAR = re.compile(r"[A-Za-z0-9*,./:~ -]{1,60}", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of a host.

    :param params: the variables of the role, and of other roles those that say where they keep what they know.
    :param peers: ``host``, the name of this host; ``groups``, the hosts of each group.
    :return: With the part `parts`, what belongs into an archive of the host.
    """
    found = parts(params, peers["host"], peers["groups"])
    if params["state"] == "absent":
        return Plan(_absent(params), parts={"parts": found})
    problems = tuple(_problems(params))
    if problems:
        return Plan(problems=problems, parts={"parts": []})
    return Plan(_present(params, peers["host"], found), parts={"parts": found})


def parts(params: Mapping[str, Any], host: str, groups: Mapping[str, Sequence[str]]) -> list[Row]:
    """What the host alone knows, as the module host_backup is given it."""
    found: list[Row] = []

    def is_in(*names: str) -> bool:
        return any(host in groups.get(name, ()) for name in names)

    controllers = list(groups.get("slurm_controllers", ()))
    # A second controller has the same directory.
    if controllers[:1] == [host]:
        # The reconciler keeps what it knows there.
        units = ["slurmctld.service", RECONCILER]
        state = _part("slurm", [params["slurm_state"]], "slurm", units, ["slurmctld"])
        found.append({**state, "saved_by": "slurmctld"})
    if is_in("slurm_databases"):
        database = _part("slurm_accounting", [], "", ["slurmdbd.service"], ["slurmdbd", "mariadb-server"])
        found.append({**database, "mariadb": str(params["slurm_database"])})
    if is_in("slurm_controllers", "slurm_databases"):
        found.append(_part("munge", ["/etc/munge/munge.key"], "munge", ["munge.service"]))
    if is_in("portals"):
        units = ["baremetal-gpu-portal.service", "baremetal-gpu-portal-proxy.service"]
        portal = _part("portal", [PORTAL], "baremetal-gpu-portal", units)
        # The copies of the database, and what the hub makes anew.
        portal["leave_out"] = [f"{PORTAL}/backups"]
        found.append({**portal, "sqlite": [f"{PORTAL}/jupyterhub.sqlite"]})
        people = [{key: row[key] for key in ("name", "group", "uid", "gid")} for row in params.get("people", ())]
        if people:
            found.append({**_part("passwords", []), "people": people})
    if is_in("registries"):
        found.append(_part("registry", ["/etc/baremetal-gpu/registry/htpasswd"]))
    if is_in("gpu_reconcilers", "slurm_controllers"):
        found.append(_part("gpu_reconciler", ["/var/lib/baremetal-gpu/reconciler"], "", [RECONCILER]))
    if is_in("zookeeper"):
        path, unit = str(params["zookeeper_data"]), "zookeeper.service"
        zookeeper = _part("zookeeper", [path], "zookeeper", [unit])
        found.append(_alone(zookeeper, groups["zookeeper"], "the other servers of the ensemble have it"))
    if is_in("ceph_mons"):
        unit = f"ceph-mon@{host}.service"
        # Its name is in the map of monitors, so it is no part of a host with another one.
        monitor = _part(f"ceph_mon.{host}", [f"/var/lib/ceph/mon/ceph-{host}"], "ceph", [unit], ["ceph-mon"])
        # RocksDB comes back from what is on the disk as after a power cut, but not from a copy made meanwhile.
        found.append(_alone({**monitor, "frozen": unit}, groups["ceph_mons"], "the other monitors have it"))
    if is_in("prometheus_servers"):
        unit = "prometheus-alertmanager.service"
        found.append(_part("alertmanager", ["/var/lib/prometheus/alertmanager"], "prometheus", [unit]))
    if is_in("grafana_servers"):
        database = "/var/lib/grafana/grafana.db"
        grafana = _part("grafana", [database], "grafana", ["grafana-server.service"], ["grafana"])
        found.append({**grafana, "sqlite": [database]})
    planes = list(groups.get("kubernetes_control_planes", ()))
    # The data of the others are the same.
    if planes[:1] == [host]:
        kubernetes = _part("kubernetes", [*PKI, ENCRYPTION, backup_parts.SNAPSHOT], "", [], ["kubeadm"])
        found.append({**kubernetes, "saved_by": "etcd"})
    if params["also"]:
        found.append(_part("also", [str(path) for path in params["also"]]))
    return found


def _part(
    name: str, paths: list[str], account: str = "", units: Sequence[str] = (), packages: Sequence[str] = ()
) -> Any:
    found: Row = {"name": name, "paths": paths, "units": list(units), "packages": list(packages)}
    return {**found, "account": account} if account else found


def _alone(part: Row, hosts: Sequence[str], why: str) -> Row:
    """A part of several hosts, of which one that is lost gets it back from the others."""
    return part if len(hosts) == 1 else {"name": part["name"], "paths": [], "not_needed": why}


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    if not _PATH.fullmatch(str(params["path"])):
        yield wrong("backup_path", "it is not a plain absolute path", params["path"], "give a path such as /mnt/backup")
    mount = str(params["mount"])
    if mount and not backup_parts.is_below(str(params["path"]), [mount]):
        yield wrong("backup_mount", "backup_path is not below it", mount, "give the mount point that backup_path is on")
    if not _CALENDAR.fullmatch(str(params["at"])):
        yield wrong("backup_at", "systemd does not read it", params["at"], "give a time such as '*-*-* 02:30'")
    if not 1 <= params["keep"] <= 1000:
        yield wrong("backup_keep", "it is not from 1 to 1000", params["keep"], "give a number such as 14")
    try:
        backup_parts.read([_part("also", [str(path) for path in params["also"]])])
    except Malformed as why:
        yield wrong("backup_also", str(why), params["also"], "give absolute paths, without a slash at the end")
    yield from textfile.directory_problems("backup_metrics_directory", str(params["metrics_directory"]))


def _present(params: Mapping[str, Any], host: str, found: list[Row]) -> doc.Document:
    directory = str(params["metrics_directory"])
    settings = {
        "host": host,
        "path": params["path"],
        "keep": params["keep"],
        "parts": found,
        "metrics": f"{directory}/{METRICS}" if directory else "",
    }
    units = {
        "service": render(ROLE, f"{UNIT}.service.j2", program=PROGRAM, settings=SETTINGS, mount=params["mount"]),
        "timer": render(ROLE, f"{UNIT}.timer.j2", at=params["at"]),
    }
    timer = unit_path(f"{UNIT}.timer")
    return doc.Document(
        files=[
            *(doc.Directory(path.rpartition("/")[0]) for path in (SETTINGS, PROGRAM)),
            doc.File(SETTINGS, json.dumps(settings, indent=2) + "\n", "0600"),
            doc.File(PROGRAM, bundle("backup.nightly"), "0755"),
            *textfile.directory(directory),
            *(doc.File(unit_path(f"{UNIT}.{kind}"), text) for kind, text in units.items()),
        ],
        units=[doc.Unit.running(f"{UNIT}.timer", [timer])],
    )


def _absent(params: Mapping[str, Any]) -> doc.Document:
    """The archives stay."""
    directory = str(params["metrics_directory"])
    paths = [unit_path(f"{UNIT}.timer"), unit_path(f"{UNIT}.service"), PROGRAM, SETTINGS]
    paths += [f"{directory}/{METRICS}"] if directory else []
    return doc.Document(units=[doc.Unit.stopped(f"{UNIT}.timer")], files=[*map(doc.Absent, paths)])
