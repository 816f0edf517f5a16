# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks of a machine: loop devices on sparse files, with the names that a real disk has in /dev/disk/by-id.

A loop device belongs to the host and may have another number after the next boot, so what a machine sees of it is
written again whenever the machine starts. `systemd-tmpfiles` makes the nodes and the links in there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from .machine import Machine
from .state import DISKS_IN_MACHINE
from .system import LabError, run, say, write_atomically

BY_ID = "/dev/disk/by-id"


def link_of(name: str) -> str:
    """The name under which a machine finds the disk."""
    return f"{BY_ID}/lab-{name}"


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a disk."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,14}", name):
        raise LabError(f"disk {name!r}: use a lower-case letter and up to 14 letters or digits")


def add(machine: Machine, names: list[str], gigabytes: int) -> None:
    """Give a machine disks, while it runs; one that is there already stays as it is."""
    directory = machine.directory / "disks"
    directory.mkdir(exist_ok=True)
    for name in names:
        check_name(name)
        image = directory / f"{name}.img"
        if not image.exists():
            with image.open("wb") as file:
                os.truncate(file.fileno(), gigabytes << 30)
            machine.spec.disks.append(name)
    attach(machine)
    if machine.running():
        machine.ssh(f"sudo systemd-tmpfiles --create {DISKS_IN_MACHINE}")
    say(f"{machine.spec.name}: {', '.join(map(link_of, machine.spec.disks))}")


def attach(machine: Machine) -> None:
    """Bring the files of a machine's disks to loop devices, and tell the machine of them."""
    lines = []
    for name in machine.spec.disks:
        image = machine.directory / "disks" / f"{name}.img"
        if not image.exists():
            raise LabError(f"{machine.spec.name}: disk {name} has no file {image}; 'tools/lab reset' makes it anew")
        device = Path(_device_of(image) or run("losetup", "--find", "--show", image).stdout.strip())
        number = device.stat().st_rdev
        # A number may have been another disk's before.
        lines.append(f"r {device}\nb {device} 0660 root disk - {os.major(number)}:{os.minor(number)}")
        lines.append(f"L+ {link_of(name)} - - - - {device}")
    if lines:
        write_atomically(machine.root / DISKS_IN_MACHINE.lstrip("/"), "\n".join(lines) + "\n")


def _device_of(image: Path) -> str:
    listed = run("losetup", "--json", "--output", "NAME", "--associated", image).stdout or "{}"
    devices = json.loads(listed).get("loopdevices", [])
    return str(devices[0]["name"]) if devices else ""
