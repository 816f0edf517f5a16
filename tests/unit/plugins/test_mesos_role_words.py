# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles of Mesos ask of a host beside the program: SASL's plugin, and no variable that leaks to children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.tree import ROOT

pytestmark = pytest.mark.slow

PLAY = """
- name: What is asked of hosts of both kinds
  hosts: all
  gather_facts: false
  tasks:
    - name: Look at the system
      ansible.builtin.include_role: {name: baremetal.gpu.mesos_common, public: true}
    - name: Say which system it is
      ansible.builtin.set_fact: {os_family: "{{ family }}", cacheable: true}
    - name: Say what is asked for
      ansible.builtin.copy:
        dest: "{{ told }}/{{ inventory_hostname }}"
        content: "{{ __mesos_common_desired.present.packages | to_json }}"
      vars:
        mesos_common_job:
          {sources: ["{{ __mesos_common_source }}"], files: [], unit: x.service, strangers: []}
"""
IMAGE = "mesos@sha256:" + "0" * 64
HOSTS = {
    "debian": ({"family": "Debian"}, ["libsasl2-modules"]),
    "el": ({"family": "RedHat"}, ["cyrus-sasl-md5"]),
    "offered": ({"family": "Debian", "mesos_common_authentication": "offered"}, ["libsasl2-modules"]),
    "off": ({"family": "Debian", "mesos_common_authentication": "off"}, []),
    "image": ({"family": "Debian", "mesos_common_method": "image", "mesos_common_image": IMAGE}, []),
    "repository": (
        {"family": "RedHat", "mesos_common_method": "repository", "mesos_common_repository": {"name": "x"}},
        ["cyrus-sasl-md5", "mesos"],
    ),
}


def test_sasls_plugin_comes_along_where_programs_show_a_secret(tmp_path: Path) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {name: {**local, "mesos_common_sha256": "ab" * 32, **row} for name, (row, _wanted) in HOSTS.items()}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "told").mkdir()
    command = [Path(sys.executable).with_name("ansible-playbook"), "-i", tmp_path / "inventory.json"]
    done = subprocess.run(
        [*command, "-e", f"told={tmp_path}/told", tmp_path / "play.yml"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    told = {name: json.loads((tmp_path / "told" / name).read_text()) for name in HOSTS}
    assert {name: sorted(row["name"] for row in rows) for name, rows in told.items()} == {
        name: wanted for name, (_row, wanted) in HOSTS.items()
    }


@pytest.mark.parametrize("path", sorted(ROOT.glob("roles/*/templates/*.service.j2")), ids=lambda path: path.stem)
def test_no_unit_has_a_loaders_variable_that_its_children_inherit(path: Path) -> None:
    text = path.read_text()
    assert "[Service]" in text
    assert "LD_LIBRARY_PATH" not in text
    assert "LD_PRELOAD" not in text
