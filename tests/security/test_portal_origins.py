# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's own server in the place of JupyterLab, against whoever opens its page, or whose session has its port.

JupyterHub, its proxy and Chromium are the real ones, and the scheduler is a stand-in.
"""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit import browser as chromium
from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import NAME, Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, job_of, ready, server_of

pytestmark = pytest.mark.slow
bob = portal_site.bob
alice = portal_site.alice

FIRST_PORT = 22000
# It wants no login, and a worker of its own for the whole origin; and it takes every port that becomes free.
SERVER = '''#!{python}
import os, ssl, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"""<!doctype html><title>x</title><body>bob was here<script>
const told = {{}};
const show = (name, what) => {{ told[name] = what; document.title = JSON.stringify(told); }};
navigator.serviceWorker.register("/user/bob/worker.js", {{scope: "/"}}).then(
  () => show("worker", "taken"), why => show("worker", why.name));
const other = window.open("/hub/login");
setTimeout(() => {{
  try {{ show("opened", other.document.body.innerText.includes("Username") ? "read" : "blank"); }}
  catch (why) {{ show("opened", why.name); }}
}}, 15000);
fetch("/hub/login", {{credentials: "include"}}).then(
  answer => answer.text().then(text => show("fetched", text.includes("Username") ? "read" : "blank")),
  why => show("fetched", why.name));
</script></body>"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        is_worker = self.path.endswith(".js")
        self.send_header("Content-Type", "text/javascript" if is_worker else "text/html")
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Clear-Site-Data", '"cookies", "storage"')
        self.send_header("Strict-Transport-Security", "max-age=0")
        self.end_headers()
        self.wfile.write(b"self.onfetch = () => {{}};" if is_worker else PAGE)

    def log_message(self, *words):
        pass


def serve(port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["JUPYTERHUB_SSL_CERTFILE"], os.environ["JUPYTERHUB_SSL_KEYFILE"])
    while True:
        try:
            server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        except OSError:
            time.sleep(0.05)
            continue
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.serve_forever()


first = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
threading.Thread(target=serve, args=(first,), daemon=True).start()
while not os.path.exists("take"):
    time.sleep(0.1)
