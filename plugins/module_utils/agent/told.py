# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines in the journal of what changes in a health report: a reason that has come, and one that is gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# As sd-daemon(3) has the priorities of lines.
PRIORITIES = {FATAL: "<2>"}
WARNING, NOTICE = "<4>", "<5>"
Key = tuple[str, str]


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Told:
    """What the journal has been told of in this run of the agent."""

    def __init__(self) -> None:
        self.reasons: dict[Key, Mapping[str, Any]] = {}

    def tell(self, report: Mapping[str, Any]) -> None:
        """Say what is not as it was in the report before."""
        now = dict(_reasons(report))
        for (who, code), reason in now.items():
            before = self.reasons.get((who, code))
            if before is None or before["verdict"] != reason["verdict"]:
                text = f"{who} is {reason['verdict']}: {code}: {reason['text']}. To do: {reason['remedy']}"
                say(PRIORITIES.get(reason["verdict"], WARNING) + one_line(text))
        for who, code in self.reasons.keys() - now.keys():
            say(NOTICE + one_line(f"{who}: {code} is over"))
        self.reasons = now


def _reasons(report: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for reason in report["reasons"]:
        yield ("the host", reason["code"]), reason
    for device in report["devices"]:
        names = [device["uuid"], device["pci_address"]]
        index = "" if device["index"] is None else f" {device['index']}"
        who = f"GPU{index} ({', '.join(name for name in names if name)})"
        for reason in device["reasons"]:
            yield (who, reason["code"]), reason
