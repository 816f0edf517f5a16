# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OSDs of a host, and the program that brings them up at every boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import osd_rows
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import expected_osds
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.ceph_common import USUAL_COPIES, number
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

PROGRAM = "/usr/libexec/baremetal-gpu/ceph-osd-activate"
UNIT = "ceph-osd-activate@.service"
DROP_IN = "/etc/systemd/system/ceph-osd@.service.d"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: devices, wipe, method, device_class, dmcrypt, looked (answer of ceph_osd_device_info) and result
        (answer of ceph_osd_device), each empty until it is there, and of the role ceph_mds pool_size and
        failure_domain, empty where they are not set.
    :param peers: hosts, see the filter ceph_hosts.
    :returns: without a document until the OSDs are made; with the parts rows (of devices, as the modules take them),
        site_problems (what no host of the site can go on with) and expected (what ceph_cluster_info is to expect of
        OSDs).
    """
    defaults = {key: params[key] for key in ("method", "device_class", "dmcrypt")}
    rows, problems = osd_rows.rows(params["devices"], defaults, params["wipe"])
    problems += refused(params["looked"]["devices"] if params["looked"] else ())
    parts = {
        "rows": rows,
        "site_problems": [problem.as_dict() for problem in _too_few_places(params, peers["hosts"])],
        "expected": expected_osds(peers["hosts"]),
    }
    # It has the units of the OSDs, and the program takes longer to make than all else here.
    if problems or not params["result"]:
        return Plan(problems=tuple(problems), parts=parts)
    return Plan(_document(rows, facts, params["result"].get("units", [])), parts=parts)


def refused(verdicts: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """The devices that cannot be taken, by the verdicts of ceph_osd_device_info."""
    return [
        Problem(
            "device_in_use",
            row["path"],
            f"{row['path']}: {row['why']}. No device was touched",
            row["why"],
            row["remedy"],
        )
        for row in verdicts
        if row["action"] == "refuse"
    ]


def _too_few_places(params: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """As many copies as the file system's pools are to have need as many hosts, or OSDs, to be on."""
    copies = number(params["pool_size"], USUAL_COPIES)
    domain = params["failure_domain"] or "host"
    devices = [row["devices"] for row in hosts.values() if "osd" in row["kinds"] and row["devices"]]
    places = {"osd": sum(devices), "host": len(devices)}.get(domain, copies)
    if places >= copies:
        return []
    one, several = ("an OSD", "devices") if domain == "osd" else ("a host", "hosts with devices")
    cause = (
        f"everything is to have {copies} copies (ceph_mds_pool_size), each on {one} of its own "
        f"(ceph_mds_failure_domain), but {several} in ceph_osd_devices of the group ceph_osds are {places} in number, "
        "so that the cluster would never be whole. No host was changed"
    )
    remedy = "list more devices, or set ceph_mds_pool_size and ceph_mds_pool_min_size lower"
    return [Problem("too_few_places", "ceph_mds_pool_size", cause, str(places), remedy)]


def _document(
    rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], units: Sequence[Mapping[str, Any]]
) -> doc.Document:
    # In Debian 12 it is part of ceph-osd.
    is_apart = (facts["distribution"], facts["distribution_major_version"]) != ("Debian", "12")
    needs_volume = is_apart and any(row["method"] == "lvm" for row in rows)
    unit_text = render("ceph_osd", f"{UNIT}.j2", program=PROGRAM)
    return doc.Document(
        packages=[doc.Package("ceph-volume")] if needs_volume else [],
        files=[
            doc.Directory(PROGRAM.rpartition("/")[0]),
            doc.Directory(DROP_IN),
            doc.File(PROGRAM, bundle("ceph.osd.activate"), "0755"),
            doc.File(f"/etc/systemd/system/{UNIT}", unit_text),
            doc.File(f"{DROP_IN}/10-activate.conf", render("ceph_osd", "10-activate.conf.j2")),
        ],
        units=[doc.Unit(**unit) for unit in units],
    )
