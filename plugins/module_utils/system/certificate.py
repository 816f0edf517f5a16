# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When certificates end.

Of X.509 (RFC 5280) only the end of the validity is read, so no library and no other program is needed.
"""

from __future__ import annotations

import base64
import calendar
import re
import time

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_SEQUENCE, _INTEGER, _UTC_TIME, _TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0


class NoCertificate(ValueError):
    """It is none, or a part of one."""


def first_end(text: bytes) -> float:
    """When the first of the certificates in PEM ends, in Unix seconds. Raises NoCertificate."""
    parts = [part.partition(_END) for part in text.split(BEGIN)[1:]]
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
