# SPDX-License-Identifier: GPL-3.0-or-later
"""How gpuops asks web servers."""

from __future__ import annotations

import urllib.request


def opener(redirects: urllib.request.HTTPRedirectHandler | None = None) -> urllib.request.OpenerDirector:
    """Knows http and https, with the environment's proxy, and no other way to a file.

    :param redirects: says whom it follows to another place; without one it follows nobody.
    """
    found = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        *([redirects] if redirects else []),
    ):
        found.add_handler(handler)
    return found
