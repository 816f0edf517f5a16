# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's agent as what gives GPUs to pods sees it: a report."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot

UUIDS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(4)]
# 0 and 1 have NVLinks, and so have 2 and 3.
SCORES = [[None, 210, 10, 10], [210, None, 10, 10], [10, 10, None, 410], [10, 10, 410, None]]


def until(wanted: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while not (found := wanted()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def certificate(base: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """That of an API server at 127.0.0.1, or of a client, and its key. `name` may have a group behind a slash."""
    stem, (user, _slash, group) = _stem(name), name.partition("/")
    subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
    found, key = base / f"{stem}.pem", base / f"{stem}.key"
    if not found.exists():
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        words += ["-days", "2", "-subj", subject, "-keyout", str(key), "-out", str(found)]
        words += ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(words, check=True, capture_output=True)
    return found, key


def _stem(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def client(base: Path, name: str) -> Path:
    """A client's certificate and its key in one file, as kubelet and the reconciler have theirs."""
    both = base / f"{_stem(name)}-both.pem"
    both.write_text("".join(path.read_text() for path in certificate(base, name)))
    both.chmod(0o600)
    return both


class Agent:
    """What it reports, below a root of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.report = root / "run/baremetal-gpu/gpu.json"
        self.report.parent.mkdir(parents=True)
        boot_id = root / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True)
        boot_id.write_text("6f1c2a34-0000-4000-8000-000000000001\n")
        self.fatal: dict[str, str] = {}
        self.unknown: set[str] = set()
        self.missing: set[str] = set()
        self.host: str | None = None

    @staticmethod
    def part(code: str | None, is_unknown: bool = False) -> dict[str, Any]:
        reasons = [{"code": code, "verdict": "fatal", "action": "reboot", "text": "it broke"}] if code else []
        return {"verdict": "fatal" if code else "unknown" if is_unknown else "ok", "reasons": reasons}

    def says(self, **more: Any) -> None:
        """The agent reports what there is now."""
        devices = [
            {"uuid": uuid, "index": index, **self.part(self.fatal.get(uuid), uuid in self.unknown)}
            for index, uuid in enumerate(UUIDS)
            if uuid not in self.missing
        ]
        same = {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960}
        rows = [
            {"uuid": uuid, "index": index, "minor": 3 - index, "numa_node": index // 2, **same}
            for index, uuid in enumerate(UUIDS)
        ]
        result = {
            "time": time.time(),
            "uptime": agent_result.uptime(),
            "interval_s": 10.0,
            "boot_id": boot.boot_id(str(self.root)),
            "health": {
                **self.part(self.host),
                "verdict": "fatal" if self.host or self.fatal else "ok",
                "devices": devices,
            },
            "facts": {"devices": rows, "topology": {"scores": SCORES}},
            **more,
        }
        self.write(json.dumps(result))

    def write(self, text: str) -> None:
        new = self.report.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.report)
