# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose GPUs are used and whose are not, by the recording rules: no job is told another's use, and none grows a series.

The same jobs go through the accounting, whose hours are exact.
"""

from __future__ import annotations

import calendar
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import usage
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.gpu import with_models
from gpuops.status import usage_samples
from tests.unit.plugins.plugin_utils.monitoring import made_up_jobs
from tests.unit.plugins.plugin_utils.monitoring.cases import Series, named
from tests.unit.plugins.plugin_utils.monitoring.made_up_jobs import BUSY, IDLE, MODELS, TYPES, USERS, MadeUpJob
from tests.unit.plugins.plugin_utils.monitoring.test_promtool import promtool

JOBS = 500
MEASURED, UNUSED = usage_samples.MEASURED, usage_samples.UNUSED


def evaluated(
    directory: Path,
    series: Series,
    interval: str,
    wanted: dict[str, tuple[str, list[dict[str, Any]]]],
    added: Mapping[str, str] | None = None,
) -> None:
    """Let promtool compare: expression -> when, and the samples.

    :param added: names of further records, and of what each is the sum since the beginning.
    """
    # The other rules take most of the time, and have tests of their own.
    records = [rule for rule in rules.rules()["gpu.yml"][0]["rules"] if rule["record"] in (MEASURED, UNUSED)]
    assert len(records) == 2
    sums = [
        {"record": name, "expr": f"({name} offset 1m) + ({expr} or {name} offset 1m * 0) or {expr}"}
        for name, expr in (added or {}).items()
    ]
    groups = [{"name": "records", "rules": records}, {"name": "sums", "rules": sums}]
    (directory / "rules.yml").write_text(json.dumps({"groups": groups}))
    tests = [{"expr": expr, "eval_time": at, "exp_samples": samples} for expr, (at, samples) in wanted.items()]
    group = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": tests,
    }
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "group_eval_order": ["records", "sums"],
        "tests": [group],
    }
    (directory / "test.yml").write_text(json.dumps(document))
    promtool("test", "rules", directory / "test.yml")


# --- one GPU ----------------------------------------------------------------------------------------------------------

HOST = {"host": "gpu1", "instance": "gpu1:9100", "job": "node"}
LEASE = {"host": "gpu1", "instance": "head1:9100", "job": "node", "scheduler": "slurm"}
NOW = "0+30x60"


def one_gpu(use: str = "0x60", looked: str = NOW, told: str = NOW, lease: str = "1x60", start: str = "90x60") -> Series:
    """A GPU of a job of alice's that starts after a minute and a half, for half an hour in steps of 30 seconds."""
    return {
        named("gpu_info", **HOST, uuid="GPU-1", minor="3", model="Tesla T4"): "1x60",
        named("gpu_utilization_ratio", **HOST, uuid="GPU-1", gpu="0", unit="gpu"): use,
        named("gpu_probe_last_success_timestamp_seconds", **HOST): looked,
        named("slurm_last_success_timestamp_seconds", **{**LEASE, "host": "head1"}): told,
        named("gpu_lease_info", **LEASE, minor="3", job_id="42", user="alice", account="physics"): lease,
        named("gpu_lease_start_timestamp_seconds", **LEASE, job_id="42"): start,
    }


def count(record: str, value: float | None = 1, account: str = "physics") -> list[dict[str, Any]]:
    labels = {"scheduler": "slurm", "user": "alice", "account": account, "model": "Tesla T4"}
    return [] if value is None else [{"labels": named(record, **labels), "value": value}]


@pytest.mark.parametrize(
    ("series", "measured", "unused"),
    [
        pytest.param(one_gpu(), 1, 1, id="idle"),
        pytest.param(one_gpu(use="0.01x60"), 1, None, id="hardly busy"),
        pytest.param(one_gpu(use="_x61"), None, None, id="tells no utilisation, as with MIG"),
        pytest.param(one_gpu(looked="0x60"), None, None, id="the agent looks no more"),
        pytest.param(one_gpu(looked="_x61"), None, None, id="no agent"),
        pytest.param(one_gpu(told="0x60"), None, None, id="nobody asks Slurm any more"),
        pytest.param(one_gpu(start="1500x60"), None, None, id="the job was not there yet at the look"),
        pytest.param(one_gpu(lease="1x40 stale"), None, None, id="the job has ended"),
    ],
)
def test_a_gpu_counts_where_its_use_is_known(
    series: Series, measured: float | None, unused: float | None, tmp_path: Path
) -> None:
    evaluated(
        tmp_path,
        series,
        "30s",
        {MEASURED: ("25m", count(MEASURED, measured)), UNUSED: ("25m", count(UNUSED, unused))},
    )


