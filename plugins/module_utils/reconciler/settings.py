# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is told by its file, and the secrets in the other one."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import HOST
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.decide import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.journal import FILE_BYTES, FILES
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import verdict_channel

CONFIG = Path("/etc/baremetal-gpu/reconciler.json")
SCHEDULERS = ("mesos", "slurm")
# `former`: what the reconciler had before. `agents`: what hosts share that have no login of their own yet.
SECRETS = (
    "zookeeper_user",
    "zookeeper_password",
    "zookeeper_former_user",
    "zookeeper_former_password",
    "zookeeper_agents_user",
    "zookeeper_agents_password",
    "mesos_principal",
    "mesos_secret",
)


class Wrong(Refused):
    """A setting that cannot be used; the cause names file and value."""


AS_ROOT = "call it as root: `sudo gpuops-reconciler status`, or `sudo gpuops-reconciler clear NODE`"
ON_ITS_HOST = (
    "call `sudo gpuops-reconciler` on a host of the group gpu_reconcilers, or of slurm_controllers; if it is one, "
    "`gpuops up --tags scheduler` or `gpuops up --tags slurm` writes the file again"
)


@dataclass(frozen=True)
class Settings:
    """`zookeeper` is host:port,…; `path` the node under which all is kept; `masters` are the URLs of Mesos' masters,
    where `scheduler` is mesos.

    With `state_directory` there is no ZooKeeper: all is kept there, and the agents of Slurm's nodes say their verdicts
    at `port`. `slurm_conf` has the addresses of these nodes, and `munge` is the socket of munged, if not the host's.

    `credentials` names a JSON file of mode 0600 with some of `SECRETS`, `logins` one with host -> its login in the
    words of an ACL (user:checksum), which is read again when it changes. The journal is `journal_files` files of
    `journal_bytes` at most. `metrics` is the file for node_exporter's textfile collector. Times are in seconds.
    """

    zookeeper: str = ""
    state_directory: str | None = None
    port: int = verdict_channel.PORT
    slurm_conf: str = "/etc/slurm/slurm.conf"
    munge: str | None = None
    masters: tuple[str, ...] = ()
    scheduler: str = "mesos"
    path: str = "/baremetal-gpu"
    credentials: str | None = None
    logins: str | None = None
    ca_file: str | None = None
    journal: str = "/var/lib/baremetal-gpu/reconciler/journal.jsonl"
    journal_bytes: int = FILE_BYTES
    journal_files: int = FILES
    metrics: str | None = None
    poll_s: float = 2.0
    request_timeout_s: float = 5.0
    session_s: float = 10.0
    policy: Policy = field(default_factory=Policy)


def load(path: Path, mode: str | None = None) -> Settings:
    """The settings in a JSON file; `mode` takes the place of the policy's. Raises Wrong."""
    return settings_of(_object(path), str(path), mode)


def settings_of(told: Mapping[str, Any], path: str, mode: str | None = None) -> Settings:
    """The settings as the file `path` has them. Raises Wrong."""
    try:
        return _settings_of(told, path, mode)
    except (AttributeError, TypeError, ValueError) as why:
        raise Wrong(
            f"{path} has a value of the wrong kind: {one_line(why)}",
            "run `gpuops up --tags gpu_reconciler`, which writes it",
        ) from why


