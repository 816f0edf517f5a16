# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal with the real JupyterHub and proxy, and a stand-in for Slurm: logins, sessions, what becomes of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
import stat
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import PASSWORD, Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, job_of, ready, server_of, stop

pytestmark = pytest.mark.slow
# What a login that is refused takes.
REFUSED_S = 2.0
alice = portal_site.alice
bob = portal_site.bob


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    with Portal(tmp_path_factory.mktemp("portal")) as made:
        yield made


# --- logins ----------------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_refused(portal: Portal) -> None:
    assert Browser(portal).log_in("alice", "wrong").status == 403


@pytest.mark.parametrize(
    "name", ["root", "nobody-here", "../alice", "alice;id", "alice@example.com", "stranger", "closed"]
)
def test_who_has_no_account_here_is_refused_whatever_the_password(portal: Portal, name: str) -> None:
    assert Browser(portal).log_in(name).status == 403


# --- guessing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgets(portal: Portal) -> Iterator[None]:
    """The hub forgets the wrong logins of a test, whatever becomes of it: those after it log in, too."""
    yield
    portal.restart_hub()


def attempt(portal: Portal, name: str, password: str, **headers: str) -> tuple[int, str, bool]:
    """The status, what the page says of the login, and whether the answer took its time."""
    browser, begun = Browser(portal), time.monotonic()
    page = browser.get("/hub/login", **headers)
    data = urllib.parse.urlencode({"username": name, "password": password}).encode()
    answer = browser.ask(f"/hub/login?_xsrf={browser.token(page.text)}", data, Referer=page.url, **headers)
    told = re.search(r'class="login_error">\s*(.*?)\s*</p>', answer.text, re.DOTALL)
    return answer.status, told[1] if told else answer.text, time.monotonic() - begun >= REFUSED_S


@pytest.mark.usefixtures("forgets")
def test_what_is_wrong_with_a_login_nobody_learns(portal: Portal) -> None:
    wrong = attempt(portal, "alice", "wrong")
    assert "the name or the password is wrong, or the account may have no sessions here. To do:" in wrong[1]
    # Nor does the answer come at another time.
    assert wrong[2]
    for name in ("root", "nobody-here", "stranger", "closed", "alice@example.com"):
        assert attempt(portal, name, PASSWORD) == attempt(portal, name, "wrong") == wrong


@pytest.mark.usefixtures("forgets")
def test_passwords_of_one_name_are_guessed_a_few_times_whatever_headers_say(portal: Portal) -> None:
    def guess(number: int) -> int:
        # Whoever asks says of themselves from where.
        forged = {"X_Real_IP": f"192.0.2.{number}", "X_Forwarded_For": f"198.51.100.{number}"}
        return attempt(portal, "alice", f"wrong{number}", **forged)[0]

    begun = time.monotonic()
    with ThreadPoolExecutor(40) as threads:
        guesses = [threads.submit(guess, number) for number in range(40)]
        # Others log in meanwhile.
        assert Browser(portal).log_in("bob").status == 200
        answers = [one.result() for one in guesses]
    # Five, and one a minute.
    assert 5 <= answers.count(403) <= 5 + (time.monotonic() - begun) / 60
    assert set(answers) == {403, 429}
    # Nor is the right one taken now, from here.
    status, text, _slow = attempt(portal, "alice", PASSWORD)
    assert status == 429
    assert re.search(r"there were too many wrong logins. To do: try again in [0-9]+ s", text)


@pytest.mark.usefixtures("forgets")
def test_passwords_for_many_names_are_guessed_a_few_times(portal: Portal) -> None:
    begun = time.monotonic()
    with ThreadPoolExecutor(40) as threads:
        answers = [one[0] for one in threads.map(lambda n: attempt(portal, f"u{n}", "wrong"), range(60))]
    assert set(answers) == {403, 429}
    # Twenty, and one in five seconds.
    assert 20 <= answers.count(403) <= 20 + (time.monotonic() - begun) / 5


