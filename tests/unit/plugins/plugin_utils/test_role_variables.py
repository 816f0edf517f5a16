# SPDX-License-Identifier: GPL-3.0-or-later
"""What is set for the variables of roles is judged before any role begins."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleError, AnsibleUndefinedVariable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import role_variables


def judged(role, known=(), **variables):
    return role_variables.unsuitable([role], variables, lambda value: value, known)


def test_a_value_that_is_no_choice_is_told_with_those_that_are():
    (problem,) = judged("container_runtime", container_runtime_validate="sometimes")
    assert problem == Problem(
        "variable",
        "container_runtime_validate",
        "container_runtime_validate does not suit the role container_runtime: value of container_runtime_validate"
        " must be one of: on_change, always, never",
        "sometimes",
        "set container_runtime_validate to a value that `ansible-doc -t role baremetal.gpu.container_runtime` allows",
    )


@pytest.mark.parametrize(
    ("role", "name", "value"),
    [
        ("container_runtime", "container_runtime_docker_config", "live-restore"),
        ("container_runtime", "container_runtime_containerd_config_version", 4),
        ("nouveau", "nouveau_state", "gone"),
        # Of another entry point than main.
        ("converge", "converge_reboot_timeout", "long"),
    ],
)
def test_what_the_role_would_refuse_is_refused(role, name, value):
    (row,) = judged(role, **{name: value})
    assert name in row.cause


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("container_runtime_hold", "yes"),
        ("container_runtime_docker_config", {"live-restore": True}),
        # A string is a list of one.
        ("container_runtime_packages", "docker.io"),
        ("container_runtime_of_ours", "whatever"),
    ],
)
def test_what_the_role_would_take_is_taken(name, value):
    assert judged("container_runtime", **{name: value}) == []


def test_what_somebody_else_judges_is_left_to_them():
    assert judged("container_runtime", {"container_runtime_engine"}, container_runtime_engine="rkt") == []


def test_what_is_made_of_later_facts_is_left_to_the_role():
    def resolve(value):
        raise AnsibleUndefinedVariable(value)

    assert role_variables.unsuitable(["cuda"], {"cuda_validate": "{{ later }}"}, resolve) == []


def test_a_secret_is_not_told(tmp_path, monkeypatch):
    specification = tmp_path / "vault" / "meta" / "argument_specs.yml"
    specification.parent.mkdir(parents=True)
    specification.write_text("argument_specs: {main: {options: {vault_pin: {type: int, no_log: true}}}}")
    monkeypatch.setattr(role_variables, "ROLES", tmp_path)
    (row,) = judged("vault", vault_pin="hunter2")
    assert "vault_pin" in row.cause
    assert "hunter2" not in repr(row)


def test_a_role_that_is_not_there_is_named():
    with pytest.raises(AnsibleError, match="cudda is not a role of this collection"):
        judged("cudda", cudda_versions=[])
