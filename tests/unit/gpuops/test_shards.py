# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops up with hosts that are divided among several processes of Ansible."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events, processes, shards
from tests.unit.gpuops.conftest import DEAD, HERE
from tests.unit.gpuops.test_up import PLAYBOOK, SLOW, stopped
from tests.unit.project.tree import BIN, ROOT, try_run

SITE = ROOT / "playbooks" / "site.yml"
CANNED = ROOT / "tests" / "bench"
DRIFT = "baremetal.gpu.host_drift_info"


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


SAID = """
- name: Said at once
  hosts: all
  gather_facts: false
  tasks:
    - name: Fail where it was asked for
      baremetal.gpu.refuse:
        problems: [{cause: broken., remedy: mend it}]
      when: inventory_hostname in broken
"""


def test_what_is_too_much_for_the_processes_waits_for_its_turn(bench):
    names = [f"h{number:03}" for number in range(2 * shards.MOST_HOSTS + 1)]
    bench.hosts(**dict.fromkeys(names, HERE))
    bench.playbook(SAID)
    words = ("up", "-p", "play.yml", "--shards", "2", "--json", "--", "-e", '{"broken": ["h000", "h200"]}')
    done = bench.call(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["host"] for row in rows if row["event"] == "failure") == ["h000", "h200"]
    assert rows[-1]["hosts"] == {name: "failed" if name in ("h000", "h200") else "done" for name in names}
    parts = [heard_of(path, *names) for path in sorted(bench.runs()[-1].glob("output-*.log"))]
    assert sorted(map(len, parts)) == [50, 50, 50, 51]
    assert set.union(*parts) == set(names)


def test_nobody_whose_turn_has_not_come_is_begun_after_control_c(bench):
    names = [f"h{number:03}" for number in range(2 * shards.MOST_HOSTS + 1)]
    bench.hosts(**dict.fromkeys(names, HERE))
    bench.playbook(SLOW)
    rc, written = stopped(bench, ["up", "-p", "play.yml", "--shards", "2", "--", "--forks", "1"])
    assert rc == 130, written
    assert "Traceback" not in written
    kept = bench.runs()[-1]
    assert {path.name for path in kept.glob("output-*.log")} == {"output-1.log", "output-2.log"}
    assert bench.record()["interrupted"] is True


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


def canned(bench, *names):
    """A site of hosts that are not there: a connection answers as a finished host of the lab did. The environment."""
    node = {"ansible_connection": "canned", "ansible_python_interpreter": "/usr/bin/python3"}
    inventory = {
        "gpu_nodes": {"hosts": dict.fromkeys(names, node)},
        "gpu_cluster": {"children": {"gpu_nodes": {}}, "vars": {"cuda_versions": []}},
    }
    bench.inventory.write_text(json.dumps(inventory))
    return {
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_CONNECTION_PLUGINS": str(CANNED / "connection"),
        "BENCH_ANSWERS": str(CANNED / "converged_host.json"),
    }


