# SPDX-License-Identifier: GPL-3.0-or-later
"""Children that are slow, that hang, and that wait for what hangs by asking again and again."""

from __future__ import annotations

import time

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import children

TIMEOUT_S = 1.0


def compute(seconds):
    def work(tell):
        tell({"step": "compile"})
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        tell({"result": "right"})

    return work


def wait(tell):
    tell({"step": "launch"})
    time.sleep(600)


def together(**works):
    told = []
    errors = children.together(works, TIMEOUT_S, lambda name, row: told.append((name, row.get("result"))))
    return errors, [row for row in told if row[1]]


def test_one_that_computes_longer_is_slow_and_does_not_hang():
    errors, told = together(one=compute(2.5 * TIMEOUT_S), other=compute(2.5 * TIMEOUT_S))
    assert errors == {"one": None, "other": None}
    assert sorted(told) == [("one", "right"), ("other", "right")]


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (wait, "no answer within 1 s in step 'launch'"),
        (compute(600), "step 'compile' has not ended after 5 s, though it was at work"),
    ],
)
def test_one_that_hangs_is_ended_whatever_it_does_meanwhile(work, text):
    errors, _told = together(sick=work, sound=compute(0.1))
    assert errors["sound"] is None
    assert errors["sick"]["name"] == "TIMEOUT"
    assert errors["sick"]["text"].startswith(text)


def test_where_the_kernel_does_not_tell_who_works_silence_alone_counts(monkeypatch):
    monkeypatch.setattr(children, "_worked", lambda _pid: 0.0)
    errors, _told = together(sick=compute(600))
    assert errors["sick"]["text"].startswith("no answer within 1 s in step 'compile'")
