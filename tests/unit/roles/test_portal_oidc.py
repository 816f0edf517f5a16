# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins of the portal by OpenID Connect, with the real JupyterHub and a mock of a provider."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import pytest

from tests.unit.roles.portal_browser import Answer, Browser
from tests.unit.roles.portal_site import Portal

pytestmark = pytest.mark.slow

CLIENT, SECRET = "portal", "the-secret-of-the-portal"


class MockProvider:
    """A mock of a provider: whoever comes is logged in there already, as `claims` say.

    It asks for what a provider asks for: the client's secret, a code once, and the proof of who has asked for it.
    """

    def __init__(self, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.claims: dict[str, Any] = {}
        self.callback = ""
        self._codes: dict[str, dict[str, str]] = {}
        self._tokens: set[str] = set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path)
                if path.path == "/authorize":
                    self._reply(302, "", Location=provider.code(dict(parse_qsl(path.query))))
                elif self.headers["Authorization"] in {f"Bearer {token}" for token in provider._tokens}:
                    self._reply(200, json.dumps(provider.claims))
                else:
                    self._reply(401, "{}")

            def do_POST(self) -> None:
                given = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                token = provider.token(given, self.headers["Authorization"] or "")
                self._reply(200 if token else 400, json.dumps({"access_token": token, "token_type": "Bearer"}))

            def _reply(self, status: int, text: str, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_given: object) -> None:
                """A test says what went wrong."""

        self.server = ThreadingHTTPServer((address, 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http{'s' if tls else ''}://{address}:{self.server.server_port}"

    def options(self) -> dict[str, Any]:
        """What a portal is told of it."""
        return {
            "client_id": CLIENT,
            "client_secret": SECRET,
            "oauth_callback_url": self.callback,
            **{f"{name}_url": f"{self.url}/{name}" for name in ("authorize", "token")},
            "userdata_url": f"{self.url}/userinfo",
            "username_claim": "email",
            "scope": ["openid", "email"],
        }

    def code(self, asked: dict[str, str]) -> str:
        """Where a browser goes on with a code."""
        assert (asked["client_id"], asked["response_type"], asked["redirect_uri"]) == (CLIENT, "code", self.callback)
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return f"{self.callback}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, given: dict[str, str], authorization: str) -> str:
        """A token for a code, or nothing."""
        asked = self._codes.pop(given.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        is_client = authorization == f"Basic {basic}" or given.get("client_secret") == SECRET
        proof = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        if asked is None or not is_client:
            return ""
        if asked["code_challenge"] != base64.urlsafe_b64encode(proof).rstrip(b"=").decode():
            return ""
        token = secrets.token_hex(8)
        self._tokens.add(token)
        return token


@pytest.fixture(scope="module")
def provider() -> Iterator[MockProvider]:
    made = MockProvider()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def portal(provider: MockProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    made = Portal(tmp_path_factory.mktemp("portal"))
    # Its address is known only now.
    provider.callback = f"{made.url}/hub/oauth_callback"
    login = {"kind": "oidc", "pam_service": "baremetal-gpu-portal", "options": provider.options()}
    made.change_settings(hub={"login": login})
    with made:
        yield made


def log_in(portal: Portal, provider: MockProvider, browser: Browser, **claims: Any) -> Answer:
    """Press the button of the page of logins."""
    provider.claims = {"sub": "1", **claims}
    return browser.get("/hub/oauth_login")


def is_in(browser: Browser) -> bool:
    return "/hub/now" in browser.get("/hub/now").url


def test_a_person_of_the_sites_domain_is_its_account(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    answer = log_in(portal, provider, browser, email="alice@example.org", email_verified=True)
    assert answer.status == 200
    assert browser.get("/hub/now/data").json()["me"] == "alice"


def test_a_provider_may_say_in_words_that_an_address_is_verified(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    assert log_in(portal, provider, browser, email="bob@example.org", email_verified="true").status == 200
    assert browser.get("/hub/now/data").json()["me"] == "bob"


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"email": "alice@example.com"}, "it is of another domain"),
        ({"email": "alice@example.org@example.com"}, "it is of another domain"),
        ({"email": "alice@example.org.example.com"}, "it is of another domain"),
        *(
            (
                {"email": "alice@example.org", "email_verified": told},
                "has verified your address. To do: verify it there",
            )
            for told in (False, "false", None, "", 0, 1, [True])
        ),
        # Anybody's, who has given it to the provider as theirs.
        ({"email": "alice"}, "it has no domain"),
        ({"email": "\u212aevin@example.org"}, "it has letters that no account has"),
        ({"email": "nobody-here@example.org"}, "there is no such account on this host. To do: ask the operators"),
        ({"email": "root@example.org"}, "it is an account of the system"),
        ({"email": "../alice@example.org"}, "an account has lower case letters"),
        ({"email": "%s%(x)s@example.org"}, "an account has lower case letters"),
        ({"email": "<script>x()</script>@example.org"}, "&lt;script&gt;x()&lt;/script&gt;"),
    ],
)
def test_others_are_refused_and_told_why(
    portal: Portal, provider: MockProvider, claims: dict[str, Any], told: str
) -> None:
    browser = Browser(portal)
    answer = log_in(portal, provider, browser, **{"email_verified": True, **claims})
    assert answer.status == 403
    assert told in answer.text
    assert "<script>x()" not in answer.text
    assert not is_in(browser)


@pytest.mark.parametrize("email", [None, 7, ["alice@example.org"], {"alice": 1}])
def test_what_is_no_address_is_nobody(portal: Portal, provider: MockProvider, email: object) -> None:
    browser = Browser(portal)
    assert log_in(portal, provider, browser, email=email).status == 403
    assert not is_in(browser)


def test_a_provider_that_says_nothing_of_an_address_lets_nobody_in(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    answer = log_in(portal, provider, browser, email="alice@example.org")
    assert answer.status == 403
    assert "does not say that it has verified your address" in answer.text
    assert not is_in(browser)


def callback_of(portal: Portal, provider: MockProvider, browser: Browser) -> str:
    """Where the provider sends a browser, which does not go there yet."""
    provider.claims = {"sub": "1", "email": "alice@example.org", "email_verified": True}
    return browser.redirect_of(browser.redirect_of("/hub/oauth_login"))


def test_a_code_with_a_forged_state_is_refused(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    url = callback_of(portal, provider, browser)
    code = parse_qs(urlsplit(url).query)["code"][0]
    forged = base64.urlsafe_b64encode(json.dumps({"state_id": "0" * 32, "next_url": "/hub/"}).encode()).decode()
    for state in (forged, "", "x", quote("{}")):
        answer = browser.get(f"/hub/oauth_callback?code={code}&state={state}")
        assert answer.status == 400, answer.text
        assert not is_in(browser)


def test_a_link_with_somebody_elses_login_logs_nobody_in(portal: Portal, provider: MockProvider) -> None:
    """Who follows it would otherwise work in the account of whoever has made it."""
    url = callback_of(portal, provider, Browser(portal))
    victim = Browser(portal)
    assert victim.get(url).status == 400
    callback_of(portal, provider, victim)
    assert victim.get(url).status == 400
    assert not is_in(victim)


def test_a_code_is_good_once(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    url = callback_of(portal, provider, browser)
    assert browser.get(url).status == 200
    assert is_in(browser)
    assert Browser(portal).get(url).status == 400


def test_what_a_provider_says_of_an_error_stays_text(portal: Portal) -> None:
    text = "<script>x()</script>"
    answer = Browser(portal).get(f"/hub/oauth_callback?error=no&error_description={quote(text)}")
    assert answer.status == 400
    assert text not in answer.text


def test_a_login_leads_to_no_other_site(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    provider.claims = {"sub": "1", "email": "alice@example.org", "email_verified": True}
    answer = browser.get("/hub/oauth_login?next=https%3A%2F%2Fevil.example%2F")
    assert answer.url.startswith(portal.url)
