# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the hub's users are, with the real JupyterHub: closed accounts, names that others get, operators, tokens."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import Answer, Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, job_of, ready, server_of

pytestmark = pytest.mark.slow
alice = portal_site.alice
bob = portal_site.bob

# What becomes of each.
FATES = {"nologin": 42021, "out": 42022, "deleted": 42023, "expired": 42024}
OTHERS = {**FATES, "renamed": 42031, "admin": 42032, "again": 42033}
ROOMY = [
    {"name": "gpu1", "address": "127.0.0.1", "gpus": 2, "type": "a100", "cpus": 64, "memory": 65536, "up": True},
]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    made = Portal(tmp_path_factory.mktemp("portal"), ROOMY, {**PEOPLE, **OTHERS}, sweep_s=8, admin_groups=["operators"])
    with (made.base / "etc" / "group").open("a") as group:
        group.write("operators:x:42200:admin\n")
    with made:
        yield made


def logged_in(portal: Portal, name: str) -> Browser:
    browser = Browser(portal)
    assert browser.log_in(name).status == 200
    return browser


def api(browser: Browser, method: str, path: str, row: object = None) -> Answer:
    page = browser.get("/hub/home")
    mark = "&" if "?" in path else "?"
    data = None if row is None else json.dumps(row).encode()
    url = f"{path}{mark}_xsrf={browser.token(page.text)}"
    return browser.ask(url, data, method, Referer=page.url, Content_Type="application/json")


def token_of(browser: Browser, name: str, **more: Any) -> str:
    answer = api(browser, "POST", f"/hub/api/users/{name}/tokens", more)
    assert answer.status == 201, answer.text
    token: str = answer.json()["token"]
    return token


def with_token(portal: Portal, path: str, token: str, method: str = "GET", data: bytes | None = None) -> Answer:
    kind = "application/json"
    return Browser(portal).ask(path, data, method, Authorization=f"token {token}", Content_Type=kind)


def state_of(portal: Portal, number: int) -> str:
    state: str = next(job for job in portal.jobs() if job["id"] == number)["state"]
    return state


# --- operators -------------------------------------------------------------------------------------------------------


def test_an_operator_sees_and_stops_sessions_and_can_be_nobody_else(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="0")
    ready(portal, bob, "bob")
    number = job_of(portal, "bob")["id"]
    admin = logged_in(portal, "admin")
    assert admin.get("/hub/admin").status == 200
    users = {row["name"]: row for row in api(admin, "GET", "/hub/api/users").json()}
    assert users["bob"]["servers"][""]["ready"]
    assert not users["admin"].get("admin")
    token = token_of(admin, "admin")
    for method, path, row in (
        ("POST", "/hub/api/users/bob/tokens", {}),
        ("GET", "/hub/api/users/bob/tokens", None),
        ("POST", "/hub/api/users/alice/server", {"gpus": 0}),
        ("POST", "/hub/api/users/alice/servers/x", {"gpus": 0}),
        ("POST", "/hub/api/users/mallory", {}),
        ("PATCH", "/hub/api/users/bob", {"admin": True}),
        ("PATCH", "/hub/api/users/admin", {"admin": True}),
        ("DELETE", "/hub/api/users/bob", None),
        ("POST", "/hub/api/groups/x", {}),
        ("POST", "/hub/api/shutdown", {}),
        ("POST", "/hub/api/shares/bob/", {"user": "admin"}),
        ("GET", "/hub/api/proxy", None),
        ("POST", "/hub/api/users/bob/admin-access", {}),
    ):
        data = None if row is None else json.dumps(row).encode()
        for answer in (api(admin, method, path, row), with_token(portal, path, token, method, data)):
            assert answer.status in (403, 404, 405), (method, path, answer.status, answer.text)
    assert admin.get("/user/bob/api/status").status in (403, 404)
    assert with_token(portal, "/user/bob/api/contents", token).status in (403, 404)
    assert admin.get("/hub/spawn/bob").status in (403, 404)
    assert state_of(portal, number) == "RUNNING"
    assert api(admin, "DELETE", "/hub/api/users/bob/server").status in (202, 204)
    portal.until(lambda: state_of(portal, number) == "CANCELLED", 30, "it is not stopped")
    assert api(bob, "DELETE", "/hub/api/users/alice/server").status in (403, 404)


