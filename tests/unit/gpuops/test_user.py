# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops user: the list is changed as a person would change it, and refused before anything is written."""

from __future__ import annotations

import json
import re
import time
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import ledger, site
from gpuops import yaml_text
from gpuops.commands import user
from gpuops.run import records
from gpuops.site import Site
from gpuops.users import kubeconfigs, site_list, yaml_list
from tests.unit.gpuops.conftest import DEAD, Bench

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJHh6bJXyGZTBoXfLhbW0fY1rNnPpkFvEoNgTrKZ1oRY alice@laptop"
BLOCK = """---
# The people of the institute.
site_name: lab   # not ours

cluster_users:   # in the order in which they came
  # The first one.
  - name: alice   # head of the group
    groups:
      - physics   # since 2020
      - ml
    home_size: 200G
  - {name: bob, groups: [physics], mail: bob@example.org}  # a guest

  - name: carol

# What comes after.
other: [1, 2]
"""


def put(text: str, name: str, **values: Any) -> str:
    return yaml_list.put(text, "cluster_users", {name: values})


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in yaml_text.differing(before, after, "x")[2:] if line[0] in "+-"]


@pytest.mark.parametrize(
    ("name", "values", "lines"),
    [
        ("alice", {"state": "closed"}, ["+    state: closed"]),
        ("alice", {"home_size": "1T"}, ["-    home_size: 200G", "+    home_size: 1T"]),
        ("alice", {"home_size": None}, ["-    home_size: 200G"]),
        (
            "alice",
            {"groups": ["ml"]},
            ["-    groups:", "-      - physics   # since 2020", "-      - ml", "+    groups: [ml]"],
        ),
        (
            "bob",
            {"state": "closed", "mail": None},
            [
                "-  - {name: bob, groups: [physics], mail: bob@example.org}  # a guest",
                "+  - {name: bob, groups: [physics], state: closed}  # a guest",
            ],
        ),
        ("carol", {"until": date(2027, 3, 31)}, ["+    until: 2027-03-31"]),
        ("dora", {"groups": ["ml"]}, ["+  - name: dora", "+    groups: [ml]"]),
        ("dora", {"full_name": "Dora: the 2nd, #1"}, ["+  - name: dora", "+    full_name: 'Dora: the 2nd, #1'"]),
    ],
)
def test_a_change_touches_its_own_lines_alone(name: str, values: dict[str, Any], lines: list[str]) -> None:
    assert changed_lines(BLOCK, put(BLOCK, name, **values)) == lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "cluster_users: []\n",
        "cluster_users: []  # none yet\nother: 1\n",
        "cluster_users:\nother: 1\n",
        "cluster_users: [{name: alice}]\n",
        "cluster_users:\n- name: alice",
        "cluster_users:\n    - uid: 5\n      name: alice\n",
    ],
)
def test_a_user_is_added_and_changed_in_every_form_of_the_list(text: str) -> None:
    text = put(text, "bob", groups=["a", "b"], ssh_keys=[KEY])
    text = put(put(text, "alice", uid=7), "bob", state="closed")
    found = yaml.safe_load(text)
    assert {"name": "bob", "groups": ["a", "b"], "ssh_keys": [KEY], "state": "closed"} in found["cluster_users"]
    assert {"name": "alice", "uid": 7} in found["cluster_users"]
    assert put(text, "bob", state=None, groups=None) != text


@pytest.mark.parametrize("text", ["cluster_users: 5\n", "cluster_users: [alice]\n", "cluster_users: {\n", "- alice\n"])
def test_what_is_no_such_list_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        put(text, "alice", uid=5)


def test_a_row_that_another_one_shares_is_refused_and_not_changed() -> None:
    with pytest.raises(Refused, match="by hand"):
        put("other: &row {name: alice}\ncluster_users:\n  - *row\n", "alice", uid=5)


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "full_name": st.none() | st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=12),
        "groups": st.none() | st.lists(st.sampled_from(["a", "b", "yes", "1"]), max_size=3),
        "uid": st.none() | st.integers(1000, 9999),
        "state": st.none() | st.just("closed"),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["alice", "bob", "carol", "dora"]), VALUES), max_size=5))
