# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers for tests: an image that every engine can load, and what a container has of the GPUs."""

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
from typing import Any

from tests.site.plays import ROOT, ssh

# The name is one that containerd is told to take for the first container of every pod.
IMAGE = "registry.example.com/pause:3.9"
# Limit of the containers, in bytes.
MEMORY = 64 << 20
PROGRAM = Path(__file__).with_name("look.c")
CLIENT = Path(__file__).with_name("cri.py")
DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/lib", "var")

# What the kernel says of a device that it does not have, and what it says where a container must not ask for it.
THROUGH, DENIED = "No such device or address", "Operation not permitted"


@dataclass(frozen=True)
class View:
    """What a container has: device files of GPUs and GPUs it can open, by their minor numbers, and the rest."""

    files: frozenset[int]
    open: frozenset[int]
    library: bool
    memory: int
    shm: int


def view(text: str) -> View:
    """What the program of the image printed."""
    answers = dict(re.findall(r"^open (\d) (.*)$", text, re.MULTILINE))
    assert set(answers) == {"0", "1"}, text
    assert set(answers.values()) <= {THROUGH, DENIED}, text
    sizes = {name: int(size) for name, size in re.findall(r"^(memory|shm) (\d+)$", text, re.MULTILINE)}
    return View(
        files=frozenset(int(minor) for minor in re.findall(r"^file (\d)$", text, re.MULTILINE)),
        open=frozenset(int(minor) for minor, answer in answers.items() if answer == THROUGH),
        library="\nlibrary\n" in text,
        **sizes,
    )


def has_exactly(seen: View, *gpus: int) -> bool:
    """These GPUs and no other, and the driver's libraries if there is any."""
    return seen.files == seen.open == frozenset(gpus) and seen.library == bool(gpus)


def image(directory: Path) -> Path:
    """An image as `docker save` writes it: one program and empty directories."""
    program = directory / "look"
    subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Werror", str(PROGRAM), "-o", str(program)], check=True)
    layer = _tar({"look": program.read_bytes()}, DIRECTORIES)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/look"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    path = directory / "image.tar"
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar({**files, "layer.tar": layer}))
    return path


def _tar(files: dict[str, bytes], directories: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in directories:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def send(machine: str, path: Path) -> str:
    """Copy a file into the machine's /var/tmp."""
    target = f"/var/tmp/{path.name}"
    command = [sys.executable, "-m", "tests.lab.machines", "ssh", machine, "--", f"cat > {target}"]
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
  sudo $engine run --detach --name looked-at --network none --memory 64m --stop-timeout 0 --cap-add MKNOD \\
    $options $image >/dev/null 2>/var/tmp/refused || cat /var/tmp/refused
  if [ "$(sudo $engine inspect looked-at --format '{{.State.Running}}')" = true ]; then
    for time in first again; do
      echo "-- $time"
      sudo $engine exec looked-at /look once
      sudo systemctl daemon-reload
    done
    echo "-- more"
    sudo cat /proc/$(sudo $engine inspect looked-at --format '{{.State.Pid}}')/environ | tr '\\0' '\\n'
    sudo $engine inspect looked-at --format 'pids_limit={{.HostConfig.PidsLimit}}'
  fi
  sudo $engine rm --force looked-at >/dev/null 2>&1
done
"""


@dataclass(frozen=True)
class Look:
    """Into a container: before and after systemd has read its units again; its environment and its limit of PIDs."""

    first: View
    again: View
    more: tuple[str, ...]


def look_into(machine: str, engine: str, *wanted: str) -> list[Look | str]:
    """One container of Docker or Podman for each of the wanted CDI names (several with spaces between them, or none).

    Returns what was seen in each, or what the engine said when it refused it.
    """
    arguments = " ".join(f"'{word}'" for word in (engine, IMAGE, *wanted))
    said = ssh(machine, f"bash -s - {arguments} <<'END'\n{RUN}END")
    results: list[Look | str] = []
    for text in re.split(r"^== .*\n", said, flags=re.MULTILINE)[1:]:
        parts = re.split(r"^-- .*\n", text, flags=re.MULTILINE)
        refused = len(parts) != 4
        results.append(text if refused else Look(view(parts[1]), view(parts[2]), tuple(parts[3].split())))
    assert len(results) == len(wanted), said
    return results


def look_through_cri(machine: str, runs: list[dict[str, Any]]) -> list[Any]:
    """One container of containerd for each run, as cri.py says; what was seen in it, or why it was refused."""
    ssh(machine, "sudo ctr --namespace k8s.io images import /var/tmp/image.tar >/dev/null")
    request = json.dumps({"image": IMAGE, "command": ["/look", "once"], "runs": runs})
    answers = json.loads(ssh(machine, f"sudo python3 {send(machine, CLIENT)} '{request}'"))
    return [[view(text) for text in answer] if isinstance(answer, list) else answer for answer in answers]
