# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on a host that sends its journal: what waits to be sent, and what journald dropped before that.

The journal itself is the spool. systemd-journal-upload keeps a cursor, the last entry that the log host has confirmed.
journald removes its oldest file when the journal is as large as it may be; entries of it after the cursor are lost to
the log host. The heads of the files tell how many those are, so no entry is read.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics, Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import journal_file, loop
from ansible_collections.baremetal.gpu.plugins.module_utils.logs.journal_file import Head

NAME = "baremetal-gpu-log-spool"
UPLOAD_STATE = "/var/lib/systemd/journal-upload/state"
STATE = "/var/lib/baremetal-gpu-log-spool/state.json"
INTERVAL_S = 30.0
_CURSOR = re.compile(r"^LAST_CURSOR=(.{1,500})$", re.MULTILINE)
_PART = re.compile(r"([a-z])=([0-9a-f]{1,32})(?:;|$)", re.ASCII)

METRICS: Metrics = {
    "baremetal_gpu_log_sender_waiting_entries": (
        "gauge",
        (),
        "Entries of the journal that the log host has not confirmed.",
    ),
    "baremetal_gpu_log_sender_dropped_entries_total": (
        "counter",
        (),
        "Entries that journald removed before the log host had confirmed them.",
    ),
    "baremetal_gpu_log_sender_confirmed_timestamp_seconds": (
        "gauge",
        (),
        "When the last entry was written that the log host has confirmed.",
    ),
    "baremetal_gpu_log_sender_oldest_waiting_timestamp_seconds": (
        "gauge",
        (),
        "No entry that waits is older than this; missing if none waits.",
    ),
}


class Cursor(NamedTuple):
    """An entry of the journal. `realtime` is in microseconds."""

    seqnum_id: str
    seqnum: int
    realtime: int


# Before the first confirmation every entry waits.
NOTHING_SENT = Cursor("", 0, 0)


def cursor_of(state: str) -> Cursor:
    """The cursor in the file of systemd-journal-upload."""
    line = _CURSOR.search(state)
    parts = dict(_PART.findall(line[1])) if line else {}
    if not {"s", "i", "t"} <= set(parts):
        return NOTHING_SENT
    return Cursor(parts["s"], int(parts["i"], 16), int(parts["t"], 16))


def entries_after(head: Head, cursor: Cursor) -> int:
    """How many entries of a file come after the cursor; of a file that it is in, at most so many."""
    # Numbers of entries can be compared within one series of them only.
    if head.seqnum_id == cursor.seqnum_id:
        first, last, here = head.head_seqnum, head.tail_seqnum, cursor.seqnum
        return 0 if last <= here else head.entries if first > here else min(head.entries, last - here)
    return 0 if head.tail_realtime <= cursor.realtime else head.entries


@dataclass
class Seen:
    """What is kept from one look to the next.

    :ivar files: the heads of the journal's files, by their ids.
    :ivar sent: how many entries of these are known to be sent: all that a file had when its last one was.
    :ivar dropped: entries that were dropped since the program first ran.
    """

    cursor: Cursor = NOTHING_SENT
    files: dict[str, Head] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    @classmethod
    def loaded(cls, text: str) -> Seen:
        """:raises ValueError: for what this program has not written."""
        try:
            content: Any = json.loads(text)
            heads = [Head(*row) for row in content["files"]]
            sent = {str(name): number for name, number in content["sent"].items()}
            numbers = [content["dropped"], *sent.values(), *(number for head in heads for number in head[2:])]
            cursor = Cursor(*content["cursor"])
            if not all(isinstance(number, int) for number in (*numbers, *cursor[1:])):
                raise TypeError("a number is none")
        except (AttributeError, KeyError, TypeError, RecursionError) as why:
            raise ValueError(str(why)) from None
        return cls(cursor, {head.file_id: head for head in heads}, sent, content["dropped"])

    def text(self) -> str:
        files = {"files": list(self.files.values()), "sent": self.sent}
        return json.dumps({"cursor": self.cursor, **files, "dropped": self.dropped}) + "\n"

    def waiting(self, head: Head) -> int:
        """How many entries of a file wait. Journals of users have numbers of their own, so that of the file that the
        cursor is in only this is known: what was sent when nothing of it waited."""
        return min(entries_after(head, self.cursor), max(0, head.entries - self.sent.get(head.file_id, 0)))

    def next(self, cursor: Cursor, files: Mapping[str, Head]) -> Seen:
        """What is there now."""
        sent = {
            name: self.sent.get(name, 0) if entries_after(head, cursor) else head.entries
            for name, head in files.items()
        }
        return Seen(cursor, dict(files), sent, self.dropped + self.dropped_since(files))

    def dropped_since(self, files: Mapping[str, Head]) -> int:
        """Entries that went with the files that are no longer there.

        They are counted by the cursor of this look, the last that is known from before the files went. What was
        confirmed in between counts too: rather too many than too few.
        """
        return sum(self.waiting(head) for name, head in self.files.items() if name not in files)


