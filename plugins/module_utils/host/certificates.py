# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An authority and certificates of hosts, kept in a directory of the operator. Made with the program openssl.

RSA, which any list of ciphers of Mesos has a place for. A certificate that is made again keeps its key, so that what
reads the two while they are exchanged never finds a pair that does not go together.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import tempfile
from collections.abc import Iterable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

BITS = 3072
DAY_S = 86400
AUTHORITY_DAYS = 3650
_CONFIG = """[req]
distinguished_name = name
prompt = no
[name]
CN = {subject}
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[host]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature,keyEncipherment
extendedKeyUsage = serverAuth,clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{names}
"""
# What cannot be said in openssl's configuration, or means something there.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)


def alternative(name: str) -> str:
    """A name or an address as openssl tells it among the subject's alternative names, such as DNS:gpu1."""
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def checksum(path: str) -> str:
    """SHA-256 of a file; of one that is not there 64 zeros, which no file has."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return "0" * 64


class Pair:
    """A certificate and its key: two files."""

    def __init__(self, certificate: str, key: str, run: Run) -> None:
        self.certificate, self.key, self._run = certificate, key, run

    def told(self) -> dict[str, str]:
        """Paths and SHA-256 of both."""
        return {
            "certificate": self.certificate,
            "certificate_sha256": checksum(self.certificate),
            "key": self.key,
            "key_sha256": checksum(self.key),
        }

    def _of_certificate(self, *arguments: str) -> tuple[int, str]:
        code, said, wrong = openssl(self._run, "x509", "-in", self.certificate, "-noout", *arguments)
        return code, said if code == 0 else wrong

    def names(self) -> set[str]:
        """As `alternative` tells them."""
        code, said = self._of_certificate("-ext", "subjectAltName")
        found = re.findall(r"(DNS|IP Address):([^\s,]+)", said) if code == 0 else []
        return {alternative(name) for _kind, name in found}

    def problem(self, authority: str, names: Iterable[str], valid_s: int) -> str:
        """Why it will not do; empty if it will.

        :param names: what it has to be valid for.
        :param valid_s: how long it has to be so from now on.
        """
        for path in (self.certificate, self.key):
            if not os.path.exists(path):
                return f"{path} is not there"
        code, public, wrong = openssl(self._run, "pkey", "-in", self.key, "-pubout")
        if code:
            return f"{self.key} is no private key without a passphrase: {_last(wrong)}"
        code, said = self._of_certificate("-pubkey")
        if code:
            return f"{self.certificate} is no certificate in PEM: {_last(said)}"
        if said.strip() != public.strip():
            return f"{self.certificate} and {self.key} do not go together"
        code, said, wrong = openssl(
            self._run,
            "verify",
            "-CAfile",
            authority,
            "-untrusted",
            self.certificate,
            "-no_check_time",
            self.certificate,
        )
        if code:
            return f"{self.certificate} is not from the authority {authority}: {_last(said + wrong)}"
        if self._of_certificate("-checkend", str(valid_s))[0]:
            return f"{self.certificate} ends in less than {valid_s // DAY_S} days"
        missing = sorted({alternative(name) for name in names} - self.names())
        if missing:
            return f"{self.certificate} is not for {', '.join(missing)}"
        return ""


class Authority(Pair):
    """The authority in a directory, with its key, which stays there."""

    def __init__(self, directory: str, run: Run) -> None:
        super().__init__(os.path.join(directory, "ca.pem"), os.path.join(directory, "ca-key.pem"), run)
        self.directory = directory

    def is_there(self) -> bool:
        return os.path.exists(self.certificate) and os.path.exists(self.key)

    def ends_within(self, seconds: int) -> bool:
        return self._of_certificate("-checkend", str(seconds))[0] != 0

    def make(self) -> None:
        """:raises Refused: if openssl cannot."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory, prefix=".draft-") as draft:
            config = _config(draft, "baremetal.gpu Mesos", ())
            key = _new_key(self._run, draft)
            made = os.path.join(draft, "ca.pem")
            _must(
                self._run,
                "req",
                "-x509",
                "-new",
                "-key",
                key,
                "-config",
                config,
                "-extensions",
                "authority",
                "-sha256",
                "-days",
                str(AUTHORITY_DAYS),
                "-out",
                made,
            )
            _take(key, self.key, 0o600)
            _take(made, self.certificate, 0o644)

    def pair(self, name: str) -> Pair:
        """Of a host, whether it is there or not."""
        if not _PLAIN.fullmatch(name) or name.startswith((".", "-")):
            raise Refused(f"{name!r} cannot be the name of a file", "use letters, digits, dots and hyphens")
        base = os.path.join(self.directory, name)
        return Pair(f"{base}.pem", f"{base}-key.pem", self._run)

    def sign(self, name: str, names: Iterable[str], days: int) -> None:
        """A certificate of a host, for the key that it has, or a new one.

        :raises Refused: if openssl cannot, or a name cannot be in a certificate.
        """
        pair = self.pair(name)
        wanted = sorted({alternative(one) for one in names})
        wrong = [one for one in wanted if not _PLAIN.fullmatch(one)]
        if wrong or not wanted:
            raise Refused(f"{', '.join(wrong) or 'nothing'} cannot be in a certificate", "correct the name")
        with tempfile.TemporaryDirectory(dir=self.directory, prefix=".draft-") as draft:
            config = _config(draft, name[:64], wanted)
            if not os.path.exists(pair.key) or openssl(self._run, "pkey", "-in", pair.key, "-noout")[0]:
                _take(_new_key(self._run, draft), pair.key, 0o600)
            request, made = os.path.join(draft, "request.pem"), os.path.join(draft, "certificate.pem")
            _must(self._run, "req", "-new", "-key", pair.key, "-config", config, "-sha256", "-out", request)
            serial = f"0x{secrets.randbits(126) + 1:x}"
            _must(
                self._run,
                "x509",
                "-req",
                "-in",
                request,
                "-CA",
                self.certificate,
                "-CAkey",
                self.key,
                "-set_serial",
                serial,
                "-days",
                str(days),
                "-sha256",
                "-extfile",
                config,
                "-extensions",
                "host",
                "-out",
                made,
            )
            _take(made, pair.certificate, 0o644)


