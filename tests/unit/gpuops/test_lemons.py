# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops lemons: who fails again and again comes first, and where its points come from can be followed."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.parse

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, GPU, PASS, Item
from gpuops.accept import history, lemons, record, report
from gpuops.run.records import Record
from gpuops.status.usage_samples import NoSamples
from tests.unit.gpuops.conftest import HERE

NOW = 1790000000.0
SLOW = Item("gpu.fp32", GPU, "n2", FAIL, "slow", "replace it", "GPU 1")
HOT = Item("gpu.throttle", GPU, "n3", FAIL, "hot", "cool it", "GPU 0")
WELL = Item("gpu.fp32", GPU, "n1", PASS, "fast")


def found(started, *items):
    acceptance = record.Acceptance(started, "", [GPU], 1.0, hosts={"n1": {}, "n2": {}, "n3": {}})
    return report.document(acceptance, items, "s")


REPORTS = [found(NOW, WELL, SLOW), found(NOW + 10, WELL, SLOW, HOT), found(NOW - 10**7, HOT, HOT)]


def test_who_fails_more_often_comes_first_and_what_is_old_does_not_count():
    first, second = lemons.rank(REPORTS, [], {}, NOW - 100)
    assert (first.host, first.points, first.failed, first.acceptances) == ("n2", 20, 2, 2)
    assert first.items == {"gpu.fp32 GPU 1": 2}
    assert first.last == "gpu.fp32 GPU 1: slow"
    assert (second.host, second.points) == ("n3", 10)


def test_runs_and_alerts_count_too():
    runs = [
        Record("site", started=NOW, hosts={"n1": "failed", "n2": "done", "n4": "unreachable"}),
        Record("site", started=NOW, hosts={"n1": "failed"}, check=True),
        Record("site", started=NOW - 10**7, hosts={"n1": "failed"}),
    ]
    alerts = {"n3": {"GpuHot": 3.2, "HostSilent": 5000.0}}
    rows = {row.host: row for row in lemons.rank(REPORTS[:1], runs, alerts, NOW - 100)}
    assert {host: row.points for host, row in rows.items()} == {"n1": 2, "n2": 10, "n3": 103, "n4": 2}
    assert rows["n3"].alerts == {"GpuHot": 3.2, "HostSilent": 5000.0}


def test_the_table_names_host_points_and_faults():
    table = lemons.table(lemons.rank(REPORTS, [], {"n3": {"GpuHot": 50.0}}, NOW - 100), 20, 160)
    lines = ["".join(text for _style, text in line) for line in table]
    assert lines[0].split() == ["HOST", "POINTS", "ACCEPTANCES", "RUNS", "ALERT", "HOURS", "WHAT", "FAILED", "MOST"]
    assert lines[1].split()[:2] == ["n3", "60"]
    assert "GpuHot" in lines[1]
    assert "2 of 2 failed" in lines[2]
    assert "gpu.fp32 GPU 1 (2 times)" in lines[2]
    assert len(lemons.table(lemons.rank(REPORTS, [], {}, 0), 1, 160)) == 2


@pytest.fixture
def prometheus():
    """Answers every query with these rows, and keeps what it was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def do_GET(self):
            made.asked.append(urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query))
            data = json.dumps({"status": "success", "data": {"resultType": "vector", "result": made.rows}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.rows = [], []
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def row(host, alert, value):
    return {"metric": {"host": host, "alertname": alert}, "value": [NOW, value]}


def test_alerts_come_from_prometheus(prometheus):
    good = row("n1", "GpuHot", "2.5")
    prometheus.rows = [good, row("n1", "Watchdog", "720"), row("", "GpuHot", "3"), row("n2", "GpuHot", "NaN"), 7]
    assert lemons.alerts(prometheus.url, 30) == {"n1": {"GpuHot": 2.5}}
    assert "[30d:5m]" in prometheus.asked[0]["query"][0]
    with pytest.raises(NoSamples, match="like http"):
        lemons.alerts("file:///etc/passwd", 30)


def test_the_command_shows_them_as_table_and_as_json(bench, prometheus):
    bench.inventory.write_text(json.dumps({"gpu_cluster": {"hosts": {"n1": HERE}}}))
    empty = bench.call("lemons")
    assert (empty.returncode, "no host has failed" in empty.stdout) == (0, True)
    history.keep(bench.path / ".gpuops", {**REPORTS[0], "started": time.time()})
    prometheus.rows = [row("n9", "GpuHot", "2")]
    shown = bench.call("lemons", "--prometheus", prometheus.url)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["HOST", "n2", "n9"]
    document = json.loads(bench.call("lemons", "--json").stdout)
    assert [host["host"] for host in document["hosts"]] == ["n2"]
    silent = bench.call("lemons", "--prometheus", "http://127.0.0.1:1")
    assert (silent.returncode, "Prometheus does not answer" in silent.stderr) == (3, True)
    assert "n2" in silent.stdout
