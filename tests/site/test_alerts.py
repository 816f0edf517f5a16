# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts on the lab's machines: each fault is made, its alert comes to the webhook, and is over after the repair.

Faults that do not hide each other are made at the same time, so that their waits are one. The test prints a table: how
long it took from the fault to the message, and from the repair to its end. It runs after test_monitoring.py or by
itself, on finished machines of `make lab-node`. test_alerts_hosts.py has the faults of these machines that take longer;
alert_faults.py says which alerts are proven by `promtool test rules` alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.site import alert_faults
from tests.site.alert_faults import Fault, Round, go_on, hang, of_one_cause, prove, put, scenario
from tests.site.plays import kernel_says, ssh
from tests.site.test_monitoring import NODES, SERVER, TEXTFILES, WATCH, Site
from tests.site.test_monitoring import site as monitored

pytestmark = [pytest.mark.lab, pytest.mark.slow]

AGENT, EXPORTER = "baremetal-gpu-agent", "prometheus-node-exporter"
CERTIFICATES = "/etc/ssl/watched"

# test_monitoring.py makes it, and alert_faults.py the table.
site, show = monitored, alert_faults.show


def certificate(days: int) -> str:
    """A command that makes a certificate which ends in so many days."""
    return (
        f"sudo openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days {days} -subj /CN=watched "
        f"-keyout {CERTIFICATES}/watched.key -out {CERTIFICATES}/watched.pem 2>/dev/null"
    )


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


def two_gpus_fall_off_the_bus() -> None:
    for address in ("0000:3b:00", "0000:af:00"):
        kernel_says(NODES[0], f"NVRM: Xid (PCI:{address}): 79, pid=1, name=a, GPU has fallen off the bus.")
        time.sleep(1)


DEGRADED = Round(
    of_one_cause(
        ("GpuHot", "GpuPowerBrake", "GpuPcieSlow", "GpuMemoryRepairPending", "GpuDegraded", "GpuNvlinkFault"),
        NODES[0],
        lambda: scenario(NODES[0], sick),
        lambda: scenario(NODES[0]),
    )
)
FATAL = Round(
    (Fault("GpuFatal", NODES[0], two_gpus_fall_off_the_bus, "sudo gpu-agent clear"), Fault("FleetGpusFatal")),
)
MONITORING = Round(
    (
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
        Fault(
            "TextfileUnreadable", NODES[0], put(f"{TEXTFILES}/own.prom", "no metric {"), f"sudo rm {TEXTFILES}/own.prom"
        ),
        Fault("GpuAgentSilent", NODES[1], f"sudo systemctl stop {AGENT}", f"sudo systemctl start {AGENT}"),
        Fault(
            "RuleEvaluationFailing",
            SERVER,
            put(
                "/etc/prometheus/rules.d/own.yml",
                "groups:\n- name: own\n  interval: 10s\n  rules:\n  - record: own:many\n    expr: "
                "node_cpu_seconds_total * on (host) node_cpu_seconds_total",
            )
            + "\nsudo systemctl reload prometheus",
            "sudo rm /etc/prometheus/rules.d/own.yml; sudo systemctl reload prometheus",
        ),
    )
)
SILENCE = Round(
    (
        *(
            Fault("HostSilent", node, f"sudo systemctl stop {EXPORTER}", f"sudo systemctl start {EXPORTER}")
            for node in NODES
        ),
        Fault("ManyHostsSilent"),
    )
)
STALE = Round(
    (
        Fault("GpuAgentStale", NODES[1], hang(AGENT, f"test -e {TEXTFILES}/baremetal_gpu.prom"), go_on(AGENT)),
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
            "echo nonsense | sudo tee -a /etc/prometheus/prometheus.yml >/dev/null; "
            "sudo systemctl reload prometheus; true",
            "sudo mv /root/prometheus.yml /etc/prometheus/prometheus.yml; sudo systemctl reload prometheus",
        ),
    )
)
ROUNDS = (DEGRADED, MONITORING, FATAL, SILENCE, STALE)


@pytest.fixture(scope="module")
def watched(site: Site) -> Iterator[Site]:
    for machine in (SERVER, *NODES):
        ssh(machine, f"sudo mkdir -p {CERTIFICATES}")
    play = site.run(node_exporter_certificates=[f"{CERTIFICATES}/*.pem"])
    assert play.rc == 0, play.tail()
    for node in NODES:
        ssh(node, f"sudo systemctl restart {AGENT}; sudo gpu-agent clear", check=False)
    WATCH.is_quiet()
    yield site
    ssh(SERVER, f"sudo rm -rf {CERTIFICATES}")


def test_each_way_in_which_a_gpu_is_degraded_has_an_alert_of_its_own(
    watched: Site, show: Callable[[str], object]
) -> None:
    prove(WATCH, DEGRADED, show)


def test_certificates_files_of_metrics_and_the_monitoring_itself(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, MONITORING, show)


def test_fatal_gpus_of_more_than_a_tenth_of_the_fleet_page(watched: Site, show: Callable[[str], object]) -> None:
    since = WATCH.now()
    prove(WATCH, FATAL, show)
    # Two GPUs are one message, or the second comes with the next scrape.
    assert len({one["at"] for one in WATCH.told("GpuFatal", since=since, host=NODES[0])}) <= 2


def test_silent_hosts(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, SILENCE, show)


def test_what_nobody_writes_any_more_is_told(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, STALE, show)
