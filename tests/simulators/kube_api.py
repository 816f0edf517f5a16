# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for Kubernetes' API server, for the few kinds of objects that ours use. It refuses what the real one does.

It has resource versions, conflicts, patches, watches and evictions, and keeps device taints or drops them, as the
feature gate DRADeviceTaints has it. Who calls is known by the client's certificate: a node may do what the authorizer
of nodes and NodeRestriction let it, and others what rules of RBAC do. Source: k8s.io/kubernetes 1.36.3.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
SUBDOMAIN = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
QUALIFIED = re.compile(r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$")
MICRO_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
ANNOTATIONS_AT_MOST, DATA_AT_MOST = 256 << 10, 1 << 20
NODE_USER = "system:node:"
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?$"
)


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = code, _status(code, message)


class KubeObjects:
    """`objects` is path -> object; `down` closes it to all. With `rights` (user -> rules of RBAC), nobody else may do
    anything, but for nodes. `budgets` are the paths of pods that a PodDisruptionBudget holds; `lingers`: an evicted
    pod takes its time to end."""

    def __init__(
        self, keeps_taints: bool = True, rights: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    ) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.keeps_taints, self.rights = keeps_taints, rights
        self.down = self.lingers = False
        self.writes: list[tuple[str, str]] = []
        self.budgets: set[str] = set()
        # (version, ADDED, MODIFIED or DELETED, path, object), and the version before the first that is kept.
        self.events: list[tuple[int, str, str, dict[str, Any]]] = []
        self.forgotten = 0
        self._version = 100
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """An object that somebody else makes, or changes."""
        with self._lock:
            made = copy.deepcopy(dict(body))
            found = self._keep(
                path, {**made, "metadata": {"name": path.rpartition("/")[2], **made.get("metadata", {})}}
            )
            return copy.deepcopy(found)

    def remove(self, path: str) -> None:
        with self._lock:
            self._drop(path)

    def forget(self) -> None:
        """What has changed so far is told to no watch any more."""
        with self._lock:
            self.forgotten, self.events = self._version, []
            self._news.notify_all()

    def serve(
        self, method: str, path: str, body: Any = None, kind: str = "", user: str = ""
    ) -> tuple[int, dict[str, Any]]:
        with self._lock:
            try:
                return copy.deepcopy(self._serve(method, path, body, kind, user))
            except Refused as why:
                return why.answer

    def _serve(self, method: str, path: str, body: Any, kind: str, user: str) -> tuple[int, dict[str, Any]]:
        if self.down:
            raise Refused(503, "the server is currently unable to handle the request")
        path, _mark, query = path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        found = _PATH.match(path)
        if not found:
            raise Refused(404, "the server could not find the requested resource")
        self._authorize(method, found, asked, user)
        if method != "GET":
            self.writes.append((method, path))
        if method == "GET" and found["name"] is None:
            return self._listed(path, found["resource"], asked, user)
        if method == "GET":
            if path.startswith(SLICES) and path not in self.objects:
                # As the authorizer of nodes has it.
                raise Refused(403, "no relationship found between node and this object")
            return 200, self._at(path)
        if found["sub"] == "eviction":
            return self._evict(path.removesuffix("/eviction"), body, found)
        if method == "POST":
            return 201, self._create(path, found, body)
        path = path.removesuffix("/status")
        old = self._at(path)
        if method == "DELETE":
            return 200, self._drop(path)
        if method == "PATCH":
            if kind != "application/strategic-merge-patch+json":
                raise Refused(415, f"unsupported media type {kind}")
            version = (body.get("metadata") or {}).get("resourceVersion", old["metadata"]["resourceVersion"])
            body = _merged(old, body)
        else:
            version = body["metadata"].get("resourceVersion")
            if version is None:
                raise Refused(422, "metadata.resourceVersion: must be specified for an update")
        if version != old["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified; please apply your changes to the latest version")
        if found["resource"] == "nodes" and user.startswith(NODE_USER):
            _restrict(user, path, old, body)
        return 200, self._keep(path, body)

    def _at(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise Refused(404, f"{path} not found")
        return self.objects[path]

    def _create(self, path: str, found: re.Match[str], body: dict[str, Any]) -> dict[str, Any]:
        name, namespace = body["metadata"]["name"], found["namespace"]
        if body["metadata"].get("namespace", namespace) != namespace:
            raise Refused(400, "the namespace of the provided object does not match the namespace sent on the request")
        if namespace not in (None, "default") and f"/api/v1/namespaces/{namespace}" not in self.objects:
            raise Refused(404, f'namespaces "{namespace}" not found')
        if not SUBDOMAIN.match(name):
            raise Refused(422, f"metadata.name: Invalid value: {name}: a lowercase RFC 1123 subdomain must be given")
        if body["metadata"].get("resourceVersion"):
            raise Refused(400, "resourceVersion should not be set on objects to be created")
        path = f"{path}/{name}"
        if path in self.objects:
            raise Refused(409, f"{name} already exists")
        return self._keep(path, body)

    def _evict(self, path: str, body: dict[str, Any], found: re.Match[str]) -> tuple[int, dict[str, Any]]:
        if body.get("apiVersion") != "policy/v1" or body.get("kind") != "Eviction":
            raise Refused(400, "not a Eviction object")
        if body["metadata"]["name"] != found["name"] or body["metadata"].get("namespace") != found["namespace"]:
            raise Refused(400, "name in URL does not match name in Eviction object")
        pod = self._at(path)
        wanted = (body.get("deleteOptions") or {}).get("preconditions") or {}
        if wanted.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise Refused(409, "the UID in the precondition does not match the UID in record")
        # Of one that does not run, the budget counts for nothing.
        if (
            path in self.budgets
            and pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        ):
            raise Refused(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        if self.lingers:
            about = {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            self._keep(path, {**pod, "metadata": about})
        else:
            self._drop(path)
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _listed(self, path: str, resource: str, asked: Mapping[str, str], user: str) -> tuple[int, dict[str, Any]]:
        field, _equal, value = asked.get("fieldSelector", "").partition("=")
        label, _equal, wanted = asked.get("labelSelector", "").partition("=")
        if resource == "resourceslices" and field != "spec.nodeName":
            raise Refused(403, "can only list resourceslices with nodeName field selector")
        if field not in ("", "spec.nodeName", "metadata.name"):
            raise Refused(400, f"field label not supported: {field}")
        rows = []
        for name, one in self.objects.items():
            place = _PATH.match(name)
            in_all = f"/api/v1/{resource}" == path and place and place["resource"] == resource
            if not in_all and name.rpartition("/")[0] != path:
                continue
            has = one["metadata"]["name"] if field == "metadata.name" else one.get("spec", {}).get("nodeName")
            if (field and has != value) or (label and one["metadata"].get("labels", {}).get(label) != wanted):
                continue
            rows.append(one)
        return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": rows}

    # Who may do what.

    def _authorize(self, method: str, found: re.Match[str], asked: Mapping[str, str], user: str) -> None:
        if self.rights is None and not user:
            return
        resource = "/".join(filter(None, [found["resource"], found["sub"]]))
        verb = VERBS.get(method) or ("watch" if asked.get("watch") else "get" if found["name"] else "list")
        if user.startswith(NODE_USER):
            if resource in ("nodes", "nodes/status"):
                _authorize_node(user, verb, resource, found["name"], asked)
            return
        for rule in (self.rights or {}).get(user, ()):
            about = (found["group"] or "") in rule["apiGroups"] and resource in rule["resources"]
            if about and verb in rule["verbs"] and rule["namespace"] in (None, found["namespace"]):
                return
        raise Refused(403, f'User "{user or "system:anonymous"}" cannot {verb} resource "{resource}"')

    # What is kept.

    def _drop(self, path: str) -> dict[str, Any]:
        self._version += 1
        gone = self.objects.pop(path)
        about = {**gone["metadata"], "resourceVersion": str(self._version)}
        self._say("DELETED", path, {**gone, "metadata": about})
        return gone

    def _keep(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(body)
        why = _problem(path, body, self.objects.get(path))
        if why:
            raise Refused(422, why)
        if body.get("kind") == "ResourceSlice":
            for device in body["spec"]["devices"]:
                for capacity in device.get("capacity", {}).values():
                    capacity["value"] = _canonical(capacity["value"])
                if not self.keeps_taints:
                    device.pop("taints", None)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = body
        self._say(kind, path, body)
        return body

    def _say(self, kind: str, path: str, body: dict[str, Any]) -> None:
        self.events.append((self._version, kind, path, copy.deepcopy(body)))
        self._news.notify_all()

    def watched(self, path: str, asked: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """The events of a watch until it is over, or the server is down."""
        seen, end = int(asked["resourceVersion"]), time.monotonic() + float(asked["timeoutSeconds"])
        field, _equal, name = asked.get("fieldSelector", "").partition("=")
        while time.monotonic() < end:
            with self._lock:
                if self.down:
                    return
                if seen < self.forgotten:
                    yield {"type": "ERROR", "object": _status(410, f"too old resource version: {seen}")}
                    return
                todo = [row for row in self.events if row[0] > seen and row[2].rpartition("/")[0] == path]
                if not todo:
                    self._news.wait(0.1)
            for version, kind, _path, body in todo:
                seen = version
                if not field or body["metadata"]["name"] == name:
                    yield {"type": kind, "object": body}


class KubeApi(KubeObjects):
    """It listens with a certificate of its own. `clients` are the certificates of those who may call; the common name
    is the user."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        keeps_taints: bool = True,
        rights: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        clients: Iterable[Path] = (),
    ) -> None:
        super().__init__(keeps_taints, rights)
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                certificate = dict(row[0] for row in (self.connection.getpeercert() or {}).get("subject", ()))
                user = certificate.get("commonName", "")
                words = self.command, self.path, body, self.headers.get("Content-Type", ""), user
                status, found = api.serve(*words)
                asked = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
                self.close_connection = True
                self.send_response(status)
                if asked.get("watch") and status == 200:
                    self._stream(asked)
                    return
                data = json.dumps(found).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, asked: dict[str, str]) -> None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for event in api.watched(self.path.partition("?")[0], asked):
                        data = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    # Whoever watched is gone.
                    return

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_words: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        for client in clients:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(client)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.down = True
        self.server.shutdown()
        self.server.server_close()


def rights_of(manifests: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """User -> what roles and bindings let it do, each with the namespace in which."""
    rows = list(manifests)
    rules = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one["rules"]
        for one in rows
        if "rules" in one
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for one in rows:
        if "roleRef" in one:
            namespace, role = one["metadata"].get("namespace"), one["roleRef"]
            for subject in one["subjects"]:
                for rule in rules[role["kind"], namespace, role["name"]]:
                    found.setdefault(subject["name"], []).append({**rule, "namespace": namespace})
    return found


def _authorize_node(user: str, verb: str, resource: str, name: str | None, asked: Mapping[str, str]) -> None:
    node = user[len(NODE_USER) :]
    if name is None and asked.get("fieldSelector") == f"metadata.name={node}":
        name = node
    if verb in ("list", "watch", "get") and (name != node or resource != "nodes"):
        raise Refused(403, f"node '{node}' cannot read '{name}', only its own Node object")
    if verb not in ("list", "watch", "get", "create", "update", "patch"):
        raise Refused(403, f'User "{user}" cannot {verb} resource "{resource}"')


def _restrict(user: str, path: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """The admission plugin NodeRestriction."""
    node = user[len(NODE_USER) :]
    if path != f"{NODES}/{node}":
        raise Refused(403, f'node "{node}" is not allowed to modify node "{path.rpartition("/")[2]}"')
    if old.get("spec", {}).get("taints") != new.get("spec", {}).get("taints"):
        raise Refused(403, f'node "{node}" is not allowed to modify taints')
    before, after = (dict(one["metadata"].get("labels") or {}) for one in (old, new))
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    # Those that kubelet itself sets are not used here.
    if any(re.match(r"([a-z0-9.-]+\.)?(kubernetes|k8s)\.io/", name) for name in changed):
        raise Refused(403, "is not allowed to modify labels")


def _problem(path: str, body: dict[str, Any], old: dict[str, Any] | None) -> str:
    """What validation says against an object; empty for nothing."""
    notes = body["metadata"].get("annotations") or {}
    if not all(isinstance(value, str) and QUALIFIED.match(key) for key, value in notes.items()):
        return f"metadata.annotations: {notes} is not a map of qualified names to strings"
    if sum(len(key) + len(value.encode()) for key, value in notes.items()) > ANNOTATIONS_AT_MOST:
        return "metadata.annotations: Too long: may not be more than 262144 bytes"
    if not all(LABEL_VALUE.match(value) for value in (body["metadata"].get("labels") or {}).values()):
        return "metadata.labels: Invalid value"
    spec = body.get("spec") or {}
    if body.get("kind") == "ResourceSlice":
        return _slice_problem(body, old)
    if path.startswith(NODES):
        seen = set()
        for taint in spec.get("taints") or ():
            valid = taint["effect"] in ("NoSchedule", "PreferNoSchedule", "NoExecute")
            if not valid or not QUALIFIED.match(taint["key"]) or not LABEL_VALUE.match(taint.get("value", "")):
                return f"metadata.taints: {taint} is not valid"
            if (taint["key"], taint["effect"]) in seen:
                return f"metadata.taints: Duplicate value: {taint}"
            seen.add((taint["key"], taint["effect"]))
    if "/configmaps/" in path:
        data = body.get("data") or {}
        if not all(
            isinstance(value, str) and re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key, value in data.items()
        ):
            return "data: Invalid value"
        if sum(len(value.encode()) for value in data.values()) > DATA_AT_MOST:
            return "data: Too long: may not be more than 1048576 bytes"
    if "/leases/" in path:
        if spec.get("leaseDurationSeconds", 1) <= 0 or spec.get("leaseTransitions", 0) < 0:
            return "spec.leaseDurationSeconds: must be greater than 0"
        for name in ("renewTime", "acquireTime"):
            if not MICRO_TIME.match(spec.get(name) or "2026-01-01T00:00:00.000000Z"):
                return f"spec.{name}: {spec[name]} is no MicroTime"
    return ""


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
        elif value is None:
            found.pop(key, None)
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
