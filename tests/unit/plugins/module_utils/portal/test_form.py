# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be asked of a session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request

LIMITS = Limits(gpus=4, cpus=16, memory_gib=128, hours=24)
MODELS, ENVIRONMENTS = ["a100", "h100"], ["default", "torch"]
GOOD = {
    "gpus": ["2"],
    "model": ["a100"],
    "cpus": ["8"],
    "memory_gib": ["64"],
    "hours": ["12"],
    "environment": ["torch"],
}


def parse(**changed: Any) -> tuple[Request, list[str]]:
    request, problems = form.parse({**GOOD, **changed}, LIMITS, MODELS, ENVIRONMENTS)
    return request, [one.subject for one in problems]


def test_a_form_is_the_request_that_it_shows() -> None:
    assert parse() == (Request(2, "a100", 8, 64, 12, "torch"), [])


def test_what_is_left_out_has_a_default_and_the_first_environment() -> None:
    assert form.parse({}, LIMITS, MODELS, ENVIRONMENTS) == (Request(environment="default"), [])


def test_numbers_of_a_program_are_as_good_as_texts() -> None:
    assert parse(gpus=1, cpus=4.0)[0].cpus == 4


def test_without_gpus_no_model_is_asked_for() -> None:
    assert parse(gpus=["0"]) == (Request(0, "", 8, 64, 12, "torch"), [])


@pytest.mark.parametrize("name", ["gpus", "cpus", "memory_gib", "hours"])
@pytest.mark.parametrize("value", ["-1", "1.5", "1e3", "nan", "inf", "0x2", "٢", "9" * 400, "2; reboot", "1000", True])
def test_a_number_out_of_bounds_is_named_with_the_bounds(name: str, value: Any) -> None:
    request, problems = form.parse({**GOOD, name: [value]}, LIMITS, MODELS, ENVIRONMENTS)
    (one,) = problems
    assert one.subject == name
    assert f"to {getattr(LIMITS, name)}" in one.remedy
    assert getattr(request, name) <= getattr(LIMITS, name)
    assert len(str(one)) < 300


@pytest.mark.parametrize("model", ["A100", "v100", "a100:8", "../a100", "<b>", "a100\n#SBATCH --uid=0"])
def test_a_model_that_nobody_has_is_refused(model: str) -> None:
    assert parse(model=[model]) == (Request(2, "", 8, 64, 12, "torch"), ["model"])


@pytest.mark.parametrize("environment", ["~/envs/torch", "~/.venvs/a-b_1.0", "~/x"])
def test_an_environment_of_ones_own_is_a_directory_of_the_home(environment: str) -> None:
    assert parse(environment=[environment]) == (Request(2, "a100", 8, 64, 12, environment), [])


@pytest.mark.parametrize(
    "environment",
    [
        "~",
        "~/",
        "~bob/x",
        "~/../bob",
        "~/a/../../bob",
        "~/.",
        "~/a/..",
        "~/a b",
        "~/$(id)",
        "~/a\n",
        "/etc",
        "../x",
        "no",
    ],
)
def test_another_path_is_none(environment: str) -> None:
    # White space around it is not part of it.
    if environment.endswith("\n"):
        environment = "~/a\nb"
    request, problems = parse(environment=[environment])
    assert problems == ["environment"]
    assert request.environment == "default"


PLACE = "reg1:5000/alice/"


@pytest.mark.parametrize("image", ["lectures", "lectures:v1", f"torch/deep@sha256:{'a' * 64}"])
def test_an_image_of_ones_own_is_below_the_own_name(image: str) -> None:
    given_form = {**GOOD, "environment": [PLACE + image]}
    assert form.parse(given_form, LIMITS, MODELS, ENVIRONMENTS, PLACE)[0].environment == PLACE + image


@pytest.mark.parametrize(
    "image",
    [
        "reg1:5000/bob/lectures:v1",
        "reg1:5000/catalogue/pytorch",
        "evil.example/alice/lectures",
        PLACE,
        f"{PLACE}../bob/lectures",
        f"{PLACE}./x",
        f"{PLACE}Lectures",
        f"{PLACE}x;id",
        f"{PLACE}x $(id)",
        f"{PLACE}x\n#SBATCH --uid=0",
        f"{PLACE}x@sha256:abc",
        f"docker://{PLACE}x",
    ],
)
def test_another_image_is_refused_with_one_that_may_be_named(image: str) -> None:
    request, (problem,) = form.parse({**GOOD, "environment": [image]}, LIMITS, MODELS, ENVIRONMENTS, PLACE)
    assert request.environment == "default"
    assert f"{PLACE}lectures:v1" in problem.remedy


