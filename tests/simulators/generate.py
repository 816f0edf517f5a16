#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the scenarios of simulated GPUs: a host of hosts.json with GPUs of models.json, changed as scenarios.json and
faults.json say. Every value of every GPU is in a scenario, so that the stand-ins need none of these files.

    generate.py DIRECTORY

writes each into a file there. Tests take a scenario from `scenario` and may change it further.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def _read(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


MODELS: dict[str, Any] = _read("models.json")
HOSTS: dict[str, Any] = _read("hosts.json")["hosts"]
_SCENARIOS, _FAULTS = _read("scenarios.json"), _read("faults.json")
# What is changed in the host of every fault.
EVERY_FAULT: dict[str, Any] = _FAULTS["every"]
FAULTS: dict[str, dict[str, Any]] = {
    row["name"]: {**row, "change": {**EVERY_FAULT, **row.get("change", {})}} for row in _FAULTS["faults"]
}
PATCHES: dict[str, dict[str, Any]] = {row["name"]: row for row in _SCENARIOS["scenarios"]} | FAULTS
DRIVER = "550.163.01"
NAMESPACE = uuid.UUID("6f1d1f0e-3c0b-4a55-9a39-0d2b8a6f5c11")


# What all boards of a kind have: number and id of a profile, slices, how many there can be, size and starts in units of
# memory. Source: nvidia-smi mig -lgip and -lgipp as shown in NVIDIA's MIG guide and in public issues, and the test data
# of NVIDIA/mig-parted.
_SEVEN = {
    "1g": (0, 19, 1, 7, 1, [0, 1, 2, 3, 4, 5, 6]),
    "1g+me": (7, 20, 1, 1, 1, [0, 1, 2, 3, 4, 5, 6]),
    "1g double": (9, 15, 1, 4, 2, [0, 2, 4, 6]),
    "2g": (1, 14, 2, 3, 2, [0, 2, 4]),
    "3g": (2, 9, 3, 2, 4, [0, 4]),
    "4g": (3, 5, 4, 1, 4, [0]),
    "7g": (4, 0, 7, 1, 8, [0]),
}
_FOUR = {
    "1g": (0, 14, 1, 4, 1, [0, 1, 2, 3]),
    "1g+me": (7, 21, 1, 1, 1, [0, 1, 2, 3]),
    "2g": (1, 5, 2, 2, 2, [0, 2]),
    "4g": (3, 0, 4, 1, 4, [0]),
}


class PatchError(Exception):
    """A patch that does not fit its host."""


def device(model: str, number: int, address: str, node: int, path: list[str]) -> dict[str, Any]:
    """One healthy, idle GPU."""
    m = copy.deepcopy(MODELS[model])
    serial = f"13{uuid.uuid5(NAMESPACE, f'serial {model} {number}').int % 10**11:011d}"
    pci = m["pci"]
    gpu: dict[str, Any] = {
        "model": model,
        "state": "ok",
        "name": m["name"],
        "uuid": f"GPU-{uuid.uuid5(NAMESPACE, f'{model} {number}')}",
        "minor": number,
        "serial": None if m["geforce"] else serial,
        "vbios": m["vbios"],
        "board_part_number": m["part_number"],
        "board_id": int(address[5:7], 16) << 8,
        "multi_gpu_board": 0,
        "brand": m["brand"],
        "architecture": m["architecture"],
        "compute_capability": m["compute_capability"],
        "driver_branches": [m["driver_branches"][0], m["driver_branches"][1]],
        "kernel_module": m["kernel_module"],
        "cores": m["cuda"]["cores"],
        "pci": {
            "address": address,
            "device": pci["device"],
            "subsystem_vendor": "10de",
            "subsystem_device": pci["subsystem"],
            "class": pci["class"],
            "irq": 40 + number,
            "generation": pci["generation"],
            "generation_max": pci["generation"],
            "generation_gpu": pci["generation"],
            "width": pci["width"],
            "width_max": pci["width"],
            "replays": 0,
            "replays_per_minute": 0,
            "tx_kib_s": None if m["architecture"] < 3 else 0,
            "rx_kib_s": None if m["architecture"] < 3 else 0,
            "numa_node": node,
            "cpus": "0-15" if node <= 0 else "16-31",
            "path": path,
            "peer_to_peer": pci["peer_to_peer"],
        },
        "memory": {**m["memory"], "used_mib": 0},
        "inforom": dict(zip(("image", "oem", "ecc", "power"), m["inforom"], strict=True))
        | {"valid": True, "checksum": 0x1234ABCD},
        "ecc": None,
        "retired_pages": None,
        "remapped_rows": None,
        "mig": None,
        "nvlinks": None,
        "fabric": None,
        "temperature": m["temperature"],
        "power": {
            "managed": 1,
            "usage_mw": m["power_w"]["idle"] * 1000,
            "limit_mw": m["power_w"]["default"] * 1000,
            "default_mw": m["power_w"]["default"] * 1000,
            "enforced_mw": m["power_w"]["default"] * 1000,
            "min_mw": m["power_w"]["min"] * 1000,
            "max_mw": m["power_w"]["max"] * 1000,
            "energy_mj": 1_000_000 if m["energy"] else None,
        },
        "clocks": {
            name: {"current": now, "max": most, "application": application, "application_default": application}
            for name, (now, most, application) in m["clocks"].items()
        },
        "throttle": {"reasons": 1, "supported": 0x1FF},
        "violations": None if m["geforce"] else {"power": 0, "thermal": 0, "sync_boost": 0, "board_limit": 0},
        "utilization": {"gpu": 0, "memory": 0, "encoder": 0, "decoder": 0},
        "performance_state": 8 if m["architecture"] < 7 else 0,
        "persistence": "daemon",
        "compute_mode": 0,
        "display": {"mode": m.get("display_mode", 0), "active": 0},
        "fan": m["fan"],
        "processes": [],
        "event_types": m["event_types"],
        "addressing_mode": 0,
        "recovery_action": 0,
        "repair": {"channel": 0, "tpc": 0} if m["architecture"] >= 7 else None,
        "unrepairable_memory": 0 if m["architecture"] >= 9 else None,
        "cuda": m["cuda"],
    }
    if m["ecc"]:
        counters: dict[str, dict[str, int]] = {"corrected": {"total": 0}, "uncorrected": {"total": 0}}
        errors = {"parity": 0, "secded": 0, "corrected": 0}
        sram = {"threshold_exceeded": 0, "volatile": errors, "aggregate": {**errors}}
        gpu["ecc"] = {
            "enabled": 1,
            "pending": 1,
            "default": m["ecc"]["default"],
            "absent": m["ecc"]["absent"],
            "volatile": counters,
            "aggregate": copy.deepcopy(counters),
            "sram": sram if m["ecc"].get("sram") else None,
        }
        if m["ecc"].get("no_device_fields"):
            gpu["ecc"]["no_device_fields"] = True
    if m.get("module_id"):
        gpu["module_id"] = number + 1
    if m["repair"] == "retired_pages":
        gpu["retired_pages"] = {"single_bit": [], "double_bit": [], "pending": 0}
    if m["repair"] == "remapped_rows":
        histogram = {"max": m["banks"], "high": 0, "partial": 0, "low": 0, "none": 0}
        gpu["remapped_rows"] = {
            "correctable": 0,
            "uncorrectable": 0,
            "pending": 0,
            "failure": 0,
            "histogram": histogram,
        }
    if "mig" in m:
        gpu["mig"] = _mig_of(m)
    if "nvlink" in m:
        nvlink = m["nvlink"]
        gpu["nvlinks"] = {
            "version": nvlink["version"],
            "speed_mbps": nvlink["speed_mbps"],
            "no_error_counters": 0,
            "links": [{"up": 0, "remote": None, "remote_type": 255, "errors": {}} for _ in range(nvlink["links"])],
        }
    if m.get("fabric"):
        gpu["fabric"] = {
            "state": 3,
            "status": 0,
            "cluster_uuid": "00000000-0000-0000-0000-000000000000",
            "clique": 0,
            "health_mask": 0,
            "health_summary": 0,
        }
    return gpu


def _mig_of(model: dict[str, Any]) -> dict[str, Any]:
    own = model["mig"]
    keys = ("number", "id", "slices", "instances", "memory_slices", "starts")
    profiles = []
    for kind, values in (_SEVEN if own["slices"] == 7 else _FOUR).items():
        name, mib, multiprocessors = own["profiles"][kind]
        facts = {"name": name, "memory_mib": mib, "multiprocessors": multiprocessors}
        profiles.append({**dict(zip(keys, copy.deepcopy(values), strict=True)), **facts})
    # Ampere keeps the mode in the InfoROM and changes it by a reset; later GPUs forget it with the driver.
    ampere = int(model["architecture"] < 9)
    return {
        "current": 0,
        "pending": 0,
        "max_devices": own["slices"],
        "kept_in_inforom": ampere,
        "needs_reset": ampere,
        "cannot_reset": 0,
        "profiles": profiles,
        "instances": [],
    }


def join(gpu: dict[str, Any], remote: dict[str, Any], kind: int, count: int) -> None:
    """Brings up the next `count` NVLinks of a GPU; kind 0 is another GPU, 2 a switch."""
    free = [link for link in gpu["nvlinks"]["links"] if not link["up"]]
    for link in free[:count]:
        link.update(up=1, remote=remote["pci"]["address"], remote_type=kind)


def switches(device_id: str, buses: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "pci": {
                "address": f"0000:{bus}:00.0",
                "device": device_id,
                "subsystem_vendor": "10de",
                "subsystem_device": "0000",
                "class": "068000",
                "numa_node": index * 2 // len(buses),
                "cpus": "0-15",
                "generation": 4,
                "generation_max": 4,
                "width": 2,
                "width_max": 2,
            }
        }
        for index, bus in enumerate(buses)
    ]


