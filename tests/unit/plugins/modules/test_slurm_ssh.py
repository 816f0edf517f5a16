# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm_ssh over a directory of PAM of its own: honest check mode, a diff, nothing done twice, and all taken back."""

from __future__ import annotations

import ctypes.util
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import ssh
from ansible_collections.baremetal.gpu.plugins.modules import slurm_ssh

pytestmark = pytest.mark.skipif(not ctypes.util.find_library("pam"), reason="this machine has no libpam")

SSHD = "account required pam_permit.so\n@include common-session\n# the last line\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "common-session-noninteractive").touch()
    (tmp_path / "sshd").write_text(SSHD)
    (tmp_path / "sshd").chmod(0o640)
    return tmp_path / "sshd"


@pytest.fixture
def module(file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(check_mode: bool = False, **arguments: Any) -> Any:
        given = {"directory": str(file.parent), "node": "gpu1", **arguments}
        with (
            patch_module_args({**given, "_ansible_check_mode": check_mode, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            slurm_ssh.main()
        return json.loads(capsys.readouterr().out)

    return run


def test_check_mode_foretells_what_a_run_does_and_the_next_does_nothing(file: Path, module: Callable[..., Any]) -> None:
    foretold = module(check_mode=True, groups=["ops"])
    assert (foretold["changed"], file.read_text()) == (True, SSHD)
    done = module(groups=["ops"])
    assert done["diff"] == foretold["diff"]
    assert file.read_text() == done["diff"]["after"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert module(groups=["ops"])["changed"] is False


def test_an_administrator_who_is_named_later_is_added_once(file: Path, module: Callable[..., Any]) -> None:
    module(users=["alice"])
    assert module(users=["alice", "bob"])["changed"] is True
    assert file.read_text().count("user in alice:bob") == 2
    assert module(users=["alice", "bob"])["changed"] is False


def test_absent_takes_all_of_it_back(file: Path, module: Callable[..., Any]) -> None:
    module()
    assert module(state="absent")["changed"] is True
    assert file.read_text() == SSHD
    assert module(state="absent")["changed"] is False


def test_a_host_without_sshd_has_nothing_to_do(file: Path, module: Callable[..., Any]) -> None:
    file.unlink()
    assert module()["changed"] is False
    assert not file.exists()


def test_an_administrator_whom_pam_cannot_tell_is_named_before_anything_is_changed(
    file: Path, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {
        "User_Specs": [
            {
                "User_List": [{"nonunixgroup": "ops"}],
                "Host_List": [{"hostname": "ALL"}],
                "Cmnd_Specs": [{"Commands": [{"command": "ALL"}]}],
            }
        ]
    }
    monkeypatch.setattr(ssh, "administrators", lambda _run, given: ssh.sudoers(json.dumps(rules), ssh.Host("a"), given))
    answer = module()
    assert [(problem["code"], problem["evidence"]) for problem in answer["problems"]] == [
        ("unclear_administrators", "%:ops")
    ]
    assert file.read_text() == SSHD
    assert module(groups=["ops"])["changed"] is True


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (SSHD, {"users": ["a:b"]}, "bad_name"),
        (SSHD + "account required pam_slurm_adopt.so\n", {}, "adopted_elsewhere"),
        ("account required pam_permit.so\n", {}, "unknown_layout"),
        (SSHD + "# END baremetal.gpu.slurm_node\n", {}, "damaged"),
    ],
)
def test_what_is_in_the_way_is_told_and_nothing_is_changed(
    file: Path, module: Callable[..., Any], text: str, arguments: dict[str, Any], code: str
) -> None:
    file.write_text(text)
    assert [problem["code"] for problem in module(**arguments)["problems"]] == [code]
    assert file.read_text() == text


def test_a_file_with_which_root_would_be_refused_is_never_there(
    file: Path, module: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "exceptions", lambda _rules: ["user in nobody-at-all"])
    answer = module()
    assert ("locked_out", "root") in [(problem["code"], problem["subject"]) for problem in answer["problems"]]
    assert file.read_text() == SSHD
