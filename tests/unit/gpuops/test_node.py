# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops node: a machine comes into the file of hosts and leaves it, and what is there besides stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from gpuops.commands import node
from gpuops.inventory import hosts_file
from tests.unit.gpuops.conftest import Bench

HOSTS = """---
# The site.
all:
  children:
    gpu_cluster: # everything
      hosts:
        head1:
          ansible_host: 192.0.2.11
        # The old one.
        gpu1:
          ansible_host: 192.0.2.31   # in rack 3
          rack: 3
        gpu2: {ansible_host: 192.0.2.32}
      children:
        gpu_nodes:
    gpu_nodes:
      hosts:
        gpu1:
        gpu2:
    slurm_nodes: # run jobs
      children:
        gpu_nodes:
    portals:
      hosts:
        head1:
"""


def test_a_host_comes_into_all_groups_of_another_and_leaves_no_trace() -> None:
    text = hosts_file.add(HOSTS, "gpu3", "192.0.2.33", "gpu1")
    found = yaml.safe_load(text)["all"]["children"]
    assert found["gpu_cluster"]["hosts"]["gpu3"] == {"ansible_host": "192.0.2.33"}
    assert list(found["gpu_nodes"]["hosts"]) == ["gpu1", "gpu2", "gpu3"]
    assert list(found["portals"]["hosts"]) == ["head1"]
    for comment in ("# The site.", "# everything", "# The old one.", "# in rack 3", "# run jobs"):
        assert comment in text
    assert hosts_file.remove(text, "gpu3") == HOSTS
    assert list(hosts_file.groups(hosts_file.remove(HOSTS, "gpu1"))["gpu_nodes"]) == ["gpu2"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("gpu2", "192.0.2.33", "gpu1"), "has gpu2 already"),
        (("gpu3", "192.0.2.31", "gpu1"), "is the address of gpu1"),
        (("gpu3", "192.0.2.33", "gpu7"), "has no host gpu7"),
        (("gpu3: {", "192.0.2.33", "gpu1"), "is not a name with an address"),
        (("gpu3", "192.0.2.33\nx: y", "gpu1"), "is not a name with an address"),
    ],
)
def test_a_wrong_host_is_refused(words: tuple[str, str, str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        hosts_file.add(HOSTS, *words)


def test_the_last_node_of_a_model_may_go_and_the_last_of_all_may_not() -> None:
    models = """
    gpu_nodes:
      children:
        gpu_nodes_a100:
        gpu_nodes_t4:
    gpu_nodes_a100: # the new ones
      hosts:
        gpu1:
    gpu_nodes_t4:
      hosts:
        gpu2:
"""
    before = HOSTS[: HOSTS.index("    gpu_nodes:\n      hosts")] + models[1:] + HOSTS[HOSTS.index("    slurm_nodes") :]
    text = hosts_file.remove(before, "gpu1")
    assert "gpu1" not in text
    assert "# the new ones" in text
    assert list(hosts_file.groups(text)["gpu_nodes_t4"]) == ["gpu2"]
    with pytest.raises(Refused, match="gpu2 is the only host of gpu_nodes"):
        hosts_file.remove(text, "gpu2")


def test_the_only_host_of_a_group_and_forms_that_are_not_understood_are_refused() -> None:
    with pytest.raises(Refused, match="head1 is the only host of portals"):
        hosts_file.remove(HOSTS, "head1")
    braces = "all: {hosts: {gpu1: {}, gpu2: {}}}\n"
    for change in (lambda: hosts_file.remove(braces, "gpu1"), lambda: hosts_file.add(braces, "x", "192.0.2.9", "gpu1")):
        with pytest.raises(Refused, match="in braces"):
            change()
    twice = "a: {children: {g: {hosts: {x: }}}}\nb: {children: {g: {hosts: {x: }}}}\n"
    with pytest.raises(Refused, match="twice"):
        hosts_file.remove(twice, "x")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def site(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench.inventory.unlink(missing_ok=True)
    (bench.path / "hosts.yml").write_text(HOSTS)
    (bench.path / "ansible.cfg").write_text("[defaults]\ninventory = hosts.yml\n")
    monkeypatch.chdir(bench.path)
    return bench


def call(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(node.app, [*words])
    assert done.exit_code == status, done.output
    return done.output


def test_add_shows_what_changes_and_asks(site: Bench) -> None:
    assert "give --yes" in call("add", "gpu3", "192.0.2.33", "--like", "gpu2", status=64)
    assert (site.path / "hosts.yml").read_text() == HOSTS
    said = call("add", "gpu3", "192.0.2.33", "--like", "gpu2", "--yes")
    assert "+        gpu3:\n+          ansible_host: 192.0.2.33" in said
    assert "gpuops up" in said
    assert "gpu3" in (site.path / "hosts.yml").read_text()


class Scheduler:
    """In the place of a run of the drain: a node of Slurm with jobs on it."""

    def __init__(self, jobs: list[dict[str, Any]], status: int = 0) -> None:
        self.jobs, self.status, self.checks = jobs, status, list[bool]()

    def __call__(self, *_words: Any, check: bool, options: list[str], also: Any, **_given: Any) -> Any:
        self.checks.append(check)
        self.timeout = json.loads(options[1])["drain_timeout"]
        row = {"action": "drain", "reason": "", "reason_by": "", "reason_since": "", "ours": True, "jobs": self.jobs}
        also.__self__.nodes["gpu1"] = row
        return type("Outcome", (), {"status": self.status})()


def test_a_node_with_jobs_is_refused_and_neither_drained_nor_removed(
    site: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler([{"id": 7, "user": "alice"}])
    monkeypatch.setattr(node, "run_locked", scheduler)
    said = call("remove", "gpu1", "--yes", status=2)
    assert "7 of alice" in said
    assert "gpuops node remove gpu1 --wait" in said
    assert scheduler.checks == [True]
    assert (site.path / "hosts.yml").read_text() == HOSTS


@pytest.mark.parametrize(("words", "checks"), [((), [True, False]), (("--wait", "60"), [False]), (("--lost",), [])])
def test_a_node_is_drained_and_then_removed(
    site: Bench, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], checks: list[bool]
) -> None:
    scheduler = Scheduler([])
    monkeypatch.setattr(node, "run_locked", scheduler)
    assert "gpuops up" in call("remove", "gpu1", "--yes", *words)
    assert scheduler.checks == checks
    assert list(hosts_file.groups((site.path / "hosts.yml").read_text())["gpu_nodes"]) == ["gpu2"]


def test_a_drain_that_fails_leaves_the_inventory_as_it_is(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "run_locked", Scheduler([], status=4))
    assert "--lost" in call("remove", "gpu1", "--yes", "--wait", "60", status=4)
    assert (site.path / "hosts.yml").read_text() == HOSTS
