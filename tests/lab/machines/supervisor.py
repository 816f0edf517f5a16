# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps one machine running: starts systemd-nspawn, and again when the machine reboots.

Its lock on the machine's `run.lock` tells everybody that the machine runs. A machine whose supervisor was killed
counts as stopped: the next `up` kills what is left of it and boots it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from . import cgroups

# systemd-nspawn --keep-unit leaves restarting to whoever started it, with this exit status.
REBOOT = 133


def _take(lock: IO[str]) -> bool:
    """Lock the file; those who only ask whether it is locked hold it for an instant."""
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.1)
    return False


def main(directory: Path) -> int:
    """Run the machine in this directory until it powers off."""
    with (directory / "run.lock").open("a", encoding="utf-8") as lock:
        if not _take(lock):
            print("this machine runs already", file=sys.stderr)
            return 1
        if not Path("/run/systemd/system").is_dir():
            cgroups.enter(json.loads((directory / "run.json").read_text(encoding="utf-8"))["name"])
        while True:
            # Read anew on every boot, so that a reboot takes a changed command line.
            command = json.loads((directory / "run.json").read_text(encoding="utf-8"))
            status = subprocess.run(
                command["argv"], env=command["env"], stdin=subprocess.DEVNULL, check=False
            ).returncode
            print(f"--- systemd-nspawn ended with status {status}", flush=True)
            if status != REBOOT:
                return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
