# SPDX-License-Identifier: GPL-3.0-or-later
"""A home on CephFS against the file system below: the same fio on a client of the lab's storage cluster, in turns.

The client mounts CephFS with ceph-fuse and writes three copies to three machines; the baseline is the client's own
disk. All machines, monitors and OSDs run on one computer and share its disk and its cores, and the disks of the OSDs
are files. So the ratio is valid for this computer only, not for a cluster with its own hardware. It is the share of the
file system's throughput that CephFS reaches; 1 is as fast.

Cold is after a new mount and with an empty page cache; the OSDs keep what they have in their own memory. Warm is a
second read. Writes end with an fsync.

The benchmark creates a storage cluster of four machines in the lab and removes it at the end, unless GPUOPS_KEEP_LAB=1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.bench.harness import WALL, NotHere, Row, Sample, compare, paired
from tests.lab.machines.state import lab_id
from tests.roles.ceph_site import CLIENT, HOME, Site
from tests.site.plays import ssh

CEPHFS, BACKING = f"{HOME}/alice/bench", "/var/tmp/bench"
MIB = 64
# Name, what fio does, and whether nothing of it may be in memory before.
JOBS = (
    ("written in order, 1 MiB each", "--rw=write --bs=1M --end_fsync=1", False),
    ("read in order, 1 MiB each, cold", "--rw=read --bs=1M", True),
    ("read in order, 1 MiB each, warm", "--rw=read --bs=1M", False),
    ("written anywhere, 4 KiB each", "--rw=randwrite --bs=4k --io_size=8M --end_fsync=1", False),
    ("read from anywhere, 4 KiB each, cold", "--rw=randread --bs=4k --io_size=8M", True),
    ("read from anywhere, 4 KiB each, warm", "--rw=randread --bs=4k --io_size=8M", False),
)


def forget() -> None:
    """Of the kernel, which all machines share; and of the client, by mounting anew."""
    ssh(CLIENT, "sudo systemctl restart home-alice.mount && sudo ls /home/alice >/dev/null")
    ssh(CLIENT, "sync")
    Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")


def fio(directory: str, words: str, cold: bool) -> Sample:
    """How long the reads or writes took, without the making of the file."""
    if cold:
        forget()
    command = (
        f"sudo fio --name=job --directory={directory} --filename=file --size={MIB}M --ioengine=psync --invalidate=0 "
        f"--randseed=7 --output-format=json {words}"
    )
    (job,) = json.loads(ssh(CLIENT, command))["jobs"]
    if job["error"]:
        raise SystemExit(f"fio in {directory} ended with error {job['error']}: {words}")
    took = max(job[side]["runtime"] for side in ("read", "write")) / 1000
    return Sample(0.0, 0.0, directory, max(took, 0.001))


def side(directory: str, words: str, cold: bool) -> Callable[[], Sample]:
    return lambda: fio(directory, words, cold)


def run(quick: bool) -> list[Row]:
    if os.geteuid():
        raise NotHere("machines are made by root; run it as root")
    os.environ.setdefault("GPUOPS_LAB_ID", lab_id())
    site = Site()
    site.make()
    try:
        return measure(1 if quick else 5)
    finally:
        if not os.environ.get("GPUOPS_KEEP_LAB"):
            site.down()


def measure(pairs: int) -> list[Row]:
    ssh(CLIENT, "sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install fio >/dev/null 2>&1")
    for directory in (CEPHFS, BACKING):
        ssh(CLIENT, f"sudo mkdir -p {directory}")
        # What is read and overwritten.
        fio(directory, "--rw=write --bs=1M --end_fsync=1", False)
    rows: list[Row] = []
    for what, words, cold in JOBS:
        backing, ours = side(BACKING, words, cold), side(CEPHFS, words, cold)
        warm_up = () if cold else (backing, ours)
        found = paired(backing, ours, pairs, warm_up)
        rows += compare(what, found, {}, quantities=(WALL,))
    for directory in (CEPHFS, BACKING):
        ssh(CLIENT, f"sudo rm -rf {directory}")
    return rows
