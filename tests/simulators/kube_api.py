# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for Kubernetes' API server, for the few kinds of objects that ours use. It refuses what the real one does.

It has resource versions, conflicts, patches of conditions, and keeps device taints or drops them, as the feature gate
DRADeviceTaints has it.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class KubeApi:
    """`objects` is path -> object; `down` closes it to all."""

    def __init__(self, certificate: Path, key: Path, keeps_taints: bool = True) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.keeps_taints = keeps_taints
        self.down = False
        self.writes: list[tuple[str, str]] = []
        self._version = 0
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                status, found = api.serve(self.command, self.path, body, self.headers.get("Content-Type", ""))
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_words: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def serve(self, method: str, path: str, body: Any, kind: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            if self.down:
                return 503, _status(503, "the server is currently unable to handle the request")
            if method != "GET":
                self.writes.append((method, path))
            if method == "GET" and "?" in path:
                return self._listed(*path.split("?"))
            if method == "GET" and path.startswith(SLICES) and path not in self.objects:
                # As the authorizer of nodes has it.
                return 403, _status(403, "no relationship found between node and this object")
            if method == "GET":
                return (200, self.objects[path]) if path in self.objects else (404, _status(404, f"{path} not found"))
            if method == "POST":
                path = f"{path}/{body['metadata']['name']}"
                if path in self.objects:
                    return 409, _status(409, "already exists")
                return self._write(path, body, 201)
            path = path.removesuffix("/status")
            if path not in self.objects:
                return 404, _status(404, f"{path} not found")
            old = self.objects[path]
            if method == "DELETE":
                return 200, self.objects.pop(path)
            if method == "PUT":
                if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                    return 409, _status(409, "the object has been modified")
                return self._write(path, body, 200)
            if kind != "application/strategic-merge-patch+json":
                return 415, _status(415, f"unsupported media type {kind}")
            return self._write(path, _merged(old, body), 200)

    def _listed(self, path: str, query: str) -> tuple[int, dict[str, Any]]:
        selector = dict(urllib.parse.parse_qsl(query)).get("fieldSelector", "")
        field, _equal, node = selector.partition("=")
        if field != "spec.nodeName":
            return 403, _status(403, "can only list resourceslices with nodeName field selector")
        rows = [one for name, one in self.objects.items() if name.startswith(path) and one["spec"]["nodeName"] == node]
        return 200, {"items": rows}

    def _write(self, path: str, body: dict[str, Any], status: int) -> tuple[int, dict[str, Any]]:
        body = copy.deepcopy(body)
        if body.get("kind") == "ResourceSlice":
            why = _slice_problem(body, self.objects.get(path))
            if why:
                return 422, _status(422, why)
            for device in body["spec"]["devices"]:
                for capacity in device.get("capacity", {}).values():
                    capacity["value"] = _canonical(capacity["value"])
                if not self.keeps_taints:
                    device.pop("taints", None)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body
        return status, body


def _canonical(quantity: str) -> str:
    """The largest unit that keeps the number whole."""
    number, unit = int(re.sub(r"\D", "", quantity)), re.sub(r"\d", "", quantity)
    units = ["", "Ki", "Mi", "Gi", "Ti"]
    place = units.index(unit)
    while number and number % 1024 == 0 and place < len(units) - 1:
        number, place = number >> 10, place + 1
    return f"{number}{units[place]}"


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _merged(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """As a strategic merge patch: of the lists that ours patch, conditions alone are merged, by their type."""
    found = dict(old)
    for key, value in change.items():
        if key == "conditions":
            rows = {row["type"]: row for row in [*found.get(key, ()), *value]}
            found[key] = list(rows.values())
        else:
            found[key] = _merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


def _slice_problem(body: dict[str, Any], old: dict[str, Any] | None) -> str:
    """What validation of resource.k8s.io/v1 says against a slice; empty for nothing."""
    spec = body["spec"]
    names = [device["name"] for device in spec["devices"]]
    if old is not None and (spec["driver"], spec["nodeName"]) != (old["spec"]["driver"], old["spec"]["nodeName"]):
        return "spec.driver: field is immutable"
    if len(names) > 128 or len(set(names)) != len(names):
        return "spec.devices: too many, or duplicate"
    for device in spec["devices"]:
        if not LABEL.match(device["name"]):
            return f"{device['name']}: a lowercase RFC 1123 label must consist of lower case characters"
        for attribute in device.get("attributes", {}).values():
            if len(attribute) != 1 or len(str(attribute.get("string", ""))) > 64:
                return "attributes: exactly one value must be specified, of at most 64 characters"
        for taint in device.get("taints", ()):
            if taint["effect"] not in ("None", "NoSchedule", "NoExecute") or len(taint.get("value", "")) > 63:
                return f"taints: {taint} is not valid"
    return ""
