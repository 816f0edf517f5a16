# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions of the real JupyterHub in an image, and its page on which people save what they have changed there.

Slurm and gpu-image are stand-ins: the containers are none.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import Answer, Browser
from tests.unit.roles.portal_site import IMAGE, SAVED, Portal, job_of, ready, stop

pytestmark = pytest.mark.slow
alice = portal_site.alice
bob = portal_site.bob

# Whoever does nothing for ten seconds is warned, so a warning shows that the session is measured.
POLICY = {"window_s": 7200.0, "first_warning_s": 7190.0, "last_warning_s": 15.0, "spared_s": 0.0, "gap_s": 30.0}


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    with Portal(tmp_path_factory.mktemp("portal"), idle={"default": POLICY, "sample_s": 1.0}) as made:
        yield made


@pytest.fixture(scope="module")
def session(portal: Portal, alice: Browser) -> dict:
    alice.start(gpus="0", environment="torch")
    return ready(portal, alice, "alice")


def home(portal: Portal, name: str = "alice") -> Path:
    return portal.base / "home" / name


def told(browser: Browser) -> str:
    """What the page says of the last time that a session was saved."""
    found = re.search(r'role="status">(.*?)</p>', browser.get("/hub/environments").text, re.DOTALL)
    return html.unescape(found[1]) if found else ""


def save(browser: Browser, name: str, server: str = "") -> Answer:
    return browser.post("/hub/environments/save", browser.get("/hub/environments"), server=server, name=name)


def test_the_form_offers_images_and_says_where_the_own_ones_are(alice: Browser) -> None:
    page = alice.get("/hub/spawn").text
    assert '<option value="torch">torch</option>' in page
    assert "an image such as reg1:5000/alice/lectures:v1" in page
    asked = "gpus=1&cpus=1&memory_gib=1&hours=1&environment=reg1:5000/alice/lectures:v1"
    assert alice.get(f"/hub/now/forecast?{asked}").json()["answer"] == "now"


@pytest.mark.parametrize("image", ["reg1:5000/bob/lectures:v1", "evil.example/alice/x", "reg1:5000/alice/x$(id)"])
def test_another_image_is_refused_with_what_may_be_named(portal: Portal, alice: Browser, image: str) -> None:
    before = len(portal.jobs())
    page = html.unescape(alice.start(environment=image).text)
    assert "there is no environment" in page
    assert "reg1:5000/alice/lectures:v1" in page
    assert len(portal.jobs()) == before


def test_a_session_in_an_image_is_a_session(portal: Portal, session: dict, alice: Browser, bob: Browser) -> None:
    assert (home(portal) / "ran").read_text() == f"{IMAGE}\n"
    assert alice.get("/user/alice/api/status").status == 200
    assert bob.get("/user/alice/api/status").status in (403, 404)
    # The program that measures is outside.
    portal.until(lambda: alice.get("/hub/portal/idle").json()[""]["level"] != "keep", 90, "it is not measured")


def test_what_the_session_proves_itself_with_is_in_a_file_of_its_user(portal: Portal, session: dict) -> None:
    shared = home(portal) / f"gpuops-jobs/portal-session/container-{job_of(portal, 'alice')['id']}"
    assert "JUPYTERHUB_API_TOKEN" in (shared / "variables").read_text()
    assert (shared / "variables").stat().st_mode & 0o777 == 0o600
    assert shared.stat().st_mode & 0o777 == 0o700


def test_its_user_saves_it_and_sees_how_far_it_is(portal: Portal, session: dict, alice: Browser) -> None:
    (home(portal) / "go").unlink(missing_ok=True)
    assert IMAGE in alice.get("/hub/environments").text
    save(alice, "lectures:v1")
    portal.until(lambda: "pushing reg1:5000/alice/lectures:v1" in told(alice), 30, "no progress")
    assert alice.get("/hub/environments").headers["Refresh"] == "3"
    (home(portal) / "go").touch()
    portal.until(lambda: f"reg1:5000/alice/lectures@{SAVED} is there" in told(alice), 30, "it is not saved")
    assert "Refresh" not in alice.get("/hub/environments").headers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("denied:v1", "denied: alice has 50.3 GiB of 50.0 GiB"),
        ("../bob/lectures", "such as reg1:5000/alice/lectures:v1"),
        ("Lectures", "such as reg1:5000/alice/lectures:v1"),
    ],
)
def test_what_is_not_saved_is_told_with_the_reason(
    portal: Portal, session: dict, alice: Browser, name: str, reason: str
) -> None:
    (home(portal) / "go").touch()
    save(alice, name)
    text = portal.until(lambda: reason in told(alice) and told(alice), 30, "no reason")
    assert "To do:" in text


def test_another_site_saves_nothing(session: dict, alice: Browser) -> None:
    before = told(alice)
    answer = alice.ask("/hub/environments/save", b"server=&name=evil:v1", Referer="https://evil.example/")
    assert answer.status == 403
    assert told(alice) == before


def test_nobody_saves_the_session_of_somebody_else(session: dict, bob: Browser) -> None:
    page = bob.get("/hub/environments")
    assert "You have no session at present that runs in an image" in page.text
    token = bob.token(page.text)
    answer = bob.ask(f"/hub/environments/save?_xsrf={token}", b"server=&name=mine:v1", Referer=page.url)
    assert answer.status == 404


def test_a_session_of_an_own_image_starts_by_its_name_and_the_form_remembers_it(
    portal: Portal, session: dict, alice: Browser
) -> None:
    stop(portal, alice, "alice")
    alice.start(environment="reg1:5000/alice/lectures:v1")
    ready(portal, alice, "alice")
    assert "reg1:5000/alice/lectures:v1" in alice.get("/hub/environments").text
    # What the one before has left is gone.
    (shared,) = (home(portal) / "gpuops-jobs/portal-session").glob("container-*")
    assert shared.name == f"container-{job_of(portal, 'alice')['id']}"
    stop(portal, alice, "alice")
    assert 'value="reg1:5000/alice/lectures:v1"' in alice.get("/hub/spawn").text
