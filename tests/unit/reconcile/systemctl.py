# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand-made: as much of systemctl as a stand-in of the Mesos agent needs. AGENT_SITE is a file with what is where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SITE = json.loads(Path(os.environ["AGENT_SITE"]).read_text())
PID = Path(SITE["pid"])


def environment() -> dict[str, str]:
    lines = Path(SITE["environment"]).read_text().splitlines()
    return {name: value.strip('"') for name, _equals, value in (line.partition("=") for line in lines)}


def main() -> int:
    with Path(SITE["said"]).open("a") as said:
        said.write(" ".join(sys.argv[1:]) + "\n")
    verb = next(word for word in sys.argv[1:] if word in ("start", "stop", "is-failed"))
    if Path(SITE["cut"]).exists() and Path(SITE["cut"]).read_text() == verb:
        # The power goes: the module that asks is no more, and neither is the playbook.
        os.kill(os.getppid(), signal.SIGKILL)
        os.killpg(int(Path(SITE["playbook"]).read_text()), signal.SIGKILL)
        return 1
    if verb == "stop" and PID.exists():
        number = int(PID.read_text())
        os.kill(number, signal.SIGTERM)
        while Path(f"/proc/{number}/cmdline").exists() and Path(f"/proc/{number}/cmdline").read_bytes():
            time.sleep(0.05)
        PID.unlink()
    if verb == "start" and not PID.exists():
        with Path(SITE["log"]).open("a") as log:
            process = subprocess.Popen(
                SITE["command"],
                env={"PATH": os.environ["PATH"], **environment(), "STAND_IN_GPUS": SITE["gpus"]},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        PID.write_text(str(process.pid))
    return 1 if verb == "is-failed" else 0


if __name__ == "__main__":
    sys.exit(main())
