# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the hub's users are, and what ends when somebody's account does.

A name can be given to somebody else. So the number of the account is kept with each of the hub's users; who comes with
the same name and another number is another person, and gets nothing of the one before: no token, no login, no session.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from jupyterhub import orm
from jupyterhub.app import JupyterHub
from jupyterhub.utils import utcnow
from sqlalchemy.exc import SQLAlchemyError
from tornado.log import app_log

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from baremetal_gpu_portal.orders import Order
from baremetal_gpu_portal.shared import Shared
from baremetal_gpu_portal.who import Look

# A host that cannot ask its directory of users knows no account and no groups, for a while. Whose account the host
# itself says to be closed is looked at twice only.
CLOSED, UNKNOWN_ROUNDS = "closed_account", 5
LOOK_S = 20
ANOTHER = "another person has the name now"
# Of a token that somebody makes.
TOKEN_S = 30 * 86400


def _read(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            return {str(name): int(uid) for name, uid in json.load(file).items()}
    except FileNotFoundError:
        return {}


class People(Shared):
    """The users of the hub."""

    def __init__(
        self,
        open_account: Callable[[str], Account],
        order: Order,
        look: Callable[[], Awaitable[Look]],
        spawners: Callable[[], Iterable[Any]],
        path: str,
        every_s: float,
    ) -> None:
        """
        :param open_account: a user's name -> the account. Raises Refused where nobody may use it.
        :param order: what the program that works as root does.
        :param look: one look at the scheduler.
        :param spawners: the servers of the hub.
        :param path: the file with the numbers of accounts.
        :param every_s: how often accounts are looked at.
        """
        self._open_account, self._order, self._look, self._spawners = open_account, order, look, spawners
        self._path, self._every_s, self._uids = path, every_s, _read(path)
        # Name -> in how many rounds the account was closed.
        self._closed: dict[str, int] = {}

    # --- one person ---

    def is_same(self, account: Account) -> bool:
        """Whether it is the person whom the hub knows by that name."""
        return self._uids.get(account.name, account.uid) == account.uid

    def must_be_same(self, account: Account) -> None:
        """Raises Refused."""
        if not self.is_same(account):
            cause = f"the name {account.name} was that of another person, whose login or token this is"
            raise Refused(cause, "log in again", code="another_person", subject="login")

    def _keep(self, account: Account) -> None:
        if self._uids.get(account.name) != account.uid:
            self._uids[account.name] = account.uid
            files.write(self._path, json.dumps(self._uids, indent=1, sort_keys=True), mode=0o600)

    async def admit(self, account: Account) -> None:
        """Somebody has logged in. Raises Refused while there is something of another person's of that name."""
        if not self.is_same(account):
            await self._end(account.name, ANOTHER)
            own = [one for one in self._spawners() if one.user.name == account.name]
            if any(one.active for one in own):
                cause = f"the sessions of an earlier user called {account.name} are being ended"
                raise Refused(cause, "log in again in a minute", code="another_person", subject="login")
            self._forget_options(account.name, own)
        self._keep(account)

    def _forget_options(self, name: str, own: Iterable[Any]) -> None:
        for one in own:
            one.user_options, one.ended = {}, {}
        user = orm.User.find(JupyterHub.instance().db, name)
        for row in user.orm_spawners.values() if user else ():
            row.user_options, row.state = {}, {}
        JupyterHub.instance().db.commit()

    async def _end(self, name: str, why: str) -> None:
        """End all that the hub has of a user: tokens, logins and sessions. May be done twice."""
        if self._forget_tokens(name):
            app_log.warning("The tokens and logins of %s end: %s", name, why)
        look = await self._look()
        jobs = {one.job: name for one in self._spawners() if one.user.name == name and one.job}
        # What another person of that name has is theirs.
        jobs |= {job: name for job, one in look.sessions.items() if one.user == name and why is not ANOTHER}
        for job in sorted(jobs, key=str):
            one = look.sessions.get(job)
            if one is not None and one.state == session.ENDED and not one.lives:
                continue
            app_log.warning("Ending job %s of %s: %s", job, name, why)
            try:
                # Its number may be that of another account by now.
                await self._order("cancel", one.user if one else name, job=job)
            except Refused as wrong:
                # The next round tries again.
                app_log.error("Job %s of %s does not end: %s", job, name, wrong)

    def _forget_tokens(self, name: str) -> bool:
        """Whether there were any."""
        db = JupyterHub.instance().db
        user = orm.User.find(db, name)
        if user is None:
            return False
        rows = [row for kind in (orm.APIToken, orm.OAuthCode) for row in db.query(kind).filter_by(user_id=user.id)]
        for row in rows:
            db.delete(row)
        # A login is a cookie with that.
        user.cookie_id = orm.new_token()
        user.admin = False
        db.commit()
        return bool(rows)

    # --- all of them ---

    def _names(self) -> set[str]:
        """Whoever has a session or a token."""
        db = JupyterHub.instance().db
        names = {name for (name,) in db.query(orm.User.name).join(orm.APIToken, orm.APIToken.user_id == orm.User.id)}
        return names | {one.user.name for one in self._spawners() if one.job}

    async def look_after(self) -> None:
        """End what is of closed accounts, again and again."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                names = sorted(self._names())
                self._limit_tokens()
            except Exception as why:
                self._failed("Looking for users", why)
                continue
            # A directory of users that hangs at one name is not asked for the others of this round.
            for name in random.sample(names, len(names)):
                try:
                    await self._look_at(name)
                except TimeoutError:
                    app_log.error("Whether the account of %s is open cannot be asked: no answer", name)
                    break
                except Exception as why:
                    self._failed(f"Looking at the account of {name}", why)

    async def _look_at(self, name: str) -> None:
        try:
            account = await asyncio.wait_for(asyncio.to_thread(self._open_account, name), LOOK_S)
        except CallFailed as why:
            app_log.error("Whether the account of %s is open cannot be asked: %s", name, why)
            return
        except Refused as why:
            self._closed[name] = self._closed.get(name, 0) + 1
            if self._closed[name] >= (2 if why.problem.code == CLOSED else UNKNOWN_ROUNDS):
                await self._end(name, why.problem.cause)
            return
        self._closed.pop(name, None)
        if self.is_same(account):
            self._keep(account)
        else:
            await self._end(name, ANOTHER)

    def _limit_tokens(self) -> None:
        """Tokens that were made without an end, before there was a limit, get one."""
        db = JupyterHub.instance().db
        endless = db.query(orm.APIToken).filter(orm.APIToken.expires_at.is_(None), orm.APIToken.user_id.is_not(None))
        # That of a session ends with the session.
        rows = [row for row in endless if not (row.note or "").startswith("Server at ")]
        for row in rows:
            row.expires_at = utcnow(with_tz=False) + timedelta(seconds=TOKEN_S)
        if rows:
            db.commit()

    def _failed(self, what: str, why: Exception) -> None:
        app_log.error(what, exc_info=why)
        if isinstance(why, SQLAlchemyError):
            JupyterHub.instance().db.rollback()
