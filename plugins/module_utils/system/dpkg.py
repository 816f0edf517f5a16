# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status file of dpkg, which tells of every package that is or was on a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

STATUS = "var/lib/dpkg/status"

# Field -> what it is called here.
_FIELDS = (("\nVersion: ", "version"), ("\nArchitecture: ", "architecture"), ("\nMaintainer: ", "vendor"))


def parse_dpkg(text: str, relevant: Callable[[str], Any] | None = None) -> Iterator[dict[str, Any]]:
    """The stanzas of a status file, only with the fields that matter here.

    A host has a thousand of them, and this is done on every run: so each is searched for its fields, which takes half
    the time of a regular expression over all.

    :param relevant: says of a name whether its stanza is to be read; without it all are.
    :return: rows of name, want, flag and state, and version, architecture, vendor and provides where they are told.
    """
    for stanza in f"\n{text}".split("\nPackage: ")[1:]:
        name = stanza.partition("\n")[0]
        if relevant and not relevant(name):
            continue
        row: dict[str, Any] = {"name": name, "want": "unknown", "flag": "ok", "state": "not-installed"}
        words = (_field(stanza, "\nStatus: ") or "").split()
        if len(words) == 3:
            row["want"], row["flag"], row["state"] = words
        for field, key in _FIELDS:
            value = _field(stanza, field)
            if value is not None:
                row[key] = value
        provides = _field(stanza, "\nProvides: ")
        if provides is not None:
            row["provides"] = [entry.split("(")[0].strip().split(":")[0] for entry in provides.split(",")]
        yield row


def _field(stanza: str, field: str) -> str | None:
    start = stanza.find(field)
    if start < 0:
        return None
    start += len(field)
    end = stanza.find("\n", start)
    return stanza[start:] if end < 0 else stanza[start:end]
