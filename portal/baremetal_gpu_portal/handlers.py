# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal's own pages, and what sessions and scripts of pages ask."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import url_path_join
from tornado import web

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, form, invite, login, samples, ssh
from baremetal_gpu_portal import environments, offers, pages, who
from baremetal_gpu_portal.portal import Portal

# What is wrong is in the log alone: who guesses learns neither names nor codes.
WRONG_CODE = (
    "the name or the code is wrong, or the code was used or is older than a week. "
    "To do: type both as you received them, or ask the operators for another code"
)


def of(portal: Portal) -> list[tuple[str, type, dict[str, Portal]]]:
    """The pages of a site, for JupyterHub."""
    found = [
        (r"/now", NowHandler),
        (r"/now/data", NowDataHandler),
        (r"/now/forecast", ForecastHandler),
        (r"/portal/sample", SampleHandler),
        (r"/portal/idle", IdleHandler),
        (r"/portal/extend", ExtendHandler),
        *([(r"/portal/more", MoreHandler)] if portal.is_slurm else []),
        *([(r"/environments", EnvironmentsHandler)] if portal.environments.can_save else []),
        *([(r"/environments/save", SaveHandler)] if portal.environments.can_save else []),
        *([(r"/invite", InviteHandler)] if portal.has_invitations else []),
        *([(r"/ssh", SshHandler)] if portal.hub.get("ssh") else []),
    ]
    return [(path, kind, {"portal": portal}) for path, kind in found]


def template_variables(portal: Portal) -> dict[str, Any]:
    """What every template can show."""
    return {
        "portal_idle": portal.watch.banner,
        "portal_invite": portal.has_invitations,
        "portal_ssh": bool(portal.hub.get("ssh")),
        "portal_environments": portal.environments.can_save,
        "portal_own": portal.home_page.page,
        "portal_static": pages.STATIC,
    }


class Page(BaseHandler):
    def initialize(self, portal: Portal) -> None:
        self.portal = portal

    def _finish_json(self, row: Mapping[str, Any]) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(row))

    def _running(self, why: str = "you have no such session, or it has ended") -> Any:
        """The session that is asked for."""
        spawner = self.current_user.spawners.get(self.get_body_argument("server", ""))
        if spawner is None or not spawner.ready:
            raise web.HTTPError(404, why)
        return spawner


# --- who uses what ---------------------------------------------------------------------------------------------------


def _policy(page: str) -> str:
    """The page may run and show only what is in it."""
    hashes = {
        tag: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for tag in ("script", "style")
    }
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {hashes['script']}; style-src {hashes['style']}"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


NOW = pages.now()
POLICY = _policy(NOW)


class NowHandler(Page):
    """Who uses what since when, for everybody who is logged in."""

    @web.authenticated
    async def get(self) -> None:
        self.set_header("Content-Security-Policy", POLICY)
        self.finish(NOW)


class NowDataHandler(Page):
    @web.authenticated
    async def get(self) -> None:
        portal, user = self.portal, self.current_user
        shown = who.page(await portal.look(), portal.settings.partition, await portal.measured.gpus())
        warnings = [one["text"] for one in portal.watch.banner(user)]
        self._finish_json({**shown, "me": user.name, "warnings": warnings, "now": time.time()})


class ForecastHandler(Page):
    """Whether a session would start at once."""

    @web.authenticated
    async def get(self) -> None:
        portal = self.portal
        look = await portal.look()
        allowed = await portal.allowed(self.current_user.name)
        given = {name: self.get_query_argument(name, "") for name in form.Request().as_dict()}
        request, problems = allowed.parse(given)
        row: dict[str, Any]
        if problems:
            fields = {one.subject: f"{one.cause}. To do: {one.remedy}." for one in problems}
            row = {"answer": offers.NEVER, "text": ". ".join(map(str, problems)), "fields": fields}
        elif look.failure:
            row = {"answer": offers.UNKNOWN, "text": f"The scheduler does not answer: {look.failure}"}
        else:
            nodes = offers.in_partition(look.found.get("nodes", []), portal.settings.partition)
            answer = offers.forecast(request, nodes, look.found["jobs"], time.time(), portal.backend.has_queue)
            at = answer.at and time.strftime("%Y-%m-%d %H:%M", time.localtime(answer.at))
            back = f" They are back at {at} at the latest." if at else ""
            row = {"answer": answer.answer, "text": answer.text + back}
        self._finish_json(row)


# --- sessions --------------------------------------------------------------------------------------------------------


class MoreHandler(Page):
    """Gives a session more time."""

    @web.authenticated
    async def post(self) -> None:
        spawner = self._running()
        try:
            await self.portal.home_page.more(spawner)
        except Refused as why:
            raise web.HTTPError(409, "%s", why) from None
        self.redirect(url_path_join(self.hub.base_url, "home"))


class ExtendHandler(Page):
    """Keeps a session: the time in which it may be idle begins anew."""

    @web.authenticated
    async def post(self) -> None:
        (await self.portal.watch.of(self._running())).extend()
        self.redirect(url_path_join(self.hub.base_url, "home"))