def test_who_leaves_the_operators_stops_nobody_s(portal: Portal) -> None:
    admin = logged_in(portal, "admin")
    portal.change("group", lambda row: row[0] == "operators", lambda row: [*row[:3], ""])
    try:
        assert logged_in(portal, "admin").get("/hub/admin").status == 403
        # The hub has changed what the person may.
        assert admin.get("/hub/admin").status == 403
    finally:
        portal.change("group", lambda row: row[0] == "operators", lambda row: [*row[:3], "admin"])
    portal.kill("hub")
    portal.start_hub()
    assert logged_in(portal, "admin").get("/hub/admin").status == 200


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_has_an_end(portal: Portal, alice: Browser) -> None:
    told = api(alice, "POST", "/hub/api/users/alice/tokens", {}).json()
    ends = datetime.fromisoformat(told["expires_at"].replace("Z", "+00:00"))
    assert 29 < (ends - datetime.now(UTC)).days + 1 <= 31
    assert api(alice, "POST", "/hub/api/users/alice/tokens", {"expires_in": 365 * 86400}).status == 400


# --- accounts that are closed ----------------------------------------------------------------------------------------


def close(portal: Portal, name: str) -> None:
    if name == "nologin":
        portal.change("passwd", lambda row: row[0] == name, lambda row: [*row[:6], "/usr/sbin/nologin"])
    elif name == "out":
        portal.change(
            "group",
            lambda row: row[0] == "lab",
            lambda row: [*row[:3], ",".join(one for one in row[3].split(",") if one != name)],
        )
    elif name == "deleted":
        for file in ("passwd", "shadow"):
            portal.change(file, lambda row: row[0] == name, lambda row: [])
    else:
        portal.change("shadow", lambda row: row[0] == name, lambda row: [*row[:7], "1", ""])


@pytest.fixture(scope="module")
def closed(portal: Portal) -> dict[str, tuple[Browser, str, int]]:
    """People whose accounts were closed while their sessions ran, each with a browser, a token and a job."""
    found = {}
    for name in FATES:
        browser = logged_in(portal, name)
        browser.start(gpus="0")
        ready(portal, browser, name)
        token = token_of(browser, name)
        found[name] = (browser, token, job_of(portal, name)["id"])
        assert with_token(portal, f"/user/{name}/api/terminals", token).status == 200
    for name in FATES:
        close(portal, name)
    return found


@pytest.mark.parametrize("name", FATES)
def test_whoever_is_closed_keeps_no_session_no_token_and_no_login(
    portal: Portal, closed: dict[str, tuple[Browser, str, int]], name: str
) -> None:
    browser, token, number = closed[name]
    portal.until(lambda: state_of(portal, number) == "CANCELLED", 120, f"the session of {name} goes on")
    portal.until(lambda: with_token(portal, "/hub/api/user", token).status == 403, 60, "the token goes on")
    portal.until(lambda: "/hub/login" in browser.get("/hub/home").url, 60, "the login goes on")
    answer = browser.get(f"/user/{name}/api/status")
    assert answer.status != 200 or "/hub/login" in answer.url


def test_others_keep_theirs(portal: Portal, closed: dict[str, tuple[Browser, str, int]], alice: Browser) -> None:
    alice.start(gpus="0")
    ready(portal, alice, "alice")
    number, token = job_of(portal, "alice")["id"], token_of(alice, "alice")
    rounds = portal.log().count("does not end")
    portal.until(lambda: all(state_of(portal, job) != "RUNNING" for _b, _t, job in closed.values()), 120, "some go on")
    assert state_of(portal, number) == "RUNNING"
    assert with_token(portal, "/hub/api/user", token).status == 200
    assert portal.log().count("does not end") == rounds


