# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts as they are written, and the steps to them: what is kept, what changes, what is refused and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import mig_layout
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.mig_layout import Client, Gpu, Instance, Profile
from tests.simulators import generate

UUID = "GPU-00000000-0000-4000-8000-00000000000"
ALICE = Client(4242, "python3", "alice")
AGENT = Client(77, "gpu-agent", "root", "baremetal-gpu-agent.service")


def profiles(model="h100-sxm"):
    rows = generate.device(model, 0, "0000:07:00.0", 0, [])["mig"]["profiles"]
    return tuple(
        Profile(
            row["id"],
            row["name"],
            row["slices"],
            row["instances"],
            row["memory_mib"],
            row["memory_slices"],
            tuple(row["starts"]),
        )
        for row in rows
    )


PROFILES = profiles()
SIZES = {profile.name: profile.size for profile in PROFILES}


def one(profile, start, clients=(), computes=1, whole=True):
    uuids = (f"MIG-{start}",) if computes else ()
    return Instance(
        10 + start, profile, start, SIZES[profile], computes, whole and computes == 1, uuids, tuple(clients)
    )


def gpu(*instances, index=0, mode=True, pending=None, clients=(), model=PROFILES):
    return Gpu(
        index=index,
        uuid=f"{UUID}{index}",
        pci_address=f"0000:0{index}:00.0",
        name="NVIDIA H100 80GB HBM3",
        device_id="0x233010de",
        mode=mode,
        pending=mode if pending is None else pending,
        profiles=model,
        instances=instances,
        clients=tuple(clients),
    )


def plan(layout, *gpus, config="", ours=("baremetal-gpu-agent.service",)):
    return mig_layout.plan(gpus, mig_layout.rules(layout, config), ours)


def told(found):
    assert found.problems == ()
    return [str(step) for step in found.steps]


def refused(found):
    assert found.steps == ()
    assert found.before == found.after
    return [(problem.code, problem.cause) for problem in found.problems]


# Reading


MIG_PARTED = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-1g": [
            {"device-filter": ["0x20B210DE"], "devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
            {"device-filter": "0x233010DE", "devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
        ],
        "mixed": [
            {"devices": [0], "mig-enabled": False},
            {"devices": [1], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
        ],
    },
}


def test_a_file_of_mig_parted_is_read_as_it_is():
    cut = plan(MIG_PARTED, gpu(), config="all-1g")
    assert told(cut) == [f"create 1g.10gb at {start}" for start in range(7)]
    both = plan(MIG_PARTED, gpu(mode=False), gpu(index=1), config="mixed")
    assert told(both) == ["create 3g.40gb at 0", "create 3g.40gb at 4"]
    assert told(plan(MIG_PARTED, gpu(), config="all-disabled")) == ["switch MIG off"]


def test_the_narrower_selector_counts():
    layout = {UUID + "1": False, "all": {"7g.80gb": 1}, 2: {}}
    found, problems = mig_layout.wanted_of([gpu(index=number) for number in range(3)], mig_layout.rules(layout))
    assert problems == []
    assert found == {UUID + "0": {"7g.80gb": 1}, UUID + "1": None, UUID + "2": {}}


def test_a_gpu_that_no_rule_names_is_left_alone():
    cut = plan({"1": {"1g.10gb": 1}}, gpu(one("7g.80gb", 0)), gpu(index=1))
    assert [step.uuid for step in cut.steps] == [UUID + "1"]
    assert "GPU 0" not in cut.after


