# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a query answered and what the host shows to a cause that an operator can act on, and to one report."""

from __future__ import annotations

import glob
import os
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, driver, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

SCHEMA = 1

SECURE_BOOT_VARIABLE = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

# Code -> what to do. The texts that go with them are made from what was found.
REMEDIES = {
    "driver_library_mismatch": (
        "the driver was upgraded under a loaded module: drain the host, then reload the nvidia modules or reboot; "
        "`gpuops up --tags driver` does it and holds the packages at one version"
    ),
    "nouveau_bound": "run `gpuops up --tags driver`: it blacklists the module, rebuilds the initramfs and asks for a "
    "reboot",
    "secure_boot": (
        "install modules that are signed with a key that the firmware knows, or enrol the key of DKMS with 'sudo "
        "mokutil --import /var/lib/dkms/mok.pub' and confirm it at the console, or switch Secure Boot off"
    ),
    "driver_not_installed": "run `gpuops up --tags driver`",
    "driver_not_loaded": "run 'sudo modprobe nvidia' and read what the kernel says ('sudo dmesg | grep -i nvrm')",
    "library_missing": "install the CUDA driver library of the driver's version (libcuda.so.1; libcuda1 in Debian)",
    "jit_compiler_missing": "install the PTX compiler of the driver's version (libnvidia-ptxjitcompiler.so.1)",
    "uvm_missing": (
        "run 'sudo modprobe nvidia-uvm' and 'sudo systemctl start baremetal-gpu-device-nodes', which `gpuops up "
        "--tags driver` installs"
    ),
    "device_nodes": "run 'sudo systemctl start baremetal-gpu-device-nodes', or `gpuops up --tags driver`",
    "fabric_manager": (
        "install nvidia-fabricmanager of exactly the driver's version, start it and see 'sudo journalctl -u "
        "nvidia-fabricmanager': GPUs that hang on NVSwitches "
        "do not compute before it has set up the fabric"
    ),
    "no_device": "check with 'lspci -d 10de:' that the GPU is on the bus, and with `sudo dmesg` why the driver "
    "refused it",
    "wrong_result": "take the GPU out of service and exchange it: it computes wrongly or its memory is damaged",
    "timeout": "look for Xid messages in `sudo dmesg`, drain the host, reset the GPU or reboot",
    "crash": "look for Xid messages in `sudo dmesg` and for a library of another version beside the driver's",
    "ecc_error": "drain the host and reset the GPU; exchange it if the error comes back",
    "device_unavailable": "end the job that has the GPU, or set the compute mode with 'sudo nvidia-smi -c DEFAULT'",
    "out_of_memory": "end the jobs that fill the GPU's memory",
    "device_failed": "look for Xid messages in `sudo dmesg`, drain the host, reset the GPU or reboot",
    "count_mismatch": "look for the address in `sudo dmesg`; a GPU that fell off the bus needs a power cycle",
    "nvml": "see what NVML says; `gpuops up --tags driver` brings driver and library to one version",
    "container": "check the container engine with `gpuops up --tags containers`, and the file that it takes the GPUs "
    "from",
    "container_isolation": "check the CDI specification and the engine's settings: the container sees other GPUs",
    "runtime": "see the compiler's output; `gpuops up --tags cuda` checks whether toolkit and driver fit together",
    "driver_too_old": "install a driver of a newer branch, or a CUDA toolkit that is not newer than the driver",
    "toolkit_missing": "install a CUDA toolkit with `gpuops up --tags cuda`, or leave the query of the CUDA runtime "
    "out",
    "unknown": "look for Xid and NVRM messages in `sudo dmesg`",
}

# CUDA results that mean that the GPU, not the program, failed: illegal address, launch timeout, hardware stack
# error, illegal instruction, misaligned address, launch failed.
DEVICE_FAILED = (700, 702, 714, 715, 716, 719)
BY_NUMBER = {
    2: "out_of_memory",
    35: "driver_too_old",
    46: "device_unavailable",
    214: "ecc_error",
    221: "jit_compiler_missing",
    **dict.fromkeys(DEVICE_FAILED, "device_failed"),
}
# What cuInit answers for quite different troubles, which the host's files tell apart.
VAGUE = (100, 101, 304, 999)


def cause(code: str, text: str) -> dict[str, str]:
    return {"code": code, "text": text, "remedy": REMEDIES[code]}


def secure_boot(root: str = "/") -> bool | None:
    """Whether the firmware enforces signatures; None where it cannot be told (no EFI, or no efivarfs)."""
    try:
        with open(os.path.join(root, SECURE_BOOT_VARIABLE), "rb") as stream:
            data = stream.read()
    except OSError:
        return None
    # Four bytes of attributes, then the value.
    return data[4:5] == b"\x01"


