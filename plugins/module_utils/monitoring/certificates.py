# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the certificates in files end.

Of X.509 (RFC 5280) only the end of the validity is read, so no library and no other program is needed.
"""

from __future__ import annotations

import base64
import calendar
import glob
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part

FILES_AT_MOST = 500
BYTES_AT_MOST = 1 << 20
PATH_AT_MOST = 300
_BEGIN, _END, _KEY = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----", b"PRIVATE KEY-----"
_SEQUENCE, _INTEGER, _UTC_TIME, _TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0
_MARK = re.compile(r"[*?[]")


class NoCertificate(ValueError):
    """It is none, or a part of one."""


def look(patterns: Sequence[str]) -> Part:
    """The metrics of certificates.

    :param patterns: paths, or patterns as a shell has them. A path has to be there; a pattern may match nothing.
    """
    part = Part()
    named = set(patterns)
    paths = list(itertools.islice(_paths(patterns), FILES_AT_MOST + 1))
    if len(paths) > FILES_AT_MOST:
        part.complain(f"there are more than {FILES_AT_MOST} files of certificates, and the rest is not read")
    for path in paths[:FILES_AT_MOST]:
        labels = {"path": one_line(path, PATH_AT_MOST)}
        try:
            text = host_files.read(path, BYTES_AT_MOST)
            if path not in named and _KEY in text and _BEGIN not in text:
                # A pattern often meets the key beside the certificate.
                continue
            end = first_end(text)
        except (OSError, NoCertificate) as why:
            part.complain(f"{labels['path']} cannot be read: {one_line(getattr(why, 'strerror', None) or why)}")
            end = None
        part.add("baremetal_gpu_certificate_readable", labels, float(end is not None))
        if end is not None:
            part.add("baremetal_gpu_certificate_expiry_timestamp_seconds", labels, end)
    return part


def _paths(patterns: Iterable[str]) -> Iterator[str]:
    seen = set()
    for pattern in patterns:
        found = glob.iglob(pattern) if _MARK.search(pattern) else [pattern]
        for path in found:
            # A pattern such as * also meets directories.
            if path not in seen and (path == pattern or not os.path.isdir(path)):
                seen.add(path)
                yield path


def first_end(text: bytes) -> float:
    """When the first of the certificates in PEM ends, in Unix seconds. Raises NoCertificate."""
    parts = [part.partition(_END) for part in text.split(_BEGIN)[1:]]
    if not parts:
        raise NoCertificate("it has no certificate in PEM")
    ends = []
    for body, end, _rest in parts:
        if not end:
            raise NoCertificate("a certificate in it was cut")
        try:
            ends.append(_end_of(base64.b64decode(b"".join(body.split()), validate=True)))
        except ValueError as why:
            raise NoCertificate(f"a certificate in it is damaged: {one_line(why)}") from None
    return min(ends)


def _end_of(data: bytes) -> float:
    """The end of the validity of a certificate in DER."""
    at, _end = _inside(data, _inside(data, 0, _SEQUENCE)[0], _SEQUENCE)
    if data[at : at + 1] == bytes([_VERSION]):
        at = _inside(data, at, _VERSION)[1]
    # The serial number, the algorithm of the signature, and who signed.
    for kind in (_INTEGER, _SEQUENCE, _SEQUENCE):
        at = _inside(data, at, kind)[1]
    at, _end = _inside(data, at, _SEQUENCE)
    at = _inside(data, at, _UTC_TIME, _TIME)[1]
    begin, end = _inside(data, at, _UTC_TIME, _TIME)
    return _seconds(data[begin:end].decode("ascii"), has_century=data[at] == _TIME)


def _inside(data: bytes, at: int, *kinds: int) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends. Raises ValueError where it is of another kind."""
    if at + 2 > len(data):
        raise ValueError("it is cut")
    if data[at] not in kinds:
        raise ValueError(f"byte {at} is not part of a certificate")
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
    if begin + length > len(data):
        raise ValueError("it is cut")
    return begin, begin + length


def _seconds(text: str, has_century: bool) -> float:
    if not re.fullmatch(r"\d{14}Z" if has_century else r"\d{12}Z", text, re.ASCII):
        raise ValueError("it has no end")
    if not has_century:
        # RFC 5280, 4.1.2.5.1.
        text = ("19" if text >= "50" else "20") + text
    return float(calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ")))
