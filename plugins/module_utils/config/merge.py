# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge settings into a document that others write to as well, and take them out again.

Pure functions over nested dicts and lists. What a caller was not told about stays as it is, in the order it was in.
A claim is a setting that this code brought into the document: only claims are taken out again, so a setting that
the operator had made before stays theirs even where the wanted value is the same. Where a claim took the place of
another value, that one is remembered and comes back when the claim goes.
"""

from __future__ import annotations

import copy
import json
import json.decoder
import json.scanner
import re
from typing import Any

Path = tuple[str, ...]
Claims = dict[Path, Any]


class Malformed(Exception):
    """A text that is not a document of its format. Line and column count from 1."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"{reason} (line {line}, column {column})")
        self.reason = reason
        self.line = line
        self.column = column


class Conflict(Exception):
    """A wanted value would replace a whole table by a scalar, or a scalar by a table."""

    def __init__(self, path: Path, present: Any, wanted: Any) -> None:
        super().__init__(
            f"{name(path)} is {kind(present)} in the file and {kind(wanted)} in the wanted values; replacing it would "
            "drop what is there"
        )
        self.path = path


def kind(value: Any) -> str:
    """The name that a person gives to the type of a value."""
    if isinstance(value, dict):
        return "a table of settings"
    if isinstance(value, list):
        return "a list"
    return f"the single value {json.dumps(value)}"


def name(path: Path) -> str:
    """A path as text: parts joined by dots, parts that hold anything unusual in quotes."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in path)


def key_path(key: Any) -> Path:
    """The path that a key of `remove` names: a string such as a.b, or the list of its parts."""
    parts = key.split(".") if isinstance(key, str) else key
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"{key!r} in `remove` is neither a string such as 'a.b' nor a list such as ['a', 'b']")
    return tuple(parts)


def position(text: str, offset: int) -> tuple[int, int]:
    """The line and column, from 1, of an offset in a text."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to whoever reads the file: unlike ==, true is not 1 and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# JSON


def parse_json(text: str) -> dict[str, Any]:
    """The object in a JSON text. An empty text is an empty object; a key given twice is refused, not dropped."""
    text = text[len(byte_order_mark(text)) :]
    if not text.strip():
        return {}

    def constant(word: str) -> Any:
        offset = text.find(word)
        raise Malformed(f"{word} is not a JSON number", *position(text, max(offset, 0)))

    decoder = json.JSONDecoder(parse_constant=constant)
    parse_object = json.decoder.JSONObject  # type: ignore[attr-defined]

    def parse_unique(state: tuple[str, int], *_args: Any) -> tuple[dict[str, Any], int]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            result: dict[str, Any] = {}
            for key, value in pairs:
                if key in result:
                    raise Malformed(
                        f"the key {json.dumps(key)} occurs twice in the object that begins here",
                        *position(text, state[1] - 1),
                    )
                result[key] = value
            return result

        return parse_object(state, True, decoder.scan_once, None, unique)  # type: ignore[no-any-return, attr-defined]

    decoder.parse_object = parse_unique  # type: ignore[attr-defined]
    # The scanner in C has its own reading of objects; the one in Python asks the decoder.
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    try:
        data = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise Malformed("the values are nested too deeply", 1, 1) from None
    if not isinstance(data, dict):
        raise Malformed("the file holds no JSON object: it must begin with {", 1, 1)
    return data


def byte_order_mark(text: str) -> str:
    """The mark at the head of a text; empty without one. The programs pass over it, and editors write it."""
    return text[: text.startswith("\ufeff")]


def render_json(data: dict[str, Any], like: str = "") -> str:
    """A JSON text of data, indented as the text that it takes the place of."""
    mark = byte_order_mark(like)
    found = re.search(r'^[{]\s*?\n([ \t]+)"', like[len(mark) :].lstrip())
    indent = found.group(1) if found else "    "
    return mark + json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


# Merging


def get(data: Any, path: Path, default: Any = None) -> Any:
    """The value at a path, or the default where there is none."""
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return default
        data = data[part]
    return data


