# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops place`` from outside: files in, a choice or a refusal out. Nodes, facts and state are made up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from gpuops.cli import app
from tests.bench import made_up_fleet

APP = {"id": "/train", "cpus": 4, "mem": 1024, "gpus": 2, "instances": 2, "cmd": "train"}


def place(*arguments: object):
    return CliRunner().invoke(app, ["place", *map(str, arguments)])


def gpu(index: int, **more) -> dict:
    return {"index": index, "uuid": f"GPU-{index}", "model": "a100", "memory_mib": 40960, **more}


@pytest.fixture
def nodes(tmp_path) -> Path:
    """a: 4 GPUs, the first fatal, one in use. b: 4 GPUs, free. c: no GPU."""
    path = tmp_path / "nodes.json"
    rows = [
        {
            "name": "a",
            "cpus": 32,
            "memory_mib": 64000,
            "gpus": [gpu(0, verdict="fatal"), gpu(1), gpu(2), gpu(3)],
            "scores": [[None, 10, 10, 10], [10, None, 10, 10], [10, 10, None, 210], [10, 10, 210, None]],
            "tasks": [{"gpus": [1], "cpus": 4, "memory_mib": 1024}],
        },
        {"name": "b", "cpus": 32, "memory_mib": 64000, "gpus": [gpu(number) for number in range(4)]},
        {"name": "c", "cpus": 64, "memory_mib": 64000},
    ]
    path.write_text(json.dumps({"nodes": rows}))
    return path


@pytest.fixture
def snapshot(tmp_path) -> Path:
    """50 hosts with 8 GPUs; the first GPU of the first host is fatal, and every twelfth host is in MIG mode."""
    path = tmp_path / "fleet.jsonl"
    made_up_fleet.write_snapshot(path, 50)
    return path


def state(tmp_path, used: dict[str, int]) -> Path:
    """A master's /state with agents of 64 CPUs and 8 GPUs, on the hosts that are named, with so many GPUs in use."""
    path = tmp_path / "state.json"
    agents = [
        {
            "hostname": name,
            "active": True,
            "resources": {"cpus": 64.0, "mem": 256000.0, "gpus": 8.0, "disk": 1.0, "ports": "[31000-32000]"},
            "used_resources": {"cpus": 4.0, "mem": 1000.0, "gpus": float(gpus), "disk": 0.0},
        }
        for name, gpus in used.items()
    ]
    tasks = [{"state": "TASK_RUNNING", "resources": {"cpus": 4.0, "mem": 100.0, "gpus": 1.0}}]
    path.write_text(json.dumps({"slaves": agents, "frameworks": [{"tasks": tasks}]}))
    return path


def test_a_choice_with_its_reasons(nodes):
    done = place("--nodes", nodes, "--gpus", 2, "--cpus", 4, "--links", "nvlink")
    assert done.exit_code == 0
    assert done.stdout.startswith("a: GPUs 2 GPU-2, 3 GPU-3\n")
    assert "1 of 3 nodes fit" in done.stdout
    assert "links between GPUs not known: 1" in done.stdout


