# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hours from what sacct prints. The lines are made up after sacct 24.11 with --parsable2 --noheader."""

from __future__ import annotations

import calendar
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import usage
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.usage import Models, counts, days, node_names

HOUR = 3600
# That of Berlin: the clocks are set on 2026-03-29 and on 2026-10-25.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
NODES = (
    "NodeName=a1 Gres=gpu:a100:4(S:0-1) State=IDLE\n"
    "NodeName=a2 Gres=gpu:a100:4 State=IDLE\n"
    "NodeName=t1 Gres=gpu:t4:2 State=IDLE\n"
    "NodeName=mixed Gres=gpu:a100:2,gpu:t4:2 State=IDLE\n"
    "NodeName=cpu1 Gres=(null) State=IDLE\n"
)
# AllocTRES of an allocation.
ONE = "billing=4,cpu=4,gres/gpu=1,mem=16G,node=1"


def at(text: str) -> float:
    """A time in UTC, in Unix seconds."""
    return float(calendar.timegm(time.strptime(f"2026-{text}", "%Y-%m-%d %H:%M")))


NOW = at("11-28 12:00")


def line(job: int | str, user: str, start: str, end: str, tres: str = ONE, nodes: str = "a1", **more: str) -> str:
    """Times as `at` takes them, or a word of sacct's."""

    def told(text: str) -> str:
        return f"2026-{text.replace(' ', 'T')}:00" if text[:1].isdigit() else text

    account, partition = more.get("account", "physics"), more.get("partition", "all")
    return f"{job}|{user}|{account}|{partition}|{told(start)}|{told(end)}|{nodes}|{tres}"


class Commands:
    """In the place of Slurm's commands."""

    def __init__(self, *lines: str, known: Collection[int] = ()) -> None:
        self.lines, self.known = lines, known
        self.sacct: list[str] = []
        self.answer: tuple[int, str, str] | None = None

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if usage.SACCT in argv:
            self.sacct = argv
            return self.answer or (0, "".join(f"{one}\n" for one in self.lines), "")
        if argv[0].endswith("squeue"):
            return 0, "".join(f"{job}\n" for job in self.known), ""
        return 0, NODES, ""


def of(
    *lines: str,
    by: Collection[str] = ("user",),
    since: str = "2026-11-01",
    until: str = "2026-11-28",
    known: Collection[int] = (),
) -> dict[str, Any]:
    commands = Commands(*lines, known=known)
    return usage.usage(Slurm(commands), commands, since, until, by, 60.0, lambda: NOW)


