# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the registry and the hosts that use it agree on, and checks of what they are given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import wrong

PORT = 5000
# The namespace of the site's own images, which users can only read.
CATALOGUE = "catalogue"
# A part of a repository's name. A user's name is one, because it is that of the user's namespace.
PART = "[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_SPACE = re.compile(PART, re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)


def is_space(name: str) -> bool:
    """Whether it can be a user's name and the first part of the names of images."""
    return len(name) <= 64 and bool(_SPACE.fullmatch(name))


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    return is_address(text) or bool(_HOST_NAME.fullmatch(text))


def is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def names(host: str, name: str, others: Iterable[str]) -> list[str]:
    """By what names a registry is reached, the first of which is part of the names of its images.

    :param host: its name in the inventory.
    """
    return list(dict.fromkeys(filter(None, (name or host, host, *others))))


def wrong_names(variable: str, given: Iterable[str]) -> list[Problem]:
    cause, remedy = "it is neither a host name nor an address", "give names such as registry.example.com or 10.0.0.5"
    return [wrong(variable, cause, name, remedy) for name in given if not is_host(name)]
