# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring an image to many nodes in little more than the time of one.

The nodes are a chain. Each fetches the blobs of the image from the node before it, and serves what it has of them,
also of one that still grows, to the node after it: so every link carries the image once, and all of them at the same
time. The first node fetches from the registry. A node that does not answer is passed over; what was fetched before a
cut stays, and the next call goes on from there.

The server speaks as much of the registry's protocol as a container engine needs, so that the engine of the node itself
takes the image from it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

CHUNK = 1 << 18
# Of a manifest, and of the number of blobs in it.
MANIFEST_AT_MOST = 4 << 20
BLOBS_AT_MOST = 500
# Seconds that a reader waits for a blob to grow.
GROWTH_S = 30.0
# Seconds for a node before to begin to serve, and between two tries.
PATIENCE_S, PAUSE_S = 30.0, 0.5
CONNECT_S = 10.0
# Rounds over all sources without a single byte, after which there is no more hope.
FRUITLESS_AT_MOST = 5
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_PATH = re.compile(r"/v2/[a-z0-9/._-]+/(manifests|blobs)/(sha256:[0-9a-f]{64})", re.ASCII)
_RANGE = re.compile(r"bytes=([0-9]{1,15})-", re.ASCII)
# Takes the number of bytes that were sent; a benchmark waits there.
Pace = Callable[[int], None]


class Blob(NamedTuple):
    digest: str
    size: int


class Image(NamedTuple):
    """An image of one platform. ``kind`` is the media type of its manifest."""

    digest: str
    manifest: bytes
    kind: str
    blobs: tuple[Blob, ...]


def image_of(manifest: bytes, digest: str) -> Image:
    """The image that a manifest describes. Raises Refused for one that is not of this digest, or describes none."""
    if len(manifest) > MANIFEST_AT_MOST or f"sha256:{hashlib.sha256(manifest).hexdigest()}" != digest:
        raise Refused(f"the manifest is not that of {digest}", "push the image again", code="wrong_manifest")
    try:
        document = json.loads(manifest)
        rows = [document["config"], *document["layers"]]
        blobs = tuple({str(row["digest"]): Blob(str(row["digest"]), int(row["size"])) for row in rows}.values())
        kind = str(document.get("mediaType") or "application/vnd.oci.image.manifest.v1+json")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise Refused(
            f"{digest} is not an image of one platform", "push one of one platform", code="wrong_manifest"
        ) from None
    if len(blobs) > BLOBS_AT_MOST or not all(_DIGEST.fullmatch(blob.digest) and blob.size >= 0 for blob in blobs):
        raise Refused(f"{digest} has blobs that cannot be right", "push the image again", code="wrong_manifest")
    return Image(digest, manifest, kind, blobs)