def host(name: str) -> dict[str, Any]:
    """The devices of a host that is well, joined by their NVLinks."""
    template = HOSTS[name]
    gpus = []
    for number, place in enumerate(template["gpus"]):
        node, bridge = place["node"], place["bridge"]
        path = [f"node{node}", f"bridge{bridge}", f"switch{bridge}", f"port{number}"]
        gpus.append(device(place["model"], number, f"0000:{place['bus']}:00.0", node, path))
    for gpu, row in zip(gpus, template.get("mesh", []), strict=False):
        for other, count in zip(gpus, row, strict=True):
            join(gpu, other, 0, count)
    if "switches" not in template:
        return {"fabric_manager": "not-needed", "switches": [], "devices": gpus}
    boxes = switches(template["switches"]["device"], template["switches"]["buses"])
    for gpu in gpus:
        for box, count in zip(boxes, template["switches"]["links"], strict=True):
            join(gpu, box, 2, count)
    return {"fabric_manager": "running", "switches": boxes, "devices": gpus}


def mig(gpu: dict[str, Any], layout: list[str]) -> None:
    """Switches MIG on and cuts the GPU as laid out: names of profiles, each at the first place that is free."""
    profiles = {profile["name"]: profile for profile in gpu["mig"]["profiles"]}
    taken: set[int] = set()
    gpu["mig"].update(current=1, pending=1)
    for number, name in enumerate(layout):
        profile = profiles[name]
        size = profile["memory_slices"]
        start = next(at for at in profile["starts"] if not taken & set(range(at, at + size)))
        taken |= set(range(start, start + size))
        compute = {
            "id": 0,
            "serial": 100 + number,
            "index": number,
            "profile_id": {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile["slices"]],
            "start": 0,
            "slices": profile["slices"],
            "multiprocessors": profile["multiprocessors"],
            "uuid": f"MIG-{uuid.uuid5(NAMESPACE, gpu['uuid'] + str(number))}",
            "name": name,
        }
        gpu["mig"]["instances"].append(
            {
                "id": number + 1,
                "serial": number + 1,
                "profile_id": profile["id"],
                "name": name,
                "placement": [start, size],
                "slices": profile["slices"],
                "multiprocessors": profile["multiprocessors"],
                "copy_engines": 1,
                "memory": {"total_mib": profile["memory_mib"], "reserved_mib": 0, "used_mib": 12},
                "compute": [compute],
            }
        )


