# SPDX-License-Identifier: GPL-3.0-or-later
"""What users install, in places where nothing of this checkout is known: the collection from the tarball of a clone
into an Ansible that is there already, and the command from the clone itself.

tests/site/test_installed.py takes both to a machine.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gpuops.cli import COMMANDS
from tests.unit.project.test_quickstart import commands
from tests.unit.project.tree import clone, development_files, tracked_files
from tests.unit.project.user import User

MODULES = {path.stem for path in tracked_files() if path.is_relative_to("plugins/modules")}
PLAYBOOKS = sorted(
    f"baremetal.gpu.{path.stem}"
    for path in tracked_files()
    if path.parent == Path("playbooks") and path.suffix == ".yml"
)


@pytest.fixture(scope="module")
def cloned(tmp_path_factory) -> Path:
    return clone(tmp_path_factory.mktemp("cloned"))


@pytest.fixture(scope="module")
def ansible_user(cloned: Path, tmp_path_factory) -> User:
    """Somebody with an Ansible, who has typed the commands of docs/quickstart.md, 'With Ansible alone'.

    nvidia-ml-py is what meta/ee-requirements.txt names for the controller.
    """
    user = User(tmp_path_factory.mktemp("ansible-user"))
    user.pip_install("ansible-core", "nvidia-ml-py")
    for line in commands("With Ansible alone")[:3]:
        user.types(line, cwd=cloned)
    return user


@pytest.fixture(scope="module")
def command_user(cloned: Path, tmp_path_factory) -> User:
    """Somebody who has installed the clone with pip, as docs/quickstart.md says for a real site."""
    user = User(tmp_path_factory.mktemp("command-user"))
    user.pip_install(cloned)
    return user


def asks_a_gpu_s_facts(user: User, inventory: str = "localhost,") -> dict:
    """What gpu_facts says of this machine. It reads only, and knows of machines without a GPU."""
    said = user.run(
        *("ansible", "localhost", "-i", inventory, "-c", "local", "-m", "baremetal.gpu.gpu_facts"),
        ANSIBLE_CALLBACK_RESULT_FORMAT="json",
    )
    return json.loads(said.split("=>", 1)[1])["ansible_facts"]["gpu"]


def test_the_clone_has_no_link_that_leads_out_of_what_is_shipped(cloned):
    """ansible-galaxy keeps links, and stops where one leads to a file that galaxy.yml leaves out."""
    links = [path for path in cloned.rglob("*") if path.is_symlink()]
    assert not links, "give a copy, and a test that compares the two"


def test_the_collection_lies_where_ansible_puts_it(ansible_user):
    installed = ansible_user.home / ".ansible/collections/ansible_collections/baremetal/gpu"
    assert (installed / "MANIFEST.json").is_file()
    assert (installed / "docs/gpuops.md").is_file()
    listed = json.loads(ansible_user.run("ansible-galaxy", "collection", "list", "--format", "json"))
    assert [place for place, found in listed.items() if "baremetal.gpu" in found] == [str(installed.parents[1])]


def test_no_test_and_nothing_of_the_lab_is_installed(ansible_user, command_user):
    collection = ansible_user.home / ".ansible/collections/ansible_collections/baremetal/gpu"
    listing = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps([str(path.locate()) for path in m.files('baremetal-gpu')]))"
    )
    files = [Path(name) for name in json.loads(command_user.run("python", "-c", listing))]
    assert {"cli.py", "galaxy.yml"} <= {path.name for path in files}
    assert not (collection / "tests").exists()
    assert not [path for path in files if {"tests", "lab"} & {*path.relative_to(command_user.home).parts}]
    files += [path for path in collection.rglob("*") if path.is_file()]
    assert development_files(path.read_bytes() for path in files if path.is_file()) == []


def test_ansible_alone_knows_every_module(ansible_user):
    listed = json.loads(ansible_user.run("ansible-doc", "--json", "-t", "module", "-l", "baremetal.gpu"))
    assert {name.removeprefix("baremetal.gpu.") for name in listed} == MODULES


def test_ansible_alone_runs_a_module(ansible_user):
    assert asks_a_gpu_s_facts(ansible_user)["schema"] == 1


def test_ansible_alone_runs_the_commands_of_the_quick_start(ansible_user, cloned):
    """The hosts of the example are not there, so the playbooks are asked for their tasks."""
    lines = commands("With Ansible alone")[3:]
    assert len(lines) == 3
    for line in lines:
        assert shlex.split(line)[0] == "ansible-playbook"
        assert "tasks:" in ansible_user.types(f"{line} --list-tasks", cwd=cloned)


def test_ansible_alone_finds_every_role_of_every_playbook(ansible_user):
    assert len(PLAYBOOKS) > 10
    ansible_user.run("ansible-playbook", "-i", "localhost,", "--syntax-check", *PLAYBOOKS)


def test_preflight_runs_from_the_tarball(ansible_user):
    """On this machine, which it only looks at: what is refused is known to it, and it comes to its report."""
    inventory = ansible_user.home / "one.yml"
    inventory.write_text("gpu_cluster: {hosts: {localhost: {ansible_connection: local, ansible_become: false}}}\n")
    said = ansible_user.types(
        f"ansible-playbook -i {inventory} baremetal.gpu.preflight -e '{{gpu_preflight_refuse: []}}' || true"
    )
    assert "PLAY RECAP" in said
    assert "Traceback" not in said
    assert "localhost" in said.split("PLAY RECAP")[1]
    assert "unreachable=0" in said


def test_the_installed_command_brings_the_collection(command_user):
    assert "Usage: gpuops" in command_user.run("gpuops", "--help")
    listed = json.loads(command_user.run("ansible-doc", "--json", "-t", "module", "-l", "baremetal.gpu"))
    assert {name.removeprefix("baremetal.gpu.") for name in listed} == MODULES
    assert asks_a_gpu_s_facts(command_user)["schema"] == 1


def test_the_installed_command_prints_its_schema_and_makes_a_site(command_user):
    assert json.loads(command_user.run("gpuops", "status", "--schema"))["type"] == "object"
    (line,) = [line for line in commands("A real site") if line.startswith("gpuops init ")]
    command_user.types(f"{line} --offline")
    listed = command_user.run("ansible-inventory", "--list", cwd=command_user.home / "mysite")
    assert "cpu1" in json.loads(listed)["_meta"]["hostvars"]


# Every command as one types it, and words of its own answer: {inventory} is of this machine alone, {file} is any.
ANSWERS = {
    "init": ("init made --gpu gpu1=192.0.2.1 --offline", "inventory/hosts.yml"),
    "plan": ("plan -i {inventory} --tags preflight", "nothing was changed. 0 of 1 hosts would change"),
    "up": ("up -i {inventory} --tags preflight", "1 done (nothing changed)"),
    "status": ("status -i {inventory}", "the site is ok"),
    "jobs": ("jobs -i {inventory}", "has no scheduler"),
    "usage": (
        "usage -i {inventory} --since 2026-11-01",
        "has no hosts in the groups slurm_controllers and kubernetes_control_planes",
    ),
    "logs": ("logs -i {inventory}", "has no log host"),
    "doctor": ("doctor -i {inventory} node1", "node1"),
    "report": ("report -i {inventory}", "report.html"),
    "accept": ("accept -i {inventory} --stages node", "acceptance.html"),
    "lemons": ("lemons -i {inventory}", "WHAT FAILED MOST"),
    "manifest": ("manifest -i {inventory}", "1 hosts, 0 files by URL, 0 wheels: manifest.json"),
    "fetch": ("fetch {file} mirror --archive http://192.0.2.1/debian", "is not a manifest"),
    "image": ("image list -i {inventory}", "so there is no place for image_catalogue.yml"),
    "inventory": ("inventory -i {inventory}", "1 hosts looked at"),
    "probe": ("probe --policy {file}", "The host is "),
    "place": ("place --nodes {file} --gpus 1", "none of the 0 nodes fits"),
    "drain": ("drain -i {inventory} node1", "no host is in the group mesos_masters"),
    "restore": ("restore -i {inventory} node1", "no host is in the group mesos_masters"),
    "reconcile": ("reconcile", "reconciler.json"),
    "clear": ("clear node1", "reconciler.json"),
    "node": ("node add node2 192.0.2.9 --like none -i {inventory}", "has no hosts.yml"),
    "user": ("user list -i {inventory}", "there are no users"),
    "backup": ("backup -i {inventory} --list", "has no archives"),
    "restore-head": ("restore-head {file} -i {inventory} --host node1", "is not a complete archive"),
}


def test_every_command_has_an_answer_here():
    assert set(ANSWERS) == set(COMMANDS)


@pytest.fixture(scope="module")
def empty(command_user, tmp_path_factory):
    """An empty directory, and files that lie elsewhere."""
    apart = tmp_path_factory.mktemp("apart")
    host = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": "/usr/bin/python3"}
    inventory = apart / "one.json"
    # A machine of tests may have no clock of its own.
    content = {"hosts": {"node1": host}, "vars": {"gpu_preflight_refuse": []}}
    inventory.write_text(json.dumps({"gpu_cluster": content}))
    (apart / "file").write_text("[]")
    return tmp_path_factory.mktemp("empty"), {"inventory": str(inventory), "file": str(apart / "file")}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_installed_command_comes_to_its_answer_in_an_empty_directory(command_user, empty, name):
    where, places = empty
    line, answer = ANSWERS[name]
    said = command_user.types(f"gpuops {line.format(**places)} 2>&1 || true", cwd=where, COLUMNS="200")
    assert answer in said, said
    assert "could not be found" not in said
    assert "was not foreseen" not in said