def test_any_changes_say_what_they_mean_and_leave_the_comments(changes: list[tuple[str, dict[str, Any]]]) -> None:
    text, wanted = BLOCK, {row["name"]: row for row in yaml.safe_load(BLOCK)["cluster_users"]}
    for name, values in changes:
        text = put(text, name, **values)
        merged = {**wanted.get(name, {"name": name}), **values}
        wanted[name] = {key: value for key, value in merged.items() if value is not None}
    assert {row["name"]: row for row in yaml.safe_load(text)["cluster_users"]} == wanted
    for comment in ("# The first one.", "# head of the group", "# a guest", "# What comes after.", "# not ours"):
        assert comment in text


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def people(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench.hosts(n1=DEAD)
    monkeypatch.chdir(bench.path)
    return bench


def listed(people: Bench) -> Path:
    return people.path / "group_vars" / "all" / "users.yml"


def call(people: Bench, *words: str, refused: str = "") -> str:
    done = CliRunner().invoke(user.app, [*words, "--yes", "--no-run"])
    assert (done.exit_code != 0) == bool(refused), done.output
    assert refused in done.stderr
    return done.stdout


def test_a_user_comes_changes_leaves_and_comes_back(people: Bench) -> None:
    (people.path / "alice.pub").write_text(f"{KEY}\n")
    shown = call(people, "add", "alice", "--groups", "physics", "--key", "alice.pub", "--limit", "MaxJobs=4")
    assert "+  - name: alice" in shown
    call(people, "close", "alice")
    assert yaml.safe_load(listed(people).read_text()) == {
        "cluster_groups": [{"name": "physics"}],
        "cluster_users": [
            {"name": "alice", "groups": ["physics"], "ssh_keys": [KEY], "limits": {"MaxJobs": 4}, "state": "closed"}
        ],
    }
    call(people, "reopen", "alice")
    call(people, "change", "alice", "--groups", "", "--home-size", "1T")
    assert yaml.safe_load(listed(people).read_text())["cluster_users"] == [
        {"name": "alice", "ssh_keys": [KEY], "limits": {"MaxJobs": 4}, "home_size": "1T"}
    ]
    call(people, "remove", "alice", "bob", refused="the home of alice would be removed")
    call(people, "remove", "alice", "alice")
    call(people, "reopen", "alice", refused="alice was removed")
    rows = json.loads(people.call("user", "list", "--all", "--json").stdout)
    assert [(row["name"], row["state"]) for row in rows] == [("alice", "removed")]


def test_what_is_wrong_is_refused_before_anything_is_written(people: Bench) -> None:
    call(people, "add", "alice", "--uid", "2001")
    before = listed(people).read_text()
    ledger.add(people.path, {"alice": 2001, "gone": 10001}, {})
    call(people, "add", "alice", refused="has alice already. To do: change it with `gpuops user change alice`")
    call(people, "add", "slurm", refused="the name of an account of the system")
    call(people, "add", "bob", "--uid", "10001", refused="which is that of the user gone")
    call(people, "add", "bob", "--key", "nothing.pub", refused="neither a public key nor its file")
    call(people, "change", "alice", "--uid", "2002", refused="was given 2001 before")
    call(people, "change", "bob", "--shell", "/bin/sh", refused="has no user 'bob'")
    call(people, "change", "alice", "--until", "June", refused="give a day such as 2027-03-31")
    assert listed(people).read_text() == before


def test_options_of_ansible_follow_the_dashes(people: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(user, "_run", lambda command, known: given.append((command, list(user.words))))
    call(people, "add", "alice")
    for words in (["close", "alice", "--yes"], ["close", "alice", "--yes", "--", "-e", "a=1", "--", "-v"]):
        assert CliRunner().invoke(user.app, words).exit_code == 0
    assert given == [("close", []), ("close", ["-e", "a=1", "--", "-v"])]


def test_add_and_change_take_the_same_values() -> None:
    texts = [CliRunner().invoke(user.app, [name, "--help"]).output for name in ("add", "change")]
    options = [set(re.findall(r"--[a-z-]+", text)) for text in texts]
    assert options[0] == options[1]
    assert {"--full-name", "--limit", "--until", "--yes"} <= options[0]


def test_nothing_is_written_without_a_yes(people: Bench) -> None:
    done = people.call("user", "add", "alice", "--no-run")
    assert (done.returncode, listed(people).exists()) == (64, False)
    assert "give --yes" in done.stderr


def test_a_course_comes_from_a_file(people: Bench) -> None:
    call(people, "add", "u001", "--groups", "staff2")
    lines = [f'u{number:03},"Name {number}",u{number:03}@example.org,,{KEY}' for number in range(1, 201)]
    course = people.path / "course.csv"
    course.write_text("\n".join(["name,full_name,mail,groups,key", *lines]) + "\n")
    shown = call(people, "import", "course.csv", "--groups", "ml2027", "--until", "2027-03-31")
    assert "200 users, of whom 199 are new: u002, u003" in shown
    content = yaml.safe_load(listed(people).read_text())
    rows = {row["name"]: row for row in content["cluster_users"]}
    assert rows["u200"] == {
        "name": "u200",
        "full_name": "Name 200",
        "mail": "u200@example.org",
        "groups": ["ml2027"],
        "ssh_keys": [KEY],
        "until": date(2027, 3, 31),
    }
    # Who was here before the course stays after it.
    assert (rows["u001"]["groups"], "until" in rows["u001"]) == (["staff2", "ml2027"], False)
    assert (
        call(people, "import", "course.csv", "--groups", "ml2027", "--until", "2027-03-31").count("says so already")
        == 1
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user,mail\nalice,a@b.c\n", "begin it with a line of column names"),
        ("name,mail\nalice\n", "line 2 of"),
        ("name,mail\nalice,a@example.org,x\n", "line 2 of"),
        ("name\nalice\nalice\n", "has alice twice"),
        ("name,key\nalice,hello\n", "key 1 of alice is not a public key"),
        ("name\n$(reboot)\n", "as the name of a user"),
    ],
)
def test_a_file_with_mistakes_is_refused_as_a_whole(people: Bench, text: str, said: str) -> None:
    (people.path / "course.csv").write_text(text)
    call(people, "import", "course.csv", refused=said)
    assert not listed(people).exists()


def test_the_list_is_found_where_ansible_reads_it(people: Bench) -> None:
    plain = people.path / "group_vars" / "all.yml"
    plain.parent.mkdir()
    plain.write_text("site_name: lab\n")
    call(people, "add", "alice")
    # Ansible would read no all.yml beside a directory all.
    assert "site_name: lab" in plain.read_text()
    assert "alice" in plain.read_text()
    assert not listed(people).exists()


def test_two_files_with_a_list_are_refused(people: Bench) -> None:
    listed(people).parent.mkdir(parents=True)
    for name in ("a.yml", "b.yml"):
        (listed(people).parent / name).write_text("cluster_users: []\n")
    call(people, "add", "alice", refused="keep one cluster_users")


def test_whose_day_has_come_is_told_until_a_run_has_closed_them(people: Bench) -> None:
    today = date.today()
    call(people, "add", "alice", "--until", str(today - timedelta(days=1)))
    call(people, "add", "bob", "--until", str(today + timedelta(days=1)))
    site = Site(people.inventory)
    assert site_list.ended(site) == ["alice"]
    assert "the last day of alice has passed" in site_list.ended_text(site_list.ended(site))
    run = records.begin(site.remembered, set())
    run.save(records.Record("baremetal.gpu.site", started=time.time(), rc=0, stages={"users": 1.0}))
    run.close()
    assert site_list.ended(site) == []
    assert "closed" in people.call("user", "list").stdout


def test_status_and_up_say_whose_day_has_come(people: Bench) -> None:
    call(people, "add", "alice", "--until", str(date.today()))
    for words in (("status",), ("up", "--playbook", "play.yml")):
        people.playbook("- {hosts: localhost, gather_facts: false, tasks: [{ansible.builtin.meta: noop}]}\n")
        assert "the last day of alice has passed" in people.call(*words).stdout


def test_a_kubeconfig_ends_with_the_last_day_of_its_user_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    now = datetime(2026, 12, 1, 12)
    rows = [{"name": "a.b"}, {"name": "carol", "until": "2026-12-03"}, {"name": "dora", "until": "2026-12-02"}]
    found = site.people(rows, [], ledger.Ledger(), now.date()).users
    made = [kubeconfigs.make(one, 30, tmp_path, now) for one in (*found, found[0])]
    assert [row["hours"] for row in made] == [720, 36, 12, 720]
    assert (made[0]["namespace"], made[0]["path"]) == ("a-b", str(tmp_path / "a.b.kubeconfig"))
    assert re.fullmatch(r"a\.b:[0-9a-f]{8}", made[0]["client"])
    assert made[0]["client"] != made[3]["client"]
    for one in made:
        assert {row["subjects"][0]["name"] for row in one["bindings"]} == {one["client"]}
    assert {row["metadata"]["name"] for row in made[0]["bindings"]} == {"baremetal-gpu-user.a-b", "baremetal-gpu-user"}
