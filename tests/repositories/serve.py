# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a directory over HTTP from the test's own process, and remember what was asked for."""

from __future__ import annotations

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server:
    """``with Server(directory, address) as server: server.url``"""

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, _format: str, *arguments: Any) -> None:
                requests.append(str(arguments[0]))

        self.server = ThreadingHTTPServer((address, 0), functools.partial(Handler, directory=str(directory)))
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        host, port = self.server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
