# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles give the hosts of a site with Slurm so that a bad GPU is fenced: from the inventory to the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import settings_of
from tests.unit.project.tree import ROOT

PLAY = """
- name: Nodes
  hosts: slurm_nodes
  gather_facts: false
  tasks:
    - name: Check
      ansible.builtin.include_role: {name: baremetal.gpu.gpu_agent, tasks_from: preflight, public: true}
    - name: Keep what the host would get
      ansible.builtin.copy:
        content: "{{ item.content }}"
        dest: "{{ base }}/{{ inventory_hostname }}-{{ item.path | basename }}"
        mode: "0600"
      loop: "{{ __gpu_agent_plan.desired.files | selectattr('path', 'match', '.*json$')
        | selectattr('content', 'defined') }}"
- name: Controllers
  hosts: slurm_controllers
  gather_facts: false
  tasks:
    - name: Check
      ansible.builtin.include_role: {name: baremetal.gpu.slurm_controller, tasks_from: preflight, public: true}
    - name: Read its plan
      ansible.builtin.include_role: {name: baremetal.gpu.gpu_reconciler, tasks_from: preflight, public: true}
      when: __slurm_controller_reconciles
    - name: Keep what it would get
      ansible.builtin.copy:
        content: "{{ item.content }}"
        dest: "{{ base }}/{{ inventory_hostname }}-{{ item.path | basename }}"
        mode: "0600"
      loop: "{{ __gpu_reconciler_plan.desired.files | selectattr('path', 'match', '.*(json|service)$')
        | selectattr('content', 'defined') }}"
      when: __slurm_controller_reconciles
      vars:
        # As slurm_common finds it.
        slurm_common_cluster: {state_directory: /shared/slurmctld}
    - name: Read whether the health check is on
      ansible.builtin.include_vars: {file: "{{ defaults }}"}
    - name: Keep it
      ansible.builtin.copy:
        content: "{{ slurm_common_health_check | to_json }}"
        dest: "{{ base }}/{{ inventory_hostname }}-health"
        mode: "0600"
"""
DEFAULTS = str(ROOT / "roles/slurm_common/defaults/main.yml")


class Site:
    """Two hosts of slurmctld and a node, on this machine."""

    def __init__(self, base: Path) -> None:
        self.base = base
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        heads = {f"head{number}": {**local, "ansible_host": f"192.0.2.{number}"} for number in (1, 2)}
        self.groups: dict[str, dict[str, Any]] = {
            "slurm_controllers": {"hosts": heads},
            "slurm_nodes": {"hosts": {"gpu1": {**local, "ansible_host": "192.0.2.11"}}},
        }
        (base / "play.yml").write_text(PLAY)

    def run(self, **variables: Any) -> str:
        (self.base / "inventory.json").write_text(json.dumps(self.groups))
        given = {"base": str(self.base), "gpu_reconciler_port": 6999, "defaults": DEFAULTS, **variables}
        argv = ["-i", self.base / "inventory.json", self.base / "play.yml", "-e", json.dumps(given)]
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), *argv],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def told(self, name: str) -> Any:
        return json.loads((self.base / name).read_text())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_slurm_alone_is_enough_for_the_fence(site):
    said = site.run()
    assert "failed=1" not in said, said
    (site.base / "agent.json").write_text(json.dumps(site.told("gpu1-agent.json")))
    config = command.read_config(str(site.base / "agent.json"))
    assert config["slurm"]["controllers"] == ["192.0.2.1:6999", "192.0.2.2:6999"]
    assert config["slurm"]["host"] == "gpu1"
    assert "zookeeper" not in config
    for head in ("head1", "head2"):
        settings = settings_of(site.told(f"{head}-reconciler.json"), "it")
        assert (settings.scheduler, settings.policy.mode, settings.port) == ("slurm", "act", 6999)
        assert settings.state_directory == "/shared/slurmctld/gpuops"
        assert site.told(f"{head}-health") is True


@pytest.mark.parametrize("mode", ["dry-run", "record"])
def test_a_reconciler_that_only_shows_has_no_health_check_that_drains(site, mode):
    said = site.run(gpu_reconciler_mode=mode)
    assert "failed=1" not in said, said
    assert settings_of(site.told("head1-reconciler.json"), "it").policy.mode == mode
    assert site.told("head1-health") is False


def test_a_site_whose_reconciler_needs_zookeeper_stays_as_it_is(site):
    site.groups["gpu_reconcilers"] = {"hosts": {"head1": {}, "head2": {}}}
    said = site.run()
    assert "failed=1" not in said, said
    assert not list(site.base.glob("head*-reconciler.json"))
    assert "slurm" not in site.told("gpu1-agent.json")
    assert site.told("head1-health") is False


def test_a_wrong_setting_is_refused_before_anything_is_changed(site):
    said = site.run(gpu_reconciler_port=70000)
    assert "port is 70000" in said
    assert "failed=1" in said