def test_leases_have_the_model_of_their_gpu_where_it_is_known(tmp_path: Path) -> None:
    by = "job_id, user"
    series = {**one_gpu(start="0x60"), named("gpu_lease_info", **LEASE, job_id="43", user="bob"): "1x60"}
    held = with_models(f"max by (host, minor, {by}) (gpu_lease_info)")
    wanted = [
        {"labels": named("", job_id="42", user="alice", model="Tesla T4"), "value": 600},
        {"labels": named("", job_id="43", user="bob"), "value": 600},
    ]
    expr = f"sum by ({by}, model) (sum_over_time(({held})[600s:60s])) * 60"
    # A subquery has a point at each whole minute; the one at the end is of the next day.
    evaluated(tmp_path, series, "30s", {expr: ("19m59s", wanted)})


def test_a_pod_counts_as_a_job_does(tmp_path: Path) -> None:
    series = {
        name.replace('"slurm"', '"kubernetes"').replace("slurm_last", "kubernetes_last"): values
        for name, values in one_gpu().items()
    }
    (sample,) = count(UNUSED)
    wanted = {**sample, "labels": sample["labels"].replace("slurm", "kubernetes")}
    evaluated(tmp_path, series, "30s", {UNUSED: ("25m", [wanted])})


RENAMED = {
    # At 23 minutes; nothing told Prometheus that the old series had ended.
    named("gpu_info", **HOST, uuid="GPU-1", minor="3", model="Tesla T4"): "1x46",
    named("gpu_info", **HOST, uuid="GPU-1", minor="3", model="NVIDIA Tesla T4"): "_x46 1x14",
    named("gpu_utilization_ratio", **HOST, uuid="GPU-1", gpu="0", unit="gpu"): "0x46",
    named("gpu_utilization_ratio", **HOST, uuid="GPU-1", gpu="1", unit="gpu"): "_x46 0x14",
}
SWAPPED = {
    named("gpu_info", **HOST, uuid="GPU-1", minor="3", model="Tesla T4"): "1x46",
    named("gpu_info", **HOST, uuid="GPU-1", minor="4", model="Tesla T4"): "_x46 1x14",
    named("gpu_info", **HOST, uuid="GPU-2", minor="3", model="NVIDIA Tesla T4"): "_x46 1x14",
    named("gpu_utilization_ratio", **HOST, uuid="GPU-2", gpu="0", unit="gpu"): "0x60",
}
NAMELESS = {
    named("gpu_info", **HOST, uuid=uuid, minor=minor, model=model): "1x60"
    for uuid, minor, model in (("GPU-8", "", "Tesla T4"), ("GPU-9", "", "A100"), ("", "5", "A100"), ("", "6", "A100"))
}


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        pytest.param(RENAMED, "NVIDIA Tesla T4", id="another number and another name of the model"),
        pytest.param(SWAPPED, "NVIDIA Tesla T4", id="another GPU has the minor"),
        pytest.param(NAMELESS, "Tesla T4", id="GPUs without a minor, and without a UUID"),
    ],
)
def test_series_that_two_labels_make_twice_do_not_end_the_rule_for_all(
    changes: Series, model: str, tmp_path: Path
) -> None:
    labels = {"scheduler": "slurm", "user": "alice", "account": "physics", "model": model}
    wanted = {name: ("25m", [{"labels": named(name, **labels), "value": 1}]) for name in (MEASURED, UNUSED)}
    evaluated(tmp_path, one_gpu() | changes, "30s", wanted)


# --- many jobs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs() -> list[MadeUpJob]:
    found = made_up_jobs.made_up(JOBS)
    assert {job.user for job in found} == set(USERS)
    return found