@pytest.mark.usefixtures("forgets")
def test_a_token_is_no_other_way_to_guess(portal: Portal) -> None:
    row = {"auth": {"username": "alice", "password": "wrong"}}
    answers = [
        Browser(portal).ask("/hub/api/users/alice/tokens", json.dumps(row).encode(), Content_Type="application/json")
        for _number in range(7)
    ]
    assert {answer.status for answer in answers} <= {403, 429}


def test_where_passwords_cannot_be_checked_is_told_and_counts_for_nobody(portal: Portal) -> None:
    portal.kill("login")
    for _number in range(7):
        status, text, _slow = attempt(portal, "alice", PASSWORD)
        assert status == 503
        assert "To do: the operators see it in" in text
    portal.start_login()
    assert Browser(portal).log_in("alice").status == 200


def test_a_name_with_the_sites_domain_is_the_account(portal: Portal) -> None:
    browser = Browser(portal)
    browser.log_in("Alice@example.org")
    assert browser.get("/hub/now/data").json()["me"] == "alice"


def test_without_a_login_nobody_sees_anything(portal: Portal) -> None:
    for path in ("/hub/now", "/hub/now/data", "/hub/now/forecast?gpus=1"):
        answer = Browser(portal).get(path)
        assert "/hub/login" in answer.url or answer.status == 403


def test_a_page_that_there_is_not_says_so_and_leads_home(alice: Browser) -> None:
    page = alice.get("/hub/nothing-here")
    assert (page.status, "There is no such page" in page.text) == (404, True)
    assert 'href="/hub/home">My sessions' in page.text


