# SPDX-License-Identifier: GPL-3.0-or-later
"""Twenty people with a session each, with the real JupyterHub and proxy: both are killed while the sessions run.

What runs in the sessions is a small server in the place of JupyterLab, twenty of which would need more than there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import Portal, server_of

pytestmark = pytest.mark.slow

# For what takes seconds where nothing else runs.
PATIENCE_S = 300
PEOPLE = {f"person{number:02}": 42100 + number for number in range(1, 21)}
NODES = [
    {"name": f"gpu{number}", "address": "127.0.0.1", "gpus": 4, "type": "a100", "cpus": 8, "memory": 32768, "up": True}
    for number in range(1, 6)
]
# It answers what the hub asks of a server, and who it is. As a session does, it proves itself, and takes the next port
# where that of a session of another test is in its way.
PROGRAM = """#!/usr/bin/python3 -I
import contextlib, json, os, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        row = {"path": self.path, "user": os.environ["JUPYTERHUB_USER"], "pid": os.getpid(), "uid": os.getuid()}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(row).encode())

    def log_message(self, *words):
        pass

where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
for port in range(where.port, where.port + 5):
    with contextlib.suppress(OSError):
        server = ThreadingHTTPServer((where.hostname, port), Handler)
        break
proof = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
proof.load_cert_chain(os.environ["JUPYTERHUB_SSL_CERTFILE"], os.environ["JUPYTERHUB_SSL_KEYFILE"])
server.socket = proof.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    base = tmp_path_factory.mktemp("portal")
    program = base / "small" / "bin" / "jupyterhub-singleuser"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environments = [{"name": "small", "path": str(base / "small")}]
    with Portal(base, NODES, PEOPLE, environments=environments) as made:
        yield made


def started(portal: Portal, name: str) -> Browser:
    browser = Browser(portal)
    browser.patience_s = 120
    portal.until(lambda: browser.log_in(name).status == 200, PATIENCE_S, f"{name} cannot log in")
    # Who gets no answer looks whether it starts, before the button is pressed again.
    portal.until(
        lambda: server_of(browser, name) or browser.start(gpus="1", environment="small").status == 200,
        PATIENCE_S,
        f"{name} cannot press the button",
    )
    return browser


@pytest.fixture(scope="module")
def browsers(portal: Portal) -> dict[str, Browser]:
    """All press the button at the same time."""
    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        return dict(pool.map(lambda name: (name, started(portal, name)), PEOPLE))


def answers(portal: Portal, browsers: dict[str, Browser]) -> dict[str, dict]:
    """What the session of each says through the proxy, when the hub has all of them."""

    def all_ready() -> bool:
        return all(server_of(browser, name).get("ready") for name, browser in browsers.items())

    portal.until(all_ready, PATIENCE_S, "not all sessions are ready")
    found = {}
    for name, browser in browsers.items():
        answer = portal.until(
            lambda name=name, browser=browser: (one := browser.get(f"/user/{name}/x")).status == 200 and one,
            # A proxy that was started again is told of the sessions by the hub every 20 seconds.
            PATIENCE_S,
            f"the session of {name} does not answer",
        )
        found[name] = answer.json()
    return found


def test_all_start_and_each_reaches_its_own(portal: Portal, browsers: dict[str, Browser]) -> None:
    told = answers(portal, browsers)
    assert {name: (row["user"], row["uid"]) for name, row in told.items()} == {
        name: (name, number) for name, number in PEOPLE.items()
    }
    jobs = portal.jobs()
    assert sorted(job["user"] for job in jobs) == sorted(PEOPLE)
    assert {job["state"] for job in jobs} == {"RUNNING"}
    # Nobody has the GPU, or the port, of another.
    assert len({(job["node"], *job["positions"]) for job in jobs}) == len(PEOPLE)
    ports = {server_of(browser, name)["url"] for name, browser in browsers.items()}
    assert len(ports) == len(PEOPLE)


@pytest.mark.parametrize("killed", [["hub"], ["proxy"], ["hub", "proxy"]])
def test_all_are_found_again_by_a_hub_and_a_proxy_that_were_killed(
    portal: Portal, browsers: dict[str, Browser], killed: list[str]
) -> None:
    before = answers(portal, browsers)
    for name in killed:
        portal.kill(name)
    if "proxy" in killed:
        portal.start_proxy()
    if "hub" in killed:
        portal.start_hub()
    portal.until(lambda: Browser(portal).get("/hub/login").status == 200, PATIENCE_S, "the proxy does not answer")
    after = answers(portal, browsers)
    assert {name: row["pid"] for name, row in after.items()} == {name: row["pid"] for name, row in before.items()}
    assert len(portal.jobs()) == len(PEOPLE)


def test_a_hub_that_is_killed_while_twenty_press_the_button_leaves_no_session_that_nobody_has(
    portal: Portal, browsers: dict[str, Browser]
) -> None:
    """Each is one of its user afterwards, or was never one."""

    def second() -> list[str]:
        """Whose second sessions there are."""
        jobs = [job for job in portal.jobs() if job["chdir"].endswith("-second")]
        return sorted(job["user"] for job in jobs if job["state"] in ("PENDING", "RUNNING"))

    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        for browser in browsers.values():
            pool.submit(browser.start, "second", gpus="0", environment="small")
        # In the midst of it; who has got no answer by then gets none.
        portal.until(second, PATIENCE_S, "nobody gets a second session")
        portal.kill("hub")
    portal.start_hub()

    def is_settled() -> bool:
        ready = {name for name, browser in browsers.items() if server_of(browser, name, "second").get("ready")}
        return second() == sorted(ready)

    portal.until(is_settled, PATIENCE_S, "there are sessions that nobody has")
    answers(portal, browsers)
