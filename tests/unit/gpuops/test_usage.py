# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops usage: from the result of the module and the samples of Prometheus to the hours, and as it is called."""

from __future__ import annotations

import csv
import datetime
import io
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.cli import app
from gpuops.commands import usage as command
from gpuops.run import events
from gpuops.status import usage, usage_samples, usage_text
from gpuops.status.usage_samples import NoSamples, Sample
from tests.unit.gpuops.conftest import HERE, Bench
from tests.unit.gpuops.test_status import ok

SCHEMA = json.loads(usage.SCHEMA.read_text())
HOUR = 3600
A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"
DAYS = [{"name": "2026-11-01", "begin": 1793487600, "end": 1793574000}]


def row(user: str, hours: float, jobs: int = 1, **more: Any) -> dict[str, Any]:
    return {"user": user, "gpu_seconds": int(hours * HOUR), "jobs": jobs, **more}


def result(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"days": DAYS, "time_zone": "CET", "rows": list(rows), "jobs": 3, "problems": [], **more}


def sample(user: str, measured: float, unused: float, account: str = "physics", model: str = A100) -> Sample:
    return Sample(user, account, model, "2026-11-01", measured * HOUR, unused * HOUR)


def of(found: dict[str, Any], by: list[str], *samples: Sample, asked: bool = True) -> dict[str, Any]:
    reader = usage.Reader()
    reader.take(events.typed(ok("h1", "slurm_usage_info", **found)))
    assert reader.result is not None
    document = usage.document(reader.result, by, samples if asked else None)
    jsonschema.validate(document, SCHEMA)
    return document


def text(document: dict[str, Any], width: int = 100) -> str:
    lines = [progress_text.plain(line) for line in usage_text.lines(document, width)]
    assert "".join(lines).isprintable()
    return "\n".join(lines)


