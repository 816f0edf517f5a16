# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a playbook has ready before its hosts need it, by what Ansible tells of its own work (ANSIBLE_DEBUG)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


def test_what_asks_the_hosts_after_preflight_is_ready_before_the_first_host_needs_it(tmp_path):
    tasks = [{"baremetal.gpu.gpu_preflight_info": {}}, {"baremetal.gpu.host_drift_info": {"desired": {}}}]
    book = tmp_path / "play.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    python = Path(sys.executable)
    done = subprocess.run(
        [python.with_name("ansible-playbook"), "-i", "node1,node2,node3", "-c", "local", book],
        env=os.environ | {"ANSIBLE_DEBUG": "1", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PYTHON_INTERPRETER": str(python)},
        cwd=tmp_path,  # away from settings by which the banner of a task waits for its first result
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    preflight, comparison = done.stdout.split("TASK [baremetal.gpu.host_drift_info]")
    assert re.findall(r"Lock acquired: .*\.(\w+)-ZIP", preflight).count("host_drift_info") == 1
    assert "Acquiring lock" not in comparison
    assert len(re.findall(r"using cached module: .*\.host_drift_info-", comparison)) == 3


def test_the_plans_of_all_roles_are_loaded_once_for_all_hosts():
    program = (
        "import sys; from ansible_collections.baremetal.gpu.plugins.plugin_utils import before_forks;"
        "from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles;"
        "before_forks.load_plugins();"
        "print([name for name in roles.names() if f'{roles.PACKAGE}.{name}' not in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
