# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the agent of a node tells the hosts of slurmctld its verdict: one connection over TCP for each time.

    host of slurmctld    {"schema": 1, "nonce": ...}
    agent                a credential of munge with {schema, nonce, key, verdict}
    host of slurmctld    {"answer": {...}, "mac": ...}, or {"refused": why}

The credential binds the verdict to this connection by the nonce, so that it can be used neither again, nor later, nor
on another host. `key` is a secret that only root on a host with the cluster's key of munge can read, and `mac` shows
that the answer comes from there. A verdict of null says that the agent has stopped.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    anything,
    json_object,
    object_of,
    or_null,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge

PORT = 6821
SCHEMA = 1
# For all that one connection takes.
TIMEOUT_S = 10.0
GREETING_AT_MOST = 1 << 10
ANSWER_AT_MOST = 64 << 10
_TOKEN = r"[0-9a-f]{64}"

_greeting = object_of({"schema": whole(SCHEMA, SCHEMA), "nonce": text(_TOKEN, 64)})
_message = object_of(
    {"schema": whole(SCHEMA, SCHEMA), "nonce": text(_TOKEN, 64), "key": text(_TOKEN, 64), "host": text(at_most=253)},
    {"verdict": or_null(anything)},
)


@dataclass(frozen=True)
class Message:
    """What an agent says. `verdict` is None where it has stopped."""

    host: str
    verdict: dict[str, Any] | None
    key: str


def greeting(nonce: str) -> bytes:
    return _line({"schema": SCHEMA, "nonce": nonce})


def nonce_of(line: bytes) -> str:
    """Raises Malformed."""
    return str(_greeting(json_object(line, GREETING_AT_MOST), "the greeting")["nonce"])


def message(host: str, verdict: Mapping[str, Any] | None, nonce: str, key: str) -> bytes:
    """The payload of the credential."""
    return _line({"schema": SCHEMA, "nonce": nonce, "key": key, "host": host, "verdict": verdict})


def read_message(payload: bytes, nonce: str) -> Message:
    """Raises Malformed, also for what was made for another connection."""
    told = _message(json_object(payload, munge.PAYLOAD_AT_MOST), "the message")
    if told["nonce"] != nonce:
        raise Malformed("it was made for another connection")
    verdict = told.get("verdict")
    if verdict is not None and not isinstance(verdict, dict):
        raise Malformed("its verdict is not an object")
    return Message(told["host"], verdict, told["key"])


def answer(told: Mapping[str, Any], key: str) -> bytes:
    return _line({"answer": told, "mac": _mac(told, key)})


def refusal(why: str) -> bytes:
    return _line({"refused": why})


def read_answer(line: bytes, key: str) -> dict[str, Any]:
    """Raises Malformed, also with what the other side refuses."""
    told = json_object(line, ANSWER_AT_MOST)
    if "refused" in told:
        raise Malformed(f"it refuses: {text(at_most=300)(told['refused'], 'the reason')}")
    found, mac = told.get("answer"), told.get("mac")
    if not isinstance(found, dict) or not isinstance(mac, str) or not mac.isascii():
        raise Malformed("it is not an answer")
    # The agent, which always runs, does without OpenSSL: its child alone loads it.
    import hmac

    if not hmac.compare_digest(mac, _mac(found, key)):
        raise Malformed("the answer is not of a host with the cluster's key of munge")
    return found


def _mac(told: Mapping[str, Any], key: str) -> str:
    import hmac

    return hmac.new(bytes.fromhex(key), json.dumps(told, sort_keys=True).encode(), "sha256").hexdigest()


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def read_line(connection: socket.socket, at_most: int, end: float) -> bytes:
    """The next line, which nothing follows, until time.monotonic() is `end`. Raises OSError, and Malformed for more."""
    found = b""
    while not found.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole line within the time")
        connection.settimeout(left)
        chunk = connection.recv(min(1 << 16, at_most + 1 - len(found)))
        if not chunk:
            raise ConnectionError("the connection was closed")
        found += chunk
        if len(found) > at_most:
            raise Malformed(f"a line has more than {at_most} bytes")
    return found
