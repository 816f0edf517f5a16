# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of a host as a whole: driver, library, NVSwitches, and the number of GPUs."""

from __future__ import annotations

from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.health.rules import Finding, find

# What stands in `driver.nvml_error` -> the check that it fails; by NVML's code, or by name where NVML gave none.
_BY_CODE = {9: "driver_not_loaded", 12: "driver_library_missing", 18: "driver_library_mismatch"}
_BY_NAME = {
    "library_too_old": "driver_library_mismatch",
    "timeout": "nvml_hang",
    "crashed": "nvml_crash",
    "garbage": "nvml_crash",
}
# These say nothing of the host: no permission, out of memory, no pynvml, an error in our own code.
_NOT_THE_HOSTS_CODES = (4, 20)
_NOT_THE_HOSTS_NAMES = ("no_pynvml", "probe_failed")
_DRIVER_CHECKS = (
    "driver_library_missing",
    "driver_not_loaded",
    "driver_library_mismatch",
    "nvml_hang",
    "nvml_crash",
    "nvml_error",
)
# What must have gone well for NVML to fail with this code; of the other kinds a failure says nothing.
_PASSED: dict[Any, tuple[str, ...]] = {
    9: ("driver_library_missing",),
    18: ("driver_library_missing", "driver_not_loaded"),
}


def failed_check(error: dict[str, Any] | None) -> str | None:
    """The check that a failure of NVML as a whole belongs to; None where it says nothing of the host."""
    if not error:
        return None
    code, name = error.get("code"), str(error.get("name"))
    if code in _BY_CODE:
        return _BY_CODE[code]
    if name in _BY_NAME:
        return _BY_NAME[name]
    if code in _NOT_THE_HOSTS_CODES or name in _NOT_THE_HOSTS_NAMES:
        return None
    return "nvml_error"


def findings(
    look: dict[str, Any], policy: dict[str, Any], has_gpus: bool, blamed: bool = False
) -> dict[str, Finding | None]:
    """What every check of the host finds. `has_gpus`: it has GPUs that the driver should drive, or had. `blamed`:
    that the look failed is one GPU's fault."""
    checks = {
        **{code: partial(_driver, code, look, has_gpus, blamed) for code in _DRIVER_CHECKS},
        "gpu_count": partial(_count, look, policy),
        "fabric_manager_down": partial(_fabric_manager, look, policy),
        "node_device_file_missing": partial(_device_files, look, has_gpus),
    }
    return {code: find(code, check) for code, check in checks.items()}


def _driver(code: str, look: dict[str, Any], has_gpus: bool, blamed: bool) -> Finding:
    if not has_gpus:
        return Finding("not_applicable")
    error = (look.get("driver") or {}).get("nvml_error")
    # As long as the others can be asked without the GPU, it is not the host's fault.
    guilty = None if error and blamed and not error.get("stuck") else failed_check(error)
    if error and code == guilty:
        text = f"NVML cannot be asked: {error.get('text')}"
        return Finding("fail", error.get("code") or error.get("name"), None, text)
    return Finding("ok" if not error or code in _PASSED.get(error.get("code"), ()) else "unknown")


def _count(look: dict[str, Any], policy: dict[str, Any]) -> Finding:
    expected = policy["expected"]["gpus"]
    if expected is None:
        return Finding("not_applicable")
    if look.get("pci") is None:
        return Finding("unknown")
    count = len(pci.gpus(look["pci"]))
    if count == expected:
        return Finding("ok", count, expected)
    text = f"{count} GPUs on the PCI bus, and {expected} are expected"
    return Finding("fail", count, expected, "; ".join([text, *map(pci.why_not_ours, pci.others(look["pci"]))]))


def _fabric_manager(look: dict[str, Any], policy: dict[str, Any]) -> Finding:
    manager = look.get("fabric_manager") or {}
    if not manager.get("needed"):
        return Finding("not_applicable")
    if manager.get("running") is None:
        return Finding("unknown")
    if manager["running"]:
        return Finding("ok", True, True)
    if look["uptime"] < policy["thresholds"]["fabric_grace_s"]:
        return Finding("unknown")
    return Finding("fail", False, True, "nvidia-fabricmanager does not run")


def _device_files(look: dict[str, Any], has_gpus: bool) -> Finding:
    """Files such as /dev/nvidia0 belong to a GPU and are judged there."""
    if not has_gpus:
        return Finding("not_applicable")
    files = {
        path: there
        for path, there in (look.get("device_files") or {}).items()
        if not path.rsplit("/nvidia", 1)[-1].isdigit()
    }
    # Without its driver a GPU has no files, and the driver is what is to be mended.
    if not files or not (look.get("driver") or {}).get("loaded"):
        return Finding("unknown")
    missing = sorted(path for path, there in files.items() if not there)
    return Finding(
        "fail" if missing else "ok",
        missing,
        [],
        f"missing or with a wrong number: {', '.join(missing)}" if missing else "",
    )


def check_failed(errors: list[str]) -> Finding:
    """`errors` are those of the checks themselves, of the host and of its GPUs."""
    told = list(dict.fromkeys(errors))
    text = f"a check fails by an error of its own, and what it would find is not known: {'; '.join(told[:3])}"
    return Finding("fail" if told else "ok", len(told), 0, text)
