# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a job in its container: the configuration of the OCI runtime, edited as the CDI specification says.

It runs as the job's user, inside the job's cgroup, on the copy of the bundle's configuration that slurmstepd has made.
The job's GPUs are those whose device files the cgroup lets it open.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below

SPECIFICATION = "/etc/cdi/nvidia.json"
SIZE_AT_MOST = 4 << 20
# Slurm sets one of them in the environment of a job with GPUs.
GPUS = ("SLURM_STEP_GPUS=", "SLURM_JOB_GPUS=")
DEVICE_OPTIONS = ["bind", "rw", "nosuid", "noexec"]


def may_open(path: str) -> bool:
    """Whether a device file is there and its cgroup and mode let this process open it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as failure:
        # Whatever else the driver answers comes from the device.
        return failure.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT)
    return True


def wants_gpus(configuration: Mapping[str, Any]) -> bool:
    """Whether the job has GPUs. Raises KeyError, TypeError or AttributeError for a configuration that is none."""
    return any(one.startswith(GPUS) for one in configuration["process"].get("env") or ())


def _devices(edits: Mapping[str, Any]) -> dict[str, str]:
    """The device files of some edits: path in the container -> that of the host."""
    rows = edits.get("deviceNodes") or ()
    return {str(row["path"]): str(row.get("hostPath") or row["path"]) for row in rows}


def _mount(source: str, destination: str, options: list[str]) -> dict[str, Any]:
    # Without a type of its own the runtime would look for a file system.
    bind = [] if {"bind", "rbind"} & set(options) else ["rbind"]
    return {"source": source, "destination": destination, "type": "none", "options": [*bind, *options]}


def with_gpus(
    configuration: Mapping[str, Any], specification: Mapping[str, Any], is_usable: Callable[[str], bool] = may_open
) -> dict[str, Any]:
    """The configuration of an OCI runtime with the GPUs that are usable; as it was where none is.

    What the bundle mounts itself stays. Raises KeyError, TypeError, AttributeError or ValueError for a specification or
    a configuration that is none.
    """
    nodes: dict[str, str] = {}
    for device in specification["devices"]:
        found = _devices(device["containerEdits"])
        if found and all(is_usable(path) for path in found.values()):
            nodes.update(found)
    if not nodes:
        return dict(configuration)
    common = specification["containerEdits"]
    nodes.update({path: source for path, source in _devices(common).items() if is_usable(source)})
    mounts = [_mount(source, path, DEVICE_OPTIONS) for path, source in nodes.items()]
    mounts += [_mount(row["hostPath"], row["containerPath"], row.get("options") or []) for row in common["mounts"]]
    has = {row["destination"] for row in configuration.get("mounts") or ()}
    process = dict(configuration["process"])
    names = {one.partition("=")[0] for one in process.get("env") or ()}
    process["env"] = [
        *(process.get("env") or ()),
        *(one for one in common.get("env") or () if one.partition("=")[0] not in names),
    ]
    hooks = {name: list(rows) for name, rows in (configuration.get("hooks") or {}).items()}
    for row in common.get("hooks") or ():
        hooks.setdefault(row["hookName"], []).append({key: row[key] for key in row if key != "hookName"})
    return {
        **configuration,
        "process": process,
        "mounts": [
            *(configuration.get("mounts") or ()),
            *(mount for mount in mounts if mount["destination"] not in has),
        ],
        **({"hooks": hooks} if hooks else {}),
    }


def without_runtime_directory(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the login's XDG_RUNTIME_DIR where the container has none: programs warn of it."""
    process = configuration["process"]
    there = {row["destination"] for row in configuration.get("mounts") or ()}
    kept = [
        one
        for one in process.get("env") or ()
        if not one.startswith("XDG_RUNTIME_DIR=") or one.partition("=")[2] in there
    ]
    return {**configuration, "process": {**process, "env": kept}} if "env" in process else dict(configuration)


def add_gpus(bundle: str, root: str = "/") -> None:
    """Writes those of a job with GPUs into config.json of its bundle. Raises Refused and OSError."""
    path = os.path.join(bundle, "config.json")
    specification = below(root, SPECIFICATION)
    try:
        before = bounded_json.parse_object(host_files.read(path, SIZE_AT_MOST))
        after = without_runtime_directory(before)
        if wants_gpus(after) and not os.path.exists(specification):
            raise Refused(
                f"the node has no {SPECIFICATION}, so a container cannot have its GPUs",
                "have an administrator run `gpuops up --tags containers` for it",
                code="no_specification",
                subject=SPECIFICATION,
            )
        if wants_gpus(after):
            after = with_gpus(after, bounded_json.parse_object(host_files.read(specification, SIZE_AT_MOST)))
    except bounded_json.MISSHAPEN as why:
        raise Refused(
            f"{path} or {SPECIFICATION} is not as it should be: {type(why).__name__} {why}",
            "check the bundle with the container runtime alone",
            code="misshapen",
            subject=path,
        ) from why
    if after != before:
        host_files.write(path, json.dumps(after), mode=0o700, durable=False)
