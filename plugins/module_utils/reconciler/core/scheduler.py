# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler needs of a scheduler: a plan, which only decides, a backend, which acts, and a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Published, Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import Shape
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import (
    Decision,
    Node,
    Policy,
    Row,
    Step,
)

# Called with a subject: what of it cannot be used, and why.
Say = Callable[[str, str], None]
Memory = Mapping[str, Any]


class NotLeading(Exception):
    """Another reconciler has written what only the leader writes."""


class NotOurs(Exception):
    """What the reconciler keeps belongs to another program and cannot be taken back; the text says what to do."""


@dataclass(frozen=True)
class Seen:
    """What a scheduler has under the name of one host.

    :ivar rows: its agents or nodes; more than one is a problem, and none of them is touched.
    :ivar scheduled: whether others have planned maintenance for it.
    """

    rows: tuple[Row, ...] = ()
    scheduled: bool = False


class Plan(Protocol):
    """The decisions for one node: pure functions of one module. All times are Unix seconds.

    The driver repeats, for every node:

        memory = observe(memory, node, policy, now)
        decision = hold_back(decide(memory, node, policy, now), memory, policy, held, now)
        memory = begin(memory, decision.step, now)   written down before the step is taken
        ...                                          the step is taken
        memory = end(memory, error, now, refused)    written down after it

    Cut anywhere, it goes on from what was written: a step is safe to take twice, and what is found in the scheduler and
    on the node decides, not how far the one before seemed to be.
    """

    def __hash__(self) -> int: ...

    @property
    def KINDS(self) -> Sequence[str]:
        """The kinds of its steps."""

    @property
    def SHAPES(self) -> Mapping[str, Shape]:
        """What it keeps in a memory besides what core/memory.py does: name -> its shape."""

    @property
    def STEP_SHAPES(self) -> Mapping[str, Shape]:
        """What its steps have, and the fence that comes of one, besides what core's have: name -> its shape."""

    def empty(self, host: str) -> dict[str, Any]:
        """The memory of a node of which nothing is known."""

    def observe(self, memory: Memory, node: Node, policy: Policy, now: float) -> dict[str, Any]:
        """The memory with what is seen now."""

    def decide(self, memory: Memory, node: Node, policy: Policy, now: float) -> Decision:
        """The next step on a node of which there is no `problem`."""

    def hold_back(self, decision: Decision, memory: Memory, policy: Policy, held: str, now: float) -> Decision:
        """The decision without a step that failed a moment ago, or that the breaker holds; `held` says why it does."""

    def closing(self, memory: Memory, node: Node, decision: Decision) -> Step | None:
        """What closes a node with others by one order, in the place of its next step; None where nothing does."""

    def begin(self, memory: Memory, step: Step, now: float) -> dict[str, Any]:
        """The memory to write down before the step is taken. Cut after it, the step may or may not have been taken."""

    def end(self, memory: Memory, error: str | None, now: float, refused: bool = False) -> dict[str, Any]:
        """The memory to write down after the step. `error`: why it failed; `refused`: nothing can have come of it."""

    def clear(self, memory: Memory, uuid: str | None, now: float) -> dict[str, Any]:
        """The memory after an operator said that a GPU, or all of the node, was repaired."""

    def stage(self, memory: Memory) -> str:
        """Where a node is on its way, in a word; empty where the scheduler has nothing to add."""

    def fences(self, memory: Memory, node: Node | None) -> list[tuple[str, str]]:
        """(GPU, empty for the whole host; the kind of step that the fence is at) of a node that is fenced."""


class Backend(Protocol):
    """The scheduler itself. `look`, `close` and `perform` raise CallFailed."""

    @property
    def plan(self) -> Plan: ...

    def look(
        self, verdicts: Mapping[str, Mapping[str, Any]], memories: Mapping[str, Memory], say: Say
    ) -> dict[str, Seen]:
        """What there is of each host that the scheduler knows. `verdicts` are those that can be used."""

    def close(self, hosts: Sequence[str], step: Step) -> None:
        """Take the step on all of them by one order; see `Plan.closing`."""

    def perform(self, host: str, step: Step) -> None:
        """Take a step that is the scheduler's. Others are the driver's."""


class Place(Protocol):
    """A place in the queue of those that want to lead."""

    def cancel(self) -> Any: ...

    def release(self) -> Any: ...


class Store(Protocol):
    """Where the reconciler keeps what it knows, and hears of verdicts and requests. Methods raise UNREACHABLE."""

    @property
    def NAME(self) -> str:
        """In complaints."""

    @property
    def UNREACHABLE(self) -> tuple[type[Exception], ...]:
        """What a method raises that cannot tell whether something was done."""

    # Host -> why what it publishes cannot be used, and what was put right since it was read last.
    refused: dict[str, str]
    repaired: list[str]

    def listen(self, changed: Callable[[bool, bool], None]) -> None:
        """Call it with whether there is a connection, and whether the session is over."""

    def open(self) -> None:
        """Raises Wrong where that cannot be."""

    def serve(self) -> None:
        """Hear the agents from now on. Raises Wrong."""

    def renew(self) -> None:
        """End the session and everything that hangs on it, and begin another one."""

    def close(self) -> None: ...

    def prepare(self) -> None:
        """Make the places in which all is kept. Raises NotOurs."""

    def prepare_hosts(self) -> None:
        """Make what hosts have of their own."""

    def refresh(self) -> bool:
        """Whether hosts have come, or have other logins. Raises Wrong."""

    def place(self, name: str) -> Any:
        """A `Place`."""

    def take(self, place: Any, timeout_s: float | None = None) -> bool:
        """Whether the lead is ours within this time; not if the place is given up with `cancel` meanwhile."""

    def leader(self) -> str | None:
        """Who leads."""

    def load(self, keep: bool = False) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], dict[str, str]]:
        """(the breaker's memory, None where it was lost; host -> {memory, last, clear}; host -> why it is left as it
        is). With `keep`, what cannot be used is put aside."""

    def save_node(self, host: str, row: dict[str, Any]) -> None: ...

    def save_fleet(self, row: dict[str, Any]) -> None: ...

    def send(self, host: str, document: dict[str, Any]) -> None:
        """For the agent of the host: {order, clear}."""

    def sent(self, host: str) -> dict[str, Any]: ...

    def verdicts(self) -> dict[str, Published]: ...

    def verdict(self, host: str) -> Published | None: ...

    def watch(self, news: Callable[[str | None], None], asked: Callable[[], None]) -> Callable[[], None]:
        """Call `news` with a host whose verdict may be another, None for any, and `asked` when there are requests,
        until what this returns is called."""

    def hosts(self) -> set[str]:
        """All that were ever heard of."""

    def without_own_login(self) -> list[str]: ...

    def ask(self, request: dict[str, Any]) -> str:
        """Keep what an operator asks for whichever reconciler leads; its name."""

    def requests(self) -> list[tuple[str, dict[str, Any] | Unusable]]: ...

    def done(self, name: str) -> None:
        """A request was served."""


@dataclass(frozen=True)
class Scheduler:
    """What makes the service of one scheduler. `backend` raises CallFailed, and `store` Wrong, for wrong settings."""

    settings: type[Settings]
    plan: Plan
    backend: Callable[[Any, Mapping[str, str]], Backend]
    store: Callable[[Any, Mapping[str, str]], Store]
