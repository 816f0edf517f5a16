# SPDX-License-Identifier: GPL-3.0-or-later
"""What people have, on the pages of the real JupyterHub: how full the home is, GPU hours, and environments to save.

Slurm is a stand-in. What CephFS tells of a home is in attributes of users, which the file system here has.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.unit import browser as chromium
from tests.unit.project.tree import ROOT
from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, job_of, ready, server_of, stop
from tests.unit.roles.test_portal_idle import SAMPLE, send, token_of
from tests.unit.roles.test_portal_page_browser import NO_POLICY

pytestmark = pytest.mark.slow
alice = portal_site.alice
bob = portal_site.bob

GIB = 1 << 30
# Writes down how wide a page is.
WIDEST = "setInterval(() => { document.body.dataset.widest = document.documentElement.scrollWidth; }, 100);"
# Chooses the first preset, and then a field below it; writes down what the form would send, and what is chosen.
CHOOSE = """
const seen = () => JSON.stringify([...new FormData(document.getElementById("spawn_form"))]);
document.getElementById("portal-preset-0").click();
document.body.dataset.preset = seen();
const cores = document.getElementById("portal-cpus");
cores.value = "99";
cores.dispatchEvent(new Event("input", { bubbles: true }));
document.body.dataset.chosen = document.querySelector("input[name=preset]:checked").id;
"""
# Of `full` the home takes directories and no byte more, as one on CephFS at its quota.
FULL = {"full": 42021}
LOCAL, NEARLY, NOT_THERE = "dana", "erin", "frank"
MORE = {LOCAL: 42022, NEARLY: 42023, NOT_THERE: 42024}
TORCH = """Name: torch
Version: 2.9.0
"""


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    made = Portal(tmp_path_factory.mktemp("portal"), people={**PEOPLE, **FULL, **MORE})
    holds(made, "alice", 42)
    holds(made, NEARLY, 46)
    full, number = home(made, "full"), FULL["full"]
    options = f"size=64k,mode=700,uid={number},gid={number}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", full], check=True)
    try:
        (full / "data").touch()
        with pytest.raises(OSError, match="No space left"):
            (full / "data").write_bytes(bytes(1 << 20))
        os.chown(full / "data", number, number)
        with made:
            yield made
    finally:
        subprocess.run(["umount", "--lazy", full], check=True)


def home(portal: Portal, name: str) -> Path:
    return portal.base / "home" / name


def holds(portal: Portal, name: str, used: int, quota: int = 50) -> None:
    """What CephFS tells of a home, in GiB."""
    os.setxattr(home(portal, name), "user.rbytes", str(used * GIB).encode())
    os.setxattr(home(portal, name), "user.max_bytes", str(quota * GIB).encode())


def of(portal: Portal, name: str) -> Browser:
    made = Browser(portal)
    assert made.log_in(name).status == 200
    return made


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


# --- the home and the hours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/hub/spawn", "/hub/home"])
def test_form_and_home_page_tell_how_full_the_home_is(alice: Browser, path: str) -> None:
    assert "Your home: 42.0 of 50.0 GiB used." in text_of(alice.get(path).text)


@pytest.mark.parametrize("path", ["/hub/spawn", "/hub/home"])
def test_a_home_that_is_nearly_full_is_a_warning_with_what_to_do(portal: Portal, path: str) -> None:
    page = of(portal, NEARLY).get(path).text
    told = "Your home is nearly full: 46.0 of 50.0 GiB used, 92 %. In a full home sessions start, but nothing can be"
    assert f"{told} saved. To do: remove what you do not need" in text_of(page)
    assert re.search(r'class="alert alert-warning"[^>]*>Your home is nearly full', page)


def test_of_a_home_on_another_file_system_nothing_is_told(portal: Portal) -> None:
    browser = of(portal, LOCAL)
    for path in ("/hub/spawn", "/hub/home"):
        assert "Your home" not in browser.get(path).text


def test_what_is_told_is_a_minute_old_at_most(portal: Portal) -> None:
    browser = of(portal, NOT_THERE)
    assert "Your home" not in browser.get("/hub/home").text
    holds(portal, NOT_THERE, 1)
    assert "Your home" not in browser.get("/hub/home").text
    portal.until(lambda: "Your home: 1.0 of 50.0 GiB used." in browser.get("/hub/home").text, 120, "it is not told")


def test_the_hours_and_what_runs_are_on_the_page_of_whoever_has_them(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="2")
    ready(portal, bob, "bob")
    number = job_of(portal, "bob")["id"]
    page = portal.until(
        lambda: "in 1 job." in (page := text_of(bob.get("/hub/home").text)) and page, 120, "no hours are told"
    )
    assert "Your GPU hours of the last 30 days: 0." in page
    assert re.search(rf"A session \(job {number}\): 2 GPUs on gpu[12] until 20", page)
    assert f"job {number}" not in text_of(of(portal, "alice").get("/hub/home").text)
    stop(portal, bob, "bob")
    assert "No session of yours runs or waits" in text_of(bob.get("/hub/home").text)


def test_a_session_is_extended_by_a_button_until_its_limit(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="1", hours="6")
    ready(portal, bob, "bob")
    page = bob.get("/hub/home")
    assert "Extend by 2 hours" in text_of(page.text)
    told = bob.post("/hub/portal/more", page, server="")
    assert told.status == 200
    assert "7 h 59 min left" in text_of(told.text)
    assert "Extend" not in text_of(told.text)
    told = bob.post("/hub/portal/more", page, server="")
    assert told.status == 409
    assert "it has 8 hours, and the portal allows no more than 8. To do: save your work" in text_of(told.text)
    stop(portal, bob, "bob")
    assert bob.post("/hub/portal/more", page, server="").status == 404


# --- a full home -----------------------------------------------------------------------------------------------------


def ask(browser: Browser, url: str, method: str, path: str, row: object = None) -> Any:
    page = browser.get(f"{url}lab")
    path_of = urlsplit(url).path
    token = next(one.value for one in browser.cookies if one.name == "_xsrf" and one.path == path_of)
    data = json.dumps(row).encode() if row is not None else None
    answer = browser.ask(f"{url}api/{path}?_xsrf={token}", data, method, Referer=page.url)
    assert answer.status in (200, 201, 204), answer.text
    return answer.json() if answer.text else None


def test_in_a_full_home_a_session_starts_computes_and_removes_what_fills_it(portal: Portal) -> None:
    browser, data = of(portal, "full"), home(portal, "full") / "data"
    before = data.stat().st_size
    assert before > 0
    browser.start(gpus="0")
    url = ready(portal, browser, "full")["url"]
    kernel = ask(browser, url, "POST", "kernels", {})
    assert kernel["id"]
    ask(browser, url, "DELETE", f"kernels/{kernel['id']}")
    ask(browser, url, "DELETE", "contents/data")
    (home(portal, "full") / "more").write_bytes(b"x" * 4096)
    stop(portal, browser, "full")


def test_in_a_full_home_a_session_in_an_image_says_what_it_needs(portal: Portal) -> None:
    browser = of(portal, "full")
    with pytest.raises(OSError, match="No space left"):
        (home(portal, "full") / "more").write_bytes(bytes(1 << 20))
    browser.start(gpus="0", environment="torch")
    page = portal.until(
        lambda: "needs a mebibyte in the home" in (page := browser.get("/hub/spawn-pending/full").text) and page,
        60,
        "nobody tells why",
    )
    assert "To do: start one in an environment that is not an image" in page
    (home(portal, "full") / "more").unlink()


# --- environments ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(portal: Portal, alice: Browser) -> dict:
    """A session in an environment of the home, in which one package is installed."""
    where = home(portal, "alice") / "envs" / "torch"
    package = where / "lib" / "python3.11" / "site-packages" / "torch-2.9.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(TORCH)
    (where / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (where / "bin").mkdir()
    program = where / "bin" / "jupyterhub-singleuser"
    program.write_text(f'#!/bin/sh\nexec {portal.environment}/bin/jupyterhub-singleuser "$@"\n')
    program.chmod(0o755)
    subprocess.run(["chown", "-R", str(PEOPLE["alice"]), home(portal, "alice") / "envs"], check=True)
    alice.start(gpus="0", environment="~/envs/torch")
    return ready(portal, alice, "alice")


def told(browser: Browser) -> str:
    found = re.search(r'role="status">(.*?)</p>', browser.get("/hub/environments").text, re.DOTALL)
    return html.unescape(found[1]) if found else ""


def save(browser: Browser, name: str) -> None:
    browser.post("/hub/environments/save", browser.get("/hub/environments"), server="", name=name)


def test_an_environment_of_the_home_is_saved_with_a_button_and_the_page_shows_how_it_is_made_again(
    portal: Portal, session: dict, alice: Browser
) -> None:
    page = alice.get("/hub/environments").text
    assert "Its environment is ~/envs/torch" in text_of(page)
    assert "gpu-environment restore ~/environments/torch.lock ~/envs/NAME" in page
    assert 'value="torch"' in page
    save(alice, "torch")
    text = portal.until(lambda: "has 1 packages" in told(alice) and told(alice), 60, "it is not saved")
    assert text.startswith("~/environments/torch.lock has 1 packages of ~/envs/torch; Make it again with: ")
    lock = home(portal, "alice") / "environments" / "torch.lock"
    assert "torch==2.9.0\n" in lock.read_text()
    assert lock.stat().st_uid == PEOPLE["alice"]
    # A lock is replaced.
    lock.write_text(lock.read_text().replace("2.9.0", "2.8.0"))
    save(alice, "torch")
    portal.until(lambda: "torch==2.9.0\n" in lock.read_text(), 60, "it is not saved again")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("notes", "is not the lock of an environment. To do: move it away, or give another name"),
        ("../x", "give a name of"),
    ],
)
def test_a_file_that_is_no_lock_stays_and_the_reason_is_told(
    portal: Portal, session: dict, alice: Browser, name: str, reason: str
) -> None:
    there = home(portal, "alice") / "environments" / "notes.lock"
    there.parent.mkdir(exist_ok=True)
    there.write_text("my own notes\n")
    os.chown(there.parent, PEOPLE["alice"], PEOPLE["alice"])
    os.chown(there, PEOPLE["alice"], PEOPLE["alice"])
    save(alice, name)
    portal.until(lambda: reason in told(alice), 60, "no reason")
    assert there.read_text() == "my own notes\n"
    assert not (home(portal, "alice") / "x.lock").exists()


def test_nobody_saves_an_environment_of_the_site_or_of_somebody_else(portal: Portal, session: dict) -> None:
    browser = of(portal, LOCAL)
    browser.start(gpus="0")
    ready(portal, browser, LOCAL)
    page = browser.get("/hub/environments")
    assert "You have no session at present that runs in an image, or in an environment of your home." in text_of(
        page.text
    )
    answer = browser.ask(
        f"/hub/environments/save?_xsrf={browser.token(page.text)}", b"server=&name=mine", Referer=page.url
    )
    assert answer.status == 404
    stop(portal, browser, LOCAL)


# --- for everybody ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A page of the hub, as Chromium has drawn it for somebody who is logged in."""
    program, profile = chromium.find_chromium(), tmp_path_factory.mktemp("profile")
    seen: dict[str, Any] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = seen["now"].get(self.path)
            data, kind = answer.data, answer.headers.get("Content-Type", "text/plain")
            if kind.startswith("text/html") and seen["axe"]:
                # It sees nothing of details that are closed.
                page = answer.text.replace("<title>", NO_POLICY, 1).replace("<details ", "<details open ")
                data = chromium.with_axe(page, "document.readyState === 'complete'").encode()
            elif kind.startswith("text/html") and seen["script"]:
                page = answer.text.replace("<title>", NO_POLICY, 1)
                data = page.replace("</body>", f"<script>{seen['script']}</script></body>").encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_given: object) -> None:
            """A test says what went wrong."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def draw(
            who: Browser, path: str, width: int, scheme: str, *more: str, axe: bool = False, script: str = ""
        ) -> Any:
            seen.update(now=who, axe=axe, script=script)
            words = ("--virtual-time-budget=20000", "--dump-dom", "--enable-logging=stderr", *more)
            address = f"http://127.0.0.1:{server.server_port}{path}"
            return chromium.draw(program, address, profile, width, chromium.SCHEMES[scheme], *words)

        yield draw
        server.shutdown()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (500, "light"), (500, "dark")])
@pytest.mark.parametrize(
    "path", ["/hub/home", "/hub/spawn/alice/second", "/hub/environments", "/hub/not-there", "/hub/invite"]
)
def test_axe_finds_nothing_in_anybodys_way(
    portal: Portal,
    session: dict,
    alice: Browser,
    drawn: Callable[..., Any],
    path: str,
    width: int,
    scheme: str,
) -> None:
    holds(portal, "alice", 46)
    portal.until(lambda: "nearly full" in alice.get("/hub/home").text, 120, "no warning")
    found = chromium.answer_of_axe(drawn(alice, path, width, scheme, axe=True))
    # JupyterHub itself gives the form its role once more.
    faults = [row for row in found["violations"] if row[0] != "aria-allowed-role"]
    assert faults == [], json.dumps(faults, indent=1)
    assert found["passed"] > 10


def test_a_preset_fills_the_fields_and_what_is_wrong_is_told_beside_its_field(
    portal: Portal, session: dict, alice: Browser, drawn: Callable[..., Any]
) -> None:
    page = drawn(alice, "/hub/spawn/alice/second", 1280, "light", script=CHOOSE).stdout
    found = re.search(r'data-preset="([^"]*)"', page)
    assert found
    fields = dict(json.loads(html.unescape(found[1])))
    assert {name: fields[name] for name in ("gpus", "model", "cpus", "memory_gib", "hours", "environment")} == {
        "gpus": "1",
        "model": "",
        "cpus": "2",
        "memory_gib": "4",
        "hours": "8",
        "environment": "default",
    }
    assert 'data-chosen="portal-preset-other"' in page
    assert re.search(r'id="portal-cpus-error"[^>]*>Cores is .99.\. To do: give a whole number from 1 to 4\.<', page)


def test_a_form_that_is_refused_comes_back_with_what_is_wrong_beside_its_field(alice: Browser) -> None:
    page = alice.start("second", cpus="99").text
    assert re.search(r'id="portal-cpus-error"[^>]*>Cores is &#39;99&#39;\. To do: give a whole number', page)
    assert 'id="portal-details" open' in page
    # The next one is asked anew.
    assert "Cores is" not in alice.get("/hub/spawn/alice/second").text


def computes(portal: Portal, bob: Browser) -> None:
    """A session of bob that has told what its GPUs do."""
    if not server_of(bob, "bob"):
        bob.start(gpus="2")
        ready(portal, bob, "bob")
    gpus = [{"use": use, "used_mib": used, "total_mib": 81920} for use, used in ((0.87, 12595), (0.34, 40960))]
    told = {**SAMPLE, "gpus": gpus}
    assert send(portal, told, Authorization=f"token {token_of(portal, 'bob')}") == 200


def test_the_home_page_tells_what_the_gpus_of_a_session_do_and_how_long_it_lasts(portal: Portal, bob: Browser) -> None:
    def seen() -> str:
        # The session itself tells every while that it sees no GPU.
        computes(portal, bob)
        return text_of(bob.get("/hub/home").text)

    line = "2 GPUs 34 to 87 % \u00b7 52.3 of 160 GiB of GPU memory"
    page = portal.until(lambda: line in (page := seen()) and page, 60, "it is not told")
    assert re.search(rf"[0-9]+ min left \u00b7 {line} Open Stop", page)
    assert bob.get("/hub/portal/idle").json()[""]["stops"] is False


def test_what_ended_last_is_started_again_with_one_button(portal: Portal) -> None:
    browser = of(portal, NEARLY)
    assert "again:" not in browser.get("/hub/home").text
    browser.start(gpus="1", hours="3")
    ready(portal, browser, NEARLY)
    stop(portal, browser, NEARLY)
    page = browser.get("/hub/home")
    assert "Start again: 1 GPU, 1 core, 1 GiB, 3 hours, default" in text_of(page.text)
    fields = dict(re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', page.text))
    action = re.search(r'action="(/hub/spawn/[^?"]*)', page.text)
    assert action
    browser.post(action[1], page, **fields)
    ready(portal, browser, NEARLY)
    stop(portal, browser, NEARLY)


@pytest.mark.parametrize(
    ("name", "path", "told", "width", "scheme"),
    [
        ("home", "/hub/home", "87 %", 1000, "light"),
        ("form", "/hub/spawn/alice/second", "Your home: 42.0", 1000, "light"),
        ("now", "/hub/now", "gpu1", 1000, "light"),
        ("phone", "/hub/home", "87 %", 500, "dark"),
    ],
)
def test_the_pictures_of_the_docs_show_the_pages(
    portal: Portal,
    session: dict,
    alice: Browser,
    bob: Browser,
    drawn: Callable[..., Any],
    tmp_path: Path,
    name: str,
    path: str,
    told: str,
    width: int,
    scheme: str,
) -> None:
    """`GPUOPS_PICTURES=docs/pictures` draws those of the docs anew."""
    holds(portal, "alice", 42)
    holds(portal, "bob", 42)
    who = bob if path == "/hub/home" else alice
    portal.until(lambda: name == "now" or "Your home: 42.0" in who.get(path).text, 120, "its home does not answer")
    file = Path(os.environ.get("GPUOPS_PICTURES") or tmp_path) / f"portal-{name}.png"

    def is_drawn() -> bool:
        computes(portal, bob)
        done = drawn(who, path, width, scheme, f"--screenshot={file.resolve()}", f"--window-size={width},900")
        return told in done.stdout

    portal.until(is_drawn, 120, f"it does not show {told}")
    assert chromium.size(file) == chromium.size(ROOT / "docs" / "pictures" / file.name) == (width, 900)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("home", "Open"),
        ("spawn/alice/second", "What do you need?"),
        ("now", "GPU"),
        ("environments", "Save an environment"),
    ],
)
def test_no_page_is_wider_than_a_phone_or_a_desk(
    portal: Portal,
    session: dict,
    alice: Browser,
    drawn: Callable[..., Any],
    tmp_path: Path,
    name: str,
    told: str,
    width: int,
    scheme: str,
) -> None:
    """`GPUOPS_SCREENS=/tmp/screens` keeps the pictures, to look at."""
    place = Path(os.environ.get("GPUOPS_SCREENS") or tmp_path)
    file = place / f"{name.partition('/')[0]}-{width}-{scheme}.png"
    done = drawn(alice, f"/hub/{name}", width, scheme, f"--screenshot={file.resolve()}", script=WIDEST)
    assert told in done.stdout
    widest = re.search(r'data-widest="([0-9]+)"', done.stdout)
    assert widest
    assert int(widest[1]) <= width
