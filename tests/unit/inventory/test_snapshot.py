# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops inventory, as it is called."""

from __future__ import annotations

import json
import os
import sys

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from gpuops.inventory.snapshot import InventoryError, hosts_of
from tests.bench import made_up_fleet
from tests.unit.project.tree import BIN, try_run
from tests.unit.sites import members

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# Nothing listens on port 9 (discard) of this machine.
DEAD = {"ansible_host": "127.0.0.1", "ansible_port": 9}


@pytest.fixture
def snapshot(site):
    """A call of gpuops inventory: (exit code, output, error output in one line)."""
    site.write_plugin("snapshot: .gpus.jsonl")

    def call(*words: str):
        # Whoever names no site means the one that ansible.cfg names.
        named = {**site.environment, "ANSIBLE_INVENTORY": str(site.path)}
        done = try_run([BIN / "gpuops", "inventory", *words], cwd=site.path, **named)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, " ".join(done.stderr.split())

    return call


@pytest.mark.parametrize(("limit", "told"), [("all", ""), ("here", ""), ("gpu_count_8", "does not exist yet")])
def test_hosts_are_chosen_and_nobody_is_warned_of_what_they_did_not_ask_for(site, monkeypatch, capsys, limit, told):
    site.write_plugin("snapshot: .gpus.jsonl")
    write_hosts(site, here=HERE)
    for name, value in {**site.environment, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, str(value))
    if told:
        with pytest.raises(InventoryError, match="no host matches 'gpu_count_8'"):
            hosts_of(site.path, limit)
        assert told in capsys.readouterr().err
    else:
        assert hosts_of(site.path, limit) == (["here"], ["here"])
        assert capsys.readouterr().err == ""


def rows(site) -> dict[str, fleet_file.Row]:
    return {row.host: row for row in fleet_file.read(str(site.path / ".gpus.jsonl"), facts=True)}


def write_hosts(site, **hosts) -> None:
    site.write("hosts.yml", json.dumps({"all": {"hosts": hosts}}))


def test_hosts_are_asked_and_one_that_is_down_keeps_what_was_known(site, snapshot):
    """The first run finds this machine only; the other host's row is put there as if it had answered once."""
    write_hosts(site, here=HERE, dead=DEAD)
    code, said, errors = snapshot()
    assert code == 0
    assert "1 hosts looked at, 0 kept as they were" in said
    assert "dead: gpu_unknown: " in errors
    assert "Connection refused" in errors
    assert set(rows(site)) == {"here"}
    assert rows(site)["here"].facts()["schema"] == 1
    listed, _warnings = site.load()
    assert members(listed, "gpu_unknown") == ["dead"]

    before = rows(site)["here"]
    dead, gone = (fleet_file.row_of(name, 1.0, made_up_fleet.facts_of(3)) for name in ("dead", "gone"))
    fleet_file.write(str(site.path / ".gpus.jsonl"), 1.0, [before, dead, gone])
    code, said, errors = snapshot()
    assert code == 0
    assert "dead: keeps what was known: " in errors
    assert set(rows(site)) == {"here", "dead"}
    assert rows(site)["dead"] == dead
    assert rows(site)["here"].time > before.time
    listed, _warnings = site.load()
    assert "dead" in members(listed, "gpu_count_8")


def test_a_broken_snapshot_does_not_stand_in_the_way_of_a_new_one(site, snapshot):
    write_hosts(site, here=HERE)
    site.write(".gpus.jsonl", '{"kind": "baremetal.gpu snapshot", "schema": 0}\n')
    assert "has schema 0" in site.failure()
    code, _said, errors = snapshot()
    assert code == 0
    assert "nothing was kept of the earlier file" in errors
    assert "has schema 0" in errors
    assert set(rows(site)) == {"here"}