def test_the_page_may_run_only_what_is_in_it(alice: Browser) -> None:
    page = alice.get("/hub/now")
    policy = page.headers["Content-Security-Policy"]
    script = re.search(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


# --- the form --------------------------------------------------------------------------------------------------------


def test_the_form_says_what_is_free(alice: Browser) -> None:
    page = alice.get("/hub/spawn").text
    assert "a100: 4 of 4 free, 2 on one node" in page
    assert '<option value="2">2</option>' in page
    assert '<option value="3">' not in page


@pytest.mark.parametrize(
    ("asked", "answer", "text"),
    [
        ("gpus=1&cpus=1&memory_gib=1&hours=1&environment=default", "now", "at once"),
        ("gpus=2&cpus=4&memory_gib=8&hours=1&model=a100&environment=default", "now", "at once"),
        ("gpus=9&cpus=1&memory_gib=1&hours=1&environment=default", "never", "from 0 to 2"),
        ("gpus=1&model=%3Cscript%3E&environment=default", "never", "no GPUs of the model"),
    ],
)
def test_the_form_says_before_the_button_what_will_be(alice: Browser, asked: str, answer: str, text: str) -> None:
    told = alice.get(f"/hub/now/forecast?{asked}").json()
    assert told["answer"] == answer
    assert text in told["text"]


def test_more_than_is_allowed_is_refused_on_the_page(portal: Portal, alice: Browser) -> None:
    before = len(portal.jobs())
    answer = alice.start(gpus="3")
    assert "give a whole number from 0 to 2" in answer.text
    assert len(portal.jobs()) == before


# --- a session -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(portal: Portal, alice: Browser) -> dict:
    alice.start(gpus="1", memory_gib="2")
    return ready(portal, alice, "alice")


def test_a_session_is_a_job_of_its_user_with_what_was_asked_for(portal: Portal, session: dict) -> None:
    job = job_of(portal, "alice")
    assert (job["gpus"], job["memory"], job["minutes"], job["state"]) == (1, 2048, 60, "RUNNING")
    assert Path(f"/proc/{job['pid']}").stat().st_uid == PEOPLE["alice"]


def test_its_user_reaches_it_and_nobody_else_does(portal: Portal, session: dict, alice: Browser, bob: Browser) -> None:
    assert alice.get("/user/alice/api/status").status == 200
    assert bob.get("/user/alice/api/status").status in (403, 404)
    assert Browser(portal).get("/user/alice/api/status").status == 403


def test_what_the_session_proves_itself_with_only_its_user_reads(portal: Portal, session: dict) -> None:
    job = job_of(portal, "alice")
    script = portal.slurm / str(job["id"]) / "script"
    assert "JUPYTERHUB_API_TOKEN" in script.read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    assert "JUPYTERHUB_API_TOKEN" not in job["environment"]
    lines = Path(f"/proc/{job['pid']}/cmdline").read_bytes()
    assert b"TOKEN" not in lines


def test_everybody_sees_who_has_the_gpu_since_when(session: dict, bob: Browser) -> None:
    told = bob.get("/hub/now/data").json()
    (lease,) = [lease for node in told["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["what"], lease["gpus"]) == ("alice", "session", 1)
    assert 0 < told["now"] - lease["since"] < 600
    assert [one["free"] for one in told["models"]] == [3]
    assert told["me"] == "bob"


def test_the_form_remembers(session: dict, alice: Browser) -> None:
    page = alice.get("/hub/spawn/alice/second").text
    assert 'name="gpus"' in page


def test_a_hub_that_is_killed_finds_the_session_again(portal: Portal, session: dict, alice: Browser) -> None:
    before = job_of(portal, "alice")
    portal.kill("hub")
    # The proxy goes on by itself.
    assert alice.get("/user/alice/api/status").status == 200
    portal.start_hub()
    ready(portal, alice, "alice")
    assert job_of(portal, "alice")["pid"] == before["pid"]
    assert alice.get("/user/alice/api/status").status == 200


def test_a_scheduler_that_does_not_answer_ends_nothing(portal: Portal, session: dict, alice: Browser) -> None:
    (portal.slurm / "down").touch()
    try:
        told = portal.until(
            lambda: alice.get("/hub/now/data").json()["failure"] and alice.get("/hub/now/data").json(), 20, "no failure"
        )
        assert "Unable to contact" in told["failure"]
        # What was known is still told.
        assert told["nodes"]
        assert alice.get("/hub/now/forecast?gpus=1&environment=default").json()["answer"] == "unknown"
        assert server_of(alice, "alice")["ready"]
    finally:
        (portal.slurm / "down").unlink()


def test_a_second_session_has_a_name_and_a_port_of_its_own(portal: Portal, session: dict, alice: Browser) -> None:
    alice.start("second", gpus="0")
    ready(portal, alice, "alice", "second")
    assert alice.get("/user/alice/second/api/status").status == 200
    assert alice.get("/user/alice/api/status").status == 200
    number = job_of(portal, "alice")["id"]
    stop(portal, alice, "alice", "second")
    assert next(job for job in portal.jobs() if job["id"] == number)["state"] == "CANCELLED"


def test_a_session_that_waits_says_for_what_and_can_be_cancelled(portal: Portal, session: dict, bob: Browser) -> None:
    # alice has one GPU; with these three no node has two together.
    bob.start(gpus="2")
    ready(portal, bob, "bob")
    told = bob.get("/hub/now/forecast?gpus=2&cpus=1&memory_gib=1&hours=1&environment=default").json()
    assert told["answer"] == "waits"
    assert "They are back at" in told["text"]
    bob.start("more", gpus="2")
    portal.until(lambda: job_of(portal, "bob")["state"] == "PENDING", 30, "it is not submitted")
    token = bob.token(bob.get("/hub/home").text)
    event = bob.first_event(f"/hub/api/users/bob/servers/more/progress?_xsrf={token}", "waits")
    # JupyterHub's own button there would end the first session.
    pending = bob.get("/hub/spawn-pending/bob/more").text
    assert "Your session more starts" in pending
    assert 'id="stop-server-btn"' not in pending
    number = job_of(portal, "bob")["id"]
    assert f"Job {number} waits: no node has enough free resources. It is expected to start at 20" in event["message"]
    waiting = bob.get("/hub/now/data").json()["waiting"]
    assert [(row["user"], row["why"]) for row in waiting] == [("bob", "no node has enough free resources")]
    stop(portal, bob, "bob", "more")
    portal.until(
        lambda: next(job for job in portal.jobs() if job["id"] == number)["state"] == "CANCELLED", 30, "it still waits"
    )
    stop(portal, bob, "bob")


def test_a_session_that_waits_outlives_the_hub(portal: Portal, session: dict, bob: Browser) -> None:
    bob.start(gpus="2")
    ready(portal, bob, "bob")
    first = job_of(portal, "bob")["id"]
    bob.start("more", gpus="2")
    portal.until(lambda: job_of(portal, "bob")["state"] == "PENDING", 30, "it is not submitted")
    second = job_of(portal, "bob")["id"]
    # A hub that is killed before it has heard of the job ends it later.
    token = bob.token(bob.get("/hub/home").text)
    assert bob.first_event(f"/hub/api/users/bob/servers/more/progress?_xsrf={token}", f"Job {second} waits")
    portal.kill("hub")
    portal.start_hub()
    assert job_of(portal, "bob")["state"] == "PENDING"
    portal.end(first, "TIMEOUT")
    ready(portal, bob, "bob", "more")
    assert job_of(portal, "bob")["id"] == second
    stop(portal, bob, "bob", "more")


def test_a_session_that_no_server_is_ends(portal: Portal, session: dict, bob: Browser) -> None:
    """As one that a hub has submitted which was killed before it could write that down."""
    bob.start(gpus="0")
    ready(portal, bob, "bob")
    number = job_of(portal, "bob")["id"]
    portal.kill("hub")
    with sqlite3.connect(portal.base / "state" / "jupyterhub.sqlite") as database:
        database.execute(
            "update spawners set state = '{}', server_id = null where state like ?", (f'%"job": {number},%',)
        )
    portal.start_hub()
    portal.until(
        lambda: next(job for job in portal.jobs() if job["id"] == number)["state"] == "CANCELLED", 200, "it still runs"
    )
    # One that is known goes on.
    assert next(job for job in portal.jobs() if job["user"] == "alice")["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("fate", "note", "told"),
    [
        (
            "OUT_OF_MEMORY",
            "",
            "it needed more memory than it had asked for, and was ended. To do: start it again with more",
        ),
        ("TIMEOUT", "", "its time was over"),
        ("CANCELLED", "gpuops: SIGTERM: Xid 79", "one of its GPUs failed: Xid 79"),
    ],
)
def test_a_session_that_dies_says_why_and_what_to_do(
    portal: Portal, bob: Browser, fate: str, note: str, told: str
) -> None:
    bob.start(gpus="1")
    ready(portal, bob, "bob")
    portal.end(job_of(portal, "bob")["id"], fate, note)
    portal.until(lambda: not server_of(bob, "bob").get("ready"), 60, "the hub does not notice")
    page = bob.get("/hub/spawn").text
    assert told in page


def test_an_environment_without_jupyterhub_is_told_at_once(portal: Portal, bob: Browser) -> None:
    bob.start(environment="~/nothing")
    page = portal.until(
        lambda: (page := bob.get("/hub/spawn/bob").text) and "has no jupyterhub-singleuser" in page and page,
        60,
        "nobody tells",
    )
    assert "To do:" in page


def test_a_form_of_another_site_starts_nothing(portal: Portal, bob: Browser) -> None:
    before = len(portal.jobs())
    answer = bob.ask("/hub/spawn", b"gpus=1", Referer="https://evil.example/", Origin="https://evil.example")
    assert answer.status == 403
    assert len(portal.jobs()) == before
