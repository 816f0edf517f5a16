# SPDX-License-Identifier: GPL-3.0-or-later
"""The quick start's commands for a real site, executed as they are written, with a machine of the lab for the hosts.

From a fresh virtual environment on; one script, as somebody types it into one shell.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.site.plays import lab
from tests.unit.project.test_quickstart import commands
from tests.unit.project.tree import clone

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# What is of the page's example site only, and what takes its place here.
GPU_HOSTS = "--gpu 'a100-[1:4]=192.0.2.[31:34]' "
CLONE = "/path/to/the/clone"
CPU_HOST = "cpu1=192.0.2.51"


def test_a_real_site(bare_lab: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    host = json.loads(lab("inventory"))["_meta"]["hostvars"]["cpu1"]
    special = tmp_path / "special.json"
    # Nothing sets the clock of the lab's machines but their host.
    special.write_text(json.dumps({"gpu_preflight_refuse": []}))
    script = "\n".join(
        f"{line} -- -e @{special}" if line.startswith(("gpuops plan", "gpuops up")) else line
        for line in commands("A real site")
    )
    for words, instead in (
        (GPU_HOSTS, ""),
        (CLONE, str(clone(tmp_path_factory.mktemp("cloned")))),
        (CPU_HOST, f"cpu1={host['ansible_host']}"),
    ):
        assert words in script
        script = script.replace(words, instead)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        ["bash", "-euxc", script],
        cwd=tmp_path,
        env={
            **kept,
            "HOME": str(tmp_path),
            "PYTHONUTF8": "1",
            "ANSIBLE_PRIVATE_KEY_FILE": host["ansible_ssh_private_key_file"],
            "ANSIBLE_SSH_COMMON_ARGS": host["ansible_ssh_common_args"],
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    assert "cpu1  Debian 13" in done.stdout
    assert "install the container engine docker" in done.stdout
    assert "1 host in" in done.stdout
    assert "(nothing changed)" in done.stdout, "the second `gpuops up` was to find everything done"
    report = json.loads((tmp_path / "mysite" / "mysite.json").read_text())
    assert [host["name"] for host in report["hosts"]] == ["cpu1"]
