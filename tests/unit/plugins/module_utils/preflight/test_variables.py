# SPDX-License-Identifier: GPL-3.0-or-later
"""What preflight takes for the other roles' defaults and choices is what these roles say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.action import gpu_preflight_info
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import variables as preflight_variables

ROLES = Path(__file__).resolve().parents[5] / "roles"
NAMES = sorted(preflight_variables.DEFAULTS)


def role_of(variable: str) -> Path:
    names = [
        role for role in ("nvidia_driver", "cuda", "container_runtime", "converge") if variable.startswith(f"{role}_")
    ]
    assert len(names) == 1, variable
    return ROLES / names[0]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


there = pytest.mark.parametrize(
    "name", [name for name in NAMES if (role_of(name) / "meta/argument_specs.yml").exists()]
)


@there
def test_default_is_that_of_the_role(name):
    assert load(role_of(name) / "defaults" / "main.yml")[name] == preflight_variables.DEFAULTS[name]


@there
def test_choices_are_those_of_the_role(name):
    entry_points = load(role_of(name) / "meta" / "argument_specs.yml")["argument_specs"].values()
    found = [entry["options"][name] for entry in entry_points if name in entry["options"]]
    assert found
    assert {tuple(option.get("choices", ())) for option in found} == {preflight_variables.CHOICES.get(name, ())}


def test_the_variables_of_all_roles_of_a_node_are_judged():
    """Those that node.yml and the agent's playbook import, and what they share."""
    names = ("node.yml", "parts/mig.yml", "parts/verify.yml", "parts/agent.yml")
    playbooks = (ROLES.parent / "playbooks" / name for name in names)
    imported = [
        task[way]["name"].removeprefix("baremetal.gpu.")
        for playbook in playbooks
        for play in load(playbook)
        for block in play.get("tasks", [])
        for task in block.get("block", [block])
        for way in ("ansible.builtin.import_role", "ansible.builtin.include_role")
        if way in task and "tasks_from" not in task[way]
    ]
    assert list(gpu_preflight_info.JUDGED_ROLES) == ["converge", *imported]


def test_every_choice_has_a_default_among_it():
    assert {
        name: preflight_variables.DEFAULTS[name] in choices for name, choices in preflight_variables.CHOICES.items()
    } == dict.fromkeys(preflight_variables.CHOICES, True)
