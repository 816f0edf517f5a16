# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection to hosts that are not there: modules are not run, but answered for, so that only the controller works.

What a module answers is in the file that BENCH_ANSWERS names, JSON by the module's full name. BENCH_DELAY is how many
seconds an answer takes. A module without an answer is an error, so that nothing passes for done that is not.
"""

from __future__ import annotations

import json
import os
import re
import time
from functools import lru_cache
from typing import Any

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: canned
short_description: Answers for hosts that are not there
description: Every module is answered for from a file.
options: {}
"""
MODULE = re.compile(rb"^ansible_module='([\w.]+)'", re.MULTILINE)


@lru_cache(maxsize=1)
def answers() -> dict[str, bytes]:
    with open(os.environ["BENCH_ANSWERS"], encoding="utf-8") as file:
        return {name: json.dumps(answer).encode() for name, answer in json.load(file).items()}


# Ansible ships no types.
class Connection(ConnectionBase):  # type: ignore[misc]
    transport = "canned"
    has_pipelining = True

    def _connect(self) -> Connection:
        answers()
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        delay = float(os.environ.get("BENCH_DELAY", "0"))
        if delay:
            time.sleep(delay)
        found = MODULE.findall(in_data or b"")
        name = found[-1].decode() if found else ""
        answer = answers().get(name) or answers().get(f"ansible.builtin.{name.rpartition('.')[2]}")
        if answer is None:
            return 1, b"", f"there is no answer for {name or cmd[:200]}".encode()
        return 0, answer, b""

    def put_file(self, in_path: str, out_path: str) -> Any:
        raise NotImplementedError("nothing is copied to a host that is not there")

    def fetch_file(self, in_path: str, out_path: str) -> Any:
        raise NotImplementedError("nothing is copied from a host that is not there")

    def close(self) -> None:
        self._connected = False
