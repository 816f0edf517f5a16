# SPDX-License-Identifier: GPL-3.0-or-later
"""What `promtool check metrics` says of a page of metrics."""

from __future__ import annotations

import subprocess

import pytest

from tests import debian_programs

PROMTOOL = debian_programs.path_of("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here: python -m tests.needs fetches it")


def faults(page: str) -> str:
    """What it finds; empty for nothing."""
    argv = [str(PROMTOOL), "check", "metrics"]
    done = subprocess.run(argv, input=page, check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    return said or ("" if done.returncode == 0 else f"promtool ended with {done.returncode}")
