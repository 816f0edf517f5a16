# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of people on a host. They are made by the module cluster_accounts; the document has what sshd reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.system.accounts import KEYS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

# Of what several files set, sshd takes the first.
DROP_IN = "/etc/ssh/sshd_config.d/10-baremetal-gpu-keys.conf"
SETTING = f"""# Written by Ansible (baremetal.gpu.users). Changes made here are lost.
# Those of {KEYS} are in the list of the site's users, the others are the user's own.
AuthorizedKeysFile .ssh/authorized_keys {KEYS}/%u
"""


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: `lists`, what the filter site_users made of the lists; `shell` and `home_root` of those who have no
        own; `homes_users`, what a site without `cluster_users` sets, or null.
    :param facts: `ssh_unit`, what the module cluster_accounts has found; empty before.
    :returns: with the part `accounts`, for that module.
    """
    lists = params["lists"]
    problems = [Problem(**row) for row in lists["problems"]]
    if params["homes_users"] and (lists["accounts"] or problems):
        problems.insert(0, _two_lists())
    accounts = [
        {**row, "shell": row["shell"] or params["shell"], "home": f"{params['home_root'].rstrip('/')}/{row['name']}"}
        for row in lists["accounts"]
    ]
    unit = facts["ssh_unit"]
    document = doc.Document(
        files=[doc.Directory("/etc/ssh/sshd_config.d"), doc.File(DROP_IN, SETTING)],
        units=[doc.Unit(unit, reload_on=[DROP_IN])] if unit else [],
    )
    return Plan(document, tuple(problems), {"accounts": accounts})


def _two_lists() -> Problem:
    return Problem(
        "two_lists",
        "cephfs_homes_users",
        "both cluster_users and cephfs_homes_users are set, and only one list can say who the users are",
        remedy="move the rows of cephfs_homes_users to cluster_users (`size` is `home_size` there, `archived` is "
        "`closed`, `absent` is `removed`), and take cephfs_homes_users out of the inventory",
    )
