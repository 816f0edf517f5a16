# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a file that config_merge keeps is as that would leave it. Reads only.

What cannot be told here, such as a file that is not valid, differs: the module itself then says what is wrong.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge
from ansible_collections.baremetal.gpu.plugins.module_utils.config import record as config_record

Item = dict[str, Any]


def settings(item: Item) -> str | None:
    """Why a file differs from what config_merge makes of it with `record`, or None if it does not."""
    path = os.path.realpath(item["path"])
    parse = _parser(item["format"])
    record = config_record.Record(item["state_dir"], path)
    try:
        record.load()
        text = _read(path)
        before = parse(text or "")
        cut = record.next is not None
        record.settle(text)
        after, claimed, replaced = merge.settled(
            before, item["state"], item["values"], item["remove"], item["lists"], record.claims, record.replaced
        )
    except (OSError, ValueError, merge.Malformed, merge.Conflict, config_record.Unreadable) as error:
        return str(error)
    found = merge.differences(before, after)
    if found:
        return f"{', '.join(map(merge.name, found))} differ"
    if record.pending is not None:
        return "its service has not read it yet"
    remembered = (claimed, replaced) if item["state"] == "present" else (None, {})
    if cut or (record.claims, record.replaced) != remembered:
        return "what is remembered of it differs"
    if item.get("mode") and text is not None and stat.S_IMODE(os.stat(path).st_mode) != int(item["mode"], 8):
        return f"its mode is not {item['mode']}"
    return _left_in_others(item)


def _left_in_others(item: Item) -> str | None:
    for other in item["withdraw_from"]:
        record = config_record.Record(item["state_dir"], os.path.realpath(other))
        try:
            record.load()
        except config_record.Unreadable as error:
            return f"of {other}: {error}"
        if record.claims or record.next is not None:
            return f"{other} still has settings that are wanted no longer"
    return None


def _parser(form: str) -> Any:
    if form == "json":
        return merge.parse_json
    # Python compiles on the host, at every execution, whatever a module imports.
    from ansible_collections.baremetal.gpu.plugins.module_utils.config import toml

    return toml.parse


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
