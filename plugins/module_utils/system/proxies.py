# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proxies that the package manager of a host goes through."""

from __future__ import annotations

import configparser
import re
import urllib.parse
import urllib.request

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask


def apt_proxies(run: Call = ask) -> dict[str, str]:
    """The proxies that apt goes through: scheme, or scheme::host, -> proxy; empty for a direct connection.

    A direct connection may be impossible where the proxy works, so a check has to go the same way.
    """
    proxies = {}
    for line in run(["apt-config", "dump", "--format", "%f %v%n", "Acquire"])[1].splitlines():
        match = re.match(r"^Acquire::(https?)::proxy(::\S+)? (\S+)$", line.strip(), re.I)
        if match:
            proxy = match.group(3)
            proxies[match.group(1).lower() + (match.group(2) or "")] = "" if proxy.upper() == "DIRECT" else proxy
    return proxies


def dnf_proxies(root: str = "/") -> dict[str, str]:
    """The proxy that dnf goes through, in the form of apt_proxies(); for every scheme the same."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(below(root, "etc/dnf/dnf.conf")))
    except configparser.Error:
        return {}
    proxy = parser.get("main", "proxy", fallback="").strip()
    return {} if proxy in ("", "_none_") else {"http": proxy, "https": proxy}


def proxies(family: str | None, root: str = "/", run: Call = ask) -> dict[str, str]:
    """The proxies of the package manager of a family of systems."""
    return dnf_proxies(root) if family == "redhat" else apt_proxies(run)


def opener_for(url: str, proxies: dict[str, str]) -> urllib.request.OpenerDirector:
    parts = urllib.parse.urlsplit(url)
    proxy = proxies.get(f"{parts.scheme}::{parts.hostname}", proxies.get(parts.scheme, ""))
    return urllib.request.build_opener(urllib.request.ProxyHandler({parts.scheme: proxy} if proxy else {}))
