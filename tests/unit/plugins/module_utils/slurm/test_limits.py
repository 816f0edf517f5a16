# SPDX-License-Identifier: GPL-3.0-or-later
"""A value of a list and one that sacctmgr prints are the same text if they mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits

FIELDS = {**limits.QOS_FIELDS, **limits.ASSOCIATION_FIELDS}


@pytest.mark.parametrize(
    ("key", "listed", "printed"),
    [
        ("MaxTRESPerUser", "gres/gpu=4", "gres/gpu=4"),
        ("MaxTRESPerUser", "gres/gpu=4, cpu=8", "cpu=8,gres/gpu=4"),
        ("MaxTRESPerUser", "mem=64G,gres/gpu:a100=1", "gres/gpu:a100=1,mem=65536M"),
        ("MaxTRESPerUser", "mem=65536", "mem=64G"),
        ("GrpTRESMins", "cpu=2048", "cpu=2K"),
        ("MaxWall", "24:00:00", "1-00:00:00"),
        ("MaxWall", "1-12", "1-12:00:00"),
        ("MaxWall", "00:00:30", "00:01:00"),
        ("MaxWall", "none", ""),
        ("GraceTime", "00:02:00", "00:02:00"),
        ("GraceTime", "none", "00:00:00"),
        ("Priority", 10, "10"),
        ("Priority", "none", "0"),
        ("MaxJobs", "010", "10"),
        ("Preempt", ["low", "idle"], "idle,low"),
        ("Preempt", [], ""),
        ("PreemptMode", "REQUEUE", "requeue"),
        ("PreemptMode", "none", "cluster"),
        ("Flags", ["DenyOnLimit"], "DenyOnLimit"),
        ("UsageFactor", 0.5, "0.500000"),
        ("UsageFactor", 1000000, "1000000.000000"),
        ("UsageFactor", 1234567.5, "1234567.500000"),
        ("UsageFactor", 0, "0.000000"),
        ("UsageFactor", "none", "1.000000"),
        ("Fairshare", "parent", "parent"),
    ],
)
def test_a_listed_value_is_the_one_that_is_printed(key: str, listed: object, printed: str) -> None:
    assert limits.wanted(FIELDS[key], listed) == limits.shown(FIELDS[key], printed)


@pytest.mark.parametrize(
    ("key", "value", "form"),
    [
        # YAML makes this number of 24:00:00 without quotes.
        ("MaxWall", 86400, "in quotes"),
        ("MaxWall", "1440", "in quotes"),
        ("MaxWall", "00:90:00", "D-HH:MM:SS"),
        ("MaxWall", "UNLIMITED", "D-HH:MM:SS"),
        ("MaxTRESPerUser", "4", "gres/gpu=4"),
        ("MaxTRESPerUser", "gres/gpu=-1", "gres/gpu=4"),
        ("MaxTRESPerUser", "gres/gpu=1 where name=root", "gres/gpu=4"),
        ("MaxTRESPerUser", "cpu=1,cpu=2", "gres/gpu=4"),
        ("MaxTRESPerUser", "mem=5K", "memory in M"),
        ("MaxTRESPerUser", "cpu=9999999999999999", "smaller"),
        ("MaxTRESPerUser", {"gres/gpu": 4}, "a value"),
        ("MaxJobs", -1, "a whole number"),
        ("MaxJobs", True, "a whole number"),
        ("MaxJobs", None, "none to take it away"),
        ("MaxJobs", 2**31, "a whole number"),
        ("Preempt", ["a b"], "names"),
        ("Preempt", "a=b", "names"),
        ("Preempt", 7, "names"),
        ("QOS", "none", "cannot be removed"),
        ("QOS", ",", "a value"),
        ("PreemptMode", "gang", "one of"),
        ("Fairshare", "lots", "a whole number"),
        ("UsageFactor", "nan", "a number"),
    ],
)
def test_a_value_of_another_form_is_refused_with_the_form(key: str, value: object, form: str) -> None:
    with pytest.raises(ValueError, match=form):
        limits.wanted(FIELDS[key], value)


@given(st.sampled_from(sorted(FIELDS)), st.one_of(st.text(), st.integers(), st.lists(st.text()), st.floats()))
def test_whatever_is_listed_becomes_one_word_for_sacctmgr_or_is_refused(key: str, value: object) -> None:
    try:
        text = limits.wanted(FIELDS[key], value)
    except ValueError:
        return
    assert not set(text) & set(" \t\n'\"|+\\")
    assert limits.shown(FIELDS[key], text) == text or key == "GraceTime"


@given(st.sampled_from(sorted(FIELDS)), st.text())
def test_whatever_is_printed_is_kept(key: str, text: str) -> None:
    assert isinstance(limits.shown(FIELDS[key], text), str)


@pytest.mark.parametrize(
    ("key", "before", "after", "argument"),
    [
        ("MaxTRESPerUser", "", "cpu=8,gres/gpu=4", "MaxTRESPerUser=cpu=8,gres/gpu=4"),
        # Without the -1 the limit of cpu would stay.
        ("MaxTRESPerUser", "cpu=8,gres/gpu=4", "gres/gpu=2", "MaxTRESPerUser=cpu=-1,gres/gpu=2"),
        ("MaxTRESPerUser", "gres/gpu=4", "", "MaxTRESPerUser=gres/gpu=-1"),
        ("MaxWall", "1-00:00:00", "", "MaxWall=-1"),
        ("MaxJobs", "", "5", "MaxJobs=5"),
        ("Priority", "5", "0", "Priority=0"),
        ("Preempt", "low", "", "Preempt="),
        ("Fairshare", "1", "parent", "Fairshare=parent"),
    ],
)
def test_sacctmgr_is_told_what_becomes_of_a_value(key: str, before: str, after: str, argument: str) -> None:
    assert limits.argument(key, FIELDS[key], after, before) == argument
