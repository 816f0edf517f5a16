# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops plan: what it makes of events, and as it is called. The events are made up after those of the roles."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.plan import host_plans as plan
from gpuops.run import events
from gpuops.run.records import Record
from tests.unit.gpuops.conftest import DEAD, HERE


def ok(host, action, stage="", task="Task", **result):
    data = {"host": host, "task": task, "task_action": action, "res": result}
    return dataclasses.replace(events.typed({"event": "runner_on_ok", "event_data": data}), stage=stage)


def item(name, why, *actions, **more):
    return {"name": name, "why": why, "actions": list(actions), **more}


def file(path):
    return {"path": path, "why": "differs", "actions": ["write"]}


@pytest.fixture
def reader():
    return plan.Reader()


def told(reader, width=100, with_diffs=False, hosts=None):
    run = progress.Run(0.0)
    for name in hosts or reader.hosts:
        run.host_done(name, progress.OK, "x", 0.0)
    return [progress_text.plain(line) for line in plan.lines(run, reader, width, with_diffs)], plan.total(run, reader)


DRIFT = "baremetal.gpu.host_drift_info"
DISKS = "baremetal.gpu.ceph_osd_device_info"


def test_a_drift_is_sorted_by_what_it_does(reader):
    reader.take(
        ok(
            "g1",
            DRIFT,
            "driver",
            changed=True,
            # In the words of other releases, which nobody reads.
            plan=["einrichten: Paket nvidia-driver"],
            drift={
                "packages": [
                    item("nvidia-driver", "is not installed", "install", "hold", version="570.1"),
                    item("nvidia-old", "is installed at 390", "remove"),
                ],
                "files": [file("/etc/modprobe.d/x.conf")],
                "kernel_modules": [item("nvidia", "version 550 is loaded, 570 is installed", "reboot")],
            },
        )
    )
    host = reader.hosts["g1"]
    assert host.installs == ["driver: install package nvidia-driver 570.1 and hold it (is not installed)"]
    assert host.removes == ["driver: remove package nvidia-old (is installed at 390)"]
    assert host.changes == ["driver: write /etc/modprobe.d/x.conf (differs)"]
    assert len(host.reboots) == 1
    lines, total = told(reader)
    assert lines[1] == "g1: 1 to install, 1 to remove, 1 to change, REBOOT"
    assert lines[2].startswith("  REBOOT   driver: reboot to exchange")
    assert total == "nothing was changed. 1 of 1 hosts would change, 1 host may reboot"


def test_a_disk_that_would_be_wiped_is_named_before_everything_else(reader):
    rows = [
        {"path": "/dev/disk/by-id/a", "action": "prepare", "wipe": True, "why": "it holds ext4 at 0x438"},
        {"path": "/dev/disk/by-id/b", "action": "prepare", "wipe": False, "why": "it is empty", "also_wipe": ["v/l"]},
        {"path": "/dev/disk/by-id/c", "action": "activate", "wipe": False, "why": "it is osd.1 of this cluster"},
    ]
    reader.take(ok("calm", DRIFT, "driver", changed=True, drift={"files": [file("/etc/x")]}))
    # Both modules look at the disks: before anything is changed, and when it would be.
    for action in (DISKS, "baremetal.gpu.ceph_osd_device"):
        reader.take(ok("stor1", action, "storage", changed=True, devices=rows))
    lines, total = told(reader)
    assert lines[1] == "stor1: 2 to WIPE, 1 to change"
    assert lines[2] == "  WIPE     /dev/disk/by-id/a: everything on it is destroyed (it holds ext4 at 0x438)"
    assert lines[3] == "  WIPE     v/l: everything on it is destroyed (db or wal of the OSD on /dev/disk/by-id/b)"
    assert lines[4] == "  disk     /dev/disk/by-id/b becomes an OSD (it is empty)"
    assert not any("by-id/c" in line for line in lines)
    assert total.endswith("2 disks WIPED")


