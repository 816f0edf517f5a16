# SPDX-License-Identifier: GPL-3.0-or-later
"""Codes with which people set their own password in the portal."""

from __future__ import annotations

import json
import secrets
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import invite


def make(uid: int, until: int) -> tuple[str, dict[str, Any]]:
    """A new code, and what the portal's host has of it."""
    letters = "".join(secrets.choice(invite.LETTERS) for _letter in range(invite.CODE_LETTERS))
    groups = (letters[start : start + invite.GROUP] for start in range(0, len(letters), invite.GROUP))
    code, salt = "-".join(groups), secrets.token_hex(16)
    return code, {"uid": uid, "salt": salt, "hash": invite.hashed(code, salt), "until": until}


def entry(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The file of an invitation, for the module host_files."""
    owner = {"owner": "root", "group": "root", "mode": "0600"}
    return {"path": f"{invite.DIRECTORY}/{name}", "content": json.dumps(row) + "\n", **owner}
