# SPDX-License-Identifier: GPL-3.0-or-later
"""Files by URL from a server on loopback: whole, completed, and refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from gpuops.fetch import downloads
from gpuops.fetch.manifest import Download, ManifestError

CONTENT = bytes(range(256)) * 64
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT with ranges and notes what was asked for; sends on where a path names another place."""

    def __init__(self, ranges: list[str | None], *args: object) -> None:
        self.ranges = ranges
        super().__init__(*args)  # type: ignore[arg-type]  # the three arguments of socketserver

    def do_GET(self) -> None:
        if self.path.startswith("/to="):
            self.send_response(302)
            self.send_header("Location", unquote(self.path.removeprefix("/to=").rpartition("/")[0]))
            self.end_headers()
            return
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


def test_a_part_that_is_whole_is_not_asked_for_again(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    url, ranges = server
    (tmp_path / ".driver.run.part").write_bytes(CONTENT)
    assert downloads.fetch(Download(url, SHA256), tmp_path).read_bytes() == CONTENT
    assert (ranges, [path.name for path in tmp_path.iterdir()]) == ([], ["driver.run"])


def test_a_wrong_checksum_leaves_nothing(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    url, _ranges = server
    with pytest.raises(ManifestError, match=f"{url}: its SHA-256 is {SHA256}, not {'0' * 64}"):
        downloads.fetch(Download(url, "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"http://127\.0\.0\.1:9/driver\.run: .*run again"):
        downloads.fetch(Download("http://127.0.0.1:9/driver.run", SHA256), tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd", "HTTP:x", ""])
def test_only_web_servers_are_asked(url: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"^URL .* is refused: "):
        downloads.fetch(Download(url, SHA256), tmp_path / "mirror")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("place", ["file:///etc/hostname", "ftp://127.0.0.1:9/x", "data:,x"])
def test_a_server_that_sends_on_to_another_place_is_not_followed(
    server: tuple[str, list[str | None]], place: str, tmp_path: Path
) -> None:
    base = server[0].rpartition("/")[0]
    with pytest.raises(ManifestError, match=rf"{base}/to=.*/driver\.run"):
        downloads.fetch(Download(f"{base}/to={quote(place, safe='')}/driver.run", SHA256), tmp_path)
    assert not (tmp_path / "driver.run").exists()


def test_a_server_may_send_on_to_another_web_server(server: tuple[str, list[str | None]], tmp_path: Path) -> None:
    base = server[0].rpartition("/")[0]
    url = f"{base}/to={quote(server[0], safe='')}/driver.run"
    assert downloads.fetch(Download(url, SHA256), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "end", ["", "..", ".", ".part", "-x", "a%2fb", "a%00", "a b", "a\n", "#/x", "\x1b[m", "?a=/.."]
)
def test_a_file_has_a_name_of_its_own_in_the_mirror(end: str, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    with pytest.raises(ManifestError, match="is refused") as refused:
        downloads.fetch(Download(f"http://127.0.0.1:9/x/{end}", SHA256), mirror)
    assert str(refused.value).isprintable()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
