# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster on each of two machines of the lab, and modules run against it one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.roles.conftest import INVENTORY, ROOT, ssh

SCRIPT = Path(__file__).parent / "ceph" / "one_node.sh"


def start(machine: str) -> None:
    """Bring up a mon, a mgr, an OSD in memory and an MDS."""
    address = json.loads(ssh(machine, "ip -json -4 address show host0"))[0]["addr_info"][0]["local"]
    ssh(machine, f"cat >/tmp/one_node.sh <<'END_OF_SCRIPT'\n{SCRIPT.read_text()}END_OF_SCRIPT")
    ssh(machine, f"sudo sh /tmp/one_node.sh {address}")


def ceph(machine: str, *words: str) -> Any:
    """What the cluster itself says, past the modules."""
    return json.loads(ssh(machine, f"sudo ceph {' '.join(words)} --format json") or "null")


def run_module(machine: str, module: str, options: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """The result of one module on one machine, as Ansible hands it to a task."""
    program = Path(sys.executable).parent / "ansible"
    with tempfile.TemporaryDirectory() as results:
        arguments = [machine, "-i", INVENTORY, "-m", f"baremetal.gpu.{module}", "--diff", "--tree", results]
        arguments += ["-a", json.dumps(options)] if options else []
        arguments += ["--check"] if check else []
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            cwd=ROOT,
            # Below this verbosity the diff is left out of the file.
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_VERBOSITY": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = Path(results, machine)
        assert found.exists(), done.stdout + done.stderr
        return {**json.loads(found.read_text()), "failed": done.returncode != 0}


__all__ = ["ceph", "run_module", "start"]
