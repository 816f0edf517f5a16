# SPDX-License-Identifier: GPL-3.0-or-later
"""Attacks on the portal with the real JupyterHub and proxy, from the outside: each is refused, or does no harm."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.roles import portal_site
from tests.unit.roles.portal_browser import Answer, Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, job_of, ready, server_of, stop

pytestmark = pytest.mark.slow
alice = portal_site.alice
bob = portal_site.bob

MARKUP = "<script>x()</script>"
LONGEST = "a" * 32
ODD = {"a.b": 42011, "a-b": 42012, "_a": 42013, LONGEST: 42014, "A": 42015}
# Of `full` the home has no room, `locked` has no password, and `expired` is over.
OTHERS = {"full": 42021, "locked": 42022, "expired": 42023}
MIB = "x" * (1 << 20)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    base = tmp_path_factory.mktemp("portal")
    options = f"size=4k,nr_inodes=1,mode=700,uid={OTHERS['full']},gid={OTHERS['full']}"
    no_room = f"mount -t tmpfs -o {options} tmpfs {base}/home/full"
    # Lost accounts are noticed at once.
    login = {"kind": "pam", "pam_service": "baremetal-gpu-portal", "options": {"auth_refresh_age": 1}}
    with Portal(base, people={**PEOPLE, **ODD, **OTHERS}, hub={"login": login}, mounts=no_room) as made:
        yield made


@pytest.fixture(scope="module")
def session(portal: Portal, alice: Browser) -> dict:
    alice.start(gpus="1")
    return ready(portal, alice, "alice")


def token_of(portal: Portal, name: str) -> str:
    """What a session proves itself with."""
    text = (portal.slurm / str(job_of(portal, name)["id"]) / "script").read_text()
    found = re.search(r"export JUPYTERHUB_API_TOKEN=(\S+)", text)
    assert found
    return found[1]


def failure_of(portal: Portal, browser: Browser, name: str, text: str) -> str:
    """The page of a session that did not start, when it says something."""
    return portal.until(
        lambda: text in (page := browser.get(f"/hub/spawn-pending/{name}").text) and page, 60, f"nobody tells {text}"
    )


# --- cross-site scripting --------------------------------------------------------------------------------------------


def test_what_the_scheduler_says_is_data(portal: Portal, bob: Browser) -> None:
    script = f"#!/bin/sh\n#SBATCH --job-name={MARKUP}\n#SBATCH --chdir=/tmp\n#SBATCH --gres=gpu:1\nsleep 600\n"
    number = portal.run("alice", "sbatch", "--parsable", text=script)
    told = portal.until(lambda: MARKUP in (told := bob.get("/hub/now/data")).text and told, 30, "it is not told")
    assert told.headers["Content-Type"] == "application/json"
    assert told.headers["X-Content-Type-Options"] == "nosniff"
    portal.run("alice", "scancel", number)


def test_how_a_session_ended_stays_text(portal: Portal, bob: Browser) -> None:
    bob.start(gpus="1")
    ready(portal, bob, "bob")
    portal.end(job_of(portal, "bob")["id"], "CANCELLED", f"gpuops: SIGTERM: {MARKUP}")
    page = portal.until(
        lambda: "one of its GPUs failed" in (page := bob.get("/hub/spawn").text) and page, 60, "nobody tells"
    )
    assert MARKUP not in page
    assert "&lt;script&gt;x()&lt;/script&gt;" in page


def test_what_a_session_said_last_stays_text(portal: Portal, bob: Browser) -> None:
    program = portal.base / "home" / "bob" / "said" / "bin" / "jupyterhub-singleuser"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\nsleep 2\necho '{MARKUP}'\nexit 1\n")
    program.chmod(0o755)
    subprocess.run(["chown", "-R", str(PEOPLE["bob"]), program.parents[1]], check=True)
    bob.start(environment="~/said")
    page = failure_of(portal, bob, "bob", "It said last")
    assert MARKUP not in page
    assert "&lt;script&gt;x()&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "field", [{"environment": f"~/{MARKUP}"}, {"environment": MARKUP}, {"model": MARKUP}, {"gpus": MARKUP}]
)
def test_what_a_form_refuses_stays_text(portal: Portal, bob: Browser, field: dict[str, str]) -> None:
    before = len(portal.jobs())
    answer = bob.start(**field)
    assert "To do:" in answer.text
    assert MARKUP not in answer.text
    assert MARKUP not in bob.get("/hub/spawn").text
    assert len(portal.jobs()) == before


@pytest.mark.parametrize(
    "name", ["%3Cscript%3Ex()%3C%2Fscript%3E", "%22onload=x()%20", "..%2F..%2Fetc", "A", "x" * 200, "a%0Ab"]
)
def test_a_session_of_an_odd_name_is_refused_and_its_name_stays_text(portal: Portal, bob: Browser, name: str) -> None:
    before = len(portal.jobs())
    pages = [bob.start(name, gpus="0"), bob.get("/hub/home"), bob.get("/hub/spawn"), bob.get("/hub/now")]
    assert len(portal.jobs()) == before
    for page in pages:
        assert MARKUP not in page.text
        assert '"onload=' not in page.text
    answer = ask_api(bob, "POST", f"/hub/api/users/bob/servers/{name}", {"gpus": 0})
    assert answer.status >= 400
    assert len(portal.jobs()) == before
    ask_api(bob, "DELETE", f"/hub/api/users/bob/servers/{name}", {"remove": True})


def ask_api(browser: Browser, method: str, path: str, row: object) -> Answer:
    page = browser.get("/hub/home")
    url = f"{path}?_xsrf={browser.token(page.text)}"
    return browser.ask(url, json.dumps(row).encode(), method, Referer=page.url, Content_Type="application/json")


# --- forged requests -------------------------------------------------------------------------------------------------

ELSEWHERE = {"Referer": "https://evil.example/", "Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}


@pytest.mark.parametrize("path", ["/hub/portal/extend", "/hub/spawn", "/hub/spawn/alice/second", "/hub/login"])
@pytest.mark.parametrize("headers", [ELSEWHERE, {}])
def test_a_form_of_another_site_does_nothing(
    portal: Portal, session: dict, alice: Browser, bob: Browser, path: str, headers: dict[str, str]
) -> None:
    before = len(portal.jobs())
    fields = b"server=&gpus=1&cpus=1&memory_gib=1&hours=1&environment=default&username=bob&password=x"
    token = bob.token(bob.get("/hub/home").text)
    for query in ("", "?_xsrf=", "?_xsrf=x", f"?_xsrf={token}"):
        answer = alice.ask(f"{path}{query}", fields, **headers)
        assert answer.status == 403, (query, answer.text)
    assert len(portal.jobs()) == before


@pytest.mark.parametrize("path", ["/hub/spawn", "/hub/spawn/bob", "/hub/spawn/bob/linked"])
@pytest.mark.parametrize("prefix", ["", "opt-"])
def test_a_link_starts_no_session(portal: Portal, bob: Browser, path: str, prefix: str) -> None:
    before = len(portal.jobs())
    fields = {"gpus": "1", "cpus": "1", "memory_gib": "1", "hours": "1", "environment": "default"}
    query = "&".join(f"{prefix}{name}={value}" for name, value in fields.items())
    answer = bob.get(f"{path}?{query}")
    assert "a link starts no session. To do: look at the form" in answer.text
    assert server_of(bob, "bob") == {} or not server_of(bob, "bob")["pending"]
    assert len(portal.jobs()) == before


def test_pages_are_in_no_frame_of_another_site(bob: Browser) -> None:
    for path in ("/hub/home", "/hub/spawn", "/hub/now", "/hub/login"):
        assert "frame-ancestors 'none'" in bob.get(path).headers["Content-Security-Policy"]


# --- tokens of others ------------------------------------------------------------------------------------------------


def test_a_token_of_a_session_opens_no_page(portal: Portal, session: dict) -> None:
    token = token_of(portal, "alice")
    for path in ("/hub/now", "/hub/now/data", "/hub/now/forecast?gpus=1", "/hub/portal/idle"):
        for shown in ({"Authorization": f"token {token}"}, {"Authorization": f"Bearer {token}"}):
            answer = Browser(portal).get(path, **shown)
            assert "/hub/login" in answer.url or answer.status == 403, (path, answer.text)
            assert "/hub/login" in Browser(portal).get(f"{path}{'&' if '?' in path else '?'}token={token}").url


def test_a_token_of_bob_reaches_nothing_of_alice(portal: Portal, session: dict, bob: Browser) -> None:
    token = ask_api(bob, "POST", "/hub/api/users/bob/tokens", {}).json()["token"]
    shown = {"Authorization": f"token {token}"}
    stranger = Browser(portal)
    assert stranger.get("/hub/api/user", **shown).json()["name"] == "bob"
    for method, path in (
        ("GET", "/hub/api/users/alice"),
        ("DELETE", "/hub/api/users/alice/server"),
        ("POST", "/hub/api/users/alice/servers/second"),
        ("GET", "/hub/api/users/alice/server/progress"),
        ("POST", "/hub/api/users/alice/tokens"),
        ("GET", "/user/alice/api/status"),
    ):
        answer = stranger.ask(path, b"{}" if method == "POST" else None, method, **shown)
        assert answer.status in (403, 404), (path, answer.text)
    assert job_of(portal, "alice")["state"] == "RUNNING"


def test_bob_keeps_and_measures_only_sessions_of_his_own(portal: Portal, session: dict, bob: Browser) -> None:
    page = bob.get("/hub/home")
    for fields in ({"server": ""}, {"server": "", "user": "alice"}, {"server": "../alice"}, {"server": "alice/"}):
        assert bob.post("/hub/portal/extend", page, **fields).status == 404
    assert bob.get("/hub/portal/idle?user=alice").json() == {}
    token = ask_api(bob, "POST", "/hub/api/users/bob/tokens", {}).json()["token"]
    row = {"server": "", "gpu_ratio": 1.0, "cores": 0.0, "kernel_busy": False}
    row |= {"kernel_at": 0.0, "terminal_at": 0.0, "traffic": 0.0}
    for server in ("alice", "../alice", "second"):
        answer = Browser(portal).ask(
            "/hub/portal/sample", json.dumps({**row, "server": server}).encode(), Authorization=f"token {token}"
        )
        assert answer.status in (400, 404), answer.text


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lure(portal: Portal) -> Path:
    """An environment in the home of alice whose program says who has started it."""
    program = portal.base / "home" / "alice" / "env" / "bin" / "jupyterhub-singleuser"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nid -un >>{portal.slurm}/who\nexit 1\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "path",
    [
        "~/../alice/env",
        "~/x/../../alice/env",
        "~/./env",
        "~alice/env",
        "~",
        "~/",
        "~//env",
        "/opt/env",
        "../alice/env",
        "~/$(id)",
        "~/`id`",
        "~/a b",
        "~/a;id",
        "~/a\nid",
        "~/a\u202eb",
        "~/%2e%2e/alice/env",
    ],
)
def test_an_environment_outside_of_the_home_is_refused(portal: Portal, bob: Browser, lure: Path, path: str) -> None:
    before = len(portal.jobs())
    assert "To do: choose one of default, torch, or give the directory of your own" in bob.start(environment=path).text
    answer = ask_api(bob, "POST", "/hub/api/users/bob/server", {"environment": path, "gpus": 0})
    assert answer.status >= 400
    assert len(portal.jobs()) == before


def test_a_link_to_the_home_of_another_gives_nothing_of_it(portal: Portal, bob: Browser, lure: Path) -> None:
    os.symlink(lure.parents[1], portal.base / "home" / "bob" / "link")
    bob.start(environment="~/link")
    portal.until(lambda: "has no jupyterhub-singleuser" in bob.get("/hub/spawn/bob").text, 60, "nobody tells")
    assert job_of(portal, "bob")["state"] == "FAILED"
    assert not (portal.slurm / "who").exists()


def test_a_link_in_the_place_of_a_sessions_directory_leads_to_no_file_of_another(
    portal: Portal, bob: Browser, alice: Browser
) -> None:
    """What the program of root makes and reads in a home, it does as the user."""
    mine, target = portal.base / "home" / "bob" / "gpuops-jobs", portal.base / "home" / "alice"
    secret = target / "secret"
    secret.mkdir(mode=0o700)
    (secret / "output.log").write_text("the secret of alice")
    subprocess.run(["rm", "-rf", mine], check=True)
    mine.mkdir()
    os.symlink(secret, mine / "portal-session")
    subprocess.run(["chown", "-hR", str(PEOPLE["bob"]), mine], check=True)
    bob.start(gpus="0", environment="~/nothing")
    page = failure_of(portal, bob, "bob", "Permission denied")
    assert "the secret of alice" not in page
    assert sorted(path.name for path in secret.iterdir()) == ["output.log"]
    (mine / "portal-session").unlink()


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["environment", "model", "gpus", "hours", "nonsense"])
def test_a_form_with_a_mebibyte_in_it_is_answered_shortly(portal: Portal, bob: Browser, field: str) -> None:
    before = len(portal.jobs())
    answer = bob.start(**{"environment": "~/nothing/", field: MIB})
    assert len(answer.text) < 100_000
    assert len(portal.jobs()) == before
    assert len(bob.get("/hub/spawn").text) < 100_000


def test_a_mebibyte_elsewhere_is_refused_and_the_hub_goes_on(portal: Portal, bob: Browser) -> None:
    before = len(portal.log())
    page = bob.get("/hub/home")
    assert bob.post("/hub/portal/extend", page, server=MIB).status == 404
    assert Browser(portal).log_in(MIB).status == 403
    assert Browser(portal).log_in("alice", MIB).status == 403
    assert bob.get(f"/hub/now/forecast?gpus={MIB}").status in (0, 400, 414, 431)
    assert bob.ask("/hub/portal/sample", MIB.encode(), Authorization="token x").status == 403
    assert bob.get("/hub/now/data").json()["me"] == "bob"
    # Nor does it fill the disk.
    assert len(portal.log()) - before < 100_000


# --- accounts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.b", "a-b", "_a", LONGEST])
def test_an_odd_name_of_an_account_has_sessions(portal: Portal, name: str) -> None:
    browser = Browser(portal)
    assert browser.log_in(name).status == 200
    browser.start(gpus="0")
    row = ready(portal, browser, name)
    assert browser.get(f"{row['url']}api/status").status == 200
    assert Path(f"/proc/{job_of(portal, name)['pid']}").stat().st_uid == ODD[name]
    stop(portal, browser, name)


@pytest.mark.parametrize(
    "name",
    ["A", "a" * 33, "$(id)", "`id`", "../x", "a/b", "a b", "-a", ".a", "a\nb", "a\0b", "\u0430", "", "alice\u200b"],
)
def test_what_is_no_name_of_an_account_logs_nobody_in(portal: Portal, name: str) -> None:
    before = portal.log()
    browser = Browser(portal)
    answer = browser.log_in(name)
    assert answer.status == 403
    assert "/hub/login" in browser.get("/hub/now").url
    # A line of the log begins with nothing that somebody has typed.
    assert all(line[:1] in ("[", " ", "") for line in portal.log()[len(before) :].splitlines())


def shadow(portal: Portal, name: str, password: str = "", expires: str = "") -> None:
    """Change what the host knows of an account; nothing stays as it is."""
    path = portal.base / "etc" / "shadow"
    rows = [line.split(":") for line in path.read_text().splitlines()]
    for row in rows:
        if row[0] == name:
            row[1], row[7] = password or row[1], expires
    # Not another file: programs have this one mounted.
    path.write_text("".join(":".join(row) + "\n" for row in rows))


def test_a_locked_account_is_refused(portal: Portal) -> None:
    shadow(portal, "locked", "!*")
    assert Browser(portal).log_in("locked").status == 403


def test_an_account_that_expires_is_logged_out_and_gets_no_session(portal: Portal) -> None:
    browser = Browser(portal)
    assert browser.log_in("expired").status == 200
    token = ask_api(browser, "POST", "/hub/api/users/expired/tokens", {}).json()["token"]
    page = browser.get("/hub/spawn")
    shadow(portal, "expired", expires="1")
    before = len(portal.jobs())
    browser.post("/hub/spawn", page, gpus="0", cpus="1", memory_gib="1", hours="1", environment="default")
    portal.until(lambda: "/hub/login" in browser.get("/hub/home").url, 30, "nobody is logged out")
    # A token is of no use either.
    shown = {"Authorization": f"token {token}", "Content_Type": "application/json"}
    assert Browser(portal).ask("/hub/api/users/expired/server", b'{"gpus": 0}', "POST", **shown).status == 403
    assert Browser(portal).get("/hub/api/user", **shown).status == 403
    assert len(portal.jobs()) == before
    assert Browser(portal).log_in("expired").status == 403


def test_a_home_without_room_is_told_with_what_to_do(portal: Portal) -> None:
    browser = Browser(portal)
    assert browser.log_in("full").status == 200
    browser.start(gpus="0")
    page = failure_of(portal, browser, "full", "No space left")
    assert "To do: see that full may write below the home, and that it has room" in page
    assert [job for job in portal.jobs() if job["user"] == "full"] == []
