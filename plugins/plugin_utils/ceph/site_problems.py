# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps hosts from making one cluster, by what the inventory and this run know of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

# Older ones speak no msgr2 in secure mode and have no subvolumes as this collection uses them.
OLDEST_RELEASE = 16
SET_ID = "set ceph_common_id of their hosts"


def of_monitors(monitors: Sequence[Mapping[str, str]]) -> list[Problem]:
    """What keeps monitors from forming a cluster.

    :param monitors: name and address of each.
    """
    names = [row["name"] for row in monitors]
    addresses = [row["address"] for row in monitors]
    problems = [
        Problem("monitor_name", f"mon.{name}", f"{names.count(name)} monitors are called {name}", name, SET_ID)
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        holders = ", ".join(row["name"] for row in monitors if row["address"] == address)
        cause = f"monitors {holders} have the same address {address}"
        problems.append(Problem("monitor_address", address, cause, holders, "set ceph_common_mon_address"))
    versions = set()
    for row in monitors:
        subject = f"mon.{row['name']}"
        try:
            parsed = ipaddress.ip_address(row["address"])
        except ValueError:
            cause = f"the address of monitor {row['name']} is {row['address']!r}, which is not an IP address"
            remedy = "set ceph_common_mon_address of its host to the one that clients reach it by"
            problems.append(Problem("monitor_address", subject, cause, row["address"], remedy))
            continue
        versions.add(parsed.version)
        if parsed.is_loopback and len(monitors) > 1:
            cause = f"the address of monitor {row['name']} is {parsed}, which no other host reaches"
            remedy = "set ceph_common_mon_address of its host to the one that clients reach it by"
            problems.append(Problem("monitor_address", subject, cause, row["address"], remedy))
    if len(versions) > 1:
        cause = "some monitors have an IPv4 and some an IPv6 address"
        problems.append(
            Problem("monitor_address", "monitors", cause, ", ".join(addresses), "give all of them one kind")
        )
    return problems


def of_names(hosts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Daemons, and hosts in the CRUSH map, that nobody could tell apart: one takes the place of the other.

    Monitors are looked at with their addresses; an OSD has a number, and its host a name in the CRUSH map. Of an OSD's
    host that has not been looked at nothing is known yet.
    """
    problems = []
    for kind in ("mgr", "mds"):
        for name, holders in _doubled(hosts, kind, "name"):
            cause = f"the {kind} daemons of {holders} are all called {name}"
            problems.append(Problem("daemon_name", f"{kind}.{name}", cause, holders, SET_ID))
    for name, holders in _doubled(hosts, "osd", "crush_host"):
        cause = f"the hosts {holders} are all {name} in the CRUSH map, so that copies on different ones count as on one"
        remedy = "give each a host name of its own, or name it in ceph_common_crush_location (host=...)"
        problems.append(Problem("crush_host", name, cause, holders, remedy))
    for host, row in hosts.items():
        if "mds" in row["kinds"] and row["name"][:1].isdigit():
            cause = f"the mds of {host} is called {row['name']}, and the name of an mds must not begin with a digit"
            problems.append(Problem("daemon_name", f"mds.{row['name']}", cause, host, "set ceph_common_id"))
    return problems


def _doubled(hosts: Mapping[str, Mapping[str, Any]], kind: str, key: str) -> list[tuple[str, str]]:
    """Names that several hosts with a kind of daemon have, and these hosts."""
    by_host = {host: row[key] for host, row in hosts.items() if kind in row["kinds"] and row[key]}
    names = list(by_host.values())
    return [
        (name, ", ".join(host for host in by_host if by_host[host] == name))
        for name in sorted({name for name in names if names.count(name) > 1})
    ]


def of_releases(hosts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Releases of Ceph that do not go together, or that are too old."""
    releases = {host: release(row["version"]) for host, row in hosts.items()}
    known = {host: number for host, number in sorted(releases.items()) if number}
    problems = []
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{number} on {host}" for host, number in known.items())
        cause = f"daemons of different releases of Ceph do not make a cluster that lasts ({listed})"
        remedy = "leave the others to be clients, or use ceph_common_repositories to give every host one release"
        problems.append(Problem("different_releases", "ceph", cause, listed, remedy))
    problems += [
        Problem(
            "old_release",
            host,
            f"Ceph {number} of {host} is older than {OLDEST_RELEASE}",
            hosts[host]["version"],
            "name a repository in ceph_common_repositories",
        )
        for host, number in known.items()
        if number < OLDEST_RELEASE
    ]
    return problems


def release(version: str) -> int:
    """The number of a release, 18 for 18.2.7+ds-1; 0 for what is no version."""
    match = re.match(r"(?:\d+:)?(\d+)\.", version)
    return int(match[1]) if match else 0
