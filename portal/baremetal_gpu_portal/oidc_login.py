# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins at a provider."""

from __future__ import annotations

from typing import Any

from oauthenticator.generic import GenericOAuthenticator

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts
from baremetal_gpu_portal.guard import refusal
from baremetal_gpu_portal.logins import Mapped


class OfProvider(Mapped, GenericOAuthenticator):
    """The accounts of a provider, which may tell anything."""

    def user_info_to_username(self, user_info: dict[str, Any]) -> str:
        name, claim = user_info.get(self.username_claim), self.username_claim
        if not isinstance(name, str):
            raise refusal(403, f"your provider of logins tells no {claim} of you. To do: tell the operators")
        # Whoever can give any address there could be anybody here.
        verified = user_info.get("email_verified")
        if claim == "email" and verified is not True and verified != "true":
            self.log.warning("Login refused: the provider does not say that it has verified %s", one_line(name, 80))
            text = (
                "your provider of logins does not say that it has verified your address. "
                "To do: verify it there, and log in again"
            )
            raise refusal(403, text)
        domains = self.portal.settings.domains
        try:
            return accounts.name_of(name, domains, needs_domain=claim == "email" or bool(domains))
        except Refused as why:
            self.log.warning("Login refused: %s", why)
            raise refusal(403, str(why)) from None
