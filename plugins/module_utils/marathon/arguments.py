# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments that the modules for Marathon share, and the way to it that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import http_transport

SPEC: dict[str, dict[str, Any]] = {
    "urls": {"type": "list", "elements": "str", "required": True},
    "user": {"type": "str"},
    "password": {"type": "str", "no_log": True},
    "ca_file": {"type": "path"},
    "request_timeout": {"type": "float", "default": 10},
}


def marathon(params: Mapping[str, Any]) -> Marathon:
    """Raises Failed for URLs that are none, and for a CA file that cannot be read."""
    transport = http_transport(params["request_timeout"], params["ca_file"])
    return Marathon(params["urls"], transport, params["user"], params["password"])
