# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Prometheus on this machine, and small servers for it to scrape."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import debian_programs


@contextmanager
def served(handle: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handle) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_given: object) -> None:
        """A test says what went wrong."""

    def answer(self, status: int, text: str, kind: str = "text/plain; version=0.0.4") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


def programs(*names: str) -> dict[str, str]:
    """Where programs of Debian's are. The test is skipped where one is not here."""
    found = {name: debian_programs.path_of(name) for name in names}
    if None in found.values():
        pytest.skip(f"{' or '.join(names)} is not here: python -m tests.needs fetches them")
    return {name: str(path) for name, path in found.items()}


@contextmanager
def running(config: dict[str, Any], place: Path, ready: Callable[[str], bool], *arguments: str) -> Iterator[str]:
    """The address of a Prometheus with this configuration and its data in `place`, once it is `ready`."""
    (place / "prometheus.yml").write_text(json.dumps(config))
    with served(Quiet) as free:
        address = free
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [
                programs("prometheus")["prometheus"],
                f"--config.file={place}/prometheus.yml",
                f"--storage.tsdb.path={place}/data",
                f"--web.listen-address={address}",
                *arguments,
            ],
            stderr=log,
        )
        try:
            for _attempt in range(120):
                assert process.poll() is None, (place / "log").read_text()
                if ready(address):
                    break
                time.sleep(1)
            else:
                pytest.fail((place / "log").read_text()[-2000:])
            yield address
        finally:
            process.terminate()
            process.wait()


def fetch(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}") as answer:
        return str(answer.read().decode())


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """The series of an expression; none while Prometheus does not answer."""
    try:
        told = json.loads(fetch(address, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    except OSError:
        return []
    return list(told["data"]["result"])
