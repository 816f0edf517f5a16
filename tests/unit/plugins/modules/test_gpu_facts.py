# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules themselves, and that pynvml travels with them."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.action import gpu_preflight_info as gpu_preflight_action
from ansible_collections.baremetal.gpu.plugins.modules import gpu_facts, gpu_preflight_info
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding

ROOT = Path(__file__).resolve().parents[4]


def run(module, capsys, arguments, check_mode=False):
    # patch_module_args takes check mode as an argument of the module, as Ansible passes it.
    with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), pytest.raises(SystemExit) as stop:
        module.main()
    answer = json.loads(capsys.readouterr().out)
    answer["rc"] = stop.value.code
    return answer


@pytest.mark.parametrize("check_mode", [False, True])
def test_gpu_facts_answers_on_any_machine(capsys, check_mode):
    answer = run(gpu_facts, capsys, {}, check_mode)
    assert answer["rc"] == 0
    assert answer["changed"] is False
    facts = answer["ansible_facts"]["gpu"]
    assert facts["present"] in (True, False, None)
    assert facts["present"] or facts["reason"]
    assert set(facts) == {"schema", "present", "reason", "pci", "driver", "devices", "topology", "health"}


def test_gpu_facts_of_a_part(capsys):
    facts = run(gpu_facts, capsys, {"gather_subset": ["pci"]})["ansible_facts"]["gpu"]
    assert set(facts) == {"schema", "present", "reason", "pci"}


def test_gpu_facts_refuses_an_unknown_part(capsys):
    answer = run(gpu_facts, capsys, {"gather_subset": ["everything"]})
    assert answer["failed"] is True
    assert "must be one or more of: all, pci, driver, devices, topology, health, details" in answer["msg"]


def test_preflight_answers_on_any_machine(capsys):
    answer = run(gpu_preflight_info, capsys, {"host": "here", "variables": {"nvidia_driver_branch": "latest"}}, True)
    assert answer["rc"] == 0
    assert answer["changed"] is False
    assert "variable" in [row["code"] for row in answer["problems"]]
    assert answer["report"].startswith("here: ")
    assert answer["plan"]["host"] == "here"
    assert "ansible_facts" not in answer
    assert not {"packages", "repositories"} & set(answer["host"])


def test_preflight_publishes_facts_if_asked_to(capsys):
    answer = run(gpu_preflight_info, capsys, {"publish": True})
    assert answer["ansible_facts"] == {"gpu": answer["gpu"], "gpu_plan": answer["plan"]}


def test_no_network_is_asked_without_leave(capsys, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(gpu_preflight_info.reach, "reach", never)
    monkeypatch.setattr(gpu_preflight_info.addresses.socket, "getaddrinfo", never)
    assert run(gpu_preflight_info, capsys, {"urls": {"a_url": "http://mirror.invalid/"}})["rc"] == 0


def test_what_cannot_be_reached_is_a_problem(capsys, monkeypatch):
    monkeypatch.setattr(gpu_preflight_info.gather, "repositories", lambda root: [])
    arguments = {"urls": {"a_url": "http://127.0.0.1:1/"}, "check_network": True}
    # This machine may have the engine already, and then nothing is to be installed.
    monkeypatch.setattr(gpu_preflight_info.gather, "packages", lambda root, run: {})
    answer = run(gpu_preflight_info, capsys, arguments)
    (row,) = [row for row in answer["problems"] if row["code"] == "unreachable"]
    assert row["evidence"] == "http://127.0.0.1:1/"
    assert row["cause"].endswith("[Errno 111] Connection refused")
    accepted = run(gpu_preflight_info, capsys, {**arguments, "accept": ["unreachable"]})
    assert "unreachable" in [row["code"] for row in accepted["cautions"]]


def test_the_controllers_pynvml_is_packed_without_importing_it():
    before = set(sys.modules)
    packed = nvml_binding._find()
    assert b"def nvmlInit(" in zlib.decompress(base64.b64decode(packed))
    assert set(sys.modules) - before == set()


def test_a_controller_without_pynvml_packs_nothing(monkeypatch):
    monkeypatch.setattr(nvml_binding.importlib.util, "find_spec", lambda name: None)
    assert nvml_binding._find() is None


def test_the_installers_checksum_is_worked_out_once(tmp_path):
    installer = tmp_path / "x.run"
    installer.write_bytes(b"installer")
    first = gpu_preflight_action.checksum(str(installer), str(tmp_path))
    assert first == hashlib.sha256(b"installer").hexdigest()
    (note,) = tmp_path.glob("runfile-*")
    note.write_text("from the note")
    assert gpu_preflight_action.checksum(str(installer), str(tmp_path)) == "from the note"
    installer.write_bytes(b"another installer")
    assert (
        gpu_preflight_action.checksum(str(installer), str(tmp_path)) == hashlib.sha256(b"another installer").hexdigest()
    )


@pytest.fixture
def play(tmp_path):
    """Runs a module as Ansible does, on this machine."""

    def run_play(module, *arguments):
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
            "ANSIBLE_NOCOLOR": "1",
        }
        command = [str(Path(sys.executable).with_name("ansible")), "-i", "localhost,", "-c", "local", "all"]
        command += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", f"baremetal.gpu.{module}", *arguments]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_play


@pytest.mark.parametrize("module", ["gpu_facts", "gpu_preflight_info"])
def test_what_travels_along_is_not_shown(play, module):
    """Ansible shows a module's arguments with -vvv."""
    shown = play(module, "-vvv")
    assert "module_args" in shown
    assert "_binding" not in shown
    assert nvml_binding.packed_source()[:60] not in shown


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"installer", f"found_sha256: {hashlib.sha256(b'installer').hexdigest()}"),
        (None, "error: No such file or directory"),
    ],
)
def test_an_installer_on_the_controller_is_looked_at_there(play, tmp_path, content, shown):
    path = tmp_path / "x.run"
    if content is not None:
        path.write_bytes(content)
    runfile = {"path": str(path), "sha256": "0" * 64}
    arguments = {"variables": {"nvidia_driver_method": "runfile"}, "runfile": runfile}
    # What the action plugin added is among the module's arguments.
    assert shown in play("gpu_preflight_info", "-a", json.dumps(arguments), "-vvv")


def test_what_is_set_for_the_roles_is_judged_with_all_else(play):
    given = {"container_runtime_validate": "{{ how }}", "how": "sometimes", "cuda_validate": "{{ later }}"}
    given |= {"container_runtime_docker_config": {"data-root": "{{ later }}"}}
    arguments = {"from_variables": True, "variables": {"nvidia_driver_branch": "latest"}}
    shown = play("gpu_preflight_info", "-a", json.dumps(arguments), "-e", json.dumps(given))
    told = yaml.safe_load(shown.partition("=>")[2])
    values = [row["evidence"] for row in told["problems"] if row["code"] == "variable"]
    assert sorted(values) == ["latest", "sometimes"]
    assert "one of: on_change, always, never [sometimes]" in told["report"]


def test_what_runs_on_a_host_is_python_3_9():
    plugins = ROOT / "plugins"
    for path in [*plugins.glob("module_utils/**/*.py"), *plugins.glob("modules/*.py")]:
        ast.parse(path.read_text(), feature_version=(3, 9))
