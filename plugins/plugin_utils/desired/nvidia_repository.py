# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's repository for driver and CUDA, as an item of a desired document.

The roles nvidia_driver and cuda share it: apt refuses two entries of one repository that differ in any field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
# NVIDIA's names of machines.
MACHINES = {"x86_64": "x86_64", "aarch64": "sbsa"}


def has_repository(machine: str) -> bool:
    """Whether NVIDIA has a repository for this type of machine."""
    return machine in MACHINES


def nvidia_repository(params: Mapping[str, Any], directory: str, machine: str, apt: bool) -> doc.Repository:
    """The item of a role with the parameters `repo_url`, `repo_options` and `repo_key_*`.

    :param directory: NVIDIA's name of the operating system.
    """
    url = params["repo_url"] or f"{REPOSITORIES}/{directory}/{MACHINES.get(machine, '')}/"
    key = None
    if params["repo_key_sha256"]:
        source = "path" if params["repo_key_path"] else "url"
        keyrings = "/etc/apt/keyrings" if apt else "/etc/pki/rpm-gpg"
        key = {
            "dest": f"{keyrings}/nvidia-cuda.asc",
            "sha256": params["repo_key_sha256"],
            source: params[f"repo_key_{source}"],
        }
    return doc.Repository("nvidia-cuda", uris=[url], suites=["/"], baseurl=url, options=params["repo_options"], key=key)
