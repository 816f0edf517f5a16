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


def absent(programs: Mapping[str, str]) -> dict[str, str]:
    """Those programs, with the package that brings each, that are not on the search path."""
    path = search_path()
    return {name: package for name, package in programs.items() if shutil.which(name, path=path) is None}


def missing(extra: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """What is missing on this host: the thing and the package that brings it.

    `extra` are programs that only one command of the lab needs.
    """
    gaps = absent({**PROGRAMS, **extra})
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
    had_cache_service = shutil.which("apt-cacher-ng", path=search_path()) is not None
    install("the lab", gaps)
    still = missing(extra)
    if still:
        raise LabError(f"still missing after installing {_packages(gaps)}: {', '.join(sorted(still))}")
    if not had_cache_service and Path("/run/systemd/system").is_dir():
        # The package starts a proxy that serves every network of the host. The lab runs one of its own.
        run("systemctl", "disable", "--now", "apt-cacher-ng.service", check=False)


def _packages(gaps: Mapping[str, str]) -> str:
    return " ".join(sorted(set(gaps.values())))


def install(who: str, gaps: Mapping[str, str]) -> None:
    """The packages of what is missing, by apt as root. Raises LabError, which says who needs them."""
    listed = ", ".join(f"{name} (package {package})" for name, package in sorted(gaps.items()))
    if shutil.which("apt-get", path=search_path()) is None:
        raise LabError(
            f"{who} needs {listed}, and this host has no apt-get to install them with: "
            f"{who} runs on Debian 12 or 13 and Ubuntu; install these programs yourself elsewhere"
        )
    say(f"host: installing {_packages(gaps)}")
    quiet = environment(DEBIAN_FRONTEND="noninteractive")
    # Whoever else is at it, an upgrade by itself say, is waited for.
    patient = ("apt-get", "-o", "DPkg::Lock::Timeout=300")
    command = (*patient, "install", "--yes", "--no-install-recommends", *_packages(gaps).split())
    try:
        if run(*command, env=quiet, check=False).returncode != 0:
            # No package lists yet, or old ones that name versions no longer there.
            run(*patient, "update", env=quiet)
            run(*command, env=quiet)
    except LabError as error:
        raise LabError(f"{who} needs {listed}, and installing them failed:\n{error}") from error
