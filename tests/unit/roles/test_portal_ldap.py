# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins of the portal by LDAP, with the real JupyterHub and OpenLDAP's slapd of Debian's package."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import debian_programs
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import Portal, free_ports

pytestmark = pytest.mark.slow

SUFFIX = "dc=example,dc=org"
PASSWORDS = {name: f"the word of {name}" for name in ("alice", "bob", "closed", "root", "nobody-here", "stranger")}
TEMPLATE = f"uid={{username}},{SUFFIX}"
CONFIGURATION = """
include {ldap}/schema/core.schema
include {ldap}/schema/cosine.schema
include {ldap}/schema/inetorgperson.schema
modulepath {modules}
moduleload back_mdb.so
TLSCertificateFile {base}/server.pem
TLSCertificateKeyFile {base}/server.key
database mdb
suffix {suffix}
directory {base}/data
"""


class Directory:
    """A directory of users on this machine, with a certificate for localhost of an authority of its own."""

    def __init__(self, base: Path) -> None:
        program = debian_programs.path_of("slapd")
        if program is None:
            pytest.skip("slapd is not here: make test fetches it with apt-get")
        unpacked = Path(program).parents[2]
        root = unpacked if (unpacked / "etc" / "ldap" / "schema").is_dir() else Path("/")
        self._program, self.base = program, base
        libraries = [str(path) for path in (root / "usr" / "lib").glob("*-linux-gnu")]
        self._environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
        (base / "data").mkdir()
        self.authority = base / "ca.pem"
        self._certificates()
        (base / "slapd.conf").write_text(
            CONFIGURATION.format(ldap=root / "etc/ldap", modules=root / "usr/lib/ldap", base=base, suffix=SUFFIX)
        )
        people = "".join(
            f"dn: uid={name},{SUFFIX}\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\nsn: {name}\n"
            f"userPassword: {password}\n\n"
            for name, password in PASSWORDS.items()
        )
        top = f"dn: {SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n\n"
        self._slapd("-T", "add", input=top + people)
        self.port, self.tls_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _certificates(self) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], cwd=self.base, check=True, capture_output=True)

        key = ["-newkey", "rsa:2048", "-nodes"]
        openssl("req", "-x509", *key, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
        openssl("req", *key, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
        (self.base / "names").write_text("subjectAltName=DNS:localhost\n")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")

    def _slapd(self, *words: str, **more: Any) -> None:
        words = (self._program, *words, "-f", str(self.base / "slapd.conf"))
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=self._environment, **more)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        places = f"ldap://127.0.0.1:{self.port}/ ldaps://127.0.0.1:{self.tls_port}/"
        words = (self._program, "-d", "stats", "-f", str(self.base / "slapd.conf"), "-h", places)
        with (self.base / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=self._environment)
        end = time.monotonic() + 60
        while "slapd starting" not in self.log() and time.monotonic() < end:
            time.sleep(0.1)
        assert "slapd starting" in self.log()

    def log(self) -> str:
        return (self.base / "log").read_text(errors="replace")

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    made = Directory(tmp_path_factory.mktemp("ldap"))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def portal_of(base: Path, port: int, **options: Any) -> Iterator[Portal]:
    """With logins by a directory."""
    given = {"server_address": "localhost", "server_port": port, "bind_dn_template": TEMPLATE, **options}
    with Portal(base, hub={"login": {"kind": "ldap", "pam_service": "baremetal-gpu-portal", "options": given}}) as made:
        yield made


@pytest.fixture(scope="module")
def portal(directory: Directory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    trust = {"ca_certs_file": str(directory.authority)}
    with portal_of(tmp_path_factory.mktemp("portal"), directory.port, tls_kwargs=trust) as made:
        yield made


def test_a_person_of_the_directory_logs_in_with_its_password_over_tls(portal: Portal, directory: Directory) -> None:
    browser = Browser(portal)
    assert browser.log_in("alice", PASSWORDS["alice"]).status == 200
    assert browser.get("/hub/now/data").json()["me"] == "alice"
    assert 'BIND dn="uid=alice,dc=example,dc=org" mech=SIMPLE bind_ssf=0 ssf=256' in directory.log()


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"),
        ("alice", PASSWORDS["bob"]),
        # For a server of LDAP that is no login, and no error.
        ("alice", ""),
        ("alice", " "),
        ("*", PASSWORDS["alice"]),
        ("alice,dc=example", PASSWORDS["alice"]),
    ],
)
def test_another_password_or_name_is_refused(portal: Portal, name: str, password: str) -> None:
    browser = Browser(portal)
    assert browser.log_in(name, password).status == 403
    assert "/hub/login" in browser.get("/hub/now").url


