# SPDX-License-Identifier: GPL-3.0-or-later
"""The command's own options."""

from __future__ import annotations

import sys

from gpuops import __version__
from tests.unit.project.tree import BIN, run, try_run


def test_version_is_printed():
    assert run(BIN / "gpuops", "--version") == f"gpuops {__version__}\n"


def test_module_and_script_are_the_same():
    assert run(sys.executable, "-m", "gpuops", "--version") == run(BIN / "gpuops", "--version")


def test_unknown_command_is_an_error_that_names_it():
    done = try_run([BIN / "gpuops", "frobnicate"])
    assert done.returncode == 2
    assert "frobnicate" in done.stderr