def test_without_a_registry_nobody_has_images() -> None:
    request, (problem,) = form.parse({**GOOD, "environment": [f"{PLACE}x"]}, LIMITS, MODELS, ENVIRONMENTS)
    assert request.environment == "default"
    assert "image" not in problem.remedy


def test_several_groups_give_the_most_of_each() -> None:
    by_group = {"lab": {"gpus": 8, "hours": 12}, "course": {"gpus": 1, "hours": 48}}
    assert form.limits_of(["lab", "course", "x"], by_group, LIMITS) == Limits(8, 16, 128, 48)
    assert form.limits_of(["x"], by_group, LIMITS) == LIMITS


def test_a_group_may_have_less_than_others() -> None:
    assert form.limits_of(["course"], {"course": {"gpus": 1}}, LIMITS).gpus == 1


def test_a_group_may_have_no_gpus_at_all() -> None:
    limits = form.limits_of(["course"], {"course": {"gpus": 0, "hours": 4}, "lab": {"gpus": 8}}, LIMITS)
    assert (limits.gpus, limits.hours, limits.cpus) == (0, 4, LIMITS.cpus)
    _request, (problem,) = form.parse({**GOOD, "gpus": ["1"], "hours": ["4"]}, limits, MODELS, ENVIRONMENTS)
    assert (problem.subject, problem.remedy) == ("gpus", "give a whole number from 0 to 0")
    # Who is in another group, too, has what that gives.
    assert form.limits_of(["course", "lab"], {"course": {"gpus": 0}, "lab": {"gpus": 8}}, LIMITS).gpus == 8


def test_the_form_begins_with_what_was_asked_for_last() -> None:
    last = parse()[0].as_dict()
    assert form.remembered(last, LIMITS, MODELS, ENVIRONMENTS) == parse()[0]


def test_what_may_no_longer_be_asked_for_is_not_remembered() -> None:
    last = {"gpus": 8, "model": "v100", "cpus": 8, "memory_gib": 64, "hours": 12, "environment": "gone"}
    assert form.remembered(last, Limits(0, 4, 2, 2), MODELS, ENVIRONMENTS) == Request(0, "", 1, 2, 2, "default")


@given(
    st.dictionaries(st.sampled_from([*GOOD, "x"]), st.one_of(st.text(), st.lists(st.text()), st.integers(), st.none()))
)
def test_whatever_is_given_the_request_is_within_bounds(given_form: dict[str, Any]) -> None:
    request, _problems = form.parse(given_form, LIMITS, MODELS, ENVIRONMENTS, PLACE)
    assert 0 <= request.gpus <= 4
    assert 1 <= request.cpus <= 16
    assert 1 <= request.memory_gib <= 128
    assert 1 <= request.hours <= 24
    assert request.model in ("", *MODELS)
    own = form.OWN.fullmatch(request.environment) or request.environment.startswith(PLACE)
    assert request.environment in ENVIRONMENTS or own


# --- presets ---------------------------------------------------------------------------------------------------------


def test_a_preset_is_bounded_by_what_a_user_may_have() -> None:
    rows = [
        {"name": "Much", "gpus": 4, "model": "h100", "cpus": 64, "memory_gib": 999, "hours": 999},
        {"name": "Short", "environment": "torch"},
    ]
    much, short = form.presets(rows, LIMITS, MODELS, ENVIRONMENTS)
    assert much == ("Much", Request(4, "h100", 16, 128, 24, "default"))
    assert short == ("Short", Request(1, "", 1, 4, 4, "torch"))


@pytest.mark.parametrize("changed", [{"gpus": 5}, {"model": "v100"}, {"environment": "gone"}])
def test_a_preset_that_a_user_cannot_have_is_not_offered(changed: dict[str, Any]) -> None:
    assert form.presets([{"name": "One", "gpus": 1, **changed}], LIMITS, MODELS, ENVIRONMENTS) == []


def test_a_request_in_words() -> None:
    assert form.what(Request(2, "a100", 8, 64, 1, "torch")) == "2 GPUs a100, 8 cores, 64 GiB, 1 hour, torch"
    assert form.what(Request(0, "", 1, 4, 8, "default")) == "no GPU, 1 core, 4 GiB, 8 hours, default"