@pytest.mark.parametrize("name", ["nobody-here", "root", "closed", "stranger"])
def test_the_right_password_of_who_has_no_account_here_is_as_good_as_a_wrong_one(
    portal: Portal, directory: Directory, name: str
) -> None:
    before = len(directory.log())
    answers = [Browser(portal).log_in(name, password) for password in (PASSWORDS[name], "wrong")]
    for answer in answers:
        assert answer.status == 403
        assert "the name or the password is wrong, or the account may have no sessions here. To do:" in answer.text
    # Nor is it tried there.
    assert "BIND dn=" not in directory.log()[before:]


def test_a_directory_that_hangs_stops_nobody_else(portal: Portal, directory: Directory) -> None:
    alice = Browser(portal)
    assert alice.log_in("alice", PASSWORDS["alice"]).status == 200
    directory.send(signal.SIGSTOP)
    try:
        bob = Browser(portal)
        page = bob.get("/hub/login")
        bob.patience_s = 3
        # There is no answer.
        assert bob.post("/hub/login", page, username="bob", password=PASSWORDS["bob"]).status == 0
        assert alice.get("/hub/now/data").json()["me"] == "alice"
    finally:
        directory.send(signal.SIGCONT)


def test_a_directory_that_is_gone_is_told_and_those_who_are_logged_in_go_on(
    portal: Portal, directory: Directory
) -> None:
    alice = Browser(portal)
    assert alice.log_in("alice", PASSWORDS["alice"]).status == 200
    directory.close()
    try:
        answer = Browser(portal).log_in("bob", PASSWORDS["bob"])
        assert answer.status == 503
        assert "the directory of users does not answer. To do:" in answer.text
        assert alice.get("/hub/now/data").json()["me"] == "alice"
    finally:
        directory.start()
    assert Browser(portal).log_in("bob", PASSWORDS["bob"]).status == 200


@pytest.mark.parametrize(
    ("options", "port", "status"),
    [
        # Its authority is not among those of the host.
        ({}, "port", 503),
        ({"tls_strategy": "on_connect"}, "tls_port", 503),
        ({"tls_strategy": "on_connect", "tls_kwargs": {"ca_certs_file": "ca.pem"}}, "tls_port", 200),
        # Its certificate is for localhost.
        ({"server_address": "127.0.0.1", "tls_kwargs": {"ca_certs_file": "ca.pem"}}, "port", 503),
        ({"tls_strategy": "insecure"}, "port", 200),
    ],
)
def test_no_password_goes_to_a_server_that_does_not_prove_who_it_is(
    directory: Directory, tmp_path: Path, options: dict[str, Any], port: str, status: int
) -> None:
    given = dict(options)
    if "tls_kwargs" in given:
        given["tls_kwargs"] = {"ca_certs_file": str(directory.authority)}
    before = len(directory.log())
    with portal_of(tmp_path, getattr(directory, port), **given) as portal:
        assert Browser(portal).log_in("bob", PASSWORDS["bob"]).status == status
    assert ("BIND dn=" in directory.log()[before:]) == (status == 200)
