# SPDX-License-Identifier: GPL-3.0-or-later
"""Daemons are killed and machines lose their power while a client writes: nothing that was acknowledged is lost.

The writer keeps a journal of hashes on its own disk. After each fault another client compares every file with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.ceph_site import Site, within
from tests.site.plays import lab, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WRITER, READER = "fl4", "fl1"
MACHINES = ("fl1", "fl2", "fl3")
SCRIPT = Path(__file__).parent / "ceph" / "journal_writer.py"
HOME = "/home"
DATA, JOURNAL = f"{HOME}/alice/journal", "/var/tmp/journal"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster with its client, and the writer at work."""
    site = Site(tmp_path_factory.mktemp("secrets") / "ceph.json", MACHINES, (WRITER,))
    site.up()
    play = site.run("1G")
    assert play.rc == 0, play.tail()
    ssh(WRITER, f"cat >/tmp/writer.py <<'END_OF_SCRIPT'\n{SCRIPT.read_text()}END_OF_SCRIPT")
    ssh(WRITER, f"sudo systemd-run --unit=journal-writer python3 /tmp/writer.py {DATA} {JOURNAL}")
    yield site
    site.down()


def written() -> int:
    """How many files were acknowledged."""
    return int(ssh(WRITER, f"cat {JOURNAL} 2>/dev/null | wc -l"))


def goes_on(seconds: float = 180) -> None:
    """The writer acknowledges more than it had, so what it wrote in between has been waited for."""
    before = written()
    within(seconds, f"nothing more was written after {before} files", lambda: written() > before + 10)


def nothing_is_lost() -> None:
    """Every file of the journal is there and is what was written, as another client reads it."""
    journal = ssh(WRITER, f"cat {JOURNAL}")
    assert journal.count("\n") > 10
    found = ssh(READER, f"cd / && sudo sh -c 'cd {DATA} && sha256sum *'")
    missing = set(journal.splitlines()) - set(found.splitlines())
    assert not missing, f"{len(missing)} of {len(journal.splitlines())} files are lost or differ: {sorted(missing)[:5]}"


def heals(site: Site) -> None:
    goes_on()
    within(300, ssh(MACHINES[0], "sudo timeout -s KILL 30 ceph -s", check=False), site.is_well)
    nothing_is_lost()


def test_an_osd_is_killed(site: Site) -> None:
    goes_on()
    ssh("fl2", "sudo kill -9 $(pgrep -x ceph-osd)")
    heals(site)


def test_the_active_mds_is_killed(site: Site) -> None:
    (filesystem,) = site.ceph("fs dump")["filesystems"]
    (active,) = (row["name"] for row in filesystem["mdsmap"]["info"].values() if row["state"] == "up:active")
    ssh(active, "sudo kill -9 $(pgrep -x ceph-mds)")
    heals(site)


def test_one_monitor_of_three_is_lost(site: Site) -> None:
    ssh("fl3", "sudo systemctl stop ceph-mon@fl3")
    goes_on()
    assert len(site.ceph("quorum_status")["quorum_names"]) == 2
    ssh("fl3", "sudo systemctl start ceph-mon@fl3")
    heals(site)


def test_two_monitors_of_three_are_lost(site: Site) -> None:
    for name in ("fl2", "fl3"):
        ssh(name, f"sudo systemctl stop ceph-mon@{name}")
    said = ssh("fl1", "sudo timeout -s KILL 20 ceph quorum_status; echo rc=$?", check=False)
    assert "rc=137" in said, "a cluster without a quorum decides nothing"
    for name in ("fl2", "fl3"):
        ssh(name, f"sudo systemctl start ceph-mon@{name}")
    heals(site)


def test_a_machine_loses_its_power(site: Site) -> None:
    lab("power-cut", "fl3")
    goes_on()
    lab("up", "--machine", "fl3")
    heals(site)


def test_all_machines_of_the_cluster_lose_their_power_at_once(site: Site) -> None:
    lab("power-cut", *MACHINES)
    lab("up", *(word for name in MACHINES for word in ("--machine", name)))
    heals(site)


def test_a_run_after_all_that_changes_nothing(site: Site) -> None:
    play = site.run("1G")
    assert play.rc == 0, play.tail()
    assert {name: play.changed_tasks.get(name, []) for name in site.everybody} == {name: [] for name in site.everybody}
    nothing_is_lost()