def hours(found: dict[str, Any]) -> dict[tuple[Any, ...], float]:
    """GPU hours by the values of what was asked for."""
    return {tuple(row[key] for key in usage.BY if key in row): row["gpu_seconds"] / HOUR for row in found["rows"]}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def berlin(utc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()


# --- hours ------------------------------------------------------------------------------------------------------------


def test_gpus_count_with_the_time_for_which_a_job_had_them() -> None:
    found = of(
        line(1, "alice", "11-02 08:00", "11-02 10:30", "cpu=8,gres/gpu=4"),
        line(2, "bob", "11-02 08:00", "11-02 09:00"),
        line(3, "bob", "11-03 08:00", "11-03 08:30", account="chemistry"),
    )
    assert hours(found) == {("alice",): 10.0, ("bob",): 1.5}
    assert [row["jobs"] for row in found["rows"]] == [1, 2]
    assert (found["jobs"], found["problems"]) == (3, [])


def test_they_are_told_apart_by_what_is_asked_for() -> None:
    lines = (
        line(1, "bob", "11-02 08:00", "11-02 09:00"),
        line(2, "bob", "11-03 08:00", "11-03 08:30", account="chemistry", nodes="t1"),
    )
    assert hours(of(*lines, by=["account"])) == {("chemistry",): 0.5, ("physics",): 1.0}
    assert hours(of(*lines, by=usage.BY)) == {
        ("bob", "chemistry", "t4", "2026-11-03"): 0.5,
        ("bob", "physics", "a100", "2026-11-02"): 1.0,
    }
    assert hours(of(*lines, by=[])) == {(): 1.5}


def test_what_is_outside_of_the_days_does_not_count() -> None:
    found = of(
        line(1, "alice", "10-30 00:00", "11-01 06:00"),
        line(2, "bob", "11-02 22:00", "11-05 00:00"),
        line(3, "carol", "11-05 00:00", "11-06 00:00"),
        since="2026-11-01",
        until="2026-11-02",
    )
    assert hours(found) == {("alice",): 6.0, ("bob",): 2.0}


def test_a_job_that_runs_counts_until_now() -> None:
    found = of(line(1, "alice", "11-28 10:00", "Unknown"), known=[1])
    assert hours(found) == {("alice",): 2.0}
    assert found["days"][-1] == {"name": "2026-11-28", "begin": at("11-28 00:00"), "end": NOW}


def test_a_job_that_slurmctld_does_not_know_and_that_never_ended_is_named_and_not_counted() -> None:
    found = of(
        line(1, "alice", "11-02 08:00", "Unknown"),
        line(2, "bob", "11-28 10:00", "11-28 11:00"),
        *(line(10 + number, "dora", "11-02 08:00", "Unknown") for number in range(8)),
    )
    assert hours(found) == {("bob",): 1.0}
    (problem,) = found["problems"]
    assert problem["code"] == "runaway_jobs"
    assert "9 jobs do not run" in problem["cause"]
    assert problem["cause"].endswith("1, 10, 11, 12, 13 and others")
    assert "sacctmgr show runawayjobs" in problem["remedy"]


def test_one_that_began_while_slurm_was_asked_is_no_such_job() -> None:
    found = of(line(1, "alice", "11-28 12:00", "Unknown"), line(2, "bob", "11-28 11:59", "Unknown", known="x"))
    assert found["problems"] == []
    assert hours(found) == {("bob",): pytest.approx(1 / 60)}


def test_a_job_that_was_cancelled_before_it_started_has_no_hours() -> None:
    found = of(
        line(1, "alice", "None", "11-02 09:00", "", nodes="None assigned"),
        line(2, "alice", "Unknown", "Unknown", "", nodes="None assigned"),
        line(3, "alice", "11-02 09:00", "11-02 09:00", "", nodes="None assigned"),
        line(4, "alice", "11-02 09:00", "11-02 10:00", "cpu=4,mem=1G,node=1", nodes="cpu1"),
        line(5, "alice", "11-02 09:00", "11-02 10:00", "cpu=4,gres/gpu=0"),
    )
    assert (found["rows"], found["problems"]) == ([], [])


def test_each_run_of_a_job_that_was_queued_again_counts() -> None:
    found = of(
        line(7, "alice", "11-02 08:00", "11-02 09:00"),
        line(7, "alice", "11-02 10:00", "11-02 12:00"),
    )
    assert hours(found) == {("alice",): 3.0}
    assert found["jobs"] == found["rows"][0]["jobs"] == 1


def test_a_run_that_was_never_ended_ends_where_the_next_one_starts() -> None:
    found = of(
        line(7, "alice", "11-02 10:00", "11-02 11:00"),
        line(7, "alice", "11-02 08:00", "Unknown"),
    )
    assert hours(found) == {("alice",): 3.0}
    assert found["problems"] == []


def test_a_record_that_comes_twice_counts_once() -> None:
    one = line(7, "alice", "11-02 08:00", "11-02 09:00")
    assert hours(of(one, one)) == {("alice",): 1.0}
    # Runs of a job do not overlap, whatever the accounting says.
    assert hours(of(one, line(7, "alice", "11-02 08:30", "11-02 10:00"))) == {("alice",): 2.0}


def test_a_gpu_that_the_reconciler_keeps_is_nobodys() -> None:
    found = of(
        line(1, "slurm", "11-02 08:00", "11-20 09:00", partition="gpuops"),
        line(2, "slurm", "11-02 08:00", "11-02 09:00"),
        line(3, "alice", "11-02 08:00", "11-02 09:00", partition="gpuops"),
    )
    assert hours(found) == {("slurm",): 1.0, ("alice",): 1.0}


# --- days -------------------------------------------------------------------------------------------------------------


def test_a_job_over_midnight_is_split_and_counts_as_one(berlin: None) -> None:
    # 23:00 on the 1st to 02:00 on the 3rd, there.
    found = of(line(1, "alice", "11-01 22:00", "11-03 01:00"), by=["day"])
    assert hours(found) == {("2026-11-01",): 1.0, ("2026-11-02",): 24.0, ("2026-11-03",): 2.0}
    assert [row["jobs"] for row in found["rows"]] == [1, 1, 1]
    assert (found["jobs"], found["time_zone"]) == (1, "CET")


@pytest.mark.parametrize(("day", "length"), [("03-29", 23), ("10-25", 25), ("10-24", 24)])
def test_a_day_on_which_the_clocks_are_set_has_another_length(berlin: None, day: str, length: int) -> None:
    found = of(line(1, "alice", "03-01 00:00", "11-01 00:00"), by=["day"], since=f"2026-{day}", until=f"2026-{day}")
    assert hours(found) == {(f"2026-{day}",): length}


def test_the_accounting_is_asked_in_utc_where_no_hour_comes_twice(berlin: None) -> None:
    commands = Commands()
    usage.usage(Slurm(commands), commands, "2026-10-25", "2026-10-25", ["user"], 60.0, lambda: NOW)
    assert commands.sacct[:2] == ["/usr/bin/env", "TZ=UTC"]
    assert "--starttime=2026-10-24T22:00:00" in commands.sacct
    assert "--endtime=2026-10-25T23:00:00" in commands.sacct
    assert {"--allusers", "--allocations", "--duplicates", "--parsable2", "--noheader"} < set(commands.sacct)


def test_without_a_last_day_it_is_today() -> None:
    assert [day.name for day in days("2026-11-27", "", NOW)] == ["2026-11-27", "2026-11-28"]
    # Those that have not begun are left out.
    assert [day.name for day in days("2026-11-28", "2026-12-24", NOW)] == ["2026-11-28"]


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        ("2026-11-02", "2026-11-01", "2026-11-01 is before 2026-11-02"),
        ("2026-11-31", "", "is not a valid day"),
        ("now-7days", "", "is not a valid day"),
        ("2026-1-1", "", "is not a valid day"),
        ("0001-01-01", "", "is not a valid day"),
        ("2026-11-01", "9999-12-31", "is not a valid day"),
        ("2026-11-29", "", "has not begun"),
        ("2024-01-01", "2026-01-01", "more than 400 days"),
    ],
)
def test_days_that_are_none_are_refused(since: str, until: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        days(since, until, NOW)
    assert caught.value.problem.code == "wrong_days"


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tres", "found"),
    [
        ("cpu=8,gres/gpu=4,mem=64G,node=1", {None: 4}),
        ("gres/gpu:a100=4", {"a100": 4}),
        ("cpu=1,gres/gpu=4,gres/gpu:a100=4", {"a100": 4}),
        ("gres/gpu=6,gres/gpu:a100=4,gres/gpu:t4=1", {"a100": 4, "t4": 1, None: 1}),
        ("gres/gpumem=40G,gres/gpuutil=99,gres/shard=3,cpu=1", {}),
        ("gres/gpu:a100=0,gres/gpu=0", {}),
        ("", {}),
    ],
)
def test_gpus_of_an_allocation(tres: str, found: dict[str | None, int]) -> None:
    assert counts(tres) == found


