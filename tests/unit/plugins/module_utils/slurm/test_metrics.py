# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told to Prometheus of a cluster, and of one that does not answer."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster, exporter, metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.exporter import Exporter
from tests.unit.plugins.exposition import Family, parse, style_faults
from tests.unit.plugins.health_host import Host
from tests.unit.plugins.promtool import PROMTOOL, needs_promtool
from tests.unit.plugins.slurm_answers import GUARD, JOBS, STUCK, Answers, gres_conf

ROOT = Path(__file__).resolve().parents[5]
ACCOUNTING = "ClusterName=c\nAccountingStorageType=accounting_storage/slurmdbd\n"
TRAIN, OTHERS, HOLDER = JOBS[:3]
WAITS = {**JOBS[4], "state_description": ""}


class Site:
    """A cluster whose answers a test changes, and the program that looks at it."""

    def __init__(self, directory: Path, jobs: list[dict[str, Any]] = JOBS, slurm_conf: str = ACCOUNTING) -> None:
        self.answers, self.now = Answers(jobs), 1000.0
        conf = directory / "slurm.conf"
        conf.write_text(slurm_conf)
        self.slurm = Slurm(self.answers, gres_conf=gres_conf(directory))
        self.exporter = Exporter(self.slurm, self.answers, str(conf), "head1", lambda: self.now, lambda: 0.0)

    def look(self) -> dict[str, Family]:
        return parse(self.exporter.page())

    def rows(self, name: str) -> list[tuple[dict[str, str], float]]:
        return series(self.look(), name)


def series(families: dict[str, Family], name: str) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for labels, value in families[name].series.items()] if name in families else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_has_its_state_in_slurms_words_and_ours(site: Site) -> None:
    assert site.rows("slurm_node_info") == [
        ({"node": "gpu1", "state": "MIXED"}, 1.0),
        (
            {
                "node": "gpu2",
                "state": "IDLE+DRAIN+INVALID_REG",
                "reason": "gres/gpu count reported lower than configured (1 < 2)",
                "problem": "gpus_missing",
            },
            1.0,
        ),
    ]
    assert site.rows("slurm_node_available") == [({"node": "gpu1"}, 1.0), ({"node": "gpu2"}, 0.0)]


def test_a_node_has_what_is_used_and_what_is_free(site: Site) -> None:
    def of_first(name: str) -> dict[str, float]:
        return {labels["state"]: value for labels, value in site.rows(name) if labels["node"] == "gpu1"}

    assert of_first("slurm_node_cpus") == {"allocated": 1, "free": 1}
    assert of_first("slurm_node_memory_bytes") == {"allocated": 50 * 2**20, "free": 22007 * 2**20}
    # The one that Slurm calls used is a holder's.
    assert of_first("slurm_node_gpus") == {"allocated": 0, "held": 1, "free": 1, "closed": 0}
    site.answers.reservations = GUARD
    assert of_first("slurm_node_gpus") == {"allocated": 0, "held": 1, "free": 0, "closed": 1}
    assert site.rows("slurm_node_available") == [({"node": "gpu1"}, 0.0), ({"node": "gpu2"}, 0.0)]


def test_a_holder_that_does_not_start_has_a_series_and_one_that_waits_for_a_gpu_has_none(site: Site) -> None:
    assert site.rows("slurm_holder_stuck") == []
    site.answers.jobs = [*JOBS, {**STUCK, "state_reason": "Dependency"}]
    assert site.rows("slurm_holder_stuck") == []
    site.answers.jobs = [*JOBS, STUCK]
    assert site.rows("slurm_holder_stuck") == [({"node": "gpu1", "reason": "QOSMaxWallDurationPerJobLimit"}, 1.0)]


