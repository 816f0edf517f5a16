# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub's configuration: sessions as jobs, logins that map to Unix accounts, and the page of who uses what.

What is decided, is decided in the collection's modules, which are tested without JupyterHub; this file is between them
and JupyterHub. It is the same on every site: settings are in the file that both read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import random
import re
import ssl
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from jupyterhub import orm
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.app import JupyterHub
from jupyterhub.auth import Authenticator
from jupyterhub.handlers import BaseHandler
from jupyterhub.spawner import Spawner, SpawnException
from jupyterhub.utils import url_path_join
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import object_session
from tornado import web
from traitlets import Any, Dict, Float, Integer, Unicode, default

LIBRARY = os.environ.get("PORTAL_LIBRARY", "/usr/libexec/baremetal-gpu/portal-library")
SETTINGS = os.environ.get("PORTAL_SETTINGS", "/etc/baremetal-gpu/portal/settings.json")
STATE = os.environ.get("PORTAL_STATE", "/var/lib/baremetal-gpu-portal")
SOCKET = os.environ.get("PORTAL_SOCKET", "/run/baremetal-gpu-portal-session.sock")
INVITE_SOCKET = os.environ.get("PORTAL_INVITE_SOCKET", "/run/baremetal-gpu-portal-invite.sock")
LOGIN_SOCKET = os.environ.get("PORTAL_LOGIN_SOCKET", "/run/baremetal-gpu-portal-login.sock")


