# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins: each of them maps to a Unix account, which has to exist."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.auth import Authenticator
from tornado import web
from traitlets import Instance

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, login
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from baremetal_gpu_portal.guard import refusal
from baremetal_gpu_portal.portal import Portal

# By the kind of login. The packages of the others need not be there.
CLASSES = {
    "pam": f"{__package__}.logins.OfHost",
    "ldap": f"{__package__}.ldap_login.OfDirectory",
    "oidc": f"{__package__}.oidc_login.OfProvider",
}
WRONG = (
    "the name or the password is wrong, or the account may have no sessions here. "
    "To do: try again, or ask the operators for an account; one with capital letters in its name has none"
)
# Who is in a group of administrators sees everybody's sessions and ends them. JupyterHub's own administrators can be
# anybody, by tokens and servers of others.
OPERATOR = {
    "name": "operator",
    "description": "See and stop everybody's sessions",
    "scopes": [
        "admin-ui",
        "list:users",
        "read:users:name",
        "read:users:activity",
        "read:servers",
        "delete:servers",
    ],
}


def options(portal: Portal) -> dict[str, Any]:
    """The settings of the class of a login."""
    given = portal.login_options
    if portal.login == "ldap":
        # Its class would believe every certificate.
        return {**given, "tls_kwargs": {"validate": ssl.CERT_REQUIRED, **given.get("tls_kwargs", {})}}
    return given


class Mapped(Authenticator):
    """A login of another class, with the Unix account in the place of whatever name it tells."""

    portal: Portal = Instance(Portal).tag(config=True)

    async def authenticate(self, handler: Any, data: Any = None) -> dict[str, Any] | None:
        if self.portal.login == "oidc":
            try:
                return await self._model(await super().authenticate(handler, data))
            except Refused as why:
                self.log.warning("Login refused: %s", why)
                raise refusal(403, str(why)) from None
        typed = data.get("username") if isinstance(data, dict) else None
        typed = typed if isinstance(typed, str) else ""
        # A domain makes no other name of it, of which one could guess anew.
        async with self.portal.guard.attempt(handler, typed.strip().lower().partition("@")[0], WRONG):
            name = accounts.name_of(typed, self.portal.settings.domains)
            # Where a directory knows people by other names, theirs is known only later.
            if not self.portal.login_options.get("lookup_dn"):
                await asyncio.to_thread(self.portal.settings.person, name)
            found = await super().authenticate(handler, {**data, "username": name})
            if not found:
                raise Refused(f"the password of {name} is wrong", code="wrong_password")
            return await self._model(found)

    async def _model(self, found: Any) -> dict[str, Any] | None:
        """Raises Refused."""
        if not found:
            return None
        model = dict(found) if isinstance(found, dict) else {"name": found}
        portal = self.portal
        # The host's own passwords are right only for an account that is open.
        look = portal.settings.person if portal.login == "pam" else portal.open_account
        account = await asyncio.to_thread(lambda: look(accounts.name_of(model["name"], portal.settings.domains)))
        try:
            await portal.people.admit(account)
        except Refused as why:
            # The password is right, and whoever has it is told.
            self.log.warning("Login refused: %s", why)
            raise refusal(403, str(why)) from None
        return {**model, "name": account.name, **self._rights(account)}

    def _rights(self, account: Account) -> dict[str, Any]:
        """What JupyterHub is told of a user beside the name."""
        is_operator = bool(set(account.groups) & set(self.portal.settings.admin_groups))
        return {"admin": False, "roles": [{"name": "user"}, *([dict(OPERATOR)] if is_operator else [])]}

    async def refresh_user(self, user: Any, handler: Any = None) -> bool | dict[str, Any]:
        """Who has lost the account, or the group, is logged out within minutes."""
        if handler is not None and not hasattr(handler, "_token_authenticated"):
            # JupyterHub 6.1 asks for it where it has set it only for tokens, and would answer with an error.
            handler._token_authenticated = False
        try:
            account = await asyncio.to_thread(self.portal.open_account, user.name)
            self.portal.people.must_be_same(account)
        except CallFailed as why:
            self.log.error("It is not known whether %s is still open: %s", user.name, why)
            return True
        except Refused as why:
            self.log.warning("Logged out: %s", why)
            return False
        return {"name": account.name, **self._rights(account)}

    def get_handlers(self, app: Any) -> list[Any]:
        """Those of a login come before those of the hub."""
        own = [(rf"/api/users/([^/]+)/server{rest}", StopHandler) for rest in ("", "s/([^/]*)")]
        return [*own, *super().get_handlers(app)]


class StopHandler(UserServerAPIHandler):
    """JupyterHub's own, which says that it has stopped a server whatever came of that."""

    async def delete(self, user_name: str, server_name: str = "") -> None:
        user = self.find_user(user_name)
        spawner = user.spawners.get(server_name) if user else None
        await super().delete(user_name, server_name)
        if spawner is not None and spawner.unstopped:
            raise web.HTTPError(503, "%s", spawner.unstopped)


class _Host(Authenticator):
    async def authenticate(self, handler: Any, data: Any = None) -> dict[str, Any] | None:
        """Raises Refused."""
        password = data.get("password")
        if not isinstance(password, str) or not 0 < len(password.encode()) <= login.PASSWORD_AT_MOST:
            return None
        question = {"do": login.LOGIN, "user": data["username"], "password": password}
        answer = await self.portal.guard.ask(self.portal.login_socket, data["username"], question)
        return {"name": answer["name"]}


class OfHost(Mapped, _Host):
    """The accounts of the host. Their passwords are checked by a program that may read what proves them."""
