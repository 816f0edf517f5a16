# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with a secret in it: compared without showing it, written whole or not at all, never open to others."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


def differences(path: str, text: str, uid: int, gid: int, mode: int) -> list[str]:
    """What is not as wanted, in words that do not show the secret."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return [f"put a file in the place of {path}"]
        with open(path, encoding="utf-8", errors="replace") as file:
            same = file.read() == text
    except FileNotFoundError:
        return [f"write {path}"]
    wrong = [] if same else [f"write {path} anew"]
    if (found.st_uid, found.st_gid) != (uid, gid):
        wrong.append(f"give {path} to {uid}:{gid}")
    if stat.S_IMODE(found.st_mode) != mode:
        wrong.append(f"set the mode of {path} from {stat.S_IMODE(found.st_mode):04o} to {mode:04o}")
    return wrong


def write(path: str, text: str, uid: int, gid: int, mode: int) -> None:
    """Write it beside its place, for its owner alone from the first byte, and put it there."""
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=directory, prefix=".baremetal-gpu-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchown(file.fileno(), uid, gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
