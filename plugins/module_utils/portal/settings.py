# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site lets people do, from the file that the role writes. The hub and the program that submits both read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    flag,
    json_object,
    list_of,
    mapping_of,
    object_of,
    one_of,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import images

PATH = "/etc/baremetal-gpu/portal/settings.json"
SLURM, MARATHON, DOCKER = SCHEDULERS = ("slurm", "marathon", "docker")
_LIMITS = {name: whole(0, 10**6) for name in form.NUMBERS}
_WORD = text(r"[A-Za-z0-9_.-]{0,63}")
SHAPE = object_of(
    {
        "limits": object_of(_LIMITS),
        "limits_by_group": mapping_of(text(), object_of({}, _LIMITS)),
        "environments": list_of(
            object_of(
                {"name": text(form.ENVIRONMENT.pattern)},
                {"path": text(r"/[^\n]{1,200}"), "image": text(images.IMAGE.pattern)},
            )
        ),
        "partition": _WORD,
        "account": _WORD,
        "qos": _WORD,
        "allowed_groups": list_of(text()),
        "admin_groups": list_of(text()),
        "domains": list_of(text()),
        "least_uid": whole(1),
        "session_port_first": whole(1024, 65535),
        "session_port_last": whole(1024, 65535),
    },
    {"closed": list_of(text()), "ssh": flag, "registry": text(r"[a-z0-9.:-]{0,262}"), "scheduler": one_of(*SCHEDULERS)},
    keep=True,
)


@dataclass(frozen=True)
class Settings:
    """What a site has.

    :ivar environments: the directories of those of the site by name.
    :ivar images: the images of the others.
    :ivar registry: where users have images of their own; empty for nowhere.
    :ivar ports: where JupyterLab of a session may listen.
    :ivar ssh_ports: where its sshd may; None without SSH.
    :ivar hub: what only the hub reads.
    :ivar closed: whoever has left the site, whatever the host knows of their accounts.
    """

    limits: Limits = field(default_factory=Limits)
    limits_by_group: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    registry: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    allowed_groups: tuple[str, ...] = ()
    admin_groups: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    least_uid: int = 1000
    ports: tuple[int, int] = (20000, 29999)
    ssh_ports: tuple[int, int] | None = None
    hub: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str = SLURM
    closed: frozenset[str] = frozenset()

    def person(self, name: str) -> Account:
        """The account of a person who may have sessions. Raises Refused."""
        if name in self.closed:
            cause = f"{name} cannot have sessions: the home was archived or removed, as of who has left"
            raise Refused(cause, "ask the operators to bring it back", code="closed_account", subject="login")
        return accounts.find(name, self.allowed_groups, self.least_uid)

    @property
    def names(self) -> list[str]:
        """The environments of the site."""
        return [*(self.environments if self.directories else ()), *self.images]

    @property
    def directories(self) -> bool:
        """Whether a session can have a directory as its environment; a container has an image."""
        return self.scheduler != DOCKER

    def place_of(self, user: str) -> str:
        """Where a user's images are; empty where nobody has any."""
        return f"{self.registry}/{user}/" if self.registry else ""

    def image_of(self, environment: str, user: str) -> str:
        """The image that an environment is; empty where it is a directory."""
        own = environment if form.is_own_image(environment, self.place_of(user)) else ""
        return self.images.get(environment, own)


def read(path: str = PATH) -> Settings:
    """Raises Refused where they are not as the role writes them."""
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except (OSError, Malformed) as why:
        raise Refused(
            f"{path} cannot be read: {why}", "the operators run `gpuops up --tags portal`", code="no_settings"
        ) from why


def parse(data: bytes | str) -> Settings:
    """Raises Malformed."""
    row = SHAPE(json_object(data), "settings")
    first, last = row["session_port_first"], row["session_port_last"]
    middle = (first + last) // 2
    return Settings(
        Limits(**row["limits"]),
        row["limits_by_group"],
        {one["name"]: one["path"] for one in row["environments"] if "path" in one},
        {one["name"]: one["image"] for one in row["environments"] if "image" in one},
        row.get("registry", ""),
        row["partition"],
        row["account"],
        row["qos"],
        tuple(row["allowed_groups"]),
        tuple(row["admin_groups"]),
        tuple(row["domains"]),
        row["least_uid"],
        (first, middle if row.get("ssh") else last),
        (middle + 1, last) if row.get("ssh") else None,
        row.get("hub") or {},
        row.get("scheduler", SLURM),
        frozenset(row.get("closed", ())),
    )
