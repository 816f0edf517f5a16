# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks on a finished machine of the lab, as an operator runs them."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.harness import ROOT, NotHere, Sample

MACHINE = "gpu1"
LAB = "inventories/lab"
NOTHING = Path(__file__).with_name("nothing.yml")
BIN = Path(sys.executable).parent


def lab(*words: str) -> str:
    done = subprocess.run([ROOT / "tools" / "lab", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"tools/lab {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}".strip())
    return done.stdout


def machine() -> dict[str, Any]:
    """The variables of the machine, if it is up."""
    known: dict[str, Any] = json.loads(lab("inventory"))["_meta"]["hostvars"]
    if MACHINE not in known:
        raise NotHere(f"no machine {MACHINE} is up; `make lab-node` makes one")
    return dict(known[MACHINE])


def play(playbook: Path, *options: str, pipelining: bool = True, inventory: str | Path = LAB, hosts: int = 1) -> Sample:
    """A run that changed nothing, with its output: wall time and the CPU of the controller for each host."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [
            *(BIN / "ansible-playbook", "-i", inventory, "--limit", f"{MACHINE}*", "--forks", f"{hosts}", playbook),
            *("-e", json.dumps({"cuda_versions": []}), *options),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": str(pipelining),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    changed = re.findall(rf"^{MACHINE}\S* +: ok=\d+ +changed=(\d+)", done.stdout, re.MULTILINE)
    if done.returncode or len(changed) != hosts:
        raise SystemExit(f"{playbook} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(cpu / hosts, 0.0, " ".join(changed) if "-vvv" not in options else done.stdout, wall)
