# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a host out of a cluster, before anything is changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import ceph_conf

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
) -> list[str]:
    """Everything at once that speaks against a host.

    :param node: answer of ceph_node_info.
    :param rows: all monitors.
    :param name: what the daemons of this host are called.
    :param versions: version of Ceph of every host with daemons that is known.
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