def test_a_gpu_that_a_holder_has_or_gets_next_is_fenced(site: Site) -> None:
    def fenced(*jobs: dict[str, Any]) -> dict[str, float]:
        site.answers.jobs = list(jobs)
        return {labels["node"]: value for labels, value in site.rows("slurm_node_fenced_gpus")}

    has, stuck = JOBS[2], {**STUCK, "name": "gpuops-hold-1"}
    assert fenced() == {"gpu1": 0.0, "gpu2": 0.0}
    assert fenced(has) == {"gpu1": 1.0, "gpu2": 0.0}
    assert fenced(has, stuck) == {"gpu1": 1.0, "gpu2": 0.0}
    assert fenced(has, {**stuck, "state_reason": "Dependency"}) == {"gpu1": 2.0, "gpu2": 0.0}


def test_a_reason_that_breaks_lines_is_one_line_of_bounded_length(site: Site) -> None:
    found = cluster.count(site.slurm)
    found["nodes"][1]["reason"] = 'a"\n\\' * 200
    ((_first, _one), (labels, _value)) = series(
        parse(exposition(metrics.samples(found), metrics.METRICS)), "slurm_node_info"
    )
    assert labels["reason"].startswith('a" \\a" \\')
    assert len(labels["reason"]) <= metrics.LABEL_AT_MOST


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_of_people_are_counted_and_those_of_the_reconciler_are_not(site: Site) -> None:
    assert site.rows("slurm_jobs") == [
        ({"partition": "all", "state": "PENDING"}, 3.0),
        ({"partition": "all", "state": "RUNNING"}, 2.0),
    ]
    assert site.rows("slurm_partition_info") == [({"partition": "all", "state": "UP"}, 1.0)]
    assert site.rows("slurm_jobs_waiting") == [({"reason": "Resources"}, 2.0), ({"reason": "JobLaunchFailure"}, 1.0)]


def test_a_holder_that_waits_is_no_job_of_people_and_one_with_its_name_elsewhere_is(tmp_path: Path) -> None:
    waits = {"job_state": ["PENDING"], "state_reason": "Dependency", "state_description": ""}
    site = Site(tmp_path, [{**HOLDER, **waits}, {**HOLDER, **waits, "partition": "all"}])
    assert site.rows("slurm_jobs") == [({"partition": "all", "state": "PENDING"}, 1.0)]
    assert HOLDER["partition"] == PARTITION


def test_a_job_counts_once_in_the_first_of_its_partitions_and_states(tmp_path: Path) -> None:
    site = Site(
        tmp_path,
        [
            {**JOBS[4], "partition": "long,all"},
            {**TRAIN, "job_state": ["RUNNING", "COMPLETING"]},
            {**OTHERS, "job_state": ["RUNNING", "CONFIGURING"]},
        ],
    )
    assert site.rows("slurm_jobs") == [
        ({"partition": "all", "state": "COMPLETING"}, 1.0),
        ({"partition": "all", "state": "CONFIGURING"}, 1.0),
        ({"partition": "long", "state": "PENDING"}, 1.0),
    ]


def test_many_reasons_become_few_series_and_no_job_is_lost(tmp_path: Path) -> None:
    jobs = [
        {**WAITS, "job_id": 100 * kind + number, "state_reason": f"Reason{kind}"}
        for kind in range(1, 60)
        for number in range(kind)
    ]
    site = Site(tmp_path, [*jobs, {**WAITS, "job_id": 9999, "state_reason": 'x"}\x1b y'}])
    told = {labels["reason"]: value for labels, value in site.rows("slurm_jobs_waiting")}
    assert len(told) == metrics.REASONS_AT_MOST + 1
    assert told["Reason59"] == 59
    assert sum(told.values()) == len(jobs) + 1


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:gpu1", "ReqNodeNotAvail"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "Resources"),
        ("launch failed requeued held", "JobLaunchFailure"),
        ("Dependency", "Dependency"),
        ("what somebody has written", metrics.OTHER),
        ("", metrics.OTHER),
    ],
)
def test_what_squeue_prints_becomes_slurms_word_for_it(site: Site, printed: str, reason: str) -> None:
    """The first, second and fourth were printed by 22.05.8."""
    found = {**cluster.count(site.slurm), "waiting": {("all", printed): 2}}
    told = parse(exposition(metrics.samples(found), metrics.METRICS))
    assert series(told, "slurm_jobs_waiting") == [({"reason": reason}, 2.0)]


