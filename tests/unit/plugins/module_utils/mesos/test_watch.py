# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether masters, agents and Marathons do their work, and that a restart never takes the second one.

HTTP and systemd are hand-made here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.member_service import MemberService, asked
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Reply
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.watch import Cluster, Masters

NAMES = ("m1", "m2", "m3")


class Site:
    """Three masters or Marathons, or one agent. `down` do not answer, `behind` have no log, `leader` leads."""

    def __init__(self, base: Path, program: str = "master", names: tuple[str, ...] = NAMES) -> None:
        self.program, self.names = program, names
        self.down: set[str] = set()
        self.behind: set[str] = set()
        self.leader = names[0]
        self.gpus, self.size = 4, len(names)
        self.asked: list[dict[str, str]] = []
        self.done: list[str] = []
        self.runs, self.comes_back = True, True
        # What the leading master has of the agent; the metric of the agent itself is 1 whatever that is.
        self.agent_id, self.shown, self.times = "id-1", {"active": True, "deactivated": False}, 0
        self.known = True
        self.registers = 1
        self.held = (0, "", "")
        self.config, self.stamp = base / "program.env", base / "started"
        self.config.write_text("MESOS_PORT=5050\n")
        self.write_stamp()

    def members(self) -> list[dict[str, str]]:
        return [{"name": name, "url": f"http://{name}:1"} for name in self.names]

    def send(self, _method: str, url: str, headers: Any, _body: Any) -> Reply:
        self.asked.append(dict(headers))
        if url.startswith("http://master:5050"):
            return self.master(url.removeprefix("http://master:5050"))
        name, path = url.removeprefix("http://").split(":1", 1)
        if name in self.down:
            raise ConnectionRefusedError("Connection refused")
        if path == "/ping":
            return Reply(200, {}, b"pong")
        if path == "/v2/info":
            return Reply(200, {}, json.dumps({"frameworkId": self.agent_id and "f-1"}).encode())
        if path == "/v2/leader":
            told = {"leader": f"{self.leader}:1"} if self.leader else {"message": "none"}
            return Reply(200 if self.leader else 404, {}, json.dumps(told).encode())
        if path == "/state":
            return Reply(200, {}, json.dumps({"id": self.agent_id, "master_hostname": "master"}).encode())
        numbers = {
            "master/elected": float(name == self.leader),
            "registrar/log/recovered": float(name not in self.behind),
            "registrar/log/ensemble_size": float(self.size),
            "slave/registered": 1.0,
            "slave/gpus_total": float(self.gpus),
        }
        return Reply(200, {}, json.dumps(numbers).encode())

    def master(self, path: str) -> Reply:
        if path == "/redirect":
            return Reply(307, {"location": "//master:5050"}, b"")
        if path == "/frameworks?framework_id=f-1":
            row = {"id": "f-1", "active": True, "connected": True, **self.shown}
            return Reply(200, {}, json.dumps({"frameworks": [row] if self.known else []}).encode())
        assert path == "/slaves?slave_id=id-1"
        row = {"id": "id-1", "hostname": "g1", "registered_time": 1.0, "reregistered_time": self.times, **self.shown}
        return Reply(200, {}, json.dumps({"slaves": [row] if self.known else []}).encode())

    def cluster(self, **more: Any) -> Cluster:
        return Cluster(
            self.program, self.members(), self.send, sleep=lambda _s: None, clock=iter(range(999)).__next__, **more
        )

    # One of them, with its unit.

    def write_stamp(self) -> None:
        done = subprocess.run(["sha256sum", str(self.config)], capture_output=True, text=True, check=False)
        self.stamp.write_text(done.stdout)

    def change(self) -> None:
        self.config.write_text("MESOS_PORT=6050\n")

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "is-active"]:
            return (0 if self.runs else 3), "", ""
        if argv[0] == "journalctl":
            return 0, "the end of the log", ""
        if argv[0] == "may-restart":
            return self.held
        self.done.append(argv[1])
        self.runs = True
        self.times += self.registers
        self.write_stamp()
        (self.down.discard if self.comes_back else self.down.add)(self.own)
        if self.leader == self.own and argv[1] == "restart":
            self.leader = next(name for name in self.names if name != self.own or len(self.names) == 1)
        return 0, "", ""

    def step(self, own: str, only: str = "any", join: bool = False, check: bool = False) -> tuple[str, bool]:
        self.own = own
        held = asked(["may-restart"] if self.program == "agent" else [], self.run)
        service = MemberService("x.service", self.cluster(own_name=own), 3, self.run, held)
        return service.step(only, join, [str(self.config)], str(self.stamp), check)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- looking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["master", "marathon"])
