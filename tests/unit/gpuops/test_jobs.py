# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops jobs: from the state of a site to the jobs and the words, and as it is called.

The site is made up after what `gpuops status` documents.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import sys
import time
from typing import Any

import jsonschema
import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.status import jobs, jobs_text
from tests.unit.gpuops.conftest import HERE, Bench
from tests.unit.gpuops.test_status import AGENTS, SLURM, SLURM_GROUPS, TASKS, WAITS, facts, ok, read, with_minors

SCHEMA = json.loads(jobs.SCHEMA.read_text())
NOW = time.mktime((2026, 11, 27, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0
A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


def node(name: str, count: int, model: str = A100, bad: tuple[int, ...] = ()) -> dict[str, Any]:
    reasons = [{"code": "xid_fatal", "verdict": "fatal", "text": "x", "action": None, "remedy": None}]
    return {
        "name": name,
        "reasons": [],
        "gpus": [
            {
                "uuid": f"GPU-{name}-{index}",
                "index": index,
                "model": model,
                "verdict": "fatal" if index in bad else "ok",
                "reasons": reasons if index in bad else [],
            }
            for index in range(count)
        ],
    }


def slurm_node(name: str, gpus: int, used: int, **more: Any) -> dict[str, Any]:
    """:param more: `takes_jobs` False for one on which no job starts, `gpus_free` where cores are few."""
    row = {"takes_jobs": True, "gpus_free": gpus - used, **more}
    return {"name": name, "gpus": gpus, "gpus_used": used, "in_service": True, "drained": False, **row}


def job(number: str, user: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": "train",
        "user": user,
        "account": "default",
        "partition": "all",
        "qos": "normal",
        "state": "RUNNING",
        "waits": False,
        "reason": None,
        "waits_for": None,
        "cpus": 4,
        "gpus": 1,
        "submitted": NOW - 2 * HOUR,
        "started": NOW - HOUR,
        "ends": NOW + HOUR,
        "hosts": ["n1"],
        **more,
    }


def waits(number: str, user: str, reason: str, **more: Any) -> dict[str, Any]:
    return {**job(number, user), **WAITS, "id": number, "user": user, "reason": reason, "hosts": [], **more}


def lease(number: str, host: str, *gpus: int, processes: int | None = 1) -> dict[str, Any]:
    return {
        "scheduler": "slurm",
        "job": number,
        "host": host,
        "gpus": [{"uuid": f"GPU-{host}-{index}", "index": index} for index in gpus],
        "processes": processes,
    }


def site(**slurm: Any) -> dict[str, Any]:
    return {
        "time": NOW,
        "nodes": [node("n1", 4), node("n2", 4, bad=(2,)), node("t1", 2, T4)],
        "leases": slurm.pop("leases", []),
        "mesos": None,
        "kubernetes": None,
        "slurm": {
            "state": "ok",
            "nodes": [slurm_node("n1", 4, 0), slurm_node("n2", 4, 0), slurm_node("t1", 2, 0)],
            "jobs": [],
            "waiting_total": 0,
            "held": [],
            "unfenced": [],
            "problem": None,
            **slurm,
        },
    }


def of(state: dict[str, Any], user: str = "") -> dict[str, Any]:
    found = jobs.document(state, user)
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    return found


def text(state: dict[str, Any], width: int = 80, height: int | None = None, user: str = "") -> list[str]:
    return [progress_text.plain(line).rstrip() for line in jobs_text.lines(of(state, user), width, height)]


def busy_site(count: int = 4) -> dict[str, Any]:
    running = [
        job(f"{100 + number}", f"user{number}", name="a-name-that-goes-on" * 5, ends=NOW + number * HOUR)
        for number in range(count)
    ]
    wait = [waits(f"{200 + number}_[0-9999%10]", "christina.mueller", "Priority") for number in range(count)]
    leases = [lease(f"{100 + number}", "n1", number % 4) for number in range(count)]
    return site(jobs=running + wait, leases=leases, waiting_total=count)


def test_a_running_job_is_shown_with_its_gpus_and_times() -> None:
    state = site(jobs=[job("12", "alice", gpus=6)], leases=[lease("12", "n1", 0, 1, 3), lease("12", "n2", 0, 1, 3)])
    said = text(state, 100)
    row = next(place for place, line in enumerate(said) if line.startswith("12"))
    assert said[row].split() == ["12", "alice", "all", "n1", "0-1,3", "11:00", "13:00", "train"]
    assert said[row + 1].split() == ["n2", "0-1,3"]
    assert "1 job runs, 0 wait" in said[0]


def test_jobs_that_end_first_come_first_and_those_without_a_limit_last() -> None:
    state = site(jobs=[job("1", "a", ends=None), job("2", "b", ends=NOW + 2), job("3", "c", ends=NOW + 1)])
    assert [row["id"] for row in of(state)["running"]] == ["3", "2", "1"]
    assert any("no limit" in line for line in text(state) if line.startswith("1 "))


def test_places_count_those_that_only_wait_for_their_turn_in_a_partition() -> None:
    waiting = [
        waits("1", "a", "Resources"),
        waits("2", "b", "Dependency", waits_for="it depends on another job"),
        waits("3", "c", "Priority"),
        waits("4", "d", "ReqNodeNotAvail, UnavailableNodes:n1", partition="night"),
    ]
    state = site(jobs=waiting, waiting_total=4)
    assert [row["place"] for row in of(state)["waiting"]] == [1, None, 2, 1]
    assert [row["place"] for row in of(state, "c")["waiting"]] == [2]
    line = next(line for line in text(state, 120) if line.startswith("2 "))
    assert line.split()[:3] == ["2", "b", "-"]
    assert line.endswith("it depends on another job")


def test_a_job_behind_those_that_are_told_has_no_place() -> None:
    before = [waits(str(number), "bob", "Priority") for number in range(500)]
    state = site(jobs=[*before, waits("900", "alice", "Priority")], waiting_total=900)
    assert [row["place"] for row in of(state, "alice")["waiting"]] == [None]


def test_free_gpus_are_counted_by_model_and_apart_from_held_and_closed_ones() -> None:
    nodes = [slurm_node("n1", 4, 2), slurm_node("n2", 4, 1), slurm_node("t1", 2, 0, takes_jobs=False)]
    held = [{"host": "n2", "index": 2, "uuid": "GPU-n2-2", "job": "9", "code": "xid_fatal"}]
    state = site(nodes=nodes, held=held)
    keys = ("model", "total", "free", "used", "held", "closed", "free_on_one_host")
    assert [tuple(row[key] for key in keys) for row in of(state)["gpus"]] == [
        (A100, 8, 5, 2, 1, 0, 3),
        (T4, 2, 0, 0, 0, 2, 0),
    ]
    said = "\n".join(text(state, 100))
    assert "A100-SXM4-40GB  5 of 8  3 on one host, 2 in use, 1 out of service\n" in said
    assert "Tesla T4        0 of 2  2 closed" in said
    assert "n2              2    xid_fatal" in said


KEYS = ("free", "used", "held", "closed")


def test_a_gpu_that_is_judged_fatal_is_not_free_before_it_is_held() -> None:
    """Slurm has it as free, and the Prolog would refuse the job."""
    nodes = [slurm_node("n2", 4, 1)]
    state = site(nodes=nodes, jobs=[job("12", "alice")], leases=[lease("12", "n2", 0)])
    assert [tuple(row[key] for key in KEYS) for row in of(state)["gpus"]] == [(2, 1, 1, 0)]
    # One that a job has, or that is held, is counted there.
    state = site(nodes=nodes, jobs=[job("12", "alice")], leases=[lease("12", "n2", 2)])
    assert [tuple(row[key] for key in KEYS) for row in of(state)["gpus"]] == [(3, 1, 0, 0)]
    held = [{"host": "n2", "index": 2, "uuid": "GPU-n2-2", "job": "9", "code": "xid_fatal"}]
    assert [tuple(row[key] for key in KEYS) for row in of(site(nodes=nodes, held=held))["gpus"]] == [(3, 0, 1, 0)]
    # One that Slurm does not have any more is not among its four.
    assert [row["free"] for row in of(site(nodes=[slurm_node("n2", 3, 0)]))["gpus"]] == [3]


@pytest.mark.parametrize("verdict", ["fatal", "unknown"])
def test_a_gpu_that_is_gone_is_not_free(verdict: str) -> None:
    state = site()
    gone = {"uuid": "GPU-gone", "index": None, "model": None, "verdict": verdict, "reasons": []}
    state["nodes"][0]["gpus"][3] = gone
    found = {row["model"]: row for row in of(state)["gpus"]}
    # Slurm has it still: one of n1, and the bad one of n2.
    assert set(found) == {A100, T4}
    assert (found[A100]["total"], found[A100]["free"], found[A100]["free_on_one_host"]) == (8, 6, 3)


def test_a_gpu_of_which_nobody_knows_is_not_free() -> None:
    state = site()
    state["nodes"][0]["gpus"][0]["verdict"] = "unknown"
    found = {row["model"]: row for row in of(state)["gpus"]}
    assert (found[A100]["free"], found[A100]["held"]) == (6, 2)


def test_no_gpu_of_a_host_that_is_judged_fatal_is_free() -> None:
    state = site(nodes=[slurm_node("n1", 4, 0)])
    state["nodes"][0]["reasons"] = [{"code": "driver_hung", "verdict": "fatal", "text": "", "remedy": ""}]
    assert [tuple(row[key] for key in KEYS) for row in of(state)["gpus"]] == [(0, 0, 4, 0)]


def test_gpus_without_a_core_or_on_a_reserved_node_are_closed() -> None:
    state = site(nodes=[slurm_node("n1", 4, 1, gpus_free=1)])
    assert [tuple(row[key] for key in KEYS) for row in of(state)["gpus"]] == [(1, 1, 0, 2)]
    state = site(nodes=[slurm_node("n1", 4, 1, takes_jobs=False)])
    assert [tuple(row[key] for key in KEYS) for row in of(state)["gpus"]] == [(0, 1, 0, 3)]


def test_models_of_one_host_are_told_apart_by_the_gpus_that_jobs_have() -> None:
    state = site(nodes=[slurm_node("n1", 6, 1)], jobs=[job("12", "alice")], leases=[lease("12", "n1", 3)])
    state["nodes"] = [{"name": "n1", "gpus": node("n1", 4)["gpus"] + node("x", 2, T4)["gpus"], "reasons": []}]
    assert [(row["model"], row["free"], row["used"]) for row in of(state)["gpus"]] == [(A100, 3, 1), (T4, 2, 0)]


def test_gpus_of_a_host_that_told_nothing_have_no_model() -> None:
    state = site(nodes=[slurm_node("gone", 8, 3)])
    assert [(row["model"], row["free"]) for row in of(state)["gpus"]] == [(None, 5)]
    assert any(line.startswith("model not known  5 of 8") for line in text(state))


def test_a_job_on_a_bad_gpu_and_one_that_does_not_compute_say_so() -> None:
    state = site(
        jobs=[job("12", "alice"), job("13", "bob", state="RUNNING+COMPLETING")],
        leases=[lease("12", "n2", 1, 2), lease("13", "n1", 0, processes=0)],
    )
    said = text(state)
    assert "    GPU 2 of n2 is out of order: xid_fatal" in said
    assert "    no process on its GPUs" in said
    assert "    completing" in said


def test_a_fatal_gpu_that_jobs_can_still_get_is_told_before_all_else() -> None:
    open_one = {"cause": "n2: GPU 2 is fatal and not fenced", "remedy": "close the node with `gpuops drain n2`"}
    lines = text(site(unfenced=[open_one]))
    assert lines[1:3] == [open_one["cause"], f"remedy: {open_one['remedy']}"]


def test_only_one_users_jobs_are_listed_and_all_are_counted() -> None:
    state = site(jobs=[job("1", "alice"), job("2", "bob"), waits("3", "bob", "Priority")], waiting_total=1)
    found = of(state, "bob")
    assert ([row["id"] for row in found["running"]], found["running_total"]) == (["2"], 2)
    assert "2 jobs run, 1 waits (bob: 1 and 1)" in text(state, user="bob")[0]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    said = text(busy_site(), width)
    assert max(map(len, said)) <= width
    assert {line.split()[0] for line in said if line} >= {"100", "101", "102", "103"}


def test_what_does_not_fit_on_the_screen_is_counted() -> None:
    said = text(busy_site(30), 80, 30)
    assert len(said) <= 30
    assert "and 27 more" in said
    assert sum(line.startswith("1") for line in said) > 3


def test_jobs_beyond_those_that_slurm_tells_of_are_counted() -> None:
    state = site(jobs=[waits("1", "a", "Priority")], waiting_total=900)
    assert "and 899 more" in text(state)
    assert not any("more" in line for line in text(state, user="a"))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (NOW + HOUR, "13:00"), (NOW + 24 * HOUR, "Sat 12:00"), (NOW + 400 * HOUR, "2026-12-14")],
)
def test_moments(seconds: float | None, words: str) -> None:
    assert jobs_text.moment(seconds, NOW) == words


