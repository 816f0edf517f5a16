# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the container engines read their settings, and whether they can."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge, toml
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below

ENGINE_CONFIGS = {
    "docker": "/etc/docker/daemon.json",
    "podman": "/etc/containers/containers.conf",
    "containerd": "/etc/containerd/config.toml",
}


def engine_config(engine: str, root: str = "/") -> dict[str, Any]:
    """{path, error}: an engine's configuration file, and what is wrong with it, None if nothing is.

    The words of the file are not repeated: they may be a registry's password.
    """
    path, error = ENGINE_CONFIGS[engine], None
    parse = merge.parse_json if path.endswith(".json") else toml.parse
    try:
        parse(read_text(below(root, path.lstrip("/"))))
    except merge.Malformed as failure:
        error = f"line {failure.line}, column {failure.column}: {failure.reason}"
    return {"path": path, "error": error}
