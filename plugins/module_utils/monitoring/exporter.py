# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on any host that writes metrics for node_exporter which need no daemon: certificates, ZooKeeper,
homes, the portal, Kubernetes.

A timer of systemd runs it. Each part is a child process with an end: a file system that hangs costs its own metrics and
no other. A child that hangs in the kernel cannot be ended; it keeps a lock, so that there is one of them at most.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import child
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    list_of,
    object_of,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import (
    certificates,
    homes,
    kubernetes,
    portal,
    zookeeper,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part

NAME = "baremetal-gpu-host-metrics"
CONFIG = "/etc/baremetal-gpu/host-metrics.json"
BYTES_AT_MOST = 1 << 20
FAILED, USAGE_ERROR = 1, 64
# How long each part may take, in seconds. ZooKeeper gets the time of an election and of two answers.
PATIENCE_S = {"certificates": 20.0, "zookeeper": 30.0, "homes": 60.0, "portal": 20.0, "kubernetes": 45.0}

_path = text(r"/[^\0\n]*", 1000, "an absolute path")
# What a file of settings may have. A part that it lacks does not run.
shape = object_of(
    {},
    {
        "certificates": list_of(_path, 1000),
        "zookeeper": object_of({"host": text(at_most=255), "port": whole(1, 65535), "config": _path}),
        "homes": object_of({"root": _path}),
        "portal": object_of({"hub_port": whole(1, 65535), "port": whole(1, 65535), "told": _path}),
        "kubernetes": object_of({"node": text(at_most=253)}, {"snapshots": _path}),
    },
)

Works = Mapping[str, Callable[[], Part]]


def works(config: Mapping[str, Any]) -> Works:
    """What is to be done, by the name of the part. Raises Malformed for settings that do not have their shape."""
    found: dict[str, Callable[[], Part]] = {}
    told = shape(dict(config), "it")
    if "certificates" in told:
        found["certificates"] = functools.partial(certificates.look, told["certificates"])
    if "zookeeper" in told:
        found["zookeeper"] = functools.partial(zookeeper.look, **told["zookeeper"])
    if "homes" in told:
        found["homes"] = functools.partial(homes.look, **told["homes"])
    if "portal" in told:
        found["portal"] = functools.partial(portal.look, **told["portal"])
    if "kubernetes" in told:
        found["kubernetes"] = functools.partial(kubernetes.look, **told["kubernetes"])
    return found


def look(todo: Works, directory: str = "", patience_s: Mapping[str, float] = PATIENCE_S) -> tuple[str, list[str]]:
    """The text of one look, and what is wrong, in sentences.

    :param directory: where locks are kept; empty for none.
    """
    samples: list[Sample] = []
    complaints: list[str] = []
    for name, work in todo.items():
        found = _part(name, work, directory, patience_s[name])
        samples += [(row[0], row[1], row[2]) for row in found["samples"]]
        samples.append(("baremetal_gpu_host_part_success", {"part": name}, float("failed" not in found)))
        complaints += found["complaints"]
    return exposition(samples, METRICS), complaints


def _part(name: str, work: Callable[[], Part], directory: str, patience_s: float) -> dict[str, Any]:
    """A part as `Part.as_dict` has it, with `failed` where it did not come to its end."""
    try:
        with _lock(os.path.join(directory, f"{name}.lock") if directory else ""):
            return child.answer(lambda: _answer(name, work), patience_s)
    except BlockingIOError:
        why = "an earlier look still hangs in the kernel"
    except child.Failed as failure:
        why = str(failure)
    except (OSError, ValueError) as failure:
        why = one_line(failure)
    return {"failed": True, "samples": [], "complaints": [f"no metrics of {name}: {why}"]}


def _answer(name: str, work: Callable[[], Part]) -> dict[str, Any]:
    try:
        return work().as_dict()
    except Exception as failure:
        # What it was would be lost with the child.
        told = f"no metrics of {name}: {type(failure).__name__} {one_line(failure)}"
        return {"failed": True, "samples": [], "complaints": [told]}


@contextlib.contextmanager
def _lock(path: str) -> Iterator[None]:
    """Held by the child as well, and by nobody else. Raises BlockingIOError where an earlier child still has it."""
    if not path:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _complain(text: str) -> None:
    sys.stderr.write(f"{NAME}: {text}\n")


def tell(complaints: Sequence[str], directory: str) -> None:
    """Tell what is wrong when it changes, and not again with every look.

    :param directory: where it is kept what was told; empty to tell all.
    """
    lines = "".join(f"{line}\n" for line in complaints)
    path = os.path.join(directory, "told")
    if directory and host_files.read_text(path) == lines:
        return
    for line in complaints:
        _complain(line)
    if directory:
        with contextlib.suppress(OSError):
            host_files.write(path, lines, durable=False)


def remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Writes metrics of this host for node_exporter, once.")
    parser.add_argument("--config", default=CONFIG, metavar="PATH", help="(default: %(default)s)")
    parser.add_argument("--textfile", metavar="PATH", help="the file to write; ends in .prom (default: print it)")
    asked = parser.parse_args(words)
    # As systemd makes it; nobody else who runs this needs one.
    directory = os.environ.get("RUNTIME_DIRECTORY", "")
    try:
        todo = works(json_object(host_files.read(asked.config, BYTES_AT_MOST), BYTES_AT_MOST))
    except (OSError, Malformed) as why:
        _complain(f"{asked.config} cannot be used: {one_line(getattr(why, 'strerror', None) or why)}")
        if asked.textfile:
            remove(asked.textfile)
        return USAGE_ERROR
    page, complaints = look(todo, directory)
    tell(complaints, directory)
    if not asked.textfile:
        sys.stdout.write(page)
        return 0
    try:
        host_files.write(asked.textfile, page, durable=False)
    except OSError as why:
        # An old file would pass for what is there now.
        remove(asked.textfile)
        _complain(f"{asked.textfile} cannot be written: {one_line(why.strerror or why)}. To do: see its directory")
        return FAILED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