def openssl(run: Run, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors.

    :raises Refused: without the program.
    """
    code, said, wrong = run(["openssl", *arguments], None, 120)
    if code == 127:
        raise Refused("there is no program openssl here", "install the package openssl on the controller")
    return code, said, wrong


def _must(run: Run, *arguments: str) -> None:
    code, _said, wrong = openssl(run, *arguments)
    if code:
        raise Refused(f"openssl {arguments[0]} ended with {code}: {_last(wrong)}")


def _new_key(run: Run, draft: str) -> str:
    key = os.path.join(draft, "key.pem")
    _must(run, "genpkey", "-algorithm", "RSA", "-pkeyopt", f"rsa_keygen_bits:{BITS}", "-out", key)
    return key


def _config(draft: str, subject: str, names: Iterable[str]) -> str:
    path = os.path.join(draft, "openssl.cnf")
    rows = ",".join(names)
    with open(path, "w", encoding="utf-8") as file:
        file.write(_CONFIG.format(subject=subject, names=f"subjectAltName = {rows}" if rows else ""))
    return path


def _take(made: str, path: str, mode: int) -> None:
    # On the controller an operator's own links lead where he wants.
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    with open(made, encoding="utf-8") as file:
        secret_file.write(real, file.read(), os.getuid(), os.getgid(), mode)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1].strip()


def checked_mode(path: str) -> None:
    """:raises Refused: for a key that others may read."""
    if os.path.exists(path) and os.stat(path).st_mode & 0o077:
        raise Refused(f"others than its owner may read {path}", f"chmod 600 {path}")
