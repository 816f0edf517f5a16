# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmd, which has its configuration from slurmctld."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.command import UNCLEAN
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.notes import DIRECTORY
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document, Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf, units

ROLE = "slurm_node"
HEAD = conf.HEAD.format(role=ROLE)
OPTIONS = "/etc/default/slurmd"
SLURMD = "slurmd.service"
# Debian 12's unit starts only where there is a slurm.conf, which here there never is.
UNIT = """\
[Unit]
ConditionPathExists=
Wants=network-online.target
After=network-online.target munge.service baremetal-gpu-device-nodes.service
"""

# Where crun keeps what it knows of running containers: a directory for each user, which the user makes.
CONTAINERS = "/run/baremetal-gpu-containers"
# A drop-in of its own: it can come and go on a node that is there, so it is not written before the packages.
CONTAINERS_PATH = "/etc/systemd/system/slurmd.service.d/baremetal-gpu-containers.conf"
CONTAINERS_UNIT = f"""\
{HEAD}[Service]
ExecStartPre=/usr/bin/install --directory --mode=1777 {CONTAINERS}
"""

# slurmctld looks for jobs that a node no longer has when slurmd registers, and spares those that it has itself learned
# of in the 20 seconds before: after a loss of power of all machines, every one. The next registration may be half an
# hour away. The second time is for a slurmctld that is later than its nodes.
REGISTER = "baremetal-gpu-slurm-register"
REGISTER_PATHS = {kind: f"/etc/systemd/system/{REGISTER}.{kind}" for kind in ("service", "timer")}
REGISTER_UNITS = {
    "service": f"""\
{HEAD}[Unit]
Description=Registers the node of Slurm again, so that jobs which ended with the last boot are missed
After=slurmd.service

[Service]
Type=oneshot
ExecStart=/usr/bin/systemctl reload slurmd.service
""",
    "timer": f"""\
{HEAD}[Unit]
Description=Registers the node of Slurm again some time after a boot

[Timer]
OnBootSec=2min
OnBootSec=10min

[Install]
WantedBy=timers.target
""",
}


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one node.

    :param peers: ``controllers``, the hosts of slurmctld, and ``hostvars``; of slurm.conf ``wanted``, the text of
        slurmctld, and ``has``, that of slurmd; empty where it is not known.
    :return: With the part `programs`, the document of what slurm.conf names: it has to be there before slurmd reads it;
        and `is_behind`, whether slurmd runs with an older configuration.
    """
    controllers = ",".join(_address(name, peers["hostvars"][name]) for name in peers["controllers"])
    options = shlex.join(["--conf-server", controllers, *map(str, params["options"])])
    content = f"{HEAD}SLURMD_OPTIONS='{options}'\n"
    # Before the package, which starts slurmd at once.
    written = {"mode": "0644", "owner": "root", "group": "root", "early": True}
    return Plan(
        {
            "packages": [
                {"name": "slurmd"},
                {"name": "slurm-client"},
                # It does nothing without the lines of the module slurm_ssh, so it stays where they go.
                *([{"name": "libpam-slurm-adopt"}] if params["adopt"] else []),
                *([{"name": "crun"}] if params["containers"] else []),
            ],
            "files": [
                *units.drop_in(ROLE, SLURMD, UNIT),
                {"path": OPTIONS, "content": content, **written},
                {"path": CONTAINERS_PATH, "content": CONTAINERS_UNIT, "mode": "0644", "owner": "root", "group": "root"}
                if params["containers"]
                else {"path": CONTAINERS_PATH, "state": "absent"},
                *(
                    {"path": path, "content": REGISTER_UNITS[kind], "mode": "0644", "owner": "root", "group": "root"}
                    for kind, path in REGISTER_PATHS.items()
                ),
            ],
            "units": [
                {
                    "name": SLURMD,
                    "enabled": True,
                    "state": "started",
                    "restart_on": [OPTIONS, units.path(SLURMD), CONTAINERS_PATH, "slurmd"],
                },
                {
                    "name": f"{REGISTER}.timer",
                    "enabled": True,
                    "state": "started",
                    "restart_on": [REGISTER_PATHS["timer"]],
                },
            ],
        },
        parts={
            "programs": programs(params),
            "is_behind": bool(peers["wanted"] and peers["has"] and peers["wanted"] != peers["has"]),
        },
    )


def _address(name: str, variables: Mapping[str, Any]) -> str:
    """The address of a controller, which is not part of every run."""
    published = variables.get("slurm_common_host") or {}
    given = (published.get("address"), variables.get("slurm_common_address"), variables.get("ansible_host"))
    return str(next(filter(None, given), name))


def programs(params: Mapping[str, Any]) -> Document:
    """The Prolog, the TaskProlog, the Epilog, the HealthCheckProgram and what starts containers.

    They are on every node, because slurm.conf is the same on all.
    """
    options = "" if params["kill_left"] else " --keep-left"
    options += " --fail-if-unclean" if params["drain_unclean"] else ""
    scripts = {
        conf.PROLOG: render(ROLE, "slurm-prolog.j2", program=conf.PROGRAM, partition=PARTITION),
        conf.TASK_PROLOG: render(ROLE, "slurm-task-prolog.j2", directory=DIRECTORY, exit_code=conf.REFUSED),
        conf.EPILOG: render(
            ROLE, "slurm-epilog.j2", program=conf.PROGRAM, partition=PARTITION, options=options, unclean=UNCLEAN
        ),
        conf.CONTAINER: render(ROLE, "slurm-container.j2", program=conf.PROGRAM, directory=CONTAINERS),
        conf.HEALTH_CHECK: render(
            ROLE,
            "slurm-health-check.j2",
            program=conf.PROGRAM,
            node=shlex.quote(str(params["node"])),
            grace_s=int(params["health_grace"]),
        ),
    }
    owned = {"mode": "0755", "owner": "root", "group": "root"}
    return {
        "files": [
            {"path": conf.PROGRAM.rpartition("/")[0], "state": "directory", **owned},
            {"path": conf.PROGRAM, "content": bundle("slurm.command"), **owned},
            *({"path": path, "content": content, **owned} for path, content in scripts.items()),
        ]
    }
