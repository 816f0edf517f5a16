# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers for tests: an image that every engine can load, and what a container has of the cards."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.site.plays import ROOT, ssh

# The name is one that containerd is told to take for the first container of every pod.
IMAGE = "registry.example.com/pause:3.9"
DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}

# What a container may open, its device files aside: root in it makes files for both cards. The real kernel has no such
# device, so what it says when one is opened tells whether the limits of the container let the request through to it.
LOOK = """
ls /dev
for minor in 0 1; do
  [ -e /tmp/card$minor ] || mknod /tmp/card$minor c 195 $minor
  cat /tmp/card$minor 2>&1
done
"""
THROUGH, DENIED = "No such device or address", "Operation not permitted"


@dataclass(frozen=True)
class View:
    """The cards by their minor numbers: with a device file, and open to the container."""

    files: frozenset[int]
    open: frozenset[int]


def view(text: str) -> View:
    """What LOOK printed."""
    answers = dict(re.findall(r"cat: /tmp/card(\d): (.*)", text))
    assert set(answers) == {"0", "1"}, text
    assert set(answers.values()) <= {THROUGH, DENIED}, text
    return View(
        frozenset(int(minor) for minor in re.findall(r"^nvidia(\d+)$", text, re.MULTILINE)),
        frozenset(int(minor) for minor, answer in answers.items() if answer == THROUGH),
    )


def only(*minors: int) -> View:
    return View(frozenset(minors), frozenset(minors))


def image(directory: Path) -> Path:
    """An image as `docker save` writes it: empty directories, and a program that waits."""
    pause = directory / "pause"
    source = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
    subprocess.run(["gcc", "-static", "-O1", "-x", "c", "-", "-o", str(pause)], input=source, text=True, check=True)
    layer = _tar({"pause": pause.read_bytes()}, directories=DIRECTORIES, links=LINKS)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/pause"], "Env": ["PATH=/usr/sbin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    path = directory / "image.tar"
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar({**files, "layer.tar": layer}))
    return path


def _tar(files: dict[str, bytes], directories: tuple[str, ...] = (), links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in directories:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def send(machine: str, path: Path) -> str:
    """Copy a file into the machine's /var/tmp."""
    target = f"/var/tmp/{path.name}"
    command = [sys.executable, "-m", "gpuops", "lab", "ssh", machine, "--", f"cat > {target}"]
    with path.open("rb") as stream:
        subprocess.run(command, cwd=ROOT, stdin=stream, check=True, timeout=60)
    return target


# With what `docker run` and `podman run` have in common. A container is removed before the next one is started.
RUN = """
set -u
engine=$1; image=$2; shift 2
sudo $engine load --quiet --input /var/tmp/image.tar >/dev/null
for devices in "$@"; do
  options=$(for device in $devices; do echo --device nvidia.com/gpu=$device; done)
  echo "== $devices"
  sudo $engine run --detach --name looked-at --network none --stop-timeout 0 --cap-add MKNOD --volume /usr:/usr:ro \
    $options $image >/dev/null 2>/var/tmp/refused || cat /var/tmp/refused
  [ "$(sudo $engine inspect looked-at --format '{{.State.Running}}')" = true ] && for time in first again; do
    echo "-- $time"
    sudo $engine exec looked-at sh -c "$LOOK"
    sudo systemctl daemon-reload
  done && {
    echo "-- more"
    sudo cat /proc/$(sudo $engine inspect looked-at --format '{{.State.Pid}}')/environ | tr '\\0' '\\n'
    sudo $engine exec looked-at cat /proc/mounts
    sudo $engine inspect looked-at --format 'pids_limit={{.HostConfig.PidsLimit}}'
  }
  sudo $engine rm --force looked-at >/dev/null 2>&1
done
"""


@dataclass(frozen=True)
class Look:
    """Into a container: before and after systemd has read its units again, and what else there is in it."""

    first: View
    again: View
    more: str


def look_into(machine: str, engine: str, *wanted: str) -> list[Look | str]:
    """One container of Docker or Podman for each of the wanted CDI names (several with spaces between them, or none).

    Returns what was seen in each, or what the engine said when it refused it.
    """
    arguments = " ".join(f"'{word}'" for word in (engine, IMAGE, *wanted))
    said = ssh(machine, f"export LOOK='{LOOK}'; bash -s - {arguments} <<'END'\n{RUN}END")
    results: list[Look | str] = []
    for text in re.split(r"^== .*\n", said, flags=re.MULTILINE)[1:]:
        parts = re.split(r"^-- .*\n", text, flags=re.MULTILINE)
        results.append(Look(view(parts[1]), view(parts[2]), parts[3]) if len(parts) == 4 else text)
    assert len(results) == len(wanted), said
    return results
