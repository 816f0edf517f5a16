# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether files that other modules of the collection keep are as those would leave them. Reads only.

What cannot be told here, such as a file that is not valid, differs: the module itself then says what is wrong.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import cdi, merge, merge_record, toml_document

Item = dict[str, Any]


def settings(item: Item) -> str | None:
    """Why a file differs from what config_merge makes of it with `record`, or None if it does not."""
    path = os.path.realpath(item["path"])
    parse = merge.parse_json if item["format"] == "json" else toml_document.parse
    record = merge_record.Record(item["state_dir"], path)
    try:
        record.load()
        text = _read(path)
        before = parse(text or "")
        after, claimed = merge.settled(
            before, item["state"], item["values"], item["remove"], item["lists"], record.claims
        )
    except (OSError, ValueError, merge.Malformed, merge.Conflict, merge_record.Unreadable) as error:
        return str(error)
    found = merge.differences(before, after)
    if found:
        return f"{', '.join(map(merge.name, found))} differ"
    if record.pending is not None:
        return "its service has not read it yet"
    if record.claims != (claimed if item["state"] == "present" else None):
        return "what is remembered of it differs"
    if item.get("mode") and text is not None and stat.S_IMODE(os.stat(path).st_mode) != int(item["mode"], 8):
        return f"its mode is not {item['mode']}"
    return _left_in_others(item)


def _left_in_others(item: Item) -> str | None:
    for other in item["withdraw_from"]:
        record = merge_record.Record(item["state_dir"], os.path.realpath(other))
        try:
            record.load()
        except merge_record.Unreadable as error:
            return f"of {other}: {error}"
        if record.claims:
            return f"{other} still has settings that are wanted no longer"
    return None


def specification(item: Item) -> tuple[str | None, list[str]]:
    """Why the specification of the cards differs from what nvidia_cdi writes, or None; and notes on it."""
    path = item["path"]
    try:
        text = _read(path)
    except (OSError, ValueError) as error:
        return str(error), []
    if text is not None and not cdi.is_ours(text):
        return (None, [cdi.staying(path)]) if item["state"] == "absent" else ("was written by something else", [])
    if item["state"] == "absent":
        return None if text is None else "is there", []
    if text is None:
        return "is not there", []
    try:
        spec, found, _hook = cdi.specify(path, item["devices"])
    except (cdi.CannotTell, cdi.Refused) as error:
        return str(error), []
    return None if cdi.render(spec) == text else "is not that of the cards and the driver there are", found.notes


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
