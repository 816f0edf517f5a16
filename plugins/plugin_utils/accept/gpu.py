# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The items of GPUs that were put under load: right results, figures against the data sheet and the fleet, readings.

`hosts` are {name: {"gpu": ansible_facts.gpu, "load": what gpu_load returns, "held": what accept_hold returns, where a
job of Slurm kept the GPUs}}; what hosts send is untrusted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import nominal
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    FLEET_LEAST,
    GPU,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    Item,
    judged,
    outliers,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, rows

Row = Mapping[str, Any]
Hosts = Mapping[str, Row]

# A GPU that is this much slower than the median of its like is named.
TOLERANCE = 0.04
# Copies depend on where in the host a GPU is.
COPY_TOLERANCE = 0.10

KINDS = {"fp32": "TFLOPS in FP32", "fp64": "TFLOPS in FP64", "bf16": "TFLOPS in BF16", "memory": "GB/s of its memory"}
COPIES = ("host_to_device_pinned", "device_to_host_pinned", "host_to_device_pageable", "device_to_host_pageable")
SLOW = (
    "look at its power limit, clocks and cooling (`gpuops doctor {host}`), change places with a sound GPU, and have it "
    "replaced if the slowness moves with it"
)
BROKEN = "take the GPU out of use and have it replaced: its results are wrong"


def _subject(device: Row) -> str:
    return f"GPU {device.get('index', '?')}"


def _rate(device: Row, kind: str) -> float | None:
    return number(mapping(device.get(kind)).get("gb_s" if kind == "memory" else "tflops"))


def _results(host: str, device: Row) -> list[Item]:
    """Whether everything that came out of the GPU was right."""
    subject = _subject(device)
    items = []
    flip = mapping(device.get("own_flip"))
    if not flip:
        items.append(Item("gpu.memory", GPU, host, NOT_TESTABLE, "its memory was not tested", "", subject))
    else:
        wrong: float | None = number(mapping(device.get("memory")).get("wrong")) or 0
        wrong = (wrong or 0) + (number(flip.get("others")) or 0)
        places = "; ".join(
            f"byte {row.get('byte')}, bits {row.get('bits')}" for row in rows(device.get("memory_errors"))
        )
        evidence = f"{device.get('tested_mib')} MiB tested, {wrong:.0f} words were wrong"
        items.append(
            judged("gpu.memory", GPU, host, not wrong, f"{evidence}{': ' if places else ''}{places}", BROKEN, subject)
        )
        told = f"the test turned bit {flip.get('bit')} of byte {flip.get('byte')}, and "
        found = flip.get("found") is True
        told += "found it" if found else "did not find it"
        items.append(
            judged(
                "gpu.memory_test", GPU, host, found, told, "the memory test proves nothing here: report this", subject
            )
        )
    for kind in ("copies", "fp32", "fp64", "bf16"):
        row = mapping(device.get(kind))
        id = f"gpu.{kind}"
        if not row:
            missing = kind == "bf16" and not device.get("error")
            outcome, why = (NOT_APPLICABLE, "has no BF16") if missing else (NOT_TESTABLE, "the GPU did not come to it")
            items.append(Item(id, GPU, host, outcome, why, "", subject))
            continue
        wrong = number(row.get("wrong"))
        where = row.get("multiprocessors")
        at = f", on multiprocessors {where}" if isinstance(where, list) and where else ""
        good = None if wrong is None else wrong == 0
        items.append(judged(id, GPU, host, good, f"{wrong or 0:.0f} results were wrong{at}", BROKEN, subject))
    return items


def _figures(host: str, device: Row) -> list[Item]:
    """Figures against the data sheet, as far as it is known."""
    items, subject = [], _subject(device)
    sheet = nominal.NOMINAL.get(str(device.get("name")))
    for kind, what in KINDS.items():
        rate = _rate(device, kind)
        if rate is None:
            continue
        wanted = sheet.of(kind) if sheet else None
        if wanted is None or sheet is None:
            evidence = f"{rate:.4g} {what}; no figure of this model is known"
            items.append(Item(f"gpu.nominal.{kind}", GPU, host, NOT_APPLICABLE, evidence, "", subject))
            continue
        evidence = f"{rate:.4g} of {wanted:g} {what} ({rate / wanted:.0%}; {sheet.source})"
        good = rate >= nominal.FLOOR[kind] * wanted
        items.append(judged(f"gpu.nominal.{kind}", GPU, host, good, evidence, SLOW.format(host=host), subject))
    pcie = mapping(mapping(device.get("readings")).get("pcie"))
    lane = nominal.PCIE_LANE_GB_S.get(int(number(pcie.get("generation_max")) or 0))
    width = number(pcie.get("width_max"))
    for way in COPIES[:2]:
        rate = number(mapping(device.get("copies")).get(f"{way}_gb_s"))
        if rate is None or lane is None or width is None:
            continue
        evidence = f"{rate:.4g} GB/s {way.replace('_', ' ')}; the link carries {lane * width:.4g}"
        remedy = "see whether the link has all of its lanes and its generation under load, and what shares it"
        good = rate >= nominal.PCIE_FLOOR * lane * width
        items.append(judged(f"gpu.nominal.{way}", GPU, host, good, evidence, remedy, subject))
    return items


