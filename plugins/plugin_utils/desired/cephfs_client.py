# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of a client of CephFS: package, secrets and units."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mounts import (
    CONF,
    SECRETS,
    UNITS,
    conf_text,
    secret_text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph.mount_units import (
    HELPER,
    HELPER_TEXT,
    automount_unit,
    mount_unit,
    secret_path,
    unit_name,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

# The first kernel whose client speaks the monitors' newer protocol (mount option ms_mode).
OLDEST_KERNEL = (5, 11)
LOCAL = ["/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin"]
LOCAL += ["/srv", "/sys", "/tmp", "/usr", "/var"]
# What the check of a scratch directory mounts with.
SCRATCH_SETTINGS = ("kernel", "filesystem", "monitors", "fsid", "ms_mode")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    :param params: the role's variables without their prefix.
    :param facts: the answer of cephfs_client_info.
    :returns: with the part scratch, the directory of the proof and how to mount it; empty where there is none.
    """
    settings = _settings(params, facts)
    mounts, scratch = params["mounts"], params["scratch"]
    parts = {"scratch": {**scratch, **{key: settings[key] for key in SCRATCH_SETTINGS}} if scratch else {}}
    problems = _problems(mounts)
    if (mounts or scratch) and not settings["monitors"]:
        cause = "no monitors are named, so no client finds the cluster"
        problems.append(_problem("cephfs_client_monitors", cause, "", "set cephfs_client_monitors"))
    if problems:
        return Plan(problems=tuple(problems), parts=parts)
    packages = [doc.Package("ceph-common" if settings["kernel"] else "ceph-fuse")] if mounts or scratch else []
    files, units = _files_and_units(mounts, settings, facts["written"])
    return Plan(doc.Document(packages=packages, files=files, units=units), parts=parts)


def _settings(params: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for all mounts of the host."""
    method, automount = params["method"], params["automount"]
    can_mount = facts["kernel_client"] and _release(facts["kernel"]) >= OLDEST_KERNEL
    return {
        "kernel": method == "kernel" or (method == "auto" and can_mount),
        "automount": automount == "yes" or (automount == "auto" and facts["automount"]),
        **{key: params[key] for key in ("set", "filesystem", "monitors", "fsid", "ms_mode", "timeout")},
        "wait": params["ready_timeout"],
    }


def _release(kernel: str) -> tuple[int, ...]:
    """The numbers at the beginning of the name of a kernel."""
    match = re.match(r"\d+(?:\.\d+)*", kernel)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _problem(subject: str, cause: str, evidence: str, remedy: str) -> Problem:
    return Problem("cephfs_mount", subject, cause, evidence, remedy)


def _problems(mounts: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """What cannot be mounted as it is listed."""
    problems = []
    paths: set[str] = set()
    for mount in mounts:
        path, subpath, client = mount["path"], mount.get("subpath", "/"), mount["client"]
        if not path.startswith("/") or path.rstrip("/") != path or path in LOCAL or "/../" in f"{path}/":
            remedy = "name an absolute path of its own below / or /home"
            problems.append(_problem(path, f"{path!r} is not a place to mount at", path, remedy))
        if not subpath.startswith("/"):
            problems.append(
                _problem(path, f"{path}: {subpath!r} is not a path in the file system", subpath, "begin it with /")
            )
        if not mount.get("secret"):
            cause = f"{path}: there is no secret for client.{client}"
            problems.append(
                _problem(path, cause, "", f"give the secret that 'sudo ceph auth get client.{client}' prints")
            )
        if any(char in f"{path}{subpath}{client}" for char in " \t\n,;'\"$`&|<>\\%#"):
            cause = f"{path}: blanks, commas, quotes and signs of the shell cannot be in a path or client"
            problems.append(_problem(path, cause, f"{path} {subpath} {client}", "use other names"))
        if path in paths:
            problems.append(_problem(path, f"{path} is listed twice", path, "list it once"))
        paths.add(path)
    return problems


def _files_and_units(
    mounts: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], written: Sequence[str]
) -> tuple[list[doc.Entry], list[doc.Unit]]:
    """The sections files and units.

    :param written: paths of what earlier runs wrote for the same set.
    """
    files: list[doc.Entry] = []
    units: list[doc.Unit] = []
    if mounts:
        files += [
            doc.Directory("/etc/ceph"),
            doc.Directory(SECRETS),
            doc.Directory(f"{SECRETS}/{settings['set']}", "0700"),
            doc.File(CONF, conf_text(settings)),
            doc.File(HELPER, HELPER_TEXT, "0755"),
        ]
    listed = set()
    for mount in mounts:
        path = secret_path(mount["client"], settings)
        if path not in listed:
            files.append(doc.File(path, secret_text(mount, settings), "0600", sensitive=True))
            listed.add(path)
        kinds = {"mount": mount_unit(mount, settings)}
        if settings["automount"]:
            kinds["automount"] = automount_unit(mount, settings)
        for suffix, content in kinds.items():
            name = unit_name(mount["path"], suffix)
            files.append(doc.File(f"{UNITS}/{name}", content))
            listed.add(f"{UNITS}/{name}")
        units.append(doc.Unit.running(unit_name(mount["path"], "automount" if settings["automount"] else "mount")))
    # What is no longer listed: the automount first, or a look at it would mount it again.
    for path in sorted(set(written) - listed):
        if path.startswith(UNITS):
            units.append(doc.Unit.stopped(path.rpartition("/")[2]))
        files.append(doc.Absent(path))
    return files, units
