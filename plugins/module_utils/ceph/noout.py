# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flag noout on single OSDs, for as long as a lease: a timer of this host takes it off if nobody else does.

Whoever sets the flag may be killed, or lose the network. Then the timer ends it, also after a boot of this host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

UNITS = "/etc/systemd/system"
UNIT = "baremetal-gpu-ceph-noout"
FLAG = "noout"

SERVICE = """# Written by Ansible (baremetal.gpu.ceph_noout), and taken away when the flag is.
[Unit]
Description=Take the flag noout off OSDs that somebody left it on
After=network-online.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until ceph --connect-timeout 60 osd unset-group noout {osds}; do sleep 30; done'
ExecStartPost=/bin/systemctl disable {name}
ExecStartPost=/bin/rm -f {timer} {service}
ExecStartPost=/bin/systemctl --no-block daemon-reload
"""
TIMER = """# Written by Ansible (baremetal.gpu.ceph_noout), and taken away when the flag is.
[Unit]
Description=The lease of the flag noout

[Timer]
OnActiveSec={seconds}

[Install]
WantedBy=timers.target
"""


def flagged(dump: Mapping[str, Any]) -> list[int]:
    """The OSDs that have the flag, of 'osd dump'."""
    return [row["osd"] for row in dump["osds"] if FLAG in row["state"]]


class Lease:
    """The lease that this host keeps."""

    def __init__(self, run: Run, units: str = UNITS) -> None:
        self.run = run
        self.service = f"{units}/{UNIT}.service"
        self.timer = f"{units}/{UNIT}.timer"

    def held(self) -> list[int]:
        """The OSDs that it is for; none where there is no lease."""
        text = read_text(self.service)
        if not os.path.exists(self.timer):
            return []
        line = next((line for line in text.splitlines() if f"unset-group {FLAG}" in line), "")
        return [int(number) for number in re.findall(r"osd\.(\d+)", line)]

    def begin(self, osds: Sequence[int], seconds: int) -> None:
        """Have the flag taken off these OSDs after a time; that begins anew with every call."""
        listed = " ".join(f"osd.{number}" for number in osds)
        name = os.path.basename(self.timer)
        _write(self.service, SERVICE.format(osds=listed, name=name, timer=self.timer, service=self.service))
        _write(self.timer, TIMER.format(seconds=seconds))
        for argv in (["daemon-reload"], ["enable", name], ["restart", name]):
            self._must(["systemctl", *argv])

    def end(self) -> None:
        """The flag is off, so nothing is to be done any more."""
        name = os.path.basename(self.timer)
        if os.path.exists(self.timer):
            self._must(["systemctl", "disable", "--now", name])
        for path in (self.timer, self.service):
            if os.path.exists(path):
                os.unlink(path)
        self._must(["systemctl", "daemon-reload"])

    def _must(self, argv: list[str]) -> None:
        rc, stdout, stderr = self.run(argv, None, 120)
        if rc != 0:
            output = (stderr or stdout).strip()
            raise Refused(f"'{' '.join(argv)}' ended with {rc}: {output}", "correct what it names", evidence=output)


def setting(found: Sequence[int], osds: Sequence[int]) -> list[Step]:
    """What sets the flag where it is not."""
    wanted = [f"osd.{number}" for number in osds if number not in found]
    return [Step(f"set noout on {', '.join(wanted)}", ("osd", "set-group", FLAG, *wanted))] if wanted else []


def taking_off(found: Sequence[int], osds: Sequence[int]) -> list[Step]:
    """What takes the flag off where it is."""
    wanted = [f"osd.{number}" for number in osds if number in found]
    return [Step(f"take noout off {', '.join(wanted)}", ("osd", "unset-group", FLAG, *wanted))] if wanted else []


def read(ceph: Ceph) -> list[int]:
    """The OSDs that have the flag."""
    return flagged(ceph.json("osd", "dump"))


def _write(path: str, text: str) -> None:
    host_files.write(path, text)
