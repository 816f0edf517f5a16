# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML kept open between looks: the library, the handles of the GPUs, what they are, and their events.

Opening costs seconds per GPU without persistence mode, so it is done once, and again only where it may bring a GPU
back: a driver that was opened before a GPU was lost, reset or plugged in does not find it by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver, nvml, nvml_messages, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.readings import IDENTITY, Gpu, Question, within
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address

# A GPU that does not answer is looked for anew this often.
RETRY_S = 60.0
UNINITIALIZED = 1
# More is no answer. Boards for this many GPUs in one host are not built.
GPUS_MOST = 256
# Those that are documented have three digits.
XID_MOST = 10**6


class Session:
    """`lib` is pynvml; `trace` is told each question. Everything but `events` belongs to one thread."""

    def __init__(self, lib: Any, root: str = "/", trace: nvml.Trace | None = None) -> None:
        self.lib = lib
        self.root = root
        self.trace = trace
        # GPUs that are not asked, because asking them ends or stops the process: index -> the error that it was.
        self.avoid: dict[int, dict[str, Any]] = {}
        self.cuda: str | None = None
        self._opened_at: float | None = None
        self._number = 0
        self._gpus: dict[int, Gpu] = {}
        self._identities: dict[int, dict[str, dict[str, Any]]] = {}
        self._failed = False
        self._bus: Any = None
        self._turn = threading.Condition()
        self._closing = False
        self._waiting = False
        # Whether the GPUs have been looked at since NVML was opened: before, there is none to have events of.
        self._looked = False

    def open(self, bus: Any = None) -> dict[str, Any] | None:
        """Opens NVML where it is not open; the error where it cannot be. `bus` says which GPUs there are."""
        if self._opened_at is not None:
            retry = self._failed and time.monotonic() - self._opened_at >= RETRY_S
            if not retry and bus == self._bus:
                return None
            self.close()
        error = nvml.start(self.lib)
        if error is None:
            version = nvml.reading(self.lib, lambda: int(self.lib.nvmlSystemGetCudaDriverVersion_v2())).get("value")
            self.cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
            self._bus, self._failed = bus, False
            with self._turn:
                self._opened_at = time.monotonic()
                self._number += 1
        return error

    def close(self) -> None:
        """Lets go of the GPUs, as a reset of one of them needs it. Waits for who waits for events."""
        with self._turn:
            self._closing = True
            self._turn.wait_for(lambda: not self._waiting)
            if self._opened_at is not None:
                nvml.reading(self.lib, self.lib.nvmlShutdown)
            self._opened_at, self._looked = None, False
            self._gpus, self._identities = {}, {}
            self._closing = False

    def handle(self, index: int) -> Any:
        return self._gpus[index].handle if index in self._gpus else None

    def _look(self, index: int, questions: Mapping[str, Question]) -> dict[str, Any]:
        """{index, identity: {key: reading}, readings: {key: reading}, lost: the reading that said so, or null}."""
        row: dict[str, Any] = {"index": index, "identity": {}, "readings": {}, "lost": None, "error": None}
        if index in self.avoid:
            row["error"] = self.avoid[index]
            row["lost"] = {"state": "unknown", "code": None, "text": row["error"]["text"]}
            row["readings"] = dict.fromkeys(questions, row["lost"])
            return row
        if index not in self._gpus:
            if self.trace:
                self.trace.note(index, "handle")
            answer = nvml.reading(self.lib, partial(self.lib.nvmlDeviceGetHandleByIndex, index))
            if "value" not in answer:
                self._failed = True
                row["lost"] = answer
                row["readings"] = dict.fromkeys(questions, answer)
                return row
            self._gpus[index] = Gpu(answer["value"])
        if index in self._identities:
            row["identity"] = self._identities[index]
        else:
            row["identity"] = self._ask(index, IDENTITY, row)
            if all(reading.get("state") in (None, "not_applicable") for reading in row["identity"].values()):
                self._identities[index] = row["identity"]
        row["readings"] = self._ask(index, questions, row)
        return row

    def _ask(self, index: int, questions: Mapping[str, Question], row: dict[str, Any]) -> dict[str, dict[str, Any]]:
        gpu = self._gpus[index]
        found = {}
        for key, ask in questions.items():
            if row["lost"]:
                # It answers nothing any more, and each further question may cost seconds.
                found[key] = row["lost"]
                continue
            if self.trace:
                self.trace.note(index, key)
            found[key] = nvml.reading(self.lib, partial(ask, self.lib, gpu))
            if found[key].get("state") == "lost":
                self._failed = True
                row["lost"] = found[key]
            elif found[key].get("code") == UNINITIALIZED:
                # The handle is of a GPU that was reset meanwhile.
                self._failed = True
        return found

    def devices(self, questions: Mapping[str, Question], bus: list[dict[str, Any]] | None) -> dict[str, Any]:
        """{"error", "devices"}: a row for each GPU that NVML knows, those that it lost included.

        A row is {index, uuid, minor, pci_address, name, slug, architecture, compute_capability, memory_mib, numa_node,
        cpus, not_applicable (of these), error, readings}.
        """
        if self.trace:
            self.trace.clear()
        count = nvml.reading(self.lib, lambda: int(within(int(self.lib.nvmlDeviceGetCount()), GPUS_MOST)))
        if "value" not in count:
            self.close()
            return {"error": nvml.failure_of(count), "devices": []}
        rows = [self._look(index, questions) for index in range(count["value"])]
        if self.trace:
            self.trace.clear()
        with self._turn:
            self._looked = True
            self._turn.notify_all()
        _identify(rows, bus, self.root)
        return {"error": None, "devices": [_named(row, self.root) for row in rows]}

    def events(self, wait_ms: int) -> Iterator[dict[str, Any]]:
        """Xids as NVML reports them, as {pci_address, xid}, for a thread of its own. It never ends."""
        timeout = {self.lib.NVML_ERROR_TIMEOUT}
        number, events = 0, None
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._looked and not self._closing)
                self._waiting = True
                handles = [gpu.handle for gpu in list(self._gpus.values())]
                if number != self._number:
                    number, events = self._number, None
            if events is None:
                events = nvml.reading(self.lib, partial(self._register, handles)).get("value")
            answer = nvml.reading(self.lib, partial(self._event, events, wait_ms)) if events else {}
            broken = "value" not in answer and answer.get("code") not in timeout
            if broken and events:
                nvml.reading(self.lib, partial(self.lib.nvmlEventSetFree, events))
                events = None
            with self._turn:
                self._waiting = False
                self._turn.notify_all()
            if "value" in answer:
                yield answer["value"]
            elif broken:
                # A lost GPU ends the wait for all: begin anew, after a while, with those that are left.
                time.sleep(wait_ms / 1000)

    def _register(self, handles: list[Any]) -> Any:
        """A set that hears of every GPU that has events; None where none has."""
        xid = self.lib.nvmlEventTypeXidCriticalError
        events = self.lib.nvmlEventSetCreate()
        registered = 0
        for handle in handles:
            types = nvml.reading(self.lib, partial(self.lib.nvmlDeviceGetSupportedEventTypes, handle))
            if types.get("value", 0) & xid:
                done = nvml.reading(self.lib, partial(self.lib.nvmlDeviceRegisterEvents, handle, xid, events))
                registered += "value" in done
        if registered:
            return events
        self.lib.nvmlEventSetFree(events)
        return None

    def _event(self, events: Any, wait_ms: int) -> dict[str, Any]:
        event = self.lib.nvmlEventSetWait_v2(events, wait_ms)
        address = normal_address(nvml.text(self.lib.nvmlDeviceGetPciInfo(event.device).busId))
        return {"pci_address": address, "xid": int(within(int(event.eventData), XID_MOST))}


