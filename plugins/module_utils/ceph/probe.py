# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove a CephFS mount from the client's side: it answers, keeps what was written, and its quota refuses."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import subprocess
import time
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

KINDS = ("ceph", "fuse.ceph", "fuse.ceph-fuse")
BLOCK = 1 << 20
WRITTEN = 4 * BLOCK
# The MDS learns some seconds late that files are gone, and until then a quota refuses what would fit.
LATE = 60

FULL_REMEDY = "run `sudo ceph health detail` on a host of ceph_mons: a cluster that is full or unwell takes no write"


class Failed(Refused):
    """The mount does not keep what it must."""


def mounted(table: str = "/proc/self/mountinfo") -> dict[str, str]:
    """CephFS mounts of the host: path -> type. The last mount at a path is what one sees."""
    found: dict[str, str] = {}
    # Users mount what they like with FUSE, at paths of any bytes.
    with open(table, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            fields, _dash, more = line.partition(" - ")
            path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
            kind = more.partition(" ")[0]
            found.pop(path, None)
            if kind in KINDS:
                found[path] = kind
    return found


def unanswered(paths: list[str], timeout: float) -> list[str]:
    """What does not answer within the time; asked by other processes, since nothing ends a call that hangs."""
    asked = [
        (path, subprocess.Popen(["stat", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for path in paths
    ]
    deadline = time.monotonic() + timeout
    said = {path: _answer(process, deadline) for path, process in asked}
    return [f"{path} does not answer: {text}" for path, text in said.items() if text]


def _answer(process: subprocess.Popen[str], deadline: float) -> str:
    """What is wrong, or nothing."""
    try:
        _out, said = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return "it takes too long"
    return said.strip() or f"stat ended with {process.returncode}" if process.returncode else ""


def prove(directory: str, name: str, most: int, timeout: float) -> dict[str, Any]:
    """Write, read back, and be refused by the quota; nothing is left there.

    :param name: for the files, so that several hosts can do it at once.
    :param most: bytes after which the quota counts as not kept; 0 for not trying it.
    :raises Failed: what did not hold.
    """
    kept, filler = (os.path.join(directory, f".{kind}-{name}") for kind in ("kept", "filler"))
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(filler)
        expected = _keep(kept, timeout + LATE)
        return {"sha256": expected, **({"refused_after": _fill(filler, most)} if most else {})}
    finally:
        for path in (filler, kept):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _own(path: str, flags: int) -> int:
    """A new file: who else may write to the directory could have led its name elsewhere."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _keep(path: str, patience: float) -> str:
    content = os.urandom(WRITTEN)
    deadline = time.monotonic() + patience
    while True:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with open(path, "xb", opener=_own) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                # What is in the host's memory would prove nothing.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            break
        except OSError as error:
            if error.errno != errno.EDQUOT or time.monotonic() > deadline:
                raise Failed(f"a file cannot be written: {error.strerror}", FULL_REMEDY) from error
            time.sleep(2)
    with open(path, "rb") as file:
        read = hashlib.sha256(file.read()).hexdigest()
    expected = hashlib.sha256(content).hexdigest()
    if read != expected:
        raise Failed(f"{path} was written with SHA-256 {expected} and reads {read}: data are lost", "stop writing")
    return expected


def _fill(path: str, most: int) -> int:
    block = bytes(BLOCK)
    written = 0
    try:
        with open(path, "xb", buffering=0, opener=_own) as file:
            while written < most:
                written += file.write(block)
                os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.EDQUOT:
            return written
        raise Failed(
            f"filling it up to its quota ended with: {error.strerror}, instead of the quota's refusal"
        ) from error
    raise Failed(f"{written} bytes were written and no quota refused any", "see that the home has a size")
