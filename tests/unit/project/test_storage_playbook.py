# SPDX-License-Identifier: GPL-3.0-or-later
"""storage.yml on a site that has no storage, and the restarts of daemons whose settings were changed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.plugins.ceph_answers import captured
from tests.unit.project.tree import BIN, ROOT, try_run


@pytest.mark.parametrize("playbook", ["storage.yml", "storage_preflight.yml", "storage_restart.yml"])
@pytest.mark.parametrize("groups", ["", "[ceph_mons]\n[ceph_clients]\n"], ids=["no groups", "empty groups"])
def test_a_site_without_ceph_is_left_alone(tmp_path: Path, playbook: str, groups: str) -> None:
    inventory = tmp_path / "hosts"
    # A task on this host would fail, since nothing is there.
    inventory.write_text(f"gpu1 ansible_connection=ssh ansible_host=192.0.2.1\n{groups}")
    command = (BIN / "ansible-playbook", "-i", inventory, ROOT / "playbooks" / playbook)
    done = try_run(command, ANSIBLE_HOST_PATTERN_MISMATCH="error")
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "TASK" not in said
    assert done.stderr == ""
    assert "gpu1" not in said.partition("PLAY RECAP")[2]
    assert said.count("skipping: no hosts matched") == said.count("PLAY [")


# The real playbook, from the play on that looks at the settings; the hosts are this machine, with these programs.
CEPH = """#!{python}
import json, sys
words = sys.argv[1:]
if words[:2] == ["osd", "ok-to-stop"]:
    sys.exit("Error EBUSY: 3 PGs would be inactive" if {busy} else 0)
words = words[words.index("--connect-timeout") + 2 : words.index("--format")]
print(json.dumps(json.load(open({answers!r}))[" ".join(words)]))
"""
SYSTEMCTL = """#!/bin/sh
echo "$@" >>{log}
case "$1" in show) printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\n' "$2";; esac
"""


def answers_of_a_cluster(is_whole: bool) -> dict[str, Any]:
    """Recorded when an OSD was down."""
    record = captured("three-hosts-18.2.7")
    status, osds = record["status"]["answer"], record["osd dump"]["answer"]
    if is_whole:
        status["pgmap"]["pgs_by_state"] = [{"state_name": "active+clean", "count": status["pgmap"]["num_pgs"]}]
        osds["osds"] = [{**row, "up": 1} for row in osds["osds"]]
    mgr = {"available": True, "active_name": "st1", "standbys": [], "modules": [], "available_modules": []}
    return {"status": status, "osd dump": osds, "mgr dump": mgr, "fs dump": {"filesystems": [], "standbys": []}}


@pytest.fixture
def settings_site(tmp_path: Path) -> Any:
    """Runs the plays of the settings: of which units, whether the cluster is whole, and whether no OSD may stop."""

    def run(units: list[str], is_whole: bool = True, busy: bool = False) -> tuple[Any, list[str]]:
        programs = tmp_path / "programs"
        programs.mkdir()
        log, answers = tmp_path / "systemctl.log", tmp_path / "answers.json"
        log.touch()
        answers.write_text(json.dumps(answers_of_a_cluster(is_whole)))
        (programs / "ceph").write_text(CEPH.format(python=sys.executable, answers=str(answers), busy=busy))
        (programs / "systemctl").write_text(SYSTEMCTL.format(log=shlex.quote(str(log))))
        for path in programs.iterdir():
            path.chmod(0o755)
        plays = yaml.safe_load((ROOT / "playbooks/storage.yml").read_text())
        first = next(number for number, play in enumerate(plays) if "older settings" in play["name"])
        due = [
            {"unit": unit, "kind": unit.partition("@")[0].removeprefix("ceph-"), "id": unit.partition("@")[2]}
            for unit in units
        ]
        look = {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [{"name": "Look", "ansible.builtin.set_fact": {"ceph_common_older": {"due": due}}}],
        }
        rest = [play for play in plays[first:] if "older settings" in play["name"]]
        assert len(rest) == 4
        (tmp_path / "play.yml").write_text(yaml.safe_dump([look, *rest], sort_keys=False))
        here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        groups = {name: {"hosts": {"st1": here}} for name in ("ceph_mgrs", "ceph_osds", "ceph_mdss")}
        groups["ceph_mons"] = {"hosts": dict.fromkeys(("st1", "st2", "st3"), here)}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(groups))
        done = try_run(
            [BIN / "ansible-playbook", "-i", tmp_path / "hosts.yml", "--limit", "st1", tmp_path / "play.yml"],
            PATH=f"{programs}:{os.environ['PATH']}",
        )
        return done, [line for line in log.read_text().splitlines() if line.startswith("restart ")]

    return run


def test_daemons_with_older_settings_are_restarted_monitors_first(settings_site: Any) -> None:
    done, restarts = settings_site(["ceph-mds@st1", "ceph-mgr@st1", "ceph-mon@st1"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert restarts == ["restart ceph-mon@st1", "restart ceph-mgr@st1", "restart ceph-mds@st1"]


@pytest.mark.parametrize(
    ("unit", "is_whole", "busy", "why"),
    [
        ("ceph-mon@st1", False, False, "osd.1 is down"),
        ("ceph-osd@0", True, True, "3 PGs would be inactive"),
    ],
)
def test_where_a_restart_is_not_safe_the_daemons_are_named_with_the_command(
    settings_site: Any, unit: str, is_whole: bool, busy: bool, why: str
) -> None:
    done, restarts = settings_site([unit], is_whole, busy)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, said
    assert restarts == []
    assert f"{unit} still run with the settings from before the last change" in said
    assert why in said
    assert "baremetal.gpu.storage_restart" in said
