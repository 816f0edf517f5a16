# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role users wants of a host, and that two lists are one too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.filter.site_users import site_users
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import users


def plan(directory: Path, listed: list[Any], homes_users: Any = None, ssh_unit: str = "ssh.service") -> dict[str, Any]:
    lists = site_users(listed, [], str(directory))
    params = {"lists": lists, "shell": "/bin/bash", "home_root": "/home/", "homes_users": homes_users}
    return users.desired(params, {"ssh_unit": ssh_unit}, {}).as_dict()


def test_accounts_have_a_home_and_a_shell_of_their_own_or_those_of_the_site(tmp_path: Path) -> None:
    told = plan(tmp_path, [{"name": "alice"}, {"name": "bob", "shell": "/bin/zsh"}])
    found = [(row["name"], row["home"], row["shell"]) for row in told["accounts"]]
    assert found == [("alice", "/home/alice", "/bin/bash"), ("bob", "/home/bob", "/bin/zsh")]
    assert told["problems"] == []


def test_sshd_reads_the_keys_anew_where_its_settings_change(tmp_path: Path) -> None:
    assert plan(tmp_path, [])["desired"]["units"] == [{"name": "ssh.service", "reload_on": [users.DROP_IN]}]
    assert plan(tmp_path, [], ssh_unit="")["desired"]["units"] == []


def test_a_site_has_one_list(tmp_path: Path) -> None:
    (problem,) = plan(tmp_path, [{"name": "alice"}], [{"name": "alice"}])["problems"]
    assert problem["code"] == "two_lists"
    assert "take cephfs_homes_users out of the inventory" in problem["remedy"]
    assert plan(tmp_path, [{"name": "alice"}], [])["problems"] == []


def test_what_is_wrong_with_the_list_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    told = plan(tmp_path, [{"name": "root"}])
    assert [problem["code"] for problem in told["problems"]] == ["system_name"]
    assert told["accounts"] == []
