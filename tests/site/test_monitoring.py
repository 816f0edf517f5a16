# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus, Alertmanager and node_exporter on the lab's machines: targets, who may read, from a fault to a message.

The tests of this file run in order, on the finished machines of `make lab-node`. What a person would be told comes to a
receiver of webhooks on the host of Alertmanager.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.alert_faults import VARIABLES, WEBHOOK, Watch
from tests.site.plays import Play, kernel_says, run_playbook, services, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SERVER = "cpu1"
NODES = ("gpu1", "gpu2")
HOSTS = (SERVER, *NODES)
TEXTFILES = "/var/lib/prometheus/node-exporter"
WATCH = Watch(SERVER)
query, targets, messages, told, now = WATCH.query, WATCH.targets, WATCH.messages, WATCH.told, WATCH.now


class Site:
    """The lab with a server of Prometheus.

    :ivar watched: the hosts that it watches.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.watched = base, list(HOSTS)

    def run(self, options: str = "", limit: str | None = None, **variables: Any) -> Play:
        groups = {
            "prometheus_servers": {"hosts": {SERVER: {}}},
            "node_exporters": {"hosts": {host: {"prometheus_labels": {"rack": "r1"}} for host in self.watched}},
        }
        inventory = self.base / "monitoring.yml"
        inventory.write_text(json.dumps(groups))
        return run_playbook(
            "monitoring.yml",
            limit=limit,
            options=f"-i {inventory} {options}",
            extra_vars={**VARIABLES, "node_exporter_tls_path": str(self.base / "tls"), **variables},
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if any("no" in ssh(node, "test -e /etc/systemd/system/baremetal-gpu-agent.service || echo no") for node in NODES):
        assert run_playbook("site.yml").rc == 0
    WATCH.prepare(HOSTS)
    yield Site(tmp_path_factory.mktemp("monitoring"))
    WATCH.end()


def test_check_mode_tells_what_a_run_would_do_and_does_nothing(site: Site) -> None:
    play = site.run("--check --diff")
    assert play.rc == 0, play.tail()
    assert all(play.changed(host) for host in HOSTS)
    assert "prometheus" in play.stdout
    assert "no" in ssh(SERVER, "test -e /usr/bin/prometheus || echo no")


def test_a_run_makes_it_and_every_host_is_watched(site: Site) -> None:
    play = site.run("--diff")
    assert play.rc == 0, play.tail()
    # Neither a key nor the address of a webhook is shown.
    keys = [text for path in (site.base / "tls").iterdir() if "PRIVATE KEY" in (text := path.read_text())]
    assert len(keys) > len(HOSTS)
    assert not [key for key in keys if key.splitlines()[1] in play.stdout]
    assert WEBHOOK not in play.stdout
    until(lambda: targets() == dict.fromkeys(HOSTS, "up"), 60, targets)
    assert {row["metric"]["host"] for row in until(lambda: query("gpu_info"), 60, targets)} == set(NODES)
    (row,) = query('up{job="node",host="gpu1"}')
    assert row["metric"]["rack"] == "r1"


def test_a_second_run_changes_nothing_and_restarts_nothing(site: Site) -> None:
    before = {host: services(host) for host in HOSTS}
    play = site.run()
    assert play.rc == 0, play.tail()
    assert not any(play.changed(host) for host in HOSTS), play.changed_tasks
    assert {host: services(host) for host in HOSTS} == before


def test_only_who_has_a_certificate_of_the_site_reads_metrics(site: Site) -> None:
    address = ssh("gpu1", "hostname -I").split()[0]
    assert "node_cpu" not in ssh(SERVER, f"curl -sk https://{address}:9100/metrics || true")
    assert "node_cpu" not in ssh(SERVER, f"curl -s http://{address}:9100/metrics || true")
    ssh(
        SERVER,
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=cpu1 "
        "-keyout /tmp/own.key -out /tmp/own.pem 2>/dev/null",
    )
    assert "node_cpu" not in ssh(
        SERVER, f"curl -sk --cert /tmp/own.pem --key /tmp/own.key https://{address}:9100/metrics || true"
    )
    tls = "/etc/prometheus/tls"
    shown = ssh(
        SERVER,
        f"sudo curl -s --cacert {tls}/ca.pem --cert {tls}/certificate.pem --key {tls}/key.pem "
        f"https://{address}:9100/metrics",
    )
    assert "node_cpu" in shown
    assert "Permission denied" in ssh(SERVER, f"sudo -u nobody cat {tls}/key.pem 2>&1 || true")


def test_rules_are_all_read_and_can_be_evaluated(site: Site) -> None:
    groups = json.loads(ssh(SERVER, "curl -s http://127.0.0.1:9090/api/v1/rules"))["data"]["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) > 50
    until(lambda: all(rule["lastEvaluation"][:4] != "0001" for group in groups for rule in group["rules"]), 60, targets)
    assert not [rule["name"] for rule in found if rule.get("lastError")]


def test_the_watchdog_calls_each_minute(site: Site) -> None:
    since = now()
    until(lambda: len(told("Watchdog", since=since)) >= 2, 200, messages)


def test_a_well_site_tells_nobody_of_anything(site: Site) -> None:
    # Nobody sets the clock of the machines' host.
    loud = query('ALERTS{alertstate="firing",severity!="info",alertname!="HostClockUnsynchronized"}')
    assert not [row["metric"] for row in loud]


def seconds_to_message() -> float:
    """How long it took from an Xid that is fatal to the webhook. The GPU is well again afterwards."""
    since = now()
    kernel_says("gpu1", "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    alert = until(lambda: told("GpuFatal", since=since, host="gpu1"), 120, messages)[0]
    assert alert["annotations"]["summary"].startswith("gpu1: ")
    assert alert["annotations"]["remedy"]
    ssh("gpu1", "sudo gpu-agent clear")
    until(lambda: told("GpuFatal", "resolved", since, "gpu1"), 400, messages)
    return float(alert["at"] - since)


def test_a_fatal_gpu_is_told_of_within_half_a_minute_and_is_over_when_it_is_cleared(site: Site) -> None:
    took = [seconds_to_message() for _turn in range(3)]
    print(f"from the Xid to the webhook: {[round(seconds, 1) for seconds in took]} s")
    assert min(took) <= 30


def test_a_silent_host_is_one_message_and_what_follows_from_it_none(site: Site) -> None:
    since = now()
    ssh("gpu2", "sudo systemctl stop prometheus-node-exporter")
    alert = until(lambda: told("HostSilent", since=since, host="gpu2"), 400, messages)[0]
    assert alert["annotations"]["summary"] == "gpu2: the host is silent"
    # What follows from it is not told.
    time.sleep(30)
    assert not [one for name in ("GpuAgentSilent", "TargetDown") for one in told(name, since=since, host="gpu2")]
    ssh("gpu2", "sudo systemctl start prometheus-node-exporter")
    until(lambda: told("HostSilent", "resolved", since, "gpu2"), 400, messages)


def test_a_host_that_leaves_the_inventory_leaves_prometheus(site: Site) -> None:
    started = services(SERVER)["prometheus.service"]
    site.watched = [SERVER, "gpu1"]
    assert site.run(limit=SERVER).rc == 0
    until(lambda: set(targets()) == {SERVER, "gpu1"}, 60, targets)
    assert services(SERVER)["prometheus.service"] == started
    site.watched = list(HOSTS)
    assert site.run(limit=SERVER).rc == 0
    until(lambda: targets() == dict.fromkeys(HOSTS, "up"), 60, targets)


def test_what_would_not_run_is_refused_before_anything_changes(site: Site) -> None:
    before = services(SERVER)
    play = site.run(prometheus_listen="0.0.0.0:9090")
    assert play.rc != 0
    assert "prometheus_listen" in play.stdout
    assert "loopback" in play.stdout
    assert services(SERVER) == before


def test_absent_leaves_the_data_and_nothing_else(site: Site) -> None:
    absent = {f"{role}_state": "absent" for role in ("prometheus", "alertmanager", "node_exporter")}
    assert site.run(**absent).rc == 0
    for host in HOSTS:
        assert not ssh(host, "pgrep -l prometheus || true").strip()
        assert "no" in ssh(host, "test -e /etc/prometheus/node-exporter-web.yml || echo no")
    assert "chunks_head" in ssh(SERVER, "sudo ls /var/lib/prometheus/metrics2")
    again = site.run(**absent)
    assert not any(again.changed(host) for host in HOSTS), again.changed_tasks
