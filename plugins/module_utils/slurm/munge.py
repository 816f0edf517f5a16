# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials of munge, by its two programs: what a process of the cluster says, with who said it and from which host.

munged takes each credential once, within its time to live, and only for the uid that it is meant for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

MUNGE, UNMUNGE = "/usr/bin/munge", "/usr/bin/unmunge"
TTL_S = 30
TIMEOUT_S = 5.0
PAYLOAD_AT_MOST = 256 << 10
# The armor has 4 characters for 3 bytes; beside the payload there are some hundred bytes.
CREDENTIAL_AT_MOST = 2 * PAYLOAD_AT_MOST
REMEDY = "see 'systemctl status munge' there"
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")
_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class Credential:
    """What a credential says.

    :ivar uid: of the process that made it.
    :ivar origin: the address of that process's host, as the munged there has it.
    """

    payload: bytes
    uid: int
    origin: str


def encode(payload: bytes, reader: int = 0, ttl_s: int = TTL_S, socket: str | None = None) -> str:
    """A credential that only `reader` can decode. Its payload is encrypted. Raises CallFailed.

    :param socket: of munged; None for that of the host.
    """
    if not 0 < len(payload) <= PAYLOAD_AT_MOST:
        raise CallFailed(f"a payload has {len(payload)} bytes, and may have 1 to {PAYLOAD_AT_MOST}")
    argv = [MUNGE, "--cipher=aes128", f"--restrict-uid={reader}", f"--ttl={ttl_s}", *_at(socket)]
    status, out, error = _run(argv, payload)
    made = host_run.text(out).strip()
    if status or not _CREDENTIAL.fullmatch(made):
        raise CallFailed(f"munge makes no credential: {one_line(host_run.text(error), 200) or status}", REMEDY)
    return made


def decode(credential: str, socket: str | None = None) -> Credential:
    """Raises CallFailed for whatever is not a valid credential for the caller, seen for the first time."""
    # The agent makes them only.
    import ipaddress

    if len(credential) > CREDENTIAL_AT_MOST or not _CREDENTIAL.fullmatch(credential):
        raise CallFailed(f"not a credential of munge: {one_line(credential, 20)!r}")
    argv = [UNMUNGE, "--numeric", "--keys=STATUS,ENCODE_HOST,UID", *_at(socket)]
    status, out, error = _run(argv, credential.encode())
    if status:
        # Of a credential that is refused, unmunge shows the payload all the same.
        why = one_line(host_run.text(error), 200) or _REFUSED.get(status, f"status {status}")
        raise CallFailed(f"munge refuses the credential: {why}", REMEDY)
    head, _blank, payload = out.partition(b"\n\n")
    told = dict(line.partition(":")[::2] for line in host_run.text(head).splitlines())
    said = {name: value.strip() for name, value in told.items()}
    try:
        origin = str(ipaddress.IPv4Address(said["ENCODE_HOST"]))
        if said["STATUS"] != "0" or not _NUMBER.fullmatch(said["UID"]) or len(payload) > PAYLOAD_AT_MOST:
            raise ValueError("status, uid or length")
    except (KeyError, ValueError) as why:
        raise CallFailed(f"unmunge's answer cannot be read: {one_line(why, 100)}", REMEDY) from why
    return Credential(payload, int(said["UID"]), origin)


# From munge.h.
_REFUSED = {
    8: "it is not whole, or was made with another key",
    14: "it was made with another key",
    15: "it has expired. Compare the clocks of the two hosts",
    16: "it is from the future. Compare the clocks of the two hosts",
    17: "it was used before",
    18: "it is for another user",
}


def _at(socket: str | None) -> list[str]:
    return [f"--socket={socket}"] if socket else []


def _run(argv: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
    try:
        return host_run.execute(argv, TIMEOUT_S, stdin=stdin)
    except (OSError, host_run.TimedOut) as why:
        said = why.strerror if isinstance(why, OSError) else str(why)
        raise CallFailed(f"{os.path.basename(argv[0])}: {said}", REMEDY) from why
