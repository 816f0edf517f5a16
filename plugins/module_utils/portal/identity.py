# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By what the hub and the proxy know that it is the session that answers, and not another program of its node.

Each session has a name that nobody can guess, and a certificate for it. Where it is reached is a host below that name:
the address of its node in hexadecimal digits, and then the name. No server of names knows it. So a program that takes
the session's port, with the certificate of another session too, is refused as one with the wrong certificate.
"""

from __future__ import annotations

import ipaddress
import re
import secrets

SUFFIX = "session.invalid"
NAME = re.compile("[0-9a-f]{32}", re.ASCII)
_HOST = re.compile(rf"([0-9a-f]{{8}}|[0-9a-f]{{32}})\.{NAME.pattern}\.{re.escape(SUFFIX)}", re.ASCII)
# A port that another program has is no reason to fail: the server takes one of the next ones.
PORTS = 5


def made() -> str:
    return secrets.token_hex(16)


def certified(name: str) -> str:
    """What the certificate of a session is for."""
    return f"*.{name}.{SUFFIX}"


def host(name: str, address: str) -> str:
    """Where a session is reached whose node has that IP address. Raises ValueError."""
    return f"{ipaddress.ip_address(address).packed.hex()}.{name}.{SUFFIX}"


def address(host: str) -> str:
    """The IP address in such a host; empty for every other one."""
    found = _HOST.fullmatch(host)
    return str(ipaddress.ip_address(bytes.fromhex(found[1]))) if found else ""
