# SPDX-License-Identifier: GPL-3.0-or-later
"""storage.yml is killed at random points, on bare machines and on a cluster with data, and then run to its end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.ceph_site import Site
from tests.site.plays import INVENTORY, ROOT, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HOME = "/home"
MACHINES = ("cut1", "cut2", "cut3")
BARE_CUTS, LATER_CUTS = 6, 4
TASKS = 90


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("secrets") / "ceph.json", MACHINES)
    site.up()
    yield site
    site.down()


def run_and_cut(given: Path, task: int, seconds: float) -> str | None:
    """Run storage.yml and kill it `seconds` after its `task`-th task began; None if it ended before."""
    words = ["-i", str(INVENTORY), "-l", ",".join(MACHINES), "-e", f"@{given}", "playbooks/storage.yml"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ansible-playbook"), *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    begun = 0
    for line in process.stdout:
        begun += line.startswith("TASK [")
        if begun == task:
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return re.sub(r"\]? \**$", "", line.removeprefix("TASK [").strip())
    process.wait()
    return None


def cut_often(chosen: random.Random, given: Path, cuts: int) -> list[str | None]:
    """Where runs were cut; later ones fall later on the average, so that the whole of the way is covered."""
    return [
        run_and_cut(given, chosen.randint(2, 10 + TASKS * number // cuts), chosen.uniform(0, 4))
        for number in range(1, cuts + 1)
    ]


def test_a_run_that_was_cut_many_times_converges_and_loses_nothing(site: Site, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    given = tmp_path / "given.json"

    given.write_text(json.dumps(site.variables("100M")))
    cut_at = cut_often(chosen, given, BARE_CUTS)
    print(f"seed {seed}; cut on bare machines at: {cut_at}")
    first = site.run("100M")
    assert first.rc == 0, f"seed {seed}, cut at {cut_at}\n{first.tail()}"

    path = f"{HOME}/alice/data"
    digest = ssh("cut3", f"sudo sh -c 'dd if=/dev/urandom of={path} bs=1M count=16 conv=fsync && sha256sum {path}'")
    given.write_text(json.dumps(site.variables("150M")))
    later = cut_often(chosen, given, LATER_CUTS)
    print(f"cut with data at: {later}")
    last = site.run("150M")
    assert last.rc == 0, f"seed {seed}, cut at {cut_at}, {later}\n{last.tail()}"

    again = site.run("150M")
    assert again.rc == 0, again.tail()
    assert {name: again.changed_tasks.get(name, []) for name in MACHINES} == {name: [] for name in MACHINES}
    for name in MACHINES:
        assert ssh(name, f"sudo sha256sum {path}") == digest
        assert ssh(name, "ls /var/lib/baremetal-gpu/pending 2>/dev/null; dpkg --audit").strip() == ""
    assert site.ceph("fs subvolume ls cephfs") == []
    assert "baremetal-gpu-scratch" not in json.dumps(site.ceph("auth ls"))
    assert site.is_well()
    # The last runs may have found everything done; that is no failure, but real cuts are the point of the test.
    assert sum(where is not None for where in cut_at + later) >= 5, (cut_at, later)
