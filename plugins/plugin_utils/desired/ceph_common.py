# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all hosts of a Ceph cluster have in common: packages, ceph.conf and keyrings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.conf import keyring
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.processes import SETTINGS
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.readiness import ROOM_REMEDY
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import conf_text, site_problems
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import daemon_name
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

# The packages by family of systems. On Enterprise Linux they come from the repository of CentOS' storage group or of
# the operator. https://docs.ceph.com/en/latest/install/get-packages/
PACKAGES = {
    # monmaptool and the directories of bootstrap keys are in ceph-base, which of the daemons only OSDs bring.
    "Debian": ("ceph-common", "ceph-base"),
    "RedHat": ("ceph-common",),
}
# Pools that Ceph makes by itself have so many copies anyway.
USUAL_COPIES = 3
# A monitor that has no more, in percent, ends itself (mon_data_avail_crit).
LEAST_ROOM = 5.0


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: the role's variables without their prefix, with host (its name in the inventory), node (answer of
        ceph_node_info) and secrets (answer of ceph_secrets), each empty until it is there, and of the role ceph_mds
        pool_size, pool_min_size and failure_domain, empty where they are not set.
    :param peers: hosts, see the filter ceph_hosts.
    :returns: with the part held, the UUIDs of clusters that hosts of this run belong to.
    """
    hosts = peers["hosts"]
    parts = {"held": [fsid for row in hosts.values() for fsid in row["fsids"]]}
    fsid = (params["secrets"] or {}).get("fsid")
    if not fsid:
        return Plan(parts=parts)
    problems = _problems(params, facts, hosts, fsid)
    return (
        Plan(parts=parts, problems=tuple(problems))
        if problems
        else Plan(_document(params, facts, hosts, fsid), parts=parts)
    )


def keys(params: Mapping[str, Any]) -> Mapping[str, str]:
    """The keys that the cluster starts with, by name.

    Ansible hides what a module was given as a secret in all that it returns, so they come from where the operator has
    them.
    """
    from_operator: bool = bool(params["fsid"])
    listed: Mapping[str, str] = params["keys"] if from_operator else params["secrets"]["keys"]
    return listed


def number(value: Any, default: int) -> int:
    """A number of the inventory; by default where it is not set, which is an empty text."""
    return default if value == "" else int(value)


def _problems(
    params: Mapping[str, Any], facts: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]], fsid: str
) -> list[Problem]:
    host = params["host"]
    problems = []
    if facts["os_family"] not in PACKAGES:
        system = f"{facts['distribution']} {facts['distribution_version']}"
        cause = f"{system} is not among the systems that these roles know ({', '.join(PACKAGES)})"
        problems.append(Problem("unknown_system", host, cause, system, "use a host with one of these systems"))
    node = params["node"]
    problems += [
        Problem(
            "other_cluster",
            host,
            f"{trace['where']} belongs to the cluster {trace['fsid']}, not to {fsid}",
            trace["fsid"],
            "take that cluster off the host first, or correct the secrets of this one",
        )
        for trace in node["traces"]
        if trace["fsid"] not in ("", fsid)
    ]
    monitors = _monitors(hosts)
    name = daemon_name(host, params["id"])
    if "mon" in _kinds(host, hosts):
        own = next((row["address"] for row in monitors if row["name"] == name), "")
        if own and own not in node["addresses"]:
            listed = ", ".join(node["addresses"])
            cause = f"its monitor's address {own} is none of the host's ({listed})"
            problems.append(Problem("monitor_address", f"mon.{name}", cause, listed, "set ceph_common_mon_address"))
        if node.get("room", 100.0) <= LEAST_ROOM:
            room = f"{node['room']:g} %"
            cause = f"only {room} of the file system of /var/lib/ceph is available, and no monitor works with so little"
            problems.append(Problem("monitor_room", f"mon.{name}", cause, room, ROOM_REMEDY))
    problems += site_problems.of_monitors(monitors)
    problems += site_problems.of_names(hosts)
    problems += site_problems.of_releases(hosts)
    return problems


def _kinds(host: str, hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    kinds: list[str] = hosts[host]["kinds"] if host in hosts else []
    return kinds


def _monitors(hosts: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in hosts.values() if "mon" in row["kinds"]]


def _document(
    params: Mapping[str, Any], facts: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]], fsid: str
) -> doc.Document:
    kinds = _kinds(params["host"], hosts)
    secrets = keys(params)
    text = conf_text.text(
        fsid,
        _monitors(hosts),
        params["public_network"],
        params["cluster_network"],
        params["secure"],
        _options(params),
    )
    # ceph-crash leaves root's rights behind before it reads its key and puts aside what it has handed in. Debian's
    # package leaves the directory to root, so that every report would be handed in again and again.
    posted = doc.Directory("/var/lib/ceph/crash/posted", owner="ceph", group="ceph")
    files: list[doc.Entry] = [
        doc.File("/etc/ceph/ceph.conf", text),
        _keyring("/etc/ceph/ceph.client.crash.keyring", "client.crash", secrets, "ceph"),
        posted,
    ]
    if params["admin"]:
        files.append(_keyring("/etc/ceph/ceph.client.admin.keyring", "client.admin", secrets))
    # The key that lets a daemon of a kind get its own; a monitor needs none.
    files += [
        _keyring(f"/var/lib/ceph/bootstrap-{kind}/ceph.keyring", f"client.bootstrap-{kind}", secrets)
        for kind in kinds
        if kind != "mon"
    ]
    # After ceph.conf, so that a run that is cut between the two leaves a difference.
    if kinds:
        files.append(doc.Directory(SETTINGS))
    files += [doc.File(f"{SETTINGS}/{kind}.conf", conf_text.read_at_start(kind, text)) for kind in kinds]
    packages = [*PACKAGES[facts["os_family"]], *(f"ceph-{kind}" for kind in kinds)]
    return doc.Document(repositories=params["repositories"], packages=[*map(doc.Package, packages)], files=files)


def _keyring(path: str, name: str, secrets: Mapping[str, str], owner: str = "root") -> doc.File:
    return doc.File(path, keyring({name: secrets[name]}), "0600", owner, owner, sensitive=True)


def _options(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options of ceph.conf by section; those of the operator win, but for the place in the CRUSH map."""
    options: dict[str, dict[str, Any]] = {"global": _copies(params)}
    for section, values in params["options"].items():
        options.setdefault(section, {}).update(values)
    if params["crush_location"]:
        options.setdefault("osd", {})["crush_location"] = params["crush_location"]
    return options


def _copies(params: Mapping[str, Any]) -> dict[str, Any]:
    """Pools that Ceph makes by itself have as many copies as those of the file system, and in as many places.

    What Ceph does anyway is left out.
    """
    options: dict[str, Any] = {}
    size = number(params["pool_size"], USUAL_COPIES)
    if size != USUAL_COPIES:
        least = number(params["pool_min_size"], 2)
        options.update({"osd_pool_default_size": size, "osd_pool_default_min_size": least})
    if params["failure_domain"] == "osd":
        options["osd_crush_chooseleaf_type"] = 0
    return options
