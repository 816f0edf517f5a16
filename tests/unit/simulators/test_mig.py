# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG in the simulated library: modes, instances, and what it refuses, by the errors' names."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.simulators import mig_contract
from tests.simulators.mig_contract import Gpu, code_of
from tests.unit.plugins.service_account import needs_root

pytestmark = needs_root
INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, RESET_REQUIRED, IN_USE, INSUFFICIENT = 2, 3, 4, 6, 16, 19, 23
# Ids of profiles of boards with seven slices.
G1, ME1, DOUBLE, G2, G3, G4, G7 = 19, 20, 15, 14, 9, 5, 0


@pytest.fixture
def gpu(pynvml, scenario):
    """gpu(name) has MIG switched on; `gpu.chosen` is the scenario."""

    def make(name="h100-sxm-x2", mode=1):
        make.chosen = scenario(name)
        pynvml.nvmlInit()
        found = Gpu(pynvml)
        if mode:
            assert found.set_mode(1) == 0
        return found

    return make


def reboot(chosen):
    for suffix in (".mig", ".settings"):
        chosen.path.with_name(chosen.path.name + suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["a30-x2", "a100-sxm4-40gb-x2", "h100-sxm-x2", "b200-sxm-x2"])
@pytest.mark.parametrize("question", mig_contract.QUESTIONS, ids=lambda question: question.name)
def test_the_simulated_library_keeps_the_contract(gpu, name, question):
    cut = gpu(name)
    assert question.ask(cut) == question.expected
    assert cut.devices() == {}


# Profiles


