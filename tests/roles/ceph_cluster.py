# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster on each of two machines of the lab, and what is asked of a cluster, one thing at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.roles.conftest import INVENTORY, ROOT, ssh

SCRIPT = Path(__file__).parent / "ceph" / "one_node.sh"
BOTH_WAYS = SCRIPT.with_name("both_ways.py")
UTILS = ROOT / "plugins" / "module_utils"


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


# Questions whose answers stay the same for a while, with errors of the monitors, of the manager and of the parser.
QUESTIONS = (
    "auth ls",
    "osd pool ls detail",
    "osd crush rule dump",
    "mgr module ls",
    "osd purge-new 99 --yes-i-really-mean-it",
    "auth get client.nobody",
    "osd pool get nothing size",
    "osd pool set cephfs_data",
    "config set osd osd_memory_target nonsense",
    "mgr module enable nonsense",
    "fs subvolume info nothing nobody --group_name homes",
    "no such command",
)


def both_ways(machine: str, questions: Sequence[tuple[dict[str, Any], str]]) -> list[Any]:
    """What a cluster answers to each [options of Ceph, words]: by the library, and by the program `ceph`."""
    folder = "/tmp/both-ways"
    # Python makes packages of directories without an `__init__`, too.
    package = "ansible_collections/baremetal/gpu/plugins/module_utils"
    files = {
        f"{package}/{name}": UTILS / name
        for name in ("ceph/client.py", "ceph/library.py", "host/errors.py", "host/run.py")
    }
    ssh(machine, f"rm -rf {folder} && mkdir -p {folder}/{package}/ceph {folder}/{package}/host")
    for name, path in {**files, BOTH_WAYS.name: BOTH_WAYS}.items():
        ssh(machine, f"cat > {folder}/{name} <<'END_OF_FILE'\n{path.read_text()}END_OF_FILE")
    asked = "\n".join(json.dumps([options, words.split()]) for options, words in questions)
    said = ssh(
        machine, f"cd {folder} && sudo python3 -B {BOTH_WAYS.name} 2>errors <<'END_OF_FILE'\n{asked}\nEND_OF_FILE"
    )
    return [json.loads(line) for line in said.splitlines()]


__all__ = ["QUESTIONS", "both_ways", "ceph", "run_module", "start"]
