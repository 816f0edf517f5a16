# SPDX-License-Identifier: GPL-3.0-or-later
"""Plugins leave the process of Ansible as it is: they share it with whatever else a user runs in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, run, tracked

# Prints which of the modules that it is given change something that the whole process would feel.
IMPORTER = """
import gc, importlib, json, os, sys

hooks = []
os.register_at_fork = lambda **functions: hooks.append(functions)

def state():
    return [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(hooks)]

changed = []
for name in sys.argv[1:]:
    before = state()
    importlib.import_module(name)
    if state() != before:
        changed.append(name)
print(json.dumps(changed))
"""
KINDS = ("action", "callback", "filter", "inventory", "test")
PLANTED = {
    "frozen": "import gc\ngc.freeze()\n",
    "thresholds": "import gc\ngc.set_threshold(100000, 50, 50)\n",
    "disabled": "import gc\ngc.disable()\n",
    "hooked": "import os\nos.register_at_fork(before=lambda: None)\n",
}


def changing(names: list[str], directory: Path) -> list[str]:
    """Which of the modules change the process that imports them; they may lie in the directory."""
    # What Ansible and Python register themselves is loaded first.
    known = ["ansible.cli", "ansible.plugins.loader", "ansible.template", "ansible.executor.task_executor"]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, *known, *names], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [name for name in json.loads(done.stdout) if name in names]


def test_importing_a_plugin_changes_nothing_in_the_process(tmp_path: Path) -> None:
    files = [path for kind in KINDS for path in tracked(f"plugins/{kind}", ".py")]
    names = [".".join(("ansible_collections.baremetal.gpu", *path.with_suffix("").parts)) for path in files]
    assert len(names) > 20
    assert changing(names, tmp_path) == []


@pytest.mark.parametrize("name", PLANTED)
def test_an_import_that_changes_the_process_is_seen(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(PLANTED[name])
    assert changing([name], tmp_path) == [name]


WATCHER = """
import gc, json, os
from ansible.plugins.callback import CallbackBase

hooks = []
register = os.register_at_fork
os.register_at_fork = lambda **functions: (hooks.append(1), register(**functions))

class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "watcher"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.before = self.state()

    @staticmethod
    def state():
        return [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(hooks)]

    def v2_playbook_on_stats(self, stats):
        with open(os.environ["WATCHED"], "w") as file:
            json.dump([self.before, self.state()], file)
"""


def watched(directory: Path, *tasks: dict[str, object]) -> list[object]:
    """The state of Ansible's process before and after a playbook of these tasks."""
    for folder in ("callback", "action", "library"):
        (directory / folder).mkdir()
    (directory / "callback" / "watcher.py").write_text(WATCHER)
    (directory / "action" / "planted.py").write_text(
        "import gc\nfrom ansible.plugins.action.debug import ActionModule as Debug\ngc.freeze()\n"
        "class ActionModule(Debug):\n    pass\n"
    )
    (directory / "library" / "planted.py").write_text("")
    book = directory / "play.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    run(
        BIN / "ansible-playbook",
        *("-i", "node1,node2", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", book),
        cwd=directory,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_CALLBACK_PLUGINS=str(directory / "callback"),
        ANSIBLE_CALLBACKS_ENABLED="watcher",
        ANSIBLE_ACTION_PLUGINS=str(directory / "action"),
        ANSIBLE_LIBRARY=str(directory / "library"),
        WATCHED=str(directory / "state.json"),
    )
    return list(json.loads((directory / "state.json").read_text()))


def test_running_the_plugins_changes_nothing_in_the_process(tmp_path: Path) -> None:
    before, after = watched(
        tmp_path,
        {"baremetal.gpu.gpu_preflight_info": {}},
        {"baremetal.gpu.gpu_facts": {"gather_subset": ["pci"]}},
        {"baremetal.gpu.gpu_health_info": {}, "failed_when": False},
        {"baremetal.gpu.host_drift_info": {"desired": {}}},
    )
    assert after == before


def test_a_plugin_that_changes_the_process_is_seen(tmp_path: Path) -> None:
    before, after = watched(tmp_path, {"planted": {"msg": "here"}})
    assert after != before
