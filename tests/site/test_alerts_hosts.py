# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts on the machines of `make lab-node` that take longer, or need the logs of the site too.

Each fault is made, its alert comes to the webhook, and is over after the repair; the table at the end says how long
that took. Some alerts are over an hour after their cause at the earliest. The tests run in order.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.site import alert_faults
from tests.site.alert_faults import HOUR_S, Fault, Round, drop_in, prove, put, scenario, without_drop_in
from tests.site.plays import Play, ssh, until
from tests.site.test_alerts import AGENT, CERTIFICATES, EXPORTER, certificate
from tests.site.test_logs import SPOOL_METRICS, WRITE
from tests.site.test_monitoring import HOSTS, NODES, SERVER, TEXTFILES, WATCH
from tests.site.test_monitoring import Site as Monitored
from tests.site.test_monitoring import site as monitored

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

RECEIVER, ALERTMANAGER, UPLOAD = "receiver", "prometheus-alertmanager", "systemd-journal-upload"
GPU_OF_FAULTS = 1
NO_PERMISSION, UNKNOWN_ERROR, LOW_MEMORY = 4, 999, 20

# test_monitoring.py makes it, and alert_faults.py the table.
site, show = monitored, alert_faults.show


def fails(machine: str, call: str, error: int, device: int | None = None) -> Callable[[], None]:
    """Calls of NVML on a machine fail."""
    fault: dict[str, Any] = {"call": call, "error": error, **({} if device is None else {"device": device})}

    def change(content: dict[str, Any]) -> None:
        content["faults"] = [fault]

    return lambda: scenario(machine, change)


def well(machine: str) -> Callable[[], None]:
    def repair() -> None:
        scenario(machine)
        # It may be well by itself.
        ssh(machine, "sudo gpu-agent clear", check=False)

    return repair


def cannot_be_asked_and_is_set_wrong(content: dict[str, Any]) -> None:
    """One GPU answers nobody who may not ask, and the other one has no persistence mode."""
    content["faults"] = [
        {"call": "nvmlDeviceGetHandleBy*", "device": GPU_OF_FAULTS, "error": NO_PERMISSION},
    ]
    content["devices"][0]["persistence"] = 0


def taken_out() -> None:
    """A GPU is taken out for good, as its operator tells the agent."""

    def change(content: dict[str, Any]) -> None:
        content["devices"][GPU_OF_FAULTS]["state"] = "gone"

    scenario(NODES[0], change)
    ssh(NODES[0], "sudo gpu-agent clear")


def flood() -> None:
    """While the log host takes nothing, a host writes more than its spool holds."""
    ssh(SERVER, "sudo systemctl stop nginx")
    for part in range(4):
        ssh(NODES[0], f"sudo python3 -c {shlex.quote(WRITE)} 1000 flood{part} 30000; sudo journalctl --sync")
        looked = ssh(NODES[0], f"stat -c %Y.%i {SPOOL_METRICS}")
        until(lambda seen=looked: ssh(NODES[0], f"stat -c %Y.%i {SPOOL_METRICS}") != seen, 180, lambda: "no look")
    ssh(SERVER, "sudo systemctl start nginx")


