# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps one machine running: starts systemd-nspawn, and again when the machine reboots.

Its lock on the machine's `run.lock` tells everybody that the machine runs. Should it be killed, the kernel kills
systemd-nspawn, which takes the machine along.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import signal
import subprocess
import sys
from pathlib import Path

from . import cgroups

# systemd-nspawn --keep-unit leaves restarting to whoever started it, with this exit status.
REBOOT = 133
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(directory: Path) -> int:
    """Run the machine in this directory until it powers off."""
    with (directory / "run.lock").open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("this machine runs already", file=sys.stderr)
            return 1
        if not Path("/run/systemd/system").is_dir():
            cgroups.enter(json.loads((directory / "run.json").read_text(encoding="utf-8"))["name"])
        while True:
            # Read anew on every boot, so that a reboot takes a changed command line.
            command = json.loads((directory / "run.json").read_text(encoding="utf-8"))
            status = subprocess.run(
                command["argv"], env=command["env"], preexec_fn=_die_with_parent, stdin=subprocess.DEVNULL, check=False
            ).returncode
            print(f"--- systemd-nspawn ended with status {status}", flush=True)
            if status != REBOOT:
                return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
