# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab that some tests need, and which tests run side by side.

The first test marked `lab` boots the lab's machines. The tests have a lab of their own, so that they do not disturb the
one of `make lab`; it goes when they end. GPUOPS_KEEP_LAB=1 keeps it, GPUOPS_LAB_ID names another one.

What needs these machines runs one after another, and so does what needs the virtual machine; with pytest's `-n` the
files of all other tests run beside them. What takes longest begins first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
# Directories of the tests that share the lab's machines.
ON_THE_LAB = ("tests/lab/", "tests/roles/", "tests/site/")
# It has a virtual machine of its own.
VIRTUAL_MACHINE = "tests/lab/test_metal.py"

os.environ.setdefault("GPUOPS_LAB_ID", hashlib.sha256(str(ROOT).encode()).hexdigest()[:8] + "-test")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".cache" / "hypothesis"))

# A busy machine is slow, which is not a defect; and where nobody watches, the same input is tried on every run.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("project")


def unit_of_work(nodeid: str) -> str:
    """The tests with the same answer run one after another in one process."""
    path = nodeid.partition("::")[0]
    return "lab" if path.startswith(ON_THE_LAB) and path != VIRTUAL_MACHINE else path


class SideBySide(LoadScopeScheduling):
    """Gives every process one unit of work after another, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    # As collected, and not by the number of tests in a file.
    config.option.loadscopereorder = False
    return SideBySide(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first = {"lab": 0, VIRTUAL_MACHINE: 1}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        return longest_first.get(unit_of_work(item.nodeid), 2), item.get_closest_marker("slow") is not None

    items.sort(key=rank)


class TestLab:
    """`gpuops lab up` before the first test that asks, `gpuops lab down` after the last."""

    __test__ = False

    def __init__(self) -> None:
        self.failure: str | None = None
        self.is_up = False

    def up(self) -> None:
        if not self.is_up and self.failure is None:
            done = self._gpuops_lab("up")
            self.is_up = done.returncode == 0
            if not self.is_up:
                self.failure = f"gpuops lab up ended with {done.returncode}:\n{done.stdout[-6000:]}"
        if self.failure:
            pytest.fail(self.failure, pytrace=False)

    def down(self) -> None:
        if not os.environ.get("GPUOPS_KEEP_LAB"):
            self._gpuops_lab("down")

    @staticmethod
    def _gpuops_lab(verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpuops", "lab", verb],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


test_lab = TestLab()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("lab"):
        test_lab.up()


def pytest_sessionfinish(session: pytest.Session) -> None:
    options = session.config.option
    # A process that pytest-xdist had to kill leaves its machines to the one that had started it.
    had_processes = getattr(options, "numprocesses", None) and "not lab" not in options.markexpr
    if test_lab.is_up or test_lab.failure or had_processes:
        test_lab.down()
