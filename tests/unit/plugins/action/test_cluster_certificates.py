# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of a Mesos cluster: made once, for the names that are asked for, and never with a key that is open."""

from __future__ import annotations

import json
import shutil
import ssl
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ansible_collections.baremetal.gpu.plugins.action.cluster_certificates import ActionModule

HOST = {"name": "gpu1", "names": ["gpu1", "gpu1.example.com", "10.0.0.7", "fd00::7"]}


class Kept:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, check: bool = False, **arguments: Any) -> dict[str, Any]:
        params = {"path": str(self.place), "certificates": [HOST], **arguments}
        task = SimpleNamespace(args=params, check_mode=check, async_val=0, action="cluster_certificates")
        return ActionModule(task, Mock(), Mock(), Mock(), Mock(), Mock()).run()


@pytest.fixture
def ask(tmp_path: Path) -> Kept:
    return Kept(tmp_path / ".secrets/mesos-tls")


def openssl(*arguments: Any) -> str:
    return subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_they_are_made_once_closed_and_for_the_names(ask: Kept) -> None:
    first = ask()
    assert first["changed"]
    row = first["certificates"]["gpu1"]
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in ask.place.iterdir()} == {
        "ca.pem": "0o644",
        "ca-key.pem": "0o600",
        "gpu1.pem": "0o644",
        "gpu1-key.pem": "0o600",
    }
    assert stat.S_IMODE(ask.place.stat().st_mode) == 0o700
    told = openssl("x509", "-in", row["certificate"], "-noout", "-ext", "subjectAltName,extendedKeyUsage")
    for name in ("DNS:gpu1,", "DNS:gpu1.example.com", "IP Address:10.0.0.7", "IP Address:FD00", "Client", "Server"):
        assert name in told
    # As strict as a client may be.
    openssl("verify", "-x509_strict", "-CAfile", first["authority"]["path"], row["certificate"])
    second = ask()
    assert (second["changed"], second["certificates"]) == (False, first["certificates"])
    assert "PRIVATE KEY" not in json.dumps([first, second])


def test_other_names_and_an_end_that_is_near_make_it_again_with_its_key(ask: Kept) -> None:
    first = ask()["certificates"]["gpu1"]
    more = ask(certificates=[{"name": "gpu1", "names": ["gpu1", "10.0.0.8"]}])
    assert more["changed"]
    assert "is not for IP:10.0.0.8" in more["diff"]["before"]
    row = more["certificates"]["gpu1"]
    assert row["certificate_sha256"] != first["certificate_sha256"]
    assert row["key_sha256"] == first["key_sha256"]
    short = {"certificates": [{"name": "gpu1", "names": ["gpu1"]}], "days": 20, "renew": 3}
    assert ask(**{**short, "certificates": [{"name": "gpu1", "names": ["other"]}]})["changed"]
    kept = ask(certificates=[{"name": "gpu1", "names": ["other"]}], days=20, renew=3)
    assert not kept["changed"]
    again = ask(certificates=[{"name": "gpu1", "names": ["other"]}])
    assert "ends in less than 30 days" in again["diff"]["before"]