class IdleHandler(Page):
    """How long the sessions of whoever asks are idle."""

    @web.authenticated
    async def get(self) -> None:
        there = [spawner for spawner in self.current_user.spawners.values() if spawner.ready]
        found = {spawner.name: await self.portal.watch.told(spawner) for spawner in there}
        self.set_header("Vary", "Origin")
        # JupyterLab shows it, and is on the origin of the sessions of whoever asks; no other one may read it.
        own = self.current_user.host
        if own and self.request.headers.get("Origin") == own:
            self.set_header("Access-Control-Allow-Origin", own)
            self.set_header("Access-Control-Allow-Credentials", "true")
        self._finish_json(found)


class SampleHandler(APIHandler):
    """Takes samples of sessions, each from the session itself."""

    _accept_cookie_auth = False

    def initialize(self, portal: Portal) -> None:
        self.portal = portal

    def _log(self) -> None:
        """Each session sends one again and again."""
        if self.get_status() != 200:
            super()._log()

    async def post(self) -> None:
        user = self.current_user
        if user is None or getattr(user, "spawners", None) is None:
            raise web.HTTPError(403)
        try:
            row = samples.read(self.request.body)
        except Malformed as why:
            raise web.HTTPError(400, str(why)) from None
        server = row["server"]
        # By its key it would be made.
        spawner = user.spawners.get(server)
        if spawner is None or not self.get_scope_filter("access:servers")(spawner.orm_spawner, "server"):
            raise web.HTTPError(404)
        next_s = samples.INTERVAL_S
        if spawner.ready:
            next_s = await self.portal.watch.take(spawner, row, lambda: self.stop_single_user(user, server))
        self.finish(json.dumps({"next_s": next_s}))


class SshHandler(Page):
    """What a user writes into the configuration of OpenSSH."""

    @web.authenticated
    async def get(self) -> None:
        name, at = self.current_user.name, self.portal.hub["ssh"]
        running = [one.name for one in self.current_user.spawners.values() if one.ready]
        shown: dict[str, Any] = {"names": [f"{one}.portal" if one else "portal" for one in sorted(running)]}
        try:
            keys = await self.portal.order("keys", name)
        except Refused as why:
            shown["failure"] = str(why)
        else:
            shown["config"] = ssh.config(name, at["host"], at["port"])
            shown["known_hosts"] = ssh.known_hosts(name, at["host"], at["port"], keys["jump"], keys["session"])
        self.finish(await self.render_template("ssh.html", **{"failure": "", **shown}))


# --- environments ----------------------------------------------------------------------------------------------------


class EnvironmentsHandler(Page):
    """The sessions of whoever asks that can be saved, and what becomes of those that are."""

    @web.authenticated
    async def get(self) -> None:
        saved = self.portal.environments
        rows = saved.rows(self.current_user)
        if any(row.get("state") == environments.RUNS for row in rows):
            self.set_header("Refresh", str(environments.REFRESH_S))
        self.set_header("Cache-Control", "no-store")
        place = saved.place_of(self.current_user.name)
        self.finish(await self.render_template("environments.html", sessions=rows, place=place))


class SaveHandler(Page):
    @web.authenticated
    async def post(self) -> None:
        why = "you have no such session whose environment can be saved, or it has ended"
        spawner = self._running(why)
        if not self.portal.environments.kept_of(spawner):
            raise web.HTTPError(404, why)
        self.portal.environments.save(spawner, self.get_body_argument("name", ""))
        self.redirect(url_path_join(self.hub.base_url, "environments"))


# --- people without a password ---------------------------------------------------------------------------------------


class InviteHandler(Page):
    """On it people who were invited set their own password, before they can log in."""

    async def _show(self, failure: str = "", done: bool = False, name: str = "") -> None:
        self.set_header("Cache-Control", "no-store")
        shown = {"failure": failure, "done": done, "username": name, "shortest": invite.SHORTEST}
        page = await self.render_template("invite.html", **shown, login_url=self.settings["login_url"])
        self.finish(page)

    async def get(self) -> None:
        await self._show(name=self.get_query_argument("user", "")[:32])

    async def post(self) -> None:
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
                await self._redeem(name, code[:100], password)
            except web.HTTPError as why:
                self.set_status(why.status_code)
                failure = why.jupyterhub_message
        if failure and self.get_status() == 200:
            self.set_status(400)
        await self._show(failure, done=not failure, name=name[:32])

    async def _redeem(self, name: str, code: str, password: str) -> None:
        """Raises web.HTTPError where it is refused."""
        question = {"user": name, "code": code, "password": password}
        async with self.portal.guard.attempt(self, name, WRONG_CODE):
            if not accounts.NAME.fullmatch(name):
                raise Refused("it is not the name of an account", code=login.NO_ACCOUNT)
            await self.portal.guard.ask(self.portal.invite_socket, name, question)
