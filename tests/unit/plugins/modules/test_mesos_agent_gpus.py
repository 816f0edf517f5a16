# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that has an agent give out other GPUs, on a hand-made directory of an agent and without systemd."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import mesos_agent_gpus

DEVICES = [{"uuid": f"GPU-{number}", "index": number} for number in range(3)]


class Host:
    def __init__(self, base, capsys, monkeypatch):
        self.base, self.capsys = base, capsys
        self.said: list[str] = []
        self.meta = base / "work/meta/slaves"
        self.meta.mkdir(parents=True)
        self.register("S0")
        self.environment = base / "agent.env"
        self.environment.write_text(
            "BAREMETAL_GPU_UUIDS=GPU-0,GPU-1\nMESOS_ISOLATION=gpu/nvidia\nMESOS_NVIDIA_GPU_DEVICES=0,1\n"
            "MESOS_RESOURCES=cpus:4;gpus:2\n"
        )
        monkeypatch.setattr(mesos_agent_gpus, "run", self.systemctl)

    def register(self, name):
        (self.meta / "latest").symlink_to(name)

    def systemctl(self, argv):
        self.said.append(argv[1])
        if argv[1] == "start":
            self.register("S1")
        return (1, "") if argv[1] == "is-failed" else (0, "")

    def run(self, check=False, **arguments) -> dict[str, Any]:
        given = {
            "uuids": ["GPU-0"],
            "devices": DEVICES,
            "work_dir": str(self.base / "work"),
            "environment_file": str(self.environment),
            "url": "http://127.0.0.1:9",
            "wait": 1,
            **arguments,
            "_ansible_check_mode": check,
        }
        with patch_module_args(given), pytest.raises(SystemExit):
            mesos_agent_gpus.main()
        return json.loads(self.capsys.readouterr().out)


@pytest.fixture
def host(tmp_path, capsys, monkeypatch):
    return Host(tmp_path, capsys, monkeypatch)


def test_a_change_is_foretold_done_and_not_done_twice(host):
    foretold = host.run(check=True)
    assert (foretold["changed"], foretold["agent_id"], foretold["new_agent_id"]) == (True, "S0", "S0")
    assert host.said == []
    done = host.run(agent_id="S0")
    assert foretold["diff"] == done["diff"] == {"before": "GPU-0\nGPU-1\n", "after": "GPU-0\n"}
    assert (done["agent_id"], done["new_agent_id"], done["listed"]) == ("S0", "S1", ["GPU-0", "GPU-1"])
    assert host.said == ["stop", "start"]
    assert not host.run()["changed"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "agent S0 has a checkpoint. To do: drain it"),
        ({"agent_id": "S9"}, "the agent here is S0, and S9 was drained"),
        ({"agent_id": "S0", "uuids": []}, "no GPU is to be given out"),
        ({"agent_id": "S0", "uuids": ["GPU-7"]}, "GPU-7 have no index now"),
    ],
)
def test_what_would_lose_tasks_or_gpus_is_refused(host, arguments, why):
    before = host.environment.read_text()
    told = host.run(**arguments)
    assert told["failed"]
    assert why in told["msg"]
    assert host.said == []
    assert (host.environment.read_text(), os.readlink(host.meta / "latest")) == (before, "S0")


def test_what_was_cut_needs_no_drain_again(host):
    (host.base / "work/baremetal-gpu-gpus.json").write_text('{"agent_id": "S0"}')
    (host.meta / "latest").unlink()
    done = host.run()
    assert (done["changed"], done["resumed"], done["new_agent_id"]) == (True, True, "S1")
    assert not host.run()["resumed"]
