# SPDX-License-Identifier: GPL-3.0-or-later
"""A service account that somebody has taken over: a process of its own, without root's rights, in its own directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
# What only root may read and change.
SECRET = "root:$6$hash\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which is root's to do")


class Account:
    """`directory` is its own; nothing else is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        os.chown(directory, NOBODY, NOBODY)

    def does(self, work: Callable[[], Any]) -> None:
        """Have it do something, with paths from its directory on."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # Its directory may be below one that it cannot enter.
                os.chdir(self.directory)
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                work()
                status = 0
            finally:
                os._exit(status)
        _pid, status = os.waitpid(child, 0)
        assert status == 0, "the account could not do it"


def shadow_in(directory: Path) -> Path:
    """A file of root's that the account would like to have."""
    path = directory / "shadow"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def is_untouched(shadow: Path) -> bool:
    status = shadow.lstat()
    return (shadow.read_text(), status.st_uid, stat.S_IMODE(status.st_mode)) == (SECRET, 0, 0o600)