def test_jobs_that_wait_are_counted_without_reading_each(site: Site) -> None:
    site.look()
    pending = [argv for argv in site.answers.calls if "--states=PENDING" in argv]
    assert len(pending) == 1
    assert "--json" not in pending[0]


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_gpu_that_a_job_has_is_named_by_its_host_and_minor(tmp_path: Path) -> None:
    found = Site(tmp_path, [{**TRAIN, "account": "physics"}, *JOBS[1:]]).look()
    leases = {labels["job_id"]: labels for labels, _value in series(found, "gpu_lease_info")}
    # The third is a holder, which keeps a GPU from people.
    assert set(leases) == {"4", "6_1"}
    assert leases["4"] == {
        "scheduler": "slurm",
        "host": "gpu1",
        "minor": "3",
        "job_id": "4",
        "job_name": "train",
        "user": "admin",
        "account": "physics",
        "partition": "all",
    }
    starts = {labels["job_id"]: value for labels, value in series(found, "gpu_lease_start_timestamp_seconds")}
    assert starts == {"4": TRAIN["start_time"]["number"], "6_1": OTHERS["start_time"]["number"]}


def test_gpus_that_slurm_does_not_tell_are_one_series_without_a_minor(tmp_path: Path) -> None:
    site = Site(tmp_path, [{**TRAIN, "gres_detail": ["gpu:a100:2"]}])
    ((labels, _value),) = site.rows("gpu_lease_info")
    assert "minor" not in labels


def test_names_that_users_give_are_escaped_and_cut(tmp_path: Path) -> None:
    name = '"} 1\ngpu_lease_info{user="root",job_id="' + "x" * 5000
    site = Site(tmp_path, [{**TRAIN, "name": name, "user_name": 'back\\slash"'}])
    ((labels, _value),) = site.rows("gpu_lease_info")
    assert labels["user"] == 'back\\slash"'
    assert labels["job_name"].startswith('"} 1 gpu_lease_info{user="root"')
    assert len(labels["job_name"]) <= metrics.LABEL_AT_MOST


def test_a_job_that_ended_has_no_series(site: Site) -> None:
    assert len(site.rows("gpu_lease_info")) == 2
    site.answers.jobs = [{**TRAIN, "job_state": ["COMPLETED"]}, OTHERS]
    assert [labels["job_id"] for labels, _value in site.rows("gpu_lease_info")] == ["6_1"]


# --- the form ---------------------------------------------------------------------------------------------------------


def test_every_metric_is_in_the_table_with_its_labels_and_follows_the_conventions(site: Site) -> None:
    site.answers.jobs = [*JOBS, STUCK]
    found = site.look()
    assert set(found) == set(metrics.METRICS)
    assert not style_faults(found)
    for name, (kind, labels, text) in metrics.METRICS.items():
        assert (found[name].kind, found[name].help) == (kind, text)
        assert found[name].labels() == set(labels)
        # Prometheus would call them exported_job and exported_instance.
        assert not {"job", "instance"} & set(labels)


# --- the page ---------------------------------------------------------------------------------------------------------


