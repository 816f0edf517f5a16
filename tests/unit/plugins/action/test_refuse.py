# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host fails with text for people and with the same problems as data."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path

from tests.unit.project.tree import BIN, try_run

PLAY = """
- hosts: gpu1
  gather_facts: false
  tasks:
    - name: Pass where nothing is in the way
      baremetal.gpu.refuse:
        problems: []
        warnings: [JDoe is left out]
    - name: Refuse
      baremetal.gpu.refuse:
        problems:
          - {code: no_key, cause: cuda_repo_key_sha256 is not set, remedy: set it to the checksum of the key}
          - {subject: /dev/sdb, cause: the disk holds a file system., evidence: ext4}
      register: refused
      ignore_errors: true
    - name: Show the result
      ansible.builtin.debug:
        msg: "RESULT{{ refused | to_json | b64encode }}END"
    - name: Fail
      baremetal.gpu.refuse:
        problems: [{cause: the end}]
"""


def test_the_result_has_text_for_people_and_the_problems_for_programs(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    # No such machine: nothing is sent to the host.
    (tmp_path / "hosts").write_text("gpu1 ansible_host=192.0.2.1\n")
    done = try_run([BIN / "ansible-playbook", "-i", tmp_path / "hosts", tmp_path / "play.yml"])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "gpu1: the end" in done.stdout
    assert "[WARNING]: gpu1: JDoe is left out" in done.stdout + done.stderr
    assert re.search("ok=3 +changed=0 +unreachable=0 +failed=1", done.stdout), done.stdout
    refused = json.loads(b64decode(done.stdout.partition("RESULT")[2].partition("END")[0]))
    assert refused["failed"]
    assert refused["msg"].splitlines() == [
        "gpu1: 2 problems.",
        "1. cuda_repo_key_sha256 is not set.",
        "   To do: set it to the checksum of the key",
        "2. the disk holds a file system [ext4].",
    ]
    assert [(row["code"], row["subject"], row["evidence"], row["remedy"]) for row in refused["problems"]] == [
        ("no_key", "gpu1", "", "set it to the checksum of the key"),
        ("refused", "/dev/sdb", "ext4", ""),
    ]
