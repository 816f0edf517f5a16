# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub does again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from jupyterhub import orm
from jupyterhub.app import JupyterHub
from sqlalchemy.exc import SQLAlchemyError

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Job
from baremetal_gpu_portal.portal import Portal, spawners

_running: list[Awaitable[None]] = []


def start(portal: Portal) -> None:
    """Nothing, where a command only reads the configuration."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    work = (sweep(portal), portal.people.look_after(), portal.watch.tell_on())
    _running.extend(loop.create_task(one) for one in work)


async def sweep(portal: Portal) -> None:
    """End sessions that no server of the hub is: a hub that was killed while it submitted has left them."""
    suspects: set[Job] = set()
    while True:
        await asyncio.sleep(portal.sweep_s)
        hub = JupyterHub.instance()
        try:
            look = await portal.look()
            if look.failure:
                continue
            known = {(row.state or {}).get("job") for row in hub.db.query(orm.Spawner)}
            known |= {spawner.job for spawner in spawners()}
            here = {
                # Empty where the account is gone.
                number: one.user
                for number, one in look.sessions.items()
                if (portal.backend.keeps_ended or one.lives or one.state != session.ENDED) and number not in known
            }
            for number in suspects & here.keys():
                hub.log.warning("Ending job %s of %s, which no server of the hub is", number, here[number])
                try:
                    await portal.order("cancel", here[number], job=number)
                except Refused as why:
                    # It is tried again, and must not keep others from their end.
                    hub.log.error("Job %s of %s does not end: %s", number, here[number], why)
            suspects = set(here)
        except Exception as why:
            hub.log.exception("Looking for unknown sessions")
            if isinstance(why, SQLAlchemyError):
                hub.db.rollback()
