# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts of Slurm and the reconciler: two nodes, and one machine that is everything else and watches them.

The machines are those of test_slurm_faults.py. Each fault is made, its alert comes to the webhook, and is over after
the repair; the table at the end says how long that took. The tests run in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import alert_faults
from tests.site.alert_faults import HOUR_S, VARIABLES, Fault, Round, Watch, go_on, hang, prove, scenario
from tests.site.plays import kernel_says, lab, run_playbook, ssh
from tests.site.slurm_faults import ADDRESSES
from tests.site.test_slurm_fence import CONTROLLER, RECONCILER
from tests.site.test_slurm_fence import Site as Fenced

# An alert waits for two hours.
pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

NODE, OTHER = NODES = ("gpu1", "gpu3")
HOSTS = (CONTROLLER, *NODES)
METRICS = "baremetal-gpu-slurm-metrics"
WATCH = Watch(CONTROLLER)
show = alert_faults.show


class Site(Fenced):
    """What fences GPUs, and what watches it."""

    def __init__(self, base: Path) -> None:
        # Two nodes that fail at the same time are one too many.
        super().__init__(base, NODES, {"breaker_count": 1, "breaker_share": 0.01})
        inventory = base / "site.yml"
        groups = json.loads(inventory.read_text()) | {
            "prometheus_servers": {"hosts": {CONTROLLER: {}}},
            "node_exporters": {"hosts": {host: {} for host in HOSTS}},
        }
        inventory.write_text(json.dumps(groups))
        self._options += ",monitoring"
        self._variables |= {
            **VARIABLES,
            "node_exporter_tls_path": str(base / "tls"),
            # Slurm's own is 300.
            "slurm_common_options": {"SlurmdTimeout": 60},
        }

    def unwatch(self) -> None:
        states = {f"{role}_state": "absent" for role in ("prometheus", "alertmanager", "node_exporter")}
        options = self._options.partition(" --tags")[0]
        run_playbook("monitoring.yml", limit=",".join(HOSTS), options=options, extra_vars={**self._variables, **states})


def row_of_memory_cannot_be_replaced(content: dict[str, Any]) -> None:
    content["devices"][1]["remapped_rows"].update(uncorrectable=9, failure=1)


def clear(*nodes: str) -> None:
    for node in nodes:
        ssh(CONTROLLER, f"sudo gpuops-reconciler clear {node}")


def replaced() -> None:
    scenario(NODE)
    clear(NODE)


def a_gpu_of_each_node_falls_off_the_bus() -> None:
    for node in NODES:
        kernel_says(node, f"NVRM: Xid (PCI:{ADDRESSES[0]}): 79, pid=4242, name=python3, GPU has fallen off the bus.")


def service(alert: str, unit: str, host: str = "", on: str = "") -> Fault:
    """A service that is stopped, and started again."""
    return Fault(alert, host, f"sudo systemctl stop {unit}", f"sudo systemctl start {unit}", on)


DAEMONS = Round(
    (
        service("SlurmDatabaseDown", "slurmdbd", on=CONTROLLER),
        service("SlurmNodeDown", "slurmd", NODE),
        service("ReconcilerNoLeader", RECONCILER, on=CONTROLLER),
    )
)
CONTROL = Round((service("SlurmControllerDown", "slurmctld", on=CONTROLLER), Fault("ReconcilerProblems")))
# The file ends with the daemon that wrote it.
WRITTEN = "test -e /var/lib/prometheus/node-exporter/baremetal_gpu_slurm.prom"
STALE = Round((Fault("SlurmMetricsOld", CONTROLLER, hang(METRICS, WRITTEN), go_on(METRICS)),))
QUARANTINE = Round(
    (Fault("ReconcilerQuarantine", NODE, lambda: scenario(NODE, row_of_memory_cannot_be_replaced), replaced),),
    also=frozenset({"GpuFatal"}),
)
BREAKER = Round(
    (Fault("ReconcilerBreakerHolds", "", a_gpu_of_each_node_falls_off_the_bus, lambda: clear(*NODES)),),
    also=frozenset({"GpuFatal", "FleetGpusFatal"}),
)
HOURS = Round(
    (
        Fault(
            "GpuAllocatedUnused",
            NODE,
            f"sbatch --quiet --nodelist={NODE} --gres=gpu:1 --mem=20 --time=300 --job-name=unused --output=/dev/null "
            "--wrap 'sleep 5h'",
            "scancel --name=unused",
            on=CONTROLLER,
        ),
    ),
    patience_s=3 * HOUR_S,
)
ROUNDS = (DAEMONS, CONTROL, STALE, QUARANTINE, BREAKER, HOURS)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", "--machine", f"{OTHER}:trixie:a100-sxm4-40gb-x2")
    WATCH.prepare(HOSTS)
    site = Site(tmp_path_factory.mktemp("alerts-slurm"))
    site.converge()
    clear(*NODES)
    WATCH.is_quiet()
    yield site
    WATCH.end()
    site.unwatch()
    # What comes after has faults of its own.
    ssh(CONTROLLER, f"sudo systemctl disable --now {RECONCILER} zookeeper.service", check=False)
    lab("down", "--machine", OTHER)


def test_daemons_that_do_not_run(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, DAEMONS, show)


def test_no_controller_answers(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, CONTROL, show)


def test_metrics_that_nobody_writes_any_more(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, STALE, show)


def test_a_gpu_that_no_repair_helps(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, QUARANTINE, show)


def test_more_nodes_fail_than_the_breaker_lets_be_taken_out(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, BREAKER, show)


def test_a_job_that_does_not_use_its_gpu(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, HOURS, show)
