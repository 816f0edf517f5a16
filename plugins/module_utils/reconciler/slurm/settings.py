# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is told of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper import settings as zookeeper_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import verdict_channel


@dataclass(frozen=True)
class Settings(zookeeper_settings.Settings):
    """With `state_directory` all is kept there, without ZooKeeper, and the agents of the nodes send their verdicts to
    `port`. Sites of earlier versions have ZooKeeper instead. `slurm_conf` has the addresses of these nodes, and `munge`
    is the socket of munged, if not the host's."""

    state_directory: str | None = None
    port: int = verdict_channel.PORT
    slurm_conf: str = "/etc/slurm/slurm.conf"
    munge: str | None = None

    def check(self, path: str) -> None:
        if bool(self.zookeeper) == (self.state_directory is not None):
            raise Wrong(
                f"{path}: state_directory is {self.state_directory!r} and zookeeper {self.zookeeper!r}",
                "give one of them",
            )
        if self.state_directory is not None and not self.state_directory.startswith("/"):
            raise Wrong(f"{path}: state_directory is {self.state_directory!r}", "give the path of a directory")
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 <= self.port < 1 << 16:
            raise Wrong(f"{path}: port is {self.port!r}", "give a port such as 6821")
        super().check(path)

    def check_secrets(self, secrets: Mapping[str, str]) -> None:
        if self.state_directory is None:
            super().check_secrets(secrets)