def test_three_that_work_are_complete_and_one_leads(tmp_path: Path, program: str) -> None:
    seen = Site(tmp_path, program).cluster().look()
    assert (seen["complete"], seen["leader"], seen["problems"]) == (True, "http://m1:1", [])


def test_one_that_does_not_answer_or_has_no_log_is_named(site: Site) -> None:
    site.down, site.behind = {"m2"}, {"m3"}
    seen = site.cluster().look()
    assert not seen["complete"]
    assert seen["problems"] == [
        "m2 (http://m2:1): Connection refused",
        "m3 (http://m3:1): its replicated log has not caught up",
    ]


def test_masters_without_a_leader_are_not_complete(site: Site) -> None:
    site.leader = ""
    assert site.cluster().look()["problems"] == ["one of m1, m2, m3 has to lead, and none does"]


def test_a_master_that_nobody_knows_keeps_the_others_from_being_restarted(site: Site) -> None:
    site.size = 4
    assert "4 masters share its log, and 3 are known" in site.cluster().look()["problems"][0]
    site.change()
    with pytest.raises(Refused, match="a restart is due and was not done"):
        site.step("m2")


def test_a_marathon_without_a_leader_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, "marathon")
    site.leader = ""
    assert "it knows no leader" in site.cluster().look()["problems"][0]


@pytest.mark.parametrize("program", ["master", "agent", "marathon"])
@pytest.mark.parametrize(("body", "words"), [(b"[]", "an object"), (b"{", "JSON"), (b"{}", "")])
def test_an_answer_of_another_form_is_no_work_done(tmp_path: Path, program: str, body: bytes, words: str) -> None:
    site = Site(tmp_path, program, ("m1",))
    seen = Cluster(program, site.members(), lambda *request: Reply(200, {}, body)).look()
    assert not seen["complete"]
    assert words in seen["problems"][0]


@pytest.fixture
def agent(tmp_path: Path) -> Site:
    return Site(tmp_path, "agent", ("g1",))


def test_an_agent_counts_when_it_is_registered_with_its_gpus(agent: Site) -> None:
    assert agent.cluster(gpus=4).look()["complete"]
    assert "announces 4 GPUs, and 3 are given out" in agent.cluster(gpus=3).look()["problems"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"known": False}, "does not have its id id-1"),
        ({"agent_id": ""}, "it has no id"),
        ({"agent_id": None}, "it has no id"),
        ({"shown": {"active": False, "deactivated": False}}, "knows it as id-1, and it is not connected"),
        ({"down": {"g1"}}, "Connection refused"),
    ],
    ids=["unknown to the master", "never registered", "no text", "not connected", "no answer"],
)
def test_what_an_agent_tells_of_itself_does_not_make_it_ready(agent: Site, changes: Any, words: str) -> None:
    vars(agent).update(changes)
    seen = agent.cluster(masters=Masters(["http://master:5050"], None, agent.send)).look()
    assert not seen["complete"]
    assert words in seen["problems"][0]


@pytest.mark.parametrize("active", [True, False])
def test_an_agent_that_somebody_deactivated_does_its_part(agent: Site, active: bool) -> None:
    agent.shown = {"active": active, "deactivated": True}
    assert agent.cluster().look()["complete"]


@pytest.mark.parametrize(("age", "words"), [(None, "is not active"), (2.0, "up for 2 s"), (10.0, "")])
@pytest.mark.parametrize("program", ["master", "agent", "marathon"])
def test_the_unit_of_the_host_has_to_stay_up(tmp_path: Path, program: str, age: Any, words: str) -> None:
    site = Site(tmp_path, program, ("m1",))
    seen = site.cluster(age=lambda: age).look()
    assert seen["complete"] is not bool(words)
    assert words in " ".join(seen["problems"])


def test_the_login_is_shown_to_the_master_and_not_to_the_agent(agent: Site) -> None:
    agent.cluster(masters=Masters(["http://master:5050"], ("mesos-agent", "secret"), agent.send)).look()
    assert [row.get("Authorization", "") for row in agent.asked] == ["", "", *["Basic bWVzb3MtYWdlbnQ6c2VjcmV0"] * 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"known": False}, "does not have its id f-1"),
        ({"agent_id": None}, "it has no id"),
        ({"shown": {"active": False}}, "it is not connected"),
        ({"shown": {"connected": False}}, "it is not connected"),
    ],
)
def test_a_marathon_that_leads_has_to_be_a_framework_of_the_leading_master(
    tmp_path: Path, changes: Any, words: str
) -> None:
    """Without a login that Mesos takes it tries for ever, and answers all the same."""
    site = Site(tmp_path, "marathon")
    vars(site).update(changes)
    seen = site.cluster(masters=Masters(["http://master:5050"], None, site.send)).look()
    assert seen["complete"] is not bool(words)
    assert words in " ".join(seen["problems"])
    assert not words or seen["problems"][0].startswith("m1 (http://m1:1): it is not registered with a leading master: ")


