# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook user_kubeconfig is to make for a user."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import kubernetes, site

# Beside the inventory.
DIRECTORY = ".secrets/kubernetes"
HOUR = timedelta(hours=1)


def make(user: site.User, days: int, directory: Path, now: datetime) -> dict[str, Any]:
    """It ends with the user's last day, if that comes first."""
    ends = [now + timedelta(days=days)]
    last = site.last_day(user.row)
    if last is not None:
        ends.append(datetime(last.year, last.month, last.day))
    serial = secrets.token_hex(4)
    return {
        "user": user.name,
        "namespace": kubernetes.namespace_of(user.name),
        "client": kubernetes.client_name(user.name, serial),
        "hours": max(1, (min(ends) - now) // HOUR),
        "path": str(directory / f"{user.name}.kubeconfig"),
        "bindings": kubernetes.access(user.name, serial),
    }
