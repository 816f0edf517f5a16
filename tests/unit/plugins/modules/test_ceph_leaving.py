# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that take OSDs away do not work beside another that is at work on a host's OSDs; looking they may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import activate as ceph_osd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the lock of OSDs belongs to root; run it as root")

FSID = "2f7c1d3e-2a64-4b6f-9d53-6f1f9f0c1a11"
MODULES = {"ceph_purge": {"fsid": FSID}, "ceph_osd_local": {"fsid": FSID, "osds": [7], "state": "stopped"}}


def begin(name: str, check: bool) -> subprocess.Popen[str]:
    """A module with an empty PATH, so that it cannot harm the host of the test."""
    arguments = {"ANSIBLE_MODULE_ARGS": {**MODULES[name], "_ansible_check_mode": check}}
    process = subprocess.Popen(
        [sys.executable, "-m", f"ansible_collections.baremetal.gpu.plugins.modules.{name}"],
        env={**os.environ, "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments))
    process.stdin.close()
    return process


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    with process:
        return dict(json.loads(process.stdout.read()))


@pytest.mark.parametrize("name", MODULES)
def test_a_look_does_not_wait(name: str) -> None:
    with ceph_osd.alone():
        assert result(begin(name, check=True))["changed"] is False


@pytest.mark.parametrize("name", MODULES)
def test_what_takes_osds_away_waits(name: str) -> None:
    with ceph_osd.alone():
        process = begin(name, check=False)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
    assert result(process)["changed"] is False