@pytest.mark.parametrize(
    ("layout", "config", "said"),
    [
        ([], "", "not a mapping"),
        ({"first": {}}, "", "'first' selects no GPU"),
        ({True: {}}, "", "selects no GPU"),
        ({64: {}}, "", "selects no GPU"),
        ({"all": 7}, "", "not a mapping"),
        ({"all": {"1g": 7}}, "", "'1g' is not a profile"),
        ({"all": {"1g.10gb; reboot": 7}}, "", "not a profile"),
        ({"all": {"1c.3g.40gb": 1}}, "", "not supported"),
        ({"all": {"1g.10gb": True}}, "", "not from 0 to 16"),
        ({"all": {"1g.10gb": 17}}, "", "not from 0 to 16"),
        ({"all": {"1g.10gb": -1}}, "", "not from 0 to 16"),
        ({"all": {}}, "all-1g", "not one of mig-parted"),
        (MIG_PARTED, "", "no configuration ''"),
        (MIG_PARTED, "all-2g", "all-1g"),
        ({"mig-configs": {"a": [{"devices": "all"}]}}, "a", "lacks devices or mig-enabled"),
        ({"mig-configs": {"a": [{"devices": 0, "mig-enabled": True}]}}, "a", "neither all nor a list"),
        ({"mig-configs": {"a": [{"devices": [9.5], "mig-enabled": True}]}}, "a", "selects no GPU"),
        (
            {"mig-configs": {"a": [{"devices": "all", "mig-enabled": True, "device-filter": ["20B2"]}]}},
            "a",
            "not a PCI id",
        ),
    ],
)
def test_a_layout_that_cannot_be_read_is_refused_with_a_remedy(layout, config, said):
    with pytest.raises(mig_layout.LayoutError) as caught:
        mig_layout.rules(layout, config)
    assert said in str(caught.value)
    assert caught.value.problem.remedy


# What is kept


def test_a_gpu_that_is_as_wanted_is_left_alone():
    there = gpu(*(one("1g.10gb", start) for start in range(7)))
    found = plan({"all": {"1g.10gb": 7}}, there)
    assert (told(found), found.before == found.after) == ([], True)


def test_only_what_must_change_changes():
    there = gpu(one("1g.10gb", 0, [ALICE]), one("2g.20gb", 2), one("1g.10gb", 6))
    found = plan({"all": {"1g.10gb": 2, "3g.40gb": 1}}, there)
    assert told(found) == [
        "destroy 2g.20gb at 2 (instance 12)",
        "destroy 1g.10gb at 6 (instance 16)",
        "create 1g.10gb at 1",
        "create 3g.40gb at 4",
    ]
    assert found.after.splitlines()[1:] == ["  1g.10gb at 0:1", "  1g.10gb at 1:1", "  3g.40gb at 4:4"]


def test_what_a_power_cut_left_half_made_is_finished():
    found = plan({"all": {"1g.10gb": 2}}, gpu(one("1g.10gb", 3, computes=0)))
    assert told(found) == ["make the compute instance of 1g.10gb at 3", "create 1g.10gb at 0"]


def test_parts_of_an_instance_are_not_the_instance():
    found = plan({"all": {"3g.40gb": 1}}, gpu(one("3g.40gb", 4, computes=2)))
    assert told(found) == ["destroy 3g.40gb at 4 (instance 14)", "create 3g.40gb at 0"]


def test_mig_is_switched_on_before_instances_and_off_after_them():
    assert told(plan({"all": {"7g.80gb": 1}}, gpu(mode=False))) == ["switch MIG on", "create 7g.80gb at 0"]
    assert told(plan({"all": False}, gpu(one("7g.80gb", 0)))) == [
        "destroy 7g.80gb at 0 (instance 10)",
        "switch MIG off",
    ]


# What is refused


def test_an_instance_in_use_is_named_with_its_processes_and_their_users():
    ((code, cause),) = refused(plan({"all": {"7g.80gb": 1}}, gpu(one("1g.10gb", 3, [ALICE]))))
    assert code == "instance_in_use"
    assert "1g.10gb at 3 of GPU 0 (0000:00:00.0, NVIDIA H100 80GB HBM3)" in cause
    assert "python3 (PID 4242, user alice)" in cause


def test_what_fits_only_without_an_instance_in_use_names_it():
    there = gpu(one("1g.10gb", 2, [ALICE]), one("1g.10gb", 6, [ALICE]))
    found = refused(plan({"all": {"3g.40gb": 1, "1g.10gb": 2}}, there))
    assert [code for code, _cause in found] == ["instance_in_use", "instance_in_use"]


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [
        ({"1g.5gb": 7}, "unknown_profile", "its profiles are 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb"),
        ({"1g.10gb": 8}, "does_not_fit", "7 of 1g.10gb at most, and 8 are wanted"),
        ({"1g.10gb+me": 2}, "does_not_fit", "1 of 1g.10gb+me at most"),
        ({"3g.40gb": 2, "1g.10gb": 1}, "does_not_fit", "9 of 8 units of memory"),
        ({"4g.40gb": 1, "2g.20gb": 2}, "does_not_fit", "there are no places for all of it"),
    ],
)
def test_a_layout_that_a_gpu_cannot_have_says_why(wanted, code, said):
    ((found, cause),) = refused(plan({"all": wanted}, gpu(one("1g.10gb", 0))))
    assert found == code
    assert said in cause


