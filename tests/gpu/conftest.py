# SPDX-License-Identifier: GPL-3.0-or-later
"""What needs a real GPU: `pytest tests/gpu -m gpu` on a machine with NVIDIA's driver. Changes nothing there.

What makes the kernel log an Xid, as a faulty program does, runs only where GPUOPS_TEST_XIDS=1 says that nobody minds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONTROL = Path("/dev/nvidiactl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.gpu)
            if not CONTROL.is_char_device():
                item.add_marker(pytest.mark.skip(reason=f"no NVIDIA GPU with a loaded driver here: no {CONTROL}"))
            elif item.get_closest_marker("faulty") and not os.environ.get("GPUOPS_TEST_XIDS"):
                item.add_marker(pytest.mark.skip(reason="it logs an Xid: set GPUOPS_TEST_XIDS=1 to run it"))


@pytest.fixture(scope="session")
def module() -> Callable[..., dict[str, Any]]:
    """Run a module on this machine as Ansible does, with its action plugin."""

    def run(name: str, **arguments: Any) -> dict[str, Any]:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible")),
                *("localhost", "-m", f"baremetal.gpu.{name}"),
                *(("-a", json.dumps(arguments)) if arguments else ()),
            ],
            env={
                **os.environ,
                "ANSIBLE_STDOUT_CALLBACK": "minimal",
                "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
                "ANSIBLE_LOCALHOST_WARNING": "false",
                "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert "=>" in done.stdout, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.split("=>", 1)[1])
        assert not answer.get("failed"), answer
        return answer

    return run


@pytest.fixture(scope="session")
def facts(module: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = module("gpu_facts")["ansible_facts"]["gpu"]
    return found


@pytest.fixture(scope="session")
def smi() -> list[dict[str, str]]:
    """What nvidia-smi, which is nobody's code here, says of the GPUs."""
    names = ("index", "uuid", "pci.bus_id", "name", "memory.total")
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("nvidia-smi is not installed, so there is nothing to compare with")
    return [dict(zip(names, line.split(", "), strict=True)) for line in done.stdout.splitlines()]
