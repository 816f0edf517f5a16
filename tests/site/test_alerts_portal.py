# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts of the portal, on the cluster of test_portal.py, whose head has Prometheus, too.

Each fault is made, its alert comes to the webhook, and is over after the repair. The tests run in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import alert_faults
from tests.site.alert_faults import VARIABLES, Fault, Round, Watch, drop_in, prove, without_drop_in
from tests.site.plays import run_playbook, ssh, until
from tests.site.portal_lab import HUB, PROXY, Portal
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WATCH = Watch(CONTROLLER)
show = alert_faults.show
MEASURE = "/usr/libexec/baremetal-gpu/portal-measure"
TOLD = "/var/lib/baremetal-gpu-portal/told.json"
THERE: list[Portal] = []


def fail_to_start() -> None:
    """Four sessions that end as soon as they start: the environment's program is not one."""
    program = "/opt/baremetal-gpu/notebook/bin/jupyterhub-singleuser"
    ssh(NODE, f"sudo mv {program} {program}.well && printf '#!/bin/sh\\nexit 3\\n' | sudo tee {program} >/dev/null")
    ssh(NODE, f"sudo chmod 0755 {program}")
    browser = THERE[0].log_in("bob")
    for _number in range(4):
        # The form waits for the end of the one before.
        browser.start(gpus="0", environment="notebook")
        until(lambda: not THERE[0].server(browser), 120, lambda: THERE[0].server(browser))


def start_again() -> None:
    """A session that starts ends the alert."""
    program = "/opt/baremetal-gpu/notebook/bin/jupyterhub-singleuser"
    ssh(NODE, f"sudo mv {program}.well {program}")
    browser = THERE[0].log_in("bob")
    browser.start(gpus="0", environment="notebook")
    THERE[0].ready(browser)
    THERE[0].stop(browser)


def start_unmeasured() -> None:
    ssh(NODE, f"sudo chmod 0644 {MEASURE}")
    browser = THERE[0].log_in("alice")
    browser.start(gpus="0", environment="notebook")
    THERE[0].ready(browser)


def end_unmeasured() -> None:
    ssh(NODE, f"sudo chmod 0755 {MEASURE}")
    THERE[0].stop(THERE[0].log_in("alice"))


DOWN = Round(
    (
        Fault(
            "PortalHubDown",
            CONTROLLER,
            f"sudo systemctl stop {HUB}",
            f"sudo systemctl start {HUB}",
        ),
        Fault(
            "PortalProxyDown",
            CONTROLLER,
            f"sudo systemctl stop {PROXY}",
            f"sudo systemctl start {PROXY}",
        ),
    )
)
STARTS = Round((Fault("PortalStartsFail", CONTROLLER, fail_to_start, start_again),), patience_s=2400.0)
UNMEASURED = Round(
    (Fault("PortalSessionsUnmeasured", CONTROLLER, start_unmeasured, end_unmeasured),), patience_s=2400.0
)
# A file on which something is mounted cannot be replaced.
SILENT = Round(
    (
        Fault(
            "PortalMetricsOld",
            CONTROLLER,
            f"{drop_in(HUB.removesuffix('.service'), 'ReadOnlyPaths=/var/lib/baremetal-gpu-portal/told.json')}\n"
            f"sudo systemctl restart {HUB}",
            f"{without_drop_in(HUB.removesuffix('.service'))}\nsudo systemctl restart {HUB}",
        ),
    ),
    patience_s=2400.0,
)
ROUNDS = (DOWN, STARTS, UNMEASURED, SILENT)


@pytest.fixture(scope="module")
def portal(bare_portal: Portal) -> Iterator[Portal]:
    with bare_portal.there() as there:
        yield there


@pytest.fixture(scope="module")
def watched(portal: Portal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    WATCH.prepare(MACHINES)
    base: Path = tmp_path_factory.mktemp("alerts-portal")
    groups = {
        "node_exporters": {"hosts": {name: {} for name in MACHINES}},
        "prometheus_servers": {"hosts": {CONTROLLER: {}}},
    }
    watches = f"-i {base / 'monitoring.yml'}"
    (base / "monitoring.yml").write_text(json.dumps(groups))
    play = run_playbook(
        "monitoring.yml",
        limit=",".join(MACHINES),
        options=f"{portal.options} {watches}",
        extra_vars={**VARIABLES, "node_exporter_tls_path": str(base / "tls")},
    )
    assert play.rc == 0, play.tail()
    # The controller of Slurm tells Prometheus of the cluster, too.
    told = portal.cluster.run(watches)
    assert told.rc == 0, told.tail()
    THERE.append(portal)
    WATCH.is_quiet()
    yield
    WATCH.end()


def test_hub_and_proxy_are_down(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, DOWN, show)


def test_sessions_fail_to_start(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, STARTS, show)


def test_a_session_is_not_measured(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, UNMEASURED, show)


def test_the_hub_tells_nothing(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, SILENT, show)


def test_a_session_with_a_gpu_is_measured_in_all_parts(watched: None) -> None:
    """Its GPU, its cores, its connections, and its kernels: none of them is unknown."""
    browser = THERE[0].log_in("alice")
    browser.start(gpus="1", environment="notebook")
    THERE[0].ready(browser)
    since = WATCH.now()

    def told() -> dict[str, Any]:
        return dict(json.loads(ssh(CONTROLLER, f"sudo cat {TOLD}")))

    # What is not known is told after five minutes.
    until(lambda: told()["at"] > since + 360, 600, told)
    assert told()["sessions"]["run"] == 1
    assert told()["unmeasured"] == {"silent": 0, "unknown": 0}
    THERE[0].stop(browser)