def test_a_job_without_a_type_has_that_of_its_nodes_if_they_have_one() -> None:
    found = of(
        line(1, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=8", "a[1-2]"),
        line(2, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=2", "t1,cpu1"),
        line(3, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=4", "mixed"),
        line(4, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=2,gres/gpu:t4=2", "mixed"),
        line(5, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=16", "gone"),
        line(6, "alice", "11-02 08:00", "11-02 09:00", "gres/gpu=32", "a[1-"),
        by=["model"],
    )
    assert hours(found) == {("a100",): 8.0, ("t4",): 4.0, (None,): 52.0}


def test_types_of_nodes_are_those_of_slurm() -> None:
    models = Models({"x": {"gres": "gpu:2"}, "y": {"gres": "gpu:rtx-6000:2"}, "z": {"gres": "gpu:a100:no"}})
    assert [models.of(name) for name in "xyz"] == [None, "rtx-6000", None]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a1", ["a1"]),
        ("a[1-3,5],b", ["a1", "a2", "a3", "a5", "b"]),
        ("n[08-10]x", ["n08x", "n09x", "n10x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("None assigned", ["None assigned"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert node_names(text) == names


@pytest.mark.parametrize("text", ["a[1-999999]", "a[x]", "a[]", "a[1-9999][1-9999][1-9999]", "a[3--1]"])
def test_lists_of_nodes_that_have_no_end_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nodes"):
        node_names(text)


# --- what nobody should trust -----------------------------------------------------------------------------------------


def test_names_are_data() -> None:
    found = of(
        line(1, "eve\x1b[31m\u202e", "11-02 08:00", "11-02 09:00", account="$(reboot) {{ 7*7 }}"),
        line(2, "x" * 5000, "11-02 08:00", "11-02 09:00"),
        by=["user", "account"],
    )
    first, second = found["rows"]
    assert (first["user"], first["account"]) == ("eve\ufffd[31m\ufffd", "$(reboot) {{ 7*7 }}")
    assert len(second["user"]) <= usage.NAME_AT_MOST


@pytest.mark.parametrize(
    "bad",
    [
        line(1, "a|b", "11-02 08:00", "11-02 09:00"),
        line("1.batch", "bob", "11-02 08:00", "11-02 09:00"),
        line(10**30, "bob", "11-02 08:00", "11-02 09:00"),
        line(1, "bob", "11-02 08:00", "11-02 09:00", "gres/gpu=99999999999999999999"),
        line(1, "bob", "11-02 08:00", "11-02 09:00", "gres/gpu=-4"),
        line(1, "bob", "11-02 08:00", "11-02 09:00", "gres/gpu:a100=1e9"),
        line(1, "bob", "11-02 25:00", "11-02 09:00"),
        line(1, "bob", "11-02 08:00", "9999999999-01-01"),
        "sacct: error: something",
    ],
)
def test_a_line_that_nobody_can_read_is_told_and_the_others_count(bad: str) -> None:
    found = of(bad, line(2, "alice", "11-02 08:00", "11-02 09:00"))
    assert hours(found) == {("alice",): 1.0}
    (problem,) = found["problems"]
    assert (problem["code"], problem["evidence"][:10]) == ("unreadable_records", bad[:10])


def test_an_end_before_the_start_or_in_the_future_makes_no_hours() -> None:
    found = of(
        line(1, "alice", "11-02 09:00", "11-02 08:00"),
        line(2, "bob", "11-28 11:00", "12-31 00:00"),
        line(3, "carol", "12-01 11:00", "12-31 00:00"),
    )
    assert hours(found) == {("bob",): 1.0}


def test_so_many_names_that_no_table_holds_them_are_refused() -> None:
    lines = [line(number, f"u{number}", "11-02 08:00", "11-02 09:00") for number in range(usage.ROWS_AT_MOST + 1)]
    with pytest.raises(Refused, match="more than 20000 rows"):
        of(*lines)
    assert len(of(*lines, by=["account"])["rows"]) == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((127, "", "env: '/usr/bin/sacct': No such file or directory"), "not_installed"),
        ((1, "", "Slurm accounting storage is disabled"), "no_accounting"),
        ((1, "", "sacct: error: Problem talking to the database: Connection refused"), "no_answer"),
        ((124, "", "it did not end within 60 s"), "no_answer"),
    ],
)
def test_an_accounting_that_does_not_answer_says_why(answer: tuple[int, str, str], code: str) -> None:
    commands = Commands()
    commands.answer = answer
    with pytest.raises(Refused) as caught:
        usage.usage(Slurm(commands), commands, "2026-11-01", "", ["user"], 60.0, lambda: NOW)
    assert not isinstance(caught.value, CallFailed)
    assert (caught.value.problem.code, bool(caught.value.problem.remedy)) == (code, True)
