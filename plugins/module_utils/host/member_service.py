# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the program of this host, one of several that depend on each other, is started and restarted.

ZooKeeper and Mesos each tell who the members are and how they are; what follows from that is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.units import Unit, is_due
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# As in the documentation fragment member_service.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "unit": {"type": "str", "required": True},
    "files": {"type": "list", "elements": "path", "required": True},
    "stamp": {"type": "path", "required": True},
    "only": {"type": "str", "choices": ["idle", "follower", "any"], "default": "any"},
    "join": {"type": "bool", "default": False},
    "may_restart": {"type": "list", "elements": "str", "default": []},
    "wait": {"type": "int", "default": 120},
}
DIFF_AFTER = {"start": "started\n", "restart": "restarted\n", "": ""}
# A driver that hangs never answers.
HELD_S = 60.0

Seen = dict[str, Any]


class Members(Protocol):
    """The members of one kind, of which one is this host's.

    What is seen of them is a dict that has ``complete``, whether all do their work, and ``problems``, what is missing.

    :ivar alone: whether there is one member only.
    :ivar mark: tells one registration of the own member from the next, as it was last seen; None if it has none.
    :ivar noun: what a member is called in errors.
    :ivar when_incomplete: what is wrong where not all do their work, in words.
    :ivar when_missing: what is wrong where the own member did not come back, in words.
    """

    alone: bool
    mark: Any
    noun: str
    when_incomplete: str
    when_missing: str

    def look(self) -> Seen:
        """What is seen now.

        :raises Refused: if nobody can tell how the own member is.
        """

    def wait_until(self, done: Callable[[Seen], bool], wait_s: float) -> Seen:
        """What was seen last: when it was as wanted, or after `wait_s` seconds."""

    def own(self, seen: Seen) -> Mapping[str, Any]:
        """Of the own member whether it answers (``up``), ``leads``, and can do its part (``ready``)."""


def is_complete(seen: Seen) -> bool:
    return bool(seen["complete"])


def asked(argv: Sequence[str], run: Run) -> Callable[[], str]:
    """Whether a restart is held, as a command tells by its exit status; why is what it prints."""

    def held() -> str:
        code, out, error = run(list(argv), None, HELD_S) if argv else (0, "", "")
        return one_line((error + out).strip() or f"{argv[0]} ended with {code}") if code else ""

    return held


class MemberService(Unit):
    """The program of this host among the members of its kind.

    :param wait_s: seconds in which all have to do their work.
    :param held: tells why one that runs must not be restarted now, empty where it may be.
    """

    def __init__(
        self, unit: str, members: Members, wait_s: float, run: Run, held: Callable[[], str] = lambda: ""
    ) -> None:
        super().__init__(unit, run)
        self.members, self.wait_s, self.held = members, wait_s, held

    def stand_by(self) -> Seen:
        """Wait until all members do their work, so that they stand the loss of this one.

        :raises Refused: if they do not.
        """
        seen = self.members.wait_until(is_complete, self.wait_s)
        if not is_complete(seen):
            raise Refused(
                f"a restart is due and was not done, since {self.members.when_incomplete}: "
                f"{'; '.join(seen['problems'])}",
                "bring that back, then run again",
            )
        return seen

    def come_back(self, whole: bool, before: Any = None) -> None:
        """Wait until this one is ready, and with `whole` until all do their work.

        :param before: the mark of the registration that it had before it was restarted.
        :raises Refused: if that takes too long.
        """

        def done(seen: Seen) -> bool:
            # The one that it registers with may not have seen yet that its process before is gone.
            again = before is None or self.members.mark != before
            return again and bool(is_complete(seen) if whole else self.members.own(seen)["ready"])

        seen = self.members.wait_until(done, self.wait_s)
        if not done(seen):
            raise Refused(
                f"after {self.wait_s:.0f} s {self.members.when_missing}: {'; '.join(seen['problems'])}. No other "
                f"{self.members.noun} was touched after it. Its log ends with: {self.journal()}"
            )

    def step(self, only: str, join: bool, files: Sequence[str], stamp: str, check: bool) -> tuple[str, bool]:
        """Start or restart it if that is to be done, and may be done now.

        :param only: ``idle`` for one that does not answer, ``follower`` for one that does not lead, ``any``.
        :param join: whether it has to be ready before the next one is touched, as an empty one among others has to.
        :returns: what was done (``start``, ``restart`` or nothing), and whether a restart is still due.
        :raises Refused: if a restart is due and the others do not stand it, or it did not come back.
        """
        if not self.is_running():
            if not check:
                self.systemctl("start")
                if join:
                    self.come_back(whole=False)
            return "start", False
        if join and not check:
            # An earlier run was cut before it was.
            self.come_back(whole=False)
        if not is_due(files, stamp):
            return "", False
        own = self.members.own(self.members.look())
        if own["up"] and (only == "idle" or (only == "follower" and own["leads"])):
            return "", True
        if check:
            return "restart", False
        if own["up"] and not self.members.alone:
            seen = self.stand_by()
            # Who leads may have changed while this one waited.
            if only == "follower" and self.members.own(seen)["leads"]:
                return "", True
        why = self.held() if self.is_running() else ""
        if why:
            raise Refused(f"a restart is due and was not done: {why}")
        before = self.members.mark
        self.systemctl("restart")
        if own["up"]:
            self.come_back(whole=True, before=before)
        return "restart", False


def converge(given: Mapping[str, Any], members: Members, run: Run, check: bool) -> dict[str, Any]:
    """What a module with ARGUMENTS does and returns.

    :raises Refused: see MemberService.step.
    """
    service = MemberService(given["unit"], members, given["wait"], run, asked(given["may_restart"], run))
    action, due = service.step(given["only"], given["join"], given["files"], given["stamp"], check)
    diff = {"before": "", "after": DIFF_AFTER[action]}
    return {"changed": bool(action), "action": action, "due": due, "diff": diff}
