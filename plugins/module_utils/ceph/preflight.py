# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a host out of a cluster, before anything is changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf

# Older ones speak no msgr2 in secure mode and have no subvolumes as this collection uses them.
OLDEST_RELEASE = 16
# The package lists of a bare host know no Ceph yet. https://packages.debian.org/ceph, https://packages.ubuntu.com/ceph
DISTRIBUTIONS = {"debian-12": "16.2", "debian-13": "18.2", "ubuntu-22.04": "17.2", "ubuntu-24.04": "19.2"}


def monitors(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names and addresses of the monitors on hosts, by what the inventory says of each."""
    rows = []
    for host in hosts:
        known = variables[host]
        address = known.get("ceph_common_mon_address") or known.get("ansible_host") or host
        rows.append({"name": mon_id(host, known), "address": str(address)})
    return rows


def mon_id(host: str, known: Mapping[str, Any]) -> str:
    """What the daemons of a host are called: by default the first part of its name."""
    return str(known.get("ceph_common_id") or host.partition(".")[0])


# The kinds of daemons that are called as their host is, by the group of their hosts. Monitors are looked at with their
# addresses; an OSD has a number, and its host a name in the CRUSH map.
NAMED = {"mgr": "ceph_mgrs", "mds": "ceph_mdss"}


def names(groups: Mapping[str, Sequence[str]], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """What tells daemons apart, by kind and host: `mgr`, `mds`, and for `osd` the host names in the CRUSH map.

    Of an OSD's host that has not been looked at nothing is known yet.
    """
    found = {
        kind: {host: mon_id(host, variables[host]) for host in groups.get(group) or ()} for kind, group in NAMED.items()
    }
    found["osd"] = {}
    for host in groups.get("ceph_osds") or ():
        known = variables[host]
        location = re.search(r"(?:^|\s)host=(\S+)", str(known.get("ceph_common_crush_location") or ""))
        named = location[1] if location else str((known.get("ceph_common_node") or {}).get("hostname") or "")
        if named:
            found["osd"][host] = named
    return found


def problems_of_names(named: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Daemons, and hosts in the CRUSH map, that nobody could tell apart: one takes the place of the other."""
    wrong = []
    for kind, by_host in named.items():
        for name in sorted({name for name in by_host.values() if list(by_host.values()).count(name) > 1}):
            hosts = ", ".join(host for host in by_host if by_host[host] == name)
            wrong.append(
                f"the hosts {hosts} are all {name} in the CRUSH map, so that copies on different ones count as on one: "
                "give each a host name of its own, or name it in ceph_common_crush_location (host=...)"
                if kind == "osd"
                else f"the {kind} daemons of {hosts} are all called {name}: set ceph_common_id of their hosts"
            )
    wrong += [
        f"the mds of {host} is called {name}, and the name of an mds must not begin with a digit: set ceph_common_id"
        for host, name in named.get("mds", {}).items()
        if name[:1].isdigit()
    ]
    return wrong


def version_of_distribution(path: str = "/etc/os-release") -> str:
    """The release of Ceph that the packages of a distribution have; empty if that is not known."""
    try:
        with open(path, encoding="utf-8") as file:
            pairs = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return ""
    return DISTRIBUTIONS.get("-".join(pairs.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID")), "")


def release(version: str) -> int:
    """The number of a release, 18 for 18.2.7+ds-1; 0 for what is no version."""
    match = re.match(r"(?:\d+:)?(\d+)\.", version)
    return int(match[1]) if match else 0


def problems(
    node: Mapping[str, Any],
    fsid: str,
    rows: Sequence[Mapping[str, str]],
    name: str,
    is_monitor: bool,
    versions: Mapping[str, str],
    groups: Mapping[str, Sequence[str]] | None = None,
    variables: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Everything at once that speaks against a host.

    :param node: answer of ceph_node_info.
    :param rows: all monitors.
    :param name: what the daemons of this host are called.
    :param versions: version of Ceph of every host with daemons that is known.
    :param groups: the hosts of the inventory by group.
    :param variables: what is known of each host.
    """
    wrong = [
        f"{trace['where']} belongs to the cluster {trace['fsid']}, not to {fsid}: take that cluster off the host "
        "first, or correct the secrets of this one"
        for trace in node["traces"]
        if trace["fsid"] not in ("", fsid)
    ]
    if is_monitor:
        own = next((row["address"] for row in rows if row["name"] == name), "")
        if own and own not in node["addresses"]:
            wrong.append(
                f"its monitor's address {own} is none of the host's ({', '.join(node['addresses'])}): set "
                "ceph_common_mon_address"
            )
    wrong += ceph_conf.problems_of_monitors(rows)
    wrong += problems_of_names(names(groups or {}, variables or {}))
    known = {host: release(text) for host, text in versions.items() if release(text)}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{number} on {host}" for host, number in sorted(known.items()))
        wrong.append(
            f"daemons of different releases of Ceph do not make a cluster that lasts ({listed}): leave the others "
            "to be clients, or give all the same release by ceph_common_repositories"
        )
    wrong += [
        f"Ceph {number} of {host} is older than {OLDEST_RELEASE}: name a repository in ceph_common_repositories"
        for host, number in sorted(known.items())
        if number < OLDEST_RELEASE
    ]
    return wrong
