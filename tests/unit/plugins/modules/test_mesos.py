# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules for Mesos over HTTP, against the stand-ins for its master and agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import mesos_agent_state, mesos_maintenance, mesos_state_info
from tests.unit.simulators.mesos_cluster import Cluster, free_port, until

STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


class Site(Cluster):
    """A cluster with the agent gpu1, and the modules that act on it."""

    def __init__(self, base, capsys):
        super().__init__(base)
        self.capsys = capsys
        self.more: dict[str, Any] = {}
        self.masters = [f"http://127.0.0.1:{free_port()}", self.url]
        self.agent("gpu1", "--resources=cpus:8;gpus:0")
        self.registered("gpu1")

    def run(self, module, check=False, **arguments):
        given = {"masters": self.masters, **self.more, **arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        return json.loads(self.capsys.readouterr().out)

    def state(self, state, check=False, **arguments):
        given = {"hostname": "gpu1", "state": state, "ledger": str(self.base / "ledger"), **arguments}
        return self.run(mesos_agent_state, check, **given)

    def job(self, cmd="sleep 600"):
        self.launch(self.framework(), self.slave("gpu1")["id"], "job-1", cmd)

    def scheduled(self, state, check=False, **arguments):
        machines = [{"hostname": "gpu1", "ip": "127.0.0.1"}]
        return self.run(mesos_maintenance, check, machines=machines, state=state, **arguments)


@pytest.fixture
def site(tmp_path, capsys):
    one = Site(tmp_path, capsys)
    yield one
    one.stop()


def test_the_leader_is_found_and_agents_and_tasks_are_told(site):
    site.job()
    told = site.run(mesos_state_info)
    assert told["leader"] == site.url
    assert [(row["hostname"], row["ip"], row["state"]) for row in told["agents"]] == [("gpu1", "127.0.0.1", "active")]
    assert [(row["id"], row["framework"], row["state"]) for row in told["tasks"]] == [("job-1", "test", "TASK_RUNNING")]


def test_a_drain_is_foretold_done_waited_for_and_not_done_twice(site):
    site.job()
    foretold = site.state("drained", check=True, grace_period=1)
    assert site.slave("gpu1")["active"]
    done = site.state("drained", grace_period=1, timeout=20)
    assert foretold["diff"] == done["diff"] == {"before": "active\n", "after": "drained\n"}
    assert (done["changed"], done["action"], done["agent"]["state"]) == (True, "drain", "drained")
    assert site.task("job-1")["state"] == "TASK_KILLED"
    assert site.state("drained")["changed"] is False
    back = site.state("active")
    assert (back["changed"], back["agent"]["state"]) == (True, "active")
    assert site.state("active")["changed"] is False


def test_a_drain_that_takes_too_long_names_the_task_that_blocks(site):
    site.job(STUBBORN)
    told = site.state("drained", grace_period=600, timeout=1)
    assert told["failed"]
    for word in ("gpu1", "draining", "after 1 s", "job-1 of test", "To do: "):
        assert word in told["msg"]
    info = site.run(mesos_state_info)
    assert info["agents"][0]["grace_s"] == 600


def test_a_drain_of_somebody_else_is_not_undone(site):
    agent_id = site.slave("gpu1")["id"]
    site.ask("/api/v1", {"type": "DEACTIVATE_AGENT", "deactivate_agent": {"agent_id": {"value": agent_id}}})
    told = site.state("active")
    assert told["failed"]
    assert "not by us" in told["msg"]
    assert not site.slave("gpu1")["active"]
    # Nor does it become ours because we wanted the same.
    assert site.state("deactivated")["changed"] is False
    assert site.state("active")["failed"]
    assert site.state("active", takeover=True)["changed"]
    assert site.slave("gpu1")["active"]


def test_deactivated_leaves_the_job_alone(site):
    site.job()
    assert site.state("deactivated")["agent"]["state"] == "deactivated"
    assert site.task("job-1")["state"] == "TASK_RUNNING"
    assert site.state("active")["changed"]


def test_gone_is_for_good_and_asked_again_changes_nothing(site):
    agent_id = site.slave("gpu1")["id"]
    assert site.state("gone")["changed"]
    assert site.agents[0].ended()[0] == 0
    assert (
        site.run(mesos_agent_state, agent_id=agent_id, state="gone", ledger=str(site.base / "ledger"))["changed"]
        is False
    )


def test_a_name_that_nobody_has_is_refused(site):
    assert "no agent of this name" in site.state("drained", hostname="gpu9")["msg"]


def test_the_schedule_keeps_the_windows_of_others(site):
    other = {"machine_ids": [{"hostname": "x", "ip": "10.0.0.9"}], "unavailability": {"start": {"nanoseconds": 7}}}
    site.ask("/maintenance/schedule", {"windows": [other]})
    window = {"start": 1790000000, "duration": 60}
    foretold = site.scheduled("scheduled", check=True, **window)
    assert site.ask("/maintenance/schedule") == {"windows": [other]}
    done = site.scheduled("scheduled", **window)
    assert foretold["diff"] == done["diff"]
    assert site.ask("/maintenance/schedule")["windows"] == [
        other,
        {
            "machine_ids": [{"hostname": "gpu1", "ip": "127.0.0.1"}],
            "unavailability": {
                "start": {"nanoseconds": 1790000000 * 10**9},
                "duration": {"nanoseconds": 60 * 10**9},
            },
        },
    ]
    assert site.scheduled("scheduled", **window)["changed"] is False
    assert "use the schedule alone" in site.state("drained")["msg"]
    assert site.scheduled("unscheduled")["changed"]
    assert site.ask("/maintenance/schedule") == {"windows": [other]}


def test_down_and_up(site):
    site.scheduled("scheduled", start=1790000000)
    assert site.scheduled("down")["changed"]
    assert site.agents[0].ended()[0] == 0
    assert site.scheduled("down")["changed"] is False
    assert "bring them up" in site.scheduled("unscheduled")["msg"]
    assert site.scheduled("up")["schedule"] == {}
    assert site.scheduled("up")["changed"] is False
    assert "down_machines" not in site.ask("/maintenance/status")


def test_logins_and_rights(tmp_path, capsys):
    secrets = {"credentials": [{"principal": name, "secret": f"s3cret-{name}"} for name in ("ops", "guest")]}
    acls = {
        "drain_agents": [
            {"principals": {"values": ["ops"]}, "agents": {"type": "ANY"}},
            {"principals": {"type": "ANY"}, "agents": {"type": "NONE"}},
        ]
    }
    for name, document in (("credentials", secrets), ("acls", acls)):
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")

    class Guarded(Site):
        def __init__(self):
            Cluster.__init__(
                self,
                tmp_path,
                "--authenticate_http_readwrite",
                f"--credentials={tmp_path}/credentials",
                f"--acls={tmp_path}/acls",
            )
            self.capsys, self.masters, self.more = capsys, [self.url], {}

    site = Guarded()
    try:
        site.agent("gpu1")
        site.registered("gpu1")
        assert "check principal and secret" in site.state("drained")["msg"]
        site.more = {"principal": "ops", "secret": "wrong"}
        assert "check principal and secret" in site.state("drained")["msg"]
        site.more = {"principal": "guest", "secret": "s3cret-guest"}
        refused = site.state("drained")
        assert "ACLs do not allow" in refused["msg"]
        assert "s3cret" not in json.dumps(refused)
        site.more = {"principal": "ops", "secret": "s3cret-ops"}
        assert site.state("drained", timeout=20, ledger=str(tmp_path / "other"))["agent"]["state"] == "drained"
        # The run that was refused has no claim to it.
        assert "not by us" in site.state("active")["msg"]
        assert site.state("active", ledger=str(tmp_path / "other"))["changed"]
    finally:
        site.stop()


def test_a_master_that_only_redirects_leads_to_the_leader(site, tmp_path):
    follower = Cluster(tmp_path / "b", env={"STAND_IN_LEADER": f"127.0.0.1:{site.port}"})
    try:
        site.masters = [follower.url]
        assert site.run(mesos_state_info)["leader"] == site.url
        assert site.state("drained", timeout=20)["changed"]
    finally:
        follower.stop()


def test_no_leader_names_every_master_that_was_asked(site):
    site.masters = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    told = site.run(mesos_state_info)["msg"]
    assert all(url in told for url in site.masters)
    assert "To do: " in told


def test_a_drain_goes_on_over_a_restart_of_the_master(site):
    site.state("drained", timeout=20)
    site.master.stop()
    site.start_master()
    until(lambda: site.slave("gpu1"))
    assert site.state("drained")["changed"] is False
    assert site.state("active")["changed"]


def test_the_case_of_a_machines_name_is_no_matter(site):
    site.ask("/maintenance/schedule", {"windows": []})
    window = {"start": 1790000000}
    upper = [{"hostname": "GPU1", "ip": "127.0.0.1"}]
    assert site.scheduled("scheduled", **window)["changed"]
    again = site.run(mesos_maintenance, machines=upper, state="scheduled", **window)
    assert again["changed"] is False
    assert "use the schedule alone" in site.state("drained", hostname="Gpu1")["msg"]
    assert site.run(mesos_maintenance, machines=[*upper, *[{**upper[0], "hostname": "gpu1"}]], state="down")["changed"]
    assert site.run(mesos_maintenance, machines=upper, state="down")["changed"] is False
    assert "bring them up" in site.run(mesos_maintenance, machines=upper, state="unscheduled")["msg"]
    assert site.run(mesos_maintenance, machines=upper, state="up")["schedule"] == {}
    assert site.scheduled("up")["changed"] is False


def test_an_agent_is_found_whatever_the_case_of_its_name(site):
    assert site.state("deactivated", hostname="GPU1")["changed"]
    assert site.state("active", hostname="Gpu1")["agent"]["hostname"] == "gpu1"
    # Where two differ by case only, each has its own.
    site.agent("GPU1")
    site.registered("GPU1")
    assert site.state("deactivated", hostname="GPU1")["agent"]["hostname"] == "GPU1"
    assert site.slave("gpu1")["active"]
    assert "give agent_id" in site.state("active", hostname="Gpu1")["msg"]


def test_an_agent_that_is_not_connected_is_told_as_such_and_can_be_taken_out(site):
    site.agents[0].stop()
    until(lambda: site.slave("gpu1")["active"] is False)
    (told,) = site.run(mesos_state_info)["agents"]
    assert told["state"] == "disconnected"
    # Nobody has taken it out, so there is nothing to bring back.
    assert site.state("active")["changed"] is False
    done = site.state("deactivated")
    assert (done["action"], done["before"], done["agent"]["state"]) == ("deactivate", "disconnected", "deactivated")
    assert site.state("active")["agent"]["state"] == "disconnected"
    assert site.state("drained", timeout=0)["action"] == "drain"


@pytest.mark.parametrize("grace", [-1, 99999999999999])
def test_a_grace_that_the_master_would_turn_into_another_is_refused(site, grace):
    assert "grace of" in site.state("drained", grace_period=grace)["msg"]
    assert site.slave("gpu1")["active"]


def test_the_grace_of_a_drain_without_one_is_told_as_none(site):
    agent_id = site.slave("gpu1")["id"]
    site.ask("/api/v1", {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": {"value": agent_id}}})
    (told,) = site.run(mesos_state_info)["agents"]
    assert (told["state"] in ("draining", "drained"), told["grace_s"]) == (True, None)