def loaded(name, path):
    loader = SourceFileLoader(name, str(path))
    module = module_from_spec(spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


loaded("baremetal_gpu_portal", LIBRARY)

# They are there only now.
from ansible_collections.baremetal.gpu.plugins.module_utils.host.attempts import Attempts  # noqa: E402

# As above.
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused  # noqa: E402

# As above.
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line  # noqa: E402

# As above.
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (  # noqa: E402
    accounts,
    backend,
    docker_backend,
    form,
    gpus,
    hub_variables,
    identity,
    login,
    marathon_backend,
    markup,
    offers,
    session,
    settings,
    slurm_backend,
    ssh,
    who,
)

hub_watch = loaded("baremetal_gpu_hub_watch", Path(__file__).with_name("hub_watch.py"))
hub_environments = loaded("baremetal_gpu_hub_environments", Path(__file__).with_name("hub_environments.py"))
hub_invite = loaded("baremetal_gpu_hub_invite", Path(__file__).with_name("hub_invite.py"))
hub_own = loaded("baremetal_gpu_hub_own", Path(__file__).with_name("hub_own.py"))
hub_people = loaded("baremetal_gpu_hub_people", Path(__file__).with_name("hub_people.py"))
hub_places = loaded("baremetal_gpu_hub_places", Path(__file__).with_name("hub_places.py"))
hub_tls = loaded("baremetal_gpu_hub_tls", Path(__file__).with_name("hub_tls.py"))

# JupyterHub puts it there.
c = get_config()  # noqa: F821
KNOWN = settings.read(SETTINGS)
HUB = KNOWN.hub
ORDER_S, ANSWER_AT_MOST = 60, 1 << 20
# A job that was submitted a moment ago may not be in what was read.
FRESH_S = 5
# A scheduler that begins anew may not know for a moment what runs.
TAKEN_S = 30
SWEEP_S = float(os.environ.get("PORTAL_SWEEP_S", "60"))
POLL_S = 1
# Prometheus itself asks the hosts every ten seconds.
MEASURED_S = 5.0
# Where the certificates of the hub, the proxy and sessions are.
CERTIFICATES = f"{STATE}/tls"
# A login that is refused takes so long, whatever is wrong with it; so many passwords are checked at a time.
REFUSED_S, CHECKS_AT_ONCE = 2.0, 8
if KNOWN.scheduler == settings.SLURM:
    BACKEND = slurm_backend.SlurmBackend()
elif KNOWN.scheduler == settings.DOCKER:
    BACKEND = docker_backend.DockerBackend(backend.asked(SOCKET))
else:
    BACKEND = marathon_backend.MarathonBackend(backend.asked(SOCKET))


class Shared:
    """One question to the scheduler for all who ask at the same time."""

    def __init__(self):
        self._watch, self._task = who.Watch(BACKEND.look), None

    async def look(self):
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(asyncio.to_thread(self._watch.look))
        return await asyncio.shield(self._task)


SCHEDULER = Shared()


class Measured:
    """What each GPU does, from Prometheus: for all who ask, of a few seconds ago."""

    def __init__(self, url):
        self._url, self._task, self._begun, self._last = url, None, 0.0, {}

    async def gpus(self):
        if self._url and (self._task is None or (self._task.done() and time.monotonic() > self._begun + MEASURED_S)):
            self._begun, self._task = time.monotonic(), asyncio.ensure_future(self._ask())
        return self._last

    async def _ask(self):
        self._last = await asyncio.to_thread(gpus.ask, self._url)


MEASURED = Measured(HUB.get("prometheus", ""))


async def _order(do, user, tell=None, limit_s=ORDER_S, **more):
    """What the program that works as root does for a user; `tell` is told of its progress. Raises Refused."""
    answer = None
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_unix_connection(SOCKET, limit=ANSWER_AT_MOST)
            writer.write(json.dumps({"do": do, "user": user, **more}).encode())
            writer.write_eof()
            async for line in reader:
                answer = json.loads(line)
                if "progress" not in answer:
                    break
                if tell:
                    tell(answer["progress"])
            writer.close()
        if answer is None or "progress" in answer:
            raise ValueError("it ended before")
    except (OSError, TimeoutError, ValueError, RecursionError) as why:
        unit = "baremetal-gpu-portal-session.socket"
        remedy = f"the operators see it in `sudo journalctl -u {unit} -u 'baremetal-gpu-portal-session@*'`"
        raise CallFailed(f"the program that submits gives no answer: {type(why).__name__} {why}", remedy) from None
    if "problem" in answer:
        row = answer["problem"]
        raise Refused(row["cause"], row["remedy"], code=row["code"], subject=row["subject"])
    return answer


PLACES = hub_places.Places(_order)
order = PLACES.order


def account_of(name):
    return KNOWN.person(name)


def spawners():
    """The servers of the hub that it has in memory; none while it starts."""
    hub = JupyterHub.instance()
    # Who asks for its users before would have them made, with servers of another class.
    users = hub.users.values() if "spawner_class" in hub.tornado_settings else ()
    return [spawner for user in users for spawner in user.spawners.values()]


WATCH = hub_watch.Watch(
    HUB["idle"],
    lambda name: account_of(name).groups,
    spawners,
    f"{HUB['public_url']}/hub/home",
    f"{STATE}/told.json",
    SCHEDULER.look,
)


async def may_ask(user):
    """What somebody may ask for: limits, models with how many there are, environments of the site, the place of own
    images, and whether there are directories."""
    limits = await asyncio.to_thread(
        lambda: form.limits_of(account_of(user).groups, KNOWN.limits_by_group, KNOWN.limits)
    )
    look = await SCHEDULER.look()
    there = offers.offers(offers.in_partition(look.found.get("nodes", []), KNOWN.partition))
    return limits, there, KNOWN.names, KNOWN.place_of(user), KNOWN.directories


async def again(user, last):
    """What was asked for, as far as it may still be asked for."""
    limits, there, *more = await may_ask(user)
    return form.remembered(last, limits, [one.model for one in there], *more)


async def most_hours(user):
    return (await may_ask(user))[0].hours


ENVIRONMENTS = hub_environments.Environments(KNOWN, order)
OWN = hub_own.Own(order, SCHEDULER.look, most_hours if KNOWN.scheduler == settings.SLURM else None, WATCH.told, again)


# Open accounts are asked for by a function of below.
PEOPLE = hub_people.People(
    lambda name: open_account(name), order, SCHEDULER.look, spawners, f"{STATE}/uids.json", SWEEP_S
)


class NotStarted(SpawnException):
    """Why a session does not start. Its text is on every page that tells of that."""

    def __init__(self, text, reason):
        super().__init__(text, reason=reason)
        self.jupyterhub_message = text


class SessionSpawner(Spawner):
    """A session is a job. What is kept of it is by what the scheduler knows the job, by which it is found again."""

    # A number or a text; 0 for none.
    job = Any(0)
    submitted = Float(0.0)
    at_port = Integer(0)
    # By what it proves itself, and which authority says so; empty for one that cannot.
    identity = Unicode()
    authority = Unicode()
    ended = Dict()
    # Why its job goes on though the hub has given it up.
    unstopped = ""
    _submission = None
    _taken = frozenset()
    _waits_since = 0.0

    @default("options_form")
    def _form_default(self):
        return SessionSpawner._form

    @default("env_keep")
    def _env_keep_default(self):
        return []

    async def _run_apply_user_options(self, user_options):
        """They become those of the job."""

    # --- the form ---

    async def _form(self):
        limits, there, names, place, directories = await may_ask(self.user.name)
        models = [one.model for one in there]
        presets = form.presets(HUB.get("presets", []), limits, models, names)
        # What was refused a moment ago comes first, with what is wrong of it. JupyterHub shows it by the user's first
        # server, whichever it was for.
        given, problems = getattr(self.user, "refused", None) or (self.orm_spawner.user_options or {}, [])
        self.user.refused = None
        wanted = form.remembered(given, limits, models, names, place, directories)
        if presets and not given:
            wanted = presets[0][1]
        url, ended = f"{self.hub.base_url}now/forecast", markup.ended(self.ended)
        rows = self.user.orm_user.orm_spawners.values()
        yours = {(row.user_options or {}).get("environment", "") for row in rows} - {""}
        return markup.home(await OWN.home(self.user.name)) + markup.options(
            wanted, limits, there, names, url, ended, place, directories, presets, problems, sorted(yours)
        )

    async def options_from_form(self, given):
        return await self._parsed(given, is_shown=True)

    async def options_from_query(self, given):
        """The hub would start it for whoever follows a link, from wherever."""
        raise NotStarted("a link starts no session. To do: look at the form, and press its button", reason="options")

    async def _parsed(self, given, is_shown=False):
        limits, there, *more = await may_ask(self.user.name)
        request, problems = form.parse(given, limits, [one.model for one in there], *more)
        if problems:
            if is_shown:
                self.user.refused = given, problems
            raise NotStarted(". ".join(map(str, problems)), reason="options")
        return request.as_dict()

    # --- what is kept ---

    def get_state(self):
        state = super().get_state()
        if self.job:
            state.update(job=self.job, submitted=self.submitted, port=self.at_port)
            state.update(identity=self.identity, authority=self.authority)
        if self.ended:
            state["ended"] = dict(self.ended)
        return state

    def load_state(self, state):
        super().load_state(state)
        self.job, self.submitted = state.get("job", 0), state.get("submitted", 0.0)
        self.at_port, self.ended = state.get("port", 0), state.get("ended", {})
        self.identity, self.authority = state.get("identity", ""), state.get("authority", "")

    def clear_state(self):
        """How it ended stays, for the form."""
        super().clear_state()
        self.job, self.submitted, self.at_port, self.identity = 0, 0.0, 0, ""

    def _keep(self):
        """The hub itself would keep the job only once the server answers; a hub that is restarted finds it again."""
        self.orm_spawner.state = self.get_state()
        object_session(self.orm_spawner).commit()

    # --- its life ---

    def get_env(self):
        """What JupyterHub itself gives a server, and nothing of the hub's."""
        return {name: value for name, value in super().get_env().items() if name in hub_variables.NAMES}

    async def create_certs(self):
        self.identity, self.authority = identity.made(), hub_tls.authority(CERTIFICATES)
        self.ssl_alt_names, self.ssl_alt_names_include_local = [f"DNS:{identity.certified(self.identity)}"], False
        return await super().create_certs()

    async def move_certs(self, paths):
        names = {"key": "keyfile", "certificate": "certfile", "authority": "cafile"}
        self._certificates = {name: Path(paths[key]).read_text() for name, key in names.items()}
        return paths

    def _free_port(self):
        """The first of those that it may take, which no other session of the portal has: those of a node must
        differ."""
        first, last = KNOWN.ports
        taken = {(spawner.at_port - first) // identity.PORTS for spawner in spawners() if spawner.at_port}
        all_places = range((last + 1 - first) // identity.PORTS)
        # Where all are given away those of other nodes are free, and a session takes the next one.
        free = [place for place in all_places if place not in taken] or all_places
        return first + identity.PORTS * random.SystemRandom().choice(free)

    async def start(self):
        try:
            url = await self._start()
        except asyncio.CancelledError:
            WATCH.note_start("cancelled")
            raise
        except Exception as why:
            WATCH.note_start(getattr(why, "reason", None) or "unknown")
            raise
        WATCH.note_start("")
        return url

    async def _start(self):
        self.ended, self.unstopped = {}, ""
        self.ip, self.port = "0.0.0.0", 0 if BACKEND.gives_port else self._free_port()
        self.at_port = self.port
        self._submission = asyncio.ensure_future(self._submit())
        try:
            # Who is cancelled meanwhile has to know which job is to be ended.
            await asyncio.shield(self._submission)
        except Refused as why:
            raise NotStarted(str(why), reason="refused") from None
        return await self.get_url()

    async def _submit(self):
        # Who starts it by the API has a token, which outlives what the account was, and gives options that no form has
        # looked at.
        PEOPLE.must_be_same(await asyncio.to_thread(open_account, self.user.name))
        request = await self._parsed(self.user_options)
        answer = await order(
            "submit",
            self.user.name,
            limit_s=BACKEND.submit_s,
            server=self.name,
            request=request,
            variables=self.get_env(),
            certificates=self._certificates,
        )
        self.job, self.submitted = answer["job"], time.time()
        self._keep()

    async def _wait(self, is_done):
        """Until something is true of the session. Raises NotStarted with the reason where it ends before."""
        while True:
            one = await self._session()
            if isinstance(one, session.Session):
                if one.state == session.ENDED:
                    raise await self._exception(one.ended)
                found = is_done(one) if one.state == session.RUNS else None
                found = await found if asyncio.iscoroutine(found) else found
                if found:
                    return found
            elif one is not None:
                raise await self._exception(one)
            await asyncio.sleep(POLL_S)

    async def _answers(self, address):
        """The port at which the session has proved itself; 0 while it has not."""
        first, _last = KNOWN.ports
        # The session may have had to take a later one, and the hub was restarted since.
        least = self.at_port if BACKEND.gives_port else self.at_port - (self.at_port - first) % identity.PORTS
        ports = range(least, least + (1 if BACKEND.gives_port else identity.PORTS))
        found = await asyncio.gather(*(hub_tls.listener(self.identity, address, port) for port in ports))
        taken = frozenset(port for port, is_it in zip(ports, found, strict=True) if is_it is False)
        if taken - self._taken:
            text = "Another program than the session %s of %s listens on %s, at the ports: %s"
            self.log.warning(text, self.job, self._log_name, address, ", ".join(map(str, sorted(taken))))
        self._taken = taken
        return next((port for port, is_it in zip(ports, found, strict=True) if is_it), 0)

    async def _exception(self, problem):
        self._note(problem)
        said = ""
        if problem.code == "failed":
            try:
                answer = await order("output", self.user.name, server=self.name)
            except Refused:
                answer = {"output": ""}
            lines = [line for line in answer["output"].splitlines() if line.strip()][-5:]
            said = f". It said last: {' / '.join(lines)}" if lines else ""
        return NotStarted(f"{problem}{said}", reason=problem.code)

    def _note(self, problem):
        # Of what the portal has ended the scheduler only knows that it was cancelled, and then nothing any more.
        if self.ended:
            return
        self.ended = {"at": time.time(), "code": problem.code, "cause": problem.cause, "remedy": problem.remedy}

    async def _session(self):
        """What is known of the session; None while nobody knows, and a problem where it is not there any more."""
        look = await SCHEDULER.look()
        if look.failure:
            return None
        found = look.sessions.get(self.job)
        if found is not None and found.user == self.user.name:
            # Where the scheduler gives the port, one that has it has run.
            if BACKEND.gives_port and self.at_port and found.state == session.WAITS:
                self._waits_since = self._waits_since or look.at
                return session.TAKEN if look.at > self._waits_since + TAKEN_S else None
            self._waits_since = 0.0
            return found
        return session.FORGOTTEN if look.at > self.submitted + FRESH_S else None

    async def poll(self):
        """None while it waits or runs, and while the scheduler does not answer: then it goes on as it is."""
        if not self.job:
            return 0
        if self.authority != hub_tls.authority(CERTIFICATES):
            return await self._end_unproved()
        one, lives = await self._session(), BACKEND.keeps_ended
        if isinstance(one, session.Session):
            if one.state != session.ENDED:
                return None
            one, lives = one.ended, lives or one.lives
        if one is None:
            return None
        self._note(one)
        self.log.warning("The session %s of %s has ended: %s", self.job, self._log_name, one)
        if lives and one is not session.FORGOTTEN:
            try:
                await order("cancel", self.user.name, job=self.job)
            except Refused as why:
                # It is looked for again and again.
                self.log.warning("The session %s is not taken away yet: %s", self.job, why)
        return 1

    async def _end_unproved(self):
        """End one that began before it could prove itself to this hub, or this hub to it."""
        self._note(session.UNPROVED)
        self.log.warning("Ending the session %s of %s: %s", self.job, self._log_name, session.UNPROVED)
        try:
            await order("cancel", self.user.name, job=self.job)
        except Refused as why:
            # It is looked for again and again.
            self.log.warning("The session %s is not taken away yet: %s", self.job, why)
        return 1

    async def get_url(self):
        """Where it is. A hub that was restarted while it waited learns that here."""
        there = await self._wait(lambda one: one if one.node else None)
        if BACKEND.gives_port:
            self.at_port = there.port
            self._keep()
        address = await asyncio.to_thread(lambda: hub_tls.ip_of(BACKEND.address(there)))
        self.at_port = await self._wait(lambda one: self._answers(address))
        self._keep()
        # JupyterHub would keep that of a server which had not answered yet.
        self.server.proto = "https"
        return f"https://{identity.host(self.identity, address)}:{self.at_port}{self.server.base_url}"

    async def stop(self, now=False):
        if self._submission is not None and not self._submission.done():
            await asyncio.wait([self._submission])
        if not self.job:
            return
        try:
            await order("cancel", self.user.name, job=self.job)
        except Refused as why:
            # JupyterHub takes it for stopped whatever becomes of this; the sweep ends it later.
            self.unstopped = f"job {self.job} of {self.user.name} goes on: {why}. The portal tries again every minute"
            self._note(
                Problem("not_stopped", "", f"it could not be ended: {why.problem.cause}", "", why.problem.remedy)
            )
            self.log.error("%s", self.unstopped)
            raise
        end = time.monotonic() + 45
        while not now and time.monotonic() < end:
            one = await self._session()
            if one is session.FORGOTTEN or (isinstance(one, session.Session) and one.state == session.ENDED):
                return
            await asyncio.sleep(POLL_S)

    async def progress(self):
        told = None
        while True:
            one = await self._session() if self.job else None
            row = self._progress(one)
            if row != told:
                yield row
            told = row
            await asyncio.sleep(POLL_S)

    def _progress(self, one):
        if not isinstance(one, session.Session):
            first = "" if BACKEND.has_queue else " Its image is fetched before that, where it is new here."
            return {"progress": 5, "message": f"Your session is being submitted.{first}"}
        if one.state == session.WAITS:
            at = (
                one.expected
                and one.expected > time.time()
                and time.strftime("%Y-%m-%d %H:%M", time.localtime(one.expected))
            )
            start = f" It is expected to start at {at} at the latest." if at else ""
            return {"progress": 20, "message": f"Job {one.job} waits: {one.why}.{start}"}
        if one.state == session.RUNS:
            first = " Its image is fetched before that, where it is new there." if ENVIRONMENTS.image_of(self) else ""
            if self._taken:
                first += " Another program of the node has its port: it takes another one."
            return {"progress": 60, "message": f"Job {one.job} runs on {one.node}. Its server is starting.{first}"}
        return {"progress": 90, "message": str(one.ended)}


# --- logins ----------------------------------------------------------------------------------------------------------


def refusal(status, text):
    """An error whose page says why; what is in the text is no format."""
    made = web.HTTPError(status, "%s", text)
    made.jupyterhub_message = text
    return made


def open_account(name):
    """The account of a person who may have sessions, and whom the host lets log in at present. Raises Refused."""
    account = account_of(name)
    try:
        backend.ask(LOGIN_SOCKET, {"do": login.ACCOUNT, "user": account.name})
    except Refused as why:
        # Who cannot say that it is open does not say that it is closed.
        if isinstance(why, CallFailed) or why.problem.code in login.OF_ACCOUNTS:
            raise
        raise CallFailed(why.problem.cause, why.problem.remedy) from None
    return account


ATTEMPTS = Attempts()
# What is wrong is in the log alone: who guesses learns neither names nor passwords.
WRONG = (
    "the name or the password is wrong, or the account may have no sessions here. "
    "To do: try again, or ask the operators for an account; one with capital letters in its name has none"
)


@contextlib.asynccontextmanager
async def guarded(handler, name, wrong=WRONG):
    """A login with a password. All its refusals are alike; only those of a wrong password or name count."""
    # What the proxy says of it is believed, and nothing of whoever asks: see hub_tls.
    address, begun = handler.request.remote_ip or "", time.monotonic()
    wait = ATTEMPTS.take(address, name)
    if wait:
        raise refusal(429, f"there were too many wrong logins. To do: try again in {int(wait) + 1} s")
    try:
        yield
    except CallFailed as why:
        ATTEMPTS.give_back(address, name)
        raise refusal(503, str(why)) from None
    except Refused as why:
        handler.log.warning("Login refused, from %s: %s", one_line(address, 60), why)
        await asyncio.sleep(begun + REFUSED_S - time.monotonic())
        raise refusal(403, wrong) from None
    except BaseException:
        ATTEMPTS.give_back(address, name)
        raise
    ATTEMPTS.give_back(address, name)


def mapped(base):
    """A login of another class, with the Unix account in the place of whatever name it tells."""

    class Mapped(base):
        async def authenticate(self, handler, data=None):
            if HUB["login"]["kind"] == "oidc":
                try:
                    return await self._model(await super().authenticate(handler, data))
                except Refused as why:
                    self.log.warning("Login refused: %s", why)
                    raise refusal(403, str(why)) from None
            typed = data.get("username") if isinstance(data, dict) else None
            typed = typed if isinstance(typed, str) else ""
            # A domain makes no other name of it, of which one could guess anew.
            async with guarded(handler, typed.strip().lower().partition("@")[0]):
                name = accounts.name_of(typed, KNOWN.domains)
                # Where a directory knows people by other names, theirs is known only later.
                if not OPTIONS.get("lookup_dn"):
                    await asyncio.to_thread(account_of, name)
                found = await super().authenticate(handler, {**data, "username": name})
                if not found:
                    raise Refused(f"the password of {name} is wrong", code="wrong_password")
                return await self._model(found)

        async def _model(self, found):
            """Raises Refused."""
            if not found:
                return None
            model = dict(found) if isinstance(found, dict) else {"name": found}
            # The host's own passwords are right only for an account that is open.
            look = account_of if HUB["login"]["kind"] == "pam" else open_account
            account = await asyncio.to_thread(lambda: look(accounts.name_of(model["name"], KNOWN.domains)))
            try:
                await PEOPLE.admit(account)
            except Refused as why:
                # The password is right, and whoever has it is told.
                self.log.warning("Login refused: %s", why)
                raise refusal(403, str(why)) from None
            return {**model, "name": account.name, **rights(account)}

        async def refresh_user(self, user, handler=None):
            """Who has lost the account, or the group, is logged out within minutes."""
            if handler is not None and not hasattr(handler, "_token_authenticated"):
                # JupyterHub 6.1 asks for it where it has set it only for tokens, and would answer with an error.
                handler._token_authenticated = False
            try:
                account = await asyncio.to_thread(open_account, user.name)
                PEOPLE.must_be_same(account)
            except CallFailed as why:
                self.log.error("It is not known whether %s is still open: %s", user.name, why)
                return True
            except Refused as why:
                self.log.warning("Logged out: %s", why)
                return False
            return {"name": account.name, **rights(account)}

        def get_handlers(self, app):
            """Those of a login come before those of the hub."""
            own = [(rf"/api/users/([^/]+)/server{rest}", StopHandler) for rest in ("", "s/([^/]*)")]
            return [*own, *super().get_handlers(app)]

    return Mapped


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


def rights(account):
    """What JupyterHub is told of a user beside the name."""
    is_operator = bool(set(account.groups) & set(KNOWN.admin_groups))
    return {"admin": False, "roles": [{"name": "user"}, *([dict(OPERATOR)] if is_operator else [])]}


class StopHandler(UserServerAPIHandler):
    """JupyterHub's own, which says that it has stopped a server whatever came of that."""

    async def delete(self, user_name, server_name=""):
        user = self.find_user(user_name)
        spawner = user.spawners.get(server_name) if user else None
        await super().delete(user_name, server_name)
        if spawner is not None and spawner.unstopped:
            raise web.HTTPError(503, "%s", spawner.unstopped)


CHECKS = ThreadPoolExecutor(CHECKS_AT_ONCE)
# Of one name the next password is checked after the one before, and those that wait for that keep no others waiting.
TURNS = defaultdict(asyncio.Lock)
# A provider or a directory has its own passwords.
OF_THE_HOST = HUB["login"]["kind"] == "pam"
INVITATIONS = hub_invite.Invitations(INVITE_SOCKET, guarded, TURNS, CHECKS) if OF_THE_HOST else None


class OfHost(Authenticator):
    """The accounts of the host. Their passwords are checked by a program that may read what proves them."""

    async def authenticate(self, handler, data):
        """Raises Refused."""
        password = data.get("password")
        if not isinstance(password, str) or not 0 < len(password.encode()) <= login.PASSWORD_AT_MOST:
            return None
        question = {"do": login.LOGIN, "user": data["username"], "password": password}
        async with TURNS[data["username"]]:
            answer = await asyncio.get_running_loop().run_in_executor(CHECKS, backend.ask, LOGIN_SOCKET, question)
        return answer["name"]


def of_directory():
    from ldap3.core.exceptions import LDAPException
    from ldapauthenticator import LDAPAuthenticator

    class Directory(LDAPAuthenticator):
        async def authenticate(self, handler, data):
            """In a thread: it waits for its server without letting others go on."""
            try:
                return await asyncio.to_thread(asyncio.run, super().authenticate(handler, data))
            except LDAPException as why:
                self.log.error("The directory of users does not answer: %s %s", type(why).__name__, one_line(why, 300))
                text = "the directory of users does not answer. To do: try again in a while, or tell the operators"
                raise refusal(503, text) from None

    return Directory


def of_provider():
    from oauthenticator.generic import GenericOAuthenticator

    class Provider(GenericOAuthenticator):
        def user_info_to_username(self, user_info):
            """A provider may tell anything."""
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
            try:
                return accounts.name_of(name, KNOWN.domains, needs_domain=claim == "email" or bool(KNOWN.domains))
            except Refused as why:
                self.log.warning("Login refused: %s", why)
                raise refusal(403, str(why)) from None

    return Provider


def authenticator():
    kind = HUB["login"]["kind"]
    if kind == "pam":
        return OfHost
    if kind == "ldap":
        return of_directory()
    if kind == "oidc":
        return of_provider()
    raise ValueError(f"there is no login {kind}")


# --- pages -----------------------------------------------------------------------------------------------------------


def _policy(page):
    """The page may run and show only what is in it."""
    hashes = {
        tag: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
        for tag in ("script", "style")
    }
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {hashes['script']}; style-src {hashes['style']}"
    )


def _digest(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


PAGE = Path(os.environ.get("PORTAL_PAGE", "/usr/share/baremetal-gpu/portal/now.html")).read_text(encoding="utf-8")
POLICY = _policy(PAGE)


class NowHandler(BaseHandler):
    """Who uses what since when, for everybody who is logged in."""

    @web.authenticated
    async def get(self):
        self.set_header("Content-Security-Policy", POLICY)
        self.finish(PAGE)


class NowDataHandler(BaseHandler):
    @web.authenticated
    async def get(self):
        look = await SCHEDULER.look()
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        own = {"me": self.current_user.name, "warnings": [one["text"] for one in WATCH.banner(self.current_user)]}
        self.finish(json.dumps({**who.page(look, KNOWN.partition, await MEASURED.gpus()), **own, "now": time.time()}))


class ForecastHandler(BaseHandler):
    """Whether a session would start at once."""

    @web.authenticated
    async def get(self):
        look = await SCHEDULER.look()
        limits, there, *more = await may_ask(self.current_user.name)
        nodes = offers.in_partition(look.found.get("nodes", []), KNOWN.partition)
        given = {name: self.get_query_argument(name, "") for name in form.Request().as_dict()}
        request, problems = form.parse(given, limits, [one.model for one in there], *more)
        if problems:
            fields = {one.subject: f"{one.cause}. To do: {one.remedy}." for one in problems}
            row = {"answer": offers.NEVER, "text": ". ".join(map(str, problems)), "fields": fields}
        elif look.failure:
            row = {"answer": offers.UNKNOWN, "text": f"The scheduler does not answer: {look.failure}"}
        else:
            answer = offers.forecast(request, nodes, look.found["jobs"], time.time(), BACKEND.has_queue)
            at = answer.at and time.strftime("%Y-%m-%d %H:%M", time.localtime(answer.at))
            row = {
                "answer": answer.answer,
                "text": answer.text + (f" They are back at {at} at the latest." if at else ""),
            }
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(row))


class MoreHandler(BaseHandler):
    """Gives a session more time."""

    @web.authenticated
    async def post(self):
        spawner = self.current_user.spawners.get(self.get_body_argument("server", ""))
        if spawner is None or not spawner.ready:
            raise web.HTTPError(404, "you have no such session, or it has ended")
        try:
            await OWN.more(spawner)
        except Refused as why:
            raise web.HTTPError(409, "%s", why) from None
        self.redirect(url_path_join(self.hub.base_url, "home"))


class SshHandler(BaseHandler):
    """What a user writes into the configuration of OpenSSH."""

    @web.authenticated
    async def get(self):
        name, at = self.current_user.name, HUB["ssh"]
        running = [one.name for one in self.current_user.spawners.values() if one.ready]
        shown = {"names": [f"{one}.portal" if one else "portal" for one in sorted(running)], "failure": ""}
        try:
            keys = await order("keys", name)
        except Refused as why:
            shown["failure"] = str(why)
        else:
            shown["config"] = ssh.config(name, at["host"], at["port"])
            shown["known_hosts"] = ssh.known_hosts(name, at["host"], at["port"], keys["jump"], keys["session"])
        self.finish(await self.render_template("ssh.html", **shown))


# --- sessions that nobody knows --------------------------------------------------------------------------------------


async def sweep():
    """End sessions that no server of the hub is: a hub that was killed while it submitted has left them."""
    suspects = set()
    while True:
        await asyncio.sleep(SWEEP_S)
        hub = JupyterHub.instance()
        try:
            look = await SCHEDULER.look()
            if look.failure:
                continue
            known = {(row.state or {}).get("job") for row in hub.db.query(orm.Spawner)}
            known |= {spawner.job for spawner in spawners()}
            here = {
                # Empty where the account is gone.
                number: one.user
                for number, one in look.sessions.items()
                if (BACKEND.keeps_ended or one.lives or one.state != session.ENDED) and number not in known
            }
            for number in suspects & here.keys():
                hub.log.warning("Ending job %s of %s, which no server of the hub is", number, here[number])
                try:
                    await order("cancel", here[number], job=number)
                except Refused as why:
                    # It is tried again, and must not keep others from their end.
                    hub.log.error("Job %s of %s does not end: %s", number, here[number], why)
            suspects = set(here)
        except Exception as why:
            hub.log.exception("Looking for sessions that nobody knows")
            if isinstance(why, SQLAlchemyError):
                hub.db.rollback()


# --- the hub ---------------------------------------------------------------------------------------------------------

c.JupyterHub.spawner_class = SessionSpawner
c.JupyterHub.authenticator_class = mapped(authenticator())
c.Authenticator.allow_all = True
c.Authenticator.auth_refresh_age = 300
c.Authenticator.refresh_pre_spawn = True
# A token of a closed account is none.
c.Authenticator.auth_refresh_strict = True
c.Authenticator.manage_roles = True
c.JupyterHub.token_expires_in_max_seconds = hub_people.TOKEN_S
OPTIONS = dict(HUB["login"].get("options", {}))
if HUB["login"]["kind"] == "ldap":
    # Its class would believe every certificate.
    OPTIONS["tls_kwargs"] = {"validate": ssl.CERT_REQUIRED, **OPTIONS.get("tls_kwargs", {})}
for name, values in OPTIONS.items():
    c.Authenticator[name] = values

c.JupyterHub.cleanup_servers = False
c.JupyterHub.cleanup_proxy = False
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = HUB["proxy_api_url"]
c.JupyterHub.bind_url = HUB["public_url"]
c.JupyterHub.hub_bind_url = HUB["hub_bind_url"]
c.JupyterHub.hub_connect_url = HUB["hub_connect_url"]
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = CERTIFICATES
c.JupyterHub.trusted_alt_names = [hub_tls.name_of(HUB[name]) for name in ("hub_connect_url", "public_url")]
hub_tls.believe_the_proxy_alone()
c.JupyterHubHTTPClient.connector_options = {"resolver": hub_tls.Resolver()}
# Whether each user's sessions have an origin of their own, which no other one's and no page of the hub has.
OWN_ORIGINS = bool(HUB.get("own_origins"))
if OWN_ORIGINS:
    c.JupyterHub.subdomain_host = HUB["public_url"]
    # A cookie of the hub's, or of a user's sessions, cannot be set by those of another.
    c.JupyterHub.cookie_host_prefix_enabled = True
c.JupyterHub.db_url = HUB.get("db_url") or f"sqlite:///{STATE}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = f"{STATE}/cookie_secret"
c.JupyterHub.extra_handlers = [
    (r"/now", NowHandler),
    (r"/now/data", NowDataHandler),
    (r"/now/forecast", ForecastHandler),
    *WATCH.handlers,
    *([(r"/portal/more", MoreHandler)] if KNOWN.scheduler == settings.SLURM else []),
    *ENVIRONMENTS.handlers,
    *(INVITATIONS.handlers if INVITATIONS else []),
    *([(r"/ssh", SshHandler)] if HUB.get("ssh") else []),
]
c.JupyterHub.tornado_settings = {
    "headers": {"X-Content-Type-Options": "nosniff"},
    "cookie_options": {"samesite": "Lax", "secure": True},
    "xsrf_cookie_kwargs": {"samesite": "Lax", "secure": True},
}
c.JupyterHub.template_vars = {
    "portal_idle": WATCH.banner,
    "portal_invite": bool(INVITATIONS),
    "portal_ssh": bool(HUB.get("ssh")),
    "portal_environments": bool(ENVIRONMENTS.handlers),
    "portal_own": OWN.page,
}
c.JupyterHub.template_paths = [os.environ.get("PORTAL_TEMPLATES", "/usr/share/baremetal-gpu/portal/templates")]
c.JupyterHub.allow_named_servers = HUB["named_servers"] > 0
c.JupyterHub.named_server_limit_per_user = HUB["named_servers"]
c.JupyterHub.concurrent_spawn_limit = 100
# So soon, too, a proxy that was started again knows the sessions.
c.JupyterHub.last_activity_interval = 20
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = HUB["wait_minutes"] * 60
c.Spawner.http_timeout = 180
c.Spawner.poll_interval = 5

try:
    TASKS = [asyncio.get_running_loop().create_task(work()) for work in (sweep, PEOPLE.look_after, WATCH.tell_on)]
except RuntimeError:
    # Of the commands that only read the configuration.
    TASKS = []