class Store:
    """The blobs of an image in a directory. Readers follow one that grows."""

    def __init__(self, directory: str, image: Image) -> None:
        self.image = image
        self._directory = directory
        self._sizes = {blob.digest: blob.size for blob in image.blobs}
        self._changed = threading.Condition()
        self._have: dict[str, int] = {}
        self._hashes: dict[str, Any] = {}
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for blob in image.blobs:
            self._begin(blob)

    def path(self, digest: str) -> str:
        return os.path.join(self._directory, digest.replace(":", "-"))

    def size(self, digest: str) -> int | None:
        return self._sizes.get(digest)

    def have(self, digest: str) -> int:
        return self._have[digest]

    def _begin(self, blob: Blob) -> None:
        """What an earlier run has left counts, if it is no more than there should be."""
        found = hashlib.sha256()
        have = 0
        with open(self.path(blob.digest), "a+b") as stream:
            stream.seek(0)
            while block := stream.read(CHUNK):
                found.update(block)
                have += len(block)
            if have > blob.size or (have == blob.size and f"sha256:{found.hexdigest()}" != blob.digest):
                stream.truncate(0)
                found, have = hashlib.sha256(), 0
        self._hashes[blob.digest], self._have[blob.digest] = found, have

    def append(self, digest: str, block: bytes) -> None:
        """Raises Refused if the blob is whole now and not what its digest says; then nothing of it is kept."""
        with open(self.path(digest), "ab") as stream:
            stream.write(block)
        self._hashes[digest].update(block)
        have = self._have[digest] + len(block)
        if have > self._sizes[digest] or (
            have == self._sizes[digest] and f"sha256:{self._hashes[digest].hexdigest()}" != digest
        ):
            os.truncate(self.path(digest), 0)
            self._hashes[digest], self._have[digest] = hashlib.sha256(), 0
            raise Refused(f"what came is not {digest}", code="wrong_blob")
        with self._changed:
            self._have[digest] = have
            self._changed.notify_all()

    def wait(self, digest: str, offset: int, seconds: float) -> bool:
        """Whether there is more than that of a blob, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: self._have[digest] > offset, seconds)

    @property
    def whole(self) -> bool:
        return all(self._have[blob.digest] == blob.size for blob in self.image.blobs)

    def remove(self) -> None:
        for blob in self.image.blobs:
            os.unlink(self.path(blob.digest))
        os.rmdir(self._directory)


class Server(http.server.ThreadingHTTPServer):
    """Serves what a store has: over TLS to those who have the key of a distribution, or to who has a login.

    :ivar login: NAME:PASSWORD that everybody has to give; empty for nobody.
    :ivar sent: how many bytes of blobs, the last at ``last_sent``.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        store: Store,
        context: ssl.SSLContext | None = None,
        login: str = "",
        pace: Pace | None = None,
    ) -> None:
        super().__init__(address, _Handler)
        self.store, self.context, self.login, self.pace = store, context, login, pace
        self.last_sent = time.monotonic()
        self.sent = 0

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake is each connection's own affair, so that nobody keeps the others waiting."""
        request.settimeout(GROWTH_S)
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        _Handler(request, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away in the middle asks again."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_body: bool) -> None:
        store = self.server.store
        match = _PATH.fullmatch(self.path)
        given = self.headers.get("Authorization") or ""
        if self.server.login and not hmac.compare_digest(given.encode(), basic(self.server.login).encode()):
            self._head(401, "application/json", 0)
        elif self.path == "/v2/":
            self._head(200, "application/json", 2)
            if with_body:
                self.wfile.write(b"{}")
        elif match and match[1] == "manifests" and match[2] == store.image.digest:
            self._head(200, store.image.kind, len(store.image.manifest), store.image.digest)
            if with_body:
                self.wfile.write(store.image.manifest)
        elif match and match[1] == "blobs" and store.size(match[2]) is not None:
            self._blob(match[2], with_body)
        else:
            self._head(404, "application/json", 0)

    def _head(self, status: int, kind: str, length: int, digest: str = "", content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        if content_range:
            self.send_header("Content-Range", content_range)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="image"')
        self.end_headers()

    def _blob(self, digest: str, with_body: bool) -> None:
        store = self.server.store
        size = store.size(digest) or 0
        asked = _RANGE.fullmatch(self.headers.get("Range") or "")
        offset = min(int(asked[1]), size) if asked else 0
        told = f"bytes {offset}-{max(size - 1, 0)}/{size}" if asked else ""
        self._head(206 if asked else 200, "application/octet-stream", size - offset, digest, told)
        if not with_body:
            return
        with open(store.path(digest), "rb") as stream:
            stream.seek(offset)
            while offset < size:
                if not store.wait(digest, offset, GROWTH_S):
                    # Shorter than announced: the reader sees that, and goes elsewhere.
                    self.close_connection = True
                    return
                block = stream.read(min(CHUNK, store.have(digest) - offset))
                if not block:
                    self.close_connection = True
                    return
                self.wfile.write(block)
                offset += len(block)
                self.server.last_sent = time.monotonic()
                self.server.sent += len(block)
                if self.server.pace:
                    self.server.pace(len(block))


def basic(login: str) -> str:
    """The header of a request with a login."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


@dataclass
class Source:
    """Where blobs come from: a node before this one, or the registry.

    :ivar login: name and password, as NAME:PASSWORD; empty for nobody.
    :ivar patience: seconds for it to begin to answer.
    """

    host: str
    port: int
    repository: str
    context: ssl.SSLContext | None = None
    login: str = ""
    patience: float = 0.0

    def open(self, digest: str, offset: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """The rest of a blob. Raises OSError and HTTPException."""
        headers = {"Range": f"bytes={offset}-"}
        if self.login:
            headers["Authorization"] = basic(self.login)
        connection, answer = self._get(f"/v2/{self.repository}/blobs/{digest}", headers)
        if answer.status == 401 and not self.login:
            headers["Authorization"] = f"Bearer {self._token(answer.getheader('WWW-Authenticate') or '')}"
            connection.close()
            connection, answer = self._get(f"/v2/{self.repository}/blobs/{digest}", headers)
        if answer.status not in (200, 206) or (offset and answer.status != 206):
            connection.close()
            raise OSError(f"it answers {answer.status}")
        return connection, answer

    def _get(self, path: str, headers: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection: http.client.HTTPConnection
        if self.context:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=CONNECT_S, context=self.context)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(2 * GROWTH_S)
            connection.request("GET", path, headers=headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _token(self, challenge: str) -> str:
        """A token for nobody in particular, from the registry itself and nowhere else."""
        realm = re.search(r'realm="([^"]+)"', challenge)
        place = urlsplit(realm[1]) if realm else None
        if place is None or (place.hostname, place.port) != (self.host, self.port):
            raise OSError("it wants a login")
        service = re.search(r'service="([^"]+)"', challenge)
        asked = {"service": service[1] if service else "", "scope": f"repository:{self.repository}:pull"}
        connection, answer = self._get(f"{place.path}?{urlencode(asked)}", {})
        try:
            return str(json.loads(answer.read(MANIFEST_AT_MOST))["token"])
        except (ValueError, RecursionError, KeyError, TypeError):
            raise OSError("it wants a login") from None
        finally:
            connection.close()


def fetch(store: Store, sources: Sequence[Source], say: Callable[[str], None] = lambda told: None) -> None:
    """Fetch all blobs, each from the first source that has more of it. Raises Refused when none goes on."""
    began = time.monotonic()
    fruitless, why = 0, ""
    for blob in store.image.blobs:
        while store.have(blob.digest) < blob.size:
            before = store.have(blob.digest)
            for source in sources:
                try:
                    _take(store, blob, source)
                    break
                except (OSError, http.client.HTTPException, Refused) as error:
                    why = f"{source.host}:{source.port}: {error}"
                    if store.have(blob.digest) > before:
                        break
                    if time.monotonic() - began < source.patience:
                        time.sleep(PAUSE_S)
                        break
            else:
                fruitless += 1
                say(why)
                if fruitless >= FRUITLESS_AT_MOST:
                    raise Refused(
                        f"no more of the image comes: {why}",
                        "see whether the registry answers, and call it again: what came is kept",
                        code="image_not_fetched",
                    )
                time.sleep(PAUSE_S)
                continue
            if store.have(blob.digest) > before:
                fruitless = 0


def _take(store: Store, blob: Blob, source: Source) -> None:
    connection, answer = source.open(blob.digest, store.have(blob.digest))
    try:
        while store.have(blob.digest) < blob.size:
            block = answer.read1(min(CHUNK, blob.size - store.have(blob.digest)))
            if not block:
                raise OSError("it ended before the blob did")
            store.append(blob.digest, block)
    finally:
        connection.close()


def context(certificate: str, key: str, server: bool) -> ssl.SSLContext:
    """TLS between those who have the one key of a distribution, and nobody else.

    :param certificate: path of the file; it is the authority too.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if not server:
        # The key says who it is; a node has many names.
        made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(certificate, key)
    made.load_verify_locations(certificate)
    return made
