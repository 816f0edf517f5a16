# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmd, which has its configuration from slurmctld."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.command import UNCLEAN
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.notes import DIRECTORY
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document, Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import wrong
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf, units
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import address_of

ROLE = "slurm_node"
HEAD = conf.HEAD.format(role=ROLE)
OPTIONS = "/etc/default/slurmd"
_PATH = re.compile(r"(?:/[A-Za-z0-9_+@][A-Za-z0-9._+@-]*)+", re.ASCII)
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

# What brings images of a registry into jobs, where the bundles of each user are, and what removes unused ones.
IMAGES = "/usr/libexec/baremetal-gpu/gpu-image"
IMAGES_COMMAND = "/usr/local/bin/gpu-image"
STATE = "/var/lib/baremetal-gpu"
IMAGES_SETTINGS = "/etc/baremetal-gpu/images.json"
IMAGES_EXPIRE = "baremetal-gpu-images"
IMAGES_PATHS = {kind: f"/etc/systemd/system/{IMAGES_EXPIRE}.{kind}" for kind in ("service", "timer")}
IMAGES_UNITS = {
    "service": f"""\
{HEAD}[Unit]
Description=Removes images that no job has used for some time

[Service]
Type=oneshot
ExecStart={IMAGES} expire
IOSchedulingClass=idle
Nice=19
""",
    "timer": f"""\
{HEAD}[Unit]
Description=Removes images that no job has used for some time

[Timer]
OnCalendar=daily
RandomizedDelaySec=1h

[Install]
WantedBy=timers.target
""",
}

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
    controllers = ",".join(address_of(name, peers["hostvars"][name]) for name in peers["controllers"])
    options = shlex.join(["--conf-server", controllers, *map(str, params["options"])])
    content = f"{HEAD}SLURMD_OPTIONS='{options}'\n"
    # Before the package, which starts slurmd at once.
    written = {"mode": "0644", "owner": "root", "group": "root", "early": True}
    problems = tuple(_wrong_images(params))
    if problems:
        return Plan(problems=problems, parts={"programs": programs(params), "is_behind": False})
    return Plan(
        {
            "packages": [
                {"name": "slurmd"},
                {"name": "slurm-client"},
                # It does nothing without the lines of the module slurm_ssh, so it stays where they go.
                *([{"name": "libpam-slurm-adopt"}] if params["adopt"] else []),
                *([{"name": name} for name in ("crun", "skopeo", "umoci")] if params["containers"] else []),
            ],
            "files": [
                *units.drop_in(ROLE, SLURMD, UNIT),
                {"path": OPTIONS, "content": content, **written},
                {"path": CONTAINERS_PATH, "content": CONTAINERS_UNIT, "mode": "0644", "owner": "root", "group": "root"}
                if params["containers"]
                else {"path": CONTAINERS_PATH, "state": "absent"},
                *_images(params),
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
                {
                    "name": f"{IMAGES_EXPIRE}.timer",
                    "enabled": True,
                    "state": "started",
                    "restart_on": [IMAGES_PATHS["timer"]],
                }
                if params["containers"]
                else {"name": f"{IMAGES_EXPIRE}.timer", "enabled": False, "state": "stopped"},
            ],
        },
        parts={
            "programs": programs(params),
            "is_behind": bool(peers["wanted"] and peers["has"] and peers["wanted"] != peers["has"]),
        },
    )


def _wrong_images(params: Mapping[str, Any]) -> Iterator[Problem]:
    given = {"image_directory": [params["image_directory"]], "image_mounts": params["image_mounts"]}
    for name, values in given.items():
        variable = f"slurm_node_{name}"
        for value in values:
            if not _PATH.fullmatch(str(value)) or str(value) in ("/", "/tmp", "/var/tmp", "/home"):
                yield wrong(variable, "it is no directory of its own", value, "give a path such as /scratch/images")
    if params["image_days"] < 1:
        yield wrong("slurm_node_image_days", "it is less than 1", params["image_days"], "give 1 or more")


def _images(params: Mapping[str, Any]) -> list[Document]:
    """gpu-image, what it knows of the node, and the directory in which each user has one."""
    if not params["containers"]:
        paths = (IMAGES_COMMAND, IMAGES, IMAGES_SETTINGS, *IMAGES_PATHS.values())
        return [{"path": path, "state": "absent"} for path in paths]
    owned = {"owner": "root", "group": "root"}
    directory = str(params["image_directory"])
    known = {"directory": directory, "mounts": list(params["image_mounts"]), "days": params["image_days"]}
    return [
        {"path": "/etc/baremetal-gpu", "state": "directory", "mode": "0755", **owned},
        {"path": IMAGES_SETTINGS, "content": json.dumps(known, indent=1) + "\n", "mode": "0644", **owned},
        # That of the default.
        *(
            [{"path": STATE, "state": "directory", "mode": "0755", **owned}]
            if directory.startswith(f"{STATE}/")
            else []
        ),
        {"path": directory, "state": "directory", "mode": "1777", **owned},
        {"path": IMAGES, "content": bundle("slurm.images"), "mode": "0755", **owned},
        {"path": IMAGES_COMMAND, "state": "link", "src": IMAGES},
        *(
            {"path": path, "content": IMAGES_UNITS[kind], "mode": "0644", **owned}
            for kind, path in IMAGES_PATHS.items()
        ),
    ]


def programs(params: Mapping[str, Any]) -> Document:
    """The Prolog, the TaskProlog, the Epilog, the HealthCheckProgram and what starts containers.

    They are on every node, because slurm.conf is the same on all.
    """
    node = shlex.quote(str(params["node"]))
    options = "" if params["kill_left"] else " --keep-left"
    options += " --fail-if-unclean" if params["drain_unclean"] else ""
    scripts = {
        conf.PROLOG: render(ROLE, "slurm-prolog.j2", program=conf.PROGRAM, partition=PARTITION),
        conf.TASK_PROLOG: render(ROLE, "slurm-task-prolog.j2", directory=DIRECTORY, exit_code=conf.REFUSED),
        conf.EPILOG: render(
            ROLE,
            "slurm-epilog.j2",
            program=conf.PROGRAM,
            partition=PARTITION,
            options=options,
            unclean=UNCLEAN,
            directory=DIRECTORY,
            health_check=conf.HEALTH_CHECK,
            node=node,
        ),
        conf.CONTAINER: render(ROLE, "slurm-container.j2", program=conf.PROGRAM, directory=CONTAINERS),
        conf.HEALTH_CHECK: render(
            ROLE,
            "slurm-health-check.j2",
            program=conf.PROGRAM,
            node=node,
            grace_s=int(params["health_grace"]),
        ),
    }
    owned = {"mode": "0755", "owner": "root", "group": "root"}
    return {
        "files": [
            {"path": conf.PROGRAM.rpartition("/")[0], "state": "directory", **owned},
            {"path": conf.PROGRAM, "content": bundle("slurm.command", site=False), **owned},
            *({"path": path, "content": content, **owned} for path, content in scripts.items()),
        ]
    }
