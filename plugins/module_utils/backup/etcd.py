# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots of the etcd that kubeadm runs on a control plane.

etcdctl and etcdutl run in a container of the image of etcd, which the host has anyway. So they are of the version that
wrote the data, also on a site without internet access, and also where etcd itself does not run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed, parse_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

MANIFESTS, STOPPED = "/etc/kubernetes/manifests", "/etc/kubernetes/stopped"
PKI = "/etc/kubernetes/pki/etcd"
ENDPOINT = "https://127.0.0.1:2379"
LOCK, NAME = "/run/baremetal-gpu/etcd.lock", "baremetal-gpu-etcd"
CTR = ["ctr", "--namespace=k8s.io"]
# A snapshot has at most 8 GiB.
CALL_S, ANSWER_S = 1800.0, 20.0
# What stays free.
ROOM = 64 << 20
CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """What the manifest of etcd's static pod says.

    :ivar url: by which the other members reach it.
    """

    name: str
    url: str
    data: str
    image: str


def member(root: str = "") -> Member | None:
    """The member of etcd that this host is; None for none. Raises Refused for a manifest that is not kubeadm's."""
    for directory in (MANIFESTS, STOPPED):
        text = host_files.read_text(f"{root}{directory}/etcd.yaml", 1 << 20)
        if text:
            words = {
                "name": r"- --name=(\S+)",
                "url": r"- --initial-advertise-peer-urls=([^\s,]+)",
                "data": r"- --data-dir=(/\S+)",
                "image": r"image: (\S+)",
            }
            found = {key: re.search(rf"^\s*{word}\s*$", text, re.MULTILINE) for key, word in words.items()}
            gaps = [key for key, row in found.items() if row is None]
            if gaps:
                raise Refused(
                    f"{directory}/etcd.yaml does not say the {' and the '.join(gaps)} of etcd",
                    "compare it with what `kubeadm init phase etcd local --dry-run` writes",
                    code="unknown_manifest",
                    subject="etcd",
                )
            return Member(**{key: row[1] for key, row in found.items() if row})
    return None


def call(
    image: str, words: Sequence[str], run: Run, read: Sequence[str] = (), write: Sequence[str] = ()
) -> tuple[int, str, str]:
    """Run etcdctl or etcdutl: exit status, stdout, and the last line of stderr, which says what is wrong.

    :param read: the directories of the host that the program may read, and ``write``, those that it may write to.
    """
    mounts = [f"--mount=type=bind,src={path},dst={path},options=rbind:ro" for path in read]
    mounts += [f"--mount=type=bind,src={path},dst={path},options=rbind:rw" for path in write]
    host_files.make_directories(os.path.dirname(LOCK))
    with open(LOCK, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # One whose caller was killed.
        run([*CTR, "tasks", "delete", "--force", NAME], None, CALL_S)
        run([*CTR, "containers", "delete", NAME], None, CALL_S)
        status, said, error = run([*CTR, "run", "--rm", "--net-host", *mounts, image, NAME, *words], None, CALL_S)
    lines = [line for line in error.splitlines() if line.strip()]
    return status, said, one_line(lines[-1] if lines else "", 300)


def save(path: str, run: Run, root: str = "") -> dict[str, Any]:
    """Write a snapshot of this host's member to a path, and compare it. Raises Refused; the path is a draft then."""
    found = member(root)
    if found is None:
        raise Refused(
            f"the host has no member of etcd: {MANIFESTS}/etcd.yaml is not there",
            "run `gpuops up --tags kubernetes`",
            code="no_etcd",
            subject="etcd",
        )
    directory = os.path.dirname(path)
    make_room(directory, f"{root}{found.data}/member/snap/db")
    login = [f"--cacert={root}{PKI}/ca.crt", f"--cert={root}{PKI}/server.crt", f"--key={root}{PKI}/server.key"]
    words = ["etcdctl", f"--endpoints={ENDPOINT}", *login]
    # Without an end of its own the second waits for an etcd that is not there.
    for limit, task in ((ANSWER_S, ["endpoint", "status"]), (CALL_S, ["snapshot", "save", path])):
        limited = [*words, f"--command-timeout={limit:.0f}s", *task]
        status, _said, error = call(found.image, limited, run, [f"{root}{PKI}"], [directory])
        if status:
            break
    if status:
        raise Refused(
            f"etcd gives no snapshot: {error}",
            "see `sudo crictl ps -a --name etcd` and `sudo journalctl -u kubelet`",
            code="no_snapshot",
            subject="etcd",
        )
    return verify(path, found.image, run)


def make_room(directory: str, source: str) -> None:
    """Raises Refused where the directory has no room for a copy of a file."""
    needed, free = ROOM, shutil.disk_usage(directory).free
    with suppress(FileNotFoundError):
        needed += os.path.getsize(source)
    if free < needed:
        raise Refused(
            f"{directory} has {free >> 20} MiB free, and {needed >> 20} MiB are needed",
            "make room there, or keep fewer snapshots or archives",
            code="no_room",
            subject="etcd",
        )


def verify(path: str, image: str, run: Run) -> dict[str, Any]:
    """What etcdutl tells of a snapshot, such as `revision` and `totalKey`. Raises Refused for one that is damaged."""
    told: dict[str, Any] = {}
    try:
        wrong = "" if _is_whole(path) else "its checksum is not that of its content"
        if not wrong:
            words = ["etcdutl", "snapshot", "status", path, "--write-out=json"]
            status, said, wrong = call(image, words, run, [os.path.dirname(path)])
            if not status:
                told, wrong = parse_object(said), ""
    except (OSError, Malformed) as why:
        wrong = str(why)
    if not told:
        raise Refused(
            f"{path} is not a whole snapshot of etcd: {wrong}", "take another one", code="damaged", subject="etcd"
        )
    return told


def _is_whole(path: str) -> bool:
    """etcd puts the SHA-256 of a snapshot behind it; etcdutl compares it only when it restores one."""
    digest = hashlib.sha256()
    left = os.path.getsize(path) - digest.digest_size
    with open(path, "rb") as file:
        while left > 0 and (data := file.read(min(left, CHUNK))):
            digest.update(data)
            left -= len(data)
        return left == 0 and file.read() == digest.digest()