def has(data: Any, path: Path) -> bool:
    """Whether there is a value, be it null, at a path."""
    missing = object()
    return get(data, path, missing) is not missing


def leaves(values: dict[str, Any], prefix: Path = ()) -> Claims:
    """Every value of a nested dict that is not itself a filled dict, by its path."""
    result: Claims = {}
    for key, value in values.items():
        path = (*prefix, key)
        if isinstance(value, dict) and value:
            result.update(leaves(value, path))
        else:
            result[path] = value
    return result


def union(present: list[Any], wanted: list[Any]) -> list[Any]:
    """The present items in their order, then those wanted ones that are not among them."""
    result = list(present)
    for item in wanted:
        if not any(same(item, other) for other in result):
            result.append(item)
    return result


def without(items: list[Any], unwanted: list[Any]) -> list[Any]:
    """The items that are not among the unwanted ones."""
    return [item for item in items if not any(same(item, other) for other in unwanted)]


def merge(data: dict[str, Any], values: dict[str, Any], lists: str = "replace", prefix: Path = ()) -> dict[str, Any]:
    """Data with values laid over it: tables are merged, scalars replaced, lists replaced or united."""
    result = dict(data)
    for key, wanted in values.items():
        path = (*prefix, key)
        present = result.get(key)
        if present is not None and isinstance(present, dict) != isinstance(wanted, dict):
            raise Conflict(path, present, wanted)
        if isinstance(wanted, dict):
            result[key] = merge(present or {}, wanted, lists, path)
        elif lists == "union" and isinstance(wanted, list) and isinstance(present, list):
            result[key] = union(present, wanted)
        elif key not in result or not same(present, wanted):
            result[key] = copy.deepcopy(wanted)
    return result


