# SPDX-License-Identifier: GPL-3.0-or-later
"""Twenty people who press the button within a minute, on the lab's Slurm, with a database of PostgreSQL: each runs a
cell, and then everything that the sessions do not need is killed while they run.

The lab's node has fewer cores than twenty sessions ask for, so that its jobs share them. With `-s` the first test shows
how long it took from the click to what the cell printed. The tests run in order.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from tests.site.plays import services, ssh, until
from tests.site.portal_lab import HUB, PROXY, Portal, add_people, run_cells, sessions
from tests.site.test_slurm import CONTROLLER, NODE
from tests.unit.roles.portal_browser import Browser

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PEOPLE = {f"person{number:02}": 2400 + number for number in range(1, 21)}
WITH_GPU = sorted(PEOPLE)[:2]
POSTGRES = "postgresql@17-main"
WITHIN_S = 60.0
NOTEBOOK = {"environment": "notebook"}
POSTGRESQL = """
sudo apt-get update -qq && sudo apt-get install -qq -y --no-install-recommends postgresql >/dev/null
sudo -u postgres psql -q -c "create role portal login password 'portal'"
sudo -u postgres createdb -O portal -E UTF8 -T template0 portal
"""


@pytest.fixture(scope="module")
def portal(bare_portal: Portal) -> Iterator[Portal]:
    add_people(PEOPLE)
    ssh(CONTROLLER, POSTGRESQL)
    bare_portal.cluster.share_cores(len(PEOPLE))
    bare_portal.variables["portal_database"] = "postgresql://portal:portal@127.0.0.1/portal"
    try:
        with bare_portal.there() as there:
            yield there
    finally:
        del bare_portal.variables["portal_database"]
        ssh(CONTROLLER, "sudo apt-get purge -qq -y 'postgresql*' >/dev/null; sudo rm -rf /var/lib/postgresql")


@pytest.fixture(scope="module")
def browsers(portal: Portal) -> dict[str, Browser]:
    return {name: portal.log_in(name) for name in PEOPLE}


@pytest.fixture(scope="module")
def cells(portal: Portal, browsers: dict[str, Browser]) -> dict[str, dict[str, Any]]:
    """What the cell of each has printed, on a node on which one session was before."""
    first = browsers[max(PEOPLE)]
    run_cells(portal, {first: {"gpus": "0", **NOTEBOOK}})
    portal.stop(first)
    until(lambda: not sessions(), 60, sessions)
    asked = {one: {"gpus": "1" if name in WITH_GPU else "0", **NOTEBOOK} for name, one in browsers.items()}
    return run_cells(portal, asked, WITHIN_S)


def running() -> list[list[str]]:
    return sorted(sessions())


def state_of(browser: Browser) -> dict[str, Any]:
    """What a session says of itself through the proxy; it has another start after a restart."""
    answer = browser.get(f"/user/{browser.name}/api/status")
    return dict(answer.json()) if answer.status == 200 else {}


def test_each_gets_a_session_and_sees_the_gpus_that_it_asked_for(cells: dict[str, dict[str, Any]]) -> None:
    assert {name: row.get("error") for name, row in cells.items()} == dict.fromkeys(PEOPLE)
    for key in ("ready_s", "cell_s"):
        times = sorted(row[key] for row in cells.values())
        told = f"median {statistics.median(times):.1f} s, p95 {times[int(0.95 * len(times)) - 1]:.1f} s"
        print(f"\n{key}: {told}, longest {times[-1]:.1f} s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    with_gpu = {name for name, row in cells.items() if row["text"].split() == ["cuInit", "0", "GPUs", "1"]}
    assert with_gpu == set(WITH_GPU)
    assert sorted((user, state) for _number, user, state, _gpus in running()) == [
        (name, "RUNNING") for name in sorted(PEOPLE)
    ]


def test_hub_proxy_slurmctld_and_databases_are_killed_and_each_session_is_found_again(
    portal: Portal, browsers: dict[str, Browser], cells: dict[str, dict[str, Any]]
) -> None:
    for name in PEOPLE:
        assert browsers[name].get(f"/user/{name}/lab").status == 200
    before, jobs = {name: state_of(one)["started"] for name, one in browsers.items()}, running()
    slurmd = services(NODE)["slurmd.service"]
    databases = ["slurmctld", "mariadb", POSTGRES]

    def all_ready() -> bool:
        return all(portal.server(one).get("ready") for one in browsers.values())

    for units in ([HUB], [PROXY], ["slurmctld"], [POSTGRES], [HUB, PROXY, *databases]):
        ssh(CONTROLLER, f"sudo systemctl kill -s KILL {' '.join(units)}")
        # Hub and proxy start again by themselves.
        ssh(CONTROLLER, f"sleep 2; sudo systemctl start {' '.join(databases)}")
        until(all_ready, 300, lambda: ssh(CONTROLLER, f"sudo journalctl -u {HUB} -n 60 --no-pager"))
        assert {name: state_of(one).get("started") for name, one in browsers.items()} == before, units
        until(lambda: running() == jobs, 60, running)
    assert services(NODE)["slurmd.service"] == slurmd


def test_everybody_can_end_a_session_that_outlived_all_that(portal: Portal, browsers: dict[str, Browser]) -> None:
    for browser in browsers.values():
        portal.stop(browser)
    until(lambda: not sessions(), 120, sessions)
