# SPDX-License-Identifier: GPL-3.0-or-later
"""A session as a job: what JupyterHub does with one, and what it is told of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from jupyterhub.spawner import Spawner, SpawnException
from sqlalchemy.orm import object_session
from traitlets import Any as AnyValue
from traitlets import Dict, Float, Instance, Integer, Unicode, default

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, hub_variables, identity, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Session
from baremetal_gpu_portal import form_page, tls
from baremetal_gpu_portal.portal import Portal, spawners

# A job that was submitted a moment ago may not be in what was read.
FRESH_S = 5
# A scheduler that begins anew may not know for a moment what runs.
TAKEN_S = 30
POLL_S = 1


class NotStarted(SpawnException):
    """Why a session does not start. Its text is on every page that tells of that."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason=reason)
        self.jupyterhub_message = text


class SessionSpawner(Spawner):
    """A session is a job. What is kept of it is by what the scheduler knows the job, by which it is found again."""

    portal: Portal = Instance(Portal).tag(config=True)
    # A number or a text; 0 for none.
    job = AnyValue(0)
    submitted = Float(0.0)
    at_port = Integer(0)
    # By what it proves itself, and which authority says so; empty for one that cannot.
    identity = Unicode()
    authority = Unicode()
    ended = Dict()
    # Why its job goes on though the hub has given it up.
    unstopped = ""
    _submission: asyncio.Future[None] | None = None
    _certificates: Mapping[str, str] = {}
    _taken: frozenset[int] = frozenset()
    _waits_since = 0.0

    @default("options_form")
    def _form_default(self) -> Callable[[SessionSpawner], Awaitable[str]]:
        return SessionSpawner._form

    @default("env_keep")
    def _env_keep_default(self) -> list[str]:
        return []

    async def _run_apply_user_options(self, user_options: Any) -> None:
        """They become those of the job."""

    # --- the form ---

    async def _form(self) -> str:
        allowed, hub = await self.portal.allowed(self.user.name), self.portal.hub
        names = allowed.environments
        presets = form.presets(hub.get("presets", []), allowed.limits, allowed.models, names)
        # What was refused a moment ago comes first, with what is wrong of it. JupyterHub shows it by the user's first
        # server, whichever it was for.
        given, problems = getattr(self.user, "refused", None) or (self.orm_spawner.user_options or {}, [])
        self.user.refused = None
        wanted = allowed.remembered(given)
        if presets and not given:
            wanted = presets[0][1]
        url, ended = f"{self.hub.base_url}now/forecast", form_page.ended(self.ended)
        rows = self.user.orm_user.orm_spawners.values()
        yours = {(row.user_options or {}).get("environment", "") for row in rows} - {""}
        return form_page.home(await self.portal.home_page.home(self.user.name)) + form_page.options(
            wanted,
            allowed.limits,
            allowed.offers,
            names,
            url,
            ended,
            allowed.place,
            allowed.directories,
            presets,
            problems,
            sorted(yours),
        )

    async def options_from_form(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return await self._parsed(given, is_shown=True)

    async def options_from_query(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The hub would start it for whoever follows a link, from wherever."""
        raise NotStarted("a link starts no session. To do: look at the form, and press its button", reason="options")

    async def _parsed(self, given: Mapping[str, Any], is_shown: bool = False) -> dict[str, Any]:
        request, problems = (await self.portal.allowed(self.user.name)).parse(given)
        if problems:
            if is_shown:
                self.user.refused = given, problems
            raise NotStarted(". ".join(map(str, problems)), reason="options")
        return request.as_dict()

    # --- what is kept ---

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.job:
            state.update(job=self.job, submitted=self.submitted, port=self.at_port)
            state.update(identity=self.identity, authority=self.authority)
        if self.ended:
            state["ended"] = dict(self.ended)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.job, self.submitted = state.get("job", 0), state.get("submitted", 0.0)
        self.at_port, self.ended = state.get("port", 0), state.get("ended", {})
        self.identity, self.authority = state.get("identity", ""), state.get("authority", "")

    def clear_state(self) -> None:
        """How it ended stays, for the form."""
        super().clear_state()
        self.job, self.submitted, self.at_port, self.identity = 0, 0.0, 0, ""

    def _keep(self) -> None:
        """The hub itself would keep the job only once the server answers; a hub that is restarted finds it again."""
        self.orm_spawner.state = self.get_state()
        object_session(self.orm_spawner).commit()

    # --- its life ---

    def get_env(self) -> dict[str, str]:
        """What JupyterHub itself gives a server, and nothing of the hub's."""
        return {name: value for name, value in super().get_env().items() if name in hub_variables.NAMES}

    async def create_certs(self) -> dict[str, str]:
        self.identity, self.authority = identity.made(), tls.authority(self.portal.certificates)
        self.ssl_alt_names, self.ssl_alt_names_include_local = [f"DNS:{identity.certified(self.identity)}"], False
        return await super().create_certs()

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        names = {"key": "keyfile", "certificate": "certfile", "authority": "cafile"}
        self._certificates = {name: Path(paths[key]).read_text() for name, key in names.items()}
        return paths

    def _free_port(self) -> int:
        """The first of those that it may take, which no other session of the portal has: those of a node must
        differ."""
        first, last = self.portal.settings.ports
        taken = {(spawner.at_port - first) // identity.PORTS for spawner in spawners() if spawner.at_port}
        all_places = range((last + 1 - first) // identity.PORTS)
        # Where all are given away those of other nodes are free, and a session takes the next one.
        free = [place for place in all_places if place not in taken] or all_places
        return first + identity.PORTS * random.SystemRandom().choice(free)

    async def start(self) -> str:
        try:
            url = await self._start()
        except asyncio.CancelledError:
            self.portal.watch.note_start("cancelled")
            raise
        except Exception as why:
            self.portal.watch.note_start(getattr(why, "reason", None) or "unknown")
            raise
        self.portal.watch.note_start("")
        return url

    async def _start(self) -> str:
        self.ended, self.unstopped = {}, ""
        self.ip, self.port = "0.0.0.0", 0 if self.portal.backend.gives_port else self._free_port()
        self.at_port = self.port
        self._submission = asyncio.ensure_future(self._submit())
        try:
            # Who is cancelled meanwhile has to know which job is to be ended.
            await asyncio.shield(self._submission)
        except Refused as why:
            raise NotStarted(str(why), reason="refused") from None
        return await self.get_url()

    async def _submit(self) -> None:
        # Who starts it by the API has a token, which outlives what the account was, and gives options that no form has
        # looked at.
        self.portal.people.must_be_same(await asyncio.to_thread(self.portal.open_account, self.user.name))
        request = await self._parsed(self.user_options)
        answer = await self.portal.order(
            "submit",
            self.user.name,
            limit_s=self.portal.backend.submit_s,
            server=self.name,
            request=request,
            variables=self.get_env(),
            certificates=self._certificates,
        )
        self.job, self.submitted = answer["job"], time.time()
        self._keep()

    async def _wait(self, is_done: Callable[[Session], Any]) -> Any:
        """Until something is true of the session. Raises NotStarted with the reason where it ends before."""
        while True:
            one = await self._session()
            if isinstance(one, Session):
                if one.state == session.ENDED:
                    raise await self._exception(one.ended or session.FORGOTTEN)
                found = is_done(one) if one.state == session.RUNS else None
                found = await found if asyncio.iscoroutine(found) else found
                if found:
                    return found
            elif one is not None:
                raise await self._exception(one)
            await asyncio.sleep(POLL_S)

    async def _answers(self, address: str) -> int:
        """The port at which the session has proved itself; 0 while it has not."""
        first, _last = self.portal.settings.ports
        ports = range(self.at_port, self.at_port + 1)
        if not self.portal.backend.gives_port:
            # The session may have had to take a later one, and the hub was restarted since.
            least = self.at_port - (self.at_port - first) % identity.PORTS
            ports = range(least, least + identity.PORTS)
        found = await asyncio.gather(*(tls.listener(self.identity, address, port) for port in ports))
        taken = frozenset(port for port, is_it in zip(ports, found, strict=True) if is_it is False)
        if taken - self._taken:
            text = "Another program than the session %s of %s listens on %s, at the ports: %s"
            self.log.warning(text, self.job, self._log_name, address, ", ".join(map(str, sorted(taken))))
        self._taken = taken
        return next((port for port, is_it in zip(ports, found, strict=True) if is_it), 0)

    async def _exception(self, problem: Problem) -> NotStarted:
        self._note(problem)
        said = ""
        if problem.code == "failed":
            try:
                answer = await self.portal.order("output", self.user.name, server=self.name)
            except Refused:
                answer = {"output": ""}
            lines = [line for line in answer["output"].splitlines() if line.strip()][-5:]
            said = f". It said last: {' / '.join(lines)}" if lines else ""
        return NotStarted(f"{problem}{said}", reason=problem.code)

    def _note(self, problem: Problem) -> None:
        # Of what the portal has ended the scheduler only knows that it was cancelled, and then nothing any more.
        if self.ended:
            return
        self.ended = {"at": time.time(), "code": problem.code, "cause": problem.cause, "remedy": problem.remedy}

    async def _session(self) -> Session | Problem | None:
        """What is known of the session; None while nobody knows, and a problem where it is not there any more."""
        look = await self.portal.look()
        if look.failure:
            return None
        found = look.sessions.get(self.job)
        if found is not None and found.user == self.user.name:
            # Where the scheduler gives the port, one that has it has run.
            if self.portal.backend.gives_port and self.at_port and found.state == session.WAITS:
                self._waits_since = self._waits_since or look.at
                return session.TAKEN if look.at > self._waits_since + TAKEN_S else None
            self._waits_since = 0.0
            return found
        return session.FORGOTTEN if look.at > self.submitted + FRESH_S else None

    async def poll(self) -> int | None:
        """None while it waits or runs, and while the scheduler does not answer: then it goes on as it is."""
        if not self.job:
            return 0
        if self.authority != tls.authority(self.portal.certificates):
            return await self._end_unproved()
        one, lives = await self._session(), self.portal.backend.keeps_ended
        if isinstance(one, Session):
            if one.state != session.ENDED:
                return None
            lives, one = lives or one.lives, one.ended
        if one is None:
            return None
        self._note(one)
        self.log.warning("The session %s of %s has ended: %s", self.job, self._log_name, one)
        if lives and one is not session.FORGOTTEN:
            try:
                await self.portal.order("cancel", self.user.name, job=self.job)
            except Refused as why:
                # It is looked for again and again.
                self.log.warning("The session %s is not removed yet: %s", self.job, why)
        return 1

    async def _end_unproved(self) -> int:
        """End one that began before it could prove itself to this hub, or this hub to it."""
        self._note(session.UNPROVED)
        self.log.warning("Ending the session %s of %s: %s", self.job, self._log_name, session.UNPROVED)
        try:
            await self.portal.order("cancel", self.user.name, job=self.job)
        except Refused as why:
            # It is looked for again and again.
            self.log.warning("The session %s is not removed yet: %s", self.job, why)
        return 1

    async def get_url(self) -> str:
        """Where it is. A hub that was restarted while it waited learns that here."""
        there = await self._wait(lambda one: one if one.node else None)
        if self.portal.backend.gives_port:
            self.at_port = there.port
            self._keep()
        address = await asyncio.to_thread(lambda: tls.ip_of(self.portal.backend.address(there)))
        self.at_port = await self._wait(lambda one: self._answers(address))
        self._keep()
        # JupyterHub would keep that of a server which had not answered yet.
        self.server.proto = "https"
        return f"https://{identity.host(self.identity, address)}:{self.at_port}{self.server.base_url}"

    async def stop(self, now: bool = False) -> None:
        if self._submission is not None and not self._submission.done():
            await asyncio.wait([self._submission])
        if not self.job:
            return
        try:
            await self.portal.order("cancel", self.user.name, job=self.job)
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
            if one is session.FORGOTTEN or (isinstance(one, Session) and one.state == session.ENDED):
                return
            await asyncio.sleep(POLL_S)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        told = None
        while True:
            one = await self._session() if self.job else None
            row = self._progress(one)
            if row != told:
                yield row
            told = row
            await asyncio.sleep(POLL_S)

    def _progress(self, one: Session | Problem | None) -> dict[str, Any]:
        if not isinstance(one, Session):
            first = "" if self.portal.backend.has_queue else " Its image is fetched before that, where it is new here."
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
            image = self.portal.environments.image_of(self)
            first = " Its image is fetched before that, where it is new there." if image else ""
            if self._taken:
                first += " Another program of the node has its port: it takes another one."
            return {"progress": 60, "message": f"Job {one.job} runs on {one.node}. Its server is starting.{first}"}
        return {"progress": 90, "message": str(one.ended)}
