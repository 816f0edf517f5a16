# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops up with hosts that are divided among several processes of Ansible."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from gpuops import shards
from tests.unit.gpuops.conftest import DEAD, HERE
from tests.unit.gpuops.test_up import PLAYBOOK, SLOW, stopped
from tests.unit.project.tree import BIN, ROOT, try_run

SITE = ROOT / "playbooks" / "site.yml"
CANNED = ROOT / "tests" / "bench"


def heard_of(path, *names):
    """Which of the hosts the output of a process tells of."""
    told = path.read_text()
    return {name for name in names if re.search(rf"^\w+: \[{name}\]", told, re.MULTILINE)}


def test_each_process_has_some_of_the_hosts_and_all_of_them_are_one_run(bench):
    names = ("one", "bad", "three", "dead")
    bench.hosts(one=HERE, bad=HERE, three=HERE, dead=DEAD)
    bench.playbook(PLAYBOOK)
    (bench.path / "bad.full").touch()
    done = bench.call("up", "-p", "play.yml", "--shards", "2")
    assert done.returncode == 6, done.stdout + done.stderr
    assert done.stdout.count("✗ bad failed in First things") == 1
    assert "  cause:  the disk is full.\n  remedy: free some space\n" in done.stdout
    assert done.stdout.count("✗ dead unreachable") == 1
    assert re.search(r"4 hosts in \d+s: 2 done \(2 changed\), 1 failed, 1 unreachable", done.stdout)
    assert bench.record()["hosts"] == {"one": "done", "bad": "failed", "three": "done", "dead": "unreachable"}
    kept = bench.runs()[-1]
    assert heard_of(kept / "output-1.log", *names) == {"bad", "one"}
    assert heard_of(kept / "output-2.log", *names) == {"dead", "three"}
    assert not (kept / "output-3.log").exists()

    (bench.path / "bad.full").unlink()
    bench.hosts(one=HERE, bad=HERE, three=HERE, dead=HERE)
    done = bench.call("up", "-p", "play.yml", "--resume", "--shards", "2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["event"] for row in rows] == ["start", "stage", "end"]
    assert rows[-1]["hosts"] == {"bad": "done", "dead": "done"}


def test_control_c_stops_all_of_them(bench):
    bench.hosts(one=HERE, two=HERE)
    bench.playbook(SLOW)
    rc, written = stopped(bench, ["up", "-p", "play.yml", "--shards", "2"])
    assert rc == 130, written
    assert "2 stopped on the way" in written
    assert "Traceback" not in written
    assert bench.record()["hosts"] == {"one": "unfinished", "two": "unfinished"}
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(bench.path) not in left


def test_a_limit_that_matches_nothing_is_told_once(bench):
    bench.hosts(one=HERE, two=HERE)
    done = bench.call("up", "--shards", "2", "--limit", "nobody")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("Specified inventory, host pattern and/or --limit leaves us with no hosts to target") == 1


def test_the_sites_hosts_come_to_the_same_end_as_in_one_process(bench):
    """The hosts are not there: a connection answers as a finished host of the lab did."""
    node = {"ansible_connection": "canned", "ansible_python_interpreter": "/usr/bin/python3"}
    inventory = {
        "gpu_nodes": {"hosts": {"one": node, "two": node}},
        "gpu_cluster": {"children": {"gpu_nodes": {}}, "vars": {"cuda_versions": []}},
    }
    bench.inventory.write_text(json.dumps(inventory))
    canned = {
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_CONNECTION_PLUGINS": str(CANNED / "connection"),
        "BENCH_ANSWERS": str(CANNED / "converged_host.json"),
    }
    done = bench.call("up", **canned)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = bench.record()
    done = bench.call("up", "--shards", "2", **canned)
    assert done.returncode == 0, done.stdout + done.stderr
    divided = bench.record()
    assert divided["cells"] == alone["cells"]
    assert set(divided["stages"]) == set(alone["stages"]) >= {"preflight", "driver", "verify"}
    assert heard_of(bench.runs()[-1] / "output-2.log", "one", "two") == {"two"}


def tasks_of(*words):
    """The tasks that ansible-playbook would come to, as it lists them."""
    listed = try_run([BIN / "ansible-playbook", "-i", "localhost,", *words, "--list-tasks"], cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    return [line.strip() for line in listed.stdout.splitlines() if line.startswith("      ")]


def test_the_legs_of_the_site_have_all_of_its_tasks_and_each_once():
    (_first, nodes, rest) = shards.legs("baremetal.gpu.site", "", 2)
    apart = tasks_of(SITE, "--tags", nodes.tags)
    together = tasks_of(SITE, *rest.options)
    assert apart
    assert together
    assert sorted(apart + together) == sorted(tasks_of(SITE))


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("driver,verify", [("baremetal.gpu.site", "driver,verify", True)]),
        ("storage,scheduler", [("baremetal.gpu.site", "storage,scheduler", False)]),
        (
            "driver, storage",
            [
                ("baremetal.gpu.storage_preflight", "", False),
                ("baremetal.gpu.site", "driver", True),
                ("baremetal.gpu.site", "storage", False),
            ],
        ),
    ],
)
def test_only_the_nodes_stages_are_divided(tags, wanted):
    assert [(leg.playbook, leg.tags, leg.divided) for leg in shards.legs("baremetal.gpu.site", tags, 2)] == wanted


def test_a_small_machine_or_a_small_site_has_one_process(monkeypatch):
    def on(cores, hosts):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
        return shards.sensible(hosts)

    assert [on(2, 1000), on(16, 60), on(16, 150), on(16, 1000), on(64, 3000)] == [1, 1, 3, 4, 16]
