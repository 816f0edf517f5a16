# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's part of ZooKeeper as it makes it for a host, for tests without a reconciler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl, make_digest_acl_credential

# The reconciler's own login.
LOGIN = ("reconciler", "hidden-1")
OURS = [make_digest_acl(*LOGIN, all=True)]
READER = make_digest_acl_credential(*LOGIN)


def private(path: Path, content: Any) -> Path:
    """A file of mode 0600, in one step."""
    part = path.with_name(f"{path.name}.part")
    part.touch(0o600)
    part.write_text(json.dumps(content))
    return part.replace(path)


def login_of(host: str) -> tuple[str, str]:
    return host, f"hidden-{host}"


def connected(address: str, *logins: tuple[str, str]) -> KazooClient:
    client = KazooClient(address, timeout=30, auth_data=[("digest", ":".join(login)) for login in logins] or None)
    client.start()
    return client


def as_reconciler(address: str) -> KazooClient:
    client = connected(address, LOGIN)
    client.default_acl = OURS
    return client


def make(client: KazooClient, path: str, host: str) -> tuple[str, str]:
    """What a host needs, made by the reconciler; gives the host's login."""
    login = login_of(host)
    for name in ("hosts", "orders", "verdicts"):
        client.ensure_path(f"{path}/{name}")
    may = make_digest_acl(*login, read=True, create=True, delete=True)
    told = json.dumps({"schema": 1, "reader": READER, "moved": False}).encode()
    client.create(f"{path}/hosts/{host}", told, acl=[*OURS, may])
    return login


def say(client: KazooClient, path: str, host: str, **told: Any) -> None:
    """An order, as the reconciler gives it."""
    where, data = f"{path}/orders/{host}", json.dumps({"order": None, "clear": None, **told}).encode()
    if client.exists(where):
        client.set(where, data)
    else:
        client.create(where, data, acl=[*OURS, make_digest_acl(*login_of(host), read=True)])
