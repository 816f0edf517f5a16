# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the portal needs of a scheduler: what the hub sees of it, and what is done as root for a user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.local_program import exchange
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Job, Session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Wanted

# `nodes`, sorted by name:
#     name, models (model -> GPUs of it, with the empty one for GPUs without), gpus, gpus_used, cpus, free_cpus,
#     memory_mib, free_memory_mib, partitions, takes_jobs, problem (why it takes none, for people);
#     gpus_held (of those that are used, how many are out of service), where the scheduler keeps some so;
#     of Slurm also what `slurm.state.unfenced` looks at
# `jobs`, everybody's that run and wait:
#     id, name (session.JOB for a session), user, gpus, submitted, started, ends, partition,
#     waits, waits_for (for people), in_line (whether it comes before a new one),
#     nodes (each with name and the minors of its GPUs there, None for one that is not known),
#     holder (whether its GPUs are out of service, and nobody has them)
# `leases`: who has GPUs, as `leases.lease` has it.
# `waiting_total`: how many jobs wait, where not all of them are told.
Found = Mapping[str, Any]
ASK_S = 30.0
ANSWER_AT_MOST = 64 << 20


class Backend(Protocol):
    """What the hub asks, under its own account.

    :ivar gives_port: whether the scheduler chooses where a session's server listens.
    :ivar keeps_ended: whether a session that has ended stays in the scheduler until it is cancelled.
    :ivar has_queue: whether a session for which there is no room waits; otherwise it is refused.
    :ivar submit_s: what it may take to submit one.
    """

    gives_port: bool
    keeps_ended: bool
    has_queue: bool
    submit_s: int

    def look(self) -> tuple[Found, Mapping[Job, Session]]:
        """The cluster, and the sessions of everybody. Raises Refused where the scheduler does not answer."""

    def address(self, one: Session) -> str:
        """Where the node of a session that runs is reached. Raises Refused."""


class Orders(Protocol):
    """What the program that works as root does. Each raises Refused.

    :ivar gives_port: as above.
    """

    gives_port: bool

    def look(self) -> Mapping[str, Any]:
        """What the hub cannot ask itself."""

    def submit(self, wanted: Wanted, server: str, variables: Mapping[str, str], image: str = "") -> Job:
        """Submit a session as its user.

        :param server: its name; empty for the first session of its user.
        :param variables: what the hub gives it, which is in its command, too.
        :param image: its environment, where that is one; the command runs it where the scheduler does not.
        """

    def cancel(self, user: str, job: Job) -> None:
        """End a session of a user; no other job. One that is gone is no fault, and nor is an account that is gone."""


def asked(path: str) -> Callable[[], Mapping[str, Any]]:
    """Asks the program that works as root for what the scheduler tells, at its socket; as `ask`."""
    return lambda: ask(path, {"do": "look"})


def ask(path: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a program behind a socket. Raises Refused where that has a problem, and CallFailed without one."""
    try:
        told = json_object(exchange(path, question, ASK_S, ANSWER_AT_MOST + 1), ANSWER_AT_MOST)
    except (OSError, Malformed) as why:
        unit = os.path.basename(path).rpartition(".")[0]
        raise CallFailed(
            f"the program behind {path} gives no answer: {one_line(why, 200)}",
            f"the operators see it in `sudo journalctl -u '{unit}@*'` on the portal's host",
        ) from why
    if "problem" in told:
        raise Refused(told["problem"]["cause"], told["problem"]["remedy"], code=told["problem"]["code"])
    return told
