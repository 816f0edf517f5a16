# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of users that are odd as hosts below the portal's: each has an origin of its own, which the wildcard covers."""

from __future__ import annotations

from collections.abc import Iterator
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


def test_the_origin_of_a_user_called_hub_has_no_page_of_the_hub(portal: Portal, sessions: dict[str, object]) -> None:
    assert Browser(portal).redirect_of(f"https://hub.{NAME}:{portal.port}/hub/login").startswith(f"{portal.url}/hub")
