# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on the host of slurmctld that writes metrics of Slurm for the textfile collector of node_exporter.

It asks Slurm one command after another. Where slurmctld does not answer, the file says so and has nothing of an earlier
answer but its time. Of two controllers the one in control tells of the cluster, so that each series comes once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.sd_notify import notify, watchdog_interval
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster, diagnosis, metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

NAME = "baremetal-gpu-slurm-metrics"
SLURM_CONF = "/etc/slurm/slurm.conf"
SACCTMGR = "/usr/bin/sacctmgr"
# Of each command.
TIMEOUT_S = 10.0
INTERVAL_S = 15.0
STOP = (signal.SIGTERM, signal.SIGINT)
_ACCOUNTING = re.compile(
    r"^\s*AccountingStorageType\s*=\s*accounting_storage/slurmdbd\s*$", re.IGNORECASE | re.MULTILINE
)


def complain(text: str) -> None:
    sys.stderr.write(f"{NAME}: {text}\n")


def is_standby(controllers: Mapping[str, bool], host: str) -> bool:
    """Whether another host's slurmctld is in control: the first that answers is, as the primary one takes it back.

    :param controllers: whether each answers, by the name of its host, the primary one first.
    :param host: the name of this host.
    """
    first = next((name for name, answers in controllers.items() if answers), None)
    return host in controllers and first not in (None, host)


class Exporter:
    """Looks at Slurm and makes the text of what it sees.

    :ivar last_success: when slurmctld answered last, in Unix seconds; None before it did.
    :ivar complaint: why the last look failed; empty if it did not.
    """

    def __init__(
        self,
        slurm: Slurm,
        run: Run = host_run.run,
        slurm_conf: str = SLURM_CONF,
        host: str = "",
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slurm, self._run, self._slurm_conf = slurm, run, slurm_conf
        self._host = (host or socket.gethostname()).partition(".")[0]
        self._clock, self._stopwatch = clock, stopwatch
        self.last_success: float | None = None
        self.complaint = ""

    def page(self) -> str:
        """The text of one look."""
        found: list[Sample] = []
        begun = self._stopwatch()
        try:
            if not is_standby(self._slurm.controllers(), self._host):
                found += metrics.samples(cluster.count(self._slurm))
        except CallFailed as why:
            # A part of an answer is none.
            found, self.complaint = [], str(diagnosis.no_answer(why.problem.cause))
        else:
            self.complaint, self.last_success = "", self._clock()
            found.append(("slurm_scrape_duration_seconds", {}, round(self._stopwatch() - begun, 6)))
        found.append(("slurm_controller_up", {}, float(not self.complaint)))
        if self.last_success is not None:
            found.append(("slurm_last_success_timestamp_seconds", {}, round(self.last_success, 3)))
        if _ACCOUNTING.search(read_text(self._slurm_conf)):
            found.append(("slurm_database_up", {}, float(self._database_answers())))
        return exposition(found, metrics.METRICS)

    def _database_answers(self) -> bool:
        argv = [SACCTMGR, "--noheader", "--parsable2", "show", "cluster", "format=Cluster"]
        status, _out, _error = self._run(argv, None, TIMEOUT_S)
        return status == 0


def write(exporter: Exporter, path: str) -> str:
    """Write the file of one look; what went wrong, empty if nothing did."""
    try:
        host_files.write(path, exporter.page(), durable=False)
    except OSError as why:
        # An old file would pass for what is there now.
        remove(path)
        return f"{path} cannot be written: {one_line(why.strerror or why)}. To do: see the directory and its disk"
    return exporter.complaint


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def waits(seconds: float) -> bool:
    """Wait so long, and tell systemd that all is well; False once this process is to stop."""
    until = time.monotonic() + seconds
    while True:
        notify("WATCHDOG=1")
        left = until - time.monotonic()
        patience = min(left, watchdog_interval() or left)
        if signal.sigtimedwait(STOP, max(0.0, patience)):
            return False
        if left <= patience:
            return True


def serve(exporter: Exporter, path: str, interval_s: float) -> None:
    """Look again and again until SIGTERM. The file ends with this process."""
    # Between two looks they are waited for; a look has an end.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    notify("READY=1")
    told = ""
    try:
        while True:
            begun = time.monotonic()
            complaint = write(exporter, path)
            took = time.monotonic() - begun
            if complaint and complaint != told:
                complain(complaint)
            told = complaint
            notify(f"STATUS={complaint or 'slurmctld answers'}")
            # A slurmctld that needs long to answer is asked less often.
            if not waits(max(interval_s - took, took)):
                return
    finally:
        notify("STOPPING=1")
        remove(path)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Writes metrics of Slurm for node_exporter.")
    parser.add_argument("--textfile", metavar="PATH", help="the file to write; ends in .prom")
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help="between two looks (default: %(default)g)"
    )
    parser.add_argument("--once", action="store_true", help="look once and print it, or write it to --textfile")
    asked = parser.parse_args(words)
    if not asked.once and not asked.textfile:
        parser.error("give --textfile PATH or --once")
    exporter = Exporter(Slurm(timeout_s=TIMEOUT_S))
    if not asked.once:
        serve(exporter, asked.textfile, asked.interval)
        return 0
    if asked.textfile:
        complaint = write(exporter, asked.textfile)
    else:
        sys.stdout.write(exporter.page())
        complaint = exporter.complaint
    if complaint:
        complain(complaint)
    return 1 if complaint else 0


if __name__ == "__main__":
    raise SystemExit(main())
