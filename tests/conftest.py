# SPDX-License-Identifier: GPL-3.0-or-later
"""The labs that some tests need, and which tests run side by side.

The first test marked `lab` boots the machines. The tests have labs of their own, so that they do not disturb the one of
`make lab`; they go when the tests end. GPUOPS_KEEP_LAB=1 keeps them, GPUOPS_LAB_ID names one for all tests.

Tests that share machines run one after another; with pytest's `-n` the others, file by file, run beside them. What
takes longest begins first.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.molecule_scenario import LOGS

ROOT = Path(__file__).resolve().parents[1]
MASK = os.umask(0o022)
os.umask(MASK)
# Who shares a lab, and with it a unit of work, by the beginning of a test's path.
UNITS = {
    # A whole cluster, on machines of its own.
    "tests/site/test_term.py": "term",
    # On virtual machines.
    "tests/site/test_term_nfs.py": "nfs",
    "tests/site/test_kubernetes": "kubernetes",
    "tests/site/": "site",
    # They boot the storage cluster's machines beside the lab's, which would only wait in the lab of the other roles.
    "tests/roles/test_ceph_": "ceph",
    "tests/roles/": "roles",
    # It has a virtual machine of its own.
    "tests/lab/test_metal.py": "metal",
    # Each scenario makes its own machines.
    "tests/lab/test_scenarios.py": "molecule",
    "tests/lab/": "roles",
}
LONGEST_FIRST = ("site", "roles", "ceph", "term", "nfs", "kubernetes", "molecule", "metal")
# What a unit has instead of the standard machines.
MACHINES = {
    "term": ("head1:trixie:no-gpu", "gpu1:trixie:a100-sxm4-40gb-x2", "gpu2:trixie:t4-x1"),
    "kubernetes": ("kcp1:trixie:no-gpu", "kgpu1:trixie:a100-sxm4-40gb-x2", "kgpu2:trixie:t4-x1"),
}
# What then takes longest comes next, and so does what mostly waits, while a lab still keeps the processors busy.
# Nothing of it is to be left at the end, when other processes have nothing to do any more.
THEN = (
    "tests/unit/project/test_static.py",
    "tests/unit/plugins/module_utils/health/test_scenarios.py",
    "tests/sanity/test_ansible_test.py",
    "tests/unit/reconcile/test_reconcile_command.py",
    "tests/unit/plugins/module_utils/agent/test_agent.py",
    "tests/unit/plugins/module_utils/agent/test_unsaved.py",
    "tests/unit/plugins/module_utils/gpu/test_nvml_events.py",
    "tests/unit/reconcile/test_agent_zookeeper.py",
    "tests/unit/plugins/modules/test_ceph_leaving.py",
    "tests/unit/gpuops/test_shards.py",
    "tests/unit/gpuops/test_up.py",
    "tests/security/test_hostile_host.py",
)
ORDER = (*LONGEST_FIRST, *THEN)

PREFIX = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
# A process of pytest-xdist has the name that its parent has set.
LAB_IS_GIVEN = not os.environ.get("GPUOPS_LAB_ID", f"{PREFIX}-").startswith(f"{PREFIX}-")
if not LAB_IS_GIVEN:
    os.environ["GPUOPS_LAB_ID"] = f"{PREFIX}-test"
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".cache" / "hypothesis"))

# A busy machine is slow, which is not a defect; and where nobody watches, the same input is tried on every run.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("project")


def unit_of_work(nodeid: str) -> str:
    """The tests with the same answer run one after another in one process."""
    path = nodeid.partition("::")[0]
    unit = next((unit for beginning, unit in UNITS.items() if path.startswith(beginning)), path)
    return "site" if LAB_IS_GIVEN and unit in ("roles", "ceph") else unit


class SideBySide(LoadScopeScheduling):
    """Gives every process one unit of work after another, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    # As collected, and not by the number of tests in a file.
    config.option.loadscopereorder = False
    return SideBySide(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gone := [path for path in THEN if not (ROOT / path).is_file()]:
        raise pytest.UsageError(f"THEN in tests/conftest.py names files that are not there: {', '.join(gone)}")

    def rank(item: pytest.Item) -> tuple[int, bool]:
        unit = unit_of_work(item.nodeid)
        place = ORDER.index(unit) if unit in ORDER else len(ORDER)
        return place, item.get_closest_marker("slow") is not None

    items.sort(key=rank)


class ToldAtOnce:
    """A failure is told when it comes about, too: all tests take longer than an hour, and a run may be stopped."""

    LINES = 30

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reporter.ensure_newline()
            self.reporter.write_line(f"{report.when} of {report.nodeid} failed:")
            for line in report.longreprtext.splitlines()[-self.LINES :]:
                self.reporter.write_line(f"  {line}")


class MoleculeOutput:
    """What the scenarios of this test run printed, at its end."""

    def __init__(self, since: float) -> None:
        self.since = since

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for log in sorted(LOGS.glob("molecule-*.log")):
            if log.stat().st_mtime >= self.since:
                terminalreporter.section(log.stem)
                terminalreporter.write_line(log.read_text(encoding="utf-8"))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # The processes of pytest-xdist have no reporter; their parent hears of their tests.
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(ToldAtOnce(reporter))
        config.pluginmanager.register(MoleculeOutput(time.time()))


class SharedLab:
    """`tools/lab up` before the first test that asks, `tools/lab down` after the last."""

    def __init__(self, unit: str) -> None:
        self.id = os.environ["GPUOPS_LAB_ID"] if LAB_IS_GIVEN else f"{PREFIX}-{unit}"
        self.machines = [word for text in MACHINES.get(unit, ()) for word in ("--machine", text)]
        self.failure: str | None = None
        self.was_begun = False

    def up(self) -> None:
        if not self.was_begun:
            self.was_begun = True
            done = self._run_lab("up", *self.machines)
            if done.returncode != 0:
                self.failure = f"tools/lab up ended with {done.returncode}:\n{done.stdout[-6000:]}"
        if self.failure:
            pytest.fail(self.failure, pytrace=False)

    def down(self) -> None:
        if not os.environ.get("GPUOPS_KEEP_LAB"):
            self._run_lab("down")

    def _run_lab(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.lab.machines", *words],
            cwd=ROOT,
            env={**os.environ, "GPUOPS_LAB_ID": self.id},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


labs = {unit: SharedLab(unit) for unit in LONGEST_FIRST}


def pytest_runtest_setup(item: pytest.Item) -> None:
    unit = unit_of_work(item.nodeid)
    if unit in labs:
        os.environ["GPUOPS_LAB_ID"] = labs[unit].id
    if item.get_closest_marker("lab"):
        labs[unit].up()


def pytest_sessionfinish(session: pytest.Session) -> None:
    options = session.config.option
    # A process that pytest-xdist had to kill leaves its machines to the one that had started it.
    had_processes = bool(getattr(options, "numprocesses", None)) and "not lab" not in options.markexpr
    for lab in labs.values():
        if lab.was_begun or had_processes:
            lab.down()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A signal that a test has blocked here would be blocked in all that later tests start, which then never end; and
    with another umask their files would have other modes."""
    if (mask := os.umask(MASK)) != MASK:
        pytest.fail(f"{item.nodeid} leaves the umask {mask:03o}", pytrace=False)
    if blocked := signal.pthread_sigmask(signal.SIG_SETMASK, ()):
        pytest.fail(f"{item.nodeid} leaves signals blocked: {sorted(blocked)}", pytrace=False)
