# SPDX-License-Identifier: GPL-3.0-or-later
"""What real clusters answered, and how a test builds a device's label.

The label was captured from an OSD of Ceph 18.2.7 on Debian 13; its key was replaced by one of zeros.
"""

from __future__ import annotations

import base64
import struct
import uuid
from typing import Any

CLUSTER = "f8b1e7c5-b238-4b99-b329-65fe157bccd9"
OSD_UUID = "7f0c4f5b-ab1d-42fc-a5b2-832a360c4ac0"
META = {
    "bfm_blocks": "2097152",
    "bfm_blocks_per_key": "128",
    "bfm_bytes_per_block": "4096",
    "bfm_size": "8589934592",
    "bluefs": "1",
    "ceph_fsid": CLUSTER,
    "kv_backend": "rocksdb",
    "magic": "ceph osd volume v026",
    "mkfs_done": "yes",
    "ready": "ready",
    "require_osd_release": "18",
    "whoami": "1",
}


CAPTURED_LABEL = base64.b64decode(
    """
Ymx1ZXN0b3JlIGJsb2NrIGRldmljZQo3ZjBjNGY1Yi1hYjFkLTQyZmMtYTViMi04MzJhMzYwYzRhYzAKAgE8AgAAfwxPW6sdQvyl
soMqNgxKwAAAAAACAAAAtWcBa4e9TicEAAAAbWFpbg8AAAAKAAAAYmZtX2Jsb2NrcwcAAAAyMDk3MTUyEgAAAGJmbV9ibG9ja3Nf
cGVyX2tleQMAAAAxMjgTAAAAYmZtX2J5dGVzX3Blcl9ibG9jawQAAAA0MDk2CAAAAGJmbV9zaXplCgAAADg1ODk5MzQ1OTIGAAAA
Ymx1ZWZzAQAAADEJAAAAY2VwaF9mc2lkJAAAAGY4YjFlN2M1LWIyMzgtNGI5OS1iMzI5LTY1ZmUxNTdiY2NkORkAAABjZXBoX3Zl
cnNpb25fd2hlbl9jcmVhdGVkTAAAAGNlcGggdmVyc2lvbiAxOC4yLjcgKDZiMGU5ODgwNTJlYzg0Y2YyZDRhNTRmZjliYmJjNWU3
MjBiNjIxYWQpIHJlZWYgKHN0YWJsZSkKAAAAY3JlYXRlZF9hdBsAAAAyMDI2LTExLTIxVDA5OjQzOjE5LjMxNDgyMVoKAAAAa3Zf
YmFja2VuZAcAAAByb2Nrc2RiBQAAAG1hZ2ljFAAAAGNlcGggb3NkIHZvbHVtZSB2MDI2CQAAAG1rZnNfZG9uZQMAAAB5ZXMHAAAA
b3NkX2tleSgAAABBUUFBQUFBQUFBQUFBQkFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQT09BQAAAHJlYWR5BQAAAHJlYWR5EwAAAHJl
cXVpcmVfb3NkX3JlbGVhc2UCAAAAMTgGAAAAd2hvYW1pAQAAADGTnFrK
"""
)


def label(meta: dict[str, str] | None = None, osd_uuid: str = OSD_UUID) -> bytes:
    """The first 4096 bytes of a device, as BlueStore writes them (the checksum behind it is left out)."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    pairs = META if meta is None else meta
    body = uuid.UUID(osd_uuid).bytes + struct.pack("<QII", 8 << 30, 1795254199, 0) + text("main")
    body += struct.pack("<I", len(pairs)) + b"".join(text(key) + text(value) for key, value in pairs.items())
    head = f"bluestore block device\n{osd_uuid}\n".encode()
    return (head + struct.pack("<BBI", 2, 1, len(body)) + body).ljust(4096, b"\0")


def found(**more: Any) -> dict[str, Any]:
    """What ceph_devices.look says of an empty device, with differences."""
    return {
        "path": "/dev/disk/by-id/wwn-1",
        "real": "/dev/sdb",
        "size": 8 << 30,
        "error": None,
        "users": [],
        "signatures": [],
        "label": None,
        "lvm": [],
        "blank": True,
        **more,
    }
