# SPDX-License-Identifier: GPL-3.0-or-later
"""host_drift_info asked for roles: one execution for what all of them want, on this machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

ENVIRONMENT = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
FINISHED = {"changed": False, "drifted": False, "finished_roles": ["nouveau", "cuda"]}
DIFFERS = {"changed": False, "drifted": True, "finished_roles": []}


@pytest.fixture
def ask(tmp_path):
    """What the module answers for two roles that want files to be there, and all that Ansible printed."""

    def run(nouveau, cuda, **variables):
        tasks = [{"baremetal.gpu.host_drift_info": {"roles": ["nouveau", "cuda"]}, "register": "found"}]
        tasks += [{"ansible.builtin.copy": {"content": "{{ found | to_json }}", "dest": f"{tmp_path}/found.json"}}]
        given = {"__nouveau_finished": nouveau, "__cuda_finished": cuda, **variables}
        play = {"hosts": "all", "gather_facts": False, "tasks": tasks, "vars": given}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        words = ["-vvv", "-i", "here,", "-c", "local", tmp_path / "play.yml"]
        done = try_run([BIN / "ansible-playbook", *words], cwd=tmp_path, **ENVIRONMENT)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((tmp_path / "found.json").read_text())
        return {name: found[name] for name in FINISHED}, done.stdout + done.stderr

    return run


def asked(told: str) -> list[str]:
    """Executions of the module on the host, in what Ansible prints with -vvv."""
    return re.findall(r"Using module file \S+/host_drift_info\.py", told)


def files(*paths: Path) -> dict[str, list[dict[str, str]]]:
    return {"files": [{"path": str(path), "content": "as wanted"} for path in paths]}


def test_a_host_is_finished_when_it_is_as_all_roles_want_it(ask, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("as wanted")
    assert ask(files(one), files(other))[0] == DIFFERS
    other.write_text("as wanted")
    found, told = ask(files(one), files(other))
    assert found == FINISHED
    assert len(asked(told)) == 1


def test_a_role_of_which_it_is_not_known_yet_has_the_host_left_to_the_roles(ask):
    found, told = ask({}, None)
    assert found == DIFFERS
    assert asked(told) == []
    assert ask({}, "{{ known_later }}")[0] == DIFFERS


def test_what_an_operator_should_know_of_a_finished_host_is_a_warning_and_nothing_to_compare(ask, tmp_path):
    found, told = ask({}, {"notes": ["this engine is old"]})
    assert found == FINISHED
    assert "[WARNING]: here: this engine is old" in told
    # The role itself tells it when its tasks run.
    found, told = ask(files(tmp_path / "missing"), {"notes": ["this engine is old"]})
    assert found == DIFFERS
    assert "this engine is old" not in told


def test_documents_see_the_files_of_their_roles(ask, tmp_path):
    content = "{{ lookup('ansible.builtin.template', 'ldconfig.service.j2') }}"
    known = {"__cuda_ld_file": "/etc/ld.so.conf.d/cuda.conf"}
    (tmp_path / "unit").write_text("other")
    wanted = {"files": [{"path": f"{tmp_path}/unit", "content": content}]}
    assert ask({}, wanted, **known)[0] == DIFFERS
    # Without the role's templates it would be the same, so a file that is as wanted tells more.
    text = (ROOT / "roles" / "cuda" / "templates" / "ldconfig.service.j2").read_text()
    (tmp_path / "unit").write_text(text.replace("{{ __cuda_ld_file }}", known["__cuda_ld_file"]))
    assert ask({}, wanted, **known)[0] == FINISHED


def test_a_role_that_the_play_does_not_import_is_a_mistake():
    words = ["-i", "here,", "-c", "local", "all", "-m", "baremetal.gpu.host_drift_info"]
    arguments = json.dumps({"roles": ["zookeeper"]})
    done = try_run([BIN / "ansible", *words, "-a", arguments])
    assert done.returncode
    assert "zookeeper has no description of a finished host, or the play does not import it" in done.stdout


def test_only_a_finished_host_leaves_the_play(tmp_path):
    """Whatever keeps the comparison from being made is left to the roles, which say what it is."""
    documents = {
        "finished": {},
        "other": files(tmp_path / "missing"),
        "undecided": None,
        "malformed": {"files": "no list"},
        "refused": {"packages": [{"version": "1"}]},
    }
    hosts = {name: {"__nouveau_finished": document} for name, document in documents.items()}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    first = {"import_tasks": str(ROOT / "playbooks/tasks/leave_finished.yml"), "vars": {"node_roles": ["nouveau"]}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [first, {"name": "Role", "debug": {"msg": "mends"}}]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    words = ["-i", tmp_path / "hosts.json", "-c", "local", tmp_path / "play.yml"]
    done = try_run([BIN / "ansible-playbook", *words], cwd=tmp_path, **ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    went_on = re.findall(r"^ok: \[(\w+)\]", done.stdout.partition("TASK [Role]")[2], re.MULTILINE)
    assert sorted(went_on) == ["malformed", "other", "refused", "undecided"]


def test_the_playbook_compares_what_its_roles_want():
    """A role that is imported and not compared would be left out on a host on which it has something to do."""
    (play,) = [row for row in yaml.safe_load((ROOT / "playbooks" / "node.yml").read_text()) if "Driver" in row["name"]]
    first, *rest = play["tasks"]
    tasks = [inner for task in rest for inner in task.get("block", [task])]
    called = [task["ansible.builtin.import_role"] for task in tasks if "ansible.builtin.import_role" in task]
    imported = [role["name"].removeprefix("baremetal.gpu.") for role in called]
    assert yaml.safe_load(first["vars"]["node_roles"].split(" if ")[0].removeprefix("{{ (")) == imported[:-1]
    assert imported[-1] in first["vars"]["node_roles"].split(" else ")[1]
