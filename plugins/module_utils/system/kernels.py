# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernels of a host, and whether their headers are there."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key


def installed_kernels(root: str = "/") -> list[str]:
    """The kernels that a driver must be built for, oldest first: those whose own package brought its list of modules.

    Neither a directory of modules nor an image makes a kernel. DKMS and NVIDIA's installer leave modules of a removed
    kernel behind, also in its directory `kernel`. And images without modules are in /boot: a rescue image, a copy that
    `make install` or dpkg put aside. No driver can be built for any of these.
    """
    lists = glob.glob(below(root, "lib/modules/*/modules.builtin"))
    return sorted((os.path.basename(os.path.dirname(path)) for path in lists), key=version_key)


def kernels_to_check(choice: Any, running: str, installed: list[str]) -> list[str]:
    """The kernels that gpu_preflight_kernels names: `running`, `installed`, or a list of them."""
    if choice == "running":
        return [running]
    if choice == "installed":
        return list(installed)
    return [str(kernel) for kernel in choice]


def headers(kernels: Iterable[str], root: str = "/", family: str | None = "debian", run: Call = ask) -> dict[str, str]:
    """Per kernel whether its headers are `installed`, `available`, `missing`, or it is `unknown`."""
    answer = {}
    for kernel in kernels:
        places = (
            f"lib/modules/{kernel}/build/Makefile",
            f"usr/src/linux-headers-{kernel}/Makefile",
            f"usr/src/kernels/{kernel}/Makefile",
        )
        build = below(root, f"lib/modules/{kernel}/build")
        # The link is absolute, so below another root it has to be followed by hand.
        target = (
            os.path.join(os.path.dirname(f"lib/modules/{kernel}/build"), os.readlink(build))
            if os.path.islink(build)
            else ""
        )
        linked = bool(target) and os.path.isdir(below(root, target))
        there = linked or any(os.path.exists(below(root, place)) for place in places)
        answer[kernel] = "installed" if there else "unknown"
    missing = [kernel for kernel, state in answer.items() if state == "unknown"]
    if missing and family == "debian":
        # Python compiles on the host, at every execution, whatever a module imports.
        from ansible_collections.baremetal.gpu.plugins.module_utils.system.archives import archive_packages

        names = {headers_package(kernel, family): kernel for kernel in missing}
        known = archive_packages(names, root, run)
        if known is not None:
            for name, kernel in names.items():
                answer[kernel] = "available" if name in known else "missing"
    return answer


def headers_package(kernel: str, family: str | None) -> str:
    return f"kernel-devel-{kernel}" if family == "redhat" else f"linux-headers-{kernel}"
