# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an engine looks for CDI specifications, and from which file it takes a device that several name.

An engine reads every *.json and *.yaml of its directories. A directory goes before those that are named earlier; of two
files of one directory that name the same device, the engine takes it from none (cncf-tags.github.io/container-device-
interface, pkg/cdi: cache.refresh, scanSpecDirs).
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge
from ansible_collections.baremetal.gpu.plugins.module_utils.container.engines import ENGINE_CONFIGS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
SUFFIXES = (".json", ".yaml")
# The settings of these lie over those before them.
PODMAN_FILES = (
    "/usr/share/containers/containers.conf",
    ENGINE_CONFIGS["podman"],
    "/etc/containers/containers.conf.d/*.conf",
)
CONTAINERD_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
UNIT_PLACES = ("usr/lib", "lib", "run", "etc")
# What NVIDIA's toolkit writes, and by what.
REFRESHED = "nvidia-cdi-refresh.service"


@dataclass(frozen=True)
class Specification:
    """A file that an engine reads: the place of its directory, its devices, and what it needs and is not there."""

    path: str
    place: int
    names: frozenset[str]
    missing: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether it names a device; one whose names are unknown may have any."""
        return not self.names or name in self.names


# -- directories ------------------------------------------------------------------------------------------------------


def directories(engine: str, root: str = "/") -> list[str]:
    """Where an engine looks, in the order in which the later ones go first; by default where all of them do."""
    found = {"docker": _of_docker, "podman": _of_podman, "containerd": _of_containerd}[engine](root) if engine else []
    return [str(path) for path in found] or list(DIRECTORIES)


def _of_docker(root: str) -> list[Any]:
    """From its file, or from the command line in its unit and what lies over that."""
    try:
        data = merge.parse_json(read_text(below(root, ENGINE_CONFIGS["docker"])))
    except merge.Malformed:
        data = {}
    found = data.get("cdi-spec-dirs")
    if isinstance(found, list) and found:
        return found
    units = [
        path
        for place in UNIT_PLACES
        for path in (
            below(root, f"{place}/systemd/system/docker.service"),
            *sorted(glob.glob(below(root, f"{place}/systemd/system/docker.service.d/*.conf"))),
        )
    ]
    flags: list[str] = []
    for path in units:
        flags = re.findall(r"--cdi-spec-dir[= ]\"?([^\s\"]+)", read_text(path)) or flags
    return flags


def _of_podman(root: str) -> list[Any]:
    found: list[Any] = []
    for pattern in PODMAN_FILES:
        for path in sorted(glob.glob(below(root, pattern))):
            value = merge.get(_toml(path), ("engine", "cdi_spec_dirs"))
            found = value if isinstance(value, list) and value else found
    return found


def _of_containerd(root: str) -> list[Any]:
    """From its file and from what that imports, whose settings lie over its own."""
    main_path = ENGINE_CONFIGS["containerd"]
    main = _toml(below(root, main_path))
    imports = main.get("imports")
    paths = [
        path
        for pattern in (imports if isinstance(imports, list) else [])
        # One that is not absolute begins where the file lies that names it.
        for path in sorted(glob.glob(below(root, os.path.join(os.path.dirname(main_path), str(pattern)))))
    ]
    found: list[Any] = []
    for data in (main, *map(_toml, paths)):
        for plugin in CONTAINERD_PLUGINS:
            value = merge.get(data, ("plugins", plugin, "cdi_spec_dirs"))
            found = value if isinstance(value, list) and value else found
    return found


def _toml(path: str) -> dict[str, Any]:
    # Python compiles on the host, at every execution, whatever a module imports.
    from ansible_collections.baremetal.gpu.plugins.module_utils.config import toml

    try:
        return toml.parse(read_text(path))
    except merge.Malformed:
        return {}


# -- files ------------------------------------------------------------------------------------------------------------


def read(path: str, place: int, kind: str) -> Specification | None:
    """What a file says of a kind of devices; None where it says nothing of it, or nothing that an engine could read."""
    text = read_text(path)
    try:
        found = _of_data(json.loads(text), kind)
    except (ValueError, RecursionError):
        # Engines read files of either name as YAML, and pass over what is none.
        found = None if _is_cut(text) else _of_yaml(text, kind)
    if found is None:
        return None
    names, paths = found
    missing = sorted({one for one in paths if one.startswith("/") and not os.path.exists(one)})
    return Specification(path, place, frozenset(names), tuple(missing))


def _of_data(data: Any, kind: str) -> tuple[list[str], list[str]] | None:
    if not isinstance(data, dict) or data.get("kind") != kind:
        return None
    if "devices" not in data:
        return [], []
    if not data["devices"]:
        # An engine refuses a specification without devices.
        return None
    try:
        edits = [data.get("containerEdits") or {}, *(row.get("containerEdits") or {} for row in data["devices"])]
        paths = [str(row["hostPath"]) for edit in edits for row in edit.get("mounts") or ()]
        paths += [str(row.get("hostPath") or row["path"]) for edit in edits for row in edit.get("deviceNodes") or ()]
        return [str(row["name"]) for row in data["devices"]], paths
    except (TypeError, KeyError, AttributeError):
        # Not of its form, which engines refuse too.
        return None


def _is_cut(text: str) -> bool:
    """Whether a text that begins as JSON ends before its last brace, as that of a program that was killed."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    return text.lstrip().startswith("{") and (bare.count("{"), bare.count("[")) != (bare.count("}"), bare.count("]"))


def _of_yaml(text: str, kind: str) -> tuple[list[str], list[str]] | None:
    """As far as a search shows without a reader of YAML, which a host need not have."""
    if not re.search(rf"""\bkind["']?\s*:\s*["']?{re.escape(kind)}(?![\w./-])""", text):
        return None
    value = r"""["']?\s*:\s*["']?([^"'\s,}]+)"""
    nodes = re.findall(rf"\bpath{value}", text)
    # A node may have another path on the host than in the container, and hooks have paths too, which are programs.
    paths = re.findall(rf"\bhostPath{value}", text) + [path for path in nodes if path.startswith("/dev/nvidia")]
    names = re.findall(rf"\bname{value}", text)
    if not names and re.search(r"""\bdevices["']?\s*:(?!\s+[&*!])""", text):
        # An engine refuses it; anchors and tags are the only other way to name a device.
        return None
    return names, paths


def specifications(where: Sequence[str], kind: str) -> list[Specification]:
    """Every file of these directories that specifies a kind, in their order. A directory under two names counts once,
    at its last place."""
    places = {os.path.realpath(directory): (place, directory) for place, directory in enumerate(where)}
    found = []
    for real, (place, directory) in sorted(places.items(), key=lambda item: item[1]):
        try:
            names = sorted(os.listdir(real))
        except OSError:
            continue
        files = (os.path.join(directory, name) for name in names if name.endswith(SUFFIXES))
        found += [one for one in (read(path, place, kind) for path in files) if one is not None]
    return found


def taken_from(name: str, known: Iterable[Specification]) -> list[str]:
    """The file from which an engine takes a device; several where they contradict each other and it takes none."""
    having = [one for one in known if one.has(name)]
    best = max((one.place for one in having), default=None)
    return [one.path for one in having if one.place == best]


def _share(one: Specification, other: Specification) -> bool:
    """Whether two files name the same device; one whose names are unknown may have any."""
    return not one.names or not other.names or bool(one.names & other.names)


def judge(
    path: str, names: Iterable[str], where: Sequence[str], kind: str, replaced: str | None = None
) -> tuple[str | None, list[str]]:
    """What speaks against a specification of these devices at a path, or None; and what an operator should know.

    :param replaced: a file that goes when the one at the path is written.
    """
    real = {os.path.realpath(directory): place for place, directory in enumerate(where)}
    own = real.get(os.path.realpath(os.path.dirname(path)))
    if own is None:
        return (
            f"{path} would not be read: the engine looks for CDI specifications in {', '.join(where)} only. To do: "
            "take the setting of these directories out of the engine's configuration, or name this one in it",
            [],
        )
    devices = set(names)
    own_files = {os.path.realpath(one) for one in (path, replaced) if one}
    others = [
        one
        for one in specifications(where, kind)
        if os.path.realpath(one.path) not in own_files and one.place >= own and (not one.names or one.names & devices)
    ]
    beside = [one.path for one in others if one.place == own]
    if beside:
        return (
            f"{', '.join(beside)} specify {kind} too, and an engine takes no device that two files name. "
            f"To do: remove them, or leave {path} out",
            [],
        )
    notes = []
    for one in others:
        twice = [other.path for other in others if other.place == one.place and other is not one and _share(one, other)]
        before = (
            f"engines take {kind} from {one.path} and not from {path}, because {os.path.dirname(one.path)} goes first"
        )
        if twice:
            return f"{before}, and {', '.join(twice)} names it too, so they take none. To do: remove all but one", []
        if one.missing:
            return (
                f"{before}; and it names {one.missing[0]}, which is not there. To do: have what wrote {one.path} write "
                f"it anew (NVIDIA's toolkit does with: systemctl restart {REFRESHED}), or remove {one.path}",
                [],
            )
        notes.append(before)
    return None, notes
