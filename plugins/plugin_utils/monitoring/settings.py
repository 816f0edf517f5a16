# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plans of Prometheus, Alertmanager and node_exporter have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from ansible.module_utils.common.yaml import yaml_dump

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([A-Za-z0-9.-]*)):([0-9]{1,5})")
_LINK = re.compile(
    r"https?://(?:\[([0-9A-Fa-f:]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?", re.ASCII
)
# Durations as Prometheus writes them.
_DURATION = re.compile(r"(?:[1-9][0-9]*(?:ms|s|m|h|d|w|y))+")


def head(role: str) -> str:
    """The first line of a file that a role writes."""
    return f"# Written by Ansible (baremetal.gpu.{role}). Changes made here are lost.\n"


def yaml_text(role: str, content: Any) -> str:
    """A file in YAML."""
    return head(role) + str(yaml_dump(content, sort_keys=False, allow_unicode=True, width=10_000))


def external_url(value: str) -> list[str]:
    """The arguments of a daemon that is reached as `value`, by a server that passes requests on without its path."""
    return [f"--web.external-url={value}", "--web.route-prefix=/"] if value else []


def arguments(role: str, words: list[str]) -> str:
    """The file in /etc/default with the arguments of a daemon. Words have no spaces and no quotes."""
    return f'{head(role)}ARGS="{" ".join(words)}"\n'


def split_listen(value: str) -> tuple[str, int] | None:
    """Host and port of an address to listen on, such as 127.0.0.1:9090 or :9100; None for anything else."""
    found = _LISTEN.fullmatch(value)
    if not found or not 0 < int(found.group(3)) < 65536:
        return None
    return found.group(1) or found.group(2) or "", int(found.group(3))


def is_loopback(value: str) -> bool:
    """Whether only this host reaches an address to listen on."""
    found = split_listen(value)
    try:
        return found is not None and ip_address(found[0]).is_loopback
    except ValueError:
        return found is not None and found[0] == "localhost"


def listen_problems(variable: str, value: str, program: str, example: str) -> Iterator[Problem]:
    """A problem unless only the host itself reaches the address: what serves there has no login of its own."""
    if not is_loopback(value):
        yield Problem(
            "not_loopback",
            variable,
            f"{program} has no login and does not encrypt, so it is to listen only on a loopback address",
            value,
            f"set {example}; people use an SSH tunnel (ssh -L), or an HTTPS server on the same host that asks for a "
            "login",
        )


def link_problems(variable: str, value: str, example: str) -> Iterator[Problem]:
    """A problem unless it is empty or a URL that leads others here: a link in a message is opened elsewhere."""
    found = _LINK.fullmatch(value)
    host = (found[1] or found[2]) if found else ""
    if value and (not found or host == "localhost" or is_loopback(f"[{host}]:1" if found[1] else f"{host}:1")):
        yield Problem(
            "wrong_setting",
            variable,
            "it is not a URL at which the readers of its messages reach this host",
            value[:200],
            f"give the whole address, such as {example}, or leave it empty",
        )


def duration_problems(variable: str, value: str) -> Iterator[Problem]:
    """A problem unless it is a duration."""
    if not _DURATION.fullmatch(value):
        yield Problem(
            "wrong_setting",
            variable,
            "it is not a duration of Prometheus",
            value,
            "give a number and ms, s, m, h, d, w or y, such as 15s",
        )
