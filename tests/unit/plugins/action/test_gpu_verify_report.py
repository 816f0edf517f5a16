# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on the controller: a file for each host, and a failure that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.plugins.module_utils.verify.test_query import GPU, OTHER, STATE, answer, device, facts

PLAY = """
- hosts: node1
  gather_facts: false
  connection: ansible.builtin.ssh
  tasks:
    - name: Judge
      baremetal.gpu.gpu_verify_report:
        facts: "{{ given.facts }}"
        query: "{{ given.query }}"
        expected: "{{ given.expected | default(0) }}"
        directory: "{{ given.directory }}"
"""


@pytest.fixture
def judge(tmp_path):
    def run(known, found, *arguments, directory="reports", **more):
        given = {"facts": known, "query": found, "directory": str(tmp_path / directory) if directory else "", **more}
        (tmp_path / "play.yml").write_text(PLAY)
        (tmp_path / "vars.json").write_text(json.dumps({"given": given}))
        return subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("-i", "node1,", "play.yml", "-e", "@vars.json", *arguments),
            ],
            # The host does not exist: nothing may be sent to it.
            env={**os.environ, "ANSIBLE_SSH_ARGS": "-o ConnectTimeout=1", "ANSIBLE_NOCOLOR": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


GOOD = facts(GPU, OTHER), answer(device(0), device(1, OTHER))


def test_a_good_host(judge, tmp_path):
    done = judge(*GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout
    report = json.loads((tmp_path / "reports/node1.json").read_text())
    assert (report["ok"], report["host"], report["schema"]) == (True, "node1", 1)
    assert os.listdir(tmp_path / "reports") == ["node1.json"]


def test_a_bad_host_has_a_report_and_a_message_with_host_value_and_remedy(judge, tmp_path):
    done = judge(facts(GPU, OTHER), answer(device(0)))
    assert done.returncode == 2
    assert "node1 does not pass:" in done.stdout
    assert "0000:af:00.0: count_mismatch: CUDA does not see the GPU at 0000:af:00.0 (A100 SXM4 40GB)" in done.stdout
    assert "To do: look for the address in `sudo dmesg`" in done.stdout
    assert json.loads((tmp_path / "reports/node1.json").read_text())["ok"] is False
    # The report itself would bury the message.
    assert "compute_capability" not in done.stdout


def test_without_a_directory_there_is_no_file(judge, tmp_path):
    assert judge(*GOOD, directory="").returncode == 0
    assert not (tmp_path / "reports").exists()


def test_in_check_mode_no_file_is_written(judge, tmp_path):
    assert judge(*GOOD, "--check").returncode == 0
    assert not (tmp_path / "reports").exists()


def test_in_check_mode_a_host_without_a_driver_passes_and_one_with_a_driver_does_not(judge):
    bare = answer(ok=False, error={"call": "dlopen", "code": None, "name": "x", "text": "y"})
    bare["state"] = {**STATE, "loaded": None, "minors": {}}
    bare["causes"] = [{"where": "host", "code": "driver_not_installed", "text": "t", "remedy": "r"}]
    assert judge(facts(), bare, "--check").returncode == 0
    assert judge(facts(), bare).returncode == 2
    assert judge(facts(GPU, OTHER), answer(device(0)), "--check").returncode == 2


def test_a_directory_that_cannot_be_written(judge, tmp_path):
    (tmp_path / "file").write_text("")
    done = judge(*GOOD, directory="file/reports")
    assert done.returncode == 2
    assert "gpu_verify_report_dir" in done.stdout
    assert "node1" in done.stdout


def test_an_answer_of_something_else_is_refused(judge):
    done = judge(facts(), {"msg": "unreachable"})
    assert done.returncode == 2
    assert "query is not an answer of gpu_query" in done.stdout
