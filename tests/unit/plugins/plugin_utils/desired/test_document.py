# SPDX-License-Identifier: GPL-3.0-or-later
"""The types of the desired document, against what the module that compares it with a host takes."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from ansible_collections.baremetal.gpu.plugins.modules.host_drift_info import SPEC
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Absent, Directory, File, Unit
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

# The types of a field, by that of the module's option. `kernels` is one word or a list.
KINDS = {"str": {str}, "path": {str}, "bool": {bool}, "int": {int}, "list": {list}, "dict": {dict}, "raw": {str, list}}
# What most files have is no default of the module, which leaves alone what is not named.
RIGHTS = {"mode", "owner", "group"}


def leaves(hint: Any) -> Iterator[Any]:
    """The types that a hint allows, without None and what is inside of lists and dicts."""
    if get_origin(hint) in (Union, types.UnionType):
        for one in get_args(hint):
            yield from leaves(one)
    elif hint is not type(None):
        yield hint


def items(section: str) -> list[type]:
    """The dataclasses of the items of a section."""
    (hint,) = leaves(get_type_hints(document.Document)[section])
    inner = get_args(hint)[0] if get_args(hint) else hint
    return [one for one in leaves(inner) if isinstance(one, type) and one.__module__ == document.__name__]


def allowed(section: str, name: str) -> tuple[set[type], set[str]]:
    """The types of a field in all dataclasses of a section, and its choices."""
    kinds: set[type] = set()
    choices: set[str] = set()
    for item in items(section):
        for hint in leaves(get_type_hints(item).get(name, type(None))):
            if get_origin(hint) is Literal:
                choices |= set(get_args(hint))
                kinds.add(str)
            else:
                kind = get_origin(hint) or hint
                kinds.add({Sequence: list, tuple: list, Mapping: dict}.get(kind, kind))
    return kinds, choices


OPTIONS = [(section, name) for section, spec in SPEC.items() for name in spec.get("options", ())]


def test_the_document_has_the_sections_of_the_module():
    assert {field.name for field in fields(document.Document)} == set(SPEC)


@pytest.mark.parametrize("section", [name for name, spec in SPEC.items() if "options" in spec])
def test_the_items_of_a_section_have_the_options_of_the_module(section: str):
    assert {field.name for item in items(section) for field in fields(item)} == set(SPEC[section]["options"])


@pytest.mark.parametrize(("section", "name"), OPTIONS)
def test_a_field_has_the_type_and_the_choices_of_its_option(section: str, name: str):
    option = SPEC[section]["options"][name]
    kinds, choices = allowed(section, name)
    assert kinds <= KINDS[option["type"]]
    assert choices == set(option.get("choices", ()))


@pytest.mark.parametrize(("section", "name"), OPTIONS)
def test_what_the_module_requires_has_to_be_given_and_a_default_is_that_of_the_module(section: str, name: str):
    option = SPEC[section]["options"][name]
    found = [field for item in items(section) for field in fields(item) if field.name == name]
    if option.get("required"):
        assert all(field.default is MISSING for field in found)
    elif section != "files":
        assert all(field.default in (None, MISSING, option.get("default")) for field in found)
    elif name not in {*RIGHTS, "state"}:
        # The target of a link is given, which the module leaves open, as other items have none.
        assert all(field.default is None for field in found) or name == "src"


def test_a_document_becomes_the_dicts_that_the_module_takes_without_what_is_not_set():
    plan = Plan(
        document.Document(
            files=[File("/etc/a", "text"), Directory("/etc/d", owner=None, group=None), Absent("/etc/gone")],
            units=[Unit.running("a.service", restart_on=["/etc/a"]), Unit.stopped("b.service")],
            packages=[],
            initramfs=document.Initramfs(["/etc/a"]),
            device_nodes=True,
        )
    )
    assert plan.desired == {
        "files": [
            {"path": "/etc/a", "content": "text", "mode": "0644", "owner": "root", "group": "root"},
            {"path": "/etc/d", "state": "directory", "mode": "0755"},
            {"path": "/etc/gone", "state": "absent"},
        ],
        "units": [
            {"name": "a.service", "enabled": True, "state": "started", "restart_on": ["/etc/a"]},
            {"name": "b.service", "enabled": False, "state": "stopped"},
        ],
        "packages": [],
        "initramfs": {"rebuild_on": ["/etc/a"]},
        "device_nodes": True,
    }


def test_what_an_operator_describes_is_passed_on_as_it_is():
    given = {"name": "site", "uris": ["https://example.org"], "more": 1}
    assert Plan(document.Document(repositories=[given])).desired == {"repositories": [given]}
