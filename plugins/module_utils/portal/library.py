# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub imports of this collection; the role puts it into one file beside the hub's own configuration."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.host import attempts, files
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    backend,
    docker_backend,
    form,
    gpus,
    hub_variables,
    identity,
    idle,
    invite,
    login,
    marathon_backend,
    markup,
    notice,
    offers,
    own,
    samples,
    session,
    settings,
    slurm_backend,
    ssh,
    who,
)

__all__ = [
    "accounts",
    "attempts",
    "backend",
    "docker_backend",
    "files",
    "form",
    "gpus",
    "hub_variables",
    "identity",
    "idle",
    "invite",
    "login",
    "marathon_backend",
    "markup",
    "notice",
    "offers",
    "own",
    "samples",
    "session",
    "settings",
    "slurm_backend",
    "ssh",
    "who",
]
