# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's file for node_exporter, written by the service itself beside a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

from tests.unit.plugins.exposition import Family, parse
from tests.unit.reconcile.site import Site
from tests.unit.simulators.mesos_cluster import until

Make = Callable[..., Site]
WAY = ["deactivate", "drain", "order", "settle", "close"]
LEADER = "gpuops_reconciler_leader"
FENCE = "gpuops_reconciler_fence_timestamp_seconds"


def started(site: Site, name: str, *words: str) -> subprocess.Popen[str]:
    """A reconciler of its own host, with its file there."""
    site.config.write_text(json.dumps({**site.settings, "metrics": f"{site.base}/{name}/reconciler.prom"}))
    return site.reconciler(*words)


def read(site: Site, name: str) -> dict[str, Family]:
    path = site.base / name / "reconciler.prom"
    return parse(path.read_text()) if path.exists() else {}


def leads(site: Site, name: str) -> float | None:
    found = read(site, name)
    return found[LEADER].series[()] if found else None


def test_the_leader_tells_of_the_fleet_the_other_that_it_waits_and_the_file_ends_with_the_service(site: Make) -> None:
    one = site()
    node = one.node("n1")
    for name in ("head1", "head2"):
        (one.base / name).mkdir()
    first = started(one, "head1")
    until(lambda: leads(one, "head1") == 1.0)
    second = started(one, "head2")
    until(lambda: leads(one, "head2") == 0.0)
    assert set(read(one, "head2")) == {LEADER}

    node.fault(0)
    node.fault(1)
    ((labels, begun),) = until(lambda: FENCE in read(one, "head1") and read(one, "head1")[FENCE].series).items()
    assert dict(labels)["node"] == "n1"
    assert round(begun, 3) <= one.entries("begin", "n1")[0]["time"]

    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert list((one.base / "head1").iterdir()) == []
    until(lambda: leads(one, "head2") == 1.0)
    # The fence is as old as it was.
    assert list(until(lambda: read(one, "head2").get(FENCE)).series.values()) == [begun]
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert list((one.base / "head2").iterdir()) == []


def test_a_file_that_cannot_be_written_keeps_no_gpu_in_use(site: Make) -> None:
    one = site()
    node = one.node("n1")
    process = started(one, "missing")
    until(lambda: one.entries("lead"))
    node.fault(0)
    until(lambda: one.way("n1") == WAY)
    (told,) = [row for row in one.entries("problem") if "reconciler.prom cannot be written" in row["why"]]
    assert "No such file or directory" in told["why"]
    assert process.poll() is None
    # With the directory it goes on where it is.
    (one.base / "missing").mkdir()
    until(lambda: leads(one, "missing") == 1.0)


def test_while_zookeeper_is_away_nobody_says_that_it_leads(site: Make) -> None:
    one = site()
    one.node("n1")
    (one.base / "head1").mkdir()
    started(one, "head1")
    until(lambda: leads(one, "head1") == 1.0)
    one.zookeeper.stop()
    until(lambda: leads(one, "head1") == 0.0)
    assert set(read(one, "head1")) == {LEADER}
    one.zookeeper.start()
    until(lambda: leads(one, "head1") == 1.0)


def test_a_look_by_hand_leaves_the_file_of_the_service_alone(site: Make) -> None:
    one = site()
    one.node("n1")
    (one.base / "head1").mkdir()
    process = started(one, "head1", "--once", "--mode", "dry-run")
    assert process.wait(60) == 0
    assert list((one.base / "head1").iterdir()) == []
