# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people and operators use, tried as they use it: metrics and alerts, images, sessions, and a login's programs.

Every answer is bounded, and nothing of it is written to a disk.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import hashlib
import http.client
import json
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object, object_of, text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

TIMEOUT_S = 15.0
ANSWER_MOST, BLOBS_MOST = 16 << 20, 512 << 20
TARGETS_MOST = 5000
SESSION_S, SESSION_POLL_S = 240.0, 2.0
# The smallest session; a GPU is left to those who need one.
SESSION = {"gpus": 0, "cpus": 1, "memory_gib": 1, "hours": 1}
WATCHDOG = "Watchdog"
# Of the portal's host: where people reach it, and who has signed its certificate.
PORTAL_SETTINGS = "/etc/baremetal-gpu/portal/settings.json"
PORTAL_AUTHORITY = "/etc/baremetal-gpu/portal/tls/ca.pem"
SETTINGS_MOST = 1 << 20
_PORTAL = object_of(
    {"hub": object_of({"public_url": text(r"https://[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?")}, keep=True)}, keep=True
)
MANIFESTS = ", ".join(
    f"application/vnd.{kind}"
    for kind in (
        "oci.image.index.v1+json",
        "oci.image.manifest.v1+json",
        "docker.distribution.manifest.list.v2+json",
        "docker.distribution.manifest.v2+json",
    )
)
_IMAGE = re.compile(r"([a-z0-9][a-z0-9._/-]{0,200})(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# What people expect of a login, and the names by which it may be there.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "an editor": ("vim", "vi", "nano", "emacs"),
    "a terminal that stays": ("tmux", "screen"),
    "git": ("git",),
    "rsync": ("rsync",),
    "curl or wget": ("curl", "wget"),
    "Python": ("python3",),
    "a C compiler": ("gcc", "cc", "clang"),
    "make": ("make",),
    "htop or top": ("htop", "top"),
}
LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin"


class NoAnswer(Exception):
    """The text says why."""


class _ThisHost(http.client.HTTPSConnection):
    """Asks this host, which need not know itself by its name. Its certificate is for the name."""

    def connect(self) -> None:
        name, self.host = self.host, "127.0.0.1"
        try:
            http.client.HTTPConnection.connect(self)
        finally:
            self.host = name
        # The context is that of http.client's own class, whose types do not tell of it.
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name)  # type: ignore[attr-defined]


class _OnThisHost(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._made = functools.partial(_ThisHost, context=context)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._made, req)


class Http:
    """Requests to one server, through no proxy.

    :param here: whether it is on this host, under whatever name.
    """

    def __init__(
        self,
        base: str,
        context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        here: bool = False,
    ):
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if context is not None:
            handlers.append(_OnThisHost(context) if here else urllib.request.HTTPSHandler(context=context))
        self._base, self._headers = base.rstrip("/"), dict(headers or {})
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, path: str, method: str = "GET", body: Any = None, accept: str = "*/*") -> Any:
        """An answer that can be read, of whatever status. Raises NoAnswer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": accept, **({"Content-Type": "application/json"} if data else {})}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as answer:
            return answer
        except (OSError, ValueError) as failure:
            raise NoAnswer(f"{self._base}: {getattr(failure, 'reason', None) or failure}") from failure

    def below(self, url: str) -> Http:
        """The same for a server whose name is below this one's, which has the URL. Raises NoAnswer."""
        there, own = urllib.parse.urlsplit(url), urllib.parse.urlsplit(self._base)
        if there.scheme != own.scheme or not there.netloc.endswith(f".{own.netloc}"):
            raise NoAnswer(f"{one_line(url, 200)} is not below {self._base}")
        made = copy.copy(self)
        made._base = f"{there.scheme}://{there.netloc}"
        return made

    def ask(self, path: str, method: str = "GET", body: Any = None, accept: str = "*/*") -> tuple[int, bytes]:
        with self.open(path, method, body, accept) as answer:
            try:
                return answer.status, answer.read(ANSWER_MOST)
            except OSError as failure:
                raise NoAnswer(f"{self._base}: {failure}") from failure

    def document(self, path: str, method: str = "GET", body: Any = None, accept: str = "*/*") -> Any:
        """The JSON of an answer that went well. Raises NoAnswer."""
        status, text = self.ask(path, method, body, accept)
        if status >= 300:
            raise NoAnswer(f"{self._base}{path} answers {status}: {one_line(text.decode('utf-8', 'replace'), 200)}")
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as failure:
            raise NoAnswer(f"the answer of {self._base}{path} is not JSON") from failure


