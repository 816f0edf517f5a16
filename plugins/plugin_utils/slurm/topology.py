# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a Slurm cluster as a tree of switches, from the inventory. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SETTING = "slurm_common_switches"
NODE_SETTING = "slurm_common_switch"


@dataclass(frozen=True)
class Switch:
    """A switch with either nodes or other switches below it, as Slurm has them."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def describe(
    switch_of: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Switch, ...], list[Problem]]:
    """The switches with something below them, in the order in which they are named; none where no node has one.

    :param switch_of: node -> its switch, empty where it has none.
    :param rows: {name, parent} of switches that are below others, or above them.
    """
    if not any(switch_of.values()):
        return (), []
    parents = {str(row["name"]): str(row.get("parent") or "") for row in rows}
    nodes: dict[str, list[str]] = {}
    for node, switch in switch_of.items():
        nodes.setdefault(switch, []).append(node)
    problems = [*_node_problems(switch_of, parents), *_tree_problems(rows, parents, nodes)]
    if problems:
        return (), problems
    # A switch of nodes that is not listed stands by itself.
    names = list(dict.fromkeys([*parents, *nodes]))
    used = _with_nodes(parents, nodes)
    children = {name: [one for one in names if one in used and parents.get(one) == name] for name in names}
    return tuple(Switch(one, tuple(nodes.get(one, ())), tuple(children[one])) for one in names if one in used), []


def _with_nodes(parents: Mapping[str, str], nodes: Mapping[str, Sequence[str]]) -> set[str]:
    """The switches with a node somewhere below them."""
    found: set[str] = set()
    for name in nodes:
        while name and name not in found:
            found.add(name)
            name = parents.get(name, "")
    return found


def _node_problems(switch_of: Mapping[str, str], parents: Mapping[str, str]) -> Iterator[Problem]:
    without = sorted(node for node, switch in switch_of.items() if not switch)
    if without:
        yield Problem(
            "no_switch",
            NODE_SETTING,
            f"other nodes have a switch, and these have none: {', '.join(without)}",
            ", ".join(without),
            f"set {NODE_SETTING} for them, or for no node",
        )
    for name in sorted({*switch_of.values(), *parents} - {""}):
        if not _NAME.fullmatch(name):
            yield Problem(
                "bad_name",
                SETTING if name in parents else NODE_SETTING,
                "the name of a switch has other characters than letters, digits, dots, hyphens and underscores",
                name,
                "choose another",
            )


def _tree_problems(
    rows: Sequence[Mapping[str, Any]], parents: Mapping[str, str], nodes: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    for name, count in Counter(str(row["name"]) for row in rows).items():
        if count > 1:
            yield Problem("two_switches", SETTING, f"the switch {name} is listed {count} times", name, "leave one")
    for name, parent in parents.items():
        if parent and parent not in parents:
            yield Problem(
                "no_parent",
                SETTING,
                f"the switch {name} is below {parent}, which is not listed",
                parent,
                f"correct the name, or add {parent} to {SETTING}",
            )
        if parent in nodes:
            yield Problem(
                "mixed_switch",
                SETTING,
                f"the switch {parent} has nodes ({', '.join(nodes[parent])}) and the switch {name} below it, and Slurm "
                "takes one or the other",
                parent,
                "give its nodes a switch of their own with this one as the parent, even if there is none",
            )
    for circle in _circles(parents):
        yield Problem(
            "switch_cycle",
            SETTING,
            f"switches are below each other: {' below '.join([*circle, circle[0]])}",
            ", ".join(circle),
            "leave one of them without a parent",
        )


def _circles(parents: Mapping[str, str]) -> Iterator[list[str]]:
    done: set[str] = set()
    for start in parents:
        way: list[str] = []
        name = start
        while name and name not in done and name not in way:
            way.append(name)
            name = parents.get(name, "")
        if name in way:
            yield way[way.index(name) :]
        done.update(way)
