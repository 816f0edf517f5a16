# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions that nobody uses, with the real JupyterHub and JupyterLab: they measure themselves, their users are warned
and can keep them, and then the hub ends them and says why.

The window is half a minute. What the processors do is made up, so that the machine's own work counts for nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.unit.roles.portal_browser import Answer, Browser
from tests.unit.roles.portal_site import Portal, job_of, ready, server_of

pytestmark = pytest.mark.slow

POLICY = {"window_s": 40.0, "first_warning_s": 34.0, "last_warning_s": 15.0, "spared_s": 0.0, "gap_s": 30.0}
ENDS_S = 240


@pytest.fixture(scope="module")
def told() -> Iterator[list[dict]]:
    """What came to the site's webhook."""
    rows: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            rows.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Nothing on the screen."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rows.append({"url": f"http://127.0.0.1:{server.server_port}/"})
    yield rows
    server.shutdown()


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, told: list[dict]) -> Iterator[Portal]:
    idle = {"default": POLICY, "sample_s": 1.0, "webhook": told.pop()["url"]}
    with Portal(tmp_path_factory.mktemp("portal"), idle=idle) as made:
        yield made


def started(portal: Portal, name: str, **options: str) -> Browser:
    browser = Browser(portal)
    assert browser.log_in(name).status == 200
    browser.start(**options)
    ready(portal, browser, name)
    return browser


@pytest.fixture(scope="module")
def alice(portal: Portal) -> Browser:
    """She has left a kernel that does nothing."""
    browser = started(portal, "alice", gpus="0")
    token = f"token {token_of(portal, 'alice')}"
    answer = browser.ask("/user/alice/api/kernels", b"{}", Authorization=token)
    assert answer.status == 201, answer.text
    return browser


@pytest.fixture(scope="module")
def bob(portal: Portal) -> Browser:
    """Nobody can look at the GPU of his session."""
    return started(portal, "bob", gpus="1")


def state_of(browser: Browser, server: str = "") -> dict:
    return browser.get("/hub/portal/idle").json().get(server, {})


def token_of(portal: Portal, name: str) -> str:
    """What a session proves itself with."""
    text = (portal.slurm / str(job_of(portal, name)["id"]) / "script").read_text()
    found = re.search(r"export JUPYTERHUB_API_TOKEN=(\S+)", text)
    assert found
    return found[1]


def send(portal: Portal, row: object, **headers: str) -> int:
    """A sample, by the way that a session of bob takes; the status of the answer."""
    return portal.ask_hub("/hub/portal/sample", json.dumps(row).encode(), "user-bob", **headers)


def keep(browser: Browser, page: Answer, server: str = "") -> Answer:
    """Press the button of the warning."""
    return browser.post("/hub/portal/extend", page, server=server)


SAMPLE = {
    "server": "",
    "gpu_ratio": 1.0,
    "cores": 0.0,
    "kernel_busy": False,
    "kernel_at": 0.0,
    "terminal_at": 0.0,
    "traffic": 0.0,
}


def test_only_a_session_itself_can_tell_of_itself(portal: Portal, bob: Browser) -> None:
    assert send(portal, SAMPLE) == 403
    assert send(portal, SAMPLE, Authorization="token wrong") == 403
    mine = {"Authorization": f"token {token_of(portal, 'bob')}"}
    assert send(portal, {**SAMPLE, "server": "second"}, **mine) == 404
    assert send(portal, {**SAMPLE, "gpu_ratio": 2}, **mine) == 400
    assert send(portal, {**SAMPLE, "cores": "many"}, **mine) == 400
    assert send(portal, ["no sample"], **mine) == 400
    assert send(portal, SAMPLE, **mine) == 200
    page = bob.get("/hub/home")
    assert bob.ask("/hub/portal/sample", json.dumps(SAMPLE).encode(), Referer=page.url).status == 403


def test_jupyterlab_loads_what_shows_the_warning(bob: Browser) -> None:
    page = bob.get("/user/bob/lab").text
    settings = re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert settings
    (row,) = [one for one in json.loads(settings[1])["federated_extensions"] if one["name"] == "baremetal-gpu-portal"]
    assert (row["load"], row["extension"]) == ("static/remoteEntry.js", "./extension")
    script = bob.get("/user/bob/lab/extensions/baremetal-gpu-portal/static/remoteEntry.js")
    assert script.status == 200
    assert "_JUPYTERLAB" in script.text


def test_a_button_of_another_site_keeps_nothing(portal: Portal, bob: Browser) -> None:
    answer = bob.ask("/hub/portal/extend", b"server=", Referer="https://evil.example/", Origin="https://evil.example")
    assert answer.status == 403


