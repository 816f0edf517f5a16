# SPDX-License-Identifier: GPL-3.0-or-later
"""Check mode of a first run: the host that is to have the cluster has neither its programs nor its files yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOME = {"name": "alice", "uid": 2001, "gid": 2001, "size": "100M"}


def run_module(name: str, options: dict[str, Any], check: bool) -> dict[str, Any]:
    """The result of a module with an empty PATH, so that no program of Ceph is found."""
    arguments = {"ANSIBLE_MODULE_ARGS": {**options, "_ansible_check_mode": check}}
    done = subprocess.run(
        [sys.executable, "-m", f"ansible_collections.baremetal.gpu.plugins.modules.{name}"],
        input=json.dumps(arguments),
        env={**os.environ, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("module", "options", "plan"),
    [
        ("ceph_homes", {"filesystem": "cephfs", "homes": [HOME]}, ["make the home of alice"]),
        ("ceph_subvolume", {"filesystem": "cephfs", "name": "datasets", "size": "1G"}, ["make the subvolume datasets"]),
        ("ceph_subvolume", {"filesystem": "cephfs", "name": "datasets", "state": "absent"}, []),
    ],
)
def test_what_a_run_would_make_is_announced_before_there_is_a_cluster(
    tmp_path: Path, module: str, options: dict[str, Any], plan: list[str]
) -> None:
    options = {**options, "conf": str(tmp_path / "ceph.conf")}
    result = run_module(module, options, check=True)
    assert not result.get("failed"), result
    assert result["plan"] == plan
    assert result["changed"] is bool(plan)
    assert run_module(module, options, check=False)["failed"]


def test_a_cluster_that_does_not_answer_is_no_bare_host(tmp_path: Path) -> None:
    conf = tmp_path / "ceph.conf"
    conf.write_text("[global]\n")
    assert run_module("ceph_homes", {"filesystem": "cephfs", "homes": [HOME], "conf": str(conf)}, check=True)["failed"]


def test_what_is_announced_was_checked(tmp_path: Path) -> None:
    wrong = {"filesystem": "cephfs", "homes": [{**HOME, "uid": 0}], "conf": str(tmp_path / "ceph.conf")}
    assert "would be root" in run_module("ceph_homes", wrong, check=True)["msg"]
