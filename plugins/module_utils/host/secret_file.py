# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with a secret in it: compared without showing it, written whole or not at all, never open to others."""

from __future__ import annotations

import os
import stat

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files


def differences(path: str, text: str, uid: int, gid: int, mode: int) -> list[str]:
    """What is not as wanted, in words that do not show the secret. Raises files.Unsafe."""
    try:
        with host_files.place(path) as there:
            found = there.status()
            if found is None:
                return [f"write {path}"]
            if not stat.S_ISREG(found.st_mode):
                return [f"put a file in the place of {path}"]
            same = _reads(there, text)
    except FileNotFoundError:
        return [f"write {path}"]
    wrong = [] if same else [f"write {path} anew"]
    if (found.st_uid, found.st_gid) != (uid, gid):
        wrong.append(f"give {path} to {uid}:{gid}")
    if stat.S_IMODE(found.st_mode) != mode:
        wrong.append(f"set the mode of {path} from {stat.S_IMODE(found.st_mode):04o} to {mode:04o}")
    return wrong


def _reads(there: host_files.Place, text: str) -> bool:
    try:
        return there.read() == text.encode("utf-8")
    except host_files.Unsafe:
        # It may be a file from elsewhere, and is replaced.
        return False


def write(path: str, text: str, uid: int, gid: int, mode: int) -> None:
    """Write it beside its place, for its owner alone from the first byte, and put it there. Raises OSError."""
    host_files.make_directories(os.path.dirname(os.path.abspath(path)), 0o755)
    host_files.write(path, text, mode, uid, gid)
