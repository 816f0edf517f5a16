# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, ROOT, try_run

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# Nothing listens on port 9 (discard) of this machine.
DEAD = {"ansible_host": "127.0.0.1", "ansible_port": 9}


class Bench:
    """A site of hosts that all are this machine, and gpuops called there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inventory = path / "hosts.json"
        (path / "ansible.cfg").write_text("[defaults]\ninventory = hosts.json\ninject_facts_as_vars = false\n")

    def hosts(self, **hosts: dict[str, object]) -> None:
        self.inventory.write_text(json.dumps({"all": {"hosts": hosts}}))

    def playbook(self, text: str, name: str = "play.yml") -> None:
        (self.path / name).write_text(text)

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}

    def call(self, *words: str, **more: str):
        return try_run([sys.executable, "-m", "gpuops", *words], cwd=self.path, PYTHONPATH=str(ROOT), **more)

    def record(self) -> dict[str, object]:
        """What is kept of the last run."""
        return json.loads((self.runs()[-1] / "run.json").read_text())

    def runs(self) -> list[Path]:
        return sorted((self.path / ".gpuops" / "runs").iterdir())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
