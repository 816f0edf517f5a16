# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages make up an NVIDIA driver, and which must not be beside it. Pure; the names are the role's data.

A scheme is a way of naming the packages of a driver, such as Debian's own or NVIDIA's for apt. `{branch}` in a name
stands for the driver's branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.compatibility import FLAVOURS
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.releases import BRANCH_CUDA
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

Scheme = dict[str, Any]

ANY_BRANCH = "[0-9][0-9][0-9]"


def scheme_name(by_branch: dict[str, str], branch: str) -> str:
    """The scheme of a branch; `other` is that of the branches that are not named.

    :raises Refused: the system has no driver of this branch.
    """
    name = by_branch.get(branch) or by_branch.get("other")
    if name is None:
        known = ", ".join(sorted(key for key in by_branch if key != "other"))
        raise Refused(
            f"there is no driver of branch {branch}, only of {known}",
            "set nvidia_driver_branch to one of those",
            code="no_driver_of_branch",
            evidence=branch,
        )
    return name


def _names(scheme: Scheme, keys: Iterable[str], branch: str) -> list[str]:
    return [name.replace("{branch}", branch) for key in keys for name in scheme.get(key) or ()]


def _kernel_names(scheme: Scheme, branch: str) -> list[str]:
    return [name.replace("{branch}", branch) for names in (scheme.get("kernel") or {}).values() for name in names]


def kernel_packages(schemes: dict[str, Scheme]) -> list[str]:
    """Patterns of whatever package brings the kernel module of a driver, in any scheme and branch."""
    return sorted({name for scheme in schemes.values() for name in _kernel_names(scheme, ANY_BRANCH)})


def _every_name(scheme: Scheme, branch: str) -> list[str]:
    parts = ("driver", "parts", "tools", "persistence", "fabric_manager", "removed", "shared")
    return [*_kernel_names(scheme, branch), *_names(scheme, parts, branch)]


def _covering_names(scheme: Scheme, branch: str) -> list[str]:
    """What stands for the whole driver of a branch: patterns where the scheme has them, else every name."""
    patterns = [name for name in scheme.get("removed") or () if "{branch}" in name and "*" in name]
    covering = [name.replace("{branch}", branch) for name in patterns]
    return [*covering, *_names(scheme, ["shared"], branch)] if patterns else _every_name(scheme, branch)


def foreign_names(
    schemes: dict[str, Scheme], system: dict[str, Any], keep: Sequence[str] = (), scheme: str = "", branch: str = ""
) -> list[str]:
    """Names, or patterns of them, of drivers of this system other than the desired one."""
    used = {name for method in ("distro", "nvidia_repo") for name in (system.get(method) or {}).values()}
    foreign: list[str] = []
    for name in sorted(used - {scheme}):
        foreign += _covering_names(schemes[name], ANY_BRANCH)
    own: list[str] = []
    if scheme:
        own = _every_name(schemes[scheme], branch)
        foreign += _kernel_names(schemes[scheme], branch)
        # The same names with another branch in them; a scheme without the branch in its names has one driver only.
        of_branch = [name for name in _covering_names(schemes[scheme], "{branch}") if "{branch}" in name]
        others = {str(row[0]) for row in BRANCH_CUDA} - {branch}
        foreign += {name.replace("{branch}", other) for name in of_branch for other in others} - set(own)
    keepers = {*keep, *own} - set(_kernel_names(schemes[scheme], branch) if scheme else ()) | set(keep)
    return sorted(set(foreign) - keepers)


def driver_packages(
    schemes: dict[str, Scheme],
    system: dict[str, Any],
    method: str,
    branch: Any,
    flavour: str,
    version: str,
    hold: bool = True,
    persistence: bool = True,
    fabric_manager: bool = False,
    subnet_manager: bool = False,
) -> list[doc.Package]:
    """The packages of a driver for the desired document, and the absence of every other driver.

    All in one list, so that one transaction brings the one and takes the other.

    :raises Refused: this source has no such driver for the system.
    """
    branch = str(branch)
    name = scheme_name(system.get(method) or {}, branch)
    scheme = schemes[name]
    kernels = scheme.get("kernel") or {}
    if flavour not in kernels:
        offered = " or ".join(one for one in FLAVOURS if one in kernels) or "none"
        raise Refused(
            f"branch {branch} of this system has no {flavour} kernel modules, only {offered}",
            "set nvidia_driver_flavour to one that it has, or nvidia_driver_branch to another branch",
            code="no_driver_of_flavour",
            evidence=flavour,
        )
    if fabric_manager and not scheme.get("fabric_manager"):
        raise Refused(
            "the host has NVSwitches, whose Fabric Manager this source of drivers does not have",
            "set nvidia_driver_method to nvidia_repo",
            code="no_fabric_manager",
            evidence=method,
        )
    if subnet_manager and not scheme.get("subnet_manager"):
        raise Refused(
            "the host has NVSwitches behind ConnectX bridges, whose NVLink Subnet Manager (nvlsm) this source of "
            "drivers does not have",
            "set nvidia_driver_method to nvidia_repo",
            code="no_subnet_manager",
            evidence=method,
        )
    versioned = [one.replace("{branch}", branch) for one in kernels[flavour]]
    versioned += _names(scheme, ("driver", "parts", *(["fabric_manager"] if fabric_manager else [])), branch)
    more = [*(["persistence"] if persistence else []), *(["subnet_manager"] if subnet_manager else [])]
    free = _names(scheme, ("tools", *more), branch)
    present = [*versioned, *free]
    return [
        *(doc.Package(one, version=version, hold=hold, together=True) for one in versioned),
        *map(doc.Package, free),
        *(doc.Package(one, "absent") for one in foreign_names(schemes, system, present, name, branch)),
    ]


def no_driver_packages(schemes: dict[str, Scheme], system: dict[str, Any]) -> list[doc.Package]:
    """The absence of every driver, of its init scripts and the like too."""
    return [doc.Package(name, "absent", purge=True) for name in foreign_names(schemes, system)]