def remove(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Data without what is at a path, and without the tables that this leaves empty."""
    if not has(data, path):
        return data
    head, rest = path[0], path[1:]
    result = dict(data)
    if rest:
        inner = remove(result[head], rest)
        if inner:
            result[head] = inner
            return result
    del result[head]
    return result


def put(data: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Data with a value at a path, whatever was there; the tables on the way are made."""
    head, rest = path[0], path[1:]
    inner = data.get(head)
    result = dict(data)
    result[head] = put(inner if isinstance(inner, dict) else {}, rest, value) if rest else copy.deepcopy(value)
    return result


def take_back(
    data: dict[str, Any], path: Path, claim: Any, lists: str, replaced: Claims | None = None
) -> dict[str, Any]:
    """Data without a claim, and with what it had replaced. A value that someone has changed since is no longer ours
    and stays."""
    present = get(data, path)
    if lists == "union" and isinstance(claim, list) and isinstance(present, list):
        rest = without(present, claim)
        if rest:
            return put(data, path, rest) if len(rest) < len(present) else data
    elif not has(data, path) or not same(present, claim):
        return data
    if path in (replaced or {}):
        return put(data, path, (replaced or {})[path])
    return remove(data, path)


def put_back_empty(data: dict[str, Any], replaced: Claims, claims: Claims) -> dict[str, Any]:
    """Data with the empty tables and the nulls that had given way to a table, of which nothing is left."""
    for path, value in replaced.items():
        above = (path[:depth] for depth in range(1, len(path)))
        free = not has(data, path) and all(isinstance(get(data, part, {}), dict) for part in above)
        if _gives_way(value) and path not in claims and free:
            data = put(data, path, value)
    return data


def _gives_way(value: Any) -> bool:
    """Whether a table may take the place of a value: there is nothing in it."""
    return value is None or value == {}


def overwritten(data: dict[str, Any], path: Path, value: Any) -> Claims:
    """What of the document a value at a path takes the place of."""
    for depth in range(1, len(path)):
        if not has(data, path[:depth]):
            return {}
        if _gives_way(get(data, path[:depth])):
            return {path[:depth]: get(data, path[:depth])}
    if has(data, path) and not same(get(data, path), value):
        return {path: copy.deepcopy(get(data, path))}
    return {}


def apply(
    data: dict[str, Any],
    values: dict[str, Any],
    unwanted: list[Path],
    lists: str = "replace",
    claims: Claims | None = None,
    replaced: Claims | None = None,
) -> tuple[dict[str, Any], Claims, Claims]:
    """The document with the wanted values in it and what was claimed earlier and is wanted no longer taken out.

    Returns the document, the claims on it, and what they have replaced. The order is: take back, remove, merge.
    """
    earlier, before = claims or {}, replaced or {}
    wanted = leaves(values)
    result = data
    for path, claim in earlier.items():
        if path not in wanted:
            result = take_back(result, path, claim, lists, before)
        elif lists == "union" and isinstance(claim, list) and isinstance(wanted[path], list):
            gone = without(claim, wanted[path])
            result = take_back(result, path, gone, lists) if gone else result
    result = put_back_empty(result, before, wanted)
    for path in unwanted:
        result = remove(result, path)
    claimed: Claims = {}
    kept: Claims = {}
    for path, value in wanted.items():
        present = get(data, path)
        if lists == "union" and isinstance(value, list) and isinstance(present, list):
            theirs = without(present, earlier[path]) if isinstance(earlier.get(path), list) else present
            ours = without(value, theirs)
            # A list that we have made stays ours, be it empty.
            if ours or path in earlier:
                claimed[path] = ours
                kept.update(_still_replaced(before, path))
        elif path in earlier or not has(data, path) or not same(present, value):
            claimed[path] = copy.deepcopy(value)
            if path in earlier and has(data, path) and same(present, earlier[path]):
                kept.update(_still_replaced(before, path))
            else:
                # Also where somebody has changed what was ours: theirs is what comes back.
                # What had given way to a table of ours has not been put back where a value takes its place.
                free = {path: before[path]} if path in before and not has(result, path) else {}
                kept.update(overwritten(result, path, value) or free)
    return merge(result, values, lists), claimed, kept


def _still_replaced(replaced: Claims, path: Path) -> Claims:
    return {known: value for known, value in replaced.items() if known == path[: len(known)]}


def withdraw(
    data: dict[str, Any],
    values: dict[str, Any],
    unwanted: list[Path],
    lists: str = "replace",
    claims: Claims | None = None,
    replaced: Claims | None = None,
) -> dict[str, Any]:
    """The document without what was claimed, and with what that had replaced; where nothing is known of claims (None),
    without the given values."""
    result = data
    for path, claim in (leaves(values) if claims is None else claims).items():
        result = take_back(result, path, claim, lists, replaced)
    result = put_back_empty(result, replaced or {}, {})
    for path in unwanted:
        result = remove(result, path)
    return result


def lost(data: dict[str, Any], unwanted: list[Path], claims: Claims | None = None) -> list[Path]:
    """Settings of others that are removed, and that nobody can bring back."""
    ours = claims or {}
    return sorted(
        path
        for path, value in leaves(data).items()
        if any(path[: len(key)] == key for key in unwanted) and not (path in ours and same(ours[path], value))
    )


def settled(
    data: dict[str, Any],
    state: str,
    values: dict[str, Any],
    unwanted: list[Any],
    lists: str = "replace",
    claims: Claims | None = None,
    replaced: Claims | None = None,
) -> tuple[dict[str, Any], Claims, Claims]:
    """The document as `state`, present or absent, wants it, the claims on it and what they have replaced. Raises
    ValueError for a key of `unwanted` that is none, and Conflict."""
    paths = [key_path(key) for key in unwanted]
    if state == "present":
        return apply(data, values, paths, lists, claims, replaced)
    return withdraw(data, values, paths, lists, claims, replaced), {}, {}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Path]:
    """The paths of the values that are not the same in both, sorted."""
    one, other = leaves(before), leaves(after)
    return sorted(
        path for path in {**one, **other} if (path in one) != (path in other) or not same(one[path], other[path])
    )
