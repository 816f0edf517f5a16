# SPDX-License-Identifier: GPL-3.0-or-later
"""What `promtool check metrics` says of a page of metrics."""

from __future__ import annotations

import shutil
import subprocess

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def faults(page: str) -> str:
    """What it finds; empty for nothing."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    return said or ("" if done.returncode == 0 else f"promtool ended with {done.returncode}")