@pytest.mark.parametrize(
    ("known", "words"), [([0, 1, 2, 5], "0-2,5"), ([3], "3"), ([None, None], "2 of ?"), ([4, None, 0], "0,4,?")]
)
def test_indices(known: list[int | None], words: str) -> None:
    assert jobs_text.indices([{"index": index} for index in known]) == words


def test_what_users_write_obeys_no_terminal_and_reverses_nothing() -> None:
    evil = {**SLURM["jobs"][0], "name": "a\x1b[31m\nb\u202ec", "user": "ev\u200bil"}
    seen = read(
        [ok("g1", "gpu_facts", **with_minors()), ok("h1", "slurm_cluster_info", **{**SLURM, "jobs": [evil]})],
        {**SLURM_GROUPS, "gpu_cluster": ["g1"]},
    )
    said = "".join(text(seen, 120))
    assert "a\ufffd[31m b\ufffdc" in said
    assert said.isprintable()


def test_a_slurmctld_that_does_not_answer_is_named_with_the_remedy() -> None:
    silent = {"code": "no_answer", "subject": "slurmctld", "cause": "slurmctld does not answer", "remedy": "start it"}
    seen = read([ok("h1", "slurm_cluster_info", msg="Slurm: no", problems=[silent])], SLURM_GROUPS)
    assert not jobs.is_seen(of(seen))
    said = text(seen)
    assert "slurm: slurmctld does not answer" in said
    assert "remedy: start it" in said
    assert "jobs run" not in said[0]