serve(first + 1)
'''


@pytest.fixture(scope="module", params=[True, False], ids=["own-origins", "one-origin"])
def portal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    # Both sessions begin with the same port.
    ports = {"session_port_first": FIRST_PORT, "session_port_last": FIRST_PORT + 4}
    with Portal(tmp_path_factory.mktemp("portal"), own_origins=request.param, **ports) as made:
        yield made


@pytest.fixture(scope="module")
def evil(portal: Portal, bob: Browser) -> str:
    """The page of bob's server."""
    program = portal.base / "home" / "bob" / "evil" / "bin" / "jupyterhub-singleuser"
    program.parent.mkdir(parents=True)
    program.write_text(SERVER.format(python=portal.environment / "bin" / "python"))
    program.chmod(0o755)
    subprocess.run(["chown", "-R", str(PEOPLE["bob"]), program.parents[1]], check=True)
    bob.start(environment="~/evil", gpus="0")
    row = portal.until(lambda: (row := server_of(bob, "bob")).get("ready") and row, 120, "bob's server does not start")
    origin = portal.url.replace("://", "://bob.") if portal.own_origins else portal.url
    assert row["url"] == (f"{origin}/user/bob/" if portal.own_origins else "/user/bob/")
    return f"{origin}/user/bob/"


def test_a_page_of_a_session_gets_no_worker_and_no_page_of_the_hub(portal: Portal, evil: str, tmp_path: Path) -> None:
    rules = f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP *.{NAME} 127.0.0.1"
    words = [
        rules,
        "--ignore-certificate-errors",
        "--disable-popup-blocking",
        "--dump-dom",
        "--virtual-time-budget=60000",
    ]
    done = chromium.draw(chromium.find_chromium(), evil, tmp_path, 1280, 1, rules, *words)
    assert "bob was here" in done.stdout
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title
    told = title[1].replace("&quot;", '"')
    assert '"worker":"SecurityError"' in told
    # Where all is one origin it can: that is what docs/portal.md says of it.
    assert ('"opened":"SecurityError"' if portal.own_origins else '"opened":"read"') in told
    assert ('"fetched":"TypeError"' if portal.own_origins else '"fetched":"read"') in told


def test_what_a_session_may_not_say_to_a_browser_the_proxy_drops(portal: Portal, evil: str) -> None:
    headers = {name.lower(): value for name, value in Browser(portal).get(evil).headers.items()}
    assert "service-worker-allowed" not in headers
    assert "clear-site-data" not in headers
    assert headers["strict-transport-security"] == "max-age=31536000"


def test_the_hub_is_on_its_own_origin_alone(portal: Portal, evil: str) -> None:
    if not portal.own_origins:
        pytest.skip("there is one origin")
    origin = evil.partition("/user/")[0]
    for path in ("/hub/login", "/hub/home", "/hub/api/user", "/hub", "/hub?x", "/"):
        answer = Browser(portal).redirect_of(f"{origin}{path}")
        assert answer.startswith(f"{portal.url}/hub"), path
    assert Browser(portal).ask(f"{origin}/hub/login", b"username=alice&password=x").status == 421
    for name in (f"bob.{NAME}.", f"x.bob.{NAME}", "192.0.2.1", "evil.example"):
        answer = Browser(portal).get("/hub/login", Host=f"{name}:{portal.port}")
        assert answer.url.startswith(portal.url)
        assert Browser(portal).ask("/hub/login", b"x=y", Host=f"{name}:{portal.port}").status == 421


def test_nobody_is_in_the_hubs_log_with_an_address_of_choice(portal: Portal, evil: str) -> None:
    forged = {"X-Real-IP": "203.0.113.9", "X-Forwarded-For": "203.0.113.9"}
    # With what bob's session has, at the hub itself; and through the proxy.
    assert portal.ask_hub("/hub/login?by=bob", None, "user-bob", **forged) == 200
    assert (
        Browser(portal).get("/hub/login?by=proxy", X_Real_IP="203.0.113.9", X_Forwarded_For="203.0.113.9").status == 200
    )
    # What asks for a WebSocket takes another way through the proxy.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    lines = ["GET /hub/login?by=upgrade HTTP/1.1", f"Host: {NAME}:{portal.port}", "Connection: Upgrade"]
    lines += ["Upgrade: websocket", *(f"{name}: {value}" for name, value in forged.items()), "", ""]
    with context.wrap_socket(socket.create_connection(("127.0.0.1", portal.port), 20)) as made:
        made.sendall("\r\n".join(lines).encode())
        assert made.recv(4096)
    for way in ("bob", "proxy", "upgrade"):
        portal.until(lambda way=way: f"/hub/login?by={way}" in portal.log(), 20, "it is not in the log")
    assert "203.0.113.9" not in portal.log()


def test_a_session_at_the_hub_itself_guesses_from_one_place(portal: Portal, evil: str) -> None:
    own = portal.base / "state" / "tls" / "user-bob"
    hub = SimpleNamespace(url=f"https://127.0.0.1:{portal.hub_port}", own_origins=False)

    def guess(number: int) -> int:
        browser = Browser(hub, (own / "user-bob.crt", own / "user-bob.key"))
        forged = {"X_Real_IP": f"192.0.2.{number}", "X_Forwarded_For": f"198.51.100.{number}"}
        page = browser.get("/hub/login", **forged)
        # A domain of the site makes no other name of it.
        fields = {"username": f"stranger{'@example.org' if number % 2 else ''}", "password": f"wrong{number}"}
        data = urllib.parse.urlencode(fields).encode()
        return browser.ask(f"/hub/login?_xsrf={browser.token(page.text)}", data, Referer=page.url, **forged).status

    assert [guess(number) for number in range(7)] == [403] * 5 + [429] * 2


def test_without_a_certificate_nobody_asks_the_hub_itself(portal: Portal) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # It is refused by TLS, which tells it only once somebody reads.
    with pytest.raises(OSError, match=r"\S"):
        urllib.request.urlopen(f"https://127.0.0.1:{portal.hub_port}/hub/login", timeout=20, context=context)


def test_cookies_are_those_of_their_host(portal: Portal, evil: str) -> None:
    browser = Browser(portal)
    browser.log_in("alice")
    hub = {cookie.name: cookie for cookie in browser.cookies}
    logins = [one for name, one in hub.items() if "login" in name]
    assert [one.name.startswith("__Host-") for one in logins] == [portal.own_origins]
    lax = {name: {one.get_nonstandard_attr(word) for word in ("SameSite", "samesite")} for name, one in hub.items()}
    assert {name: one.secure and "Lax" in lax[name] for name, one in hub.items()} == dict.fromkeys(hub, True)


def test_whoever_has_the_port_is_not_taken_for_the_session(portal: Portal, evil: str, alice: Browser) -> None:
    alice.start(gpus="0")
    row = ready(portal, alice, "alice")
    status = alice.get("/user/alice/api/status")
    assert (status.status, "bob was here" in status.text) == (200, False)
    assert f"listens on 127.0.0.1, at the ports: {FIRST_PORT}" in portal.log()
    # Its own port is taken the moment it ends.
    (portal.base / "home" / "bob" / "take").touch()
    portal.end(job_of(portal, "alice")["id"], "COMPLETED")
    end = time.monotonic() + 60
    while server_of(alice, "alice").get("ready") and time.monotonic() < end:
        for path in ("/user/alice/api/status", "/user/alice/lab", row["url"]):
            assert "bob was here" not in alice.get(path).text
    assert not server_of(alice, "alice").get("ready")
