# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The frame of the two programs: look, say what is wrong once, wait, and end with SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.sd_notify import notify
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

STOP = (signal.SIGTERM, signal.SIGINT)
# As sd-daemon(3) has the priorities of lines.
WARNING, NOTICE = "<4>", "<5>"


def say(text: str, priority: str = WARNING) -> None:
    """A line in the journal."""
    sys.stderr.write(f"{priority}{one_line(text)}\n")
    sys.stderr.flush()


def write_metrics(path: str, text: str) -> str:
    """Write the file of metrics, if there is to be one; what went wrong, empty if nothing did."""
    if not path:
        return ""
    try:
        host_files.write(path, text, durable=False)
    except OSError as why:
        return f"{path} cannot be written: {why.strerror or why}. To do: see the directory and its disk"
    return ""


def serve(look: Callable[[], str], interval_s: float) -> None:
    """Look again and again until SIGTERM.

    :param look: the value is what went wrong; the same is said once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    notify("READY=1")
    said = ""
    while True:
        begun = time.monotonic()
        try:
            wrong = look()
        except OSError as why:
            # What a full disk or a directory that was removed under it leads to; the next look may find it mended.
            wrong = f"{why.filename or 'a file'}: {why.strerror or why}"
        if wrong and wrong != said:
            say(wrong)
        said = wrong
        notify(f"STATUS={one_line(wrong) or 'all is well'}\nWATCHDOG=1")
        if signal.sigtimedwait(STOP, max(0.0, interval_s - (time.monotonic() - begun))):
            notify("STOPPING=1")
            return