@pytest.mark.slow
def test_no_job_is_told_the_use_of_another_and_hours_are_right(jobs: list[MadeUpJob], tmp_path: Path) -> None:
    series = made_up_jobs.series(jobs)
    last = max(job.end for job in jobs) + 300
    truth = {name: Counter[str]() for name in ("allocated", "used")}
    for job in jobs:
        truth["allocated"][job.user] += job.gpu_seconds
        truth["used"][job.user] += job.used_gpu_seconds
    for name, counts in truth.items():
        for user in USERS:
            series[named(f"true_{name}", user=user)] = f"{counts[user]}x{last // made_up_jobs.SCRAPE_S + 5}"
    # In one query these were more samples than promtool takes.
    sums = {f"test:{name.replace(':', '_')}": f"sum by (user) ({name})" for name in (MEASURED, UNUSED)}
    measured, unused = (f"({name} * 60)" for name in sums)
    used = f"({measured} - ({unused} or true_allocated * 0))"
    at = f"{last}s"

    def everybody(value: float, kind: str = "") -> list[dict[str, Any]]:
        return [{"labels": f'{{user="{user}"}}', "value": value} for user in USERS if user.startswith(kind)]

    evaluated(
        tmp_path,
        series,
        f"{made_up_jobs.SCRAPE_S}s",
        {
            # These share GPUs with the others, and change with them within seconds.
            f'({unused}) and on (user) true_used{{user=~"{BUSY}.*"}}': (at, []),
            f'{used} and on (user) true_used{{user=~"{IDLE}.*"}}': (at, everybody(0, IDLE)),
            # In hundredths of what the user had: neither is told too much, and little is unknown.
            f"({used} - true_used) / true_allocated < bool 0.01": (at, everybody(1)),
            f"({unused} - (true_allocated - true_used)) / true_allocated < bool 0.01": (
                at,
                [one for one in everybody(1) if f'"{BUSY}' not in one["labels"]],
            ),
            f"({measured} - true_allocated) / true_allocated < bool 0.001": (at, everybody(1)),
            f"(true_allocated - {measured}) / true_allocated < bool 0.02": (at, everybody(1)),
            # Of what was measured, the part that was used is right.
            f"abs({used} / {measured} - true_used / true_allocated) < bool 0.01": (at, everybody(1)),
            # However many jobs there were, a user has a series for each account and model.
            f"count(count_over_time({MEASURED}[{last}s])) <= bool {len(USERS) * 3 * 2}": (
                at,
                [{"labels": "{}", "value": 1}],
            ),
        },
        sums,
    )


def test_the_accounting_of_the_same_jobs_is_exact(jobs: list[MadeUpJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    begin = calendar.timegm((2026, 11, 1, 0, 0, 0))

    def line(job: MadeUpJob) -> str:
        moments = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begin + at)) for at in (job.start, job.end)]
        tres = f"billing=1,cpu=4,gres/gpu={len(job.minors)},mem=1G,node=1"
        return "|".join((str(job.number), job.user, job.account, "all", *moments, job.host, tres))

    nodes = "".join(f"NodeName={host} Gres=gpu:{TYPES[model]}:4 State=IDLE\n" for host, model in MODELS.items())

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        if usage.SACCT in argv:
            return 0, "".join(f"{line(job)}\n" for job in jobs), ""
        return 0, "" if argv[0].endswith("squeue") else nodes, ""

    until = time.strftime("%Y-%m-%d", time.gmtime(begin + max(job.end for job in jobs)))
    found = usage.usage(Slurm(run), run, "2026-11-01", until, usage.BY, 60.0, lambda: begin + 90 * 86400.0)
    by_user, by_model = Counter[str](), Counter[str]()
    for row in found["rows"]:
        by_user[row["user"]] += row["gpu_seconds"]
        by_model[row["model"]] += row["gpu_seconds"]
    true_user, true_model = Counter[str](), Counter[str]()
    for job in jobs:
        true_user[job.user] += job.gpu_seconds
        true_model[TYPES[MODELS[job.host]]] += job.gpu_seconds
    assert (by_user, by_model, found["jobs"]) == (true_user, true_model, JOBS)
    assert len({row["day"] for row in found["rows"]}) >= 2
