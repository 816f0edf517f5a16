# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What timers run on a control plane: `snapshot SETTINGS` of etcd, and `renew SETTINGS` for certificates that end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import etcd, shelf
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed, parse_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run as run_program
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.renewal import Renewal

ENDING = ".db"


def snapshot(settings: Mapping[str, Any], run: Run, now: float, root: str = "") -> list[str]:
    """What was done, in lines. Raises Refused and OSError; the earlier snapshots are all there then."""
    directory, host = settings["path"], settings["host"]
    host_files.make_directories(directory, 0o700)
    path = os.path.join(directory, shelf.name_of(host, ENDING, now))
    draft = os.path.join(directory, f"{host_files.DRAFT}{os.urandom(8).hex()}")
    try:
        told = etcd.save(draft, run, root)
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.unlink(draft)
        raise
    # Makes the new name last, and removes what a run that was killed has left.
    with host_files.place(path) as there:
        there.sync()
    shelf.prune(directory, host, ENDING, settings["keep"], path)
    return [f"{path}: revision {told.get('revision')}, {os.path.getsize(path)} bytes"]


def renew(settings: Mapping[str, Any], run: Run, now: float, root: str = "") -> list[str]:
    """What was done, in lines. Raises Refused and OSError."""
    renewal = Renewal(run, settings["days"], root)
    done = renewal.perform(now)
    for path, user in settings["clients"].items():
        # Those of a role that is not on the host are not there.
        if os.path.exists(f"{root}{path}") and renewal.client_is_due(path, now):
            renewal.renew_client(path, user)
            done.append(path)
    return [f"{path}: renewed" for path in done]


def main(words: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if words is None else list(words)
    tasks = {"snapshot": snapshot, "renew": renew}
    if len(given) != 2 or given[0] not in tasks:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    before = os.umask(0o077)
    try:
        for line in tasks[given[0]](parse_object(host_files.read(given[1])), run_program, time.time()):
            sys.stdout.write(f"{line}\n")
    except (Refused, OSError, Malformed) as why:
        sys.stderr.write(f"{given[0]}: {why}\n")
        return 1
    finally:
        os.umask(before)
    return 0