def _readings(host: str, device: Row) -> list[Item]:
    """What NVML told while the GPU worked."""
    subject = _subject(device)
    readings = mapping(device.get("readings"))
    if not readings:
        return [
            Item("gpu.readings", GPU, host, NOT_TESTABLE, "NVML gave no readings while the GPU worked", "", subject)
        ]
    items = []
    most = mapping(readings.get("most"))
    told = ", ".join(f"{key} {value}" for key, value in most.items())
    held = [str(reason) for reason in readings.get("held_back") or []]
    evidence = f"held back by {', '.join(held)}; at most {told}" if held else f"at most {told}"
    remedy = "check the airflow, the fans and the power supply of the host, and the room's temperature"
    items.append(judged("gpu.throttle", GPU, host, not held, evidence, remedy, subject))
    grown = mapping(readings.get("grown"))
    told = ", ".join(f"{key} by {_growth(value)}" for key, value in grown.items())
    evidence = f"errors were counted under load: {told}" if grown else "no counter of errors has grown"
    items.append(
        judged(
            "gpu.errors",
            GPU,
            host,
            not grown,
            evidence,
            "`gpuops doctor` says what each means; have the GPU replaced",
            subject,
        )
    )
    pcie = mapping(readings.get("pcie"))
    now, best = ([number(pcie.get(f"{key}{which}")) for key in ("generation", "width")] for which in ("", "_max"))
    if None in (*now, *best):
        items.append(Item("gpu.pcie_load", GPU, host, NOT_TESTABLE, "the PCIe link is not known", "", subject))
        return items
    good = all((one or 0) >= (other or 0) for one, other in zip(now, best, strict=True))
    evidence = f"generation {now[0]:g} of {best[0]:g} and {now[1]:g} of {best[1]:g} lanes under load"
    remedy = "reseat the GPU or its riser, and check what the BIOS sets for the slot"
    items.append(judged("gpu.pcie_load", GPU, host, good, evidence, remedy, subject))
    return items


def _growth(pair: Any) -> str:
    known = isinstance(pair, list) and len(pair) == 2 and number(pair[0]) is not None and number(pair[1])
    return f"{pair[1] - pair[0]}" if known else "some"


def _pairs(host: str, row: Row, load: Row) -> list[Item]:
    """Copies between the GPUs of a host."""
    by_uuid = {device.get("uuid"): _subject(device) for device in rows(load.get("devices"))}
    links = {gpu.get("uuid"): number(gpu.get("nvlinks")) or 0 for gpu in rows(mapping(row.get("gpu")).get("devices"))}
    sick = {
        device.get("uuid") for device in rows(load.get("devices")) if number(mapping(device.get("memory")).get("wrong"))
    }
    items = []
    for pair in rows(load.get("pairs")):
        first, second = pair.get("first"), pair.get("second")
        subject = f"{by_uuid.get(first, '?')} and {by_uuid.get(second, '?')}"
        if pair.get("error"):
            text = str(mapping(pair.get("error")).get("text"))
            items.append(judged("gpu.peer", GPU, host, False, text, "`gpuops doctor` looks at both GPUs", subject))
            continue
        wrong, peers = number(pair.get("wrong")), pair.get("peers") is True
        if wrong and sick & {first, second}:
            why = "the memory of one of them is wrong, so what arrived wrong says nothing of the way"
            items.append(Item("gpu.peer", GPU, host, NOT_TESTABLE, why, "", subject))
            continue
        linked = bool(links.get(first) and links.get(second))
        way = "directly" if peers else "through the host"
        evidence = (
            f"{pair.get('there_gb_s')} and {pair.get('back_gb_s')} GB/s {way}, {wrong or 0:.0f} MiB arrived wrong"
        )
        remedy = BROKEN if wrong else "look at the NVLinks and their bridges, and at ACS and the IOMMU"
        good = not wrong and (peers or not linked)
        items.append(judged("gpu.peer", GPU, host, good, evidence, remedy, subject))
    return items


