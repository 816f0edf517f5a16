# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a Slurm cluster: what goes into topology.conf, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_common, slurm_controller
from tests.unit.plugins.plugin_utils.slurm.test_cluster import PARAMS, host, plan, site, written

SPINE = {"name": "spine"}
LEAVES = [{"name": "leaf1", "parent": "spine"}, {"name": "leaf2", "parent": "spine"}]


def wired(n1: str, n2: str, switches: list[dict[str, Any]], changes: dict[str, Any] | None = None) -> Any:
    """The plan of two nodes at these switches; `changes` are other hosts by name."""
    groups, hosts = site(**(changes or {}))
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    hostvars["n1"]["slurm_common_switch"] = n1
    hostvars["n2"]["slurm_common_switch"] = n2
    return slurm_common.desired({**PARAMS, "switches": switches}, {}, {"groups": groups, "hostvars": hostvars})


def tree(made: Any) -> list[str]:
    lines: list[str] = made.parts["topology_conf"].splitlines()[1:]
    return lines


def files(made: Any) -> set[str]:
    document = slurm_controller.desired({}, {}, {"cluster": made.as_dict(), "nodes": {}, "has": []}).desired
    return {row["path"] for row in document["files"]}


def test_a_tree_has_the_nodes_of_each_switch_and_the_switches_below_others() -> None:
    made = wired("leaf1", "leaf2", [SPINE, *LEAVES])
    assert tree(made) == [
        "SwitchName=spine Switches=leaf1,leaf2",
        "SwitchName=leaf1 Nodes=n1",
        "SwitchName=leaf2 Nodes=n2",
    ]
    assert "TopologyPlugin=topology/tree" in made.parts["slurm_conf"].splitlines()
    assert "/etc/slurm/topology.conf" in files(made)


def test_without_switches_there_is_no_topology() -> None:
    made = wired("", "", LEAVES)
    assert made.parts["slurm_conf"] == plan().parts["slurm_conf"]
    assert "opology" not in made.parts["slurm_conf"]
    assert "/etc/slurm/topology.conf" not in files(made)


def test_switches_of_nodes_need_no_list() -> None:
    assert tree(wired("leaf1", "leaf1", [])) == ["SwitchName=leaf1 Nodes=n1,n2"]


def test_a_switch_with_nothing_below_it_is_left_out() -> None:
    unused = [{"name": "leaf3", "parent": "spine"}, {"name": "other"}]
    assert tree(wired("leaf1", "leaf1", [SPINE, *LEAVES, *unused])) == [
        "SwitchName=spine Switches=leaf1",
        "SwitchName=leaf1 Nodes=n1,n2",
    ]


def test_a_node_that_moves_to_another_switch_changes_slurm_conf_by_which_slurmd_is_seen_to_be_behind() -> None:
    before, after = wired("leaf1", "leaf2", [SPINE, *LEAVES]), wired("leaf1", "leaf1", [SPINE, *LEAVES])
    assert before.parts["slurm_conf"] != after.parts["slurm_conf"]
    assert before.parts["slurm_conf"] == wired("leaf1", "leaf2", [SPINE, *LEAVES]).parts["slurm_conf"]


@pytest.mark.parametrize(
    ("n1", "n2", "switches", "expected"),
    [
        ("leaf1", "", [], ("no_switch", "n2")),
        ("leaf1", "leaf 2", [], ("bad_name", "leaf 2")),
        ("leaf1", "leaf1", [{"name": "leaf1", "parent": "spine"}], ("no_parent", "spine")),
        ("leaf1", "leaf1", [{"name": "leaf1"}, {"name": "leaf1"}], ("two_switches", "leaf1")),
        ("leaf1", "spine", [SPINE, *LEAVES], ("mixed_switch", "spine")),
        (
            "leaf1",
            "leaf1",
            [{"name": "leaf1", "parent": "a"}, {"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}],
            ("switch_cycle", "a, b"),
        ),
        ("leaf1", "leaf1", [{"name": "leaf1", "parent": "leaf1"}], ("switch_cycle", "leaf1")),
    ],
)
def test_a_network_that_slurm_would_misread_is_refused(n1, n2, switches, expected) -> None:
    problems = wired(n1, n2, switches).problems
    assert expected in [(problem.code, problem.evidence) for problem in problems]
    assert all(problem.remedy for problem in problems)


def test_every_problem_is_told_at_once_with_those_of_the_hosts() -> None:
    circle = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}, {"name": "leaf1", "parent": "nowhere"}]
    made = wired("leaf1", "", circle, {"n2": host("n2", "10.0.0.3", clock_ahead_s=600.0)})
    assert {problem.code for problem in made.problems} == {"no_switch", "no_parent", "switch_cycle", "clock"}
    assert not made.parts


def test_files_of_this_role_go_when_they_are_no_longer_wanted_and_those_of_others_stay() -> None:
    written = wired("leaf1", "leaf2", [SPINE, *LEAVES]).parts["topology_conf"]
    has = [
        {"item": "/etc/slurm/topology.conf", "content": base64.b64encode(written.encode()).decode()},
        {"item": "/etc/slurm/oci.conf", "content": base64.b64encode(b"RunTimeRun=mine\n").decode()},
        {"item": "/etc/slurm/nothing.conf", "failed": False},
    ]

    def absent(made: Any) -> list[str]:
        peers = {"cluster": made.as_dict(), "nodes": {}, "has": has}
        rows = slurm_controller.desired({}, {}, peers).desired["files"]
        return [row["path"] for row in rows if row.get("state") == "absent" and row["path"].startswith("/etc/slurm/")]

    assert absent(plan()) == ["/etc/slurm/topology.conf"]
    assert absent(wired("leaf1", "leaf2", [SPINE, *LEAVES])) == []


def test_a_node_that_does_not_answer_stays_at_its_switch() -> None:
    groups, hosts = site()
    hosts["ctl"]["look"]["node_lines"] = written()
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    hostvars |= {"n2": {}}
    for name, switch in (("n1", "leaf1"), ("n2", "leaf2")):
        hostvars[name]["slurm_common_switch"] = switch
    params = {**PARAMS, "switches": [SPINE, *LEAVES]}
    made = slurm_common.desired(params, {}, {"groups": groups, "hostvars": hostvars})
    assert made.parts["topology_conf"] == wired("leaf1", "leaf2", [SPINE, *LEAVES]).parts["topology_conf"]
    # One that is not added yet needs none.
    hosts["ctl"]["look"]["node_lines"] = {}
    hostvars["n2"] = {}
    made = slurm_common.desired(params, {}, {"groups": groups, "hostvars": hostvars})
    assert tree(made) == ["SwitchName=spine Switches=leaf1", "SwitchName=leaf1 Nodes=n1"]