def local(listen: str) -> str:
    """The URL of an address to listen on, from the host itself."""
    host, _colon, port = listen.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '[::]', '*') else host}:{port}"


# --- Metrics and alerts -----------------------------------------------------------------------------------------------


def monitoring(prometheus: str, alertmanager: str) -> dict[str, Any]:
    """{error, targets, watchdog, watchdog_error}: of each target host, job, health and last error."""
    found: dict[str, Any] = {"error": None, "targets": [], "watchdog": None, "watchdog_error": None}
    try:
        rows = Http(local(prometheus)).document("/api/v1/targets?state=active")["data"]["activeTargets"]
        found["targets"] = [
            {
                "host": one_line(row["labels"].get("host", ""), 200),
                "job": one_line(row["labels"].get("job", ""), 100),
                "health": one_line(row["health"], 20),
                "error": one_line(row.get("lastError") or "", 300),
            }
            for row in _telling(rows)
        ]
    except NoAnswer as failure:
        found["error"] = one_line(failure, 300)
    except (KeyError, TypeError, AttributeError):
        found["error"] = "the answer of Prometheus cannot be read"
    try:
        alerts = Http(local(alertmanager)).document("/api/v2/alerts?active=true")
        found["watchdog"] = any(row["labels"].get("alertname") == WATCHDOG for row in alerts)
    except NoAnswer as failure:
        found["watchdog_error"] = one_line(failure, 300)
    except (KeyError, TypeError, AttributeError):
        found["watchdog_error"] = "the answer of Alertmanager cannot be read"
    return found


