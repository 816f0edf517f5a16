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
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import unit_path, wrong
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf, units
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import address_of

ROLE = "slurm_node"
HEAD = conf.HEAD.format(role=ROLE)
OPTIONS = "/etc/default/slurmd"
_PATH = re.compile(r"(?:/[A-Za-z0-9_+@][A-Za-z0-9._+@-]*)+", re.ASCII)
SLURMD = "slurmd.service"

# Where crun keeps what it knows of running containers: a directory for each user, which the user makes.
CONTAINERS = "/run/baremetal-gpu-containers"
# A drop-in of its own: it can come and go on a node that is there, so it is not written before the packages.
CONTAINERS_PATH = "/etc/systemd/system/slurmd.service.d/baremetal-gpu-containers.conf"

# What brings images of a registry into jobs, where the bundles of each user are, and what removes unused ones.
IMAGES = "/usr/libexec/baremetal-gpu/gpu-image"
IMAGES_COMMAND = "/usr/local/bin/gpu-image"
STATE = "/var/lib/baremetal-gpu"
IMAGES_SETTINGS = "/etc/baremetal-gpu/images.json"
IMAGES_EXPIRE = "baremetal-gpu-images"
IMAGES_UNITS = (f"{IMAGES_EXPIRE}.service", f"{IMAGES_EXPIRE}.timer")

# slurmctld looks for jobs that a node no longer has when slurmd registers, and spares those that it has itself learned
# of in the 20 seconds before: after a loss of power of all machines, every one. The next registration may be half an
# hour away. The second time is for a slurmctld that is later than its nodes.
REGISTER = "baremetal-gpu-slurm-register"
REGISTER_UNITS = (f"{REGISTER}.service", f"{REGISTER}.timer")


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
    problems = tuple(_wrong_images(params))
    if problems:
        return Plan(problems=problems, parts={"programs": programs(params).plain, "is_behind": False})
    containers = bool(params["containers"])
    drop_in = render(ROLE, "slurmd-containers.conf.j2", head=HEAD, directory=CONTAINERS)
    expire = f"{IMAGES_EXPIRE}.timer"
    names = ["slurmd", "slurm-client"]
    # It does nothing without the lines of the module slurm_ssh, so it stays where they go.
    names += ["libpam-slurm-adopt"] if params["adopt"] else []
    names += ["crun", "skopeo", "umoci"] if containers else []
    return Plan(
        doc.Document(
            packages=[*map(doc.Package, names)],
            files=[
                *units.drop_in(ROLE, SLURMD, render(ROLE, "slurmd.conf.j2")),
                # Before the package, which starts slurmd at once.
                doc.File(OPTIONS, content, early=True),
                doc.File(CONTAINERS_PATH, drop_in) if containers else doc.Absent(CONTAINERS_PATH),
                *_images(params),
                *(doc.File(unit_path(name), render(ROLE, f"{name}.j2", head=HEAD)) for name in REGISTER_UNITS),
            ],
            units=[
                doc.Unit.running(SLURMD, [OPTIONS, units.path(SLURMD), CONTAINERS_PATH, "slurmd"]),
                doc.Unit.running(REGISTER_UNITS[1], [unit_path(REGISTER_UNITS[1])]),
                doc.Unit.running(expire, [unit_path(expire)]) if containers else doc.Unit.stopped(expire),
            ],
        ),
        parts={
            "programs": programs(params).plain,
            "is_behind": bool(peers["wanted"] and peers["has"] and peers["wanted"] != peers["has"]),
        },
    )


def _wrong_images(params: Mapping[str, Any]) -> Iterator[Problem]:
    given = {"image_directory": [params["image_directory"]], "image_mounts": params["image_mounts"]}
    for name, values in given.items():
        variable = f"slurm_node_{name}"
        for value in values:
            if not _PATH.fullmatch(str(value)) or str(value) in ("/", "/tmp", "/var/tmp", "/home"):
                yield wrong(variable, "it is not a directory of its own", value, "give a path such as /scratch/images")
    if params["image_days"] < 1:
        yield wrong("slurm_node_image_days", "it is less than 1", params["image_days"], "give 1 or more")


def _images(params: Mapping[str, Any]) -> list[doc.Entry]:
    """gpu-image, what it knows of the node, and the directory in which each user has one."""
    if not params["containers"]:
        return [*map(doc.Absent, (IMAGES_COMMAND, IMAGES, IMAGES_SETTINGS, *map(unit_path, IMAGES_UNITS)))]
    directory = str(params["image_directory"])
    known = {"directory": directory, "mounts": list(params["image_mounts"]), "days": params["image_days"]}
    return [
        doc.Directory("/etc/baremetal-gpu"),
        doc.File(IMAGES_SETTINGS, json.dumps(known, indent=1) + "\n"),
        # That of the default.
        *([doc.Directory(STATE)] if directory.startswith(f"{STATE}/") else []),
        doc.Directory(directory, "1777"),
        doc.File(IMAGES, bundle("slurm.images"), "0755"),
        doc.Link(IMAGES_COMMAND, IMAGES),
        *(doc.File(unit_path(name), render(ROLE, f"{name}.j2", head=HEAD, program=IMAGES)) for name in IMAGES_UNITS),
    ]


def programs(params: Mapping[str, Any]) -> doc.Document:
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
    return doc.Document(
        files=[
            doc.Directory(conf.PROGRAM.rpartition("/")[0]),
            doc.File(conf.PROGRAM, bundle("slurm.command", site=False), "0755"),
            *(doc.File(path, content, "0755") for path, content in scripts.items()),
        ]
    )
