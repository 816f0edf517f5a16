# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks of a run have the stages that plugin_utils/stages.py lists, with its roles, tags and groups."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import stages
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import GPU_ABSENT, GPU_PRESENT, STAGES, Stage
from tests.unit.project.tree import load_yaml, tracked

# Path below playbooks/ -> what is in it.
Read = Callable[[str], Any]

BUILTIN = "ansible.builtin."
STAGE_OF_ROLE = {role: stage for stage in STAGES for role in (*stage.roles, *stage.further_roles)}


@functools.cache
def read(path: str) -> Any:
    return load_yaml(f"playbooks/{path}")


@dataclass
class Task:
    """A task on the way of site.yml, with what it takes over from all that is around it.

    :ivar way: the playbooks through which it is reached.
    :ivar siblings: roles of the same play.
    """

    way: tuple[str, ...]
    name: str
    content: dict[str, Any]
    tags: set[str]
    groups: set[str]
    siblings: set[str]

    @property
    def role(self) -> str:
        called = self.content.get(f"{BUILTIN}import_role") or self.content.get(f"{BUILTIN}include_role") or {}
        return str(called.get("name", "")).removeprefix("baremetal.gpu.")

    @property
    def tasks_file(self) -> str:
        return PurePosixPath(self.content.get(f"{BUILTIN}import_tasks", "")).stem

    def __str__(self) -> str:
        return f"{' > '.join(f'playbooks/{name}' for name in self.way)}: {self.name}"


def blocks(content: Iterable[dict[str, Any]], tags: set[str], groups: set[str]) -> Iterator[Task]:
    """The tasks of a play, those in its blocks too."""
    for task in content:
        own = tags | set(task.get("tags", []))
        condition = str(task.get("when", ""))
        meant = {group for group in groups if f"'{group}' in group_names" in condition} or groups
        if "block" in task:
            yield from blocks(task["block"], own, meant)
        else:
            yield Task((), task["name"], task, own, meant, set())


def tasks_of(path: str, read: Read, way: tuple[str, ...] = (), tags: frozenset[str] = frozenset()) -> Iterator[Task]:
    """Every task that a run of a playbook comes to, in order."""
    way = (*way, path)
    for play in read(path):
        inherited = tags | set(play.get("tags", []))
        if imported := play.get(f"{BUILTIN}import_playbook"):
            yield from tasks_of(str(PurePosixPath(path).parent / imported), read, way, inherited)
            continue
        hosts = play["hosts"]
        groups = set(re.findall(r"'(\w+)'", hosts) if "{{" in hosts else hosts.split(":"))
        found = list(blocks(play["tasks"], set(inherited), groups))
        for task in found:
            task.way = way
            task.siblings = {other.role for other in found if other.role}
            yield task


def tags_of(stage: Stage, role: str) -> set[str]:
    """The tags by which a role of a stage is run."""
    tags = {stage.tag, *([role] if stage.tag_by_role else [])}
    if stage.name == "preflight":
        tags |= {tag for other in STAGES if other.after_preflight for tag in other.tags}
    return tags


def desired_tags(task: Task) -> set[str]:
    if task.role in STAGE_OF_ROLE:
        return tags_of(STAGE_OF_ROLE[task.role], task.role)
    if task.tasks_file == "sort_hosts":
        return {tag for stage in STAGES if {GPU_PRESENT, GPU_ABSENT} & set(stage.groups) for tag in stage.tags}
    if task.tasks_file == "leave_finished":
        return {tag for stage in STAGES if stage.after_preflight for tag in stage.tags}
    # What a play does besides its roles goes with them.
    return {tag for role in task.siblings for tag in tags_of(STAGE_OF_ROLE[role], role)}


def different(task: Task, what: str, current: set[str], desired: set[str]) -> Iterator[str]:
    for tag in sorted(desired - current):
        yield f"{task}: {what} lacks {tag}"
    for tag in sorted(current - desired):
        yield f"{task}: {what} has {tag}, which stages.py does not say"


