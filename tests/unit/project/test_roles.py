# SPDX-License-Identifier: GPL-3.0-or-later
"""A role's defaults, argument_specs and README say the same."""

from __future__ import annotations

import re
import shutil
import sys
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles as planned
from tests.unit.project.tree import ROOT, load_yaml, role_names, tracked, try_run

TYPES = {"str", "list", "dict", "bool", "int", "float", "path", "raw", "jsonarg", "json", "bytes", "bits"}

roles = pytest.mark.parametrize("role", role_names())


def defaults_of(role: str) -> dict[str, Any]:
    path = ROOT / "roles" / role / "defaults" / "main.yml"
    return (load_yaml(path) or {}) if path.exists() else {}


def entry_points_of(role: str) -> dict[str, dict[str, Any]]:
    return load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]


def options_of(role: str) -> dict[str, dict[str, Any]]:
    """Options of every entry point, such as main and reboot."""
    merged: dict[str, dict[str, Any]] = {}
    for entry in entry_points_of(role).values():
        merged.update(entry.get("options") or {})
    return merged


def every_option(options: dict[str, dict[str, Any]], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Options and those inside them."""
    found = []
    for name, spec in options.items():
        found.append((path + name, spec))
        found += every_option(spec.get("options") or {}, f"{path}{name}.")
    return found


def is_computed(value: Any) -> bool:
    return isinstance(value, str) and "{{" in value


@roles
def test_every_default_is_specified(role):
    unspecified = set(defaults_of(role)) - set(options_of(role))
    assert not unspecified, f"in defaults/main.yml but not in meta/argument_specs.yml: {sorted(unspecified)}"


@roles
def test_every_option_can_be_left_out_or_says_that_it_cannot(role):
    defaults = defaults_of(role)
    hanging = [
        name
        for name, spec in options_of(role).items()
        if name not in defaults and "default" not in spec and "required" not in spec
    ]
    assert not hanging, f"neither a default nor `required`: {hanging}"


@roles
def test_specified_defaults_are_the_real_ones(role):
    defaults = defaults_of(role)
    different = {
        name: (spec["default"], defaults[name])
        for name, spec in options_of(role).items()
        if name in defaults and "default" in spec and spec["default"] != defaults[name]
    }
    assert not different, f"argument_specs and defaults differ: {different}"
    undocumented = [
        name
        for name, spec in options_of(role).items()
        if name in defaults and not is_computed(defaults[name]) and defaults[name] is not None and "default" not in spec
    ]
    assert not undocumented, f"argument_specs do not tell the default of: {undocumented}"


@roles
def test_every_option_has_a_type_and_a_description(role):
    for name, spec in every_option(options_of(role)):
        assert spec.get("type") in TYPES, f"{name}: type {spec.get('type')!r}"
        description = spec.get("description")
        assert description, f"{name} has no description"
        assert all(
            isinstance(line, str) and line.strip()
            for line in ([description] if isinstance(description, str) else description)
        ), f"{name}: {description!r}"
        if spec["type"] == "list":
            assert spec.get("elements") in TYPES, f"{name}: elements {spec.get('elements')!r}"


@roles
def test_defaults_are_among_the_choices(role):
    for name, spec in every_option(options_of(role)):
        if "choices" not in spec:
            continue
        assert isinstance(spec["choices"], list), name
        assert spec["choices"], name
        value = defaults_of(role).get(name, spec.get("default"))
        if value is None or is_computed(value):
            continue
        for one in value if spec["type"] == "list" else [value]:
            assert one in spec["choices"], f"{name}: {one!r} is not one of {spec['choices']}"


@roles
def test_public_variables_carry_the_name_of_the_role(role):
    strangers = [name for name in defaults_of(role) if not name.startswith(f"{role}_")]
    assert not strangers, f"not named {role}_…: {strangers}"


@roles
def test_readme_names_every_variable(role):
    readme = (ROOT / "roles" / role / "README.md").read_text()
    missing = [name for name in options_of(role) if f"`{name}`" not in readme]
    assert not missing, f"roles/{role}/README.md does not name: {missing}"


@roles
def test_description_tells_a_default_that_is_computed(role):
    """The tables of variables leave the expression out."""
    untold = [
        name
        for name, value in defaults_of(role).items()
        if is_computed(value) and "default" not in str(options_of(role)[name]["description"])
    ]
    assert not untold, f"the description does not say what the default is: {untold}"


def test_readmes_have_the_tables_of_the_specifications():
    """Names, types, defaults and descriptions stand in the specifications and the defaults alone."""
    done = try_run((sys.executable, ROOT / "tools" / "role_tables.py", "--check"))
    assert done.returncode == 0, f"run tools/role_tables.py:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("| `cephfs_homes_size` | str |", "| `cephfs_homes_size` | int |"),
        ("| `50G` |", "| `40G` |"),
        ("| Mode of a home. |", "| The mode. |"),
        ("| `cephfs_homes_shares[].path` |", ""),
    ],
    ids=["type", "default", "description", "row"],
)
def test_a_readme_that_says_something_else_is_shown_and_mended(tmp_path, there, instead):
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "roles" / "cephfs_homes", tmp_path / "roles" / "cephfs_homes")
    readme = tmp_path / "roles" / "cephfs_homes" / "README.md"
    good = readme.read_text()
    (row,) = [line for line in good.splitlines() if there in line]
    readme.write_text(good.replace(f"{row}\n", f"{row.replace(there, instead)}\n" if instead else ""))
    tool = (sys.executable, tmp_path / "tools" / "role_tables.py")
    done = try_run((*tool, "--check"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"+{row}\n" in done.stdout
    assert try_run(tool).returncode == 0
    assert readme.read_text() == good


def test_a_new_setting_gets_a_row_behind_that_of_the_setting_before_it(tmp_path):
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "roles" / "cephfs_homes", tmp_path / "roles" / "cephfs_homes")
    readme = tmp_path / "roles" / "cephfs_homes" / "README.md"
    good = readme.read_text()
    (row,) = [line for line in good.splitlines() if line.startswith("| `cephfs_homes_filesystem`")]
    readme.write_text(good.replace(f"{row}\n", ""))
    tool = (sys.executable, tmp_path / "tools" / "role_tables.py")
    done = try_run((*tool, "--check"))
    assert (done.returncode, f"+{row}\n" in done.stdout) == (1, True), done.stdout + done.stderr
    assert try_run(tool).returncode == 0
    assert readme.read_text() == good


def test_a_variable_that_no_table_has_is_named(tmp_path):
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    shutil.copytree(ROOT / "roles" / "ceph_mon", tmp_path / "roles" / "ceph_mon")
    readme = tmp_path / "roles" / "ceph_mon" / "README.md"
    readme.write_text(readme.read_text().replace("| `ceph_mon_quorum_timeout` |", "See `ceph_mon_quorum_timeout`. |"))
    done = try_run((sys.executable, tmp_path / "tools" / "role_tables.py"))
    assert done.returncode == 1, done.stderr
    assert "no table has ceph_mon_quorum_timeout" in done.stdout


@roles
def test_readme_names_no_variable_that_is_not_there(role):
    readme = (ROOT / "roles" / role / "README.md").read_text()
    known = {name for one in role_names() for name in options_of(one)}
    named = set(re.findall(rf"`({re.escape(role)}_[a-z0-9_]+)`", readme))
    # A role may set facts, which its README names too.
    made = set(
        re.findall(
            rf"\b({re.escape(role)}_[a-z0-9_]+)\b",
            "".join(
                (ROOT / path).read_text() for path in tracked(f"roles/{role}") if path.suffix in (".yml", ".j2", ".py")
            ),
        )
    )
    assert not named - known - made, f"named in the README only: {sorted(named - known - made)}"


@roles
def test_role_says_what_it_is(role):
    info = load_yaml(f"roles/{role}/meta/main.yml")["galaxy_info"]
    assert info["license"] == "GPL-3.0-or-later"
    assert info["description"].strip()
    assert info["min_ansible_version"] in ("2.19", "2.19.0")
    for name, entry in entry_points_of(role).items():
        assert entry.get("short_description"), f"entry point {name}"


@pytest.mark.parametrize("role", planned.names())
def test_a_role_names_its_plan_and_gives_it_all_of_its_settings(role):
    head, *_tasks = (ROOT / "roles" / role / "tasks" / "main.yml").read_text().split("\n- name", 1)
    assert f"plugins/plugin_utils/desired/{role}.py" in head
    variables = (ROOT / "roles" / role / "vars" / "main.yml").read_text()
    assert not options_of(role) or f"lookup('baremetal.gpu.settings', '{role}')" in variables


@roles
def test_tasks_main_is_a_table_of_contents(role):
    path = ROOT / "roles" / role / "tasks" / "main.yml"
    lines = path.read_text().splitlines()
    assert len(lines) <= 60, f"{len(lines)} lines: more than a screen; move a stage into a file of its own"
