# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on the log host that keeps the journals of the site within their space and their time.

Each host that sends has files of its own. An active file becomes an archived one once it is a day old or large, and
only archived files are removed: those with nothing new enough in them, then as many as it takes to get below the limit.
Of these the oldest of the host that has most goes first, so that a host that floods the log loses its own past, not
that of others. Times are those of the log host: what a host writes into its entries keeps nothing and removes nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Callable, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics, Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import journal_file, loop
from ansible_collections.baremetal.gpu.plugins.module_utils.logs.journal_file import Head

NAME = "baremetal-gpu-log-store"
DIRECTORY = "/var/log/journal/remote"
RECEIVER = "baremetal-gpu-log@{}.service"
INTERVAL_S = 60.0
RESTART_S = 120.0
DAY_S = 86400.0
# An active file larger than this is archived, so that what cannot be removed stays small.
ACTIVE_BYTES = 64 << 20
BY_AGE, BY_SPACE = "age", "space"

METRICS: Metrics = {
    "baremetal_gpu_log_store_bytes": ("gauge", ("sender",), "Space that the journal of a host takes on the log host."),
    "baremetal_gpu_log_store_written_timestamp_seconds": (
        "gauge",
        ("sender",),
        "When the log host wrote an entry last of a host that is to send; since when it waits for the first one.",
    ),
    "baremetal_gpu_log_store_limit_bytes": ("gauge", (), "Space that all journals may take on the log host."),
    "baremetal_gpu_log_store_removed_bytes_total": (
        "counter",
        ("reason",),
        "Space of journals that was freed since the program started, because of their age or for space.",
    ),
}


class Limits(NamedTuple):
    """:ivar free: what of the file system stays free. ``age_s``: how long an entry is kept at least."""

    space: int
    free: int
    age_s: float


class Stored(NamedTuple):
    """:ivar written: when it was written to last."""

    path: str
    sender: str
    is_active: bool
    bytes: int
    written: float


def stored(directory: str) -> list[Stored]:
    """The files, the oldest first."""
    found = []
    for row in journal_file.listed(directory):
        try:
            status = os.stat(row.path, follow_symlinks=False)
        except OSError:
            continue
        # journald makes room in a file before it fills it, and punches holes into what it archives.
        found.append(Stored(row.path, row.of, row.is_active, status.st_blocks * 512, status.st_mtime))
    return sorted(found, key=lambda row: row.written)


def is_due(path: str, head: Head, now: float) -> bool:
    """Whether an active file is to be archived."""
    made = journal_file.made_at(path)
    if made is None:
        made = head.head_realtime / 1e6
    return head.entries > 0 and (now - made >= DAY_S or os.stat(path).st_blocks * 512 >= ACTIVE_BYTES)


def rotate(directory: str, sender: str, now: float) -> bool:
    """Archive the active file of a host if that is due. To be called while nobody writes to it: before its receiver
    starts."""
    path = os.path.join(directory, f"{sender}.journal")
    head = journal_file.read(path)
    if head is None or not is_due(path, head, now):
        return False
    os.rename(path, journal_file.archived_name(path, head))
    return True


def restart_receiver(sender: str) -> str:
    """Have the receiver of a host archive its file; why it could not, empty if it could."""
    status, _out, error = host_run.run(["systemctl", "restart", RECEIVER.format(sender)], None, RESTART_S)
    return f"the receiver of {sender} does not restart: {error.strip()[:300]}" if status else ""


