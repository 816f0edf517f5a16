# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A copy of the hub's database, made while the hub writes, with the numbers of its users; the last few are kept:
DATABASE DIRECTORY COUNT."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files

NAME = "jupyterhub-"
# Beside the database: the number of each user's account, without which the next one with the name would be let in.
UIDS = "uids.json"


def copy(database: str, directory: str, count: int, now: float) -> str:
    """The path of the copy, which is whole or is not there."""
    path = os.path.join(directory, f"{NAME}{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.sqlite")
    part = f"{path}.part"
    # What a run that was cut has left.
    for name in os.listdir(directory):
        if name.endswith(".part"):
            os.unlink(os.path.join(directory, name))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    source, target = sqlite3.connect(f"file:{database}?mode=ro", uri=True), sqlite3.connect(part)
    try:
        source.backup(target)
        if target.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError(f"the copy of {database} is damaged")
    finally:
        target.close()
        source.close()
    _copy_uids(os.path.join(os.path.dirname(database), UIDS), path[: -len(".sqlite")] + f".{UIDS}")
    os.replace(part, path)
    for ending in (".sqlite", f".{UIDS}"):
        copies = sorted(name for name in os.listdir(directory) if name.startswith(NAME) and name.endswith(ending))
        for name in copies[: max(0, len(copies) - count)]:
            os.unlink(os.path.join(directory, name))
    return path


def _copy_uids(source: str, path: str) -> None:
    """The hub replaces it in one step, so what is read is whole."""
    with contextlib.suppress(FileNotFoundError), open(source, "rb") as file:
        files.write(path, file.read(), 0o600)


def main(words: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if words is None else list(words)
    if len(given) != 3 or not given[2].isdigit() or int(given[2]) < 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        sys.stdout.write(f"{copy(given[0], given[1], int(given[2]), time.time())}\n")
    except (OSError, sqlite3.Error) as why:
        sys.stderr.write(f"{given[0]} was not copied: {why}\n")
        return 1
    return 0