def _named(row: dict[str, Any], root: str) -> dict[str, Any]:
    """What Session.look tells as a row of a snapshot, with what the host's files add."""
    known, address = row["known"], row["known"]["pci_address"]
    unknown = (answer for answer in row["identity"].values() if answer.get("state") == "unknown")
    failed = row["lost"] or next(unknown, None)
    absent = (key for key, answer in row["identity"].items() if answer.get("state") == "not_applicable")
    return {
        "index": row["index"],
        **known,
        "slug": nvml_messages.slug(known["name"]) if known["name"] else None,
        "numa_node": pci.numa_node(address, root) if address else None,
        "cpus": pci.cpus(address, root) if address else None,
        "not_applicable": list(absent),
        "error": row["error"] or (nvml.failure_of(failed) if failed else None),
        "readings": row["readings"],
    }


def _identify(rows: list[dict[str, Any]], bus: list[dict[str, Any]] | None, root: str) -> None:
    """Gives each row `known`: {key: value}, with null for what is not known. A lost GPU cannot say who it is, but it
    has its place on the bus, and the driver wrote down what it was."""
    for row in rows:
        row["known"] = {key: row["identity"].get(key, {}).get("value") for key in IDENTITY}
    answering = {row["known"]["pci_address"] for row in rows}
    missing = [row["address"] for row in pci.gpus(bus) if row["address"] not in answering]
    silent = [row for row in rows if row["known"]["pci_address"] is None]
    if len(missing) == len(silent):
        # NVML numbers the GPUs by their addresses.
        for row, address in zip(silent, missing):
            row["known"]["pci_address"] = address
            if (row["lost"] or {}).get("state") != "lost":
                # It may be another's: what cannot be opened is named by its place alone.
                continue
            for key, value in driver.gpu(address, root).items():
                row["known"][key] = row["known"][key] or value