def free_bytes(directory: str) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Store:
    """Keeps the journals of a directory within limits.

    :ivar removed: bytes that were freed, by reason.
    """

    def __init__(
        self,
        limits: Limits,
        directory: str = DIRECTORY,
        textfile: str = "",
        restart: Callable[[str], str] = restart_receiver,
        say: Callable[[str, str], None] = loop.say,
        clock: Callable[[], float] = time.time,
        free: Callable[[str], int] = free_bytes,
        senders: Collection[str] | None = None,
    ) -> None:
        self._limits, self._directory, self._textfile = limits, directory, textfile
        self._restart, self._say, self._clock, self._free = restart, say, clock, free
        # None for all that have files. One that is to send and never did counts from now on.
        self._senders, self._began = senders, clock()
        self.removed = dict.fromkeys((BY_AGE, BY_SPACE), 0)

    def look(self) -> str:
        """One look; the value is what went wrong."""
        if not os.path.isdir(self._directory):
            return ""
        now = self._clock()
        wrong = [text for text in map(self._restart, self._due(now)) if text]
        if not wrong:
            wrong += [f"the journal of {sender} was not archived" for sender in self._due(now)]
        self._remove(self._too_old(now), BY_AGE)
        self._remove(self._too_much(), BY_SPACE)
        rows = stored(self._directory)
        total, free = sum(row.bytes for row in rows), self._free(self._directory)
        if total > self._limits.space or free < self._limits.free:
            wrong.append(
                f"the journals take {total} bytes and leave {free} free: what hosts write to at present is too much "
                "for the limits. To do: give log_host_space more, or the file system"
            )
        wrong.append(loop.write_metrics(self._textfile, exposition(self._samples(rows), METRICS)))
        return "; ".join(text for text in wrong if text)

    def _due(self, now: float) -> list[str]:
        active = [(row, journal_file.read(row.path)) for row in stored(self._directory) if row.is_active]
        return [row.sender for row, head in active if head and is_due(row.path, head, now)]

    def _too_old(self, now: float) -> Iterable[Stored]:
        return [row for row in stored(self._directory) if not row.is_active and now - row.written > self._limits.age_s]

    def _too_much(self) -> Iterable[Stored]:
        """What has to go for space. Each is removed before the next is looked for."""
        left = stored(self._directory)
        while True:
            total = sum(row.bytes for row in left)
            if total <= self._limits.space and self._free(self._directory) >= self._limits.free:
                return
            taken: dict[str, int] = {}
            for row in left:
                taken[row.sender] = taken.get(row.sender, 0) + row.bytes
            archived = [row for row in left if not row.is_active]
            if not archived:
                return
            # Of one host the oldest, since they are sorted by time.
            chosen = max(archived, key=lambda row: taken[row.sender])
            left.remove(chosen)
            yield chosen

    def _remove(self, rows: Iterable[Stored], reason: str) -> None:
        for row in rows:
            os.unlink(row.path)
            self.removed[reason] += row.bytes
            until = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.written))
            why = "because of their age" if reason == BY_AGE else "for space"
            self._say(f"removed entries of {row.sender} until {until}, {row.bytes >> 20} MiB, {why}", loop.NOTICE)

    def _samples(self, rows: Sequence[Stored]) -> list[Sample]:
        taken: dict[str, int] = {}
        written: dict[str, float] = {}
        for row in rows:
            taken[row.sender] = taken.get(row.sender, 0) + row.bytes
            written[row.sender] = max(written.get(row.sender, 0.0), row.written)
        if self._senders is not None:
            written = {sender: written.get(sender, self._began) for sender in self._senders}
        prefix = "baremetal_gpu_log_store_"
        return [
            *((f"{prefix}bytes", {"sender": sender}, count) for sender, count in sorted(taken.items())),
            *(
                (f"{prefix}written_timestamp_seconds", {"sender": sender}, round(when, 3))
                for sender, when in sorted(written.items())
            ),
            (f"{prefix}limit_bytes", {}, self._limits.space),
            *((f"{prefix}removed_bytes_total", {"reason": why}, count) for why, count in self.removed.items()),
        ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Keeps the journals of the site within their limits.")
    parser.add_argument("--rotate", metavar="HOST", help="archive the file of a host if that is due, and do no more")
    parser.add_argument("--space", type=int, default=0, metavar="BYTES", help="what all journals may take")
    parser.add_argument("--free", type=int, default=0, metavar="BYTES", help="what of the file system stays free")
    parser.add_argument("--days", type=float, default=0, help="how long entries are kept")
    parser.add_argument("--senders", metavar="PATH", default="", help="file with a host to send in each line")
    parser.add_argument("--textfile", metavar="PATH", default="", help="file of metrics to write; ends in .prom")
    asked = parser.parse_args(words)
    if asked.rotate:
        rotate(DIRECTORY, asked.rotate, time.time())
        return 0
    if asked.space <= 0 or asked.days <= 0:
        parser.error("give --space and --days")
    senders = None
    if asked.senders:
        with open(asked.senders, encoding="ascii") as file:
            senders = file.read().split()
    store = Store(Limits(asked.space, asked.free, asked.days * DAY_S), textfile=asked.textfile, senders=senders)
    loop.serve(store.look, INTERVAL_S)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