class Spool:
    """Looks at the journal of this host.

    :ivar found: metrics of the last look.
    """

    def __init__(
        self,
        journal: str,
        upload_state: str = UPLOAD_STATE,
        state: str = STATE,
        textfile: str = "",
        say: Callable[[str], None] = loop.say,
    ) -> None:
        self._journal, self._upload_state, self._state = journal, upload_state, state
        self._textfile, self._say = textfile, say
        self._seen = self._load()
        self.found: list[Sample] = []

    def _load(self) -> Seen:
        text = host_files.read_text(self._state, 1 << 20)
        try:
            return Seen.loaded(text) if text else Seen()
        except ValueError as why:
            self._say(f"{self._state} is damaged ({why}); the count of dropped entries begins again at 0")
            return Seen()

    def look(self) -> str:
        """One look; the value is what went wrong."""
        heads = (journal_file.read(row.path) for row in journal_file.listed(self._journal))
        files = {head.file_id: head for head in heads if head}
        cursor = cursor_of(host_files.read_foreign_text(self._upload_state))
        dropped = self._seen.dropped_since(files)
        if dropped:
            since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self._seen.cursor.realtime / 1e6))
            self._say(
                f"about {dropped} entries of the journal were dropped before the log host had them: the spool was "
                f"full. The last confirmed entry is of {since if self._seen.cursor.realtime else 'no time yet'}. "
                "To do: see why the log host is not reached, or give log_sender_spool more space"
            )
        self._seen = self._seen.next(cursor, files)
        self.found = self._samples()
        host_files.write(self._state, self._seen.text(), mode=0o600, durable=False)
        return loop.write_metrics(self._textfile, exposition(self.found, METRICS))

    def _samples(self) -> list[Sample]:
        cursor, files = self._seen.cursor, self._seen.files.values()
        waiting = {head: self._seen.waiting(head) for head in files}
        prefix = "baremetal_gpu_log_sender_"
        found: list[Sample] = [
            (f"{prefix}waiting_entries", {}, sum(waiting.values())),
            (f"{prefix}dropped_entries_total", {}, self._seen.dropped),
        ]
        if cursor.realtime:
            found.append((f"{prefix}confirmed_timestamp_seconds", {}, cursor.realtime / 1e6))
        oldest = [max(head.head_realtime, cursor.realtime) for head, count in waiting.items() if count]
        if oldest:
            found.append((f"{prefix}oldest_waiting_timestamp_seconds", {}, min(oldest) / 1e6))
        return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Counts what waits to be sent, and what was dropped.")
    parser.add_argument("--textfile", metavar="PATH", default="", help="file of metrics to write; ends in .prom")
    asked = parser.parse_args(words)
    machine = host_files.read_text("/etc/machine-id").strip()
    spool = Spool(os.path.join("/var/log/journal", machine), textfile=asked.textfile)
    loop.serve(spool.look, INTERVAL_S)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
