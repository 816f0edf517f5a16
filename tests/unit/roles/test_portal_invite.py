# SPDX-License-Identifier: GPL-3.0-or-later
"""Somebody who was invited sets the own password in the real JupyterHub, and logs in with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.users import invitations
from tests.unit.roles.portal_browser import PASSWORD, Answer, Browser
from tests.unit.roles.portal_site import PEOPLE, Portal

pytestmark = pytest.mark.slow

NEW = "four words in a row"


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    with Portal(tmp_path_factory.mktemp("portal")) as made:
        yield made


def invited(portal: Portal, name: str) -> str:
    code, row = invitations.make(PEOPLE[name], int(time.time()) + 600)
    entry = invitations.entry(name, row)
    (portal.base / "invitations" / Path(entry["path"]).name).write_text(entry["content"])
    return code


def redeem(portal: Portal, name: str, code: str, password: str = NEW, again: str = NEW) -> Answer:
    browser = Browser(portal)
    fields = {"username": name, "code": code, "password": password, "again": again}
    return browser.post("/hub/invite", browser.get(f"/hub/invite?user={name}"), **fields)


def test_a_code_gives_a_password_and_is_then_used_up(portal: Portal) -> None:
    assert "/hub/invite" in Browser(portal).get("/hub/login").text
    code = invited(portal, "alice")
    assert "12 characters or more" in redeem(portal, "alice", code, "short", "short").text
    assert "the two passwords differ" in redeem(portal, "alice", code, again="four other words").text
    done = redeem(portal, "alice", code)
    assert (done.status, "Your password is set" in done.text) == (200, True)
    assert Browser(portal).log_in("alice", PASSWORD).status == 403
    assert "/hub/" in Browser(portal).log_in("alice", NEW).url
    assert redeem(portal, "alice", code).status == 403
    written = "".join(path.read_text("utf-8", "replace") for path in portal.base.glob("*.log"))
    assert NEW not in written
    assert code not in written


def test_who_has_no_code_is_told_the_same_whatever_is_wrong(portal: Portal) -> None:
    code = invited(portal, "bob")
    told = {
        redeem(portal, name, "22222-22222-22222-22222").text.partition('role="alert">')[2].partition("<")[0]
        for name in ("bob", "closed", "nobody-here", "root")
    }
    assert len(told) == 1
    assert "the name or the code is wrong" in told.pop()
    assert redeem(portal, "closed", code).status == 403
    assert redeem(portal, "<b>bob", code).text.count("<b>bob") == 0
    # A page of another site cannot send it.
    forged = Browser(portal).ask("/hub/invite", b"username=bob")
    assert forged.status == 403


def test_codes_cannot_be_tried_one_after_the_other(portal: Portal) -> None:
    code = invited(portal, "bob")
    statuses = [redeem(portal, "bob", "22222-22222-22222-22222").status for _number in range(7)]
    assert 429 in statuses
    assert redeem(portal, "bob", code).status == 429
