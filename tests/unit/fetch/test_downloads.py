# SPDX-License-Identifier: GPL-3.0-or-later
"""Files by URL from a server on loopback: whole, completed, and refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuops.fetch import downloads
from gpuops.fetch.manifest import Download, ManifestError

CONTENT = bytes(range(256)) * 64
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT with ranges and notes what was asked for."""

    def __init__(self, ranges: list[str | None], *args: object) -> None:
        self.ranges = ranges
        super().__init__(*args)  # type: ignore[arg-type]  # the three arguments of socketserver

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.end_headers()
        self.wfile.write(CONTENT[start:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str | None]]]:
    ranges: list[str | None] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, ranges)) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/driver.run", ranges
        httpd.shutdown()


def test_a_file_is_fetched_once(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    url, ranges = server
    for _ in range(2):
        assert downloads.fetch(Download(url, SHA256), tmp_path).read_bytes() == CONTENT
    assert ranges == [None]


def test_a_part_is_completed(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    url, ranges = server
    (tmp_path / ".driver.run.part").write_bytes(CONTENT[:1000])
    assert downloads.fetch(Download(url, SHA256), tmp_path).read_bytes() == CONTENT
    assert ranges == ["bytes=1000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["driver.run"]


def test_a_wrong_checksum_leaves_nothing(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    url, _ranges = server
    with pytest.raises(ManifestError, match=f"{url}: its SHA-256 is {SHA256}, not {'0' * 64}"):
        downloads.fetch(Download(url, "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"http://127\.0\.0\.1:9/driver\.run: .*run again"):
        downloads.fetch(Download("http://127.0.0.1:9/driver.run", SHA256), tmp_path)
