# SPDX-License-Identifier: GPL-3.0-or-later
"""A hand-made server of ZooKeeper's words of four letters, as strict as the real one.

The answers have the form of ZooKeeper 3.9's; what they say is made up.
"""

from __future__ import annotations

import socketserver
import threading
from typing import Any

NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"


class Words:
    """One server. ``mode`` None: it runs and is in no quorum."""

    def __init__(self, mode: str | None = "follower", zxid: int = 0x100000003, synced: int = 2) -> None:
        self.mode, self.zxid, self.synced = mode, zxid, synced
        self.allowed = ["srvr", "mntr"]
        self.other_program: str | None = None
        words = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                # Like the real one, it answers exactly four letters and closes.
                self.request.sendall(words.answer(self.request.recv(4).decode()).encode())

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, word: str) -> str:
        if self.other_program is not None:
            return self.other_program
        if word not in self.allowed:
            return f"{word} is not executed because it is not in the whitelist.\n"
        if self.mode is None:
            return NOT_SERVING
        if word == "srvr":
            return self.srvr()
        return f"zk_version\t3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee\nzk_server_state\t{self.mode}\n" + (
            f"zk_synced_followers\t{self.synced}\n" if self.mode == "leader" else ""
        )

    def srvr(self) -> str:
        return (
            "Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024-10-17 23:21 UTC\n"
            "Latency min/avg/max: 0/0.5/12\n"
            "Received: 120\n"
            "Sent: 119\n"
            "Connections: 3\n"
            "Outstanding: 0\n"
            f"Zxid: 0x{self.zxid:x}\n"
            f"Mode: {self.mode}\n"
            "Node count: 7\n"
        ) + ("Proposal sizes last/min/max: 36/32/92\n" if self.mode == "leader" else "")

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Ensemble:
    """Three servers, the second leading."""

    def __init__(self) -> None:
        self.members = [Words("follower"), Words("leader"), Words("follower")]

    def rows(self, *numbers: int) -> list[dict[str, Any]]:
        wanted = numbers or range(1, len(self.members) + 1)
        return [{"id": number, "host": "127.0.0.1", "port": self.members[number - 1].port} for number in wanted]

    def stop(self) -> None:
        for member in self.members:
            member.stop()
