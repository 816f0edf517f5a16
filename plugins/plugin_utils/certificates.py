# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An authority and certificates of hosts, kept in a directory of the operator on the controller.

RSA, which any list of ciphers of Mesos has a place for. A certificate that is made again keeps its key, so that what
reads the two while they are exchanged never finds a pair that does not go together.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    # Only where a tool imports the plugins without what ansible-core requires.
    HAS_CRYPTOGRAPHY = False
else:
    HAS_CRYPTOGRAPHY = True

from ansible_collections.baremetal.gpu.plugins.module_utils.host import secret_file
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

BITS = 3072
DAY_S = 86400
AUTHORITY_DAYS = 3650
# Names and addresses; nothing that a file's name or a certificate cannot hold.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)
# What every host below a name has.
_BELOW = "*."


class Unreadable(Exception):
    """A file does not hold what its name promises."""


def alternative(name: str) -> str:
    """A name or an address with its kind, such as DNS:gpu1."""
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def checksum(path: str) -> str:
    """SHA-256 of a file; of one that is missing 64 zeros, which no file has."""
    try:
        return hashlib.sha256(_bytes(path)).hexdigest()
    except FileNotFoundError:
        return "0" * 64


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_key(path: str) -> PrivateKeyTypes:
    """:raises Unreadable: if there is no private key in it, or one with a passphrase."""
    try:
        return serialization.load_pem_private_key(_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unreadable(f"{path} is not a private key without a passphrase: {_first_line(error)}") from None


def read_certificates(path: str) -> list[x509.Certificate]:
    """The certificate of the file, and the intermediate ones after it. :raises Unreadable: if there is none in it."""
    try:
        return x509.load_pem_x509_certificates(_bytes(path))
    except ValueError as error:
        raise Unreadable(f"{path} is not a certificate in PEM: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


# -- the way from a certificate to its authority ----------------------------------------------------------------------


def leads_to(
    certificate: x509.Certificate, roots: Sequence[x509.Certificate], others: Sequence[x509.Certificate]
) -> bool:
    """Whether signatures lead from a certificate, by way of others, to a root that has signed itself."""
    if certificate in roots and _has_signed(certificate, certificate):
        return True
    roots, others = ([one for one in group if one != certificate] for group in (roots, others))
    issuers = (one for one in (*roots, *others) if _may_sign(one) and _has_signed(one, certificate))
    return any(leads_to(one, roots, others) for one in issuers)


def _may_sign(issuer: x509.Certificate) -> bool:
    try:
        return issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        # Certificates of the first version have no extensions.
        return issuer.version is x509.Version.v1
    except ValueError:
        return False


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


# -- pairs ------------------------------------------------------------------------------------------------------------


class Pair:
    """A certificate and its key: two files."""

    def __init__(self, certificate: str, key: str) -> None:
        self.certificate, self.key = certificate, key

    def described(self) -> dict[str, str]:
        """Paths and SHA-256 of both."""
        return {
            "certificate": self.certificate,
            "certificate_sha256": checksum(self.certificate),
            "key": self.key,
            "key_sha256": checksum(self.key),
        }

    def problem(self, authority: str, names: Iterable[str], valid_s: int) -> str:
        """Why it will not do; empty if it will.

        :param names: what it has to be valid for.
        :param valid_s: how long it has to be so from now on.
        """
        for path in (self.certificate, self.key):
            if not os.path.exists(path):
                return f"{path} is not there"
        try:
            key = read_key(self.key)
            certificate, *intermediate = read_certificates(self.certificate)
        except Unreadable as error:
            return str(error)
        if _public(key.public_key()) != _public(certificate.public_key()):
            return f"{self.certificate} and {self.key} do not go together"
        try:
            roots = read_certificates(authority)
        except Unreadable as error:
            return str(error)
        if not leads_to(certificate, roots, intermediate):
            return f"{self.certificate} is not from the authority {authority}"
        if certificate.not_valid_before_utc > _now():
            return f"{self.certificate} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        if _ends_within(certificate, valid_s):
            if _ends_within(certificate, 0):
                return f"{self.certificate} has ended on {certificate.not_valid_after_utc:%Y-%m-%d}"
            return f"{self.certificate} ends in less than {valid_s // DAY_S} days"
        missing = sorted({alternative(name) for name in names} - names_of(certificate))
        if missing:
            return f"{self.certificate} is not for {', '.join(missing)}"
        return ""


def _public(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _ends_within(certificate: x509.Certificate, seconds: int) -> bool:
    return certificate.not_valid_after_utc < _now() + timedelta(seconds=seconds)


def names_of(certificate: x509.Certificate) -> set[str]:
    """What it is for, as `alternative` writes them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return {alternative(name) for name in (*names.get_values_for_type(x509.DNSName), *addresses)}


def _now() -> datetime:
    return datetime.now(UTC)


# -- the authority ----------------------------------------------------------------------------------------------------


class Authority(Pair):
    """The authority in a directory, with its key, which stays there."""

    def __init__(self, directory: str) -> None:
        super().__init__(os.path.join(directory, "ca.pem"), os.path.join(directory, "ca-key.pem"))
        self.directory = directory

    def exists(self) -> bool:
        return os.path.exists(self.certificate) and os.path.exists(self.key)

    def ends_within(self, seconds: int) -> bool:
        return _ends_within(read_certificates(self.certificate)[0], seconds)

    def make(self) -> None:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        key = _new_key()
        subject = _subject("baremetal.gpu")
        signs = _usage(key_cert_sign=True, crl_sign=True)
        certificate = (
            _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(signs, critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(self.key, _private(key), 0o600)
        _write(self.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)

    def pair(self, name: str) -> Pair:
        """Of a host, whether it exists or not."""
        if not _PLAIN.fullmatch(name) or name.startswith((".", "-")):
            raise Refused(f"{name!r} cannot be the name of a file", "take letters, digits, dots and hyphens")
        base = os.path.join(self.directory, name)
        return Pair(f"{base}.pem", f"{base}-key.pem")

    def sign(self, name: str, names: Iterable[str], days: int) -> None:
        """A certificate of a host, for the key that it has, or a new one.

        :raises Refused: if a name cannot be in a certificate, or the authority cannot sign.
        """
        pair, names = self.pair(name), sorted(set(names))
        wrong = [alternative(one) for one in names if not _PLAIN.fullmatch(one.removeprefix(_BELOW))]
        if wrong or not names:
            raise Refused(f"{', '.join(wrong) or 'nothing'} cannot be in a certificate", "correct the name")
        try:
            authority_key, authority = read_key(self.key), read_certificates(self.certificate)[0]
        except Unreadable as error:
            raise Refused(f"{error}", "bring the directory back from where it is kept") from None
        if not isinstance(authority_key, rsa.RSAPrivateKey):
            raise Refused(f"{self.key} is not a key of RSA", "bring the directory back from where it is kept")
        key = _key_of(pair)
        certificate = (
            _builder(_subject(name[:64]), authority.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True, key_encipherment=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([_general_name(one) for one in names]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _key_of(pair: Pair) -> Any:
    """The key of a pair, or a new one where there is none that can be read."""
    try:
        return read_key(pair.key)
    except (FileNotFoundError, Unreadable):
        key = _new_key()
        _write(pair.key, _private(key), 0o600)
        return key


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=BITS)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(**purposes: bool) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{purpose: purposes.get(purpose, False) for purpose in every})


def _builder(subject: x509.Name, issuer: x509.Name, public_key: Any, days: int) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _write(path: str, content: bytes, mode: int) -> None:
    # On the controller an operator's own links lead where he wants.
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    secret_file.write(real, content.decode("ascii"), os.getuid(), os.getgid(), mode)


def check_mode_of(path: str) -> None:
    """:raises Refused: for a key that others may read."""
    if os.path.exists(path) and os.stat(path).st_mode & 0o077:
        raise Refused(f"others than its owner may read {path}", f"chmod 600 {path}")


# -- what the action does ---------------------------------------------------------------------------------------------


def keep(params: Mapping[str, Any], check: bool, warn: Callable[[str], object]) -> dict[str, Any]:
    """The result of the module cluster_certificates.

    :raises Refused: if certificates of the operator will not do, or ours cannot be made.
    """
    rows, own = params["certificates"], Authority(params["path"])
    reasons: list[str] = []
    if not 0 <= params["renew"] < params["days"]:
        raise Refused(
            f"certificates of {params['days']} days would be made again with {params['renew']} days left",
            "give fewer of the latter",
        )
    if params["authority"]:
        if not os.path.exists(params["authority"]):
            raise Refused(f"{params['authority']} is not there", "correct the files that the inventory names")
        pairs = _of_the_operator(rows, params["authority"], params["renew"] * DAY_S, warn)
    else:
        pairs, reasons = _of_our_authority(own, params, check)
        if own.exists() and own.ends_within(params["days"] * DAY_S):
            warn(f"the authority {own.certificate} ends within {params['days']} days")
    path = params["authority"] or own.certificate
    return {
        "changed": bool(reasons),
        "authority": {"path": path, "sha256": checksum(path)},
        "certificates": {name: pair.described() for name, pair in pairs.items()},
        "diff": {"before": "".join(f"{one}\n" for one in reasons), "after": "made\n" * len(reasons)},
    }


def _of_the_operator(
    rows: Sequence[Mapping[str, Any]], authority: str, renew_s: int, warn: Callable[[str], object]
) -> dict[str, Pair]:
    """The operator's certificates, checked."""
    pairs = {}
    for row in rows:
        if not row["certificate"] or not row["key"]:
            raise Refused(f"the certificate and key of {row['name']} are not given", "give both, or none at all")
        pair = pairs[row["name"]] = Pair(row["certificate"], row["key"])
        why = pair.problem(authority, row["names"], 0)
        if why:
            raise Refused(f"{why}", "correct the files that the inventory names")
        soon = pair.problem(authority, row["names"], renew_s)
        if soon:
            warn(soon)
    return pairs


def _of_our_authority(own: Authority, params: Mapping[str, Any], check: bool) -> tuple[dict[str, Pair], list[str]]:
    """The certificates of our authority, and why any had to be made."""
    reasons: list[str] = []
    if not own.exists():
        if params["held"]:
            raise Refused(
                f"{own.directory} has no authority, but {', '.join(params['held'])} have certificates",
                "bring the directory back from where it is kept; if it is lost, remove the authority's certificate on "
                "all hosts "
                "(docs/security.md lists the files), and run it without --limit",
            )
        reasons.append(f"{own.certificate} is not there")
        if not check:
            own.make()
    check_mode_of(own.key)
    pairs = {}
    for row in params["certificates"]:
        pair = pairs[row["name"]] = own.pair(row["name"])
        check_mode_of(pair.key)
        problem = (
            pair.problem(own.certificate, row["names"], params["renew"] * DAY_S)
            if own.exists()
            else f"{pair.certificate} is not there"
        )
        if problem:
            reasons.append(problem)
            if not check:
                own.sign(row["name"], row["names"], params["days"])
    return pairs, reasons