@pytest.mark.parametrize("given", [True, False])
def test_without_nodes_the_sites_own_snapshot_is_taken(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    site = tmp_path / "mysite"
    site.mkdir()
    made_up_fleet.write_snapshot(site / ".gpus.jsonl", 5)
    (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = mysite\n" if not given else "")
    done = place(*(("--inventory", site) if given else ()), "--gpus", 2, "--allow-unknown")
    assert done.exit_code == 0, done.output
    assert re.match(r"node\d+\.cluster\.example: GPUs ", done.stdout)
    assert "last saw them, 20" in done.stderr
    assert str(site / ".gpus.jsonl") in done.stderr


def test_a_site_without_a_snapshot_is_told_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = place("--inventory", tmp_path, "--gpus", 1)
    assert done.exit_code == 64
    assert "gpuops inventory" in done.stderr
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    done = place("--gpus", 1)
    assert done.exit_code == 64
    assert "no inventory is named" in done.stderr


def test_json_is_json(nodes):
    done = place("--nodes", nodes, "--gpu-part", 500, "--json", "--policy", "bundle")
    (row,) = json.loads(done.stdout)["placements"]
    assert row["node"] == "a"
    assert [found["index"] for found in row["gpus"]] == [2]


def test_an_app_is_printed_with_its_constraints_and_nothing_else(nodes, tmp_path):
    path = tmp_path / "app.json"
    path.write_text(json.dumps({**APP, "instances": 1}))
    done = place("--nodes", nodes, "--app", path)
    pinned = json.loads(done.stdout)
    node = pinned["constraints"][0][2]
    assert pinned == {**APP, "instances": 1, "constraints": [["@hostname", "IS", node]]}
    assert done.stderr.startswith(f"{node}: GPUs ")


def test_instances_are_placed_one_after_the_other(nodes, tmp_path):
    path = tmp_path / "app.json"
    path.write_text(json.dumps({**APP, "instances": 3}))
    done = place("--nodes", nodes, "--app", path, "--json")
    rows = json.loads(done.stdout)["placements"]
    assert sorted(row["node"] for row in rows) == ["a", "b", "b"]
    gpus = [(row["node"], found["index"]) for row in rows for found in row["gpus"]]
    assert len(set(gpus)) == 6
    path.write_text(json.dumps({**APP, "instances": 4}))
    done = place("--nodes", nodes, "--app", path)
    assert done.exit_code == 1
    assert "3 of 4 instances would fit" in done.stderr
    path.write_text(json.dumps({**APP, "instances": 3, "constraints": [["@hostname", "UNIQUE"]]}))
    done = place("--nodes", nodes, "--app", path)
    assert done.exit_code == 1
    assert "has an instance already: 2 nodes" in done.stderr


def test_a_refusal_says_which_condition_excludes_how_many(nodes):
    done = place("--nodes", nodes, "--gpus", 4, "--cpus", 30, "--exclude", "b:0")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "none of the 3 nodes fits" in done.stderr
    assert "not enough free CPU: 1 nodes" in done.stderr
    assert "GPUs excluded (health fatal): 1 nodes" in done.stderr
    assert "GPUs excluded (excluded by name): 1 nodes" in done.stderr
    assert "no GPU: 1 nodes" in done.stderr


def test_a_snapshot_and_the_state_of_a_mesos_master(snapshot, tmp_path):
    names = [made_up_fleet.host_name(number) for number in range(3)]
    said = state(tmp_path, dict(zip(names, (0, 8, 5), strict=True)))
    done = place(
        "-n", snapshot, "--mesos-state", said, "--gpus", 3, "--cpus", 8, "--model", "*", "--json", "--allow-unknown"
    )
    (row,) = json.loads(done.stdout)["placements"]
    assert row["node"] == names[2]
    assert [found["index"] for found in row["gpus"]] == [5, 6, 7]
    assert "no agent in the Mesos state: 47" in row["reasons"][0]
    assert "GPUs excluded (in MIG mode): 1" in row["reasons"][0]


def slurm_node(name, **more):
    return {
        "name": name,
        "in_service": True,
        "drained": False,
        "gpus": 8,
        "gpus_used": 0,
        "cpus": 32,
        "free_cpus": 32,
        "free_memory_mib": 65536,
        **more,
    }


@pytest.mark.parametrize(("key", "scheduler", "used"), [("slurm", "Slurm", 3), ("kubernetes", "Kubernetes", 2)])
def test_a_snapshot_and_what_gpuops_status_says_of_a_scheduler(snapshot, tmp_path, key, scheduler, used):
    drained, busy = (made_up_fleet.host_name(number) for number in (1, 2))
    uuids = {gpu["index"]: gpu["uuid"] for gpu in made_up_fleet.facts_of(2)["devices"]}
    said = tmp_path / "status.json"
    # One GPU is a job's, one is held, and of a third nobody knows which it is.
    document = {
        key: {
            # Those that are held are used by jobs in Slurm alone.
            "nodes": [slurm_node(drained, drained=True), slurm_node(busy, gpus_used=used)],
            "held": [{"host": busy, "uuid": uuids[3]}],
            "jobs": [{"waits": False, "cpus": 4, "gpus": 2}],
        },
        "leases": [{"host": busy, "gpus": [{"uuid": uuids[7]}, {"uuid": None}]}],
    }
    said.write_text(json.dumps(document))
    option = f"--{key}-status"
    done = place("-n", snapshot, option, said, "--gpus", 5, "--cpus", 8, "--json", "--allow-unknown")
    (row,) = json.loads(done.stdout)["placements"]
    assert row["node"] == busy
    assert [found["index"] for found in row["gpus"]] == [1, 2, 4, 5, 6]
    assert f"{scheduler} gives it no jobs: 1" in row["reasons"][0]
    assert f"no node in {scheduler}: 48" in row["reasons"][0]
    done = place("-n", snapshot, option, said, "--gpus", 6, "--allow-unknown")
    assert done.exit_code == 1
    said.write_text("{}")
    done = place("-n", snapshot, option, said)
    assert (done.exit_code, done.stdout) == (64, "")
    assert f"no nodes of {scheduler}" in done.stderr


def test_a_snapshot_alone_knows_no_cpu(snapshot):
    done = place("-n", snapshot, "--cpus", 1, "--allow-unknown")
    assert done.exit_code == 1
    assert "free CPU not known: 50 nodes" in done.stderr


def test_broken_facts_exclude_their_node_alone(snapshot):
    snapshot.write_text(snapshot.read_text().replace('"schema":1,', '"schema":99,', 1))
    done = place("-n", snapshot, "--gpus", 9, "--allow-unknown")
    assert "facts cannot be used: 1 nodes" in done.stderr
    assert fleet_file.KIND in snapshot.read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpus", 2, "--gpu-part", 500], "does not go with --gpus"),
        (["--gpu-part", 1200], "1200/1000"),
        (["--links", "wire"], "there are nvlink"),
        (["--policy", "luck"], "there is no policy 'luck'"),
        (["--exclude", "z"], "'z' to exclude"),
        (["--app", "/nowhere.json"], "/nowhere.json"),
        (["--mesos-state", "/nowhere.json"], "is not a snapshot"),
        (["--slurm-status", "/nowhere.json"], "is not a snapshot"),
        (["--slurm-status", "a", "--mesos-state", "b"], "by what the nodes run"),
        (["--kubernetes-status", "/nowhere.json"], "is not a snapshot"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_chosen(nodes, arguments, problem):
    done = place("--nodes", nodes, *arguments)
    assert (done.exit_code, done.stdout) == (64, "")
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"name": "a", "cpus": -1}, "a: cpus is -1"),
        ({"name": "a", "gpus": [{"index": "x"}]}, "a: a GPU has the index 'x'"),
        ({"name": "a", "gpus": [gpu(0), gpu(0)]}, "same index"),
        ({"name": "a", "gpus": [gpu(0, verdict="fine")]}, "verdict 'fine'"),
        ({"name": "a", "gpus": [gpu(0)], "scores": [[1, 2]]}, "not a table of 1 by 1"),
        ({"name": "a", "gpus": [gpu(0)], "tasks": [{"gpus": [5]}]}, "GPUs [5]"),
        ({"name": "a", "gpus": [gpu(0)], "tasks": [{"gpus": [0]}, {"gpus": [0]}]}, "need more than there is"),
        ({"cpus": 1}, "a name each"),
    ],
)
def test_nodes_that_are_not_described_as_they_should_be(tmp_path, broken, problem):
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps([broken]))
    done = place("--nodes", path)
    assert (done.exit_code, done.stdout) == (64, "")
    assert problem in done.stderr
