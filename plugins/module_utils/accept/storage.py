# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a directory of the shared storage is, with fio, and how full the host's file systems are.

All of it happens with the rights of the directory's owner: a home is its user's, who could put a link in root's way.
The child that does the work removes its one file when it ends, when its parent does, and before it begins; so what a
host that lost power leaves is gone with the next run.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import SYSTEM_PATH

PREFIX = ".gpuops-accept-"
PARENT_DEATH_SIGNAL = 1
# What fio does, one part after the other, and the figure that is read of each: (words, direction, key).
PARTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "write_mb_s": (("--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"), "write", "bw_bytes"),
    "read_mb_s": (("--rw=read", "--bs=1m", "--iodepth=8"), "read", "bw_bytes"),
    "read_iops": (("--rw=randread", "--bs=4k", "--iodepth=16", "--time_based"), "read", "iops"),
    "write_iops": (("--rw=randwrite", "--bs=4k", "--iodepth=16", "--time_based"), "write", "iops"),
    "fsync_ms": (("--rw=write", "--bs=4k", "--iodepth=1", "--fsync=1", "--time_based"), "sync", "lat_ns"),
}
# A file system with less room than this many times the file is left alone.
ROOM = 4
OUTPUT_MOST = 4 << 20
LOOK_S = 0.1
# Beyond the seconds of the parts: to lay the file out, and to empty the caches.
EXTRA_S = 60.0
LOCAL = ("/", "/var", "/tmp")


class CannotMeasure(Exception):
    """It was not tried; the text says why."""


class Fault(CannotMeasure):
    """The storage did not do what it was asked to."""


@dataclass(frozen=True)
class Options:
    """How much.

    :ivar seconds: of each part.
    :ivar fio: name or path of the program.
    """

    mib: int = 256
    seconds: float = 3.0
    fio: str = "fio"


def words(directory: str, options: Options) -> list[str]:
    """The command line. Every part has the same file, and begins when the one before has ended."""
    listed = [options.fio, "--output-format=json", "--thread", f"--directory={directory}", "--filename=data"]
    listed += [f"--size={options.mib}m", f"--runtime={options.seconds:g}", "--ioengine=libaio", "--direct=1"]
    for name, (part, _direction, _key) in PARTS.items():
        listed += [f"--name={name}", "--stonewall", *part]
    return listed


def figures(output: str) -> dict[str, float]:
    """What fio measured, by part. Raises CannotMeasure."""
    try:
        # Warnings come before the document.
        found = {job["jobname"]: job for job in json.loads(output[output.index("{") :])["jobs"]}
        wrong = [f"{name}: {os.strerror(job['error'])}" for name, job in found.items() if job["error"]]
        if wrong:
            raise Fault(f"fio failed: {', '.join(wrong)}")
        figures = {}
        for name, (_words, direction, key) in PARTS.items():
            value = found[name][direction][key]
            figures[name] = value["mean"] * 1e-6 if key == "lat_ns" else value * (1e-6 if key == "bw_bytes" else 1)
    except (KeyError, TypeError, ValueError, RecursionError) as failure:
        raise CannotMeasure("what fio says cannot be read") from failure
    return {name: round(value, 3) for name, value in figures.items()}


def space(path: str) -> dict[str, Any] | None:
    """{path, total_bytes, free_bytes, device} of the file system of a path, as users have it."""
    try:
        found = os.statvfs(path)
        device = os.stat(path).st_dev
    except OSError:
        return None
    unit = found.f_frsize
    return {"path": path, "device": device, "total_bytes": found.f_blocks * unit, "free_bytes": found.f_bavail * unit}


def spaces(paths: Sequence[str] = LOCAL) -> list[dict[str, Any]]:
    """Each file system once."""
    rows: dict[int, dict[str, Any]] = {}
    for row in map(space, paths):
        if row is not None:
            rows.setdefault(row.pop("device"), row)
    return list(rows.values())


def _become_owner(directory: str) -> None:
    """For good. A directory of root in which others could rename things is refused. Raises CannotMeasure."""
    row = os.stat(directory)
    if not stat.S_ISDIR(row.st_mode):
        raise CannotMeasure(f"{directory} is not a directory")
    if os.geteuid() != 0:
        return
    if row.st_uid == 0:
        if row.st_mode & 0o022 and not row.st_mode & stat.S_ISVTX:
            raise CannotMeasure(f"{directory} belongs to root, and others may write there: name another directory")
        return
    os.setgroups([])
    os.setgid(row.st_gid)
    os.setuid(row.st_uid)


