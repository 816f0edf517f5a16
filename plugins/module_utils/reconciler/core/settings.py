# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that the service has with every scheduler, and how files of settings and secrets are read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.journal import FILE_BYTES, FILES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy


class Wrong(Refused):
    """A setting that cannot be used; the cause names file and value."""


AS_ROOT = "call it as root: `sudo gpuops-reconciler status`, or `sudo gpuops-reconciler clear NODE`"
ON_ITS_HOST = (
    "call `sudo gpuops-reconciler` on a host of the group gpu_reconcilers, slurm_controllers or "
    "kubernetes_control_planes; if it is one, `gpuops up --tags scheduler,slurm,kubernetes` writes the file again"
)


@dataclass(frozen=True)
class Settings:
    """`credentials` names a JSON file of mode 0600 with secrets. The journal is `journal_files` files of at most
    `journal_bytes`. `metrics` is the file for node_exporter's textfile collector. Times are in seconds."""

    scheduler: str = ""
    credentials: str | None = None
    journal: str = "/var/lib/baremetal-gpu/reconciler/journal.jsonl"
    journal_bytes: int = FILE_BYTES
    journal_files: int = FILES
    metrics: str | None = None
    poll_s: float = 2.0
    request_timeout_s: float = 5.0
    policy: Policy = field(default_factory=Policy)

    # What the file of credentials may have.
    SECRETS: ClassVar[tuple[str, ...]] = ()

    def check(self, path: str) -> None:
        """Raises Wrong for values that cannot be used, and names the file `path`."""
        if self.metrics is not None and not self.metrics.startswith("/"):
            raise Wrong(f"{path}: metrics is {self.metrics!r}", "give the path of a file, or leave it out")
        for name, least in (("journal_bytes", 4096), ("journal_files", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise Wrong(f"{path}: {name} is {value!r}", f"give {least} or more")
        problems = self.policy.problems()
        if problems:
            raise Wrong(f"{path}: policy: {'; '.join(problems)}")

    def check_secrets(self, secrets: Mapping[str, str]) -> None:
        """Raises Wrong where one is missing that has to be there."""


def private(name: str) -> Path:
    path = Path(name)
    try:
        found = path.stat()
    except OSError as why:
        raise Wrong(f"{path} cannot be read: {why.strerror}", _to_read(why)) from why
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise Wrong(f"{path} holds secrets, and is not for user {os.geteuid()}", AS_ROOT)
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid != os.geteuid():
        mode = stat.S_IMODE(found.st_mode)
        raise Wrong(
            f"{path} has mode {mode:04o} and owner {found.st_uid}, and holds secrets",
            f"`chmod 0600 {path}`, and `chown {os.geteuid()} {path}` if it has another owner",
        )
    return path


def _to_read(why: OSError) -> str:
    """What to do where a file of the role is not there, or not for whoever calls."""
    return AS_ROOT if isinstance(why, PermissionError) else ON_ITS_HOST


def read_object(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise Wrong(f"{path} cannot be read: {why.strerror}", _to_read(why)) from why
    except (ValueError, RecursionError) as why:
        # Not the reason: it would show a part of the content.
        raise Wrong(f"{path} is not JSON", "`gpuops up --tags gpu_reconciler` writes it anew") from why
    if not isinstance(told, dict):
        raise Wrong(f"{path} is not a JSON object", "`gpuops up --tags gpu_reconciler` writes it anew")
    return told
