# SPDX-License-Identifier: GPL-3.0-or-later
"""Random sequences of faults, restarts, replayed logs, reboots and clock jumps, against a plain model of what is true.

The model keeps for each GPU which fatal faults the judge was told of and has not been allowed to end yet, how many
Xids the driver logged, and how many looks in a row showed a fault that needs more than one.
"""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from tests.unit.plugins.health_host import Host, address, error, uuid

GPUS = 3
GPU = st.integers(0, GPUS - 1)
FATAL_XIDS = (48, 62, 79, 95, 119)
HARMLESS_XIDS = (13, 31, 43, 45)
CLEAR_LOOKS, WIDTH_LOOKS, UNKNOWN_LOOKS = 3, 3, 3

# Faults that a look shows for certain, and how the host gets and loses them.
READ_FAULTS = {
    "ecc_uncorrected": ("ecc_volatile", {"uncorrected": 1}, {"uncorrected": 0}),
    "row_remap_failed": ("remapped_rows", {"failure": True}, {"failure": False}),
    "ecc_sram_threshold": ("ecc_sram", {"threshold_exceeded": True}, {"threshold_exceeded": False}),
}

# What the model knows of the judge, and goes back to when the judge's own memory does.
MODEL = ("told", "xids", "standing", "good", "narrow_looks", "rma", "failed_looks", "looked")


