# SPDX-License-Identifier: GPL-3.0-or-later
"""Run scenarios of Molecule as people do, and keep what they print.

tests/conftest.py prints the logs at the end of a test run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "tests"


def log_of(scenario: str) -> Path:
    """What the last run of a scenario printed."""
    return LOGS / f"molecule-{scenario}.log"


@dataclass
class Scenario:
    """One scenario. `environment` is added to that of every command; a variable that is None is taken out."""

    name: str
    environment: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        log_of(self.name).write_text("")

    def run(self, command: str, **environment: str) -> tuple[int, str]:
        """Exit status and output of `molecule COMMAND -s NAME`."""
        # Molecule finds its tools by PATH, also where the virtual environment is not activated.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        merged = {**os.environ, "PATH": path, "NO_COLOR": "1", **self.environment, **environment}
        with log_of(self.name).open("a+", encoding="utf-8") as log:
            begin = log.tell()
            done = subprocess.run(
                [sys.executable, "-m", "molecule", command, "--scenario-name", self.name],
                cwd=ROOT,
                env={name: value for name, value in merged.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
            log.seek(begin)
            return done.returncode, log.read()
