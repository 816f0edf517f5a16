# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount a directory of CephFS for a moment, as a client does, and prove it; nothing of it is left on the host."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mounts as ceph_mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe as ceph_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.probe import Failed
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run

# One place, so that a run finds what one before it that was cut has left.
PLACE = "/run/baremetal-gpu-cephfs-scratch"
GONE = 20
REACH = (
    "see that the monitors' ports 3300 and 6789 and the other daemons' 6830 to 7568 can be reached from here, "
    "and on a monitor's host `sudo ceph health detail`"
)


@contextlib.contextmanager
def mounted(mount: Mapping[str, Any], settings: Mapping[str, Any], place: str = PLACE) -> Iterator[str]:
    """The directory, mounted; given back and cleaned up at the end, whatever happened.

    :param mount: subpath, client, secret.
    :param settings: kernel (bool), filesystem, monitors, fsid, ms_mode, timeout (seconds), as in ceph_mounts.
    :raises Failed: if it cannot be mounted.
    """
    where, secret, conf = (os.path.join(place, name) for name in ("mount", "secret", "ceph.conf"))
    _give_back(place, where)
    os.makedirs(where, mode=0o700)
    os.chmod(place, 0o700)
    try:
        _write(secret, ceph_mounts.secret_text(mount, settings))
        _write(conf, ceph_mounts.conf_text(settings))
        what = ceph_mounts.source(mount, settings)
        words = ["mount", "-t", ceph_mounts.kind(settings), "-o", ceph_mounts.options(mount, settings, secret, conf)]
        _run([*words, what, where], settings["timeout"])
        yield where
    finally:
        _give_back(place, where)


def _write(path: str, text: str) -> None:
    """A file that only root can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _run(words: list[str], timeout: float) -> None:
    # Into a file: the client goes on in the background, and a pipe that it holds would never come to its end.
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as said:
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"the mount takes longer than {timeout} s", REACH) from None
        except OSError as error:
            raise Failed(f"{words[0]} cannot be run: {error.strerror}") from error
        said.seek(0)
        if done.returncode:
            text = "; ".join(line for line in said.read().splitlines()[-3:] if line.strip())
            raise Failed(f"the mount ended with {done.returncode}: {text}", REACH)


def _give_back(place: str, where: str) -> None:
    """Take the mount away, lazily where it hangs, and then what lies beside it; never what lies in it."""
    for words in (["umount", where], ["umount", "-l", where]):
        # By the kernel's table: a look at the directory itself would hang with the mount.
        if where in ceph_probe.mounted():
            with contextlib.suppress(host_run.TimedOut):
                host_run.execute(words, GONE)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(where)
    shutil.rmtree(place, ignore_errors=True)


def within(seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What work returns, done by another process, since nothing ends a read or write that hangs.

    :raises Failed: as work does, or if it takes longer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _report(writing, work)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
            raise Failed(f"reading and writing take longer than {seconds:.0f} s", REACH)
        answer = json.loads(pipe.read() or '{"failed": "the check ended without an answer"}')
    os.waitpid(child, 0)
    if "failed" in answer:
        raise Failed(answer["failed"], answer.get("remedy", ""))
    return dict(answer)


def _report(pipe: int, work: Callable[[], dict[str, Any]]) -> None:
    """The child's part; it ends without what a module does at its end."""
    try:
        try:
            answer = work()
        except Failed as error:
            answer = {"failed": error.problem.cause, "remedy": error.problem.remedy}
        except OSError as error:
            answer = {"failed": str(error)}
        os.write(pipe, json.dumps(answer).encode())
    finally:
        os._exit(0)
