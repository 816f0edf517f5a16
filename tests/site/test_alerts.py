# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts on the lab's machines: each fault is made, its alert comes to the webhook, and is over after the repair.

Faults that do not hide each other are made at the same time, so that their waits are one. The test prints a table: how
long it took from the fault to the message, and from the repair to its end. It runs after test_monitoring.py or by
itself, on the finished machines of `make lab`.

Not here, because machines of the lab share clock, memory and kernel with their host: HostClockWrong,
HostClockUnsynchronized, HostMemoryLow. HostDiskFillsUp, CertificateExpiresSoon, GpuAllocatedUnused and others that wait
for an hour or more are proven by `promtool test rules` alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from tests.site.plays import kernel_says, ssh, until
from tests.site.test_monitoring import NODES, SERVER, TEXTFILES, Site, messages, now, query, told
from tests.site.test_monitoring import site as monitored

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# Nobody sets the clock of the machines' host; the watchdog always fires.
ALWAYS = {"HostClockUnsynchronized", "Watchdog"}
SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
AGENT, EXPORTER = "baremetal-gpu-agent", "prometheus-node-exporter"
CERTIFICATES = "/etc/ssl/watched"
# More than the longest `for` of a rule here, with the time that its reading needs.
PATIENCE_S = 1200.0

# test_monitoring.py makes it.
site = monitored


@dataclass(frozen=True)
class Fault:
    """A fault whose alert is to come for a host, and its repair, as commands of the host."""

    alert: str
    host: str
    make: str
    repair: str


def put(path: str, content: str) -> str:
    return f"sudo tee {path} >/dev/null <<'END'\n{content}\nEND"


def certificate(days: int) -> str:
    """A command that makes a certificate which ends in so many days."""
    return (
        f"sudo openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days {days} -subj /CN=watched "
        f"-keyout {CERTIFICATES}/watched.key -out {CERTIFICATES}/watched.pem 2>/dev/null"
    )