def test_the_sites_hosts_come_to_the_same_end_as_in_one_process(bench):
    environment = canned(bench, "one", "two")
    words = ("up", "--tags", "driver,verify")
    done = bench.call(*words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = bench.record()
    done = bench.call(*words, "--shards", "2", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    divided = bench.record()
    assert divided["cells"] == alone["cells"]
    assert set(divided["stages"]) == set(alone["stages"]) >= {"preflight", "driver", "verify"}
    assert heard_of(bench.runs()[-1] / "output-2.log", "one", "two") == {"two"}


@pytest.mark.slow
def test_a_plan_of_divided_hosts_is_that_of_one_process(bench):
    """That something differs on the hosts is made up by hand."""
    environment = canned(bench, "one", "two", "three")
    answers = json.loads((CANNED / "converged_host.json").read_text())
    answers[DRIFT].update(drifted=True, changed=True, required=True, plan=["write /etc/x (differs)"])
    (bench.path / "answers.json").write_text(json.dumps(answers))
    environment["BENCH_ANSWERS"] = str(bench.path / "answers.json")
    plans = []
    for count in ("1", "2"):
        done = bench.call("plan", "--json", "--tags", "driver", "--shards", count, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        plans.append(json.loads(done.stdout)["hosts"])
    alone, divided = plans
    assert set(alone) == {"one", "two", "three"}
    assert "driver: write /etc/x (differs)" in alone["one"]["changes"]
    assert divided == alone
    assert heard_of(bench.runs()[-1] / "output-2.log", "one", "two", "three") == {"three"}


@pytest.mark.slow
def test_more_than_a_hundred_hosts_of_a_site_take_turns_without_being_asked(bench):
    names = [f"n{number:03}" for number in range(shards.MOST_HOSTS + 1)]
    environment = canned(bench, *names)
    done = bench.call("up", "--tags", "preflight", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.record()["hosts"] == dict.fromkeys(names, "done")
    parts = [heard_of(path, *names) for path in sorted(bench.runs()[-1].glob("output-*.log"))]
    assert sorted(map(len, parts))[-1] <= shards.MOST_HOSTS
    assert set.union(*parts) == set(names)


def test_what_remains_counts_the_stages_of_those_who_wait_for_their_turn():
    whole = shards.Whole(0.0, {"preflight": 10.0, "driver": 100.0})
    first, second = whole.divide([["one"], ["two"]])

    def come_to(part, role, now):
        part.task_started("anything", role, "command", now)
        whole.follow(part, None, now)

    first.play_started("Nodes", 0.0)
    come_to(first, "gpu_preflight", 0.0)
    come_to(first, "nvidia_driver", 4.0)
    # The other half of both.
    assert whole.remaining(50.0) == 6.0 + 54.0
    first.finished(54.0)
    second.play_started("Nodes", 54.0)
    come_to(second, "gpu_preflight", 54.0)
    assert whole.stage == "preflight"
    come_to(second, "nvidia_driver", 58.0)
    assert whole.remaining(60.0) == 100.0 - 50.0 - 2.0


def tasks_of(*words):
    """The tasks that ansible-playbook would come to, as it lists them."""
    listed = try_run([BIN / "ansible-playbook", "-i", "localhost,", *words, "--list-tasks"], cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    return [line.strip() for line in listed.stdout.splitlines() if line.startswith("      ")]


def test_the_legs_of_the_site_have_all_of_its_tasks_and_each_once():
    (*checks, nodes, rest) = shards.legs("baremetal.gpu.site", "", 2)
    names = ["preflight", "storage_preflight", "homes_preflight", "portal_preflight", "settings_preflight"]
    assert [leg.playbook for leg in checks] == [f"baremetal.gpu.{name}" for name in names]
    apart = tasks_of(SITE, "--tags", nodes.tags)
    together = tasks_of(SITE, *rest.options)
    assert apart
    assert together
    assert sorted(apart + together) == sorted(tasks_of(SITE))


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("verify", [("baremetal.gpu.site", "verify", True)]),
        (
            "driver,verify",
            [("baremetal.gpu.preflight", "", True), ("baremetal.gpu.site", "driver,verify", True)],
        ),
        ("storage,scheduler", [("baremetal.gpu.site", "storage,scheduler", False)]),
        (
            "verify,zookeeper,storage",
            [
                ("baremetal.gpu.storage_preflight", "", False),
                ("baremetal.gpu.settings_preflight", "zookeeper", False),
                ("baremetal.gpu.site", "verify", True),
                ("baremetal.gpu.site", "zookeeper,storage", False),
            ],
        ),
        (
            "driver, storage",
            [
                ("baremetal.gpu.preflight", "", True),
                ("baremetal.gpu.storage_preflight", "", False),
                ("baremetal.gpu.site", "driver", True),
                ("baremetal.gpu.site", "storage", False),
            ],
        ),
    ],
)
def test_only_the_nodes_stages_are_divided_and_all_hosts_are_checked_before(tags, wanted):
    assert [(leg.playbook, leg.tags, leg.divided) for leg in shards.legs("baremetal.gpu.site", tags, 2)] == wanted


def known(**hosts):
    """A run in which hosts have failed at a stage, or could not be reached (`!STAGE`), or went well (empty)."""
    run = progress.Run(0.0)
    run.play_started("A play", 0.0)
    for name, stage in hosts.items():
        kind = progress.UNREACHABLE if stage.startswith("!") else progress.FAILED
        for begun in ("driver", "containers"):
            run.stage_seconds[begun] = 1.0
        run.host_started(name, "Do it", stage.strip("!"), "command", 0.0)
        if stage:
            run.host_failed(name, kind, "Do it", stage.strip("!"), {}, 0.0)
        else:
            run.host_done(name, progress.OK, "storage", 0.0)
    run.counted([], {})
    return run


def of(*found):
    return [(leg.tags, leg.out, leg.hosts) for leg in found]


def test_stages_that_need_nothing_of_the_failed_one_go_on_and_the_others_wait():
    found = known(head="storage", gpu1="")
    assert of(*shards.rest(found, "storage", "")) == [("homes,registry,monitoring,backup,firewall", (), ())]
    assert of(*shards.rest(found, "storage", "storage,monitoring")) == [("monitoring", (), ())]
    assert shards.rest(found, "storage", "storage") == []
    # Nothing goes on on a host that cannot be reached, and nothing at all where there is no other.
    assert of(*shards.rest(known(head="!storage", gpu1=""), "storage", "monitoring")) == [("monitoring", ("head",), ())]
    assert shards.rest(known(head="!storage"), "storage", "") == []


def test_of_nodes_that_do_not_wait_for_each_other_only_those_that_failed_lack_the_later_stages():
    found = of(*shards.rest(known(gpu1="verify", head=""), "verify", "slurm,monitoring"))
    assert found == [("slurm", ("gpu1",), ()), ("monitoring", (), ())]


def test_storage_that_is_refused_before_anything_was_changed_does_not_keep_drivers_from_nodes():
    found = known(stor1="storage", gpu1="")
    found.stage_seconds.clear()
    tags = "driver,cuda,containers,mig,verify,agent,users,software,homes,registry,monitoring,backup,firewall"
    assert of(*shards.rest(found, "storage", "")) == [(tags, (), ())]


def test_a_portal_that_is_refused_before_anything_was_changed_keeps_nothing_else_from_its_host():
    found = known(head="portal")
    found.stage_seconds.clear()
    tags = "driver,cuda,containers,mig,verify,agent,users,software,storage,homes,scheduler,slurm,registry,kubernetes"
    assert of(*shards.rest(found, "portal", "")) == [(f"{tags},monitoring,backup,firewall", (), ())]


def test_a_failed_host_goes_through_what_the_others_have_come_to_and_it_does_not_need():
    found = known(gpu1="driver", gpu2="preflight", gpu3="!driver", head="")
    found.stage_seconds |= {"slurm": 1.0, "monitoring": 1.0}
    assert of(*shards.missed(found, "")) == [("monitoring", None, ("gpu1",))]
    assert shards.missed(found, "driver,slurm") == []
    # What it has begun, it does not begin again; and its failure is not forgotten.
    found.host_started("gpu1", "Do it", "monitoring", "command", 1.0)
    found.host_done("gpu1", progress.OK, "monitoring", 1.0)
    assert shards.missed(found, "") == []
    assert [row.host for row in found.lasting_failures()] == ["gpu1", "gpu2", "gpu3"]


def test_the_hosts_of_plays_that_were_not_begun_are_known_from_their_list():
    plays = shards.Plays()
    plays.take(events.Event("\nplaybook: site.yml\n\n  play #1 (all): All (hosts)\tTAGS: []\n    pattern: ['all']\n"))
    plays.take(events.Event("    hosts (2):\n      gpu1\n      gpu2\n\n  play #2 (x): Two\tTAGS: [monitoring]\n"))
    plays.take(events.Event("    hosts (1):\n      head\n\n  play #3 (y): Three\tTAGS: [slurm]\n    hosts (0):\n"))
    assert plays.plays == [(set(), ["gpu1", "gpu2"]), ({"monitoring"}, ["head"]), ({"slurm"}, [])]
    broken = processes.Broken(shards.Leg("baremetal.gpu.site"), 1, set())
    assert broken.hosts_left(plays.plays) == {"head"}
    assert processes.Broken(shards.Leg("baremetal.gpu.site"), 1, {"monitoring"}).hosts_left(plays.plays) == set()
    # Of the site's plays, those without tags are of single nodes; of others, nobody knows.
    assert processes.Broken(shards.Leg("baremetal.gpu.site", "slurm"), 0, set()).hosts_left(plays.plays) == set()
    left = processes.Broken(shards.Leg("play.yml", "slurm"), 0, set()).hosts_left(plays.plays)
    assert left == {"gpu1", "gpu2"}


def test_a_small_machine_or_a_small_site_has_one_process_and_more_than_a_hundred_hosts_take_turns(monkeypatch):
    def on(cores, hosts, processes=None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
        return shards.portions(hosts, processes)

    assert [on(2, 60), on(16, 60), on(16, 150), on(64, 1600)] == [(1, 1), (1, 1), (3, 3), (16, 16)]
    assert [on(2, 101), on(2, 1000), on(16, 1000), on(2, 1000, 3)] == [(2, 1), (10, 1), (12, 4), (12, 3)]
    # Whoever asks for one process gets one.
    assert on(2, 1000, 1) == (1, 1)


@pytest.mark.parametrize(
    ("asked", "seen", "wanted"),
    [(None, None, True), (None, 100, False), (None, 101, True), (1, 1000, False), (2, 3, True)],
)
def test_hosts_are_listed_only_where_there_may_be_many(monkeypatch, asked, seen, wanted):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert shards.may_pay(asked, seen) is wanted
