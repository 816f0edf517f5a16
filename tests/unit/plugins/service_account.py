# SPDX-License-Identifier: GPL-3.0-or-later
"""A service account that somebody has taken over: a process of its own, without root's rights, in its own directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
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