MONITORING = (
    Fault(
        "CertificateExpiresNow",
        SERVER,
        f"{certificate(1)}; sudo systemctl start baremetal-gpu-host-metrics",
        f"{certificate(900)}; sudo systemctl start baremetal-gpu-host-metrics",
    ),
    Fault(
        "CertificateUnreadable",
        SERVER,
        put(f"{CERTIFICATES}/broken.pem", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----"),
        f"sudo rm {CERTIFICATES}/broken.pem",
    ),
    Fault("TextfileUnreadable", NODES[0], put(f"{TEXTFILES}/own.prom", "no metric {"), f"sudo rm {TEXTFILES}/own.prom"),
    Fault("GpuAgentSilent", NODES[1], f"sudo systemctl stop {AGENT}", f"sudo systemctl start {AGENT}"),
    Fault(
        "RuleEvaluationFailing",
        SERVER,
        put(
            "/etc/prometheus/rules.d/own.yml",
            "groups:\n- name: own\n  interval: 10s\n  rules:\n  - record: own:many\n    expr: node_cpu_seconds_total * "
            "on (host) node_cpu_seconds_total",
        )
        + "\nsudo systemctl reload prometheus",
        "sudo rm /etc/prometheus/rules.d/own.yml; sudo systemctl reload prometheus",
    ),
)
SILENCE = (
    *(
        Fault("HostSilent", node, f"sudo systemctl stop {EXPORTER}", f"sudo systemctl start {EXPORTER}")
        for node in NODES
    ),
    Fault("ManyHostsSilent", "", "true", "true"),
)
STALE = (
    Fault("GpuAgentStale", NODES[1], f"sudo systemctl kill -s STOP {AGENT}", f"sudo systemctl kill -s CONT {AGENT}"),
    Fault(
        "HostMetricsOld",
        SERVER,
        "sudo systemctl stop baremetal-gpu-host-metrics.timer",
        "sudo systemctl start baremetal-gpu-host-metrics.timer",
    ),
    Fault(
        "PrometheusReloadFailed",
        SERVER,
        "sudo cp -p /etc/prometheus/prometheus.yml /root/prometheus.yml; "
        "echo nonsense | sudo tee -a /etc/prometheus/prometheus.yml >/dev/null; sudo systemctl reload prometheus; true",
        "sudo mv /root/prometheus.yml /etc/prometheus/prometheus.yml; sudo systemctl reload prometheus",
    ),
)


@pytest.fixture(scope="module")
def watched(site: Site) -> Iterator[Site]:
    for machine in (SERVER, *NODES):
        ssh(machine, f"sudo mkdir -p {CERTIFICATES}")
    play = site.run(node_exporter_certificates=[f"{CERTIFICATES}/*.pem"])
    assert play.rc == 0, play.tail()
    for node in NODES:
        ssh(node, f"sudo systemctl restart {AGENT}; sudo gpu-agent clear", check=False)
    until(lambda: not loud(), PATIENCE_S, loud)
    yield site
    ssh(SERVER, f"sudo rm -rf {CERTIFICATES}")


def loud() -> set[tuple[str, str]]:
    """The alerts that fire now, with their hosts."""
    found = [row["metric"] for row in query('ALERTS{alertstate="firing"}')]
    return {(one["alertname"], one.get("host", "")) for one in found if one["alertname"] not in ALWAYS}


def scenario(machine: str, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Change the simulated GPUs of a machine; without a change they are as they were at first."""
    kept = f"{SCENARIO}.well"
    ssh(machine, f"test -e {kept} || sudo cp {SCENARIO} {kept}")
    content = json.loads(ssh(machine, f"cat {kept}"))
    changed = deepcopy(content)
    if change:
        change(changed)
    ssh(machine, f"{put(f'{SCENARIO}.new', json.dumps(changed))}\nsudo mv {SCENARIO}.new {SCENARIO}")
    # What is looked at once an hour needs two looks to count, and three to be over.
    ssh(machine, "for look in 1 2 3; do sudo gpu-agent look; sleep 1; done", check=False)


def wait_for(faults: Sequence[tuple[str, str]], since: float, status: str) -> dict[tuple[str, str], float]:
    """The seconds until each alert, by name and host, had come. One that is only on a dashboard is told by Prometheus;
    when it began to fire, or now where it has ended."""
    took: dict[tuple[str, str], float] = {}

    def missing() -> set[tuple[str, str]]:
        firing = loud()
        for name, host in set(faults) - set(took):
            if rules.BY_NAME[name].severity == "info":
                if ((name, host) in firing) == (status == "firing"):
                    took[name, host] = now() - since
            elif found := told(name, status, since, host):
                took[name, host] = min(one["at"] for one in found) - since
        return set(faults) - set(took)

    until(lambda: not missing(), PATIENCE_S, lambda: (missing(), loud()))
    return took


def everything(since: float) -> set[str]:
    """The names of the alerts that people were told of."""
    found = {
        one["labels"]["alertname"] for message in messages() if message["at"] >= since for one in message["alerts"]
    }
    return found - ALWAYS


def prove(
    faults: Sequence[tuple[str, str]],
    make: Callable[[], object],
    repair: Callable[[], object],
    show: Callable[[str], object],
) -> None:
    """Make faults, wait for their alerts and for no other, repair, wait for their end, and show how long it took."""
    since = now()
    make()
    came = wait_for(faults, since, "firing")
    others = everything(since) - {name for name, _host in faults}
    mended = now()
    repair()
    over = wait_for(faults, mended, "resolved")
    for (name, host), seconds in sorted(came.items()):
        show(f"| {name} | {host or 'fleet'} | {seconds:.0f} s | {over[name, host]:.0f} s |")
    assert not others
    until(lambda: not loud(), PATIENCE_S, loud)


@pytest.fixture(scope="module")
def show() -> Iterator[Callable[[str], None]]:
    lines = ["| alert | host | fault to message | repair to end |", "| --- | --- | --- | --- |"]
    yield lines.append
    print("\n" + "\n".join(lines))


def run(faults: Sequence[Fault], show: Callable[[str], object]) -> None:
    pairs = [(fault.alert, fault.host) for fault in faults]

    def on_hosts(command: Callable[[Fault], str]) -> None:
        for fault in faults:
            if fault.host:
                ssh(fault.host, command(fault))

    prove(pairs, lambda: on_hosts(lambda fault: fault.make), lambda: on_hosts(lambda fault: fault.repair), show)


def sick(content: dict[str, Any]) -> None:
    """Faults of one GPU that degrade it, each of another kind."""
    gpu = content["devices"][1]
    # Hardware thermal slowdown, and power brake.
    gpu["throttle"]["reasons"] = 8 | 64 | 128
    gpu["temperature"]["gpu"] = 91
    gpu["utilization"]["gpu"] = 97
    gpu["pci"]["width"] = 8
    gpu["remapped_rows"].update(uncorrectable=1, pending=1)
    gpu["inforom"]["valid"] = False
    for link in (4, 5):
        gpu["nvlinks"]["links"][link]["up"] = 0


def test_each_way_in_which_a_gpu_is_degraded_has_an_alert_of_its_own(
    watched: Site, show: Callable[[str], object]
) -> None:
    names = ("GpuHot", "GpuPowerBrake", "GpuPcieSlow", "GpuMemoryRepairPending", "GpuDegraded", "GpuNvlinkFault")
    prove([(name, NODES[0]) for name in names], lambda: scenario(NODES[0], sick), lambda: scenario(NODES[0]), show)


def test_certificates_files_of_metrics_and_the_monitoring_itself(watched: Site, show: Callable[[str], object]) -> None:
    run(MONITORING, show)


def test_fatal_gpus_of_more_than_a_tenth_of_the_fleet_page(watched: Site, show: Callable[[str], object]) -> None:
    since = now()

    def make() -> None:
        for address in ("0000:3b:00", "0000:af:00"):
            kernel_says(NODES[0], f"NVRM: Xid (PCI:{address}): 79, pid=1, name=a, GPU has fallen off the bus.")
            time.sleep(1)

    prove([("GpuFatal", NODES[0]), ("FleetGpusFatal", "")], make, lambda: ssh(NODES[0], "sudo gpu-agent clear"), show)
    # Two GPUs are one message, or the second comes with the next scrape.
    assert len({one["at"] for one in told("GpuFatal", since=since, host=NODES[0])}) <= 2


def test_silent_hosts(watched: Site, show: Callable[[str], object]) -> None:
    run(SILENCE, show)


def test_what_nobody_writes_any_more_is_told(watched: Site, show: Callable[[str], object]) -> None:
    run(STALE, show)