def _telling(targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """So many as may be: of very many, those that are well and no host's are left out first."""
    if len(targets) <= TARGETS_MOST:
        return targets
    return sorted(targets, key=lambda row: (row["health"] == "up", row["labels"].get("job") != "node"))[:TARGETS_MOST]


# --- Images -----------------------------------------------------------------------------------------------------------


def registry(server: str, authority: str, image: str, login: str) -> dict[str, Any]:
    """{error, image, pull_error, bytes, seconds}: whether it answers, and an image that was pulled to nowhere."""
    found: dict[str, Any] = {"error": None, "image": image, "pull_error": None, "bytes": None, "seconds": None}
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    try:
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as failure:
            raise NoAnswer(f"{authority} cannot be read: {failure.strerror}") from failure
        http = Http(f"https://{server}", context, headers)
        status, _text = http.ask("/v2/")
        if status not in (200, 401):
            raise NoAnswer(f"https://{server}/v2/ answers {status}")
    except NoAnswer as failure:
        found["error"] = one_line(failure, 300)
        return found
    if image:
        started = time.monotonic()
        try:
            found["bytes"] = pull(http, image)
            found["seconds"] = round(time.monotonic() - started, 3)
        except NoAnswer as failure:
            found["pull_error"] = one_line(failure, 300)
    return found


def pull(http: Http, image: str) -> int:
    """Reads all blobs of an image and compares their digests; how many bytes they had. Raises NoAnswer."""
    named = _IMAGE.fullmatch(image)
    if named is None:
        raise NoAnswer(f"{image} names no image: give it as catalogue/NAME:TAG")
    name, tag = named[1], named[2] or "latest"
    try:
        manifest = http.document(f"/v2/{name}/manifests/{tag}", accept=MANIFESTS)
        if "manifests" in manifest:
            manifest = http.document(f"/v2/{name}/manifests/{manifest['manifests'][0]['digest']}", accept=MANIFESTS)
        blobs = {str(row["digest"]): int(row["size"]) for row in (manifest["config"], *manifest["layers"])}
    except (KeyError, TypeError, ValueError, IndexError) as failure:
        raise NoAnswer(f"{image} has a manifest that cannot be read") from failure
    # The smallest first: of a large image it is enough to pull a part.
    count = 0
    for digest, size in sorted(blobs.items(), key=lambda row: row[1]):
        if not _DIGEST.fullmatch(digest) or (count and count + size > BLOBS_MOST):
            continue
        count += _read_blob(http, name, digest)
    return count


def _read_blob(http: Http, name: str, digest: str) -> int:
    hashed, count = hashlib.sha256(), 0
    with http.open(f"/v2/{name}/blobs/{digest}") as answer:
        if answer.status != 200:
            raise NoAnswer(f"the blob {digest} answers {answer.status}")
        try:
            while block := answer.read(1 << 20):
                hashed.update(block)
                count += len(block)
                if count > BLOBS_MOST:
                    return count
        except OSError as failure:
            raise NoAnswer(f"the blob {digest} breaks off: {failure}") from failure
    if f"sha256:{hashed.hexdigest()}" != digest:
        raise NoAnswer(f"the blob {digest} has other bytes than its digest says")
    return count


# --- Sessions ---------------------------------------------------------------------------------------------------------


def portal(
    port: int,
    token: str,
    http: Http | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    root: str = "/",
) -> dict[str, Any]:
    """{error, version, session, session_error, seconds}: session is whether one began and answered, null if untried."""
    found: dict[str, Any] = {"error": None, "version": None, "session": None, "session_error": None, "seconds": None}
    try:
        http = http or _portal_of(port, token, root)
        found["version"] = one_line(http.document("/hub/api/")["version"], 50)
    except NoAnswer as failure:
        found["error"] = one_line(failure, 300)
        return found
    except (KeyError, TypeError):
        found["error"] = "the hub does not tell its version"
        return found
    if token:
        try:
            found.update(_session(http, clock, sleep))
        except NoAnswer as failure:
            found.update(session=False, session_error=one_line(failure, 300))
    return found


def _portal_of(port: int, token: str, root: str) -> Http:
    """The portal of this host, which proves itself before the token is shown to it. Raises NoAnswer."""
    try:
        with open(below(root, PORTAL_SETTINGS), "rb") as file:
            url = _PORTAL(json_object(file.read(SETTINGS_MOST), SETTINGS_MOST), "it")["hub"]["public_url"]
        context = ssl.create_default_context(cafile=below(root, PORTAL_AUTHORITY))
    except (OSError, Malformed) as failure:
        raise NoAnswer(f"how the portal of this host is reached cannot be read: {failure}") from failure
    name = urllib.parse.urlsplit(url).hostname
    url = f"https://{name}{'' if port == 443 else f':{port}'}"
    return Http(url, context, {"Authorization": f"token {token}"} if token else {}, here=True)


def _session(http: Http, clock: Callable[[], float], sleep: Callable[[float], None]) -> dict[str, Any]:
    """Starts a session of the token's user, looks whether it answers, and ends it."""
    try:
        user = urllib.parse.quote(str(http.document("/hub/api/user")["name"]), safe="")
    except (KeyError, TypeError) as failure:
        raise NoAnswer("the hub does not tell whose token it is") from failure
    if _server(http, user):
        return {"session_error": f"{user} has a session already, which is left alone"}
    started = clock()
    try:
        http.document(f"/hub/api/users/{user}/server", "POST", SESSION)
        while not (row := _server(http, user)) or row.get("ready") is not True:
            if row is None and clock() - started > 2 * SESSION_POLL_S:
                raise NoAnswer("the session ended before it answered")
            if clock() - started > SESSION_S:
                raise NoAnswer(f"the session is not ready after {SESSION_S:.0f} s")
            sleep(SESSION_POLL_S)
        url = str(row.get("url") or "")
        # Where sessions have origins of their own, the hub tells the whole of it.
        (http.below(url) if "://" in url else http).document(f"/user/{user}/api/status")
        return {"session": True, "seconds": round(clock() - started, 1)}
    finally:
        with contextlib.suppress(NoAnswer):
            http.ask(f"/hub/api/users/{user}/server", "DELETE")


def _server(http: Http, user: str) -> Mapping[str, Any] | None:
    """The user's session; None without one."""
    try:
        row = http.document(f"/hub/api/users/{user}")["servers"].get("")
    except (KeyError, TypeError, AttributeError) as failure:
        raise NoAnswer("the hub's answer cannot be read") from failure
    return row if isinstance(row, Mapping) else None


# --- A login ----------------------------------------------------------------------------------------------------------


def login(path: str = LOGIN_PATH, programs: Mapping[str, Sequence[str]] = PROGRAMS) -> dict[str, Any]:
    """{missing}: what people expect of a login and do not find."""
    return {
        "missing": [
            what for what, names in programs.items() if not any(shutil.which(name, path=path) for name in names)
        ]
    }
