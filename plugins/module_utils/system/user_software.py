# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has that people load as a module: CUDA toolkits, MPI, compilers, NCCL, and environments of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

DIRECTORY = "/etc/lmod/modules"
# By this line the role knows its own module files again.
MARK = "-- Written by baremetal.gpu.user_software."
ASK_S = 60
_CUDA_RELEASE = re.compile(r"release (\d+\.\d+),")
_MPI_RELEASE = re.compile(r"Open MPI v?(\d+(?:\.\d+)+)")
_NCCL_NUMBER = re.compile(r"^#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)$", re.MULTILINE)


def modules(environments: Mapping[str, str], run: Run, root: str = "/") -> list[dict[str, Any]]:
    """A row for each: name (with the version), kind, path, and whether it is what is loaded without a version.

    :param environments: of the site, by the names of their modules; those that are not there are left out.
    :param root: where the host's file system begins.
    """
    top = Path(root)
    found = [*_cuda(top, run), *_mpi(top, run), *_compilers(top), *_nccl(top)]
    for name, path in sorted(environments.items()):
        if (top / path.lstrip("/") / "bin").is_dir():
            found.append(_row(name, "environment", path))
    return found


def _row(name: str, kind: str, path: str, default: bool = False) -> dict[str, Any]:
    return {"name": name, "kind": kind, "path": path, "default": default}


def _cuda(top: Path, run: Run) -> Iterator[dict[str, Any]]:
    chosen = os.path.realpath(top / "usr/local/cuda")
    for path in sorted((top / "usr/local").glob("cuda-*")):
        version = re.fullmatch(r"cuda-(\d+\.\d+)", path.name)
        if version and (path / "bin/nvcc").exists():
            yield _row(f"cuda/{version[1]}", "cuda", f"/{path.relative_to(top)}", os.path.realpath(path) == chosen)
    # The distribution's own: its tree of links, and its compiler among the other programs.
    own = top / "usr/lib/cuda"
    if own.is_dir() and (top / "usr/bin/nvcc").exists():
        version = _CUDA_RELEASE.search(run(["/usr/bin/nvcc", "--version"], None, ASK_S)[1])
        if version:
            yield _row(f"cuda/{version[1]}", "cuda", "/usr/lib/cuda", os.path.realpath(own) == chosen)


def _mpi(top: Path, run: Run) -> Iterator[dict[str, Any]]:
    places = [path for pattern in ("usr/lib/*/openmpi", "usr/lib64/openmpi") for path in sorted(top.glob(pattern))]
    version = _MPI_RELEASE.search(run(["/usr/bin/ompi_info", "--version"], None, ASK_S)[1]) if places else None
    if version:
        yield _row(f"openmpi/{version[1]}", "mpi", f"/{places[0].relative_to(top)}")


def _compilers(top: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((top / "usr/bin").glob("gcc-*")):
        version = re.fullmatch(r"gcc-(\d+)", path.name)
        if version:
            yield _row(f"gcc/{version[1]}", "gcc", f"/{path.relative_to(top)}")


def _nccl(top: Path) -> Iterator[dict[str, Any]]:
    header = top / "usr/include/nccl.h"
    if header.exists():
        numbers = _NCCL_NUMBER.findall(header.read_text("utf-8", "replace"))
        if len(numbers) == 3:
            yield _row(f"nccl/{'.'.join(numbers)}", "nccl", "/usr")


def written(root: str = "/") -> list[str]:
    """Paths of the module files that earlier runs wrote, sorted."""
    top = Path(root)
    files = (path for path in (top / DIRECTORY[1:]).rglob("*.lua") if path.is_file())
    ours = [path for path in files if path.read_text("utf-8", "replace").startswith(f"{MARK}\n")]
    return sorted(f"/{path.relative_to(top)}" for path in ours)
