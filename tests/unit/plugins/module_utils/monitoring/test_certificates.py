# SPDX-License-Identifier: GPL-3.0-or-later
"""When certificates end, by files that are as they should be and by files that are not."""

from __future__ import annotations

import base64
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import certificates
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import COMPLAINTS_AT_MOST, Part
from ansible_collections.baremetal.gpu.plugins.module_utils.system.certificate import NoCertificate, first_end

END = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
KEY = ec.generate_private_key(ec.SECP256R1())
PRIVATE = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
ENDS, READABLE = "baremetal_gpu_certificate_expiry_timestamp_seconds", "baremetal_gpu_certificate_readable"


def certificate(end: datetime = END, encoding: serialization.Encoding = serialization.Encoding.PEM) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "head1.example")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(end)
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(encoding)


def told(part: Part, name: str) -> dict[str, float]:
    return {Path(labels["path"]).name: value for metric, labels, value in part.samples if metric == name}


@pytest.mark.parametrize(
    "end",
    [END, datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC), datetime(9999, 12, 31)],
)
def test_a_certificate_ends_when_it_says(end: datetime) -> None:
    assert first_end(certificate(end)) == end.replace(tzinfo=UTC).timestamp()


def test_of_a_chain_with_its_key_the_one_that_ends_first_counts() -> None:
    chain = b"".join([b"CN = head1\n", certificate(datetime(2040, 1, 1)), PRIVATE, certificate(END), b"\n\n"])
    assert first_end(chain) == END.timestamp()


def test_paths_and_patterns_are_read_and_directories_among_them_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_bytes(certificate())
    (tmp_path / "b.pem").write_bytes(certificate(datetime(2032, 1, 1)))
    (tmp_path / "c.pem").mkdir()
    part = certificates.look([f"{tmp_path}/a.pem", f"{tmp_path}/*.pem", f"{tmp_path}/none/*"])
    assert told(part, ENDS) == {
        "a.pem": END.timestamp(),
        "b.pem": datetime(2032, 1, 1, tzinfo=UTC).timestamp(),
    }
    assert told(part, READABLE) == {"a.pem": 1.0, "b.pem": 1.0}
    assert part.complaints == []


def test_a_key_that_a_pattern_meets_is_no_certificate_and_one_that_is_named_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "head1.pem").write_bytes(certificate())
    (tmp_path / "key.pem").write_bytes(PRIVATE)
    part = certificates.look([f"{tmp_path}/*.pem"])
    assert (told(part, READABLE), part.complaints) == ({"head1.pem": 1.0}, [])
    part = certificates.look([f"{tmp_path}/key.pem"])
    assert told(part, READABLE) == {"key.pem": 0.0}
    assert len(part.complaints) == 1


GOOD = certificate()
DER = certificate(encoding=serialization.Encoding.DER)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 1000,
        DER,
        GOOD[: len(GOOD) // 2],
        GOOD.replace(b"MII", b"!!!", 1),
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n" * 30000,
        b"-----BEGIN CERTIFICATE-----\nMP////////////////////8=\n-----END CERTIFICATE-----\n",
        # A good one does not make up for one that is none.
        GOOD + b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        GOOD + b" " * certificates.BYTES_AT_MOST,
    ],
)
def test_garbage_is_told_of_and_hides_no_other_certificate(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.pem").write_bytes(content)
    (tmp_path / "good.pem").write_bytes(GOOD)
    part = certificates.look([f"{tmp_path}/bad.pem", f"{tmp_path}/good.pem"])
    assert told(part, ENDS) == {"good.pem": END.timestamp()}
    assert told(part, READABLE) == {"bad.pem": 0.0, "good.pem": 1.0}
    (complaint,) = part.complaints
    assert complaint.startswith(f"{tmp_path}/bad.pem cannot be read: ")


def test_what_is_missing_a_pipe_or_a_loop_of_links_is_told_of_and_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pem")
    (tmp_path / "loop.pem").symlink_to(tmp_path / "again.pem")
    (tmp_path / "again.pem").symlink_to(tmp_path / "loop.pem")
    (tmp_path / "round").symlink_to(tmp_path)
    part = certificates.look([f"{tmp_path}/missing.pem", f"{tmp_path}/*.pem", f"{tmp_path}/round/round/l*.pem"])
    assert set(told(part, READABLE)) == {"missing.pem", "pipe.pem", "loop.pem", "again.pem"}
    assert set(told(part, READABLE).values()) == {0.0}
    assert told(part, ENDS) == {}
    assert len(part.complaints) == 5


def test_damaged_certificates_end_in_a_time_or_in_a_refusal() -> None:
    made = random.Random(7)
    ends: list[float] = []
    refusals: list[str] = []
    for _number in range(3000):
        data = bytearray(DER)
        for _byte in range(made.randint(1, 4)):
            data[made.randrange(0, 200)] = made.randrange(256)
        text = base64.b64encode(bytes(data[: made.randint(1, len(data))]))
        try:
            ends.append(first_end(b"-----BEGIN CERTIFICATE-----" + text + b"-----END CERTIFICATE-----"))
        except NoCertificate as why:
            refusals.append(str(why))
    assert len(ends) + len(refusals) == 3000
    assert all(isinstance(end, float) for end in ends)
    assert {why.partition(":")[0] for why in refusals} == {"a certificate in it is damaged"}


def test_a_directory_with_too_many_files_is_read_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "FILES_AT_MOST", 30)
    for number in range(40):
        (tmp_path / f"{number}.pem").write_bytes(b"no")
    part = certificates.look([f"{tmp_path}/*.pem"])
    assert len(told(part, READABLE)) == 30
    assert "more than 30 files" in part.complaints[0]
    told_of = part.as_dict()["complaints"]
    assert len(told_of) == COMPLAINTS_AT_MOST + 1
    assert told_of[-1] == "11 more like these"


def test_names_of_files_make_no_second_series(tmp_path: Path) -> None:
    for name in ('a"\n} 1\nup 0\\.pem', "a \x1b.pem", "a \x07.pem"):
        (tmp_path / name).write_bytes(GOOD)
    part = certificates.look([f"{tmp_path}/*.pem"])
    assert sorted(told(part, ENDS)) == ["a \ufffd.pem", 'a" } 1 up 0\\.pem']
