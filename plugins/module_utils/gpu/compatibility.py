# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver goes with which GPU, kernel module flavour and CUDA. Pure rules over releases.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.models import MODELS, NEWEST_ARCHITECTURE
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.releases import (
    ARCHITECTURES,
    BRANCH_CUDA,
    BRANCH_SUPPORT,
    DISTRO_DRIVERS,
    MINOR_VERSION_COMPATIBILITY,
    OPEN_DEFAULT_BRANCH,
    OPEN_FIRST_BRANCH,
    PREFERRED_BRANCHES,
    TOOLKIT_DRIVERS,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key

FLAVOURS = ("open", "proprietary")
ARCHITECTURE_NAMES = tuple(ARCHITECTURES)


def problem(code: str, cause: str, value: Any, remedy: str) -> dict[str, str]:
    """A Problem as a row whose subject, the host, is not known here. Its evidence is the value that is wrong."""
    evidence = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else "" if value is None else str(value)
    return Problem(code, "", cause, evidence, remedy).as_dict()


def architectures(gpus: Iterable[dict[str, Any]]) -> list[str]:
    """The known architectures of rows such as pci.scan() returns, oldest first."""
    order = list(ARCHITECTURES)
    names = {gpu.get("architecture") for gpu in gpus if gpu.get("kind", "gpu") == "gpu"}
    return sorted((name for name in names if name in ARCHITECTURES), key=order.index)


def unknown(gpus: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs whose architecture is not known."""
    return [gpu for gpu in gpus if gpu.get("kind", "gpu") == "gpu" and gpu.get("architecture") not in ARCHITECTURES]


def _own_first(gpu: dict[str, Any]) -> int:
    """The first branch of a model that came later than its architecture; 0 for the others."""
    return int(MODELS.get(str(gpu.get("device")), {}).get("first_branch") or 0)


def needed_range(gpus: Sequence[dict[str, Any]]) -> tuple[int, int | None]:
    """As branch_range, for GPUs. One that is not known is taken for newer than all that are."""
    first, last = branch_range(_assumed(gpus))
    newest = PREFERRED_BRANCHES[0] if unknown(gpus) else 0
    return max([first, newest, *(_own_first(gpu) for gpu in gpus)]), last


def _assumed(gpus: Sequence[dict[str, Any]]) -> list[str]:
    """The architectures of GPUs, an unknown one counting as the newest."""
    names = architectures(gpus)
    return [*names, NEWEST_ARCHITECTURE] if unknown(gpus) and NEWEST_ARCHITECTURE not in names else names


def go_together(gpus: Sequence[dict[str, Any]]) -> bool:
    """Whether there is any branch and any flavour that drives all of these GPUs."""
    first, last = needed_range(gpus)
    return (last is None or first <= last) and bool(flavours(last or PREFERRED_BRANCHES[0], _assumed(gpus)))


def _named(gpus: Iterable[dict[str, Any]], names: Sequence[str]) -> str:
    """The GPUs of these architectures in words: `Tesla K20c (Kepler)`."""
    words = []
    for gpu in gpus:
        name = gpu.get("architecture")
        if name in names and gpu.get("kind", "gpu") == "gpu":
            label = gpu.get("model") or f"device {gpu.get('device', '?')}"
            words.append(f"{label} ({str(name).capitalize()})")
    return ", ".join(sorted(set(words))) or ", ".join(name.capitalize() for name in names)


def last_branch(architecture: str) -> int | None:
    """The last driver branch for an architecture; None while it is current."""
    row = ARCHITECTURES[architecture]["last_branch"]
    return int(row[0]) if row else None


def first_branch(architecture: str) -> int | None:
    """The first driver branch for an architecture; None where it is older than anything in the data."""
    toolkit = ARCHITECTURES[architecture]["first_toolkit"]
    if toolkit is None:
        return None
    drivers = [version_key(driver) for cuda, _update, driver, _source in TOOLKIT_DRIVERS if cuda == toolkit[0]]
    return min(drivers)[0]


def branch_range(names: Iterable[str]) -> tuple[int, int | None]:
    """The first and the last branch that drive all of these architectures; the last is None where there is none."""
    known = list(names)
    firsts = [first_branch(name) or 0 for name in known]
    lasts = [last for last in (last_branch(name) for name in known) if last is not None]
    return max(firsts, default=0), min(lasts, default=None) if lasts else None


def drives(branch: int, architecture: str) -> bool:
    first, last = branch_range([architecture])
    return first <= branch and (last is None or branch <= last)


def flavours(branch: int, names: Iterable[str]) -> list[str]:
    """The kernel module flavours that drive all of these architectures in this branch, the preferred one first."""
    allowed = [
        flavour
        for flavour in FLAVOURS
        if all(flavour in ARCHITECTURES[name]["flavours"][0] for name in names)
        and (flavour != "open" or branch >= OPEN_FIRST_BRANCH[0])
    ]
    if branch < OPEN_DEFAULT_BRANCH[0]:
        allowed.reverse()
    return allowed


def choose_flavour(gpus: Sequence[dict[str, Any]], branch: int, offered: Sequence[str] = FLAVOURS) -> str | None:
    """The flavour for `auto`: the preferred one among those that drive every GPU and that the source offers."""
    for flavour in flavours(branch, _assumed(gpus)):
        if flavour in offered:
            return flavour
    return None


def choose_branch(
    gpus: Sequence[dict[str, Any]], offered: Sequence[int] | None = None, flavour: str = "auto"
) -> int | None:
    """The branch for `auto`: the first of those offered that drives every GPU.

    `offered` is in order of preference (the distribution's own first); None stands for a source that carries every
    branch, of which the newest with long support is taken. None is returned where no branch drives all the GPUs.
    """
    first, last = needed_range(gpus)
    for branch in PREFERRED_BRANCHES if offered is None else offered:
        if first <= branch and (last is None or branch <= last):
            possible = flavours(branch, _assumed(gpus))
            if possible and (flavour == "auto" or flavour in possible):
                return branch
    return None


def distro_drivers(os_key: str | None) -> list[dict[str, Any]] | None:
    """What the distribution brings, its own choice first; None where that is not known."""
    row = DISTRO_DRIVERS.get(os_key or "")
    if row is None or row["drivers"] is None:
        return None
    return [dict(driver) for driver in row["drivers"]]


def distro_cuda(os_key: str | None) -> str | None:
    row = DISTRO_DRIVERS.get(os_key or "")
    return row["cuda"] if row else None


def distro_cuda_branch(os_key: str | None) -> int:
    """The oldest branch that the packages of the distribution's toolkit accept; 0 where none is known."""
    return int(DISTRO_DRIVERS.get(os_key or "", {}).get("cuda_libcuda") or 0)


def newest_cuda(branch: int | None) -> str | None:
    """The newest CUDA that drivers of a branch report, without asking a GPU."""
    if branch is None:
        return None
    # A branch between two known ones reports at least what the older one does.
    known = [(row, cuda) for row, cuda, _source in BRANCH_CUDA if row <= branch]
    return max(known)[1] if known else None


def end_of_life(branch: int) -> str | None:
    for known, _kind, end, _source in BRANCH_SUPPORT:
        if known == branch:
            return end
    return None


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver that runs a toolkit `12.4` (or one of its updates, `12.4.1`); None for an unknown toolkit."""
    parts = version_key(cuda)
    if len(parts) < 2:
        return None
    name = f"{parts[0]}.{parts[1]}"
    rows = [driver for known, _update, driver, _source in TOOLKIT_DRIVERS if known == name]
    if not rows:
        return None
    for major, driver, _source in MINOR_VERSION_COMPATIBILITY:
        if major == parts[0]:
            return driver
    return min(rows, key=version_key)


def runs_cuda(driver: str, cuda: str) -> bool | None:
    """Whether a driver (a version, or a branch) runs a toolkit; None where the toolkit is not known."""
    minimum = minimum_driver(cuda)
    if minimum is None:
        return None
    have, need = version_key(driver), version_key(minimum)
    # Of a bare branch the newest release is meant, so only the branch is compared.
    return have[0] >= need[0] if len(have) == 1 else have >= need


def check_branch(gpus: Sequence[dict[str, Any]], branch: int) -> list[dict[str, Any]]:
    problems = []
    for name in architectures(gpus):
        first, last = branch_range([name])
        if last is not None and branch > last:
            problems.append(
                problem(
                    "branch_too_new",
                    f"driver branch {branch} has no support for {_named(gpus, [name])}: branch {last} is the last",
                    branch,
                    f"set nvidia_driver_branch to {last} or auto, or take the GPU out",
                )
            )
        elif branch < first:
            problems.append(
                problem(
                    "branch_too_old",
                    f"driver branch {branch} does not know {_named(gpus, [name])} yet: branch {first} is the first",
                    branch,
                    f"set nvidia_driver_branch to {first} or newer, from a source that carries it",
                )
            )
    late = {_own_first(gpu): gpu for gpu in gpus if branch < _own_first(gpu)}
    if late and not problems:
        first = max(late)
        problems.append(
            problem(
                "branch_too_old",
                f"driver branch {branch} does not know {_named([late[first]], ARCHITECTURE_NAMES)} yet: branch {first} "
                "is the first",
                branch,
                f"set nvidia_driver_branch to {first} or newer, from a source that carries it",
            )
        )
    return problems


def check_flavour(gpus: Sequence[dict[str, Any]], branch: int, flavour: str) -> list[dict[str, Any]]:
    names = architectures(gpus)
    problems = []
    for name in names:
        allowed = ARCHITECTURES[name]["flavours"][0]
        if flavour not in allowed:
            problems.append(
                problem(
                    "flavour",
                    f"the {flavour} kernel modules do not drive {_named(gpus, [name])}",
                    flavour,
                    f"set nvidia_driver_flavour to {allowed[0]} or auto",
                )
            )
    if flavour == "open" and branch < OPEN_FIRST_BRANCH[0]:
        problems.append(
            problem(
                "flavour_branch",
                f"there are no open kernel modules in branch {branch}: {OPEN_FIRST_BRANCH[0]} is the first with them",
                flavour,
                "set nvidia_driver_flavour to proprietary or auto, or take a newer branch",
            )
        )
    return problems


def check_cuda(gpus: Sequence[dict[str, Any]], driver: str | None, cuda: str) -> list[dict[str, Any]]:
    """Problems of one toolkit with the GPUs and, where it is known, with the driver (a version or a branch)."""
    minimum = minimum_driver(cuda)
    if minimum is None:
        known = ", ".join(sorted({row[0] for row in TOOLKIT_DRIVERS}, key=version_key)[-6:])
        return [
            problem(
                "cuda_unknown",
                f"CUDA {cuda} is not a toolkit that is known here",
                cuda,
                f"name one by its major and minor version; the newest known are {known}",
            )
        ]
    problems = []
    if driver is not None and not runs_cuda(driver, cuda):
        problems.append(
            problem(
                "cuda_driver",
                f"CUDA {cuda} needs driver {minimum} or newer, and the driver is {driver}",
                cuda,
                _cuda_driver_remedy(gpus, driver, minimum),
            )
        )
    for name in architectures(gpus):
        dropped = ARCHITECTURES[name]["dropped_by_toolkit"]
        if dropped and version_key(cuda)[:2] >= version_key(dropped[0]):
            problems.append(
                problem(
                    "cuda_architecture",
                    f"CUDA {cuda} no longer builds for {_named(gpus, [name])}: {dropped[0]} dropped it",
                    cuda,
                    f"take a toolkit older than {dropped[0]}",
                )
            )
    return problems


def _cuda_driver_remedy(gpus: Sequence[dict[str, Any]], driver: str, minimum: str) -> str:
    _first, last = branch_range(architectures(gpus))
    need = version_key(minimum)[0]
    toolkits = [row[0] for row in TOOLKIT_DRIVERS if runs_cuda(driver, row[0])]
    older = f"take CUDA {max(toolkits, key=version_key)} or older" if toolkits else "take an older toolkit"
    if last is not None and last < need:
        return f"{older}: branch {last} is the last for these GPUs"
    return f"set nvidia_driver_branch to {need} or newer, or {older}"


def check(
    gpus: Sequence[dict[str, Any]],
    branch: int,
    flavour: str = "auto",
    cuda: Iterable[str] = (),
    version: str | None = None,
) -> list[dict[str, Any]]:
    """Every problem of this driver with these GPUs and toolkits. An empty list means that they go together."""
    problems = check_branch(gpus, branch)
    if flavour != "auto":
        problems += check_flavour(gpus, branch, flavour)
    elif not problems and not flavours(branch, _assumed(gpus)):
        names = _assumed(gpus)
        problems.append(
            problem(
                "flavour_mixed",
                f"no one flavour of kernel module in branch {branch} drives {_named(gpus, names)} together",
                branch,
                "put GPUs of these architectures into different hosts",
            )
        )
    for toolkit in cuda:
        problems += check_cuda(gpus, version or str(branch), toolkit)
    return problems
