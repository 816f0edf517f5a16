# SPDX-License-Identifier: GPL-3.0-or-later
"""The page on which people save the environment of a session: of an image as an image of their own, and of a directory
of the home as a lock file.

The program that works as root does it with the rights of the user, on the session's node. What becomes of it, the hub
knows until it is restarted; what was begun goes on to its end.
"""

from __future__ import annotations

import asyncio
import time

from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import url_path_join
from tornado import web
from tornado.log import app_log

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, settings

# The program takes so many orders at a time, and others must get through.
AT_A_TIME = 8
# Longer than the program takes at most.
SAVE_S = 3700
REFRESH_S = 3
RUNS, SAVED, FAILED = "runs", "saved", "failed"


class Environments:
    """What is saved of sessions now, and how it came out last."""

    def __init__(self, known, order):
        """
        :param known: the settings.
        :param order: what the program that works as root does.
        """
        self._known, self._order = known, order
        self._slots, self._tasks = asyncio.Semaphore(AT_A_TIME), set()

    def __deepcopy__(self, memo):
        """A configuration is copied with all that it has, and this is one."""
        return self

    @property
    def handlers(self):
        own = {"saved": self}
        there = [(r"/environments", EnvironmentsHandler, own), (r"/environments/save", SaveHandler, own)]
        # It is done in the job of a session.
        return there if self._known.scheduler == settings.SLURM else []

    def place_of(self, user):
        return self._known.place_of(user)

    def image_of(self, spawner):
        """The image that a session runs in; empty for another environment."""
        environment = (spawner.orm_spawner.user_options or {}).get("environment", "")
        return self._known.image_of(environment, spawner.user.name)

    def kept_of(self, spawner):
        """What can be saved: {image} or {directory}; empty for an environment of the site."""
        environment = (spawner.orm_spawner.user_options or {}).get("environment", "")
        if form.OWN.fullmatch(environment):
            return {"directory": environment, "name": environment.rpartition("/")[2]}
        return {"image": image} if (image := self.image_of(spawner)) else {}

    def told(self, spawner):
        """What became of the last time that a session was saved: {state, text}."""
        job, row = getattr(spawner, "saving", (0, {}))
        return row if job == spawner.job else {}

    def rows(self, user):
        """The sessions of a user that run and whose environment can be saved."""
        return [
            {"server": spawner.name, **self.kept_of(spawner), **self.told(spawner)}
            for spawner in sorted(user.spawners.values(), key=lambda one: one.name)
            if spawner.ready and self.kept_of(spawner)
        ]

    def save(self, spawner, name):
        """Begin, where it is not being saved already."""
        if self.told(spawner).get("state") != RUNS:
            row = {"state": RUNS, "text": "It waits for others that are being saved."}
            spawner.saving = (spawner.job, row)
            task = asyncio.ensure_future(self._save(spawner, name, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _save(self, spawner, name, row):
        kept = self.kept_of(spawner)
        more = {"environment": kept["directory"]} if "directory" in kept else {}
        target = f"{form.LOCKS}{name}.lock" if more else f"{self.place_of(spawner.user.name)}{name}"
        since = time.strftime("%H:%M:%S")

        def tell(text):
            row["text"] = f"Since {since}: {text}"

        user, job = spawner.user.name, spawner.job
        try:
            async with self._slots:
                tell("it begins")
                more |= {"server": spawner.name, "job": job, "target": target}
                answer = await self._order("save", user, tell=tell, limit_s=SAVE_S, **more)
        except Refused as why:
            row.update(state=FAILED, text=str(why))
        except Exception as why:
            app_log.exception("Saving job %s of %s", job, user)
            row.update(state=FAILED, text=f"{target} was not saved: {type(why).__name__}. To do: ask the operators")
        else:
            row.update(state=SAVED, text=done(target, answer))


def done(target, answer):
    """What is told of what was saved."""
    if "left_out" not in answer:
        return f"{answer['saved']} is there. Give {target} in the form to start in it."
    told = [answer["saved"], *answer["left_out"], f"Make it again with: gpu-environment restore {target} ~/envs/NAME"]
    return "; ".join(told)


class EnvironmentsHandler(BaseHandler):
    """The sessions of whoever asks that can be saved, and what becomes of those that are."""

    def initialize(self, saved):
        self._saved = saved

    @web.authenticated
    async def get(self):
        rows = self._saved.rows(self.current_user)
        if any(row.get("state") == RUNS for row in rows):
            self.set_header("Refresh", str(REFRESH_S))
        self.set_header("Cache-Control", "no-store")
        place = self._saved.place_of(self.current_user.name)
        self.finish(await self.render_template("environments.html", sessions=rows, place=place))


class SaveHandler(BaseHandler):
    def initialize(self, saved):
        self._saved = saved

    @web.authenticated
    async def post(self):
        spawner = self.current_user.spawners.get(self.get_body_argument("server", ""))
        if spawner is None or not spawner.ready or not self._saved.kept_of(spawner):
            raise web.HTTPError(404, "you have no such session whose environment can be saved, or it has ended")
        self._saved.save(spawner, self.get_body_argument("name", ""))
        self.redirect(url_path_join(self.hub.base_url, "environments"))
