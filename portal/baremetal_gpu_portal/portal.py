# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal of a site: its settings, and what the hub's spawner, logins and pages share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyterhub.app import JupyterHub

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import backend, form, login, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from baremetal_gpu_portal import offers
from baremetal_gpu_portal.environments import Environments
from baremetal_gpu_portal.guard import Guard
from baremetal_gpu_portal.home_page import HomePage
from baremetal_gpu_portal.offers import Offer
from baremetal_gpu_portal.orders import Places, RootProgram
from baremetal_gpu_portal.people import People
from baremetal_gpu_portal.scheduler import Measured, Scheduler, backend_of
from baremetal_gpu_portal.shared import Shared
from baremetal_gpu_portal.watch import Watch


@dataclass(frozen=True)
class Allowed:
    """What a user may ask for.

    :ivar environments: those of the site.
    :ivar place: where images of the user's own are; empty where there are none.
    :ivar directories: whether a directory of the user's own may be the environment.
    """

    limits: Limits
    offers: list[Offer]
    environments: list[str]
    place: str
    directories: bool

    @property
    def models(self) -> list[str]:
        return [one.model for one in self.offers]

    def parse(self, given: Mapping[str, Any]) -> tuple[Request, list[Problem]]:
        """The request, and what is wrong with it."""
        return form.parse(given, self.limits, self.models, self.environments, self.place, self.directories)

    def remembered(self, last: Mapping[str, Any]) -> Request:
        """What was asked for, as far as it may still be asked for."""
        return form.remembered(last, self.limits, self.models, self.environments, self.place, self.directories)


def spawners() -> list[Any]:
    """The servers of the hub that it has in memory; none while it starts."""
    hub = JupyterHub.instance()
    # Who asks for its users before would have them made, with servers of another class.
    users = hub.users.values() if "spawner_class" in hub.tornado_settings else ()
    return [spawner for user in users for spawner in user.spawners.values()]


class Portal(Shared):
    """There is one in a hub.

    :ivar hub: the settings that only the hub reads.
    :ivar login: pam, ldap or oidc.
    :ivar order: gives an order to the program that works as root.
    :ivar look: one look at the scheduler.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """:param environ: in the tests it says where everything is."""
        self.login_socket = environ.get("PORTAL_LOGIN_SOCKET", "/run/baremetal-gpu-portal-login.sock")
        self.invite_socket = environ.get("PORTAL_INVITE_SOCKET", "/run/baremetal-gpu-portal-invite.sock")
        self.state = environ.get("PORTAL_STATE", "/var/lib/baremetal-gpu-portal")
        self.certificates = f"{self.state}/tls"
        self.sweep_s = float(environ.get("PORTAL_SWEEP_S", "60"))
        socket = environ.get("PORTAL_SOCKET", "/run/baremetal-gpu-portal-session.sock")
        self.settings = settings.read(environ.get("PORTAL_SETTINGS", settings.PATH))
        self.hub = self.settings.hub
        self.login = str(self.hub["login"]["kind"])
        self.login_options: dict[str, Any] = dict(self.hub["login"].get("options", {}))
        self.backend = backend_of(self.settings.scheduler, socket)
        self.look = Scheduler(self.backend).look
        self.measured = Measured(self.hub.get("prometheus", ""))
        self.order = Places(RootProgram(socket).order).order
        self.guard = Guard()
        self.watch = Watch(
            self.hub["idle"],
            lambda name: self.settings.person(name).groups,
            spawners,
            f"{self.hub['public_url']}/hub/home",
            f"{self.state}/told.json",
            self.look,
        )
        self.environments = Environments(self.settings, self.order)
        hours = self.most_hours if self.is_slurm else None
        self.home_page = HomePage(self.order, self.look, hours, self.watch.told, self.again)
        uids = f"{self.state}/uids.json"
        self.people = People(self.open_account, self.order, self.look, spawners, uids, self.sweep_s)

    @property
    def is_slurm(self) -> bool:
        return self.settings.scheduler == settings.SLURM

    @property
    def has_invitations(self) -> bool:
        """A provider or a directory has its own passwords."""
        return self.login == "pam"

    def open_account(self, name: str) -> Account:
        """The account of a person who may have sessions, and whom the host lets log in at present. Raises Refused."""
        account = self.settings.person(name)
        try:
            backend.ask(self.login_socket, {"do": login.ACCOUNT, "user": account.name})
        except Refused as why:
            # Who cannot say that it is open does not say that it is closed.
            if isinstance(why, CallFailed) or why.problem.code in login.OF_ACCOUNTS:
                raise
            raise CallFailed(why.problem.cause, why.problem.remedy) from None
        return account

    async def allowed(self, user: str) -> Allowed:
        known = self.settings
        limits = await asyncio.to_thread(
            lambda: form.limits_of(known.person(user).groups, known.limits_by_group, known.limits)
        )
        nodes = offers.in_partition((await self.look()).found.get("nodes", []), known.partition)
        return Allowed(limits, offers.offers(nodes), known.names, known.place_of(user), known.directories)

    async def again(self, user: str, last: Mapping[str, Any]) -> Request:
        return (await self.allowed(user)).remembered(last)

    async def most_hours(self, user: str) -> int:
        return (await self.allowed(user)).limits.hours