def of_page(language: str, word: str) -> str:
    """The block of the page that has a word."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def scraped(labels: dict[str, str], name: str, value: float, instance: str) -> dict[str, str]:
    """A series as Prometheus has it, for promtool."""
    inner = ",".join(
        f"{key}={json.dumps(text)}" for key, text in {**labels, "instance": instance, "job": "node"}.items()
    )
    return {"series": f"{name}{{{inner}}}", "values": f"{value}x10"}


@needs_promtool
def test_promtool_finds_nothing(site: Site) -> None:
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=site.exporter.page(), check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_promtool
def test_the_rule_of_the_page_joins_the_lease_with_the_agents_gpu(site: Site, tmp_path: Path) -> None:
    """The GPU with NVML's index 0 has the minor 1, and the other way round."""
    host = Host(gpus=2)
    for index, (minor, percent) in enumerate(((1, 0), (3, 80))):
        host.devices[index]["minor"] = minor
        host.read("utilization_percent", {"gpu": percent, "memory": 0}, gpu=index)
    seen = {"probe_error": None, "probe_seconds": None, "probe_time": None, "stuck": 0}
    told = {"agent": seen, "snapshot": host.snapshot(), "health": None}
    agent = [
        scraped({key: str(text) for key, text in labels.items() if text is not None}, name, value, "gpu1:9100")
        for name, labels, value in publish.samples(told)
        if name in ("gpu_info", "gpu_utilization_ratio")
    ]
    slurm = [scraped(labels, "gpu_lease_info", value, "head1:9100") for labels, value in site.rows("gpu_lease_info")]
    unknown = scraped({"host": "gpu1", "job_id": "9", "user": "eve"}, "gpu_lease_info", 1.0, "head1:9100")
    (tmp_path / "rules.yml").write_text(of_page("yaml", "gpu:lease_info"))
    busy, idle = of_page("promql", "gpu:lease_info").splitlines()
    gpus = {str(device["minor"]): device for device in told["snapshot"]["devices"]}
    joined = [
        f'{{job_id="{job}", host="gpu1", minor="{minor}", gpu="{gpus[minor]["index"]}", uuid="{gpus[minor]["uuid"]}"}}'
        for job, minor in (("4", "3"), ("6_1", "1"))
    ]
    checks = [
        ("count by (job_id, host, minor, gpu, uuid) (gpu:lease_info)", dict.fromkeys(joined, 1)),
        (busy, {'{user="admin"}': 0.4}),
        (f"count by (job_id) ({idle})", {'{job_id="6_1"}': 1}),
    ]
    expected = [
        {
            "expr": expression,
            "eval_time": "1m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
        }
        for expression, values in checks
    ]
    ran = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": [*agent, *slurm, unknown], "promql_expr_test": expected}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(ran))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "test.yml"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- a cluster that does not answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["scontrol", "squeue"])
def test_a_slurmctld_that_is_silent_leaves_nothing_but_that_and_when_it_answered(site: Site, command: str) -> None:
    site.look()
    site.answers.fails, site.now = command, 2000.0
    found = site.look()
    assert {name: family.series[()] for name, family in found.items()} == {
        "slurm_controller_up": 0.0,
        "slurm_database_up": 1.0,
        "slurm_last_success_timestamp_seconds": 1000.0,
    }
    assert "slurmctld does not answer" in site.exporter.complaint
    assert "To do: " in site.exporter.complaint
    site.answers.fails = ""
    found = site.look()
    assert found["slurm_controller_up"].series[()] == 1.0
    assert found["slurm_last_success_timestamp_seconds"].series[()] == 2000.0
    assert site.exporter.complaint == ""


def test_before_the_first_answer_there_is_no_time_of_one(site: Site) -> None:
    site.answers.fails = "scontrol"
    assert set(site.look()) == {"slurm_controller_up", "slurm_database_up"}