def host_state(root: str = "/", kernel: str | None = None) -> dict[str, Any]:
    """What the host's files say that bears on a failed query. Reads only."""
    try:
        bus = pci.scan(root)
    except pci.BusUnreadable:
        bus = []
    try:
        nodes = device_nodes.expected_nodes(root)
        problems = device_nodes.module_differences(root) + device_nodes.compare(nodes, root)
    except device_nodes.DriverNotLoaded:
        nodes, problems = [], []
    loaded, _flavour = driver.loaded(root)
    others = pci.others(bus)
    return {
        "gpus": pci.gpus(bus),
        "nvswitches": len(pci.nvswitches(bus)) + len(pci.bridges(bus)),
        "loaded": loaded,
        "installed": driver.library_version(root),
        "module_ready": module_lies_ready(root, kernel or os.uname().release),
        "module_anywhere": module_lies_ready(root, "*"),
        "secure_boot": secure_boot(root),
        "minors": device_nodes.gpu_minors(root),
        "nodes": [node.path for node in nodes],
        "node_differences": [problem.as_dict() for problem in problems],
        **({"left_out": [pci.why_not_ours(gpu) for gpu in others]} if others else {}),
    }


def module_lies_ready(root: str, kernel: str) -> bool:
    """Whether an nvidia module was built for a kernel; '*' stands for any."""
    base = os.path.join(root, "lib/modules", kernel)
    return any(glob.glob(os.path.join(base, pattern)) for pattern in driver.MODULES)


def diagnose(error: dict[str, Any], state: dict[str, Any], address: str | None = None) -> dict[str, str]:
    """The cause of an error: of one GPU where its PCI address is given, else of the whole host."""
    code, name = error.get("code"), error.get("name", "")
    said = f"{error.get('call')}: {name}" + (f" ({code})" if code is not None else "") + f": {error.get('text')}"
    nouveau = [gpu["address"] for gpu in state["gpus"] if gpu["driver"] == "nouveau"]

    if nouveau and (address in nouveau or state["loaded"] is None):
        return cause("nouveau_bound", f"nouveau is bound to {', '.join(nouveau)}; {said}")
    if state["loaded"] is None:
        return _not_loaded(state, said)
    if name in ("LIBRARY_NOT_LOADED", "SYMBOL_NOT_FOUND") or code == 34:
        return cause("library_missing", said)
    if code == 803 or (code in VAGUE and state["installed"] not in (None, state["loaded"])):
        text = f"the loaded module is {state['loaded']}, the installed libraries are {state['installed']}; {said}"
        return cause("driver_library_mismatch", text)
    if code == 802:
        return cause("fabric_manager", f"the host has {state['nvswitches']} NVSwitches (or bridges to some); {said}")
    if code in VAGUE:
        return _vague(state, said)
    by_name = {"WRONG_RESULT": "wrong_result", "TIMEOUT": "timeout", "CRASH": "crash"}
    return cause(by_name.get(name) or BY_NUMBER.get(code or 0, "unknown"), said)


def _not_loaded(state: dict[str, Any], said: str) -> dict[str, str]:
    if not state["gpus"]:
        return cause("no_device", f"no NVIDIA GPU on the PCI bus; {said}")
    if not state["module_anywhere"]:
        return cause("driver_not_installed", f"no nvidia module lies under /lib/modules; {said}")
    if state["secure_boot"]:
        text = f"Secure Boot is on and the nvidia module, which is installed, is not loaded; {said}"
        return cause("secure_boot", text)
    ready = "is there for" if state["module_ready"] else "is not there for"
    return cause("driver_not_loaded", f"the nvidia module is not loaded; it {ready} the running kernel; {said}")


def _vague(state: dict[str, Any], said: str) -> dict[str, str]:
    uvm = [problem for problem in state["node_differences"] if problem["path"].startswith("/dev/nvidia-uvm")]
    if uvm:
        found = "; ".join(f"{problem['path']}: {problem['current']}" for problem in uvm)
        return cause("uvm_missing", f"{found}; {said}")
    nodes = [problem for problem in state["node_differences"] if not problem["path"].startswith("/dev/char/")]
    if nodes:
        found = "; ".join(f"{problem['path']}: {problem['current']}" for problem in nodes)
        return cause("device_nodes", f"{found}; {said}")
    if not state["gpus"] or "NO_DEVICE" in said:
        return cause("no_device", said)
    return cause("unknown", said)


