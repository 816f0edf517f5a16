# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger of agents that were taken out from here: several processes at once, and a file that cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.agent_state import Ledger
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed
from tests.local_zookeeper import ROOT

WRITER = """
import sys
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.agent_state import Ledger
path, name = sys.argv[1:]
# As a module that was started before the others wrote.
ledger = Ledger(path)
sys.stdin.readline()
for number in range(25):
    ledger.put(f"{name}-{number}", {"state": "drained", "hostname": name})
    if number % 5 == 0:
        ledger.drop(f"{name}-{number}")
"""


def test_four_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path):
    path = tmp_path / "new/ledger.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, f"w{number}"], cwd=ROOT, stdin=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0] * 4
    wanted = {f"w{writer}-{number}" for writer in range(4) for number in range(25) if number % 5}
    assert set(Ledger(str(path)).rows) == wanted
    assert {name for name in os.listdir(path.parent) if not name.startswith("ledger.json")} == set()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"S0": 3}', "[" * 100_000])
def test_a_ledger_that_cannot_be_used_is_left_as_it_is_and_named(tmp_path: Path, text: str):
    path = tmp_path / "ledger"
    path.write_text(text)
    with pytest.raises(Failed, match=r"cannot be read: .*To do: restore it, or move it away"):
        Ledger(str(path))
    assert path.read_text() == text


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    path = tmp_path / "ledger"
    (tmp_path / "ledger.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failed, match="cannot be written"):
        Ledger(str(path)).put("S0", {"state": "drained", "hostname": "n1"})
    assert not (tmp_path / "elsewhere").exists()
    path.write_text(json.dumps({"S0": {"state": "drained", "hostname": "n1"}}))
    assert set(Ledger(str(path)).rows) == {"S0"}