def _settings_of(told: Mapping[str, Any], path: str, mode: str | None) -> Settings:
    told = dict(told)
    policy = dict(told.pop("policy", {}))
    if mode is not None:
        policy["mode"] = mode
    if isinstance(policy.get("repairs"), list):
        policy["repairs"] = tuple(policy["repairs"])
    try:
        known = _known(path, "", told, Settings)
        settings = Settings(**{**known, "policy": Policy(**_known(path, "policy.", policy, Policy))})
    except TypeError as why:
        raise Wrong(f"{path}: {why}", "give zookeeper and masters") from why
    if settings.scheduler not in SCHEDULERS:
        raise Wrong(f"{path}: scheduler is {settings.scheduler!r}", f"give one of {', '.join(SCHEDULERS)}")
    if settings.state_directory is not None:
        if settings.scheduler != "slurm" or settings.zookeeper or not settings.state_directory.startswith("/"):
            raise Wrong(
                f"{path}: state_directory is {settings.state_directory!r}, scheduler {settings.scheduler!r} and "
                f"zookeeper {settings.zookeeper!r}",
                "give the path of a directory, with Slurm and without ZooKeeper",
            )
        if isinstance(settings.port, bool) or not isinstance(settings.port, int) or not 0 <= settings.port < 1 << 16:
            raise Wrong(f"{path}: port is {settings.port!r}", "give a port such as 6821")
    lacks_masters = settings.scheduler == "mesos" and not settings.masters
    lacks_store = not settings.zookeeper and settings.state_directory is None
    if isinstance(settings.masters, str) or lacks_masters or lacks_store:
        raise Wrong(f"{path}: masters is {settings.masters!r} and zookeeper {settings.zookeeper!r}", "give both")
    if not settings.path.startswith("/") or settings.path.endswith("/"):
        raise Wrong(f"{path}: path is {settings.path!r}", "begin with a slash and end with a name")
    if settings.metrics is not None and not settings.metrics.startswith("/"):
        raise Wrong(f"{path}: metrics is {settings.metrics!r}", "give the path of a file, or leave it out")
    for name, least in (("journal_bytes", 4096), ("journal_files", 2)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Wrong(f"{path}: {name} is {value!r}", f"give {least} or more")
    problems = settings.policy.problems()
    if problems:
        raise Wrong(f"{path}: policy: {'; '.join(problems)}")
    return settings


def secrets(settings: Settings) -> dict[str, str]:
    """The secrets; none without a file. Raises Wrong where others than the owner could read them, and where there is no
    login for what needs one: whoever reaches ZooKeeper could give orders in the reconciler's place."""
    told = _secrets(settings)
    if settings.state_directory is not None:
        return told
    if settings.policy.mode == "act" and not (told.get("zookeeper_user") and told.get("zookeeper_password")):
        raise Wrong(
            "mode is act, and there is no login for ZooKeeper, where anybody could then give orders to the hosts",
            "give zookeeper_user and zookeeper_password in the file of credentials, or use mode record",
        )
    return told


def _secrets(settings: Settings) -> dict[str, str]:
    if settings.credentials is None:
        return {}
    path = _private(settings.credentials)
    told = _object(path)
    unknown = sorted(set(told) - set(SECRETS))
    if unknown or not all(isinstance(value, str) and value for value in told.values()):
        raise Wrong(f"{path} is not a mapping of {', '.join(SECRETS)} to text", f"correct {', '.join(unknown)}")
    return told


def _private(name: str) -> Path:
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
            f"`chmod 0600 {path}`, and `chown {os.geteuid()} {path}` if it is somebody else's",
        )
    return path


def _to_read(why: OSError) -> str:
    """What to do where a file of the role is not there, or not for whoever calls."""
    return AS_ROOT if isinstance(why, PermissionError) else ON_ITS_HOST


class Logins:
    """The hosts' logins, `rows`: host -> user:checksum. Raises Wrong for a file that cannot be used."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.rows: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Read the file where it is another than it was; whether it is. Raises Wrong, and then keeps what it had."""
        if self.path is None:
            return False
        path = _private(self.path)
        found = path.stat()
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return False
        told = _object(path)
        wrong = [name for name, login in told.items() if not _is_login(name, login)]
        if wrong:
            raise Wrong(f"{path}: {one_line(wrong[0])} is not a host with user:checksum", "run gpu_reconciler again")
        self._seen, self.rows = seen, told
        return True


def _is_login(host: str, login: Any) -> bool:
    return bool(
        re.fullmatch(HOST, host) and isinstance(login, str) and re.fullmatch(r"[^\s:]{1,300}:[A-Za-z0-9+/]{27}=", login)
    )


def _object(path: Path) -> dict[str, Any]:
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


def _known(path: str, prefix: str, told: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    names = [one.name for one in fields(kind)]
    unknown = sorted(set(told) - set(names))
    if unknown:
        listed = ", ".join(prefix + name for name in unknown)
        raise Wrong(f"{path}: {listed} not known", f"use {', '.join(names)}")
    return {key: tuple(value) if key == "masters" and isinstance(value, list) else value for key, value in told.items()}