def test_of_mesos_tasks_and_counts_are_shown() -> None:
    seen = read(
        [ok("g1", "gpu_facts", **facts()), ok("c1", "mesos_state_info", leader="x", agents=AGENTS, tasks=TASKS)],
        {"gpu_cluster": ["g1"], "mesos_masters": ["c1"]},
    )
    found = of(seen)
    assert [(row["id"], row["user"], row["gpus_total"]) for row in found["running"]] == [("t", None, 1)]
    assert [(row["scheduler"], row["total"], row["free"]) for row in found["gpus"]] == [("mesos", 2, 1)]
    said = "\n".join(text(seen))
    assert "g1 1 of ?" in said
    assert "mesos: only its frameworks know users and waiting jobs" in said
    assert "wait" not in said.split("\n")[0]


def test_the_schema_is_printed(bench: Bench) -> None:
    assert json.loads(bench.call("jobs", "--schema").stdout) == SCHEMA


def with_slurm(bench: Bench) -> None:
    bench.inventory.write_text(json.dumps({"all": {"children": {"slurm_controllers": {"hosts": {"here": HERE}}}}}))


def test_a_site_without_a_scheduler_is_refused(bench: Bench) -> None:
    bench.hosts(here=HERE)
    done = bench.call("jobs")
    assert done.returncode == 64
    assert "has no scheduler; add hosts to one of the groups slurm_controllers, mesos_masters" in done.stderr


