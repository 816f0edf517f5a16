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


class Container:
    """A container of Docker or Podman that was given devices by their CDI names, until the end of the block."""

    def __init__(self, machine: str, engine: str, *devices: str) -> None:
        self.machine = machine
        self.engine = engine
        self.devices = " ".join(f"--device nvidia.com/gpu={device}" for device in devices)

    def __enter__(self) -> Container:
        options = f"--detach --network none --cap-add MKNOD --memory 64m --volume /usr:/usr:ro {self.devices}"
        self.name = ssh(self.machine, f"sudo {self.engine} run {options} {IMAGE}").strip()
        return self

    def __exit__(self, *_error: object) -> None:
        ssh(self.machine, f"sudo {self.engine} rm --force {self.name}", check=False)

    def run(self, script: str) -> str:
        return ssh(self.machine, f"sudo {self.engine} exec {self.name} sh -c '{script}'", check=False)

    def view(self) -> View:
        return view(self.run(LOOK))
