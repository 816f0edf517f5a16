# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes to a list of mappings in a file of YAML, as text: comments, order and form of all else stay.

PyYAML tells where each value begins. What comes out is read again and held against what was meant, so a form that is
not understood here is refused and never half changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from gpuops.yaml_text import end_of, line_end

Rows = list[dict[str, Any]]
WIDE = 10**6
# That of libyaml is ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        """Names of groups stand in one line, keys do not."""
        is_short = all(isinstance(one, str) for one in data) and sum(map(len, data)) < SHORT
        return self.represent_sequence("tag:yaml.org,2002:seq", data, is_short)


SHORT = 60
_Dumper.add_representer(list, _Dumper.represent_list)


def rows(text: str, key: str) -> Rows:
    """The rows of a list; none where the file has no such key. Raises Refused."""
    content = _content(text)
    found = content.get(key) or []
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Refused(f"{key} is not a list of mappings", f"write `{key}:` with a `- name: …` for each")
    return found


def _content(text: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, LOADER)
    except yaml.YAMLError as wrong:
        raise Refused(f"it cannot be read: {' '.join(str(wrong).split())}", "correct the line that is named") from None
    if not isinstance(content or {}, dict):
        raise Refused("it has no mapping in it", "write `cluster_users:` above the list")
    return content or {}


def put(text: str, key: str, changes: Mapping[str, Mapping[str, Any]]) -> str:
    """The text with values of the rows with these names; None takes a value out. New rows come last.

    :raises Refused: where the file has a form that cannot be changed so.
    """
    wanted, others = rows(text, key), _others(text, key)
    places = {row.get("name"): number for number, row in enumerate(wanted)}
    new = []
    for name, values in changes.items():
        if name not in places:
            new.append({"name": name, **{field: value for field, value in values.items() if value is not None}})
            continue
        number = places[name]
        for field, value in values.items():
            if wanted[number].get(field) != value:
                text = _changed(text, key, number, field, value)
        merged = {**wanted[number], **values}
        wanted[number] = {field: value for field, value in merged.items() if value is not None}
    if new:
        text = _added(text, key, new)
    if rows(text, key) != [*wanted, *new] or _others(text, key) != others:
        raise _not_understood(key, ", ".join(changes))
    return text


def _others(text: str, key: str) -> dict[str, Any]:
    return {field: value for field, value in _content(text).items() if field != key}


def _not_understood(key: str, name: str) -> Refused:
    remedy = f"change {name} in it by hand, or write {key} as a list with `- name: NAME` for each row"
    return Refused(f"{key} has a form that cannot be changed without touching the rest", remedy)


def _mapping(text: str) -> yaml.MappingNode | None:
    node = yaml.compose(text, Loader=LOADER)
    return node if isinstance(node, yaml.MappingNode) else None


def _pair(node: yaml.MappingNode | None, field: str) -> tuple[Any, Any] | None:
    return next((pair for pair in (node.value if node else ()) if pair[0].value == field), None)


def _flow(value: Any) -> str:
    """A value as it can stand in braces, too."""
    dumped = yaml.safe_dump([value], default_flow_style=True, width=WIDE, allow_unicode=True, sort_keys=False)
    return dumped.strip()[1:-1]


def _block(new: Rows, indent: int) -> str:
    dumped = yaml.dump(new, Dumper=_Dumper, sort_keys=False, width=WIDE, allow_unicode=True)
    return "".join(" " * indent + line + "\n" for line in dumped.splitlines())


def _added(text: str, key: str, new: Rows) -> str:
    pair = _pair(_mapping(text), key)
    if pair is None:
        return f"{text.rstrip()}\n\n{key}:\n{_block(new, 2)}".lstrip("\n")
    above, value = pair
    if not value.value:
        # Empty, as [] or as nothing. A comment behind it stays.
        head, end = text[: above.end_mark.index], end_of(value)
        tail = text[end : line_end(text, end)] if end > above.end_mark.index else ""
        return f"{head}:{tail}\n{_block(new, 2)}{text[line_end(text, end) + 1 :]}"
    if value.flow_style:
        last = end_of(value.value[-1])
        return f"{text[:last]}, {', '.join(map(_flow, new))}{text[last:]}"
    end = line_end(text, end_of(value))
    return f"{text[:end]}\n{_block(new, value.start_mark.column)}{text[end + 1 :]}"


def _changed(text: str, key: str, number: int, field: str, value: Any) -> str:
    pair = _pair(_mapping(text), key)
    node = pair[1].value[number] if pair else None
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise _not_understood(key, str(number))
    found = _pair(node, field)
    if found is None:
        last = end_of(node)
        if node.flow_style:
            last = end_of(node.value[-1][1])
            return f"{text[:last]}, {field}: {_flow(value)}{text[last:]}"
        end = line_end(text, last)
        return f"{text[:end]}\n{' ' * node.value[0][0].start_mark.column}{field}: {_flow(value)}{text[end:]}"
    above, old = found
    if value is not None:
        # What follows the key is a blank or a line break, and perhaps a list over several lines.
        return f"{text[: above.end_mark.index]}: {_flow(value)}{text[end_of(old) :]}"
    place = node.value.index(found)
    if not node.flow_style and place:
        start = text.rfind("\n", 0, above.start_mark.index) + 1
        return text[:start] + text[line_end(text, end_of(old)) + 1 :]
    if place:
        return text[: end_of(node.value[place - 1][1])] + text[end_of(old) :]
    following = node.value[1][0].start_mark.index if len(node.value) > 1 else end_of(old)
    return text[: above.start_mark.index] + text[following:]