def test_a_warning_stands_on_every_page_and_its_button_keeps_the_session(
    portal: Portal, alice: Browser, told: list[dict]
) -> None:
    page = portal.until(
        lambda: "is idle since" in (page := alice.get("/hub/home")).text and page, ENDS_S, "nobody is warned"
    )
    assert "Keep it" in page.text
    assert "is idle since" in state_of(alice)["text"]
    first = portal.until(lambda: [row for row in told if row["user"] == "alice"], 20, "nothing comes to the webhook")[0]
    assert (first["level"], first["server"]) == (1, "")
    assert "Your session is idle since" in first["text"]
    assert first["url"] == f"{portal.url}/hub/home"
    assert keep(alice, page).status == 200
    assert state_of(alice)["level"] == "keep"
    assert server_of(alice, "alice")["ready"]


def test_it_is_warned_twice_and_then_ended_and_the_form_says_why(
    portal: Portal, alice: Browser, told: list[dict]
) -> None:
    number = job_of(portal, "alice")["id"]
    before = len([row for row in told if row["user"] == "alice"])
    portal.until(lambda: not server_of(alice, "alice"), ENDS_S, "it does not end")
    levels = [row["level"] for row in told if row["user"] == "alice"][before:]
    assert levels == [1, 2]
    portal.until(
        lambda: next(job for job in portal.jobs() if job["id"] == number)["state"] == "CANCELLED", 60, "it still runs"
    )
    page = alice.get("/hub/spawn").text
    assert "it was ended because it was idle since" in page
    assert "To do: start it again" in page


def test_one_of_which_something_is_not_known_goes_on(portal: Portal, bob: Browser, told: list[dict]) -> None:
    assert job_of(portal, "bob")["state"] == "RUNNING"
    assert state_of(bob)["level"] == "keep"
    assert [row for row in told if row["user"] == "bob"] == []


def test_who_has_a_gpu_that_is_out_of_order_is_told_on_every_page_and_by_the_webhook(
    portal: Portal, bob: Browser, told: list[dict]
) -> None:
    mine = {"Authorization": f"token {token_of(portal, 'bob')}"}
    failed = [{"gpu": "GPU-8f6cd1ee", "code": "xid_79"}]
    text = "A GPU of your session is out of order: GPU-8f6cd1ee (xid_79)."

    def after_news(look: Callable[[], Any], is_told: Callable[[Any], object]) -> Any:
        """What is seen after such a sample, and before the session's own next one, which knows of no such GPU."""

        def try_it() -> Any:
            assert send(portal, {**SAMPLE, "failed": failed}, **mine) == 200
            found = look()
            return found if is_told(found) else None

        return portal.until(try_it, 60, "nobody is told")

    # JupyterLab asks for the first.
    state = after_news(lambda: state_of(bob), lambda found: found.get("text", "").startswith(text))
    assert state["keep"] is False
    page = after_news(lambda: bob.get("/hub/home").text, lambda found: text in found)
    assert "Keep it" not in page
    after_news(lambda: bob.get("/hub/now/data").json()["warnings"], lambda found: found and found[0].startswith(text))
    row = portal.until(lambda: [row for row in told if "failed" in row], 20, "nothing comes to the webhook")[0]
    assert (row["user"], row["failed"]) == ("bob", [{"gpu": "GPU-8f6cd1ee", "codes": ["xid_79"]}])
    other = Browser(portal)
    assert other.log_in("alice").status == 200
    assert after_news(lambda: other.get("/hub/now/data").json(), bool)["warnings"] == []
    assert text not in after_news(lambda: other.get("/hub/home").text, bool)
    portal.until(lambda: "text" not in state_of(bob), 30, "a GPU that is well again is still told of")


def test_one_that_has_ended_is_not_kept(portal: Portal, alice: Browser) -> None:
    page = alice.get("/hub/home")
    assert keep(alice, page).status == 404
    assert keep(alice, page, "second").status == 404
    assert "it was ended because it was idle since" in alice.get("/hub/spawn").text


def test_the_hub_tells_how_it_does(portal: Portal, bob: Browser) -> None:
    bob.start("second", environment="~/nothing")
    path = portal.base / "state" / "told.json"
    row = portal.until(
        lambda: (row := json.loads(path.read_text())) and row["starts"]["failed"] == 1 and row, 120, "it is not told"
    )
    assert row["sessions"] == {"run": 1, "wait": 0}
    assert row["starts"]["started"] == 2
    assert (row["idle_warnings"], row["idle_stops"]) == (3, 1)
    assert row["notices_failed"] == 0
    assert path.stat().st_mode & 0o777 == 0o600
