# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans as they were recorded, one file for each role, and the plan of a role as its tasks read it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from tests.unit.project.tree import BIN, ROOT, try_run

DOCUMENTS = Path(__file__).parent / "documents"


def recorded(role: str) -> dict[str, dict[str, Any]]:
    """The cases of a role by name: params, facts and the plan."""
    cases: dict[str, dict[str, Any]] = json.loads((DOCUMENTS / f"{role}.json").read_text())
    return cases


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def texts(problems: Iterable[Mapping[str, str]]) -> list[str]:
    """The problems as people read them."""
    return [str(Problem(**problem)) for problem in problems]


def plan_by_ansible(
    directory: Path, role: str, params: Mapping[str, Any], facts: Mapping[str, Any], **variables: Any
) -> tuple[Any, Any]:
    """Of a role with other values for some of its variables: the plan, and the document of a finished host."""
    output = directory / "plan.json"
    values = f"{{{{ [__{role}_plan, __{role}_finished] | to_json }}}}"
    tasks = [
        *([{"ansible.builtin.set_fact": {**facts, "cacheable": True}}] if facts else []),
        {"ansible.builtin.import_role": {"name": f"baremetal.gpu.{role}"}, "when": False},
        {"ansible.builtin.copy": {"content": values, "dest": str(output)}},
    ]
    named = {f"{role}_{name}": value for name, value in params.items()}
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks, "vars": {**named, **variables}}
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    done = try_run(
        [BIN / "ansible-playbook", "-i", "here,", "-c", "local", directory / "play.yml"],
        cwd=directory,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_PYTHON_INTERPRETER=sys.executable,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plan, finished = json.loads(output.read_text())
    return plan, finished
