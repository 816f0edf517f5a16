# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a home on CephFS, and what a client mounts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import users as ceph_users
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import wrong

# Stand-ins for what there is only after a first run, for check mode.
ANNOUNCED_PATH = "/announced"
ANNOUNCED_SECRET = "announced"
# What a client's proof is written into. It is there only while the proof runs.
SCRATCH = "baremetal-gpu-scratch"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role, which has no document of its own: its mounts are those of the role cephfs_client.

    :param params: users, groups, size, root, shares and removed_days.
    :param facts: group and passwd, the lines of getent for the groups and the users; passwd is null before it ran.
    :param peers: clients (how many hosts mount), and what the host with the key of client.admin has answered, each null
        before: homes (answer of ceph_homes), home_secrets, shares (answers of ceph_subvolume), share_secrets, scratch
        (answer of ceph_subvolume) and scratch_secret; secrets as slurp reads them.
    :returns: with the parts names (whom to look up), homes (for ceph_homes), remarks (what to warn of),
        scratch_size (the quota of the proof's directory), and client: mounts and scratch for the role cephfs_client.
    """
    lines = facts["group"]
    homes, problems = ceph_users.homes(params["users"], facts["passwd"] or (), lines, params["size"])
    unknown = [name for name in params["groups"] if name not in {line.split(":")[0] for line in lines}]
    if unknown:
        problems.insert(0, _unknown_groups(unknown))
    days = int(params["removed_days"])
    if days < 1:
        cause = "a home that is removed has to stay for a day or more"
        problems.append(wrong("cephfs_homes_removed_days", cause, days, "give a number of days, such as 30"))
    parts: dict[str, Any] = {
        "names": list(dict.fromkeys([*(user["name"] for user in params["users"]), *ceph_users.members(lines)])),
        "homes": homes,
        "remarks": ceph_users.left_out(lines),
        # Every host writes 4 MiB, and then one of them on until the quota refuses.
        "scratch_size": f"{16 + 4 * int(peers['clients'])}M",
        "client": {"mounts": _mounts(params, homes, peers) if peers["homes"] else [], "scratch": _scratch(peers)},
    }
    return Plan(problems=tuple(problems), parts=parts)


def _unknown_groups(names: Sequence[str]) -> Problem:
    listed = ", ".join(names)
    return Problem(
        "unknown_group",
        "cephfs_homes_groups",
        f"the host does not know {listed} of cephfs_homes_groups",
        listed,
        "see 'getent group NAME' there, and for a directory 'systemctl status sssd'; or take the group out",
    )


def _mounts(
    params: Mapping[str, Any], homes: Sequence[Mapping[str, Any]], peers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    secret_text = _content(peers["home_secrets"])
    secrets = json.loads(secret_text) if secret_text else {}
    current = peers["homes"]["homes"]
    mounts = []
    for home in homes:
        if home["state"] != "present":
            continue
        name = home["name"]
        known = current.get(name) or {}
        mounts.append(
            {
                "path": f"{params['root']}/{name}",
                "subpath": known.get("path", ANNOUNCED_PATH),
                "client": known.get("client", f"home.{name}"),
                "secret": (secrets.get(name) or {}).get("key", ANNOUNCED_SECRET),
            }
        )
    for share, answer, secret in zip(
        params["shares"], peers["shares"]["results"], peers["share_secrets"]["results"], strict=False
    ):
        mounts.append(
            {
                "path": share["path"],
                "subpath": (answer.get("subvolume") or {}).get("path", ANNOUNCED_PATH),
                "client": f"share.{share['name']}",
                "secret": (_content(secret) or ANNOUNCED_SECRET).strip(),
                "read_only": True,
            }
        )
    return mounts


def _scratch(peers: Mapping[str, Any]) -> dict[str, Any]:
    """The directory of the proof; empty where there is no proof."""
    place, secret = (peers["scratch"] or {}).get("subvolume"), _content(peers["scratch_secret"])
    if not place or not secret:
        return {}
    return {"subpath": place["path"], "client": SCRATCH, "secret": secret.strip()}


def _content(answer: Mapping[str, Any] | None) -> str:
    """The text of a file that slurp has read; empty where it has not."""
    return base64.b64decode((answer or {}).get("content", "")).decode()
