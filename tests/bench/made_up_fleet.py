# SPDX-License-Identifier: GPL-3.0-or-later
"""A made-up fleet: facts of any number of hosts, and the same fleet as somebody would write it down in YAML.

What the hosts' groups and GPUs are is said here a second time, in plain words, and not worked out by the product, so
that comparing the two compares something. Models, memory and capabilities are from tests/simulators/models.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file


class Model(NamedTuple):
    name: str
    slug: str
    architecture: str
    capability: str
    memory_mib: int
    nvlinks: int | None
    branch: int
    cuda: str
    groups: tuple[str, ...]


MODELS = (
    Model(
        "NVIDIA A100-SXM4-40GB",
        "a100-sxm4-40gb",
        "ampere",
        "8.0",
        40960,
        12,
        550,
        "12.4",
        ("gpu_model_a100_sxm4_40gb", "gpu_arch_ampere", "driver_branch_550", "cuda_12_4", "nvlink"),
    ),
    Model(
        "NVIDIA H100 80GB HBM3",
        "h100-80gb-hbm3",
        "hopper",
        "9.0",
        81559,
        18,
        570,
        "12.8",
        ("gpu_model_h100_80gb_hbm3", "gpu_arch_hopper", "driver_branch_570", "cuda_12_8", "nvlink"),
    ),
    Model(
        "Tesla V100-SXM2-16GB",
        "tesla-v100-sxm2-16gb",
        "volta",
        "7.0",
        16384,
        6,
        550,
        "12.4",
        ("gpu_model_tesla_v100_sxm2_16gb", "gpu_arch_volta", "driver_branch_550", "cuda_12_4", "nvlink"),
    ),
    Model(
        "Tesla T4",
        "tesla-t4",
        "turing",
        "7.5",
        15360,
        None,
        570,
        "12.8",
        ("gpu_model_tesla_t4", "gpu_arch_turing", "driver_branch_570", "cuda_12_8"),
    ),
)
GPUS = 8
MIG_EVERY = 12  # every twelfth host, which is always one of the A100s
UNHEALTHY_EVERY = 50


def host_name(number: int) -> str:
    return f"node{number:05d}.cluster.example"


def model_of(number: int) -> Model:
    return MODELS[number % len(MODELS)]


def verdict_of(number: int, index: int) -> str:
    return "fatal" if number % UNHEALTHY_EVERY == 0 and index == 0 else "ok"


def groups_of(number: int) -> list[str]:
    found = [*model_of(number).groups, f"gpu_count_{GPUS}"]
    if number % MIG_EVERY == 0:
        found.append("mig")
    if number % UNHEALTHY_EVERY == 0:
        found.append("gpu_unhealthy")
    return found


def _identity(number: int, index: int) -> dict[str, Any]:
    model = model_of(number)
    return {
        "index": index,
        "uuid": f"GPU-{number:08x}-0000-4000-8000-{index:012x}",
        "pci_address": f"0000:{16 + 8 * index:02x}:00.0",
        "name": model.name,
        "slug": model.slug,
        "architecture": model.architecture,
        "memory_mib": model.memory_mib,
    }


def gpus_of(number: int) -> list[dict[str, Any]]:
    return [{**_identity(number, index), "verdict": verdict_of(number, index)} for index in range(GPUS)]


def facts_of(number: int) -> dict[str, Any]:
    """`ansible_facts.gpu` of a host."""
    model = model_of(number)
    mig = {"enabled": number % MIG_EVERY == 0, "pending": number % MIG_EVERY == 0}
    devices = [
        {
            **_identity(number, index),
            "minor": index,
            "compute_capability": model.capability,
            "ecc": {"enabled": True, "pending": True},
            "mig": mig if model.architecture in ("ampere", "hopper") else None,
            "numa_node": index // 4,
            "pcie": {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16},
            "nvlinks": model.nvlinks,
            "not_applicable": [],
        }
        for index in range(GPUS)
    ]
    return {
        "schema": 1,
        "present": True,
        "reason": None,
        "pci": [
            {
                "address": device["pci_address"],
                "vendor": "10de",
                "device": "20b0",
                "class": "0302",
                "model": None,
                "architecture": model.architecture,
                "driver": "nvidia",
                "kind": "gpu",
            }
            for device in devices
        ],
        "driver": {
            "installed": f"{model.branch}.163.01",
            "loaded": f"{model.branch}.163.01",
            "nouveau_loaded": False,
            "branch": model.branch,
            "flavour": "proprietary",
            "cuda": model.cuda,
            "nvml_error": None,
        },
        "devices": devices,
        "health": {
            "schema": 1,
            "verdict": "fatal" if number % UNHEALTHY_EVERY == 0 else "ok",
            "reasons": [],
            "devices": [
                {"uuid": device["uuid"], "index": index, "verdict": verdict_of(number, index), "reasons": []}
                for index, device in enumerate(devices)
            ],
        },
    }


def write_snapshot(path: Path, hosts: int) -> None:
    rows = [fleet_file.row_of(host_name(number), 1_800_000_000.0, facts_of(number)) for number in range(hosts)]
    fleet_file.write(str(path), 1_800_000_000.0, rows)


def _static_lines(hosts: int, gpus_variable: str) -> Iterator[str]:
    members: dict[str, list[str]] = {}
    yield "all:\n  hosts:\n"
    for number in range(hosts):
        for group in groups_of(number):
            members.setdefault(group, []).append(host_name(number))
        yield f"    {host_name(number)}:\n"
        if gpus_variable:
            yield f"      {gpus_variable}:\n"
            for gpu in gpus_of(number):
                lead = "- "
                for key, value in gpu.items():
                    quoted = f'"{value}"' if key == "pci_address" else value
                    yield f"        {lead}{key}: {quoted}\n"
                    lead = "  "
    yield "  children:\n"
    for group, names in members.items():
        yield f"    {group}:\n      hosts:\n"
        yield from (f"        {name}:\n" for name in names)


def write_static(path: Path, hosts: int, gpus_variable: str = "") -> None:
    """The fleet as a static YAML inventory: hosts and groups, and GPUs if a name for their variable is given."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_static_lines(hosts, gpus_variable))


def write_plugin(path: Path, gpus_variable: str = "", snapshot: str = ".gpus.jsonl") -> None:
    """The options of the inventory plugin for the same, from a snapshot beside it."""
    path.write_text(
        f"plugin: baremetal.gpu.gpus\nsnapshot: {snapshot}\nadd_hosts: true\n"
        + (f"gpus_variable: {gpus_variable}\n" if gpus_variable else ""),
        encoding="utf-8",
    )
