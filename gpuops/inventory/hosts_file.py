# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that come into the file hosts.yml of an inventory, and leave it, as text: comments and order stay.

PyYAML tells where each value begins. What comes out is read again and held against what was meant, so a form that is
not understood here is refused and never half changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from gpuops.site import Site
from gpuops.yaml_text import end_of, line_end

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,252}[A-Za-z0-9])?", re.ASCII)
NODES = "gpu_nodes"
BY_HAND = "change it by hand; docs/inventory.md has its form"


def find(site: Site) -> Path:
    """The file. Raises Refused."""
    names = (
        [site.inventory] if site.inventory.is_file() else [site.inventory / f"hosts.{end}" for end in ("yml", "yaml")]
    )
    found = [path for path in names if path.is_file() and path.suffix in (".yml", ".yaml")]
    if not found:
        raise Refused(f"{site.inventory} has no hosts.yml", BY_HAND)
    return found[0]


def groups(text: str) -> dict[str, dict[str, Any]]:
    """The hosts that the file names in each group, with their variables. Raises Refused."""
    return {name: hosts for name, hosts, _node in _places(text)}


def add(text: str, name: str, address: str, like: str) -> str:
    """The text with a host in all the groups in which another one is. Raises Refused."""
    known = groups(text)
    hosts = {host: row for rows in known.values() for host, row in rows.items()}
    if not NAME.fullmatch(name) or not ADDRESS.fullmatch(address):
        raise Refused(f"{name} with {address} is not a name with an address", "give such as gpu9 192.0.2.39")
    if name in hosts or name in known:
        raise Refused(f"the inventory has {name} already", "give another name, or `gpuops node remove` it first")
    users = [
        host for rows in known.values() for host, row in rows.items() if (row or {}).get("ansible_host") == address
    ]
    if users:
        raise Refused(f"{address} is the address of {users[0]}", "give its own")
    if like not in hosts:
        raise Refused(
            f"the file has no host {like}", f"give one with --like: {', '.join(sorted(hosts)) or 'there is none'}"
        )
    where = [(group, node) for group, rows, node in _places(text) if like in rows]
    holder = next((group for group, _node in where if (known[group][like] or {}).get("ansible_host")), where[0][0])
    wanted = _content(text)
    for group, node in sorted(where, key=lambda one: -one[1].start_mark.index):
        if node.flow_style:
            raise Refused(f"the hosts of {group} are in braces", BY_HAND)
        column = " " * node.value[0][0].start_mark.column
        lines = f"\n{column}{name}:" + (f"\n{column}  ansible_host: {_scalar(address)}" if group == holder else "")
        end = line_end(text, end_of(node))
        text = text[:end] + lines + text[end:]
    for group, rows in _hosts(wanted):
        if like in rows:
            rows[name] = {"ansible_host": address} if group == holder else None
    return _checked(text, wanted)


def remove(text: str, name: str) -> str:
    """The text without a host. Raises Refused, also where a group would be left without any.

    The last host with GPUs of a model may go: such a group, `gpu_nodes_MODEL`, has no role of its own.
    """
    where = [(group, rows, node) for group, rows, node in _places(text) if name in rows]
    if not where:
        raise Refused(f"the file has no host {name}", "see `gpuops inventory` for those that there are")
    alone = [group for group, rows, _node in where if len(rows) == 1 and not _names_model(group)]
    nodes = {host for group, rows in groups(text).items() if group == NODES or _names_model(group) for host in rows}
    if nodes == {name}:
        alone.append(NODES)
    if alone:
        cause = f"{name} is the only host of {', '.join(alone)}"
        raise Refused(cause, "name another host there first: docs/operations.md, 'Move a role'")
    wanted = _content(text)
    for group, _rows, node in sorted(where, key=lambda one: -one[2].start_mark.index):
        if node.flow_style:
            raise Refused(f"the hosts of {group} are in braces", BY_HAND)
        key, value = next(pair for pair in node.value if pair[0].value == name)
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        text = text[:start] + text[line_end(text, end_of(value)) + 1 :]
    for _group, rows in _hosts(wanted):
        rows.pop(name, None)
    return _checked(text, wanted)


def _names_model(group: str) -> bool:
    return group.startswith(f"{NODES}_")


def _checked(text: str, wanted: Any) -> str:
    found = _content(text)
    for _name, group in (*_groups(found), *_groups(wanted)):
        # A group whose last host went has nothing below `hosts:`.
        group["hosts"] = group.get("hosts") or None
    if found != wanted:
        raise Refused("the file has a form that cannot be changed without touching the rest", BY_HAND)
    return text


def _content(text: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as wrong:
        raise Refused(f"it cannot be read: {' '.join(str(wrong).split())}", "correct the line that is named") from None
    if not isinstance(content, dict):
        raise Refused("it has no groups in it", BY_HAND)
    return content


def _hosts(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every group with hosts, by its name."""
    for name, group in _groups(content):
        if isinstance(group.get("hosts"), dict):
            yield name, group["hosts"]


def _groups(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, group in (content or {}).items():
        if isinstance(group, dict):
            yield str(name), group
            yield from _groups(group.get("children"))


def _places(text: str) -> list[tuple[str, dict[str, Any], yaml.MappingNode]]:
    """The same with where they stand in the text."""
    nodes: list[yaml.MappingNode] = []

    def walk(node: Any) -> None:
        for _key, group in node.value if isinstance(node, yaml.MappingNode) else ():
            inner = {key.value: value for key, value in group.value} if isinstance(group, yaml.MappingNode) else {}
            hosts = inner.get("hosts")
            if isinstance(hosts, yaml.MappingNode):
                nodes.append(hosts)
            walk(inner.get("children"))

    found = list(_hosts(_content(text)))
    walk(yaml.compose(text, Loader=yaml.SafeLoader))
    if len(nodes) != len(found) or len(dict(found)) != len(found):
        raise Refused("a group stands in it twice", BY_HAND)
    return [(name, rows, node) for (name, rows), node in zip(found, nodes, strict=True)]


def _scalar(value: str) -> str:
    return yaml.safe_dump([value], default_flow_style=True).strip()[1:-1]