def test_a_pair_that_was_cut_between_its_files_is_mended(ask: Kept) -> None:
    row = ask()["certificates"]["gpu1"]
    Path(row["certificate"]).unlink()
    mended = ask()
    assert mended["changed"]
    assert mended["certificates"]["gpu1"]["key_sha256"] == row["key_sha256"]
    Path(row["key"]).write_text("-----BEGIN PRIVATE")
    assert ask()["changed"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(row["certificate"], row["key"])


def test_check_mode_makes_nothing(ask: Kept) -> None:
    found = ask(check=True)
    assert found["changed"]
    assert set(found["certificates"]["gpu1"]["key_sha256"]) == {"0"}
    assert not ask.place.exists()


def test_an_authority_that_was_lost_is_not_replaced(ask: Kept) -> None:
    ask()
    shutil.rmtree(ask.place)
    said = ask(held=["gpu1", "gpu2"])["msg"]
    assert "no authority, but gpu1, gpu2 have certificates. To do: " in said
    assert not ask.place.exists()


def test_a_key_that_others_may_read_is_refused(ask: Kept) -> None:
    Path(ask()["certificates"]["gpu1"]["key"]).chmod(0o644)
    assert "chmod 600" in ask()["msg"]


def test_what_cannot_be_in_a_certificate_is_refused(ask: Kept) -> None:
    said = ask(certificates=[{"name": "gpu1", "names": ["a\nb = c"]}])["msg"]
    assert "cannot be in a certificate" in said
    assert "cannot be the name of a file" in ask(certificates=[{"name": "../x", "names": ["a"]}])["msg"]
    assert "give fewer" in ask(days=30, renew=30)["msg"]


def test_the_operators_are_checked_and_left(ask: Kept, tmp_path: Path) -> None:
    other = Kept(tmp_path / "company")
    theirs = other()
    row = theirs["certificates"]["gpu1"]
    given = {**HOST, "certificate": row["certificate"], "key": row["key"]}
    authority = theirs["authority"]["path"]
    found = ask(certificates=[given], authority=authority)
    assert (found["changed"], found["certificates"]["gpu1"]) == (False, row)
    assert found["authority"]["path"] == authority
    assert not ask.place.exists()
    for wrong, words in (
        ({"certificates": [{**given, "names": ["gpu2"]}]}, "is not for DNS:gpu2"),
        ({"certificates": [{**given, "key": authority}]}, "is not a private key"),
        ({"certificates": [{**given, "key": str(other.place / "ca-key.pem")}]}, "do not go together"),
        ({"certificates": [{**given, "certificate": "/nosuch"}]}, "/nosuch is not there"),
        ({"certificates": [HOST]}, "give both"),
    ):
        said = ask(authority=authority, **{"certificates": [given], **wrong})["msg"]
        assert words in said
        assert "To do: " in said
    elsewhere = Kept(tmp_path / "elsewhere")()["authority"]["path"]
    assert "is not from the authority" in ask(certificates=[given], authority=elsewhere)["msg"]


def test_intermediate_certificates_lead_to_the_authority(ask: Kept, tmp_path: Path) -> None:
    """As companies have it: the authority signs another one, which signs the hosts' certificates."""

    def signed(name: str, by: str, extensions: str) -> Path:
        (tmp_path / f"{name}.ext").write_text(extensions)
        openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / f"{name}-key.pem", "-subj",
                f"/CN={name}", "-out", tmp_path / f"{name}.csr")  # fmt: skip
        issuer = ("-CA", tmp_path / f"{by}.pem", "-CAkey", tmp_path / f"{by}-key.pem", "-CAcreateserial")
        key = ("-signkey", tmp_path / f"{name}-key.pem")
        openssl("x509", "-req", "-in", tmp_path / f"{name}.csr", *(key if by == name else issuer), "-days", "90",
                "-extfile", tmp_path / f"{name}.ext", "-out", tmp_path / f"{name}.pem")  # fmt: skip
        return tmp_path / f"{name}.pem"

    authority = "basicConstraints=critical,CA:TRUE"
    root, between = signed("root", "root", authority), signed("between", "root", authority)
    host = signed("host", "between", "subjectAltName=DNS:gpu1")
    row = {"name": "gpu1", "names": ["gpu1"], "certificate": str(host), "key": str(tmp_path / "host-key.pem")}
    assert "is not from the authority" in ask(certificates=[row], authority=str(root))["msg"]
    host.write_text(host.read_text() + between.read_text())
    assert not ask(certificates=[row], authority=str(root)).get("failed")
    assert "is not from the authority" in ask(certificates=[row], authority=str(between))["msg"], "no root"
    leaf = signed("leaf", "host", "subjectAltName=DNS:gpu1")
    leaf.write_text(leaf.read_text() + host.read_text())
    wrong = {**row, "certificate": str(leaf), "key": str(tmp_path / "leaf-key.pem")}
    # What is no authority cannot sign.
    assert "is not from the authority" in ask(certificates=[wrong], authority=str(root))["msg"]
