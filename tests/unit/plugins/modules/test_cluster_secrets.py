# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with the secrets of a cluster: made once, closed, and never made where it was lost."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import cluster_secrets

NAMES = ["mesos-agent", "marathon"]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(check: bool = False, **arguments: Any) -> dict[str, Any]:
        given = {"path": str(tmp_path / ".secrets/mesos.json"), "names": NAMES, **arguments}
        options = {"_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args({**given, **options}), pytest.raises(SystemExit):
            cluster_secrets.main()
        return json.loads(capsys.readouterr().out)

    run.path = tmp_path / ".secrets/mesos.json"  # type: ignore[attr-defined]
    return run


def test_secrets_are_made_once_and_for_their_owner_alone(ask) -> None:
    first = ask()
    assert first["changed"]
    assert set(first["secrets"]) == set(NAMES)
    assert len(set(first["secrets"].values())) == 2
    assert stat.S_IMODE(ask.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ask.path.parent.stat().st_mode) == 0o700
    second = ask()
    assert not second["changed"]
    assert second["secrets"] == first["secrets"]


def test_a_new_name_is_added_and_the_others_stay(ask) -> None:
    first = ask()["secrets"]
    more = ask(names=[*NAMES, "spark"], held=["m1"])
    assert more["changed"]
    assert {name: more["secrets"][name] for name in NAMES} == first
    assert first["marathon"] not in json.dumps(more["diff"])


def test_what_is_renewed_alone_is_another_afterwards(ask) -> None:
    first = ask()["secrets"]
    assert ask(check=True, renew=["marathon"])["changed"]
    assert ask()["secrets"] == first
    second = ask(renew=["marathon"], held=["m1"])
    assert second["changed"]
    assert second["secrets"]["mesos-agent"] == first["mesos-agent"]
    assert second["secrets"]["marathon"] != first["marathon"]
    assert "new secret of marathon" in second["diff"]["after"]
    assert ask()["secrets"] == second["secrets"]


def test_check_mode_makes_no_file(ask) -> None:
    assert ask(check=True)["changed"]
    assert not ask.path.exists()


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ('{"marathon": "12345678"}', 0o644, "chmod 600"),
        ("[]", 0o600, "not a JSON object"),
        ('{"marathon": "short"}', 0o600, "the secret of marathon is not a text of 8"),
        ("{", 0o600, "cannot be used"),
    ],
)
def test_a_file_that_is_open_or_broken_is_refused_and_left(ask, content, mode, words) -> None:
    ask.path.parent.mkdir()
    ask.path.write_text(content)
    ask.path.chmod(mode)
    told = ask()
    assert told["failed"]
    assert words in told["msg"]
    assert ask.path.read_text() == content


def test_a_file_that_was_lost_is_not_made_anew_where_hosts_have_credentials(ask) -> None:
    told = ask(held=["m1", "m2"])
    assert "m1, m2 have credentials" in told["msg"]
    assert told["problems"][0]["remedy"].startswith("bring the file back")
    assert not ask.path.exists()


def test_secrets_from_a_vault_leave_no_file_and_must_be_all_there(ask) -> None:
    given = dict.fromkeys(NAMES, "from-the-vault")
    told = ask(given=given)
    assert not told.get("failed")
    assert "from-the-vault" not in json.dumps(told["secrets"])
    assert not ask.path.exists()
    assert "no secret of marathon" in ask(given={"mesos-agent": "from-the-vault"})["msg"]
