# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of users that are odd as hosts below the portal's: each has an origin of its own, which the wildcard covers."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.unit.roles.portal_browser import NAME, Browser
from tests.unit.roles.portal_site import Portal, job_of, ready

pytestmark = pytest.mark.slow

NAMES = ("hub", "a.b", "a-b", "a_b", "a--b", "a-", "xn--a", "z" * 32)
NODES = [{"name": "gpu1", "address": "127.0.0.1", "gpus": 2, "type": "a100", "cpus": 64, "memory": 65536, "up": True}]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    people = {name: 42050 + number for number, name in enumerate(NAMES)}
    with Portal(tmp_path_factory.mktemp("portal"), NODES, people) as made:
        yield made


@pytest.fixture(scope="module")
def sessions(portal: Portal) -> dict[str, tuple[Browser, str]]:
    found = {}
    for name in NAMES:
        browser = Browser(portal)
        assert browser.log_in(name).status == 200
        browser.start(gpus="0")
        found[name] = (browser, ready(portal, browser, name)["url"])
    return found


def test_each_has_an_origin_of_its_own_one_label_below(sessions: dict[str, tuple[Browser, str]]) -> None:
    hosts = {name: urlsplit(url).hostname or "" for name, (_browser, url) in sessions.items()}
    assert len(set(hosts.values())) == len(NAMES)
    labels = {name: host.removesuffix(f".{NAME}") for name, host in hosts.items()}
    assert not [label for label in labels.values() if not label or "." in label or label.startswith("-")]


def test_each_reaches_the_own_session_and_no_other(portal: Portal, sessions: dict[str, tuple[Browser, str]]) -> None:
    for name, (browser, url) in sessions.items():
        assert browser.get(f"{url}api/status").status == 200, name
        assert job_of(portal, name)["user"] == name
        others = [other for whose, (_browser, other) in sessions.items() if whose != name]
        assert {browser.get(f"{other}api/status").status for other in others} <= {403, 404}, name


def test_the_own_origin_alone_reads_what_jupyterlab_shows(sessions: dict[str, tuple[Browser, str]]) -> None:
    origins = {name: url.partition("/user/")[0] for name, (_browser, url) in sessions.items()}
    for name, (browser, _url) in sessions.items():
        for whose, origin in origins.items():
            told = browser.get("/hub/portal/idle", Origin=origin).headers.get("Access-Control-Allow-Origin")
            assert told == (origin if whose == name else None), (name, whose)


def test_cookies_that_a_session_sets_give_it_no_orders(sessions: dict[str, tuple[Browser, str]]) -> None:
    """Those of the whole domain come to the hub, too, and a session knows what the hub has given its own user."""
    victim, attacker = sessions["a.b"][0], sessions["hub"][0]
    tokens = {browser.name: browser.token(browser.get("/hub/home").text) for browser in (victim, attacker)}

    def of_hub(browser: Browser) -> dict[str, str]:
        return {one.name: one.value or "" for one in browser.cookies if one.domain.lstrip(".") == NAME}

    def order(token: str, **tossed: str) -> int:
        cookies = "; ".join(f"{name}={value}" for name, value in {**of_hub(victim), **tossed}.items())
        kind = "application/json"
        return victim.ask(f"/hub/api/users/a.b/tokens?_xsrf={token}", b"{}", Cookie=cookies, Content_Type=kind).status

    assert order(tokens["a.b"]) == 201
    theirs = {name: of_hub(attacker)[name] for name in ("_xsrf", "jupyterhub-session-id")}
    for names in (["_xsrf"], ["jupyterhub-session-id"], list(theirs)):
        assert order(tokens["hub"], **{name: theirs[name] for name in names}) == 403, names


def test_the_origin_of_a_user_called_hub_has_no_page_of_the_hub(portal: Portal, sessions: dict[str, object]) -> None:
    assert Browser(portal).redirect_of(f"https://hub.{NAME}:{portal.port}/hub/login").startswith(f"{portal.url}/hub")


def test_guesses_at_some_names_keep_no_other_name_waiting(portal: Portal) -> None:
    names = ("a.b", "a-b", "a_b")

    def guess(name: str) -> int:
        browser = Browser(portal)
        browser.patience_s = 240.0
        return browser.log_in(name, "wrong").status

    asked = portal.log().count("GET /hub/login")
    held = [(portal.base / "logins" / name).open("a") for name in names]
    with ThreadPoolExecutor(12) as threads:
        try:
            for file in held:
                fcntl.flock(file, fcntl.LOCK_EX)
            guesses = [threads.submit(guess, name) for name in names for _count in range(4)]
            # All have asked for the page, and send their passwords.
            portal.until(lambda: portal.log().count("GET /hub/login") >= asked + len(guesses), 60, "they do not guess")
            assert Browser(portal).log_in("hub").status == 200
            assert not any(map(Future.done, guesses))
        finally:
            for file in held:
                file.close()
        assert {one.result() for one in guesses} <= {403, 429, 503}
