# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of ceph.conf, which all hosts of a cluster have in common.

Format: https://docs.ceph.com/en/latest/rados/configuration/ceph-conf/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.conf import address_vector

# Keys and data encrypted on the wire, of every connection; clients of before msgr2 are then shut out.
SECURE = {
    "ms_cluster_mode": "secure",
    "ms_service_mode": "secure",
    "ms_client_mode": "secure",
    "ms_mon_cluster_mode": "secure",
    "ms_mon_service_mode": "secure",
    "ms_mon_client_mode": "secure",
}
# Daemons take ports from here on. Ceph's own first is 6800, and those of Slurm, 6817 to 6820, come soon after it.
FIRST_PORT = 6830


def text(
    fsid: str,
    monitors: Sequence[Mapping[str, str]],
    public_network: str = "",
    cluster_network: str = "",
    secure: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Text of ceph.conf.

    :param monitors: [{name, address}]; their order does not matter.
    :param options: further options by section, which win over the ones set here.
    """
    ordered = sorted(monitors, key=lambda row: row["name"])
    sections: dict[str, dict[str, Any]] = {
        "global": {
            "fsid": fsid,
            "mon_host": " ".join(address_vector(row["address"]) for row in ordered),
            "ms_bind_port_min": FIRST_PORT,
        },
        # A client that asks for its id again without a proof has a way in; no client of today needs it.
        "mon": {"auth_allow_insecure_global_id_reclaim": False},
    }
    if public_network:
        sections["global"]["public_network"] = public_network
    if cluster_network:
        sections["global"]["cluster_network"] = cluster_network
    if any(":" in row["address"] for row in ordered):
        sections["global"].update({"ms_bind_ipv4": False, "ms_bind_ipv6": True})
    if secure:
        sections["global"].update(SECURE)
    for section, values in (options or {}).items():
        sections.setdefault(section, {}).update(values)
    lines = ["# Written by Ansible (baremetal.gpu.ceph_common). Changes made here are lost."]
    for section, values in sections.items():
        lines.append(f"\n[{section}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def read_at_start(kind: str, conf: str) -> str:
    """Of the text of a ceph.conf what running daemons of a kind (mon, mgr, osd, mds) do not hear of otherwise.

    Monitors are told by the monitors themselves, and other sections are those of clients and of other daemons.
    """
    blocks = (block for block in conf.split("\n\n") if block.startswith(("[global]", f"[{kind}]", f"[{kind}.")))
    return "\n\n".join(re.sub(r"(?m)^mon_host = .*\n?", "", block).rstrip("\n") for block in blocks) + "\n"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