def hours(document: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {line["user"]: tuple(line[name] for name in usage_text.HOURS) for line in document["rows"]}


# --- hours ------------------------------------------------------------------------------------------------------------


def test_hours_are_used_unused_or_unknown() -> None:
    found = result(row("alice", 10.0), row("bob", 4.0), row("carol", 20.0))
    document = of(found, ["user"], sample("alice", 9.5, 2.0), sample("carol", 20.0, 0.0))
    assert hours(document) == {
        "carol": (20.0, 20.0, 0.0, 0.0),
        "alice": (10.0, 7.5, 2.0, 0.5),
        "bob": (4.0, None, None, 4.0),
    }
    assert document["total"] == {
        "jobs": 3,
        "gpu_hours": 34.0,
        "used_hours": 27.5,
        "unused_hours": 2.0,
        "unknown_hours": 4.5,
    }


def test_without_prometheus_nothing_is_zero() -> None:
    document = of(result(row("alice", 10.0)), ["user"], asked=False)
    assert hours(document) == {"alice": (10.0, None, None, 10.0)}
    said = text(document)
    assert said.count("unknown") == 3
    assert "give --prometheus URL" in said
    assert "0.0" not in said.replace("10.0", "")


def test_a_sample_more_than_a_job_had_makes_nothing_negative() -> None:
    document = of(result(row("alice", 1.0)), ["user"], sample("alice", 1.02, 0.5))
    assert hours(document) == {"alice": (1.0, 0.52, 0.5, 0.0)}


def test_use_is_told_to_the_row_of_its_user_group_model_and_day() -> None:
    by = ["user", "group", "model", "day"]
    day = {"day": "2026-11-01"}
    found = result(
        row("alice", 5.0, account="physics", model="a100", **day),
        row("alice", 5.0, account="chemistry", model="a100", **day),
        row("alice", 5.0, account="physics", model="tesla-t4", **day),
        row("bob", 5.0, account="physics", model=None, **day),
    )
    samples = [
        sample("alice", 5.0, 1.0),
        sample("alice", 5.0, 2.0, model=T4),
        sample("alice", 5.0, 3.0, account="chemistry"),
        sample("bob", 5.0, 4.0),
    ]
    document = of(found, by, *samples)
    unused = {(one["user"], one["group"], one["model"]): one["unused_hours"] for one in document["rows"]}
    assert unused == {
        ("alice", "physics", "a100"): 1.0,
        ("alice", "physics", "tesla-t4"): 2.0,
        ("alice", "chemistry", "a100"): 3.0,
        # Of GPUs whose type the accounting does not know nobody can say which were measured.
        ("bob", "physics", None): None,
    }
    by_user = result(row("alice", 15.0), row("bob", 5.0))
    assert hours(of(by_user, ["user"], *samples)) == {"alice": (15.0, 9.0, 6.0, 0.0), "bob": (5.0, 1.0, 4.0, 0.0)}


def test_days_come_in_their_order_and_who_had_most_first() -> None:
    found = result(
        row("alice", 1.0, day="2026-11-02"), row("bob", 2.0, day="2026-11-02"), row("carol", 0.5, day="2026-11-01")
    )
    assert [line["user"] for line in of(found, ["day", "user"])["rows"]] == ["carol", "bob", "alice"]


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_table_of_many_users_has_its_numbers_whole() -> None:
    name = "a-user-with-a-name-that-is-long"
    found = result(*(row(f"{name}-{number}", 1e6 + number, account="x" * 30) for number in range(50)))
    document = of(found, ["user", "group"])
    for width in (160, 80, 64):
        lines = text(document, width).split("\n")
        assert len([line for line in lines if line.startswith("a-user")]) == 50
        head = ["USER", "GROUP", *(["JOBS"] if width > 100 else []), "GPU", "HOURS", "USED", "UNUSED", "UNKNOWN"]
        assert lines[2].split() == head
        assert max(map(len, lines)) <= width
        assert "1,000,049.0  unknown  unknown  1,000,049.0" in lines[3]
        assert "…" in lines[3] or width == 160


def test_nothing_is_said_in_a_word() -> None:
    assert "no job had GPUs in this time" in text(of(result(), ["user"]))


def test_csv_has_a_line_for_each_row_and_no_formula() -> None:
    found = result(row("=cmd|' /C calc'!A0", 2.0), row('a"b,c', 1.5), row("alice", 1.0, jobs=1200))
    told = list(csv.reader(io.StringIO(usage_text.as_csv(of(found, ["user"], sample("alice", 1.0, 0.25))))))
    assert told == [
        ["user", "jobs", "gpu_hours", "used_hours", "unused_hours", "unknown_hours"],
        ["'=cmd|' /C calc'!A0", "1", "2.0", "unknown", "unknown", "2.0"],
        ['a"b,c', "1", "1.5", "unknown", "unknown", "1.5"],
        ["alice", "1200", "1.0", "0.75", "0.25", "0.0"],
    ]


def test_what_a_host_tells_obeys_no_terminal() -> None:
    evil = {"user": "ev\x1b[31m\u202eil\n", "gpu_seconds": "x", "jobs": -5}
    document = of(result(evil, 7, row("alice", 1.0), days=[*DAYS, None], time_zone="\x07"), ["user"])
    assert "ev\ufffd[31m\ufffdil" in text(document)
    assert document["rows"][-1]["gpu_hours"] == document["rows"][-1]["jobs"] == 0


def test_hours_that_are_missing_are_told() -> None:
    problem = {"code": "runaway_jobs", "subject": "slurmdbd", "cause": "2 jobs have no end", "remedy": "end them"}
    said = text(of(result(row("alice", 1.0), problems=[problem]), ["user"]))
    assert "cause: 2 jobs have no end" in said
    assert "remedy: end them" in said


# --- Prometheus -------------------------------------------------------------------------------------------------------


class Prometheus(HTTPServer):
    """Answers a query with what a test has given for the record in it.

    :ivar asked: the query and the time of each question.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.raw: tuple[int, bytes] | None = None
        super().__init__(("127.0.0.1", 0), Answering)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Prometheus

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        words = urllib.parse.parse_qs(parts.query)
        assert parts.path == "/api/v1/query"
        self.server.asked.append((words["query"][0], float(words["time"][0])))
        found = next((rows for name, rows in self.server.answers.items() if name in words["query"][0]), [])
        told = {"status": "success", "data": {"resultType": "vector", "result": found}}
        status, content = self.server.raw or (200, json.dumps(told).encode())
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: Any) -> None:
        """Nothing."""


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prometheus]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Prometheus()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def answer(value: Any, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1.0, value]}


ALICE = {"user": "alice", "account": "physics", "model": A100}


def test_each_day_is_asked_for_by_itself(prometheus: Prometheus) -> None:
    prometheus.answers = {
        usage_samples.MEASURED: [answer("7200", **ALICE), answer("60", user="bob", model=A100)],
        usage_samples.UNUSED: [answer("1800", **ALICE)],
    }
    days = [("2026-10-25", 1000, 1000 + 25 * HOUR), ("2026-10-26", 1000 + 25 * HOUR, 1000 + 49 * HOUR)]
    found = usage_samples.ask(prometheus.url, days)
    assert found[:2] == [
        Sample("alice", "physics", A100, "2026-10-25", 7200.0, 1800.0),
        Sample("bob", "", A100, "2026-10-25", 60.0, 0.0),
    ]
    assert [one.day for one in found[2:]] == ["2026-10-26"] * 2
    queries = {query for query, _time in prometheus.asked}
    assert len(queries) == len(prometheus.asked) == 4
    assert (
        "sum by (user, account, model) "
        '(sum_over_time(user:gpu_lease_info:measured{scheduler="slurm"}[90000s:60s])) * 60'
    ) in queries
    # The minute with which the next day begins is not in it.
    assert {time for _query, time in prometheus.asked} == {1000 + 25 * HOUR - 0.001, 1000 + 49 * HOUR - 0.001}


def kubernetes_site(bench: Bench) -> None:
    bench.inventory.write_text(
        json.dumps({"all": {"children": {"kubernetes_control_planes": {"hosts": {"here": HERE}}}}})
    )


def test_hours_of_pods_come_from_their_leases(prometheus: Prometheus, bench: Bench) -> None:
    kubernetes_site(bench)
    rows = [
        answer("7200", **ALICE, job_id="lab/train-0"),
        answer("3600", **ALICE, job_id="lab/train-1"),
        # Its kubelet does not say which GPU it has.
        answer("1800", user="bob", account="lab", job_id="lab/old"),
    ]
    prometheus.answers = {"gpu_lease_info{": rows, usage_samples.MEASURED: [answer("9000", **ALICE)]}
    words = ["usage", "--since", "2026-11-01", "--until", "2026-11-01", "--prometheus", prometheus.url]
    done = bench.call(*words, "--by", "user", "--by", "model", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert (found["source"], found["total"]["jobs"]) == ("prometheus", 3)
    assert [(row["user"], row["model"], row["jobs"], row["gpu_hours"], row["used_hours"]) for row in found["rows"]] == [
        ("alice", "a100", 2, 3.0, 2.5),
        ("bob", None, 1, 0.5, None),
    ]
    assert "from the leases of pods in Prometheus" in bench.call(*words).stdout
    assert all('scheduler="kubernetes"' in query for query, _time in prometheus.asked)


def test_without_prometheus_the_hours_of_pods_are_not_known(bench: Bench) -> None:
    kubernetes_site(bench)
    done = bench.call("usage", "--since", "2026-11-01")
    assert done.returncode == 64
    assert "Kubernetes keeps no accounting; give --prometheus" in done.stderr
    done = bench.call("usage", "--since", "2099-11-01", "--prometheus", "http://127.0.0.1:9")
    assert (done.returncode, "no day from 2099-11-01" in done.stderr) == (64, True)
    done = bench.call("usage", "--since", "2026-11-01", "--until", "2026-11-01", "--prometheus", "http://127.0.0.1:9")
    assert (done.returncode, "does not answer" in done.stderr) == (3, True)


def test_days_end_at_midnight_and_today_ends_now() -> None:
    now = datetime.datetime(2026, 11, 3, 10, 30)
    found = usage.days_of("2026-11-01", "", now)
    assert [name for name, _begin, _end in found] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert [end for _name, _begin, end in found[:2]] == [begin for _name, begin, _end in found[1:]]
    assert found[-1][2] == int(now.timestamp())
    assert len(usage.days_of("2026-11-01", "2026-11-02", now)) == 2


def test_values_that_are_none_are_left_out(prometheus: Prometheus) -> None:
    bad: list[Any] = ["NaN", "+Inf", "-60", "1e300", "x", None, [], "0"]
    prometheus.answers = {
        usage_samples.MEASURED: [*(answer(value, user=str(value)) for value in bad), {}, answer("60", **ALICE)],
        usage_samples.UNUSED: [answer("600", **ALICE)],
    }
    # Nobody leaves more unused than there was.
    (found,) = usage_samples.ask(prometheus.url, [("2026-11-01", 0, HOUR)])
    assert (found.user, found.measured_s, found.unused_s) == ("alice", 60.0, 60.0)


@pytest.mark.parametrize(
    ("status", "content", "why"),
    [
        (400, rb'{"status": "error", "error": "bad \u001b query"}', "refuses the query: 400 bad"),
        (503, b"away", "refuses the query: 503"),
        (302, b"", "refuses the query: 302"),
        (200, b"<html>", "is not Prometheus"),
        (200, b'{"status": "success", "data": {"resultType": "matrix"}}', "is not Prometheus"),
        (200, b"[" * 100000, "is not Prometheus"),
    ],
)
def test_an_answer_that_is_none_says_why(prometheus: Prometheus, status: int, content: bytes, why: str) -> None:
    prometheus.raw = status, content
    with pytest.raises(NoSamples, match=why) as caught:
        usage_samples.ask(prometheus.url, [("2026-11-01", 0, HOUR)])
    assert str(caught.value).isprintable()


def test_a_prometheus_that_is_away_says_so() -> None:
    with pytest.raises(NoSamples, match="does not answer"):
        usage_samples.ask("http://127.0.0.1:9", [("2026-11-01", 0, HOUR)])


@pytest.mark.parametrize(
    "url", ["mon1:9090", "file:///etc/passwd", "http://", "http://mon1:9090/?query=x", "http://a:b@mon1", "http://m:x"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(NoSamples, match="the URL of Prometheus must"):
        usage_samples.check(url)
    assert usage_samples.check("https://mon1/prometheus/") == "https://mon1/prometheus"


# --- as it is called --------------------------------------------------------------------------------------------------


def with_slurm(bench: Bench) -> None:
    bench.inventory.write_text(json.dumps({"all": {"children": {"slurm_controllers": {"hosts": {"here": HERE}}}}}))


def test_the_schema_is_printed(bench: Bench) -> None:
    assert json.loads(bench.call("usage", "--schema").stdout) == SCHEMA


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give the first day with --since"),
        (["--since", "yesterday"], "--since yesterday is not a valid day"),
        (["--since", "2026-11-01", "--until", "2026-11-31"], "--until 2026-11-31 is not a valid day"),
        (["--since", "2026-11-01", "--prometheus", "mon1"], "must be like http://mon1:9090"),
        (["--since", "2026-11-01"], "has no hosts in the groups slurm_controllers and kubernetes_control_planes"),
    ],
)
def test_what_cannot_be_meant_is_refused(bench: Bench, words: list[str], why: str) -> None:
    bench.hosts(here=HERE)
    done = bench.call("usage", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert why in done.stderr


def test_days_that_the_host_refuses_are_a_wrong_option(bench: Bench) -> None:
    with_slurm(bench)
    done = bench.call("usage", "--since", "2026-11-02", "--until", "2026-11-01")
    assert done.returncode == 64, done.stderr
    assert done.stderr == "gpuops usage: 2026-11-01 is before 2026-11-02; give the first day first\n"


def test_as_it_is_called_where_slurm_is_not_installed(bench: Bench) -> None:
    with_slurm(bench)
    done = bench.call("usage", "--since", "2026-11-01", "--by", "group", "--format", "csv")
    assert (done.returncode, done.stdout) == (3, "")
    assert "Slurm's commands are not installed there" in done.stderr


def test_accounting_and_prometheus_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prometheus: Prometheus
) -> None:
    (tmp_path / "hosts.json").write_text(
        json.dumps({"all": {"children": {"slurm_controllers": {"hosts": {"h1": {}}}}}})
    )
    given: dict[str, Any] = {}

    def run(_site: Any, _private: Any, take: events.Take, _stopper: Any, **options: Any) -> int:
        given.update(options)
        take(events.typed(ok("h1", "slurm_usage_info", **result(row("alice", 3.0, jobs=2), row("bob", 1.0)))))
        return 0

    monkeypatch.setattr(command.runner, "run", run)
    prometheus.answers = {
        usage_samples.MEASURED: [answer(str(2.5 * HOUR), **ALICE)],
        usage_samples.UNUSED: [answer(str(0.5 * HOUR), **ALICE)],
    }
    words = ["usage", "--since", "2026-11-01", "--inventory", str(tmp_path / "hosts.json")]
    done = CliRunner().invoke(app, [*words, "--prometheus", prometheus.url, "--format", "csv"])
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "user,jobs,gpu_hours,used_hours,unused_hours,unknown_hours",
            "alice,2,3.0,2.0,0.5,0.5",
            "bob,1,1.0,unknown,unknown,1.0",
        ],
    )
    variables = json.loads(given["options"][given["options"].index("-e") + 1])
    assert variables == {"usage_since": "2026-11-01", "usage_until": "", "usage_by": ["user"]}
    # Hours are told without Prometheus too, and why their use is not.
    prometheus.raw = 503, b""
    done = CliRunner().invoke(app, [*words, "--format", "json"], env={"GPUOPS_PROMETHEUS": prometheus.url})
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert (done.exit_code, found["total"]["gpu_hours"], found["total"]["unused_hours"]) == (3, 4.0, None)
    assert "refuses the query: 503" in found["use"]["problem"]
