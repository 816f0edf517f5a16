# SPDX-License-Identifier: GPL-3.0-or-later
"""storage.yml is killed at random points, on bare machines and on a cluster with data, and then run to its end."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.roles.ceph_site import EVERYBODY, HOME, Site, ceph, changed, homes
from tests.site.plays import INVENTORY, run_and_cut, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# How often, and up to which task. With nothing to mend a run has fewer of them.
ON_BARE_MACHINES, WITH_DATA = (6, 150), (5, 90)


@pytest.fixture(scope="module")
def bare() -> Site:
    site = Site()
    site.bare()
    return site


def cut_often(chosen: random.Random, given: Path, cuts: int, tasks: int) -> list[str]:
    """Where runs were cut; later ones fall later on the average, so that the whole of the way is covered."""
    words = ["-i", INVENTORY, "-l", ",".join(EVERYBODY), "-e", f"@{given}", "playbooks/storage.yml"]
    cut_at: list[str] = []
    for _run in range(3 * cuts):
        task = chosen.randint(2, 10 + tasks * (len(cut_at) + 1) // cuts)
        where = run_and_cut(words, task, chosen.uniform(0, 4))
        if where is None:
            # It came to its end before, and from now on has fewer tasks.
            tasks //= 2
        else:
            cut_at.append(where)
        if len(cut_at) == cuts:
            break
    return cut_at


def test_a_run_that_was_cut_many_times_converges_and_loses_nothing(bare: Site, tmp_path: Path) -> None:
    """It leaves a cluster, which the tests after it find."""
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    given = tmp_path / "given.json"

    given.write_text(json.dumps(bare.variables()))
    cut_at = cut_often(chosen, given, *ON_BARE_MACHINES)
    print(f"seed {seed}; cut on bare machines at: {cut_at}")
    first = bare.run()
    assert first.rc == 0, f"seed {seed}, cut at {cut_at}\n{first.tail()}"

    path = f"{HOME}/alice/data"
    digest = ssh("cl1", f"sudo sh -c 'dd if=/dev/urandom of={path} bs=1M count=16 conv=fsync && sha256sum {path}'")
    larger = {"cephfs_homes_users": homes(alice="2G", bob="50M")}
    given.write_text(json.dumps(bare.variables(**larger)))
    later = cut_often(chosen, given, *WITH_DATA)
    print(f"cut with data at: {later}")
    last = bare.run(**larger)
    assert last.rc == 0, f"seed {seed}, cut at {cut_at}, {later}\n{last.tail()}"

    again = bare.run(**larger)
    assert again.rc == 0, again.tail()
    assert changed(again) == {}
    for name in EVERYBODY:
        assert ssh(name, f"sudo sha256sum {path}") == digest
        assert ssh(name, "ls /var/lib/baremetal-gpu/pending 2>/dev/null; dpkg --audit").strip() == ""
    assert [row["name"] for row in ceph("fs subvolume ls cephfs")] == ["datasets"]
    assert "baremetal-gpu-scratch" not in json.dumps(ceph("auth ls"))
    bare.heals()
    assert len(cut_at + later) == ON_BARE_MACHINES[0] + WITH_DATA[0], (cut_at, later)
