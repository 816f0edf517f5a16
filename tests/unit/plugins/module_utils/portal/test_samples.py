# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub takes from sessions, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle, samples
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.samples import Watched

POLICY = idle.Policy(window_s=600, first_warning_s=300, last_warning_s=150, spared_s=0)
QUIET: dict[str, Any] = {
    "server": "",
    "gpu_ratio": 0.0,
    "cores": 0.0,
    "kernel_busy": False,
    "kernel_at": 0.0,
    "terminal_at": 0.0,
    "traffic": 0.0,
}


def levels(watched: Watched, first: int, last: int, **changed: Any) -> list[tuple[int, str]]:
    """What a sample each 30 s leads to, and when."""
    told = [(at, watched.take({**QUIET, **changed}, float(at))) for at in range(first, last, 30)]
    return [(at, level) for at, level in told if level]


def test_a_sample_is_what_a_session_sends() -> None:
    row = {**QUIET, "server": "second", "gpu_ratio": None, "kernel_busy": True, "more": 1}
    assert samples.read(json.dumps(row).encode()) == {
        **QUIET,
        "server": "second",
        "gpu_ratio": None,
        "kernel_busy": True,
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"server": "../other"},
        {"server": "A"},
        {"gpu_ratio": 1.1},
        {"gpu_ratio": -0.1},
        {"gpu_ratio": True},
        {"cores": "2"},
        {"kernel_busy": 1},
        {"kernel_at": -1},
        {"traffic": 1e13},
        {"terminal_at": [1]},
        {"failed": [{"gpu": "GPU-1"}]},
        {"failed": [{"gpu": "GPU-1 <b>", "code": "xid_79"}]},
        {"failed": [{"gpu": "GPU-1", "code": "send your password to"}]},
        {"failed": [{"gpu": "GPU-1", "code": "x"}] * 65},
    ],
)
def test_what_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        samples.read(json.dumps({**QUIET, **changed}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"server": NaN}', b" " * 5000])
def test_what_is_no_object_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        samples.read(data)


def test_a_session_is_warned_twice_and_then_ended_and_as_long_as_it_is_there_again() -> None:
    # The first sample counts as use.
    assert levels(Watched(POLICY, 0.0), 30, 700) == [
        (330, "warn1"),
        (480, "warn2"),
        (630, "stop"),
        (660, "stop"),
        (690, "stop"),
    ]


@pytest.mark.parametrize("policy", [POLICY, None])
def test_gpus_that_are_out_of_order_are_known_from_the_last_sample(policy: idle.Policy | None) -> None:
    watched = Watched(policy, 0.0)
    failed = [{"gpu": "GPU-1", "code": "xid_79"}, {"gpu": "/dev/nvidia3", "code": "gpu_lost"}]
    watched.take(samples.read(json.dumps({**QUIET, "failed": failed}).encode()), 30.0)
    assert watched.failed == {("GPU-1", "xid_79"), ("/dev/nvidia3", "gpu_lost")}
    watched.take(QUIET, 60.0)
    assert watched.failed == frozenset()


def test_one_that_was_kept_begins_anew_and_says_until_when() -> None:
    watched = Watched(POLICY, 0.0)
    levels(watched, 30, 500)
    assert watched.as_dict(480.0) == {
        "level": "warn2",
        "stops": True,
        "idle_since": 30.0,
        "ends": 630.0,
        "unmeasured": "",
    }
    watched.extend()
    assert (watched.level, watched.since, watched.ends) == ("keep", 480.0, 1080.0)
    assert levels(watched, 510, 1200)[:2] == [(780, "warn1"), (930, "warn2")]


def test_one_that_is_used_between_two_warnings_is_kept() -> None:
    watched = Watched(POLICY, 0.0)
    levels(watched, 30, 500)
    assert watched.take({**QUIET, "kernel_busy": True}, 510.0) == "keep"


def test_one_that_is_never_ended_is_not_measured() -> None:
    watched = Watched(None, 0.0)
    assert levels(watched, 30, 10_000) == []
    assert watched.unmeasured(10_000.0) == ""
    assert watched.as_dict(0.0) == {"level": "keep", "stops": False}


def test_one_of_which_nothing_is_heard_is_silent_and_is_not_ended() -> None:
    watched = Watched(POLICY, 0.0)
    levels(watched, 30, 90)
    assert watched.unmeasured(300.0) == ""
    assert watched.unmeasured(10_000.0) == samples.SILENT
    assert watched.as_dict(10_000.0)["stops"] is False
    # The time in between counts for nothing.
    assert watched.take(QUIET, 10_000.0) == ""


def test_one_of_which_something_is_not_known_is_told_as_that() -> None:
    watched = Watched(POLICY, 0.0)
    assert levels(watched, 30, 1000, gpu_ratio=None) == []
    assert watched.unmeasured(1000.0) == samples.UNKNOWN
    # What is known to be used is known.
    watched.take({**QUIET, "gpu_ratio": None, "kernel_busy": True}, 1000.0)
    assert watched.unmeasured(1000.0) == ""