def _place(directory: str) -> str:
    return os.path.join(directory, PREFIX + socket.gethostname())


def _clean(directory: str) -> None:
    """shutil.rmtree follows no link, and refuses to begin at one."""
    place = _place(directory)
    if os.path.lexists(place):
        shutil.rmtree(place)


def _with_parent() -> None:
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _run(directory: str, options: Options, caller: int, deadline: float) -> str:
    """What fio prints. It is ended with its caller, and when it is late."""
    place = _place(directory)
    os.mkdir(place, 0o700)
    fio = subprocess.Popen(
        words(place, options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=place,
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"},
        # Only C code follows in the child.
        preexec_fn=_with_parent,
    )
    try:
        said = _wait(fio, caller, deadline)
    finally:
        if fio.poll() is None:
            fio.kill()
            fio.wait()
    text = said.decode("utf-8", "replace")
    if fio.returncode and "{" not in text:
        raise CannotMeasure(f"fio ended with {fio.returncode}: {' '.join(text.split())[:300]}")
    return text


def _wait(fio: subprocess.Popen[bytes], caller: int, deadline: float) -> bytes:
    output = cast("IO[bytes]", fio.stdout).fileno()
    said = b""
    while True:
        ready, _writable, _failed = select.select([output], [], [], LOOK_S)
        block = os.read(output, 65536) if ready else b""
        if ready and not block:
            fio.wait()
            return said
        said += block[: OUTPUT_MOST - len(said)]
        if os.getppid() != caller:
            raise CannotMeasure("the run was cut")
        if time.monotonic() > deadline:
            raise Fault("the storage did not answer in time")


def _work(directory: str, options: Options, caller: int, deadline: float) -> dict[str, Any]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _become_owner(directory)
        _clean(directory)
        room = space(directory)
        if room is None or room["free_bytes"] < ROOM * options.mib << 20:
            raise CannotMeasure(f"{directory} has less than {ROOM * options.mib} MiB left")
        try:
            found: dict[str, Any] = figures(_run(directory, options, caller, deadline))
        finally:
            _clean(directory)
        del room["device"]
        return {"error": None, **found, "space": room}
    except (CannotMeasure, OSError) as failure:
        return {"error": str(failure), "is_fault": isinstance(failure, (Fault, OSError))}


def _only_clean(directory: str) -> dict[str, Any]:
    _become_owner(directory)
    _clean(directory)
    return {}


def measure(directory: str, options: Options) -> dict[str, Any]:
    """{directory, error, is_fault, the figures of PARTS, space}. Never raises for what the storage does."""
    patience = len(PARTS) * options.seconds + EXTRA_S
    caller, deadline = os.getpid(), time.monotonic() + patience
    try:
        found = child.answer(lambda: _work(directory, options, caller, deadline), patience + 30.0)
    except child.Failed as failure:
        found = {"error": f"{directory} does not answer: {failure}", "is_fault": True}
        try:
            child.answer(lambda: _only_clean(directory), 30.0)
        except child.Failed as another:
            found["error"] += f"; {_place(directory)} may still be there ({another})"
    return {"directory": directory, "is_fault": False, **dict.fromkeys(PARTS), "space": None, **found}


def first_there(directories: Sequence[str], patience_s: float = 30.0) -> str | None:
    """The first of them that is there. Asked by a child: to look at a home mounts it, and may take for ever."""

    def look() -> Mapping[str, Any]:
        return {"found": next((path for path in directories if os.path.isdir(path)), None)}

    try:
        found = child.answer(lambda: dict(look()), patience_s)["found"]
    except child.Failed:
        return directories[0]
    return found if isinstance(found, str) else None


def gather(directories: Sequence[str], options: Options) -> dict[str, Any]:
    """{has_fio, spaces, measured}; measured is null where there is no directory, or no fio."""
    has_fio = shutil.which(options.fio, path=SYSTEM_PATH) is not None
    directory = first_there(directories) if directories and has_fio else None
    return {
        "has_fio": has_fio,
        "spaces": spaces(),
        "measured": measure(directory, options) if directory is not None else None,
    }
