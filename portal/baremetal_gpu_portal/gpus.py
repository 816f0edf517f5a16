# SPDX-License-Identifier: GPL-3.0-or-later
"""What each GPU does, from Prometheus: its model, use, memory, temperature, and the verdict of its host's agent."""

from __future__ import annotations

import http.client
import math
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN, parse
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

ANSWER_S, ANSWER_AT_MOST = 5.0, 64 << 20
TEXT_AT_MOST, REASONS_AT_MOST = 100, 8
# Metric -> what it is of a GPU. The others are below.
NUMBERS = {"gpu_utilization_ratio": "use", "gpu_temperature_celsius": "celsius"}
INFO, HEALTH, REASON, MEMORY = "gpu_info", "gpu_health_status", "gpu_health_reason", "gpu_memory_bytes"
# Of some GPUs several temperatures and uses are told, as their labels say.
QUERY = f'{{__name__=~"{"|".join((*NUMBERS, INFO, HEALTH, REASON, MEMORY))}",unit=~"|gpu",sensor=~"|gpu"}}'
# Host -> its GPUs: minor (None where nobody tells), uuid, model, use, celsius, used, total (bytes), verdict, reasons.
Gpus = Mapping[str, list[dict[str, Any]]]


def ask(url: str) -> Gpus:
    """The GPUs of all hosts; none where Prometheus does not answer, or says what is no answer of it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"{url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': QUERY})}"
    try:
        with opener.open(address, timeout=ANSWER_S) as answer:
            return read(answer.read(ANSWER_AT_MOST))
    except (OSError, http.client.HTTPException):
        return {}


def read(data: bytes) -> Gpus:
    """As `ask`, of an answer."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    of_hosts: dict[str, list[str]] = {}
    try:
        for row in parse(data)["data"]["result"]:
            labels, value = row["metric"], float(row["value"][1])
            key = labels.get("pci_address") or labels.get("uuid")
            host = one_line(labels.get("host", ""), TEXT_AT_MOST)
            if key and host and math.isfinite(value):
                _learn(found.setdefault(host, {}).setdefault(str(key), {"reasons": []}), labels, value)
            elif host and labels["__name__"] == REASON and value == verdict.NUMBERS[verdict.FATAL]:
                of_hosts.setdefault(host, []).append(one_line(labels.get("code", ""), TEXT_AT_MOST))
    except MISSHAPEN:
        return {}
    # A verdict on a host is one on each of its GPUs.
    for host, codes in of_hosts.items():
        for gpu in found.get(host, {}).values():
            gpu.update(verdict=verdict.FATAL, reasons=[*gpu["reasons"], *codes][:REASONS_AT_MOST])
    return {host: sorted(gpus.values(), key=lambda gpu: gpu.get("minor", 1 << 20)) for host, gpus in found.items()}


def _learn(gpu: dict[str, Any], labels: Mapping[str, str], value: float) -> None:
    name = labels["__name__"]
    gpu.setdefault("uuid", one_line(labels.get("uuid", ""), TEXT_AT_MOST))
    if name == INFO:
        gpu["model"] = one_line(labels.get("model", ""), TEXT_AT_MOST)
        minor = str(labels.get("minor", ""))
        if minor.isdigit() and len(minor) < 5:
            gpu["minor"] = int(minor)
    elif name == HEALTH:
        gpu["verdict"] = verdict.of_number(value)
    elif name == REASON:
        if len(gpu["reasons"]) < REASONS_AT_MOST:
            gpu["reasons"].append(one_line(labels.get("code", ""), TEXT_AT_MOST))
    elif name == MEMORY:
        gpu["total"] = gpu.get("total", 0.0) + value
        if labels.get("state") == "used":
            gpu["used"] = value
    else:
        gpu[NUMBERS[name]] = value