def _alike(hosts: Hosts) -> dict[str, dict[str, dict[tuple[str, str], float]]]:
    """{what is compared: {model: {(host, subject): rate}}}"""
    found: dict[str, dict[str, dict[tuple[str, str], float]]] = {}

    def put(what: str, model: str, host: str, subject: str, rate: float | None) -> None:
        if rate:
            found.setdefault(what, {}).setdefault(model, {})[host, subject] = rate

    for host, row in hosts.items():
        load = mapping(row.get("load"))
        names = {}
        for device in rows(load.get("devices")):
            names[device.get("uuid")] = (str(device.get("name")), _subject(device))
            for kind in KINDS:
                put(kind, str(device.get("name")), host, _subject(device), _rate(device, kind))
            for way in COPIES:
                rate = number(mapping(device.get("copies")).get(f"{way}_gb_s"))
                put(way, str(device.get("name")), host, _subject(device), rate)
        for pair in rows(load.get("pairs")):
            if pair.get("error") or pair.get("first") not in names or pair.get("second") not in names:
                continue
            (model, first), (other, second) = names[pair["first"]], names[pair["second"]]
            rates = [rate for rate in map(number, (pair.get("there_gb_s"), pair.get("back_gb_s"))) if rate]
            way = "peers" if pair.get("peers") is True else "pairs through the host"
            put(way, f"{model} and {other}", host, f"{first} and {second}", min(rates, default=None))
    return found


def fleet(hosts: Hosts, tolerance: float = TOLERANCE) -> list[Item]:
    """Every GPU and every pair against the median of its like."""
    items = []
    for what, by_model in _alike(hosts).items():
        allowed = tolerance if what in KINDS else max(tolerance, COPY_TOLERANCE)
        for model, values in by_model.items():
            slow = {row.key: row for row in outliers(values, allowed)}
            for (host, subject), value in values.items():
                id = f"gpu.fleet.{what.replace(' ', '_')}"
                if len(values) < FLEET_LEAST:
                    spread = 1 - min(values.values()) / max(values.values())
                    evidence = f"{value:.4g}; {len(values)} of {model} are too few to say which one is slow" + (
                        f", they differ by {spread:.1%}" if len(values) > 1 else ""
                    )
                    items.append(Item(id, GPU, host, NOT_APPLICABLE, evidence, "", subject))
                    continue
                median = statistics.median(values.values())
                evidence = f"{value:.4g}, {value / median:.1%} of the median of {len(values)} of {model}"
                good = (host, subject) not in slow
                items.append(judged(id, GPU, host, good, evidence, SLOW.format(host=host), subject))
    return items


def items(hosts: Hosts, tolerance: float = TOLERANCE) -> list[Item]:
    """All items of the stage."""
    found: list[Item] = []
    for host, row in hosts.items():
        known = rows(mapping(row.get("gpu")).get("devices"))
        if mapping(row.get("gpu")).get("present") is False:
            found.append(Item("gpu.present", GPU, host, NOT_APPLICABLE, "the host has no GPU"))
            continue
        load = mapping(row.get("load"))
        if not load:
            why = str(row.get("why") or mapping(row.get("held")).get("why") or "the host did not answer")
            found.append(Item("gpu.present", GPU, host, NOT_TESTABLE, why))
            continue
        if any(mapping(gpu.get("mig")).get("enabled") for gpu in known):
            why = "MIG is on: CUDA shows a part of one GPU, whatever there is"
            found.append(Item("gpu.present", GPU, host, NOT_TESTABLE, why, "switch MIG off for the acceptance"))
            continue
        devices = rows(load.get("devices"))
        error = mapping(load.get("error"))
        seen = {device.get("uuid") for device in devices}
        minors = mapping(row.get("held")).get("minors")
        unheld = [gpu for gpu in known if isinstance(minors, list) and gpu.get("minor") not in minors]
        busy = [
            gpu for gpu in known if gpu.get("uuid") not in seen and (number(gpu.get("process_count")) or gpu in unheld)
        ]
        for gpu in busy:
            processes = number(gpu.get("process_count"))
            why = f"{processes:g} processes use the GPU" if processes else "another job of Slurm has the GPU"
            found.append(
                Item("gpu.free", GPU, host, NOT_TESTABLE, why, f"`gpuops drain {host}`, and wait", _subject(gpu))
            )
        lost = [_subject(gpu) for gpu in known if gpu.get("uuid") not in seen and gpu not in busy]
        if busy and not devices and not lost:
            continue
        evidence = f"{len(devices)} of {max(len(known) - len(busy), len(devices))} GPUs took the load"
        evidence += f"; {', '.join(lost)} did not" if lost else ""
        evidence += f"; {error.get('text')}" if error else ""
        remedy = f"`gpuops doctor {host}`"
        found.append(judged("gpu.present", GPU, host, bool(devices) and not lost and not error, evidence, remedy))
        for device in devices:
            failed = mapping(device.get("error"))
            if failed:
                text = f"{failed.get('call')}: {failed.get('text')}"
                found.append(judged("gpu.runs", GPU, host, False, text, remedy, _subject(device)))
            found += _results(host, device) + _figures(host, device) + _readings(host, device)
        found += _pairs(host, row, load)
    return found + fleet(hosts, tolerance)
