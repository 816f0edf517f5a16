# SPDX-License-Identifier: GPL-3.0-or-later
"""cmax is a program in a directory here, which prints what the real one prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept.audit import audit
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import SYSTEM_PATH

REPORT = """\
==> cmax audit: somewhere
[  2/55] 1. HOST IDENTITY / Host Identity
# ClusterMAX audit report

FAIL     Software / Lmod / Modules Status  [software.lmod.modulesStatus]
         Observed: missing

WARNING  BMC and IPMI tenant isolation  [bmc-ipmi]
         Observed: not collected
         Recommendation: FAIL  looks like a heading  [it.is.none]

1 failed, 1 warnings, 0 passed, 0 skipped
"""


@pytest.fixture
def program(tmp_path: Path):
    def make(script: str) -> str:
        path = tmp_path / "cmax"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return f"{tmp_path}:{SYSTEM_PATH}"

    return make


def test_checks_are_read_and_nothing_is_left(program, tmp_path: Path) -> None:
    (tmp_path / "report").write_text(REPORT)
    path = program(
        f'echo "$@" >{tmp_path}/words; echo "$HOME" >{tmp_path}/home; touch "$HOME/x"; cat {tmp_path}/report'
    )
    assert audit(path=path) == {
        "installed": True,
        "error": None,
        "rows": [
            {
                "id": "software.lmod.modulesStatus",
                "title": "Software / Lmod / Modules Status",
                "status": "FAIL",
                "observed": "missing",
            },
            {
                "id": "bmc-ipmi",
                "title": "BMC and IPMI tenant isolation",
                "status": "WARNING",
                "observed": "not collected",
            },
        ],
    }
    assert (tmp_path / "words").read_text() == "audit --slurm --yes\n"
    assert not Path((tmp_path / "home").read_text().strip()).exists()


def test_a_host_without_the_program_says_so() -> None:
    assert audit(path="/nowhere") == {"installed": False, "error": None, "rows": []}


@pytest.mark.parametrize(
    ("script", "told"),
    [("echo 'cmax: error: scontrol is not installed'; exit 2", "scontrol is not installed"), (":", "it said nothing")],
)
def test_a_program_that_does_not_get_to_its_report_is_told(program, script: str, told: str) -> None:
    found = audit(path=program(script))
    assert found["rows"] == []
    assert told in found["error"]
