# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program beside the registry, for all that concerns the space of its images."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import loop
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import guesses, layout
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.backup import backup
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.collect import (
    DAY_S,
    Ages,
    collect,
    mend,
    remove_uploads,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.watch import INTERVAL_S, Watch, gib

NAME = "baremetal-gpu-registry-store"
SOCKETS = "/proc/net/unix"
# As the kernel writes the states of sockets, and the mark of one that listens.
_CONNECTED, _LISTENS = "03", 0x10000


def sockets(path: str, table: str) -> tuple[bool, int]:
    """Whether something listens at a socket, and how many connections it has: nginx has one for each request."""
    listens, connections = False, 0
    for line in table.splitlines():
        words = line.split(None, 7)
        if len(words) == 8 and words[7] == path:
            listens = listens or bool(int(words[3], 16) & _LISTENS)
            connections += words[5] == _CONNECTED
    return listens, connections


def wait(socket: str, at_most_s: float, pause_s: float = 0.2) -> int:
    """Wait for a moment in which nothing is being pushed; the exit status.

    Not for ever: whoever pushes a byte now and then would keep everything that nobody needs.
    """
    until = time.monotonic() + at_most_s
    while True:
        _listens, connections = sockets(socket, read_text(SOCKETS))
        if not connections:
            return 0
        if time.monotonic() > until:
            print(f"something is pushed all the time: {connections} requests are cut now, and begin again")
            return 0
        time.sleep(pause_s)


def run_collect(root: str, socket: str, ages: Ages, record: str) -> int:
    if sockets(socket, read_text(SOCKETS))[0]:
        print(f"the registry that writes is running ({socket}). To do: systemctl start {NAME}-collect.service stops it")
        return 1
    with layout.locked(root):
        mended = mend(root)
        freed = collect(root, ages, time.time())
    for name in (*mended.tags, *mended.blobs):
        print(one_line(f"repaired {name}"))
    print(f"freed {gib(freed.bytes)}: {freed.blobs} blobs, and {freed.manifests} manifests without a tag")
    if record:
        with open(record, "w", encoding="ascii") as file:
            file.write(f"{freed.bytes}\n")
    return 0


def run_uploads(root: str, idle_s: float) -> int:
    removed = remove_uploads(root, idle_s, time.time())
    if removed.blobs:
        print(f"freed {gib(removed.bytes)}: {removed.blobs} layers of unfinished pushes")
    return 0


def run_mend(root: str) -> int:
    if not os.path.isdir(root):
        return 0
    mended = mend(root)
    for name in mended.tags:
        print(one_line(f"the tag {name} has its last manifest again"))
    for name in mended.blobs:
        print(f"removed {name}, which was not written to its end")
    return 0


def run_backup(root: str, target: str) -> int:
    if not os.path.isdir(target):
        print(f"{target} is not there. To do: mount it, or make it")
        return 1
    with layout.locked(root):
        copied = backup(root, target)
    for digest in copied.damaged:
        print(f"{digest} is not what its digest says, and was left out. To do: push its image again")
    print(f"{copied.repositories} repositories are in {target}; copied {gib(copied.bytes)}, {copied.blobs} blobs")
    return 1 if copied.damaged else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Space of the images of a registry.")
    parser.add_argument("--storage", metavar="PATH", help="the directory with the images")
    parser.add_argument("--socket", metavar="PATH", help="the socket of the registry that writes")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("watch", help="refuse pushes for which there is no space")
    command.add_argument("--limits", required=True, metavar="PATH")
    command.add_argument("--refused", required=True, metavar="PATH", help="directory of the refusals")
    command.add_argument("--guesses", default="", metavar="PATH", help="socket at which nginx reports wrong passwords")
    command.add_argument("--textfile", default="", metavar="PATH", help="file of metrics; ends in .prom")
    command.add_argument("--collected", default="", metavar="PATH", help="the record of collect")
    command = commands.add_parser("wait", help="wait until nothing is being pushed")
    command.add_argument("--at-most", type=float, default=3600, metavar="SECONDS")
    command = commands.add_parser("collect", help="free what no image needs; the registry that writes has to be off")
    command.add_argument("--untagged-days", type=float, default=0, metavar="DAYS")
    command.add_argument("--grace-hours", type=float, default=24, metavar="HOURS")
    command.add_argument("--record", default="", metavar="PATH")
    command = commands.add_parser("uploads", help="remove what was begun to be pushed and not finished")
    command.add_argument("--idle-hours", type=float, required=True, metavar="HOURS")
    commands.add_parser("mend", help="repair what an ended registry has left; that which writes has to be off")
    command = commands.add_parser("backup", help="copy the images")
    command.add_argument("--target", required=True, metavar="PATH")
    asked = parser.parse_args(words)
    if not asked.storage or (asked.command in ("wait", "collect") and not asked.socket):
        parser.error("give --storage, and --socket for wait and collect")
    try:
        if asked.command == "watch":
            watch = Watch(asked.storage, asked.limits, asked.refused, asked.textfile, asked.collected)
            heard = guesses.Guesses(asked.refused)
            if asked.guesses:
                guesses.listen(asked.guesses, heard)

            def look() -> str:
                heard.forgive()
                return watch.look()

            loop.serve(look, INTERVAL_S)
            return 0
        if asked.command == "wait":
            return wait(asked.socket, asked.at_most)
        if asked.command == "collect":
            ages = Ages(asked.untagged_days * DAY_S, asked.grace_hours * 3600)
            return run_collect(asked.storage, asked.socket, ages, asked.record)
        if asked.command == "uploads":
            return run_uploads(asked.storage, asked.idle_hours * 3600)
        if asked.command == "mend":
            return run_mend(asked.storage)
        return run_backup(asked.storage, asked.target)
    except OSError as why:
        sys.stderr.write(f"{why.filename or asked.storage}: {why.strerror or why}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
