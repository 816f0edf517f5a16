# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller alone knows of a site: its inventory, its secrets, and what gpuops remembers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.archive import FILE, Manifest
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from gpuops.backup.site_archive import CONTROLLER
from gpuops.run import listing
from gpuops.site import Site, SiteError, config_file

# Beside an inventory that is a file.
BESIDE = ("group_vars", "host_vars", ".secrets", ".gpuops")
# What a run makes anew, or fetches.
LEFT_OUT = (".git", ".venv", ".cache", ".wheels", "__pycache__", ".gpuops/backups", ".gpuops/runs")
SECRET_PLACES = ("_secrets_path", "_tls_path", "_passwords_path")


def part(site: Site, also: list[Path], words: list[str]) -> tuple[Part, list[str]]:
    """The files of the site, and the variables whose files are not among them. Raises SiteError."""
    directory = site.directory
    paths = [directory] if site.inventory.is_dir() else [site.inventory, *(directory / name for name in BESIDE)]
    config = config_file()
    paths += [config] if config else []
    outside, unknown = [], []
    for name, value in _places(site, words):
        path = value.replace("{{ inventory_dir }}", str(directory)).replace("{{inventory_dir}}", str(directory))
        if "{{" in path or not os.path.isabs(path):
            unknown.append(f"{name} ({one_line(value, 80)})")
        else:
            outside.append(Path(path))
    paths += [path.resolve() for path in (*outside, *also)]
    unique = [path for path in dict.fromkeys(paths) if not any(one in path.parents for one in paths)]
    left_out = tuple(str(directory / name) for name in LEFT_OUT)
    return Part(CONTROLLER, tuple(map(str, unique)), left_out), unknown


def _places(site: Site, words: list[str]) -> list[tuple[str, str]]:
    """The variables of the inventory that say where secrets are."""
    content = listing.read(site, words).content
    hosts: Mapping[str, Any] = (content.get("_meta") or {}).get("hostvars") or {}
    rows = {
        (name, value)
        for variables in hosts.values()
        for name, value in variables.items()
        if name.endswith(SECRET_PLACES) and isinstance(value, str) and value
    }
    return sorted(rows)


def put_back(manifest: Manifest, private: Path, directory: Path, check: bool) -> tuple[list[Path], list[str]]:
    """Write the files of the controller below a directory: those that were written, and those that lie elsewhere.

    Raises SiteError where a file is there that is another one; then none is written.
    """
    rows = [row for part in manifest.parts for row in part.rows if row.kind == FILE]
    base = _base([row.path for row in rows])
    inside = {directory / Path(row.path).relative_to(base): row for row in rows if Path(row.path).is_relative_to(base)}
    elsewhere = [row.path for row in rows if not Path(row.path).is_relative_to(base)]
    written = []
    for path, row in inside.items():
        content = (private / str(row.member)).read_bytes()
        if os.path.lexists(path):
            if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
                raise SiteError(
                    f"{path} is there and is another file. Name a directory that is empty; nothing was changed"
                )
        else:
            written.append((path, content, row.mode & 0o700))
    if not check:
        for path, content, mode in written:
            host_files.make_directories(str(path.parent), 0o700)
            host_files.write(str(path), content, mode)
    return [path for path, _content, _mode in written], elsewhere


def _base(paths: list[str]) -> Path:
    """The directory that has ansible.cfg, or else the one that has .secrets."""
    found = [Path(path).parent for path in paths if Path(path).name == "ansible.cfg"]
    found += [parent.parent for path in paths for parent in Path(path).parents if parent.name == ".secrets"]
    return found[0] if found else Path(os.path.commonpath(paths or ["/"]))


def lines(packed: Mapping[str, Any]) -> Iterator[str]:
    """A line for each part of a host."""
    for row in packed.get("parts") or ():
        name = one_line(str(row.get("name")), 60)
        if row.get("not_needed"):
            yield f"{name}: not needed, {one_line(str(row['not_needed']), 200)}"
        else:
            yield f"{name}: {int(row.get('files') or 0)} files, {int(row.get('bytes') or 0)} bytes"
        for path in row.get("passed_over") or ():
            yield f"{name}: passed over {one_line(str(path), 200)}, which is not a plain file"
