# SPDX-License-Identifier: GPL-3.0-or-later
"""The page on which people who were invited set their own password, before they can log in."""

from __future__ import annotations

import asyncio

from jupyterhub.handlers import BaseHandler
from tornado import web

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, backend, invite, login

# What is wrong is in the log alone: who guesses learns neither names nor codes.
WRONG = (
    "the name or the code is wrong, or the code was used or is older than a week. "
    "To do: type both as they were told to you, or ask the operators for another code"
)


class Invitations:
    """What the page needs of the hub."""

    def __init__(self, socket, guarded, turns, executor):
        """
        :param socket: of the program that sets passwords.
        :param guarded: counts wrong attempts, as those of logins.
        :param turns: of a name, one question at a time.
        :param executor: where questions wait.
        """
        self._socket, self._guarded, self._turns, self._executor = socket, guarded, turns, executor

    def __deepcopy__(self, memo):
        """A configuration is copied with all that it has, and this is one."""
        return self

    @property
    def handlers(self):
        return [(r"/invite", InviteHandler, {"invitations": self})]

    async def redeem(self, handler, name, code, password):
        """Raises web.HTTPError where it is refused."""
        question = {"user": name, "code": code, "password": password}
        async with self._guarded(handler, name, WRONG):
            if not accounts.NAME.fullmatch(name):
                raise Refused("it is no name of an account", code=login.NO_ACCOUNT)
            async with self._turns[name]:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._executor, backend.ask, self._socket, question)


class InviteHandler(BaseHandler):
    def initialize(self, invitations):
        self._invitations = invitations

    async def _show(self, failure="", done=False, name=""):
        self.set_header("Cache-Control", "no-store")
        shown = {"failure": failure, "done": done, "username": name, "shortest": invite.SHORTEST}
        page = await self.render_template("invite.html", **shown, login_url=self.settings["login_url"])
        self.finish(page)

    async def get(self):
        await self._show(name=self.get_query_argument("user", "")[:32])

    async def post(self):
        name, code, password, again = (
            self.get_body_argument(field, "", strip=field in ("username", "code"))
            for field in ("username", "code", "password", "again")
        )
        failure = invite.weak(password)
        if not failure and password != again:
            failure = "the two passwords differ. To do: type the same one twice"
        if not failure and len(password.encode()) > login.PASSWORD_AT_MOST:
            failure = "the password is too long. To do: take a shorter one"
        if not failure:
            try:
                await self._invitations.redeem(self, name, code[:100], password)
            except web.HTTPError as why:
                self.set_status(why.status_code)
                failure = why.jupyterhub_message
        if failure and self.get_status() == 200:
            self.set_status(400)
        await self._show(failure, done=not failure, name=name[:32])
