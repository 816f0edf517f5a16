# SPDX-License-Identifier: GPL-3.0-or-later
"""What users install, taken to a machine: a playbook and a module from the tarball of a clone and from the wheel.

The places are those of tests/unit/project/test_installed.py, which knows nothing of this checkout.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.site.plays import lab
from tests.unit.project.test_installed import ansible_user, cloned, command_user
from tests.unit.project.user import User

__all__ = ["ansible_user", "cloned", "command_user"]

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("installed", ["ansible_user", "command_user"])
def test_a_playbook_and_a_module_run_on_a_machine(
    bare_lab: None, installed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    user: User = request.getfixturevalue(installed)
    host = json.loads(lab("inventory"))["_meta"]["hostvars"]["gpu1"]
    reach = {name: value for name, value in host.items() if name.startswith("ansible_")}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"gpu_cluster": {"children": {"gpu_nodes": {"hosts": {"gpu1": reach}}}}}))
    # Nothing sets the clock of the lab's machines but their host.
    settled = json.dumps({"gpu_preflight_refuse": []})
    said = user.run("ansible-playbook", "-i", inventory, "baremetal.gpu.preflight", "-e", settled, cwd=tmp_path)
    assert "unreachable=0" in said
    assert "failed=0" in said
    told = user.run(
        *("ansible", "gpu1", "-i", inventory, "-m", "baremetal.gpu.gpu_facts"),
        cwd=tmp_path,
        ANSIBLE_CALLBACK_RESULT_FORMAT="json",
    )
    facts = json.loads(told.split("=>", 1)[1])["ansible_facts"]["gpu"]
    assert facts["present"] is True
    assert facts["pci"]