def test_an_answer_that_is_no_answer_is_none(site: Site) -> None:
    def nonsense(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        return (0, '{"jobs": 5}', "") if "--json" in argv else site.answers(argv, stdin, timeout)

    found = parse(Exporter(Slurm(nonsense), site.answers, "/nonexistent").page())
    assert found["slurm_controller_up"].series[()] == 0.0


def test_a_silent_slurmdbd_is_told_and_hides_nothing(site: Site) -> None:
    site.answers.fails = "sacctmgr"
    found = site.look()
    assert found["slurm_database_up"].series[()] == 0.0
    assert found["slurm_controller_up"].series[()] == 1.0


@pytest.mark.parametrize("conf", ["ClusterName=c\n", "#AccountingStorageType=accounting_storage/slurmdbd\n"])
def test_without_accounting_nobody_is_asked_for_a_database(tmp_path: Path, conf: str) -> None:
    site = Site(tmp_path, slurm_conf=conf)
    assert "slurm_database_up" not in site.look()
    assert not [argv for argv in site.answers.calls if argv[0].endswith("sacctmgr")]


PRIMARY, BACKUP = "Slurmctld(primary) at {} is {}\n", "Slurmctld(backup) at {} is {}\n"


@pytest.mark.parametrize(
    ("ping", "tells"),
    [
        (PRIMARY.format("head1", "UP") + BACKUP.format("head2", "UP"), True),
        (PRIMARY.format("head1", "UP") + BACKUP.format("head2", "DOWN"), True),
        (PRIMARY.format("head2", "UP") + BACKUP.format("head1", "UP"), False),
        (PRIMARY.format("head2", "DOWN") + BACKUP.format("head1", "UP"), True),
        # Of a ping that took too long nothing is known.
        ("", True),
        # A host that has no slurmctld.
        (PRIMARY.format("head2", "UP"), True),
    ],
)
def test_of_two_controllers_the_one_in_control_tells_of_the_cluster(site: Site, ping: str, tells: bool) -> None:
    site.answers.ping = ping
    found = site.look()
    assert ("gpu_lease_info" in found, "slurm_jobs" in found) == (tells, tells)
    assert found["slurm_controller_up"].series[()] == 1.0


# --- the program ------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_replaced_does_not_stay(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slurm.prom"
    assert exporter.write(site.exporter, str(path)) == ""
    assert parse(path.read_text())["slurm_controller_up"].series[()] == 1.0

    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporter.host_files, "write", full)
    assert "No space left on device. To do: " in exporter.write(site.exporter, str(path))
    assert not path.exists()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


@pytest.fixture
def unblocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("unblocked")
def test_the_service_writes_until_it_is_told_to_stop_and_takes_its_file_along(
    site: Site,
    tmp_path: Path,
    systemd: socket.socket,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "slurm.prom"
    seen: list[float] = []
    ask = site.exporter.page

    def page() -> str:
        text = ask()
        if path.exists():
            seen.append(parse(path.read_text())["slurm_controller_up"].series[()])
        # Silent from the second look on, and stopped in the fourth.
        site.answers.fails = "scontrol"
        if len(seen) == 3:
            signal.raise_signal(signal.SIGTERM)
        return text

    monkeypatch.setattr(site.exporter, "page", page)
    exporter.serve(site.exporter, str(path), 0.0)
    assert seen == [1.0, 0.0, 0.0]
    assert not path.exists()
    # Told once, however often it is seen.
    assert capsys.readouterr().err.count("slurmctld does not answer") == 1
    told = []
    with contextlib.suppress(BlockingIOError):
        while True:
            told.append(systemd.recv(4096).decode())
    assert (told[0], told[-1]) == ("READY=1", "STOPPING=1")
    assert "STATUS=slurmctld answers" in told
    assert "WATCHDOG=1" in told


def test_once_prints_a_look_and_its_exit_code_says_whether_slurmctld_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    monkeypatch.setattr(exporter, "Exporter", lambda _slurm: site.exporter)
    assert exporter.main(["--once"]) == 0
    assert parse(capsys.readouterr().out)["slurm_controller_up"].series[()] == 1.0
    site.answers.fails = "scontrol"
    path = tmp_path / "slurm.prom"
    assert exporter.main(["--once", f"--textfile={path}"]) == 1
    assert parse(path.read_text())["slurm_controller_up"].series[()] == 0.0
    assert "slurmctld does not answer" in capsys.readouterr().err


def test_without_a_file_the_service_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        exporter.main([])
    assert "give --textfile PATH or --once" in capsys.readouterr().err
