# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins with the passwords of a directory of users."""

from __future__ import annotations

import asyncio
from typing import Any

from ldap3.core.exceptions import LDAPException
from ldapauthenticator import LDAPAuthenticator

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from baremetal_gpu_portal.guard import refusal
from baremetal_gpu_portal.logins import Mapped


class _Directory(LDAPAuthenticator):
    async def authenticate(self, handler: Any, data: Any = None) -> Any:
        """In a thread: it waits for its server without letting others go on."""
        try:
            return await asyncio.to_thread(asyncio.run, super().authenticate(handler, data))
        except LDAPException as why:
            self.log.error("The directory of users does not answer: %s %s", type(why).__name__, one_line(why, 300))
            text = "the directory of users does not answer. To do: try again in a while, or tell the operators"
            raise refusal(503, text) from None


class OfDirectory(Mapped, _Directory):
    """The accounts of a directory."""
