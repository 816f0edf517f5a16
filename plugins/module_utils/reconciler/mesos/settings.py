# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is told of Mesos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper import settings as zookeeper_settings


@dataclass(frozen=True)
class Settings(zookeeper_settings.Settings):
    """`masters` are the URLs of Mesos' masters, and `ca_file` is the authority of their certificates."""

    masters: tuple[str, ...] = ()
    ca_file: str | None = None

    SECRETS: ClassVar[tuple[str, ...]] = (*zookeeper_settings.Settings.SECRETS, "mesos_principal", "mesos_secret")

    def check(self, path: str) -> None:
        if isinstance(self.masters, str) or not self.masters or not self.zookeeper:
            raise Wrong(f"{path}: masters is {self.masters!r} and zookeeper {self.zookeeper!r}", "give both")
        super().check(path)
