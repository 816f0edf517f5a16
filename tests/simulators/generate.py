#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes scenarios/*.json from models.json and faults.json: every value of every card in full, so that the stand-ins
need neither.

A scenario can be changed by hand or by a test afterwards; this file only makes the ones that are kept.
"""

from __future__ import annotations

import copy
import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODELS: dict[str, Any] = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
FAULTS: dict[str, Any] = json.loads((HERE / "faults.json").read_text(encoding="utf-8"))
NAMESPACE = uuid.UUID("6f1d1f0e-3c0b-4a55-9a39-0d2b8a6f5c11")

# DGX-1 with V100: how many NVLinks join each pair of cards.
CUBE_MESH = (
    "01122000",
    "10210200",
    "12020010",
    "21200001",
    "20000112",
    "02001021",
    "00101202",
    "00012120",
)


def device(model: str, number: int, address: str, node: int, path: list[str]) -> dict[str, Any]:
    """One healthy, idle card."""
    m = copy.deepcopy(MODELS[model])
    serial = f"13{uuid.uuid5(NAMESPACE, f'serial {model} {number}').int % 10**11:011d}"
    pci = m["pci"]
    card: dict[str, Any] = {
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
            "generation_card": pci["generation"],
            "width": pci["width"],
            "width_max": pci["width"],
            "replays": 0,
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
        card["ecc"] = {
            "enabled": 1,
            "pending": 1,
            "default": m["ecc"]["default"],
            "absent": m["ecc"]["absent"],
            "volatile": counters,
            "aggregate": copy.deepcopy(counters),
            "sram": {"threshold_exceeded": 0} if m["ecc"].get("sram") else None,
        }
        if m["ecc"].get("no_device_fields"):
            card["ecc"]["no_device_fields"] = True
    if m.get("module_id"):
        card["module_id"] = number + 1
    if m["repair"] == "retired_pages":
        card["retired_pages"] = {"single_bit": [], "double_bit": [], "pending": 0}
    if m["repair"] == "remapped_rows":
        histogram = {"max": m["banks"], "high": 0, "partial": 0, "low": 0, "none": 0}
        card["remapped_rows"] = {
            "correctable": 0,
            "uncorrectable": 0,
            "pending": 0,
            "failure": 0,
            "histogram": histogram,
        }
    if "mig" in m:
        card["mig"] = {"current": 0, "pending": 0, **m["mig"], "instances": []}
    if "nvlink" in m:
        nvlink = m["nvlink"]
        card["nvlinks"] = {
            "version": nvlink["version"],
            "speed_mbps": nvlink["speed_mbps"],
            "links": [{"up": 0, "remote": None, "remote_type": 255, "errors": {}} for _ in range(nvlink["links"])],
        }
    if m.get("fabric"):
        card["fabric"] = {
            "state": 3,
            "status": 0,
            "cluster_uuid": "00000000-0000-0000-0000-000000000000",
            "clique": 0,
            "health_mask": 0,
            "health_summary": 0,
        }
    return card


def join(links: list[dict[str, Any]], remote: str, kind: int, count: int) -> None:
    """Brings up the next `count` links of a card; kind 0 is another card, 2 a switch."""
    free = [link for link in links if not link["up"]]
    for link in free[:count]:
        link.update(up=1, remote=remote, remote_type=kind)


def host(model: str, count: int) -> list[dict[str, Any]]:
    """The cards of a server: half of them on each of two sockets, in pairs behind PCIe switches."""
    if count <= 2:
        buses = ["3b", "af"] if model.startswith("a100") else ["02", "03"]
    else:
        buses = ["07", "0a", "47", "4d", "87", "8d", "b7", "bd"]
    cards = []
    for number in range(count):
        node = -1 if count == 1 else number * 2 // count
        bus = buses[number]
        where = [f"node{node}", f"bridge{number // 2}", f"switch{number // 2}", f"port{number}"]
        cards.append(device(model, number, f"0000:{bus}:00.0", node, where))
    return cards


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


def scenario(name: str, imitates: str, devices: list[dict[str, Any]], version: str, **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": name,
        "imitates": imitates,
        "origin": "hand-made from models.json by generate.py",
        "kernel": "stand-in",
        "driver": {"version": version, "library_version": None, "cuda_version": None},
        "nouveau": {"at_boot": False, "in_use": False},
        "fabric_manager": "not-needed",
        "switches": [],
        "devices": devices,
        "faults": [],
        "events": [],
        "cuda": {},
        **more,
    }


def mig(card: dict[str, Any], layout: list[str]) -> None:
    """Switches MIG on and cuts the card as laid out: names of profiles, in the order of their places."""
    profiles = {profile["name"]: profile for profile in card["mig"]["profiles"]}
    start = 0
    card["mig"].update(current=1, pending=1)
    for number, name in enumerate(layout):
        profile = profiles[name]
        card["mig"]["instances"].append(
            {
                "id": number + 1,
                "profile_id": profile["id"],
                "name": name,
                "uuid": f"MIG-{uuid.uuid5(NAMESPACE, card['uuid'] + str(number))}",
                "placement": [start, profile["memory_slices"]],
                "slices": profile["slices"],
                "multiprocessors": profile["multiprocessors"],
                "copy_engines": 1,
                "memory": {"total_mib": profile["memory_mib"], "reserved_mib": 0, "used_mib": 12},
            }
        )
        start += profile["memory_slices"]


def a100_pair() -> list[dict[str, Any]]:
    cards = host("a100-sxm4-40gb", 2)
    for card, other in zip(cards, reversed(cards), strict=True):
        join(card["nvlinks"]["links"], other["pci"]["address"], 0, 12)
    return cards


def switched(model: str, per_switch: list[int], boxes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cards = host(model, 8)
    for card in cards:
        for box, links in zip(boxes, per_switch, strict=True):
            join(card["nvlinks"]["links"], box["pci"]["address"], 2, links)
    return cards


def v100_cube() -> list[dict[str, Any]]:
    cards = host("v100-sxm2-16gb", 8)
    for card, row in zip(cards, CUBE_MESH, strict=True):
        for other, count in zip(cards, row, strict=True):
            join(card["nvlinks"]["links"], other["pci"]["address"], 0, int(count))
    return cards


def h100_pair() -> dict[str, Any]:
    boxes = switches("22a3", ["c3", "c4", "c5", "c6"])
    cards = switched("h100-sxm", [5, 4, 4, 5], boxes)[:2]
    return {"devices": cards, "switches": boxes, "fabric_manager": "running"}


# What a fault is a change of: a host that is well, persistence mode included.
HEALTHY: dict[str, Callable[[], dict[str, Any]]] = {
    "t4-x2": lambda: {"devices": host("t4", 2)},
    "a100-sxm4-40gb-x2": lambda: {"devices": a100_pair()},
    "h100-sxm-x2": h100_pair,
}


def change(document: Any, path: str, value: Any) -> None:
    """Sets what the dotted path leads to; the last key may be new."""
    *way, last = path.split(".")
    for key in way:
        document = document[int(key)] if isinstance(document, list) else document[key]
    document[last] = value


def faulty(row: dict[str, Any]) -> dict[str, Any]:
    found = HEALTHY[row["of"]]()
    for card in found["devices"]:
        card["persistence"] = 1
    document = scenario(row["name"], row["imitates"], found.pop("devices"), "550.163.01", **found)
    document["origin"] = "hand-made from models.json and faults.json by generate.py"
    for path, value in row["change"].items():
        if path == "mig":
            for place, layout in value.items():
                mig(document["devices"][int(place)], layout)
        elif path.endswith(".retired_pages"):
            pages = {cause: [{"address": 4096 * n, "time": 1760000000 + n} for n in range(1, value[cause] + 1)]
                     for cause in ("single_bit", "double_bit")}  # fmt: skip
            change(document, path, {**value, **pages})
        else:
            change(document, path, value)
    return document


def everything() -> list[dict[str, Any]]:
    a100_switches = switches("1af1", ["c0", "c1", "c2", "c3", "c4", "c5"])
    h100_switches = switches("22a3", ["c3", "c4", "c5", "c6"])
    a100_eight = switched("a100-sxm4-40gb", [2] * 6, a100_switches)
    h100_eight = switched("h100-sxm", [5, 4, 4, 5], h100_switches)
    with_mig = copy.deepcopy(a100_eight)
    mig(with_mig[0], ["1g.5gb"] * 7)
    mig(with_mig[1], ["3g.20gb", "2g.10gb", "1g.5gb"])
    mixed = [
        device("gtx1080", 0, "0000:17:00.0", 0, ["node0", "bridge0", "switch0", "port0"]),
        device("a100-sxm4-40gb", 1, "0000:65:00.0", 0, ["node0", "bridge1", "switch1", "port1"]),
    ]
    one_lost = copy.deepcopy(a100_eight)
    one_lost[5]["state"] = "lost"
    unready = copy.deepcopy(h100_eight)
    for card in unready:
        card["fabric"].update(state=1)
        for link in card["nvlinks"]["links"]:
            link["up"] = 0
    wrong = {"wrong_result": {"device": 1, "element": 4711, "bit": 17}}
    v550, v535 = "550.163.01", "535.247.01"
    hgx_a100 = {"switches": a100_switches, "fabric_manager": "running"}
    hgx_h100 = {"switches": h100_switches, "fabric_manager": "running"}
    pair, nouveau = a100_pair, {"at_boot": True, "in_use": False}
    without_uvm = {"without_uvm": True}
    mismatch = {"version": v550, "library_version": "550.999.99", "cuda_version": None}
    return [
        scenario("no-gpu", "a server without any NVIDIA device", [], v550),
        scenario("k20c-x1", "a workstation with one Tesla K20c, last branch 470", host("k20c", 1), "470.256.02"),
        scenario("gtx1080-x2", "two GeForce GTX 1080: no ECC, serial, NVLink", host("gtx1080", 2), v550),
        scenario("t4-x1", "an inference server with one Tesla T4", host("t4", 1), v550),
        scenario("v100-sxm2-16gb-x8", "NVIDIA DGX-1: eight V100 in a hybrid cube mesh", v100_cube(), v535),
        scenario("a100-sxm4-40gb-x2", "two A100 SXM4, made up: joined directly by twelve NVLinks", pair(), v550),
        scenario("a100-sxm4-40gb-x8", "an HGX A100 board: eight cards, six NVSwitches", a100_eight, v550, **hgx_a100),
        scenario("a100-sxm4-40gb-x8-mig", "the same, two cut by MIG: 7 x 1g, 3g+2g+1g", with_mig, v550, **hgx_a100),
        scenario("h100-sxm-x8", "an HGX H100 board: eight cards, four NVSwitches", h100_eight, v550, **hgx_h100),
        scenario("mixed", "a server with a GeForce GTX 1080 for display and an A100", mixed, v550),
        scenario("lost-one-of-eight", "an HGX A100: card 5 fell off the bus (Xid 79)", one_lost, v550, **hgx_a100),
        scenario("nouveau-bound", "a fresh server: nouveau took both cards at boot", pair(), v550, nouveau=nouveau),
        scenario("nouveau-in-use", "the same, and a console keeps nouveau: only a reboot helps", pair(), v550,
                 nouveau={"at_boot": True, "in_use": True}),
        scenario("a100-uvm-missing", "two A100, and CUDA finds no /dev/nvidia-uvm", pair(), v550, cuda=without_uvm),
        scenario("fabric-not-ready", "an HGX H100 without Fabric Manager: CUDA answers 802", unready, v550,
                 **{**hgx_h100, "fabric_manager": "stopped"}),
        scenario("driver-library-mismatch", "the library was upgraded by an unattended run, the old module is loaded",
                 pair(), v550, driver=mismatch),
        scenario("wrong-kernel-result", "two A100, the second computes one bit wrong", pair(), v550, cuda=wrong),
        *(faulty(row) for row in FAULTS["faults"]),
    ]  # fmt: skip


def render(document: dict[str, Any]) -> str:
    if "faults.json" not in document["origin"]:
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    # What differs from a healthy host is read in faults.json; the cards in full are for programs: each on a line.
    lines = []
    for key, value in document.items():
        if key in ("devices", "switches") and value:
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    directory = HERE / "scenarios"
    wanted = {f"{document['name']}.json": render(document) for document in everything()}
    for path in directory.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(HERE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
