# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmdbd with MariaDB on the same host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document, Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import units

SLURMDBD = "slurmdbd.service"
CONFIG = "/etc/slurm/slurmdbd.conf"
SETTINGS = {
    "DbdHost": "localhost",
    "SlurmUser": "slurm",
    "AuthType": "auth/munge",
    "StorageType": "accounting_storage/mysql",
    "StorageHost": "localhost",
    "StorageUser": "slurm",
    "StorageLoc": "slurm_acct_db",
}
DATABASE: Document = {
    "packages": [{"name": "mariadb-server"}],
    "units": [{"name": "mariadb.service", "enabled": True, "state": "started"}],
}


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host. The part `database` is the document of MariaDB, which comes first."""
    settings = {**SETTINGS, **{str(key): str(value) for key, value in params["options"].items()}}
    lines = ["# Written by Ansible (baremetal.gpu.slurm_database). Changes made here are lost."]
    lines += [f"{key}={value}" for key, value in settings.items()]
    document = {
        "packages": [{"name": "slurmdbd"}],
        "files": [
            {"path": "/etc/slurm", "state": "directory", "mode": "0755"},
            # slurmdbd refuses one that others may read.
            {
                "path": CONFIG,
                "content": "\n".join(lines) + "\n",
                "mode": "0600",
                "owner": "slurm",
                "group": "slurm",
            },
            *units.drop_in("slurm_database", SLURMDBD),
        ],
        "units": [{"name": SLURMDBD, "enabled": True, "state": "started", "restart_on": [CONFIG, "slurmdbd"]}],
    }
    return Plan(document, parts={"database": DATABASE})
