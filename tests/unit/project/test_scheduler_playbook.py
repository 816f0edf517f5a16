# SPDX-License-Identifier: GPL-3.0-or-later
"""scheduler.yml on a site that schedules nothing: nothing runs, and nothing looks like a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, ROOT, load_yaml, try_run


@pytest.mark.parametrize(
    "groups",
    ["", "[zookeeper]\n[mesos_masters]\n[mesos_agents]\n[marathon]\n[gpu_reconcilers]\n"],
    ids=["no groups", "empty groups"],
)
def test_a_site_without_a_scheduler_is_left_alone(tmp_path: Path, groups: str) -> None:
    inventory = tmp_path / "hosts"
    # A task on this host would fail, since nothing is there.
    inventory.write_text(f"gpu1 ansible_connection=ssh ansible_host=192.0.2.1\n{groups}")
    command = (BIN / "ansible-playbook", "-i", inventory, ROOT / "playbooks" / "scheduler.yml")
    done = try_run(command, ANSIBLE_HOST_PATTERN_MISMATCH="error")
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "TASK" not in said
    assert done.stderr == ""
    assert said.count("skipping: no hosts matched") == said.count("PLAY [") == 9


def test_the_scheduler_comes_after_the_storage_and_in_its_order() -> None:
    order = [Path(play["ansible.builtin.import_playbook"]).stem for play in load_yaml("playbooks/site.yml")]
    assert order.index("storage") < order.index("scheduler")
    groups = [play["hosts"].split("'")[1] for play in load_yaml("playbooks/scheduler.yml")]
    checked = ["mesos_masters", "mesos_agents", "marathon", "gpu_reconcilers"]
    assert groups == [*checked, "zookeeper", *checked]


# What the hosts of a group have told in a run that came to the play after them.
LOOKED_AT = {"zookeeper": {"zookeeper_node": {}}, "mesos_masters": {"mesos_master_node": {}}}
PASSED = {
    "zookeeper": {"zookeeper_ensemble": {"complete": True}},
    "mesos_masters": {"mesos_master_readiness": {"complete": True}},
}


@pytest.mark.parametrize("passed", [False, True], ids=["failed", "passed"])
@pytest.mark.parametrize(
    ("play", "group"), [(5, "zookeeper"), (6, "mesos_masters"), (7, "mesos_masters"), (8, "mesos_masters")]
)
def test_what_needs_a_group_asks_its_gate_again(tmp_path: Path, play: int, group: str, passed: bool) -> None:
    """Every host of the group failed, one of them in a play before: then Ansible goes on to the next play."""
    gate = load_yaml("playbooks/scheduler.yml")[play]["tasks"][0]
    playbook = tmp_path / "gate.yml"
    facts = {**LOOKED_AT[group], **(PASSED[group] if passed else {})}
    playbook.write_text(
        json.dumps(
            [
                {
                    "hosts": "one",
                    "gather_facts": False,
                    "tasks": [{"ansible.builtin.set_fact": facts}],
                },
                {"hosts": "other", "gather_facts": False, "tasks": [{**gate, "tags": []}]},
            ]
        )
    )
    inventory = tmp_path / "hosts"
    inventory.write_text(f"one ansible_connection=local\nother ansible_connection=local\n[{group}]\none\n")
    done = try_run((BIN / "ansible-playbook", "-i", inventory, playbook))
    assert (done.returncode == 0) is passed, done.stdout
    assert ("run it again" in done.stdout) is not passed
