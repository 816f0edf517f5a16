# SPDX-License-Identifier: GPL-3.0-or-later
"""A restart never takes the quorum.

Systemd and /proc are hand-made here; the words of four letters come from a server.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.member_service import MemberService
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import four_letter_words as zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.ensemble import Ensemble as Members
from tests.unit.plugins.zookeeper_words import Ensemble

UNIT = "zookeeper.service"


class Host:
    """The host of one server: its files, and a systemd that starts and stops the server of the words."""

    def __init__(self, base: Path, ensemble: Ensemble, number: int) -> None:
        self.config = base / "zoo.cfg"
        self.config.write_text("tickTime=2000\n")
        self.stamp = base / "started"
        self.ensemble, self.number = ensemble, number
        self.member = ensemble.members[number - 1]
        self.done: list[str] = []
        self.runs, self.comes_back = True, True
        self.write_stamp()

    def write_stamp(self) -> None:
        """As the unit does it, by the real program."""
        done = subprocess.run(["sha256sum", str(self.config)], capture_output=True, text=True, check=False)
        self.stamp.write_text(done.stdout)

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "is-active"]:
            return (0 if self.runs else 3), "", ""
        if argv[0] == "journalctl":
            return 0, "the end of the log", ""
        assert argv[0] == "systemctl"
        assert argv[2] == UNIT
        self.done.append(argv[1])
        self.runs = True
        self.write_stamp()
        if not self.comes_back:
            self.member.mode = None
        return 0, "", ""

    def step(self, only: str = "any", join: bool = False, check: bool = False, numbers: tuple[int, ...] = ()):
        members = Members(self.ensemble.rows(*numbers), self.number, self.wait)
        service = MemberService(UNIT, members, 0.0, self.run)
        return service.step(only, join, [str(self.config)], str(self.stamp), check)

    @staticmethod
    def wait(_done, rows, _seconds):
        """Nothing here changes by waiting."""
        return zookeeper.survey(rows)


@pytest.fixture
def ensemble():
    one = Ensemble()
    yield one
    one.stop()


@pytest.fixture
def follower(tmp_path, ensemble):
    return Host(tmp_path, ensemble, 1)


@pytest.fixture
def leader(tmp_path, ensemble):
    return Host(tmp_path, ensemble, 2)


def test_a_server_that_has_its_files_is_left_alone(follower):
    assert follower.step() == ("", False)
    assert follower.done == []


def test_a_server_that_does_not_run_is_started(follower):
    follower.runs = False
    assert follower.step(check=True) == ("start", False)
    assert follower.done == []
    assert follower.step() == ("start", False)
    assert follower.done == ["start"]


def test_a_changed_file_restarts_a_follower_while_all_serve(follower):
    follower.config.write_text("tickTime=3000\n")
    assert follower.step("follower", check=True) == ("restart", False)
    assert follower.done == []
    assert follower.step("follower") == ("restart", False)
    assert follower.done == ["restart"]
    assert follower.step("follower") == ("", False)


def test_a_file_that_came_or_went_is_a_change(follower):
    follower.config.unlink()
    assert follower.step()[0] == "restart"


def test_without_a_stamp_nobody_knows_what_it_was_started_with(follower):
    follower.stamp.unlink()
    assert follower.step()[0] == "restart"


def test_the_leader_is_left_for_later(leader):
    leader.config.write_text("tickTime=3000\n")
    assert leader.step("idle") == ("", True)
    assert leader.step("follower") == ("", True)
    assert leader.done == []
    assert leader.step("any") == ("restart", False)


def test_a_follower_that_leads_after_the_wait_for_the_others_is_left_for_later(ensemble, follower):
    follower.config.write_text("tickTime=3000\n")
    looked = []

    def elect(done, rows, _seconds):
        if looked:
            ensemble.members[0].mode, ensemble.members[1].mode = "leader", "follower"
        looked.append(done)
        return zookeeper.survey(rows)

    follower.wait = elect
    assert follower.step("follower") == ("", True)
    assert follower.done == []


def test_a_server_that_serves_is_not_restarted_while_another_is_missing(ensemble, follower):
    ensemble.members[2].mode = None
    follower.config.write_text("tickTime=3000\n")
    with pytest.raises(Refused, match=r"not done, since the ensemble is not complete: .* is electing"):
        follower.step()
    assert follower.done == []


def test_a_server_that_does_not_come_back_is_told_with_its_log(follower):
    follower.config.write_text("tickTime=3000\n")
    follower.comes_back = False
    with pytest.raises(Refused, match=r"has not joined: .*No other server .* the end of the log"):
        follower.step()


def test_a_server_that_serves_nobody_may_be_restarted_whatever_the_others_do(ensemble, follower):
    for member in ensemble.members[:2]:
        member.mode = None
    follower.config.write_text("tickTime=3000\n")
    assert follower.step("idle") == ("restart", False)


def test_a_server_that_does_not_tell_whether_it_serves_is_not_restarted(follower):
    follower.member.allowed = ["ruok"]
    follower.config.write_text("tickTime=3000\n")
    with pytest.raises(Refused, match=r"4lw.commands.whitelist.* by hand"):
        follower.step("idle")
    assert follower.done == []


def test_a_standalone_server_that_is_to_be_one_of_three_serves_nobody(ensemble, follower):
    follower.member.mode = "standalone"
    follower.config.write_text("server.1=a:1:2\n")
    assert follower.step("idle") == ("restart", False)


def test_a_server_alone_is_restarted_last_and_without_a_gate(ensemble, tmp_path):
    alone = Host(tmp_path, ensemble, 1)
    alone.member.mode = "standalone"
    alone.config.write_text("tickTime=3000\n")
    assert alone.step("idle", numbers=(1,)) == ("", True)
    assert alone.step("any", numbers=(1,)) == ("restart", False)


def test_an_empty_server_must_have_joined_before_the_next_one(follower):
    follower.runs = False
    follower.comes_back = False
    with pytest.raises(Refused, match="has not joined"):
        follower.step("idle", join=True)
    # Nor is it passed over when the run is repeated.
    with pytest.raises(Refused, match="has not joined"):
        follower.step("idle", join=True)
    assert follower.done == ["start"]
