# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the certificates with which the hub, the proxy and sessions prove themselves to each other, before the proxy
starts: where there are none, where they are for other names, and in time before they end.

With new ones a session that runs is not known any more, and the hub ends it with the reason. Words: the directory, and
for what the certificates are beside localhost, such as IP:192.0.2.5 or DNS:portal.example.org.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path

from jupyterhub.app import JupyterHub

# JupyterHub's are valid for five years, and a session may begin in the last of these days.
RENEWED_S = 4 * 365 * 86400
MADE_FOR = "made-for.json"


def is_current(location: str, names: list[str]) -> bool:
    """Whether those that are there can be used."""
    path = Path(location, MADE_FOR)
    try:
        return bool(json.loads(path.read_text()) == names) and time.time() < path.stat().st_mtime + RENEWED_S
    except (OSError, ValueError, RecursionError):
        return False


async def make(location: str, names: list[str]) -> None:
    shutil.rmtree(location, ignore_errors=True)
    app = JupyterHub(internal_ssl=True, internal_certs_location=str(location), trusted_alt_names=names)
    app.init_internal_ssl()
    # The last of all: what was begun only is made again.
    Path(location, MADE_FOR).write_text(json.dumps(names))


def main() -> None:
    os.umask(0o077)
    if not is_current(sys.argv[1], sys.argv[2:]):
        asyncio.run(make(sys.argv[1], sys.argv[2:]))
