# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired document of a host: what the module host_drift_info compares the host with, as types.

None stands for what is left out of the document; the module's documentation has the meaning of each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

Presence: TypeAlias = Literal["present", "absent"]
# No Sequence, which a single word is, too.
Strings: TypeAlias = list[str] | tuple[str, ...]


class Item:
    """What a section has, one or many."""


@dataclass(frozen=True)
class Repository(Item):
    name: str
    state: Presence | None = None
    type: Literal["deb822", "yum"] | None = None
    uris: Strings | None = None
    baseurl: str | None = None
    suites: Strings | None = None
    extend: Strings | None = None
    components: Strings | None = None
    architectures: Strings | None = None
    signed_by: str | None = None
    key: Mapping[str, str] | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pin(Item):
    name: str
    state: Presence | None = None
    package: str | None = None
    pin: str | None = None
    priority: int | None = None


@dataclass(frozen=True)
class Package(Item):
    name: str
    state: Presence | None = None
    version: str | None = None
    hold: bool | None = None
    kernels: str | Strings | None = None
    follows: str | None = None
    purge: bool | None = None
    together: bool | None = None


@dataclass(frozen=True)
class File(Item):
    """Root's, and everybody may read it. None leaves mode, owner or group as they are on the host."""

    path: str
    content: str | None = None
    mode: str | None = "0644"
    owner: str | None = "root"
    group: str | None = "root"
    state: Literal["file", "absent"] | None = None
    sha256: str | None = None
    force: bool | None = None
    early: bool | None = None
    sensitive: bool | None = None
    url: str | None = None
    source: str | None = None
    validate: str | None = None
    backup: bool | None = None


@dataclass(frozen=True)
class Directory(Item):
    """Root's, and everybody may look into it. None leaves mode, owner or group as they are on the host."""

    path: str
    mode: str | None = "0755"
    owner: str | None = "root"
    group: str | None = "root"
    reclaim: bool | None = None
    early: bool | None = None
    state: Literal["directory"] = "directory"


@dataclass(frozen=True)
class Link(Item):
    path: str
    src: str
    early: bool | None = None
    state: Literal["link"] = "link"


@dataclass(frozen=True)
class Absent(Item):
    """A path that must not exist; with `src` it may, unless it is a link to that target."""

    path: str
    src: str | None = None
    state: Literal["absent"] = "absent"


@dataclass(frozen=True)
class Unit(Item):
    name: str
    enabled: bool | None = None
    state: Literal["started", "stopped"] | None = None
    restart_on: Strings | None = None
    reload_on: Strings | None = None
    masked: bool | None = None

    @classmethod
    def running(cls, name: str, restart_on: Strings | None = None, reload_on: Strings | None = None) -> Unit:
        """A unit that runs, after a boot too."""
        return cls(name, True, "started", restart_on, reload_on)

    @classmethod
    def stopped(cls, name: str) -> Unit:
        """A unit that does not run, after a boot neither."""
        return cls(name, False, "stopped")


@dataclass(frozen=True)
class KernelModule(Item):
    name: str
    state: Literal["loaded", "unloaded"] | None = None
    current: bool | None = None
    unload_first: Strings | None = None
    devices: Strings | None = None
    units: Strings | None = None
    packages: Strings | None = None
    required: bool | None = None


@dataclass(frozen=True)
class Dkms(Item):
    name: str
    version: str | None = None
    kernels: str | Strings | None = None


@dataclass(frozen=True)
class Initramfs(Item):
    rebuild_on: Strings


@dataclass(frozen=True)
class Alternative(Item):
    name: str
    path: str
    state: Presence | None = None
    link: str | None = None
    priority: int | None = None


@dataclass(frozen=True)
class Settings(Item):
    path: str
    format: Literal["json", "toml"] | None = None
    state: Presence | None = None
    values: Mapping[str, Any] | None = None
    remove: Sequence[Any] | None = None
    lists: Literal["replace", "union"] | None = None
    mode: str | None = None
    withdraw_from: Strings | None = None
    state_dir: str | None = None


@dataclass(frozen=True)
class Cdi(Item):
    state: Presence | None = None
    path: str | None = None
    engine: Literal["docker", "podman", "containerd"] | None = None
    devices: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Proof(Item):
    name: str
    what: str | None = None
    state: Presence | None = None


Entry: TypeAlias = File | Directory | Link | Absent
# What an operator describes in a variable is passed on as it is given.
Given: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    repositories: Sequence[Repository | Given] | None = None
    pins: Sequence[Pin] | None = None
    packages: Sequence[Package | Given] | None = None
    files: Sequence[Entry] | None = None
    units: Sequence[Unit] | None = None
    kernel_modules: Sequence[KernelModule] | None = None
    dkms: Sequence[Dkms] | None = None
    initramfs: Initramfs | None = None
    alternatives: Sequence[Alternative] | None = None
    settings: Sequence[Settings] | None = None
    cdi: Cdi | None = None
    proofs: Sequence[Proof] | None = None
    device_nodes: bool | None = None

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The document in dicts and lists, as the module takes it."""
        return {
            name: [_plain(item) for item in section] if isinstance(section, (list, tuple)) else _plain(section)
            for name, section in vars(self).items()
            if section is not None
        }


def _plain(value: Any) -> Any:
    if not isinstance(value, Item):
        return value
    return {name: field for name, field in vars(value).items() if field is not None}
