# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler is told of ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import HOST
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import settings as core_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong, private, read_object


@dataclass(frozen=True)
class Settings(core_settings.Settings):
    """`zookeeper` is host:port,…; `path` the node under which all is kept; `logins` names a JSON file of mode 0600 with
    host -> its login in the words of an ACL (user:checksum), which is read again when it changes."""

    zookeeper: str = ""
    path: str = "/baremetal-gpu"
    logins: str | None = None
    session_s: float = 10.0

    # `former`: what the reconciler had before. `agents`: what hosts share that have no login of their own yet.
    SECRETS: ClassVar[tuple[str, ...]] = (
        "zookeeper_user",
        "zookeeper_password",
        "zookeeper_former_user",
        "zookeeper_former_password",
        "zookeeper_agents_user",
        "zookeeper_agents_password",
    )

    def check(self, path: str) -> None:
        if not self.path.startswith("/") or self.path.endswith("/"):
            raise Wrong(f"{path}: path is {self.path!r}", "begin with a slash and end with a name")
        super().check(path)

    def check_secrets(self, secrets: Mapping[str, str]) -> None:
        if self.policy.mode == "act" and not (secrets.get("zookeeper_user") and secrets.get("zookeeper_password")):
            raise Wrong(
                "mode is act, and there is no login for ZooKeeper, so that any client could give orders to the hosts",
                "give zookeeper_user and zookeeper_password in the file of credentials, or use mode record",
            )


class Logins:
    """The hosts' logins, `rows`: host -> user:checksum. Raises Wrong for a file that cannot be used."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.rows: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Read the file where it is another than it was; whether it is. Raises Wrong, and then keeps what it had."""
        if self.path is None:
            return False
        path = private(self.path)
        found = path.stat()
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return False
        told = read_object(path)
        wrong = [name for name, login in told.items() if not _is_login(name, login)]
        if wrong:
            raise Wrong(f"{path}: {one_line(wrong[0])} is not a host with user:checksum", "run gpu_reconciler again")
        self._seen, self.rows = seen, told
        return True


def _is_login(host: str, login: Any) -> bool:
    return bool(
        re.fullmatch(HOST, host) and isinstance(login, str) and re.fullmatch(r"[^\s:]{1,300}:[A-Za-z0-9+/]{27}=", login)
    )
