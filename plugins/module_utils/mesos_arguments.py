# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments that the modules for Mesos share, and the way to the masters that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos_operator import Operator, http_transport

SPEC: dict[str, dict[str, Any]] = {
    "masters": {"type": "list", "elements": "str", "required": True},
    "principal": {"type": "str"},
    "secret": {"type": "str", "no_log": True},
    "ca_file": {"type": "path"},
    "request_timeout": {"type": "float", "default": 10},
}


def operator(params: Mapping[str, Any]) -> Operator:
    """Raises Failed for masters that are no URLs."""
    transport = http_transport(params["request_timeout"], params["ca_file"])
    return Operator(params["masters"], transport, params["principal"], params["secret"])