def judge(result: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The result with a cause beside every error. A query that saw no GPU without an error has one too."""
    judged = dict(result)
    error = result.get("error")
    judged["cause"] = diagnose(error, state) if error else None
    if not error and result.get("count") == 0:
        judged["cause"] = diagnose(
            {"call": "cuDeviceGetCount", "code": 100, "name": "CUDA_ERROR_NO_DEVICE", "text": "0 devices"}, state
        )
    judged["devices"] = [
        {**device, "cause": diagnose(device["error"], state, device.get("pci_address")) if device["error"] else None}
        for device in result["devices"]
    ]
    return judged


def causes_of(result: dict[str, Any], where: str = "") -> list[dict[str, str]]:
    """The causes in a judged result, each with the place it is about."""
    found = []
    if result.get("cause"):
        found.append({"where": where or "host", **result["cause"]})
    for device in result.get("devices", []):
        if device["cause"]:
            name = device.get("pci_address") or f"CUDA device {device['index']}"
            found.append({"where": f"{where} {name}".strip(), **device["cause"]})
    return found


def node_causes(state: dict[str, Any], most: int = 4) -> list[dict[str, str]]:
    """One cause for all nodes that one thing mends: a host with eight GPUs can have dozens."""
    by_remedy: dict[str, list[dict[str, str]]] = {}
    for problem in state["node_differences"]:
        by_remedy.setdefault(problem["remedy"], []).append(problem)
    found = []
    for remedy, problems in by_remedy.items():
        texts = [f"{one['path']} is {one['current']} and must be {one['expected']}" for one in problems[:most]]
        if len(problems) > most:
            texts.append(f"and {len(problems) - most} more")
        where = problems[0]["path"] if len(problems) == 1 else "device nodes"
        found.append({"where": where, "code": "device_nodes", "text": "; ".join(texts), "remedy": remedy})
    return found


def compare_counts(
    state: dict[str, Any], nvml: list[dict[str, Any]] | None, cuda: dict[str, Any] | None
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """How many GPUs each layer sees, and which GPU which layer does not see.

    A layer that could not be asked counts nothing and is not compared: its own failure is a cause already.
    """
    models = {gpu["address"]: gpu.get("model") or gpu.get("device") for gpu in state["gpus"]}
    seen: dict[str, list[str] | None] = {
        "pci": sorted(models),
        "driver": None if state["loaded"] is None else sorted(state["minors"]),
        "nvml": None if nvml is None else sorted(gpu["pci_address"] for gpu in nvml if gpu.get("pci_address")),
        "cuda": None,
    }
    partitioned = any((gpu.get("mig") or {}).get("enabled") for gpu in nvml or [])
    # With MIG on, CUDA shows one partition of one GPU, whatever there is.
    if cuda is not None and not cuda.get("error") and not partitioned:
        seen["cuda"] = sorted(gpu["pci_address"] for gpu in cuda["devices"] if "pci_address" in gpu)
    counts = {layer: None if addresses is None else len(addresses) for layer, addresses in seen.items()}
    if counts["cuda"] is not None and cuda is not None:
        # A GPU on which the query itself failed early has no address, but was counted.
        counts["cuda"] = cuda["count"]
    names = {"driver": "the driver", "nvml": "NVML", "cuda": "CUDA"}
    found = []
    for layer, name in names.items():
        addresses = seen[layer]
        if addresses is None or counts[layer] == counts["pci"]:
            continue
        for address in sorted(set(models) - set(addresses)):
            text = f"{name} does not see the GPU at {address} ({models[address]}), which is on the PCI bus"
            found.append({"where": address, **cause("count_mismatch", text)})
        for address in sorted(set(addresses) - set(models)):
            text = f"{name} sees a GPU at {address}, which is not on the PCI bus"
            found.append({"where": address, **cause("count_mismatch", text)})
    return {**counts, "mig": partitioned}, found


def nvml_cause(error: dict[str, Any]) -> dict[str, str]:
    """NVML's own error, whose remedy is known best where it was met."""
    found = cause("nvml", f"NVML says: {error.get('text')}")
    return {**found, "remedy": error.get("remedy") or found["remedy"]}


def report(facts: dict[str, Any], answer: dict[str, Any], host: str = "", expected: int = 0) -> dict[str, Any]:
    """One host's verdict from its facts (`ansible_facts.gpu`) and the answer of the module gpu_query.

    `expected` is how many GPUs the host was bought with: a GPU that left the bus is missing in every other count.
    """
    state, direct = answer["state"], answer["query"]
    nvml_error = (facts.get("driver") or {}).get("nvml_error")
    nvml = None if nvml_error or "devices" not in facts else facts["devices"]
    counts, causes = compare_counts(state, nvml, direct)
    if expected and counts["pci"] != expected:
        text = f"{counts['pci']} GPUs are on the PCI bus, {expected} are expected"
        text = "; ".join([text, *state.get("left_out", ())])
        causes.insert(0, {"where": "host", **cause("count_mismatch", text)})
    if nvml_error:
        causes.append({"where": "host", **nvml_cause(nvml_error)})
    for gpu in nvml or []:
        if gpu.get("error"):
            where = gpu.get("pci_address") or f"NVML device {gpu.get('index')}"
            causes.append({"where": where, **nvml_cause(gpu["error"])})
    causes += answer["causes"]
    return {
        "schema": SCHEMA,
        "host": host,
        "ok": not causes and answer["ok"],
        "causes": causes,
        "counts": {"expected": expected or None, **counts},
        "driver": {"loaded": state["loaded"], "installed": state["installed"], "cuda": direct["cuda"]},
        "device_nodes": state["nodes"],
        "devices": direct["devices"],
        "containers": answer.get("containers"),
        "cuda_runtime": answer.get("runtime"),
    }


def problems(verdict: dict[str, Any]) -> list[Problem]:
    """The causes as problems; the subject is the GPU, the container or the part of the host."""
    return [
        Problem(cause["code"], cause["where"], cause["text"].rstrip("."), "", cause["remedy"])
        for cause in verdict["causes"]
    ]