def test_a_job_of_a_deleted_account_that_no_server_is_ends_beside_others(portal: Portal) -> None:
    """Two that nobody knows, of which one cannot be ended: the other one is."""
    script = "#!/bin/sh\n#SBATCH --job-name=portal-session\n#SBATCH --chdir=/tmp\nsleep 600\n"
    numbers = [int(portal.run("again", "sbatch", "--parsable", text=script)) for _count in range(3)]
    for file in ("passwd", "shadow"):
        portal.change(file, lambda row: row[0] == "again", lambda row: [])
    for number in numbers:
        portal.until(lambda number=number: state_of(portal, number) == "CANCELLED", 90, "it goes on")


# --- a name that somebody else gets ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("bob")
def test_a_name_that_somebody_else_gets_has_nothing_of_the_one_before(portal: Portal) -> None:
    before = logged_in(portal, "renamed")
    before.start(gpus="0")
    ready(portal, before, "renamed")
    token, number = token_of(before, "renamed"), job_of(portal, "renamed")["id"]
    for file in ("passwd", "group"):
        portal.change(
            file,
            lambda row: row[0] == "renamed",
            lambda row: [*row[:2], "42931", *(["42931"] if len(row) > 4 else []), *row[4 if len(row) > 4 else 3 :]],
        )
    home = portal.base / "home" / "renamed"
    shutil.rmtree(home)
    home.mkdir(mode=0o700)
    subprocess.run(["chown", "42931:42931", home], check=True)
    # Nothing is started by the token, whatever the hub has noticed until then.
    answer = with_token(portal, "/hub/api/users/renamed/servers/x", token, "POST", b'{"gpus": 0}')
    assert answer.status in (400, 403), answer.text
    portal.until(lambda: state_of(portal, number) == "CANCELLED", 60, "the session goes on")
    portal.until(lambda: Browser(portal).log_in("renamed").status == 200, 60, "the new person does not get in")
    after = logged_in(portal, "renamed")
    assert with_token(portal, "/hub/api/user", token).status == 403
    assert "/hub/login" in before.get("/hub/home").url
    after.start(gpus="0")
    ready(portal, after, "renamed")
    assert job_of(portal, "renamed")["uid"] == 42931
    # It is remembered by a hub that begins anew, too.
    kept = json.loads((portal.base / "state" / "uids.json").read_text())
    assert (kept["renamed"], kept["bob"]) == (42931, PEOPLE["bob"])


# --- a stop that fails, and a job that is queued again ---------------------------------------------------------------


def test_a_stop_that_fails_is_told_and_tried_again(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="0")
    ready(portal, bob, "bob")
    number = job_of(portal, "bob")["id"]
    portal.kill("helper")
    answer = api(bob, "DELETE", "/hub/api/users/bob/server")
    assert answer.status == 503
    assert f"job {number} of bob goes on: the program that submits gives no answer" in answer.json()["message"]
    assert "it could not be ended" in bob.get("/hub/spawn").text
    assert state_of(portal, number) == "RUNNING"
    (portal.base / "session.sock").unlink()
    portal.start_helper()
    portal.until(lambda: state_of(portal, number) == "CANCELLED", 90, "it goes on")


def test_a_session_whose_job_is_queued_again_has_ended_and_holds_nothing(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="1")
    ready(portal, bob, "bob")
    job = job_of(portal, "bob")
    assert job["requeue"] is False
    # As its user can have it.
    portal.end(job["id"], "REQUEUE")
    portal.until(lambda: not server_of(bob, "bob").get("ready"), 60, "the hub does not notice")
    assert "was queued again, which ends a session. To do: start it again" in bob.get("/hub/spawn").text
    portal.until(lambda: state_of(portal, job["id"]) == "CANCELLED", 60, "it holds its GPU")