class Storm(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.host = Host(gpus=GPUS)
        self.log: list[str] = []
        self.told = 0
        self.xids: Counter[tuple[str, int]] = Counter()
        # What a look shows, per GPU.
        self.read = {n: set() for n in range(GPUS)}
        self.narrow = dict.fromkeys(range(GPUS), False)
        self.failing = False
        # What the judge has been told and must not have forgotten: GPU -> code -> boot.
        self.standing: dict[int, dict[str, int]] = {n: {} for n in range(GPUS)}
        self.good = {n: Counter() for n in range(GPUS)}
        self.narrow_looks = Counter()
        self.rma: dict[int, set[str]] = {n: set() for n in range(GPUS)}
        self.failed_looks = 0
        self.looked = False
        self.saved: tuple = ({}, "null", self.host.boot_number)
        self.the_agent_saves()

    # --- what happens to the host ---

    @rule(gpu=GPU, number=st.sampled_from(FATAL_XIDS + HARMLESS_XIDS))
    def the_driver_logs_an_xid(self, gpu: int, number: int) -> None:
        self.host.uptime += 0.5
        self.log += self.host.lines(f"NVRM: Xid (PCI:{address(gpu)[:-2]}): {number}, pid=1, name=x")

    @rule(gpu=GPU)
    def a_gpu_falls_off_the_bus(self, gpu: int) -> None:
        self.host.uptime += 0.5
        self.log += self.host.lines(f"NVRM: GPU {address(gpu)}: GPU has fallen off the bus.")

    @rule(gpu=GPU, code=st.sampled_from(sorted(READ_FAULTS)), bad=st.booleans())
    def a_reading_changes(self, gpu: int, code: str, bad: bool) -> None:
        key, sick, well = READ_FAULTS[code]
        self.host.change(key, device=gpu, **(sick if bad else well))
        (self.read[gpu].add if bad else self.read[gpu].discard)(code)

    @rule(gpu=GPU, bad=st.booleans())
    def the_width_of_a_link_changes(self, gpu: int, bad: bool) -> None:
        self.host.change("pcie", device=gpu, width=8 if bad else 16)
        self.narrow[gpu] = bad

    @rule(seconds=st.floats(-1e9, 1e9, allow_nan=False))
    def the_clock_jumps(self, seconds: float) -> None:
        self.host.wall_offset += seconds

    @rule()
    def the_host_is_booted(self) -> None:
        self.host.reboot()
        self.log, self.told = [], 0
        for gpu in range(GPUS):
            # A flap in the readings of another boot is not the same one.
            self.narrow_looks[gpu] = 0

    # --- what the agent does ---

    @rule(overlap=st.integers(0, 40))
    def the_agent_reads_the_log(self, overlap: int) -> None:
        """From before where it had come to, as after a restart."""
        records = self.log[max(0, self.told - overlap) :]
        new = self.log[self.told :]
        self.host.replay(records)
        self.told = len(self.log)
        for event in kernel_log.Parser(None).events(new):
            gpu = next(n for n in range(GPUS) if address(n) == event["pci_address"])
            if event["kind"] == "off_bus":
                self._stands(gpu, "gpu_off_bus")
                continue
            self.xids[address(gpu), event["xid"]] += 1
            if event["xid"] in FATAL_XIDS:
                self._stands(gpu, "xid_fatal")

    @rule(times=st.integers(1, 6))
    def the_agent_looks(self, times: int) -> None:
        for _time in range(times):
            before = self._verdicts()
            self.host.look()
            self.looked = True
            self.failed_looks = 0
            for gpu in range(GPUS):
                self._seen(gpu, before)

    @rule(failure=st.sampled_from([error(4), error(None, "no_pynvml"), error(20)]), times=st.integers(1, 5))
    def a_look_fails(self, failure: dict, times: int) -> None:
        devices = self.host.devices
        self.host.fail(failure)
        for _time in range(times):
            before = (self.host.report and self._verdicts(), self._faults())
            self.host.look()
            self.failed_looks += 1
            assert self._faults() == before[1], "a look that failed set or ended a fault"
            if self.looked and before[0] and self.failed_looks < UNKNOWN_LOOKS:
                assert self._verdicts() == before[0], "the verdict changed for a look that failed"
        self.host.driver["nvml_error"], self.host.devices = None, devices

    @rule()
    def the_agent_saves(self) -> None:
        kept = {name: copy.deepcopy(getattr(self, name)) for name in MODEL}
        self.saved = (kept, json.dumps(self.host.history), self.host.boot_number)

    @rule()
    def the_agent_is_killed(self) -> None:
        """What it saved is left, and after it the log is read again from its beginning."""
        kept, history, boot = self.saved
        for name, value in copy.deepcopy(kept).items():
            setattr(self, name, value)
        if boot != self.host.boot_number:
            self.told = 0
            self.narrow_looks.clear()
        self.host.history = json.loads(history)
        self.host.tell([])
        self.the_agent_reads_the_log(overlap=len(self.log))

    @precondition(lambda self: any(self.standing.values()))
    @rule(gpu=GPU)
    def an_operator_clears(self, gpu: int) -> None:
        lifted = self.host.clear(uuid(gpu))
        lifted += self.host.clear(address(gpu))
        assert {row["code"] for row in lifted} >= set(self.standing[gpu])
        self.standing[gpu], self.rma[gpu] = {}, set()
        self.narrow_looks[gpu] = 0

    # --- the model ---

    def _stands(self, gpu: int, code: str) -> None:
        self.standing[gpu][code] = self.host.boot_number
        self.good[gpu][code] = 0
        if self.host.reason(code, gpu)["action"] == "rma":
            self.rma[gpu].add(code)

    def _seen(self, gpu: int, before: dict) -> None:
        for code in READ_FAULTS:
            if code in self.read[gpu]:
                self._stands(gpu, code)
            elif code in self.standing[gpu]:
                self._good(gpu, code, by_boot=False)
        for code in ("xid_fatal", "gpu_off_bus"):
            if code in self.standing[gpu] and not self.read[gpu]:
                self._good(gpu, code, by_boot=True)
        self.narrow_looks[gpu] = self.narrow_looks[gpu] + 1 if self.narrow[gpu] else 0
        one_bad_look = self.narrow_looks[gpu] == 1 and not self.standing[gpu] and not self.read[gpu]
        if one_bad_look and before.get(gpu) == "ok":
            assert self.host.gpu(gpu)["verdict"] == "ok", "one bad look changed the verdict"
        if self.narrow_looks[gpu] >= WIDTH_LOOKS:
            assert "pcie_width" in self.host.codes(gpu)

    def _good(self, gpu: int, code: str, by_boot: bool) -> None:
        if by_boot and self.standing[gpu][code] == self.host.boot_number:
            return
        escalated = code in self.rma[gpu] and code not in ("row_remap_failed", "ecc_sram_threshold")
        if escalated:
            return
        self.good[gpu][code] += 1
        if self.good[gpu][code] >= CLEAR_LOOKS:
            del self.standing[gpu][code]
            self.rma[gpu].discard(code)

    def _verdicts(self) -> dict[int | None, str]:
        if not self.host.report:
            return {}
        known = {row["pci_address"]: row["verdict"] for row in self.host.report["devices"]}
        return {None: self.host.report["verdict"], **{n: known.get(address(n)) for n in range(GPUS)}}

    def _faults(self) -> set[tuple[str, str]]:
        devices = self.host.report["devices"] if self.host.report else []
        return {(device["pci_address"], row["code"]) for device in devices for row in device["reasons"]}

    # --- what must always hold ---

    @invariant()
    def a_fatal_fault_is_never_called_ok(self) -> None:
        for gpu, codes in self.standing.items():
            if codes:
                assert self.host.report["verdict"] == "fatal"
                assert self.host.gpu(gpu)["verdict"] == "fatal"

    @invariant()
    def no_fault_is_lost_and_none_is_made_up(self) -> None:
        for row in self.host.report.get("devices", ()):
            gpu = next(n for n in range(GPUS) if address(n) == row["pci_address"])
            fatal = {reason["code"] for reason in row["reasons"] if reason["verdict"] == "fatal"}
            assert fatal == set(self.standing[gpu])

    @invariant()
    def every_xid_counts_once(self) -> None:
        counted = {(row["pci_address"], row["xid"]): row["count"] for row in health.xid_counts(self.host.history)}
        assert counted == self.xids


# The sequences are the same in every run; what fails once fails again.
Storm.TestCase.settings = settings(
    max_examples=220,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestStorm = pytest.mark.filterwarnings("ignore::DeprecationWarning")(Storm.TestCase)
