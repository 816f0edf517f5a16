# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few calls of Kubernetes' API that ours need, with a client certificate.

Objects are plain JSON as the API has them. Source: kubernetes.io/docs/reference/using-api/api-concepts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# The answer to a list of all nodes of a large cluster.
BYTES_AT_MOST = 64 << 20
# After so many seconds the server ends a watch, so that one of which nothing is heard is none that was cut.
WATCH_S = 25
# Rows of a list are told apart by a key of theirs, such as the type of a condition.
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Settings:
    """`certificate` is a PEM file with the client's certificate and its key, as kubelet has one. It is read at each
    connection: it is renewed while a daemon runs."""

    server: str
    ca_file: str = "/etc/kubernetes/pki/ca.crt"
    certificate: str | None = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    timeout_s: float = 5.0


class Answered(CallFailed):
    """What the server refuses, with the status of its answer."""

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


class Api:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        where = urllib.parse.urlsplit(settings.server)
        if where.scheme != "https" or not where.hostname:
            raise CallFailed(f"{settings.server} is not the URL of an API server", "give https://HOST:6443")
        self._host, self._port = where.hostname, where.port or 443

    def get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PATCH", path, body, STRATEGIC)

    def delete(self, path: str) -> dict[str, Any]:
        return self._call("DELETE", path)

    def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(ADDED, MODIFIED, DELETED or BOOKMARK; the object) since a version, until the server ends it.

        Raises CallFailed; Answered with 410 where the version is too old, and all has to be listed again.
        """
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", **query}
        query["timeoutSeconds"] = str(WATCH_S)
        with self._reached():
            connection = self._connect(WATCH_S + self.settings.timeout_s)
            try:
                where = f"{path}?{urllib.parse.urlencode(query)}"
                connection.request("GET", where, headers={"Accept": "application/json"})
                answer = connection.getresponse()
                if answer.status >= 300:
                    _read(answer.status, answer.read(BYTES_AT_MOST), f"GET {path}", answer.reason)
                while line := answer.readline(BYTES_AT_MOST):
                    told = _read(200, line, f"GET {path}")
                    kind, found = told.get("type"), told.get("object")
                    if not isinstance(kind, str) or not isinstance(found, dict):
                        raise CallFailed(f"an event of {path} cannot be read")
                    if kind == "ERROR":
                        code = found.get("code")
                        said = one_line(found.get("message") or "", 300)
                        raise Answered(code if isinstance(code, int) else 500, f"GET {path}: {code} {said}")
                    yield kind, found
            finally:
                connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.settings.ca_file)
        if self.settings.certificate is not None:
            context.load_cert_chain(self.settings.certificate)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as why:
            raise CallFailed(f"{self.settings.server} is not reached: {one_line(why, 200)}") from why

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Raises CallFailed where the server is not reached, or gives an answer that cannot be read, and Answered where
        it refuses."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        with self._reached():
            connection = self._connect(self.settings.timeout_s)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read(BYTES_AT_MOST + 1)
            finally:
                connection.close()
        if len(data) > BYTES_AT_MOST:
            raise CallFailed(f"{self.settings.server} answers {path} with more than {BYTES_AT_MOST >> 20} MiB")
        return _read(answer.status, data, f"{method} {path}", answer.reason)


def _read(status: int, data: bytes, what: str, reason: str = "") -> dict[str, Any]:
    """The answer's object. Raises Answered for a status that refuses, CallFailed for what is no object."""
    try:
        found = json.loads(data) if data else {}
    except (ValueError, RecursionError) as why:
        raise CallFailed(f"{what} is answered with what is not JSON") from why
    if not isinstance(found, dict):
        raise CallFailed(f"{what} is answered with what is not an object")
    if status >= 300:
        raise Answered(status, f"{what}: {status} {one_line(found.get('message') or reason, 300)}")
    return found


def time_text(seconds: float) -> str:
    """A time as the API has it, from Unix seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
