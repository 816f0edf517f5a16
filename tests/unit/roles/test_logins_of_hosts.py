# SPDX-License-Identifier: GPL-3.0-or-later
"""The logins that gpu_agent and gpu_reconciler make on the controller: what each host and the reconciler would get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import settings_of
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import digest_id
from tests.unit.project.tree import ROOT

PLAY = """
- name: Hosts
  hosts: mesos_agents
  gather_facts: false
  tasks:
    - name: Find the login
      ansible.builtin.include_role: {name: baremetal.gpu.gpu_agent, tasks_from: site, public: true}
    - name: Keep what the host would get
      ansible.builtin.copy:
        content: >-
          {{ (__gpu_agent_plan.desired.files | selectattr('path', 'eq', __gpu_agent_credentials) | first).content }}
        dest: "{{ base }}/agent-{{ inventory_hostname }}"
        mode: "0600"
- name: Reconciler
  hosts: gpu_reconcilers
  gather_facts: false
  tasks:
    - name: Check
      ansible.builtin.include_role: {name: baremetal.gpu.gpu_reconciler, tasks_from: preflight, public: true}
    - name: Keep what it would get
      ansible.builtin.copy:
        content: "{{ item.content }}"
        dest: "{{ base }}/{{ item.path | basename }}"
        mode: "0600"
      loop: "{{ __gpu_reconciler_plan.desired.files | selectattr('path', 'match', '.*json$') }}"
      no_log: true
"""


class Controller:
    """Three hosts, of which one has the reconciler, on this machine."""

    def __init__(self, base: Path) -> None:
        self.base, self.secrets = base, base / ".secrets/gpu_reconciler.json"
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_host": "192.0.2.1",
        }
        self.groups: dict[str, dict[str, Any]] = {
            "mesos_agents": {"hosts": {"gpu1": {**local}, "gpu2": {**local, "mesos_agent_hostname": "two.example"}}},
            "gpu_reconcilers": {"hosts": {"master": local}},
            "mesos_masters": {"hosts": {"master": local}},
            "zookeeper": {"hosts": {"master": local}},
        }
        (base / "play.yml").write_text(PLAY)

    def run(self, **variables: Any) -> str:
        (self.base / "inventory.json").write_text(json.dumps(self.groups))
        given = {"base": str(self.base), "mesos_common_authentication": "off", **variables}
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                self.base / "inventory.json",
                self.base / "play.yml",
                "-e",
                json.dumps(given),
            ],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def passes(self, **variables: Any) -> str:
        said = self.run(**variables)
        assert "failed=0" in said
        assert "failed=1" not in said, said
        return said

    def told(self, name: str) -> Any:
        return json.loads((self.base / name).read_text())


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_each_host_has_a_login_of_its_own_and_the_reconciler_knows_it_without_the_password(controller):
    said = controller.passes()
    first, second = controller.told("agent-gpu1"), controller.told("agent-gpu2")
    assert [first["user"], second["user"]] == ["gpu-agent-gpu1", "gpu-agent-gpu2"]
    assert first["password"] != second["password"]
    assert set(first) == {"user", "password"}
    assert oct(controller.secrets.stat().st_mode & 0o777) == "0o600"
    assert controller.told("reconciler-hosts.json") == {
        "gpu1": digest_id(first["user"], first["password"]),
        # As its Mesos agent is called.
        "two.example": digest_id(second["user"], second["password"]),
    }
    assert set(controller.told("reconciler-credentials.json")) == {"zookeeper_user", "zookeeper_password"}
    assert settings_of(controller.told("reconciler.json"), "x").logins == "/etc/baremetal-gpu/reconciler-hosts.json"
    for password in json.loads(controller.secrets.read_text()).values():
        assert password not in said
    before = controller.secrets.read_text()
    controller.groups["mesos_agents"]["hosts"]["gpu3"] = dict(controller.groups["mesos_agents"]["hosts"]["gpu1"])
    controller.passes()
    assert controller.told("agent-gpu1") == first
    assert set(json.loads(controller.secrets.read_text())) - set(json.loads(before)) == {"gpu-agent-gpu3"}


@pytest.mark.slow
def test_the_login_that_all_shared_goes_on_until_it_is_taken_out(controller):
    old = {"gpu-agents": "shared-password", "gpu-reconciler": "own-password"}
    controller.secrets.parent.mkdir(mode=0o700)
    controller.secrets.write_text(json.dumps(old))
    controller.secrets.chmod(0o600)
    controller.passes()
    told = controller.told("agent-gpu1")
    assert (told["user"], told["former_user"], told["former_password"]) == (
        "gpu-agent-gpu1",
        "gpu-agents",
        "shared-password",
    )
    secrets = controller.told("reconciler-credentials.json")
    assert secrets["zookeeper_agents_user"] == "gpu-agents"
    assert secrets["zookeeper_password"] == "own-password"
    # The reconciler's own is exchanged, and the shared one is over.
    kept = json.loads(controller.secrets.read_text())
    del kept["gpu-agents"]
    kept["gpu-reconciler-former"] = kept.pop("gpu-reconciler")
    controller.secrets.write_text(json.dumps(kept))
    controller.passes()
    assert set(controller.told("agent-gpu1")) == {"user", "password"}
    secrets = controller.told("reconciler-credentials.json")
    assert "zookeeper_agents_user" not in secrets
    assert secrets["zookeeper_former_password"] == "own-password"
    assert secrets["zookeeper_password"] != "own-password"


@pytest.mark.slow
def test_what_would_let_one_speak_for_another_or_anybody_give_orders_is_refused(controller):
    given = {"gpu_reconciler_zookeeper_servers": ["192.0.2.1:2181"]}
    agents = controller.groups.pop("mesos_agents")
    said = controller.run(**given, gpu_reconciler_mode="act")
    assert "there is no login for ZooKeeper, where anybody could then give orders" in " ".join(said.split())
    login = {"gpu_reconciler_zookeeper_user": "r", "gpu_reconciler_zookeeper_password": "secret-r"}
    shared = {"user": "agents", "password": "secret-a"}
    said = controller.run(**given, **login, gpu_reconciler_hosts={"gpu1": shared, "gpu2": shared})
    assert "gpu1 and gpu2 have the same login" in said
    assert "secret-a" not in said
    controller.groups["mesos_agents"] = agents
    agents["hosts"]["gpu1"]["mesos_agent_hostname"] = "two.example"
    assert "both have two.example as the name of their Mesos agent" in " ".join(controller.run().split())