@pytest.mark.parametrize(
    ("name", "names", "memory"),
    [
        ("a30-x2", "1g.6gb 1g.6gb+me 2g.12gb 4g.24gb", (5952, 24064)),
        ("a100-sxm4-40gb-x2", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", (4864, 40192)),
        ("a100-sxm4-80gb-x2", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9728, 80384)),
        ("h100-sxm-x2", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9984, 81152)),
        ("h200-sxm-x2", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", (16384, 143360)),
        ("b200-sxm-x2", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", (22528, 182272)),
    ],
)
def test_each_board_has_its_own_profiles(gpu, pynvml, name, names, memory):
    cut, found = gpu(name), {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(cut.handle, number)
        except pynvml.NVMLError_NotSupported:
            continue
        found[info.name.removeprefix("MIG ")] = info.memorySizeMB
    assert sorted(found) == sorted(names.split())
    assert (min(found.values()), max(found.values())) == memory


def test_the_number_of_a_profile_in_nvmls_list_is_not_its_id(gpu, pynvml):
    cut = gpu()
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(cut.handle, 0).id == G1
    assert code_of(pynvml, pynvml.nvmlDeviceCreateGpuInstance, cut.handle, 1) == INVALID
    assert cut.placements(G3) == [(0, 4), (4, 4)]
    assert code_of(pynvml, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, cut.handle, 18) == INVALID


@pytest.mark.parametrize(
    ("profiles", "fits"),
    [
        ([G1] * 7, True),
        ([G1] * 8, False),
        ([G4, G3], True),
        ([G2, G2, G2, G1], True),
        ([G3, G3], True),
        ([G3, G3, G1], False),
        ([DOUBLE] * 4, True),
        ([ME1], True),
        ([ME1, ME1], False),
        ([G7, G1], False),
    ],
)
def test_what_fits_together_is_counted_in_units_of_memory(gpu, pynvml, profiles, fits):
    cut = gpu()
    codes = [code_of(pynvml, cut.cut, profile) for profile in profiles]
    assert codes == [0] * len(profiles) if fits else codes == [*[0] * (len(profiles) - 1), INSUFFICIENT]


def test_placements_that_are_none(gpu, pynvml):
    cut = gpu()
    cut.cut(G4, 0)
    assert code_of(pynvml, cut.cut, G3, 0) == INSUFFICIENT
    assert code_of(pynvml, cut.cut, G3, 2) == INVALID
    assert code_of(pynvml, cut.cut, G2, 6) == INVALID
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(cut.handle, G1) == 3
    assert code_of(pynvml, cut.cut, G3, 4) == 0


# Modes


def test_without_the_mode_nothing_is_made(gpu, pynvml):
    cut = gpu(mode=0)
    assert code_of(pynvml, cut.cut, G1) == NOT_SUPPORTED
    assert code_of(pynvml, cut.placements, G1) == NOT_SUPPORTED


def test_a_t4_has_no_mig(gpu, pynvml):
    cut = gpu("t4-x1", mode=0)
    assert code_of(pynvml, cut.set_mode, 1) == NOT_SUPPORTED
    assert code_of(pynvml, pynvml.nvmlDeviceGetMigMode, cut.handle) == NOT_SUPPORTED


def test_nobody_but_root_changes_mig(scenario, run_python):
    scenario("h100-sxm-x2")
    code = """
import os, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlDeviceSetMigMode(h, 1) == 0
made = n.nvmlDeviceCreateGpuInstance(h, 19)
os.seteuid(65534)
for ask in (lambda: n.nvmlDeviceSetMigMode(h, 0), lambda: n.nvmlDeviceCreateGpuInstance(h, 19),
            lambda: n.nvmlGpuInstanceCreateComputeInstance(made, 0), lambda: n.nvmlGpuInstanceDestroy(made)):
    try:
        ask()
    except n.NVMLError as failure:
        print(int(failure.value))
"""
    assert run_python(code, timeout=30).stdout.split() == ["4"] * 4


@pytest.mark.parametrize("name", ["a100-sxm4-40gb-x2", "h100-sxm-x2"])
def test_a_client_keeps_the_mode_pending(gpu, pynvml, name):
    cut = gpu(name, mode=0)
    gpu.chosen.devices[0]["processes"] = [{"pid": 4242, "type": "C"}]
    gpu.chosen.write()
    assert cut.set_mode(1) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [0, 1]
    assert code_of(pynvml, cut.cut, G1) == NOT_SUPPORTED
    gpu.chosen.devices[0]["processes"] = []
    gpu.chosen.write()
    assert cut.set_mode(1) == 0
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [1, 1]


def test_a_guest_that_cannot_reset_its_a100_waits_for_a_reboot(gpu, pynvml):
    cut = gpu("a100-sxm4-40gb-x2", mode=0)
    gpu.chosen.devices[0]["mig"]["cannot_reset"] = 1
    gpu.chosen.write()
    assert cut.set_mode(1) == RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [0, 1]
    reboot(gpu.chosen)
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [1, 1]


def test_instances_keep_the_mode(gpu, pynvml):
    cut = gpu()
    made = cut.cut(G1)
    assert cut.set_mode(0) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [1, 0]
    cut.destroy(made)
    assert cut.set_mode(0) == 0
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == [0, 0]


@pytest.mark.parametrize(("name", "mode"), [("a100-sxm4-40gb-x2", [1, 1]), ("h100-sxm-x2", [0, 0])])
def test_a_reboot_forgets_instances_and_what_is_newer_than_ampere_the_mode_too(gpu, pynvml, name, mode):
    cut = gpu(name)
    cut.cut(G1)
    assert len(cut.devices()) == 1
    reboot(gpu.chosen)
    assert pynvml.nvmlDeviceGetMigMode(cut.handle) == mode
    assert cut.devices() == {}


# Instances


def test_what_is_made_again_is_another_one(gpu, pynvml):
    cut = gpu()
    made = cut.cut(G2, 0)
    ((_index, (name, uuid, gi, ci)),) = cut.devices().items()
    assert (name, ci) == ("2g.20gb", 0)
    stale = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(cut.handle, 0)
    cut.destroy(made)
    again = cut.cut(G2, 0)
    ((_index, (_name, other, same, _ci)),) = cut.devices().items()
    assert (uuid != other, gi) == (True, same)
    assert code_of(pynvml, pynvml.nvmlGpuInstanceGetInfo, made) == INVALID
    assert code_of(pynvml, pynvml.nvmlDeviceGetUUID, stale) == INVALID
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByUUID, uuid) == NOT_FOUND
    assert pynvml.nvmlGpuInstanceGetInfo(again).id == gi


def test_indices_stay_with_their_instances(gpu):
    cut = gpu()
    made = [cut.cut(G1) for _ in range(4)]
    before = cut.devices()
    cut.destroy(made[1])
    assert cut.devices() == {index: one for index, one in before.items() if index != 1}
    cut.cut(G2)
    assert sorted(cut.devices()) == [0, 1, 2, 3]
    assert {index: one for index, one in cut.devices().items() if index != 1} == {
        index: one for index, one in before.items() if index != 1
    }


def test_compute_instances_share_a_gpu_instance_up_to_its_slices(gpu, pynvml):
    cut = gpu()
    made = cut.cut(G3, compute=False)
    assert cut.devices() == {}
    create = pynvml.nvmlGpuInstanceCreateComputeInstance
    create(made, 0)
    create(made, 1)
    assert code_of(pynvml, create, made, 0) == INSUFFICIENT
    assert [one[0] for one in cut.devices().values()] == ["1c.3g.40gb", "2c.3g.40gb"]
    assert code_of(pynvml, create, made, 3) == NOT_SUPPORTED
    assert code_of(pynvml, create, made, 77) == INVALID
    assert code_of(pynvml, pynvml.nvmlGpuInstanceDestroy, made) == IN_USE


def test_a_process_keeps_its_instance_and_no_other(gpu, pynvml):
    cut = gpu()
    busy, idle = cut.cut(G1), cut.cut(G1)
    number = pynvml.nvmlGpuInstanceGetInfo(busy).id
    gpu.chosen.devices[0]["processes"] = [{"pid": 4242, "type": "C", "gpu_instance": number, "compute_instance": 0}]
    gpu.chosen.write()
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(busy, 0)
    assert code_of(pynvml, pynvml.nvmlComputeInstanceDestroy, compute) == IN_USE
    assert code_of(pynvml, cut.destroy, idle) == 0
    assert len(cut.devices()) == 1
    (running,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(cut.handle)
    assert (running.gpuInstanceId, running.computeInstanceId) == (number, 0)


class Life(RuleBasedStateMachine):
    """Whatever is asked of it, in any order: no two instances overlap, and the library agrees with a list."""

    gpu: Gpu
    chosen: object

    @initialize()
    def begin(self):
        reboot(self.chosen)
        self.mode, self.made, self.count = 1, {}, 0
        lib = self.gpu.lib
        assert lib.nvmlDeviceSetMigMode(self.gpu.handle, 1) == 0

    @rule(profile=st.sampled_from([G1, ME1, DOUBLE, G2, G3, G4, G7]), pick=st.integers(0, 6))
    def create(self, profile, pick):
        if not self.mode:
            assert code_of(self.gpu.lib, self.gpu.cut, profile) == NOT_SUPPORTED
            return
        starts = self.gpu.placements(profile)
        start, size = starts[pick % len(starts)]
        taken = any(start < at + long and at < start + size for at, long, *_ in self.made.values())
        most = {ME1: 1, G3: 2, G4: 1}.get(profile, 7)
        many = sum(one[2] == profile for one in self.made.values()) >= most
        if taken or many:
            assert code_of(self.gpu.lib, self.gpu.cut, profile, start) == INSUFFICIENT
        else:
            self.count += 1
            self.made[self.count] = (start, size, profile, self.gpu.cut(profile, start))

    @rule(pick=st.integers(0, 6))
    def destroy(self, pick):
        if self.made:
            number = list(self.made)[pick % len(self.made)]
            self.gpu.destroy(self.made.pop(number)[3])

    @rule(mode=st.sampled_from([0, 1]))
    def switch(self, mode):
        expected = IN_USE if mode != self.mode and self.made else 0
        assert self.gpu.set_mode(mode) == expected
        self.mode = self.mode if expected else mode

    @rule()
    def restart(self):
        reboot(self.chosen)
        self.mode, self.made = 0, {}

    @invariant()
    def agrees(self):
        lib = self.gpu.lib
        assert lib.nvmlDeviceGetMigMode(self.gpu.handle)[0] == self.mode
        found = self.gpu.devices()
        assert len(found) == len(self.made)
        assert len({one[1] for one in found.values()}) == len(found)
        infos = [lib.nvmlGpuInstanceGetInfo(one[3]) for one in self.made.values()]
        assert {info.id for info in infos} == {one[2] for one in found.values()}
        for one, other in itertools.combinations(self.made.values(), 2):
            assert one[0] + one[1] <= other[0] or other[0] + other[1] <= one[0]


def test_any_order_of_calls(gpu):
    Life.gpu = gpu()
    Life.chosen = gpu.chosen
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
