# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few calls of Kubernetes' API that ours need, with a client certificate or a token.

Objects are plain JSON as the API has them. Source: kubernetes.io/docs/reference/using-api/api-concepts.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# The answer to a list of all nodes of a large cluster.
BYTES_AT_MOST = 64 << 20
TOKEN_AT_MOST = 64 << 10
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Refused(CallFailed):
    """The API server's own no. :ivar status: of HTTP, such as 404, 409 or 422."""

    def __init__(self, why: str, status: int, remedy: str = "") -> None:
        super().__init__(why, remedy)
        self.status = status


@dataclass(frozen=True)
class Settings:
    """`certificate` is a PEM file with the client's certificate and its key, as kubelet has one; `token` a file with a
    token instead. Both are read at each connection: they are renewed while a daemon runs."""

    server: str
    ca_file: str = "/etc/kubernetes/pki/ca.crt"
    certificate: str | None = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    token: str | None = None
    timeout_s: float = 5.0


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

    def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE) -> dict[str, Any]:
        return self._call("PATCH", path, body, kind)

    def delete(self, path: str) -> None:
        """Also where it is gone already."""
        try:
            self._call("DELETE", path)
        except Refused as why:
            if why.status != 404:
                raise

    def find(self, path: str) -> dict[str, Any] | None:
        """The object; None where there is none."""
        try:
            return self.get(path)
        except Refused as why:
            if why.status != 404:
                raise
            return None

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Raises Refused, and CallFailed where the server is not reached or its answer cannot be read."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        try:
            context = ssl.create_default_context(cafile=self.settings.ca_file)
            if self.settings.token is not None:
                headers["Authorization"] = f"Bearer {read_text(self.settings.token, TOKEN_AT_MOST).strip()}"
            elif self.settings.certificate is not None:
                context.load_cert_chain(self.settings.certificate)
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self.settings.timeout_s, context=context
            )
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read(BYTES_AT_MOST + 1)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as why:
            raise CallFailed(f"{self.settings.server} is not reached: {one_line(why, 200)}") from why
        if len(data) > BYTES_AT_MOST:
            raise CallFailed(f"{self.settings.server} answers {path} with more than {BYTES_AT_MOST >> 20} MiB")
        try:
            found = json.loads(data) if data else {}
        except (ValueError, RecursionError) as why:
            raise CallFailed(f"{self.settings.server} answers {path} with what is not JSON") from why
        if not isinstance(found, dict):
            raise CallFailed(f"{self.settings.server} answers {path} with what is not an object")
        if answer.status >= 300:
            said = one_line(found.get("message") or answer.reason, 300)
            raise Refused(f"{method} {path}: {answer.status} {said}", answer.status)
        return found
