# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the tests, and the lab that some of them need.

What is quick runs first. If tests marked `lab` were selected, the lab's machines are made and booted in the background
from the start, so that they are ready (or nearly) when the first of these tests asks for them. The tests have a lab of
their own, so that they do not disturb the one of `make lab`; it goes when they end. GPUOPS_KEEP_LAB=1 keeps it,
GPUOPS_LAB_ID names another one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("GPUOPS_LAB_ID", hashlib.sha256(str(ROOT).encode()).hexdigest()[:8] + "-test")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".cache" / "hypothesis"))

# A busy machine is slow, which is not a defect; and where nobody watches, the same input is tried on every run.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("project")


class BackgroundLab:
    """`gpuops lab up`, started early and waited for late."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] | None = None

    def start(self) -> None:
        path = ROOT / ".cache" / "tests" / "lab-up.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.log = path.open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuops", "lab", "up"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> None:
        """Return when the machines are up; fail the test that asks otherwise."""
        if self.process is None or self.log is None or self.process.wait() == 0:
            return
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")
        pytest.fail(f"gpuops lab up ended with {self.process.returncode}:\n{said[-6000:]}", pytrace=False)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        self.process.wait()
        if not os.environ.get("GPUOPS_KEEP_LAB"):
            subprocess.run([sys.executable, "-m", "gpuops", "lab", "down"], cwd=ROOT, check=False)


background_lab = BackgroundLab()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def is_marked(item: pytest.Item, name: str) -> bool:
        return item.get_closest_marker(name) is not None

    items.sort(key=lambda item: (is_marked(item, "slow"), is_marked(item, "lab")))


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any(item.get_closest_marker("lab") for item in session.items)
    if wanted and not session.config.option.collectonly:
        background_lab.start()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("lab"):
        background_lab.wait()


def pytest_sessionfinish() -> None:
    background_lab.stop()
