# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmdbd with MariaDB on the same host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import jwt, units

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
DATABASE = doc.Document(packages=[doc.Package("mariadb-server")], units=[doc.Unit.running("mariadb.service")])


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the host.

    :param params: ``options`` of slurmdbd.conf, and ``jwt_key``, the key of tokens, which a cluster with slurmrestd
        has.
    :param peers: ``rests``, the hosts of slurmrestd.
    :return: With the part `database`, the document of MariaDB, which comes first.
    """
    jwt_key, has_rest = str(params["jwt_key"]), bool(peers["rests"])
    problems = tuple(jwt.problems(jwt_key)) if has_rest else ()
    if problems:
        return Plan(problems=problems)
    keys = [jwt.key_file("slurmdbd", jwt_key)] if has_rest else []
    settings = {**SETTINGS, **(jwt.settings("slurmdbd") if has_rest else {})}
    settings |= {str(key): str(value) for key, value in params["options"].items()}
    lines = ["# Written by Ansible (baremetal.gpu.slurm_database). Changes made here are lost."]
    lines += [f"{key}={value}" for key, value in settings.items()]
    document = doc.Document(
        packages=[doc.Package("slurmdbd"), *([doc.Package(jwt.PACKAGE)] if keys else [])],
        files=[
            doc.Directory("/etc/slurm", owner=None, group=None),
            # slurmdbd refuses one that others may read.
            doc.File(CONFIG, "\n".join(lines) + "\n", "0600", "slurm", "slurm"),
            *keys,
            *units.drop_in("slurm_database", SLURMDBD),
        ],
        units=[doc.Unit.running(SLURMDBD, [CONFIG, *(one.path for one in keys), "slurmdbd"])],
    )
    return Plan(document, parts={"database": DATABASE.plain})