def differences(read: Read = read) -> list[str]:
    """What the playbooks of a run say otherwise than the list of stages."""
    found: list[str] = []
    tasks = list(tasks_of("site.yml", read))
    groups: dict[str, set[str]] = {}
    order: list[str] = []
    for task in tasks:
        if task.role and task.role not in STAGE_OF_ROLE:
            found.append(f"{task}: {task.role} is not a role of any stage")
            continue
        found += different(task, "the task", task.tags, desired_tags(task))
        if task.role:
            stage = STAGE_OF_ROLE[task.role]
            called = task.content.get(f"{BUILTIN}include_role")
            if called:
                applied = {task.role if stage.tag_by_role else stage.tag}
                found += different(task, "apply", set(called.get("apply", {}).get("tags", [])), applied)
            if not (called or {}).get("tasks_from"):
                order.append(task.role)
            # Which hosts have GPUs is not known before them.
            if stage.name == "preflight" or not any(name.endswith("preflight.yml") for name in task.way):
                groups.setdefault(stage.name, set()).update(task.groups)
        elif task.tasks_file == "leave_finished":
            compared = re.findall(r"\w+", " ".join(re.findall(r"\[(.*?)\]", task.content["vars"]["node_roles"])))
            desired = [role for stage in STAGES if stage.after_preflight for role in stage.roles]
            if compared != desired:
                found.append(f"{task}: node_roles is {compared}, stages.py has {desired}")
    for stage in STAGES:
        if groups.get(stage.name, set()) != set(stage.groups):
            found.append(f"playbooks/site.yml: stage {stage.name} has hosts of {sorted(groups.get(stage.name, ()))}")
    if order != (desired := [role for stage in STAGES for role in stage.roles]):
        found.append(f"playbooks/site.yml: the roles come as {order}, in stages.py as {desired}")
    return found


def test_the_playbooks_have_the_stages_of_the_list() -> None:
    assert not differences()


def tag_lists(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the lists of tags are in a playbook."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "tags":
                yield (*place, key)
            else:
                yield from tag_lists(value, (*place, key))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from tag_lists(value, (*place, number))


def at(content: Any, place: Iterable[Any]) -> Any:
    for key in place:
        content = content[key]
    return content


def written_tags() -> list[Any]:
    """Every tag that is written in a playbook, and where."""
    paths = [file.relative_to("playbooks").as_posix() for file in tracked("playbooks", ".yml")]
    return [
        pytest.param(path, place, tag, id=f"{path} {'.'.join(map(str, place))} {tag}")
        for path in paths
        for place in tag_lists(read(path))
        for tag in at(read(path), place)
    ]


def changed(path: str, place: tuple[Any, ...], change: Callable[[list[str]], None]) -> list[str]:
    """The differences where the tags at one place of a playbook are others."""
    broken = copy.deepcopy(read(path))
    change(at(broken, place))
    return differences(lambda asked: broken if asked == path else read(asked))


@pytest.mark.parametrize(("path", "place", "tag"), written_tags())
def test_a_tag_that_is_taken_away_is_named_with_its_playbook(path: str, place: tuple[Any, ...], tag: str) -> None:
    found = changed(path, place, lambda tags: tags.remove(tag))
    assert any(f"playbooks/{path}" in text and f"lacks {tag}" in text for text in found), found


@pytest.mark.parametrize("tag", ["storage", "monitoring"])
def test_a_tag_that_no_stage_has_is_named(tag: str) -> None:
    found = changed("node.yml", (0, "tasks", 0, "tags"), lambda tags: tags.append(tag))
    assert found == [
        f"playbooks/site.yml > playbooks/node.yml: Sort hosts into gpu_present and gpu_absent: the task has {tag}, "
        "which stages.py does not say"
    ]


def test_a_role_that_is_not_compared_or_stands_in_another_place_is_named() -> None:
    node = copy.deepcopy(read("node.yml"))
    first, *checks, block, engine = node[1]["tasks"]
    first["vars"]["node_roles"] = first["vars"]["node_roles"].replace("'nvidia_driver', ", "")
    node[1]["tasks"] = [first, *checks, engine, block]
    found = differences(lambda path: node if path == "node.yml" else read(path))
    assert ["node_roles is" in text for text in found] == [True, False]
    assert "the roles come as ['gpu_preflight', 'container_runtime', 'nouveau'" in found[1]


def test_stages_go_to_the_hosts_that_the_list_says() -> None:
    broken = [{**play, "hosts": "gpu_absent"} for play in read("parts/verify.yml")]
    found = differences(lambda path: broken if path == "parts/verify.yml" else read(path))
    assert found == ["playbooks/site.yml: stage verify has hosts of ['gpu_absent']"]


def test_short_titles_are_short_and_all_different() -> None:
    assert len(set(stages.SHORT_TITLES.values())) == len(STAGES)
    assert max(map(len, stages.SHORT_TITLES.values())) <= 6
