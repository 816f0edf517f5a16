# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the quick start that need no hosts, executed as they are written.

Those for hosts are in tests/site/test_quickstart.py, those of the collection alone in test_installed.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.unit.project.tree import BIN, ROOT

PAGE = ROOT / "docs" / "quickstart.md"


def commands(section: str) -> list[str]:
    """The lines of the console blocks of a section."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def execute(line: str, directory: Path, **environment: str) -> str:
    """Output of a command line, as a shell runs it."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_site_is_made_as_it_is_written(tmp_path):
    lines = commands("A real site")
    (line,) = [line for line in lines if line.startswith("gpuops init ")]
    execute(f"{line} --offline", tmp_path)
    (enter,) = [line for line in lines if line.startswith("cd ")]
    listed = execute(f"{enter} && ansible-inventory --list --yaml", tmp_path)
    groups = yaml.safe_load(listed)["all"]["children"]["gpu_cluster"]["children"]
    assert list(groups["gpu_nodes"]["hosts"]) == [f"a100-{number}" for number in range(1, 5)]
    assert list(groups["cpu_nodes"]["hosts"]) == ["cpu1"]
