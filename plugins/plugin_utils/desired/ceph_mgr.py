# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manager of a host, and the modules of all managers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.hosts import daemon_name
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

STUB = "/usr/share/ceph/mgr/bcrypt.py"
STUB_TEXT = '''\
# Written by Ansible (baremetal.gpu.ceph_mgr). Stands in front of the system's bcrypt, which the mgr cannot load.
"""Nothing but the names that the modules of the mgr import."""


def _refuse(*args, **kwargs):
    raise NotImplementedError("there is no bcrypt that the mgr can load, so no password can be hashed")


hashpw = gensalt = checkpw = _refuse
'''


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: host (its name in the inventory), modules, bcrypt, and of the role ceph_common id and version (of
        Ceph on the host).
    :returns: with the parts name (of the mgr), defect (whether the mgr cannot load the system's bcrypt), on and off
        (names of modules).
    """
    # python3-bcrypt 4.2 is made with PyO3, which refuses the subinterpreters that the mgr runs each module in;
    # mgr_util imports it, and so does nearly every module. The module restful needs more of the kind. Seen with 18.2.7.
    defect = (
        facts["distribution"] == "Debian"
        and facts["distribution_major_version"] == "13"
        and params["version"].startswith("18.")
    )
    name = daemon_name(params["host"], params["id"])
    modules = {**({"restful": False} if defect else {}), **params["modules"]}
    parts = {
        "name": name,
        "defect": defect,
        "on": [module for module, is_on in modules.items() if is_on],
        "off": [module for module, is_on in modules.items() if not is_on],
    }
    if defect and params["bcrypt"] == "refuse":
        return Plan(problems=(_unloadable(f"mgr.{name}", params["version"], facts),), parts=parts)
    stub = [doc.File(STUB, STUB_TEXT)] if defect else []
    return Plan(doc.Document(files=stub, units=[doc.Unit.running(f"ceph-mgr@{name}", [STUB])]), parts=parts)


def _unloadable(subject: str, version: str, facts: Mapping[str, Any]) -> Problem:
    system = f"{facts['distribution']} {facts['distribution_major_version']}"
    return Problem(
        "mgr_bcrypt",
        subject,
        f"the mgr {version} of {system} cannot load volumes, balancer and others, because the system's bcrypt does not "
        "load in a subinterpreter",
        version,
        "set ceph_mgr_bcrypt to stub, which costs the dashboard its passwords, or name another source in "
        "ceph_common_repositories",
    )
