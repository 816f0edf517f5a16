# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab needs of its host, and how to get what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from .system import LabError, environment, run, say, search_path

# What must be there, and the Debian package that brings it.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "apt-cacher-ng": "apt-cacher-ng",
    "iptables": "iptables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "losetup": "mount",
    "gcc": "gcc",
    "make": "make",
}
FILES = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/usr/include/stdio.h": "libc6-dev",
}
INOTIFY_INSTANCES = 2048


def missing(extra: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """What is missing on this host: the thing and the package that brings it.

    `extra` are programs that only one command of the lab needs.
    """
    path = search_path()
    gaps = {name: package for name, package in {**PROGRAMS, **extra}.items() if shutil.which(name, path=path) is None}
    gaps.update({name: package for name, package in FILES.items() if not Path(name).exists()})
    return gaps


def raise_limits() -> None:
    """All machines of all labs are root's, and their systemds and udevs watch files: 128 watchers last for two.

    Stays until the host reboots; who raised it higher keeps that.
    """
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text(encoding="ascii")) < INOTIFY_INSTANCES:
        limit.write_text(f"{INOTIFY_INSTANCES}\n", encoding="ascii")


def refuse_unless_root() -> None:
    """Machines, bridges and mounts need root; say so before anything is tried."""
    if os.geteuid() != 0:
        raise LabError(
            f"the lab needs root (it makes network bridges, mounts and systemd-nspawn machines), "
            f"but this is user id {os.geteuid()}: run it as root, for example 'sudo make lab'"
        )


def ensure(extra: Mapping[str, str] = MappingProxyType({})) -> None:
    """Refuse with one message, or install what is missing and go on."""
    refuse_unless_root()
    gaps = missing(extra)
    if not gaps:
        return
    packages = sorted(set(gaps.values()))
    listed = ", ".join(f"{name} (package {package})" for name, package in sorted(gaps.items()))
    if shutil.which("apt-get", path=search_path()) is None:
        raise LabError(
            f"the lab needs {listed}, and this host has no apt-get to install them with: "
            "the lab runs on Debian 12 or 13 and Ubuntu; install these programs yourself elsewhere"
        )
    say(f"host: installing {' '.join(packages)}")
    quiet = environment(DEBIAN_FRONTEND="noninteractive")
    had_cache_service = shutil.which("apt-cacher-ng", path=search_path()) is not None
    install = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    try:
        if run(*install, env=quiet, check=False).returncode != 0:
            # No package lists yet, or old ones that name versions no longer there.
            run("apt-get", "update", env=quiet)
            run(*install, env=quiet)
    except LabError as error:
        raise LabError(f"the lab needs {listed}, and installing them failed:\n{error}") from error
    still = missing(extra)
    if still:
        raise LabError(f"still missing after installing {' '.join(packages)}: {', '.join(sorted(still))}")
    if not had_cache_service and Path("/run/systemd/system").is_dir():
        # The package starts a proxy that serves every network of the host. The lab runs one of its own.
        run("systemctl", "disable", "--now", "apt-cacher-ng.service", check=False)