# Of what is written last it damages some. What was written before stays.
DAMAGE = """
import glob, os
last = max(glob.glob("/var/lib/prometheus/metrics2/wal/0*"))
with open(last, "r+b") as file:
    file.seek(os.path.getsize(last) * 3 // 4)
    file.write(os.urandom(4096))
"""
REGISTRY_METRICS = f"{TEXTFILES}/baremetal_gpu_registry.prom"
FULL_REGISTRY = """\
baremetal_gpu_registry_free_bytes 1e9
baremetal_gpu_registry_min_free_bytes 2e10
baremetal_gpu_registry_collected_timestamp_seconds 0
"""
VERDICTS = Round(
    (
        Fault(
            "GpuHealthUnknown",
            NODES[0],
            lambda: scenario(NODES[0], cannot_be_asked_and_is_set_wrong),
            well(NODES[0]),
        ),
        Fault("GpuSettingWrong", NODES[0]),
        Fault("HostGpusFatal", NODES[1], fails(NODES[1], "nvmlInit*", UNKNOWN_ERROR), well(NODES[1])),
    )
)
GONE = Round(
    (
        Fault("GpusFewerThanBefore", NODES[0], taken_out, well(NODES[0])),
        # This says nothing of the host, which is why nothing else is told.
        Fault("GpuProbeFailing", NODES[1], fails(NODES[1], "nvmlInit*", LOW_MEMORY), well(NODES[1])),
    ),
    also=frozenset({"GpuFatal"}),
)
MEMORY = Round(
    (
        # What the program of a registry tells that is full, and that has never freed space since 1970.
        Fault("RegistryFull", NODES[0], put(REGISTRY_METRICS, FULL_REGISTRY), f"sudo rm {REGISTRY_METRICS}"),
        Fault("RegistrySpaceNotFreed", NODES[0]),
        # Machines have the memory of their host. So node_exporter alone reads that almost none is left.
        Fault(
            "HostMemoryLow",
            NODES[1],
            "sed 's/^MemAvailable:.*/MemAvailable: 1024 kB/' /proc/meminfo | sudo tee /etc/meminfo-low >/dev/null\n"
            f"{drop_in(EXPORTER, 'BindReadOnlyPaths=/etc/meminfo-low:/proc/meminfo')}\n"
            f"sudo systemctl restart {EXPORTER}",
            f"{without_drop_in(EXPORTER)}\nsudo systemctl restart {EXPORTER}",
        ),
    )
)
# As long as these last, nobody can be told.
NO_ALERTMANAGER = Round(
    (
        Fault(
            "AlertsNotSent",
            SERVER,
            f"sudo systemctl stop {ALERTMANAGER}",
            f"sudo systemctl start {ALERTMANAGER}",
            unheard=True,
        ),
        Fault("TargetDown", SERVER, unheard=True),
    )
)
NO_RECEIVER = Round(
    (
        Fault(
            "NotificationsFailing",
            SERVER,
            f"sudo systemctl kill -s STOP {RECEIVER}",
            f"sudo systemctl kill -s CONT {RECEIVER}",
            unheard=True,
        ),
    )
)
HOURS = Round(
    (
        Fault(
            "PrometheusStorageFaulty",
            SERVER,
            f"sudo systemctl stop prometheus; sudo python3 -c {shlex.quote(DAMAGE)}; sudo systemctl start prometheus",
            "systemctl is-active prometheus",
            passes=True,
        ),
        Fault("CertificateExpiresSoon", SERVER, certificate(10), certificate(900)),
        Fault("LogSenderSilent", NODES[1], f"sudo systemctl stop {UPLOAD}", f"sudo systemctl start {UPLOAD}"),
        # What was dropped is counted. Nothing is left to be repaired.
        Fault("LogEntriesDropped", NODES[0], flood, "systemctl is-active systemd-journald", passes=True),
    ),
    patience_s=2 * HOUR_S,
)
ROUNDS = (VERDICTS, GONE, MEMORY, NO_ALERTMANAGER, NO_RECEIVER, HOURS)


def with_logs(site: Monitored) -> Play:
    """Run monitoring.yml, with the logs of all hosts on the server."""
    groups = {"log_hosts": {"hosts": {SERVER: {}}}, "log_senders": {"hosts": {host: {} for host in HOSTS}}}
    inventory = site.base / "logs.yml"
    inventory.write_text(json.dumps(groups))
    return site.run(
        f"-i {inventory}",
        node_exporter_certificates=[f"{CERTIFICATES}/*.pem"],
        log_host_tls_path=str(site.base / "log-tls"),
        log_host_space="1G",
        log_host_keep_free="100M",
        log_sender_spool="64M",
    )


@pytest.fixture(scope="module")
def watched(site: Monitored) -> Iterator[Monitored]:
    for host in HOSTS:
        ssh(host, f"sudo mkdir -p {CERTIFICATES}")
    play = with_logs(site)
    assert play.rc == 0, play.tail()
    for node in NODES:
        ssh(node, f"sudo systemctl restart {AGENT}; sudo gpu-agent clear", check=False)
    ssh(SERVER, certificate(900))
    WATCH.is_quiet()
    yield site
    ssh(SERVER, f"sudo rm -rf {CERTIFICATES}")
    play = site.run(f"-i {site.base / 'logs.yml'}", log_host_state="absent", log_sender_state="absent")
    assert play.rc == 0, play.tail()


def test_verdicts_that_are_unknown_wrong_or_fatal_for_a_host(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, VERDICTS, show)


def test_gpus_that_are_gone_or_cannot_be_looked_at(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, GONE, show)


def test_memory_of_a_host(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, MEMORY, show)


def test_no_alertmanager_takes_alerts(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, NO_ALERTMANAGER, show)


def test_nobody_takes_messages(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, NO_RECEIVER, show)


def test_what_lasts_for_hours(watched: Monitored, show: Callable[[str], object]) -> None:
    prove(WATCH, HOURS, show)
