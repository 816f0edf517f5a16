# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops reconcile`` with three masters that elect their leader in a real ZooKeeper, and log in to each other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl_credential

from tests.local_zookeeper import ROOT, NotHere, classpath
from tests.unit.reconcile import places
from tests.unit.reconcile.site import SomeNode
from tests.unit.simulators.mesos_cluster import until
from tests.unit.simulators.mesos_daemons import PRINCIPALS, Site

pytestmark = pytest.mark.slow

WAY = ["deactivate", "drain", "order", "settle", "close"]


class Masters:
    """The daemons, in the way that SomeNode talks to a cluster."""

    def __init__(self, site: Site) -> None:
        self.site, self.base = site, site.base

    def agent(self, name: str, *flags: str, gpus: str = "", port: int = 0) -> Any:
        told = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        settings = {key.upper(): value for key, value in told.items()}
        return self.site.agent(name, len(gpus.split(",")), PORT=str(port), **settings)

    def slave(self, name: str) -> Any:
        rows = until(self.site.leader).ask("/slaves")[1]["slaves"]
        return next((row for row in rows if row["hostname"] == name), None)


class Reconciled:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.daemons = Site(base)
        until(self.daemons.leader)
        address, path = self.daemons.zookeeper.address, "/baremetal-gpu"
        owner = places.as_reconciler(address)
        self.node = SomeNode(Masters(self.daemons), "n1", 3, address, path, places.make(owner, path, "n1"))
        owner.stop()
        owner.close()
        logins = places.private(base / "logins", {"n1": make_digest_acl_credential(*places.login_of("n1"))})
        login = {"zookeeper_user": places.LOGIN[0], "zookeeper_password": places.LOGIN[1]}
        until(lambda: self.node.state == "active")
        secret = self.daemons.file(
            "reconciler.json",
            json.dumps({**login, "mesos_principal": "operator", "mesos_secret": PRINCIPALS["operator"]}),
        )
        self.journal = base / "journal.jsonl"
        self.config = base / "config.json"
        self.config.write_text(
            json.dumps(
                {
                    "zookeeper": self.daemons.zookeeper.address,
                    "masters": [f"http://127.0.0.1:{one.port}" for one in self.daemons.masters],
                    "credentials": secret,
                    "logins": str(logins),
                    "journal": str(self.journal),
                    "poll_s": 0.5,
                    "session_s": 4,
                    "policy": {"mode": "act", "settle_s": 0, "retry_s": 1},
                }
            )
        )
        with (base / "reconciler.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpuops", "reconcile", "--config", str(self.config)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        until(lambda: self.rows("lead"))

    def rows(self, what: str) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        return [row for row in map(json.loads, self.journal.read_text().splitlines()) if row["what"] == what]

    def done(self) -> list[str]:
        return [row["kind"] for row in self.rows("end") if row["result"] == "done"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        self.node.stop()
        self.daemons.stop()


@pytest.fixture
def reconciled(tmp_path: Path) -> Iterator[Reconciled]:
    try:
        classpath()
    except NotHere as why:
        pytest.skip(str(why))
    one = Reconciled(tmp_path)
    yield one
    one.stop()


def test_the_leading_master_may_be_killed_before_and_during_the_way(reconciled):
    reconciled.node.fault(1)
    until(lambda: "deactivate" in reconciled.done())
    until(reconciled.daemons.leader).stop()
    until(lambda: reconciled.done()[-1] == "close", 180)
    assert list(dict.fromkeys(reconciled.done())) == WAY
    assert reconciled.node.state == "active"
    assert reconciled.node.cluster.slave("n1")["resources"]["gpus"] == 2.0


def test_a_fault_while_no_master_leads_is_fenced_by_the_next_one(reconciled):
    until(reconciled.daemons.leader).stop()
    at = time.time()
    reconciled.node.fault(0)
    until(lambda: "deactivate" in reconciled.done(), 120)
    fenced = next(row for row in reconciled.rows("end") if row["kind"] == "deactivate" and row["result"] == "done")
    assert fenced["time"] > at
    until(lambda: reconciled.done()[-1] == "close", 180)
    assert reconciled.node.listed == reconciled.node.uuids[1:]
