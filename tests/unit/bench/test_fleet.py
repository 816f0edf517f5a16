# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are not there: they answer what they are told to, and nothing else passes for done."""

from __future__ import annotations

import json
import sys

from tests.unit.project.tree import ROOT, try_run

FACTS = {"changed": False, "ansible_facts": {"gpu": {"present": True}}}


def fleet(tmp_path, answers, hosts=3):
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    playbook = ROOT / "tests" / "bench" / "facts_gpu.yml"
    words = [sys.executable, "-m", "tests.bench.run_fleet", playbook, str(hosts), tmp_path / "answers.json"]
    return try_run(words, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))


def test_every_host_does_every_task_and_what_it_took_is_told(tmp_path):
    done = fleet(tmp_path, {"baremetal.gpu.gpu_facts": FACTS})
    assert done.returncode == 0, done.stderr
    sample = json.loads(done.stdout)
    assert sample["outcome"] == "6", "two tasks on three hosts"
    assert sample["cpu_s"] > 0
    assert sample["memory_mib"] > 10


def test_a_module_without_an_answer_and_a_host_that_changes_are_no_sample(tmp_path):
    done = fleet(tmp_path, {}, hosts=1)
    assert done.returncode == 1
    assert "there is no answer for baremetal.gpu.gpu_facts" in done.stderr
    done = fleet(tmp_path, {"baremetal.gpu.gpu_facts": {**FACTS, "changed": True}}, hosts=1)
    assert done.returncode == 1
    assert "changed=1" in done.stderr
