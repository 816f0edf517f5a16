# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins by LDAP and by OpenID Connect, as portal.yml sets them up on the lab's Slurm: a real slapd on a machine of its
own, a mock of a provider, and each time a session with a GPU, in which a cell asks the CUDA driver.

The tests run in order.
"""

from __future__ import annotations

import shlex
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site.plays import ssh, until
from tests.site.portal_lab import PASSWORD, Portal, run_cells, sessions
from tests.site.test_slurm import CONTROLLER
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.test_portal_oidc import MockProvider

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DIRECTORY, SUFFIX = "gpu2", "dc=example,dc=org"
NAME = "ldap.example.org"
IN_DIRECTORY = "the word of the directory"
TLS = "/etc/ldap/tls"
PEOPLE = "".join(
    f"dn: uid={name},{SUFFIX}\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\nsn: {name}\n"
    f"userPassword: {IN_DIRECTORY}\n\n"
    for name in ("alice", "nobody-here")
)
CERTIFICATES = f"""dn: cn=config
changetype: modify
add: olcTLSCertificateFile
olcTLSCertificateFile: {TLS}/certificate.pem
-
add: olcTLSCertificateKeyFile
olcTLSCertificateKeyFile: {TLS}/key.pem
"""


def certificate(base: Path, name: str) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    found = base / "certificate.pem", base / "key.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a-site"]
    files = ["-addext", f"subjectAltName={name}", "-out", str(found[0]), "-keyout", str(found[1])]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    return found


def put(machine: str, path: str, text: str, mode: str = "644") -> None:
    ssh(machine, f"printf %s {shlex.quote(text)} | sudo install -D -m {mode} /dev/stdin {path}")


@pytest.fixture(scope="module")
def directory(bare_portal: Portal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the certificate of slapd is on the portal's host."""
    asked = (
        "slapd slapd/domain string example.org\nslapd slapd/password1 password x\nslapd slapd/password2 password x\n"
    )
    ssh(
        DIRECTORY,
        f"printf {shlex.quote(asked)} | sudo debconf-set-selections && sudo apt-get update -qq && "
        "sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq -y slapd ldap-utils >/dev/null",
    )
    crt, key = certificate(tmp_path_factory.mktemp("ldap"), f"DNS:{NAME}")
    for path in (crt, key):
        put(DIRECTORY, f"{TLS}/{path.name}", path.read_text(), "600")
    ssh(DIRECTORY, f"sudo chown -R openldap {TLS}")
    ssh(DIRECTORY, f"printf %s {shlex.quote(CERTIFICATES)} | sudo ldapmodify -Q -Y EXTERNAL -H ldapi:///")
    ssh(DIRECTORY, f"printf {shlex.quote(PEOPLE)} | ldapadd -x -D cn=admin,{SUFFIX} -w x -H ldap://127.0.0.1")
    put(CONTROLLER, "/etc/ssl/site-ldap.pem", crt.read_text())
    address = ssh(DIRECTORY, "hostname -I").split()[0]
    ssh(CONTROLLER, f"echo {address} {NAME} | sudo tee -a /etc/hosts")
    yield "/etc/ssl/site-ldap.pem"
    ssh(CONTROLLER, f"sudo sed -i '/ {NAME}$/d' /etc/hosts; sudo rm -f /etc/ssl/site-ldap.pem")
    ssh(DIRECTORY, f"sudo apt-get purge -qq -y slapd >/dev/null; sudo rm -rf /var/lib/ldap {TLS}")


@pytest.fixture(scope="module")
def portal(bare_portal: Portal, directory: str) -> Iterator[Portal]:
    bare_portal.variables |= {
        "portal_login": "ldap",
        "portal_login_options": {
            "server_address": NAME,
            "bind_dn_template": f"uid={{username}},{SUFFIX}",
            "tls_kwargs": {"ca_certs_file": directory},
        },
    }
    try:
        with bare_portal.there() as there:
            yield there
    finally:
        for name in ("portal_login", "portal_login_options", "portal_domains"):
            bare_portal.variables.pop(name, None)


@pytest.fixture(scope="module")
def provider(portal: Portal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockProvider]:
    """A mock of a provider on this machine, whose certificate the portal's host trusts."""
    address = ssh(CONTROLLER, "ip -4 route show default").split()[2]
    crt, key = certificate(tmp_path_factory.mktemp("oidc"), f"IP:{address}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(crt, key)
    made = MockProvider(address, tls)
    made.callback = f"{portal.url}/hub/oauth_callback"
    put(CONTROLLER, "/usr/local/share/ca-certificates/site-oidc.crt", crt.read_text())
    ssh(CONTROLLER, "sudo update-ca-certificates 2>&1")
    yield made
    made.server.shutdown()
    ssh(CONTROLLER, "sudo rm -f /usr/local/share/ca-certificates/site-oidc.crt; sudo update-ca-certificates 2>&1")


def is_in(browser: Browser) -> bool:
    return "/hub/login" not in browser.get("/hub/now").url


def sees_its_gpu(portal: Portal, browser: Browser) -> None:
    """A session of alice with one GPU, and a cell in it."""
    cell = run_cells(portal, {browser: {"gpus": "1", "environment": "notebook"}})[browser.name]
    assert cell["text"].split() == ["cuInit", "0", "GPUs", "1"], cell
    assert [(user, state) for _number, user, state, _gpus in sessions()] == [("alice", "RUNNING")]
    (lease,) = [lease for node in browser.get("/hub/now/data").json()["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["gpus"]) == ("alice", 1)
    portal.stop(browser)
    until(lambda: not sessions(), 60, sessions)


def test_a_person_of_the_directory_logs_in_and_its_cell_has_a_gpu(portal: Portal) -> None:
    browser = portal.log_in("alice", IN_DIRECTORY)
    assert is_in(browser)
    sees_its_gpu(portal, browser)


@pytest.mark.parametrize(("name", "password"), [("alice", PASSWORD), ("bob", PASSWORD), ("nobody-here", IN_DIRECTORY)])
def test_who_is_not_in_the_directory_or_has_no_account_does_not_come_in(
    portal: Portal, name: str, password: str
) -> None:
    assert not is_in(portal.log_in(name, password))


def test_a_person_of_the_provider_logs_in_and_its_cell_has_a_gpu(portal: Portal, provider: MockProvider) -> None:
    portal.variables |= {
        "portal_login": "oidc",
        "portal_domains": ["example.org"],
        "portal_login_options": provider.options(),
    }
    play = portal.run()
    assert play.rc == 0, play.tail()
    assert portal.run().changed_tasks == {}
    browser = Browser(portal)
    provider.claims = {"sub": "1", "email": "alice@example.org", "email_verified": True}
    assert browser.get("/hub/oauth_login").status == 200
    browser.name = "alice"
    assert is_in(browser)
    sees_its_gpu(portal, browser)


def test_who_is_of_another_domain_does_not_come_in(portal: Portal, provider: MockProvider) -> None:
    browser = Browser(portal)
    provider.claims = {"sub": "1", "email": "alice@example.com", "email_verified": True}
    assert "it is of another domain" in browser.get("/hub/oauth_login").text
    assert not is_in(browser)
