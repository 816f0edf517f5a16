# SPDX-License-Identifier: GPL-3.0-or-later
"""Somebody's browser for a portal: cookies, forms and redirects, without drawing. It needs nothing beside Python."""

from __future__ import annotations

import http.client
import http.cookiejar
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

PASSWORD = "correct horse"
# The host of a portal on this machine.
NAME = "portal.example.org"
# Where portals are that no DNS knows; their sessions have names of their own below theirs.
ADDRESSES = {NAME: "127.0.0.1"}


class Place(Protocol):
    """A portal.

    :ivar url: where it is reached.
    :ivar own_origins: whether the sessions of each user have a host of their own.
    """

    url: str
    own_origins: bool


class Answer:
    def __init__(self, status: int, url: str, data: bytes, headers: Mapping[str, str]) -> None:
        self.status, self.url, self.data, self.headers = status, url, data, headers
        self.text = data.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.text)


def address_of(host: str) -> str:
    """Where a portal or a session of it is; other hosts are where their name is."""
    return next((place for name, place in ADDRESSES.items() if f".{host}".endswith(f".{name}")), host)


class _Here(http.client.HTTPSConnection):
    """Asks a portal and its sessions at their address, whatever they are called."""

    def connect(self) -> None:
        host = self.host
        self.host = address_of(host)
        try:
            super().connect()
        finally:
            self.host = host


class _Handler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Here, request, context=self._context)


class Redirects(urllib.request.HTTPRedirectHandler):
    are_followed = True

    def redirect_request(self, *given: Any) -> urllib.request.Request | None:
        return super().redirect_request(*given) if self.are_followed else None


def origin_of(portal: Place, path: str) -> str:
    """Where a path is: sessions are elsewhere than the hub."""
    found = re.match("/user/([a-z0-9-]+)/", path)
    return portal.url.replace("://", f"://{found[1]}.") if found and portal.own_origins else portal.url


class Browser:
    """Somebody's cookies, and what pages say."""

    def __init__(self, portal: Place, certificate: tuple[Path, Path] | None = None) -> None:
        """:param certificate: and its key, with which it proves itself."""
        self.portal, self.cookies, self.name = portal, http.cookiejar.CookieJar(), ""
        self.patience_s = 30.0
        self._redirects = Redirects()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(*certificate)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _Handler(context=context),
            urllib.request.HTTPCookieProcessor(self.cookies),
            self._redirects,
        )

    def ask(self, path: str, data: bytes | None = None, method: str | None = None, **headers: str) -> Answer:
        url = path if "://" in path.partition("?")[0] else f"{origin_of(self.portal, path)}{path}"
        request = urllib.request.Request(
            url, data, {name.replace("_", "-"): value for name, value in headers.items()}, method=method
        )
        try:
            with self._opener.open(request, timeout=self.patience_s) as answer:
                return Answer(answer.status, answer.url, answer.read(), answer.headers)
        except urllib.error.HTTPError as answer:
            return Answer(answer.code, answer.url, answer.read(), answer.headers)
        except OSError as why:
            return Answer(0, url, str(why).encode(), {})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask(path, **headers)

    def redirect_of(self, path: str) -> str:
        """Where an answer leads, without going there."""
        self._redirects.are_followed = False
        try:
            answer = self.get(path)
        finally:
            self._redirects.are_followed = True
        assert answer.status in (301, 302, 303), answer.text
        return answer.headers["Location"]

    def first_event(self, path: str, about: str) -> dict[str, Any]:
        """The first event of a stream whose message has something in it, among the first hundred lines."""
        with self._opener.open(f"{self.portal.url}{path}", timeout=self.patience_s) as stream:
            for _number in range(100):
                line = stream.readline().decode()
                if line.startswith("data: ") and about in line:
                    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    return found
        return {}

    def token(self, page: str) -> str:
        """What a form of the page has to send along."""
        found = re.search(r'(?:name="_xsrf" value=|_xsrf=|xsrf_token: )"?([^"&\s]+)', page)
        assert found, page[-2000:]
        return found[1]

    def post(self, path: str, page: Answer, **fields: str) -> Answer:
        return self.ask(
            f"{path}{'&' if '?' in path else '?'}_xsrf={self.token(page.text)}",
            urllib.parse.urlencode(fields).encode(),
            Referer=page.url,
        )

    def log_in(self, name: str, password: str = PASSWORD) -> Answer:
        self.name = name
        page = self.get("/hub/login")
        return self.post("/hub/login", page, username=name, password=password)

    def start(self, server: str = "", **options: str) -> Answer:
        """Fill in the form and press the button."""
        fields = {"gpus": "1", "cpus": "1", "memory_gib": "1", "hours": "1", "model": "", "environment": "default"}
        path = "/hub/spawn" + (f"/{self.name}/{server}" if server else "")
        page = self.get(path)
        return self.post(path, page, **{**fields, **options})
