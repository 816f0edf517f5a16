# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal with its users and sessions in PostgreSQL, with the real JupyterHub and a real server of PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import debian_programs
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import Portal, free_ports, job_of, ready, server_of, stop

pytestmark = pytest.mark.slow

# PostgreSQL does not run as root.
ACCOUNT = "nobody"
PASSWORD, IN_URL = "p@ss:word/1%", "p%40ss%3Aword%2F1%25"


class Database:
    """A server on this machine with the database portal, whose owner has a password."""

    def __init__(self, base: Path) -> None:
        program = debian_programs.path_of("postgres")
        if program is None:
            pytest.skip("PostgreSQL is not here: make test fetches it with apt-get")
        if os.geteuid() != 0:
            pytest.skip("a portal needs root for its mount namespace")
        self._programs, self.base = Path(program).resolve().parent, base
        for parent in base.parents[:-1]:
            parent.chmod(parent.stat().st_mode | 0o011)
        shutil.chown(base, ACCOUNT)
        (self.port,) = free_ports(1)
        (base / "password").write_text(PASSWORD)
        shutil.chown(base / "password", ACCOUNT)
        self._do(
            "initdb",
            "--username=portal",
            "--encoding=UTF8",
            "--auth=scram-sha-256",
            f"--pwfile={base / 'password'}",
            "--no-sync",
        )
        self.start()
        self._do("psql", "--command=create database portal", "postgres")

    def _do(self, program: str, *words: str) -> str:
        there = {"PGDATA": str(self.base / "data"), "PGHOST": str(self.base), "PGPORT": str(self.port)}
        done = subprocess.run(
            [self._programs / program, *words],
            check=False,
            capture_output=True,
            text=True,
            user=ACCOUNT,
            group=pwd.getpwnam(ACCOUNT).pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", **there, "PGUSER": "portal", "PGPASSWORD": PASSWORD},
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        words = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={self.base} -c fsync=off"
        self._do("pg_ctl", "--wait", f"--log={self.base / 'log'}", f"--options={words}", "start")

    def stop(self) -> None:
        self._do("pg_ctl", "--wait", "--mode=immediate", "stop")

    def ask(self, what: str) -> str:
        return self._do("psql", "--tuples-only", "--no-align", f"--command={what}", "portal").strip()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    made = Database(tmp_path_factory.mktemp("database"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def portal(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    url = f"postgresql://portal:{IN_URL}@127.0.0.1:{database.port}/portal"
    with Portal(tmp_path_factory.mktemp("portal"), hub={"db_url": url}) as made:
        yield made


@pytest.fixture(scope="module")
def alice(portal: Portal) -> Browser:
    browser = Browser(portal)
    assert browser.log_in("alice").status == 200
    browser.start(gpus="1")
    ready(portal, browser, "alice")
    return browser


def test_users_and_sessions_are_in_the_database(portal: Portal, database: Database, alice: Browser) -> None:
    number = job_of(portal, "alice")["id"]
    assert database.ask("select name from users") == "alice"
    assert f'"job": {number}' in database.ask("select state from spawners where server_id is not null")
    assert not (portal.base / "state" / "jupyterhub.sqlite").exists()


def test_a_hub_that_is_killed_finds_the_session_again(portal: Portal, alice: Browser) -> None:
    before = job_of(portal, "alice")
    portal.kill("hub")
    portal.start_hub()
    ready(portal, alice, "alice")
    assert job_of(portal, "alice")["pid"] == before["pid"]


def test_a_database_that_was_gone_ends_nothing(portal: Portal, database: Database, alice: Browser) -> None:
    database.stop()
    try:
        # The proxy leads to the session without it.
        assert alice.get("/user/alice/lab").status == 200
        alice.get("/hub/home")
    finally:
        database.start()
    portal.until(lambda: server_of_or_nothing(alice).get("ready"), 60, "the hub does not go on")
    # It works, and not only looks like it.
    bob = Browser(portal)
    portal.until(lambda: bob.log_in("bob").status == 200, 60, "nobody can log in")
    bob.start(gpus="1")
    ready(portal, bob, "bob")
    stop(portal, bob, "bob")
    assert job_of(portal, "alice")["state"] == "RUNNING"


def server_of_or_nothing(browser: Browser) -> dict:
    try:
        return server_of(browser, "alice")
    except AssertionError:
        return {}


def test_a_hub_without_its_database_starts_when_it_is_back(portal: Portal, database: Database, alice: Browser) -> None:
    portal.kill("hub")
    database.stop()
    try:
        assert portal.run_hub() == 1
        assert "Failed to connect to db: postgresql://portal:[redacted]@127.0.0.1" in portal.log()
        assert job_of(portal, "alice")["state"] == "RUNNING"
    finally:
        database.start()
    portal.start_hub()
    ready(portal, alice, "alice")


def test_the_password_is_in_no_log_and_in_no_session(portal: Portal, alice: Browser) -> None:
    job = job_of(portal, "alice")
    script = (portal.slurm / str(job["id"]) / "script").read_text()
    environment = Path(f"/proc/{job['pid']}/environ").read_bytes().decode(errors="replace")
    for text in (
        portal.log(),
        portal.log("helper"),
        portal.log("proxy"),
        script,
        environment,
        alice.get("/hub/home").text,
    ):
        assert PASSWORD not in text
        assert IN_URL not in text