def test_hosts_with_one_plan_are_told_together_and_idle_ones_last(reader):
    for host in ("g1", "g2"):
        reader.take(ok(host, DRIFT, "driver", changed=True, drift={"files": [file("/etc/x")]}))
    reader.take(ok("g3", DRIFT, "driver", drift={}))
    lines, _total = told(reader)
    assert lines == [
        "",
        "g1, g2 (2 hosts): 1 to change",
        "  change   driver: write /etc/x (differs)",
        "",
        "g3: nothing to do",
    ]


def test_preflight_reboots_and_other_changes(reader):
    facts = {"gpu_plan": {"steps": ["install driver 570"], "reboot_expected": True, "reboot_reasons": ["nouveau"]}}
    reader.take(
        ok("g1", "baremetal.gpu.gpu_preflight_info", "p", ansible_facts=facts, advice=["little space. Remedy: add"])
    )
    announced = {"converge_reboot_announced": "a module is stuck"}
    reader.take(ok("g1", "ansible.builtin.set_fact", "driver", ansible_facts=announced))
    reader.take(ok("g1", "ansible.builtin.debug", "driver", msg="g1 has to reboot: nobody reads this"))
    reader.take(
        ok(
            "g1",
            "ansible.builtin.template",
            "agent",
            "Write the unit",
            changed=True,
            diff={"before": "a\n", "after": "b\n", "after_header": "/etc/unit"},
        )
    )
    host = reader.hosts["g1"]
    assert host.reboots == ["perhaps: nouveau", "a module is stuck"]
    assert host.changes == ["agent: Write the unit (/etc/unit)"]
    assert host.cautions == ["little space. Remedy: add"]
    lines, _total = told(reader, with_diffs=True)
    assert "  in brief install driver 570" in lines
    assert "  -a" in lines
    assert "  +b" in lines


def test_a_proof_that_follows_a_change_is_announced_after_it(reader):
    reader.take(
        ok("g1", "ansible.builtin.set_fact", "verify", ansible_facts={"gpu_verify_proof_announced": "every GPU\n"})
    )
    reader.take(ok("g1", "baremetal.gpu.nvidia_cdi", "containers", "Write the CDI specification", changed=True))
    lines, total = told(reader)
    assert lines[1:] == [
        "g1: 1 to change",
        "  change   containers: Write the CDI specification",
        "  prove    verify: every GPU",
    ]
    assert total == "nothing was changed. 1 of 1 hosts would change"
    assert plan.as_json(reader.hosts, False)["g1"]["proofs"] == ["verify: every GPU"]


def test_how_long_it_took_last_time():
    runs = [
        Record("p", started=1000.0, seconds=700.0, rc=0, stages={"driver": 600.0, "cuda": 0.1}, hosts={"a": "done"}),
        Record("p", started=2000.0, seconds=9.0, rc=2),
        Record("p", started=3000.0, seconds=9.0, rc=0, check=True),
    ]
    assert plan.last_time(runs, 1000.0 + 3 * 86400) == (
        "the last run took 11m40s, 3 days ago (driver 10m00s), and changed 0 of 1 hosts"
    )
    assert plan.last_time(runs[1:], 5000.0) == ""


PLAYBOOK = """
- name: First things
  hosts: all
  gather_facts: false
  tasks:
    - name: Write it
      ansible.builtin.copy:
        content: "wanted"
        dest: "{{ playbook_dir }}/file"
        mode: "0644"
    - name: Stop
      baremetal.gpu.refuse:
        problems: [{cause: the clock is wrong., remedy: start chrony}]
      when: inventory_hostname == 'wrong'
"""


def in_brief(reader, width=100):
    run = progress.Run(0.0)
    for name in reader.hosts:
        run.host_done(name, progress.OK, "x", 0.0)
    return [progress_text.plain(line) for line in plan.brief(run, reader, width)]


