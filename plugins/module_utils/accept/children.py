# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Child processes side by side, one for each GPU, which tell what they find as they go.

A child that falls silent is ended, and what it told before stays. One that is silent and at work is slow, as on a busy
host, where it waits for a processor. It gets longer, but not for ever: one may wait for a GPU that hangs by asking it
again and again.

The children end with their parent, however that ends, and the parent ends when nobody reads any more what it will say.
So a run that is killed leaves no load behind, though a program that was started through SSH outlives its connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child
from ansible_collections.baremetal.gpu.plugins.module_utils.verify.cuda_driver import CudaError

Row = dict[str, Any]
Work = Callable[[Callable[[Row], None]], None]

PARENT_DEATH_SIGNAL = 1
STDOUT = 1
# How often it is looked whether somebody still waits for the result.
LOOK_S = 5.0
# At work is who has computed, or waited for a processor, for this share of the time. So many times as long it may be
# silent.
AT_WORK, LONGER = 0.1, 5
THREADS_MOST = 64


class NobodyWaits(SystemExit):
    """Who has started this process has gone."""


class _Child:
    """What the parent knows of one."""

    def __init__(self, pid: int, reader: int) -> None:
        self.pid, self.reader = pid, reader
        self.pending = b""
        self.step = "start"
        self.heard = self.looked = self.at_work = time.monotonic()
        self.worked = 0.0
        self.ended = False

    def look(self, now: float) -> None:
        """Notes whether it was at work since the last look."""
        worked = _worked(self.pid)
        if worked - self.worked >= AT_WORK * (now - self.looked):
            self.at_work = now
        self.worked, self.looked = worked, now

    def hangs(self, now: float, timeout_s: float) -> bool:
        silent = now - self.heard
        return silent >= LONGER * timeout_s or (silent >= timeout_s and now - self.at_work >= timeout_s)


def _worked(pid: int) -> float:
    """Seconds in which the threads of a process have run on a processor, or waited for one; 0 where none tells."""
    found = 0
    for thread in itertools.islice(glob.iglob(f"/proc/{pid}/task/*/schedstat"), THREADS_MOST):
        with contextlib.suppress(OSError, ValueError), open(thread, encoding="ascii") as stream:
            found += sum(int(word) for word in stream.read(200).split()[:2])
    return found * 1e-9


def _run(work: Work, writer: int, parent: int) -> None:
    """The child's part; it does not return."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        # Every GPU, numbered as the PCI bus has them; and nothing is written to the home directory.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_CACHE_DISABLE="1")

        def tell(row: Row) -> None:
            data = json.dumps(row).encode() + b"\n"
            while data:
                data = data[os.write(writer, data) :]

        try:
            work(tell)
        except CudaError as error:
            tell({"error": error.as_dict()})
        except Exception as error:
            tell({"error": {"call": "python", "code": None, "name": type(error).__name__, "text": str(error)}})
        tell({"end": True})
        status = 0
    finally:
        os._exit(status)


def together(
    works: Mapping[str, Work],
    timeout_s: float,
    take: Callable[[str, Row], None],
    helpers: frozenset[str] = frozenset(),
) -> dict[str, Row | None]:
    """Runs each work in a child of its own, all at the same time; the error of each, None for one that went well.

    :param timeout_s: so long a child may be silent.
    :param take: is given what a child tells, with its name.
    :param helpers: children that are ended when the others have ended.
    """
    children: dict[str, _Child] = {}
    for name, work in works.items():
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            for other in children.values():
                os.close(other.reader)
            _run(work, writer, parent)
        os.close(writer)
        children[name] = _Child(pid, reader)
    errors: dict[str, Row | None] = dict.fromkeys(works)
    try:
        while any(name not in helpers and not one.ended for name, one in children.items()):
            _listen(children, errors, timeout_s, take)
    finally:
        for one in children.values():
            if not one.ended:
                _end(one)
    return errors


def _listen(
    children: Mapping[str, _Child], errors: dict[str, Row | None], timeout_s: float, take: Callable[[str, Row], None]
) -> None:
    by_reader = {one.reader: name for name, one in children.items() if not one.ended}
    ready, _writable, _failed = select.select(list(by_reader), [], [], min(timeout_s / 20, LOOK_S))
    if _is_broken(STDOUT):
        raise NobodyWaits
    for reader in ready:
        name = by_reader[reader]
        one = children[name]
        data = os.read(reader, 65536)
        one.heard = time.monotonic()
        *lines, one.pending = (one.pending + data).split(b"\n")
        for row in map(json.loads, filter(None, lines)):
            one.step = row.get("step", one.step)
            if "error" in row:
                errors[name] = row["error"]
            elif "end" in row:
                one.ended = True
            else:
                take(name, row)
        if not data and not one.ended:
            ended = child.reap(one.pid)
            how = f"by signal {os.WTERMSIG(ended)}" if ended is not None and os.WIFSIGNALED(ended) else "without a word"
            errors[name] = _error(one.step, "CRASH", f"the process ended {how} in step '{one.step}'")
            os.close(reader)
            one.ended = True
        elif one.ended:
            os.close(reader)
            child.reap(one.pid)
    now = time.monotonic()
    for name in by_reader.values():
        one = children[name]
        if not one.ended and now - one.looked >= min(timeout_s / 20, LOOK_S):
            one.look(now)
        if not one.ended and one.hangs(now, timeout_s):
            gone = _end(one)
            text = f"no answer within {timeout_s:g} s in step '{one.step}'"
            if now - one.at_work < timeout_s:
                text = (
                    f"step '{one.step}' has not ended after {LONGER * timeout_s:g} s, though it was at work: the host "
                )
                text += "is too busy, or the GPU hangs"
            if not gone:
                text += f"; process {one.pid} waits in the kernel and cannot be ended"
            errors[name] = _error(one.step, "TIMEOUT", text)


def _is_broken(descriptor: int) -> bool:
    """Whether it is a pipe or a socket that nobody reads."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _descriptor, event in poll.poll(0))


def _end(one: _Child) -> bool:
    """Whether it has gone; a process that waits in the kernel for a dead GPU does not."""
    os.kill(one.pid, signal.SIGKILL)
    os.close(one.reader)
    one.ended = True
    return child.reap(one.pid) is not None


def _error(call: str, name: str, text: str) -> Row:
    return {"call": call, "code": None, "name": name, "text": text}
