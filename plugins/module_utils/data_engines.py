# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the container engines read their settings. Only data."""

from __future__ import annotations

ENGINE_CONFIGS = {
    "docker": "/etc/docker/daemon.json",
    "podman": "/etc/containers/containers.conf",
    "containerd": "/etc/containerd/config.toml",
}
