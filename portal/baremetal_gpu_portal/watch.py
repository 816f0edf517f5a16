# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub watches: whether its sessions are used, and how it does itself, for metrics.

Sessions send samples with their own tokens. A sample leads to a decision (see module_utils/portal/idle.py): nothing, a
warning, or the end of the session.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from tornado.log import app_log

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle, samples
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.idle import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.samples import Watched
from baremetal_gpu_portal import notice
from baremetal_gpu_portal.shared import Shared
from baremetal_gpu_portal.who import Look

TELL_S = 15
# So long a page waits for the scheduler, and so long after its user has looked at a session it tells more of itself.
PATIENCE_S, LOOKS_S = 2, 60
STARTED, FAILED, REFUSED, CANCELLED = "started", "failed", "refused", "cancelled"
# How sessions end before they have started where nothing is broken.
NO_FAULT = {"cancelled", "time_over", "preempted"}


def policies(row: Mapping[str, Any]) -> tuple[Policy | None, dict[str, Policy | None]]:
    """The policies of the settings: of everybody, and by group."""

    def made(one: Mapping[str, Any] | None) -> Policy | None:
        return Policy(**one) if one else None

    return made(row["default"]), {name: made(one) for name, one in row["by_group"].items()}


class Watch(Shared):
    """All sessions of the hub.

    :ivar starts: how starts of sessions came out -> how often, since the hub has started.
    :ivar counts: warnings, notices that could not be sent, and sessions that were ended for being idle.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        groups_of: Callable[[str], Iterable[str]],
        spawners: Callable[[], Iterable[Any]],
        home: str,
        path: str,
        look: Callable[[], Awaitable[Look]],
    ) -> None:
        """
        :param groups_of: a user's name -> the names of the groups. Raises Refused.
        :param spawners: the servers of the hub.
        :param home: the page on which people see their sessions.
        :param path: the file in which it is told how the hub does.
        :param look: one look at the scheduler.
        """
        self._look = look
        self._settings, self._groups_of, self._spawners = settings, groups_of, spawners
        self._home, self._path = home, path
        self._default, self._by_group = policies(settings)
        self.starts = Counter(dict.fromkeys((STARTED, FAILED, REFUSED, CANCELLED), 0))
        self.counts = Counter(idle_warnings=0, idle_stops=0, notices_failed=0)
        self._tasks: set[asyncio.Future[Any]] = set()

    # --- one session ---

    async def of(self, spawner: Any) -> Watched:
        """What is known of a session. A hub that was restarted begins anew, and so does a new job."""
        job, known = getattr(spawner, "watched", (0, None))
        if known is None or job != spawner.job:
            try:
                groups = await asyncio.to_thread(self._groups_of, spawner.user.name)
            except Refused:
                # Which policy it has is not known: it is stopped by none, and asked about again.
                return Watched(None, time.time())
            known = Watched(idle.policy_of(groups, self._by_group, self._default), time.time())
            # What it was to end for, where that did not happen.
            if spawner.ended.get("code") == "idle":
                spawner.ended = {}
            spawner.watched = (spawner.job, known)
        return known

    async def take(self, spawner: Any, row: Mapping[str, Any], stop: Callable[[], Coroutine[Any, Any, Any]]) -> float:
        """What follows from a sample; in how many seconds the next one is wanted.

        :param stop: ends the session.
        """
        watched = await self.of(spawner)
        if watched.until is None:
            await self._learn_end(spawner, watched)
        is_looked_at = time.time() - watched.looked_at < LOOKS_S
        next_s = min(self._settings["sample_s"], samples.LOOKED_S if is_looked_at else samples.INTERVAL_S)
        before = watched.failed
        level = watched.take(row, time.time())
        if watched.failed - before:
            told = self._broken(spawner, watched)
            app_log.warning("Job %s of %s: %s", spawner.job, spawner.user.name, told["text"])
            self._later(self._tell(told))
        if level in (idle.WARN1, idle.WARN2):
            self.counts["idle_warnings"] += 1
            self._later(self._tell(self._notice(spawner, watched)))
        elif level == idle.STOP and not spawner.pending:
            since = notice.moment(watched.since)
            cause = f"it was ended because it was idle since {since}"
            remedy = "start it again. What you saved is in your home"
            spawner.ended = {"at": time.time(), "code": "idle", "cause": cause, "remedy": remedy}
            app_log.warning("Ending job %s of %s: idle since %s", spawner.job, spawner.user.name, since)
            self.counts["idle_stops"] += 1
            self._later(stop())
        return next_s

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        """It may take longer than its caller."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            app_log.error("Watching sessions", exc_info=task.exception())

    # --- its user ---

    def _notice(self, spawner: Any, watched: Watched) -> dict[str, Any]:
        return notice.notice(spawner.user.name, spawner.name, watched, self._home)

    def _broken(self, spawner: Any, watched: Watched) -> dict[str, Any]:
        return notice.broken(spawner.user.name, spawner.name, watched.failed, self._home)

    def _said(self, spawner: Any, watched: Watched) -> tuple[str, bool] | None:
        """What is said of a session, and whether it can be kept by that; None where there is nothing to be said.

        A GPU that is out of order comes first: who keeps the session would keep that.
        """
        if watched.failed:
            return self._broken(spawner, watched)["text"], False
        until = watched.until
        if until is not None and 0 < until - time.time() < notice.OVER_S:
            return notice.over(spawner.name, until), False
        return None if watched.level == idle.KEEP else (self._notice(spawner, watched)["text"], True)

    async def _tell(self, row: Mapping[str, Any]) -> None:
        """By every way that the site has. The pages show it whatever becomes of that."""
        for name, send in (("webhook", notice.post), ("mail_domain", notice.mail)):
            where = self._settings[name]
            try:
                if where:
                    await asyncio.to_thread(send, where, row)
            except (OSError, ValueError) as why:
                self.counts["notices_failed"] += 1
                # Its address may have a secret in it.
                app_log.warning("%s was not warned by %s: %s", row["user"], name, type(why).__name__)

    async def told(self, spawner: Any) -> dict[str, Any]:
        """What its user is told of a session, with the warning where there is one, and how it is now: `now`."""
        watched = await self.of(spawner)
        await self._learn_end(spawner, watched)
        watched.looked_at = now = time.time()
        said = self._said(spawner, watched)
        warning = {"text": said[0], "keep": said[1]} if said else {}
        line = notice.now(watched.gpus(now), watched.until, now)
        return {**watched.as_dict(now), **warning, "now": line}

    async def _learn_end(self, spawner: Any, watched: Watched) -> None:
        """When the time of a session is over at the latest."""
        try:
            look = await asyncio.wait_for(self._look(), PATIENCE_S)
        except TimeoutError:
            return
        found = look.sessions.get(spawner.job)
        if found is not None and found.user == spawner.user.name:
            watched.until = found.ends

    def banner(self, user: Any) -> list[dict[str, Any]]:
        """The warnings of a user's sessions, for every page; one of an idle session has the button that keeps it."""
        rows: list[dict[str, Any]] = []
        for spawner in list(getattr(user, "spawners", {}).values()):
            job, watched = getattr(spawner, "watched", (0, None))
            if spawner.ready and job == spawner.job and watched is not None:
                said = self._said(spawner, watched)
                rows += [{"text": said[0], "keep": said[1], "server": spawner.name}] if said else []
        return rows

    # --- the hub itself ---

    def note_start(self, code: str) -> None:
        """How a start came out: empty, or the code of what kept it from that."""
        what = STARTED if not code else CANCELLED if code in NO_FAULT else REFUSED if code == "options" else FAILED
        self.starts[what] += 1

    async def tell_on(self) -> None:
        """Write down how the hub does, again and again."""
        while True:
            try:
                row = await self.as_dict()
                await asyncio.to_thread(files.write, self._path, json.dumps(row), mode=0o600, durable=False)
            except Exception:
                app_log.exception("Telling how the hub does")
            await asyncio.sleep(TELL_S)

    async def as_dict(self) -> dict[str, Any]:
        now = time.time()
        unmeasured, states = Counter[str](), Counter[str]()
        for spawner in self._spawners():
            if spawner.ready:
                states["run"] += 1
                try:
                    unmeasured[(await self.of(spawner)).unmeasured(now)] += 1
                except Exception:
                    # Of one session nobody may know; of the others it is told.
                    app_log.exception("Looking at the session of %s", spawner.user.name)
                    unmeasured[samples.UNKNOWN] += 1
            elif spawner.pending == "spawn":
                states["wait"] += 1
        return {
            "at": now,
            "sessions": {name: states[name] for name in ("run", "wait")},
            "unmeasured": {name: unmeasured[name] for name in (samples.SILENT, samples.UNKNOWN)},
            "starts": dict(self.starts),
            **self.counts,
        }