def retire_pages(gpu: dict[str, Any], counts: dict[str, int]) -> None:
    for cause, count in counts.items():
        gpu["retired_pages"][cause] = [{"address": 4096 * n, "time": 1760000000 + n} for n in range(1, count + 1)]


def change(document: Any, path: str, value: Any) -> bool:
    """Sets what the dotted path leads to; `*` is every item of a list. Whether that made a difference."""
    key, _dot, rest = path.partition(".")
    keys: list[Any] = [key]
    if isinstance(document, list):
        keys = list(range(len(document))) if key == "*" else [int(key)]
    changed = False
    for place in keys:
        present = document[place]
        if rest:
            changed |= change(present, rest, value)
        else:
            changed |= present != value
            document[place] = copy.deepcopy(value)
    return changed


@contextlib.contextmanager
def _refusing(patch: dict[str, Any], path: str) -> Iterator[None]:
    """Names the scenario and the path where a patch does not fit its host."""
    try:
        yield
    except (LookupError, StopIteration, TypeError, ValueError):
        raise PatchError(f"scenario {patch['name']}: its host has no {path}") from None


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    """The scenario that a patch makes of its host."""
    with _refusing(patch, f"template {patch.get('of', patch['name'])}"):
        healthy = host(patch.get("of", patch["name"]))
    document = {
        "schema": 1,
        "name": patch["name"],
        "imitates": patch["imitates"],
        "origin": "hand-made: a host of hosts.json with GPUs of models.json, changed by scenarios.json or faults.json",
        "kernel": "stand-in",
        "driver": {"version": patch.get("driver", DRIVER), "library_version": None, "cuda_version": None},
        "nouveau": {"at_boot": False, "in_use": False},
        **healthy,
        "faults": [],
        "events": [],
        "kernel_log": [],
        "cuda": {},
    }
    for place, layout in patch.get("mig", {}).items():
        with _refusing(patch, f"devices.{place}.mig with {', '.join(layout)}"):
            mig(document["devices"][int(place)], layout)
    for place, counts in patch.get("retired_pages", {}).items():
        with _refusing(patch, f"devices.{place}.retired_pages"):
            retire_pages(document["devices"][int(place)], counts)
    for path, value in patch.get("change", {}).items():
        with _refusing(patch, path):
            if not change(document, path, value):
                raise PatchError(f"scenario {patch['name']}: {path} is so in its host already")
    return document


def scenario(name: str) -> dict[str, Any]:
    """The scenario of that name; the caller may change it."""
    return patched(PATCHES[name])


def main(directory: Path) -> None:
    """Each file is replaced as a whole, since somebody may read it; what is no scenario any more goes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in PATCHES:
        fresh = directory / f"{name}.{os.getpid()}"
        fresh.write_text(json.dumps(scenario(name), indent=1) + "\n", encoding="utf-8")
        fresh.replace(directory / f"{name}.json")
    for path in directory.glob("*.json"):
        if path.stem not in PATCHES:
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
