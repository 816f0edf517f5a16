# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log host and the hosts that send to it agree on."""

from __future__ import annotations

import re

from ansible_collections.baremetal.gpu.plugins.module_utils.logs.store import DIRECTORY

# The port that systemd has for it.
PORT = 19532
# A name in the inventory that may be part of a file's name, of a unit's and of a certificate.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


def files_of(*hosts: str) -> str:
    """The journal files of hosts on the log host, as one pattern: journalctl fails for each that fits none."""
    names = f"{{{','.join(hosts)}}}" if len(hosts) > 1 else hosts[0]
    return f"{DIRECTORY}/{names}{{.journal,@*.journal*}}"