def test_a_problem_of_one_gpu_keeps_all_as_they_are():
    found = plan({"0": {"1g.10gb": 1}, "1": {"9g.90gb": 1}}, gpu(), gpu(index=1))
    assert [code for code, _cause in refused(found)] == ["unknown_profile"]


def test_a_mode_with_a_client_is_refused_and_ours_are_stopped():
    ((code, cause),) = refused(plan({"all": {}}, gpu(mode=False, clients=[AGENT, ALICE])))
    assert code == "gpu_in_use"
    assert "python3 (PID 4242, user alice)" in cause
    assert "gpu-agent" not in cause
    found = plan({"all": {}}, gpu(mode=False, clients=[AGENT]))
    assert (told(found), found.stop) == (["switch MIG on"], ("baremetal-gpu-agent.service",))
    # Instances come and go beside the clients of others.
    found = plan({"all": {"1g.10gb": 1}}, gpu(clients=[AGENT, ALICE]))
    assert (told(found), found.stop) == (["create 1g.10gb at 0"], ())


def test_a_mode_that_was_kept_back_by_a_client_is_asked_for_again():
    assert told(plan({"all": {}}, gpu(mode=False, pending=True))) == ["switch MIG on"]


def test_gpus_that_are_not_there_or_cannot_be_cut():
    t4 = gpu(mode=None, index=1)
    assert [code for code, _cause in refused(plan({"5": {}}, gpu()))] == ["no_such_gpu"]
    assert [code for code, _cause in refused(plan({"1": {"1g.10gb": 1}}, gpu(), t4))] == ["no_mig"]
    assert told(plan({"all": {"1g.10gb": 1}}, gpu(), t4)) == ["create 1g.10gb at 0"]
    assert [code for code, _cause in refused(plan({"all": {"1g.10gb": 1}}, t4))] == ["no_mig"]
    assert told(plan({"all": False}, t4)) == []


# Whatever there is and whatever is wanted


@st.composite
def cut_gpus(draw):
    taken, instances = set(), []
    for _ in range(draw(st.integers(0, 7))):
        profile = draw(st.sampled_from(PROFILES))
        start = draw(st.sampled_from(profile.starts))
        units = set(range(start, start + profile.size))
        if not units & taken and sum(one.profile == profile.name for one in instances) < profile.most:
            taken |= units
            clients = [ALICE] if draw(st.booleans()) else []
            instances.append(one(profile.name, start, clients, draw(st.integers(0, 2))))
    return gpu(*instances)


def after(there, found):
    """What the steps make of the instances: {start: profile}."""
    state = {instance.start: instance for instance in there.instances}
    for step in found.steps:
        if step.kind == "destroy":
            assert not state.pop(step.start).clients
        elif step.kind == "create":
            state[step.start] = one(step.profile, step.start)
        else:
            assert state[step.start].computes == 0
            state[step.start] = one(step.profile, step.start)
    return gpu(*(state[start] for start in sorted(state)))


@given(cut_gpus(), st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 7), max_size=4))
def test_a_plan_ends_at_what_is_wanted_and_a_second_one_is_empty(there, wanted):
    found = plan({"all": wanted}, there)
    if found.problems:
        assert found.steps == ()
        return
    result = after(there, found)
    names = [instance.profile for instance in result.instances]
    assert {name: names.count(name) for name in names} == wanted
    units = [unit for instance in result.instances for unit in range(instance.start, instance.start + instance.size)]
    assert len(units) == len(set(units))
    assert plan({"all": wanted}, result).steps == ()


@given(cut_gpus(), st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 3), max_size=3))
def test_it_is_refused_only_where_no_order_of_steps_would_do(there, wanted):
    found = plan({"all": wanted}, there)
    everything = [profile for profile in PROFILES for _ in range(wanted.get(profile.name, 0))]
    fits = mig_layout.places(everything) is not None and all(
        wanted.get(profile.name, 0) <= profile.most for profile in PROFILES
    )
    busy = any(instance.clients for instance in there.instances)
    assert not found.problems or not fits or busy


@pytest.mark.parametrize("model", ["a30", "a100-sxm4-40gb", "h200-sxm", "b200-sxm"])
def test_each_board_takes_as_many_as_it_says(model):
    for profile in profiles(model):
        assert mig_layout.places([profile] * profile.most) is not None