def test_the_plan_in_brief_is_a_line_for_each_subsystem_in_the_order_of_the_run(reader):
    packages = [item(f"p{number}", "is not installed", "install") for number in range(40)]
    for host in ("g1", "g2"):
        reader.take(ok(host, DRIFT, "driver", changed=True, drift={"packages": packages, "files": [file("/a")] * 3}))
    units = [item("docker.service", "has new settings", "restart")]
    reader.take(ok("g1", DRIFT, "containers", changed=True, drift={"units": units}))
    reader.take(ok("head", DRIFT, "slurm", changed=True, drift={"files": [file("/b"), file("/c"), file("/d")]}))
    reader.take(ok("head", "baremetal.gpu.cluster_accounts", "people", changed=True, plan=["add alice", "add bob"]))
    reader.take(ok("idle", DRIFT, "driver", changed=False, drift={}))
    reader.take(ok("g2", "ansible.builtin.set_fact", ansible_facts={"converge_reboot_announced": "nouveau is in use"}))
    assert in_brief(reader) == [
        "REBOOT   g2: nouveau is in use",
        "",
        "driver      g1, g2  install 40 packages, write /a (differs)",
        "containers  g1      RESTART docker",
        "slurm       head    3 changes",
        "people      head    add alice; add bob",
        "idle: nothing to do",
    ]


def test_the_plan_in_brief_stays_short_on_a_large_site_and_names_every_disk_that_is_wiped(reader):
    for number in range(200):
        packages = [item(f"p{one}", "is not installed", "install") for one in range(50)]
        files = [file(f"/etc/{number}/{one}") for one in range(50)]
        for stage in ("driver", "containers", "slurm", "registry", "portal", "monitoring"):
            reader.take(ok(f"n{number}", DRIFT, stage, changed=True, drift={"packages": packages, "files": files}))
    row = {"path": "/dev/sda", "action": "prepare", "wipe": True, "why": "it holds ext4"}
    reader.take(ok("n7", DISKS, "storage", devices=[row]))
    told_lines = in_brief(reader)
    assert len(told_lines) <= 30
    assert told_lines[0] == "WIPE     n7: /dev/sda: everything on it is destroyed (it holds ext4)"
    assert "driver      all 200 hosts  install 50 packages, 10000 changes" in told_lines


def test_nothing_is_changed_and_everything_is_told(bench):
    bench.hosts(one=HERE, two=HERE, wrong=HERE, dead=DEAD)
    bench.playbook(PLAYBOOK)
    done = bench.call("plan", "-p", "play.yml", "--diff")
    assert done.returncode == 6, done.stdout + done.stderr
    assert not (bench.path / "file").exists()
    assert "one, two, wrong (3 hosts): 1 to change" in done.stdout
    assert "+wanted" in done.stdout
    assert re.search(
        r"✗ wrong failed in First things.*\n  cause:  the clock is wrong.\n  remedy: start chrony", done.stdout
    )
    assert "✗ dead unreachable" in done.stdout
    assert "nothing was changed. 3 of 4 hosts would change, 2 could not be planned to the end" in done.stdout
    assert bench.record()["check"] is True
    # In brief the same, without the lists of hosts.
    done = bench.call("plan", "-p", "play.yml")
    assert done.returncode == 6
    assert re.search(r"First things  one, two, wrong +Write it", done.stdout), done.stdout
    assert "remedy: start chrony" in done.stdout
    assert "+wanted" not in done.stdout
    assert "`gpuops plan --verbose`" in done.stdout


def test_a_plan_for_programs_and_the_time_of_the_last_run(bench):
    bench.hosts(one=HERE)
    bench.playbook(PLAYBOOK)
    assert bench.call("up", "-p", "play.yml").returncode == 0
    (bench.path / "file").unlink()
    done = bench.call("plan", "-p", "play.yml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["hosts"]["one"]["changes"] == [f"First things: Write it ({bench.path}/file)"]
    assert document["hosts"]["one"]["wipes"] == []
    assert document["failures"] == []
    assert re.match(r"the last run took \d+s, just now .*changed 1 of 1 hosts", document["last_run"])
    # A plan is no run to go on with.
    assert "nothing to resume" in bench.call("up", "-p", "play.yml", "--resume").stderr