def test_as_it_is_called_where_slurm_is_not_installed(bench: Bench) -> None:
    with_slurm(bench)
    done = bench.call("jobs", "--json")
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert (done.returncode, found["schedulers"][0]["state"]) == (3, "unreachable")
    done = bench.call("jobs")
    assert "Slurm's commands are not installed there" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 130)])
def test_a_watch_ends_at_a_key_and_leaves_the_terminal_as_it_was(bench: Bench, key: bytes, status: int) -> None:
    with_slurm(bench)
    (bench.path / "call.py").write_text(
        "import signal, subprocess, sys, termios\n"
        "signal.signal(signal.SIGINT, lambda *_signal: None)\n"
        "before = termios.tcgetattr(0)\n"
        f"status = subprocess.call([{sys.executable!r}, '-m', 'gpuops', 'jobs', '--watch', '--interval', '60'])\n"
        "print('ended', status, termios.tcgetattr(0) == before, flush=True)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(bench.path)
        os.execve(
            sys.executable, [sys.executable, "call.py"], {**bench.environment(), "TERM": "xterm", "COLUMNS": "80"}
        )
    said, typed = b"", False
    while not re.search(rb"ended \d+ (True|False)", said):
        ready, _writable, _failed = select.select([terminal], [], [], 120)
        assert ready, said.decode(errors="replace")
        said += os.read(terminal, 4096)
        if not typed and b"not installed" in said:
            os.write(terminal, key)
            typed = True
    os.close(terminal)
    os.waitpid(child, 0)
    assert f"ended {status} True".encode() in said
    assert b"\x1b[?25h" in said.rpartition(b"\x1b[?25l")[2], "the cursor stays hidden"
