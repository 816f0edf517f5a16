# SPDX-License-Identifier: GPL-3.0-or-later
"""The page on which people save the environment of a session: of an image as an image of their own, and of a directory
of the home as a lock file.

The program that works as root does it with the rights of the user, on the session's node. What becomes of it, the hub
knows until it is restarted; what was begun goes on to its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tornado.log import app_log

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from baremetal_gpu_portal.orders import Answer, Order
from baremetal_gpu_portal.shared import Shared

# The program takes so many orders at a time, and others must get through.
AT_A_TIME = 8
# Longer than the program takes at most.
SAVE_S = 3700
REFRESH_S = 3
RUNS, SAVED, FAILED = "runs", "saved", "failed"


class Environments(Shared):
    """What is saved of sessions now, and how it came out last."""

    def __init__(self, known: Settings, order: Order) -> None:
        """
        :param known: the settings.
        :param order: what the program that works as root does.
        """
        self._known, self._order = known, order
        self._slots = asyncio.Semaphore(AT_A_TIME)
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def can_save(self) -> bool:
        """It is done in the job of a session."""
        return self._known.scheduler == settings.SLURM

    def place_of(self, user: str) -> str:
        return self._known.place_of(user)

    def image_of(self, spawner: Any) -> str:
        """The image that a session runs in; empty for another environment."""
        environment = (spawner.orm_spawner.user_options or {}).get("environment", "")
        return self._known.image_of(environment, spawner.user.name)

    def kept_of(self, spawner: Any) -> dict[str, str]:
        """What can be saved: {image} or {directory}; empty for an environment of the site."""
        environment = (spawner.orm_spawner.user_options or {}).get("environment", "")
        if form.OWN.fullmatch(environment):
            return {"directory": environment, "name": environment.rpartition("/")[2]}
        return {"image": image} if (image := self.image_of(spawner)) else {}

    def told(self, spawner: Any) -> dict[str, str]:
        """What became of the last time that a session was saved: {state, text}."""
        job, row = getattr(spawner, "saving", (0, {}))
        return row if job == spawner.job else {}

    def rows(self, user: Any) -> list[dict[str, str]]:
        """The sessions of a user that run and whose environment can be saved."""
        return [
            {"server": spawner.name, **self.kept_of(spawner), **self.told(spawner)}
            for spawner in sorted(user.spawners.values(), key=lambda one: one.name)
            if spawner.ready and self.kept_of(spawner)
        ]

    def save(self, spawner: Any, name: str) -> None:
        """Begin, where it is not being saved already."""
        if self.told(spawner).get("state") != RUNS:
            row = {"state": RUNS, "text": "It waits for others that are being saved."}
            spawner.saving = (spawner.job, row)
            task = asyncio.ensure_future(self._save(spawner, name, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _save(self, spawner: Any, name: str, row: dict[str, str]) -> None:
        kept = self.kept_of(spawner)
        more = {"environment": kept["directory"]} if "directory" in kept else {}
        target = f"{form.LOCKS}{name}.lock" if more else f"{self.place_of(spawner.user.name)}{name}"
        since = time.strftime("%H:%M:%S")

        def tell(text: str) -> None:
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


def done(target: str, answer: Answer) -> str:
    """What is told of what was saved."""
    if "left_out" not in answer:
        return f"{answer['saved']} is there. Give {target} in the form to start in it."
    told = [answer["saved"], *answer["left_out"], f"Make it again with: gpu-environment restore {target} ~/envs/NAME"]
    return "; ".join(told)
