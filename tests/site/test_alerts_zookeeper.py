# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts of ZooKeeper, on an ensemble of three machines of which the first watches all.

Each fault is made, its alert comes to the webhook, and is over after the repair. The tests run in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.roles.zookeeper_cluster import MACHINES
from tests.site import alert_faults
from tests.site.alert_faults import VARIABLES, Fault, Round, Watch, prove
from tests.site.plays import INVENTORY, lab, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SERVER, *OTHERS = MACHINES
WATCH = Watch(SERVER)
show = alert_faults.show


def more_than_half(action: str) -> Callable[[], None]:
    def on_them() -> None:
        for name in OTHERS:
            ssh(name, f"sudo systemctl {action} zookeeper")

    return on_them


MISSING = Round(
    (
        Fault(
            "ZookeeperServerMissing",
            "",
            "sudo systemctl stop zookeeper",
            "sudo systemctl start zookeeper",
            on=OTHERS[0],
        ),
    )
)
QUORUM = Round((Fault("ZookeeperQuorumLost", "", more_than_half("stop"), more_than_half("start")),))
ROUNDS = (MISSING, QUORUM)


def converge(base: Path) -> None:
    names = {name: {} for name in MACHINES}
    groups = {
        "zookeeper": {"hosts": names},
        "node_exporters": {"hosts": names},
        "prometheus_servers": {"hosts": {SERVER: {}}},
    }
    (base / "site.yml").write_text(json.dumps(groups))
    for playbook in ("scheduler.yml", "monitoring.yml"):
        play = run_playbook(
            playbook,
            limit=",".join(MACHINES),
            options=f"-i {INVENTORY} -i {base / 'site.yml'}",
            extra_vars={
                **VARIABLES,
                "zookeeper_ready_timeout": 90,
                "node_exporter_tls_path": str(base / "tls"),
            },
        )
        assert play.rc == 0, play.tail()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    lab("up", *(word for name in MACHINES for word in ("--machine", f"{name}:trixie:no-gpu")))
    WATCH.prepare(MACHINES)
    converge(tmp_path_factory.mktemp("alerts-zookeeper"))
    WATCH.is_quiet()
    yield
    lab("down", *(word for name in MACHINES for word in ("--machine", name)))


def test_a_server_of_three_does_not_serve(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, MISSING, show)


def test_two_servers_of_three_do_not_serve(watched: None, show: Callable[[str], object]) -> None:
    prove(WATCH, QUORUM, show)
