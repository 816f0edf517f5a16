# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scheduler may give out, from facts and health. The facts are made up, in the shape of `gpu_facts`."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable


def device(index: int, **changes: Any) -> dict[str, Any]:
    row = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci_address": f"0000:0{index}:00.0",
        "slug": "a100-sxm4-40gb",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "memory_mib": 40960,
        "mig": {"enabled": False},
        "nvlinks": 12,
    }
    return {**row, **changes}


def facts(*devices: dict[str, Any], built_in: int = 4, **changes: Any) -> dict[str, Any]:
    bus = [{"kind": "gpu", "address": f"0000:0{n}:00.0", "device": "20b0"} for n in range(built_in)]
    return {"pci": bus, "devices": list(devices), "topology": None, **changes}


def health(**verdicts: str) -> dict[str, Any]:
    rows = [
        {"uuid": name.replace("_", "-"), "verdict": verdict, "reasons": [{"code": "xid"}] if verdict == "fatal" else []}
        for name, verdict in verdicts.items()
    ]
    return {"devices": rows}


FOUR = [device(number) for number in range(4)]


def uuids(feed: dict[str, Any]) -> list[str]:
    return [gpu["uuid"] for gpu in feed["gpus"]]


def test_a_fatal_gpu_is_left_out_with_its_reason_and_a_degraded_one_is_not():
    feed = allocatable.feed(facts(*FOUR), health(GPU_0="ok", GPU_1="fatal", GPU_2="degraded", GPU_3="ok"))
    assert uuids(feed) == ["GPU-0", "GPU-2", "GPU-3"]
    assert feed["left_out"] == [
        {"uuid": "GPU-1", "index": 1, "pci_address": "0000:01:00.0", "why": "its health is fatal (xid)"}
    ]


@pytest.mark.parametrize(("kept", "given"), [((), []), (("GPU-0",), ["GPU-0"])])
def test_a_gpu_of_unknown_health_stays_as_it_was(kept, given):
    assert uuids(allocatable.feed(facts(device(0)), health(GPU_0="unknown"), keep=kept)) == given


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"index": 1, "pci_address": "0000:01:00.0", "error": {"text": "GPU is lost"}}, "GPU is lost"),
        (device(1, mig={"enabled": True}), "MIG"),
    ],
)
def test_a_gpu_that_cannot_be_given_out_whole_is_left_out(row, why):
    feed = allocatable.feed(facts(device(0), row))
    assert uuids(feed) == ["GPU-0"]
    assert why in feed["left_out"][0]["why"]


def test_what_the_operator_holds_back_is_left_out():
    assert uuids(allocatable.feed(facts(*FOUR), exclude=["GPU-2"])) == ["GPU-0", "GPU-1", "GPU-3"]


def test_attributes_are_the_same_whatever_fails():
    whole = allocatable.feed(facts(*FOUR), site={"rack": "r1"})["attributes"]
    assert whole == {
        "gpu_model": "a100-sxm4-40gb",
        "gpu_arch": "ampere",
        "gpu_count_class": 4,
        "gpu_memory_gib": 40,
        "cuda_capability": "8.0",
        "nvlink": "yes",
        "rack": "r1",
    }
    lost = {"index": 3, "pci_address": "0000:03:00.0", "error": {"text": "GPU is lost"}}
    no_links = [device(number, nvlinks=0) for number in range(3)]
    rebooted = facts(*FOUR[:1], built_in=1), facts(built_in=3), facts(built_in=0)
    for broken in (facts(*no_links, lost), facts(*FOUR[:1]), facts(), *rebooted):
        assert allocatable.feed(broken, site={"rack": "r1"}, before=whole)["attributes"] == whole


def test_only_the_operator_changes_the_count_class_that_was_published():
    def size(built_in: int, before: dict[str, Any], slots: int | None = None) -> Any:
        found = allocatable.feed(facts(*FOUR[:built_in], built_in=built_in), before=before, slots=slots)
        return found["attributes"].get("gpu_count_class")

    assert [size(built_in, {}) for built_in in (0, 1, 2, 3, 4)] == [None, 1, 2, 2, 4]
    # As an agent's environment file has it, which is text.
    assert [size(built_in, {"gpu_count_class": "8"}) for built_in in (0, 3, 4)] == [8, 8, 8]
    assert [size(3, {"gpu_count_class": "8"}, slots) for slots in (3, 4, 7)] == [2, 4, 4]
    assert size(3, {}, 8) == 8
    assert allocatable.feed(facts(built_in=0), before={"gpu_count_class": "8"}, slots=0)["attributes"] == {}


def test_attributes_of_the_site_are_those_of_today():
    found = allocatable.feed(facts(), site={"rack": "r2"}, before={"gpu_model": "x", "rack": "r1", "row": "7"})
    assert found["attributes"] == {"gpu_model": "x", "gpu_count_class": 4, "rack": "r2"}


def test_two_models_in_one_host_are_named_by_neither():
    bus = [{"kind": "gpu", "address": "a", "device": "20b0"}, {"kind": "gpu", "address": "b", "device": "1db1"}]
    for devices in ([device(0), device(1, slug="v100-sxm2-16gb")], [device(0)]):
        assert allocatable.feed(facts(*devices, pci=bus))["attributes"] == {"gpu_count_class": 2}


def test_a_host_without_gpus_has_nothing_to_give():
    assert allocatable.feed({"pci": [], "devices": [], "topology": None}) == {
        "gpus": [],
        "left_out": [],
        "attributes": {},
    }


def test_links_are_scores_between_the_gpus_that_are_given_out():
    scores = [[0, 1, 2], [1, 0, 3], [2, 3, 0]]
    feed = allocatable.feed(facts(*FOUR[:3], topology={"scores": scores}), exclude=["GPU-1"])
    assert {gpu["uuid"]: gpu["links"] for gpu in feed["gpus"]} == {"GPU-0": {"GPU-2": 2}, "GPU-2": {"GPU-0": 2}}


def test_a_gpu_that_is_handed_through_makes_a_host_neither_larger_nor_mixed():
    row = {"kind": "gpu", "address": "0000:09:00.0", "device": "1eb8", "driver": "vfio-pci"}
    told = facts(device(0), device(1), built_in=2)
    told["pci"].append(row)
    found = allocatable.feed(told)["attributes"]
    assert (found["gpu_count_class"], found["gpu_model"]) == (2, "a100-sxm4-40gb")