def test_a_login_that_the_master_refuses_is_told(agent: Site) -> None:
    agent.master = lambda path: (
        Reply(307, {"location": "//master:5050"}, b"") if "redirect" in path else Reply(401, {}, b"")
    )  # type: ignore[method-assign]
    assert "check principal and secret" in agent.cluster().look()["problems"][0]


def test_who_asks_logs_in(site: Site) -> None:
    site.cluster(login=("operator", "secret")).look()
    assert {row["Authorization"] for row in site.asked} == {"Basic b3BlcmF0b3I6c2VjcmV0"}


# --- starting and restarting -----------------------------------------------------------------------------------------


def test_without_a_change_nothing_is_done(site: Site) -> None:
    assert site.step("m2") == ("", False)
    assert site.done == []


def test_one_that_does_not_run_is_started_and_check_mode_only_says_so(site: Site) -> None:
    site.runs = False
    assert site.step("m2", check=True) == ("start", False)
    assert site.done == []
    assert site.step("m2") == ("start", False)
    assert site.done == ["start"]


def test_followers_are_restarted_first_and_the_leader_last(site: Site) -> None:
    site.change()
    assert site.step("m1", "idle") == ("", True)
    assert site.step("m1", "follower") == ("", True)
    assert site.done == []
    assert site.step("m2", "follower") == ("restart", False)
    site.stamp.write_text("")
    assert site.step("m1", "any") == ("restart", False)
    assert site.done == ["restart", "restart"]


@pytest.mark.parametrize("fault", ["down", "behind"])
def test_none_is_restarted_while_another_is_missing(site: Site, fault: str) -> None:
    site.change()
    setattr(site, fault, {"m3"})
    with pytest.raises(Refused, match=r"a restart is due and was not done.*m3"):
        site.step("m2")
    assert site.done == []


def test_one_that_does_not_answer_may_be_restarted_at_any_time(site: Site) -> None:
    site.change()
    site.down = {"m2", "m3"}
    assert site.step("m2", "idle") == ("restart", False)
    assert site.done == ["restart"]


def test_one_that_does_not_come_back_is_told_with_its_log(site: Site) -> None:
    site.change()
    site.comes_back = False
    with pytest.raises(Refused, match=r"No other host was touched.*the end of the log"):
        site.step("m2")


def test_an_empty_master_is_waited_for_before_the_next(site: Site) -> None:
    site.runs, site.behind = False, {"m2"}
    with pytest.raises(Refused, match="its replicated log has not caught up"):
        site.step("m2", join=True)
    # The next run finds it running, and waits still.
    with pytest.raises(Refused, match="its replicated log has not caught up"):
        site.step("m2", join=True)
    site.behind = set()
    assert site.step("m2", join=True) == ("", False)


def test_an_agent_is_restarted_whatever_others_do_and_has_to_register_again(agent: Site) -> None:
    agent.change()
    assert agent.step("g1") == ("restart", False)
    agent.stamp.write_text("")
    agent.known = False
    with pytest.raises(Refused, match="is not registered"):
        agent.step("g1")


def test_the_registration_of_before_does_not_count_for_an_agent_that_was_restarted(agent: Site) -> None:
    """The master has it as connected until it sees that the one before is gone."""
    agent.change()
    agent.registers = 0
    with pytest.raises(Refused, match="does not do its work"):
        agent.step("g1")


def test_an_agent_that_would_not_come_back_is_not_restarted(agent: Site) -> None:
    agent.change()
    agent.held = (1, "", "GPU-1 at index 1 does not answer: GPU is lost\x1b[2J. To do: see gpu-agent status\n")
    for only in ("idle", "any"):
        agent.down = set()
        if only == "idle":
            assert agent.step("g1", only) == ("", True)
            agent.down = {"g1"}
        with pytest.raises(
            Refused, match="a restart is due and was not done: GPU-1 at index 1 does not answer"
        ) as told:
            agent.step("g1", only)
        assert "\x1b" not in str(told.value)
    assert agent.done == []
    # One that does not run is started: it has nothing to lose.
    agent.runs = False
    assert agent.step("g1") == ("start", False)
