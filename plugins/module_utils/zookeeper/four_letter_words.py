# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ZooKeeper servers say of themselves, by the words of four letters over TCP, and whether they are an ensemble.

The words: https://zookeeper.apache.org/doc/current/zookeeperAdmin.html#sc_zkCommands. A server answers only those in
its ``4lw.commands.whitelist``; here ``srvr`` and ``mntr`` are asked.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

# Where it is: "serving"; "electing" (runs, and is in no quorum); "not_allowed" (the word is not in its whitelist);
# "strange" (something else has the port); "unreachable".
SERVING = "serving"
MEMBER_MODES = ("leader", "follower")
LARGEST_ANSWER = 1 << 20

Look = dict[str, Any]
Ask = Callable[[str, int, str, float], str]


def ask(host: str, port: int, word: str, timeout: float) -> str:
    """The answer to a word of four letters.

    :param timeout: seconds for the connection and for each part of the answer.
    :raises OSError: if the server cannot be reached or says nothing in time.
    """
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode("ascii"))
        parts: list[bytes] = []
        while sum(map(len, parts)) < LARGEST_ANSWER:
            part = connection.recv(65536)
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def parse_srvr(text: str) -> Look:
    """The answer to `srvr`: version, mode, zxid and counts; empty if it is none."""
    fields = dict(re.findall(r"^([A-Z][A-Za-z /]*?): (.*)$", text, re.MULTILINE))
    version = re.search(r"^Zookeeper version: ([0-9][0-9A-Za-z.]*)", text, re.MULTILINE)
    zxid = re.fullmatch(r"0x([0-9a-f]+)", fields.get("Zxid", ""))
    if not version or not zxid or "Mode" not in fields:
        return {}
    number = int(zxid[1], 16)
    return {
        "version": version[1],
        "mode": fields["Mode"],
        "zxid": f"0x{number:x}",
        "epoch": number >> 32,
        "connections": _count(fields.get("Connections")),
        "outstanding": _count(fields.get("Outstanding")),
        "nodes": _count(fields.get("Node count")),
    }


def parse_mntr(text: str) -> dict[str, str]:
    """The answer to `mntr`: names without their prefix, and values."""
    return dict(re.findall(r"^zk_(\S+)\t(.*)$", text, re.MULTILINE))


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def look(server: Look, timeout: float = 2.0, asker: Ask = ask) -> Look:
    """What one server is; it need not run.

    :param server: ``host`` and ``port``; what else it holds, such as ``id``, is kept.
    """
    seen: Look = {
        **server,
        "state": "unreachable",
        **dict.fromkeys(("mode", "zxid", "epoch", "version", "connections", "outstanding", "nodes", "peers")),
        "why": "",
    }
    try:
        text = asker(server["host"], server["port"], "srvr", timeout)
        found = parse_srvr(text)
        if found:
            seen.update(found, state=SERVING)
            if found["mode"] == "leader":
                more = parse_mntr(asker(server["host"], server["port"], "mntr", timeout))
                seen["peers"] = _count(more.get("synced_followers", "").split(".")[0])
        elif "not currently serving requests" in text:
            seen.update(state="electing", why="it runs and has found no quorum")
        elif "not in the whitelist" in text:
            seen.update(state="not_allowed", why="srvr is not in its 4lw.commands.whitelist")
        else:
            seen.update(state="strange", why=f"what has the port does not answer as ZooKeeper: {text[:60]!r}")
    except OSError as wrong:
        seen["why"] = _in_words(wrong)
    return seen


def _in_words(wrong: OSError) -> str:
    if isinstance(wrong, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(wrong, socket.timeout):
        return "no answer in time"
    return str(wrong.strerror or wrong)


def problems(servers: Iterable[Look]) -> list[str]:
    """What keeps the servers from being one complete ensemble, in words; none if they are one."""
    rows = list(servers)
    wrong = [f"{row['host']}:{row['port']} is {row['state']}: {row['why']}" for row in rows if row["state"] != SERVING]
    serving = [row for row in rows if row["state"] == SERVING]
    if len(rows) == 1:
        return wrong + [
            f"{row['host']}:{row['port']} is {row['mode']}, and a single server is standalone"
            for row in serving
            if row["mode"] != "standalone"
        ]
    wrong += [
        f"{row['host']}:{row['port']} is {row['mode']}, not a member of the ensemble"
        for row in serving
        if row["mode"] not in MEMBER_MODES
    ]
    leaders = [row for row in serving if row["mode"] == "leader"]
    if len(leaders) != 1:
        names = ", ".join(f"{row['host']}:{row['port']}" for row in leaders)
        wrong.append(f"{len(leaders)} servers lead ({names})" if leaders else "no server leads")
    elif leaders[0]["peers"] is not None and leaders[0]["peers"] < len(rows) - 1:
        leader = leaders[0]
        wrong.append(
            f"the leader {leader['host']}:{leader['port']} has {leader['peers']} of {len(rows) - 1} followers in step"
        )
    return wrong


def summary(servers: Iterable[Look]) -> Look:
    """The ensemble as it was seen: ``servers``, ``leader`` (host:port or None), ``quorum``, ``complete``, ``problems``.

    There is a quorum where one server leads and a majority serves.
    """
    rows = list(servers)
    members = [row for row in rows if row["state"] == SERVING and (row["mode"] in MEMBER_MODES or len(rows) == 1)]
    leaders = [row for row in members if row["mode"] in ("leader", "standalone")]
    wrong = problems(rows)
    return {
        "servers": rows,
        "leader": f"{leaders[0]['host']}:{leaders[0]['port']}" if len(leaders) == 1 else None,
        "quorum": len(leaders) == 1 and len(members) > len(rows) // 2,
        "complete": not wrong,
        "problems": wrong,
    }


def survey(servers: Iterable[Look], timeout: float = 2.0, asker: Ask = ask) -> Look:
    """Look at all servers; see `summary`."""
    return summary([look(server, timeout, asker) for server in servers])


def wait_until(
    done: Callable[[Look], bool], servers: Iterable[Look], seconds: float, timeout: float = 2.0, asker: Ask = ask
) -> Look:
    """Survey until a condition holds or the time is over; the last survey either way."""
    rows, deadline = list(servers), time.monotonic() + seconds
    while True:
        seen = survey(rows, timeout, asker)
        if done(seen) or time.monotonic() >= deadline:
            return seen
        time.sleep(0.5)