def test_from_the_fact_cache(site, snapshot, fact_cache):
    site.environment.update(ANSIBLE_CACHE_PLUGIN="jsonfile", ANSIBLE_CACHE_PLUGIN_CONNECTION=str(fact_cache))
    site.write_hosts("node3", "node1", "node5", "bare")
    code, said, errors = snapshot("--from-cache")
    assert code == 0
    assert list(rows(site)) == ["node3", "node1"]
    assert rows(site)["node3"].facts() == made_up_fleet.facts_of(3)
    assert "node5: gpu_unknown: its facts cannot be used: they have schema 0" in errors
    assert "bare: gpu_unknown: the fact cache has no facts of its GPUs" in errors
    counted = {line.split()[1]: int(line.split()[0]) for line in said.splitlines()[:-1]}
    assert counted["gpu_count_8"] == counted["gpu_unknown"] == 2
    assert counted["gpu_model_tesla_t4"] == 1


def test_with_a_limit_the_others_keep_what_is_known(site, snapshot, fact_cache):
    site.environment.update(ANSIBLE_CACHE_PLUGIN="jsonfile", ANSIBLE_CACHE_PLUGIN_CONNECTION=str(fact_cache))
    site.write_hosts("node1", "node2")
    assert snapshot("--from-cache")[0] == 0
    before = rows(site)
    # Groups of the snapshot that is there can be named, such as those who are new.
    site.write_hosts("node1", "node2", "node3")
    code, said, _errors = snapshot("--from-cache", "--limit", "gpu_unknown")
    assert code == 0
    assert "1 hosts looked at, 2 kept as they were" in said
    after = rows(site)
    assert list(after) == ["node1", "node2", "node3"]
    assert {name: after[name] for name in before} == before


def test_of_a_file_that_was_cut_off_nothing_broken_is_kept(site, snapshot, fact_cache):
    site.environment.update(ANSIBLE_CACHE_PLUGIN="jsonfile", ANSIBLE_CACHE_PLUGIN_CONNECTION=str(fact_cache))
    site.write_hosts("node1", "node2", "node3")
    assert snapshot("--from-cache")[0] == 0
    path = site.path / ".gpus.jsonl"
    path.write_text(path.read_text()[:-20])
    code, said, _errors = snapshot("--from-cache", "--limit", "node1")
    assert code == 0
    assert "1 hosts looked at, 1 kept as they were" in said
    assert [(name, row.facts()["schema"]) for name, row in rows(site).items()] == [("node1", 1), ("node2", 1)]


def test_a_fact_cache_is_filled_by_the_way(site, snapshot, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    site.environment.update(ANSIBLE_CACHE_PLUGIN="jsonfile", ANSIBLE_CACHE_PLUGIN_CONNECTION=str(cache))
    write_hosts(site, here=HERE)
    assert snapshot()[0] == 0
    assert [name for name in os.listdir(cache) if name.endswith("here")]


def test_where_nobody_answers_the_file_stays(site, snapshot):
    write_hosts(site, dead=DEAD)
    made_up_fleet.write_snapshot(site.path / ".gpus.jsonl", 2)
    before = (site.path / ".gpus.jsonl").read_text()
    code, said, errors = snapshot()
    assert code == 1
    assert not said
    assert "none of the 1 hosts gave facts" in errors
    assert "is left as it was: dead: " in errors
    assert (site.path / ".gpus.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--limit", "nobody"], "no host matches 'nobody'"),
        (["--from-cache"], "fact_caching is 'memory', which keeps no facts"),
        (["--output", "missing/file"], "missing/file cannot be written: "),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said(site, snapshot, words, expected):
    write_hosts(site, here=HERE)
    code, _said, errors = snapshot(*words)
    assert code == 1
    assert expected in errors
    assert not (site.path / ".gpus.jsonl").exists()


def test_an_inventory_that_cannot_be_read(site, snapshot):
    site.write("hosts.yml", "all: [")
    code, _said, errors = snapshot()
    assert code == 1
    assert "hosts.yml" in errors
