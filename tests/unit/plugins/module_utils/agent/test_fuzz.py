# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent reads of files and of the network, changed at random: it is refused in words, or can be used."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import agent as agent_module
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import node_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import orders as agent_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.agent import Agent
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.state import State
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import Place
from tests.unit.plugins.health_host import Host, address, uuid

MANY = 500
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["fatal", "ok", "\ud800", 10**400, "GPU-", -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in rows:
        found += paths(one, (*here, key))
    return found


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> bytes:
    """A document with some of its parts changed or gone, or some bytes."""
    found = copy.deepcopy(whole)
    for _turn in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(paths(found) or [("x",)]))
        try:
            place = found
            for key in where[:-1]:
                place = place[key]
            if draw(st.booleans()):
                place[where[-1]] = draw(JUNK)
            else:
                del place[where[-1]]
        except (LookupError, TypeError):
            continue
    text = json.dumps(found).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, max(0, len(text) - 1)))
        text = text[:at] + draw(st.binary(max_size=4)) + text[at + draw(st.integers(0, 4)) :]
    return text


def sick() -> Host:
    """A host with faults of all kinds, suspicions, and a boot behind it."""
    host = Host(gpus=2)
    host.look(3)
    host.reboot()
    host.look()
    host.xid(79)
    host.xid(31, gpu=1)
    host.xid(63, gpu=1)
    host.change("pcie", device=1, width=8)
    host.read("temperature_c", 99)
    host.look(2)
    return host


SICK = sick()
STATE = {"schema": 1, "history": SICK.history}


class Last:
    """A publisher that remembers what was published last."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result

    def last(self) -> dict[str, Any]:
        return self.result

    def publish(self, result: dict[str, Any]) -> None:
        self.result = json.loads(json.dumps(result))

    def close(self) -> None:
        pass


def an_agent(directory: str, last: dict[str, Any]) -> Agent:
    agent = Agent(agent_module.Settings(state_directory=directory), lambda: None, [Last(last)])
    # Not that of this machine, and so of the result.
    agent.boot_id = SICK.boot_id
    agent.history = agent._remembered()
    return agent


def goes_on_with(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "state.json")
        path.write_bytes(text)
        last = {"boot_id": SICK.boot_id, "health": SICK.report, "agent": {"state_saved": True}}
        agent = an_agent(directory, last)
        was_lost = agent.state.lost is not None or not path.exists()
        assert was_lost != path.exists()
        host = copy.deepcopy(SICK)
        host.uptime += 15.0
        agent._judge(host.snapshot(), [])
        host.uptime += 15.0
        agent._judge(host.snapshot(), [])
        if was_lost:
            told = {row["uuid"]: row["verdict"] for row in agent.report["devices"]}
            assert told[uuid(0)] == "fatal"
            assert agent.publishers[0].result["agent"]["problems"]
        # And what it keeps is a state that can be read.
        kept = State(str(path))
        assert kept.load() == json.loads(json.dumps(agent.history))
        assert kept.lost is None


def test_the_state_of_a_sick_host_is_one_that_can_be_gone_on_with(tmp_path):
    State(str(tmp_path / "state.json")).save(SICK.history)
    agent = an_agent(str(tmp_path), {})
    assert agent.history == SICK.history
    assert agent.problems == {}


@pytest.mark.parametrize("junk", [3, "x", [1], {"x": [None]}, None])
def test_what_the_rules_remember_is_no_state_where_they_could_not_read_it(tmp_path, junk):
    broken = copy.deepcopy(SICK.history)
    for one in broken["devices"].values():
        one["memory"] = {**dict.fromkeys(one["memory"], junk), "nvlinks_seen": junk}
    State(str(tmp_path / "state.json")).save(broken)
    last = {"boot_id": SICK.boot_id, "health": SICK.report, "agent": {"state_saved": True}}
    agent = an_agent(str(tmp_path), last)
    assert agent.state.lost
    host = copy.deepcopy(SICK)
    host.uptime += 15.0
    agent._judge(host.snapshot(), [])
    assert {row["uuid"]: row["verdict"] for row in agent.report["devices"]}[uuid(0)] == "fatal"
    assert State(str(tmp_path / "state.json")).load() == json.loads(json.dumps(agent.history))


@given(changed(STATE))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_a_state_changed_at_random(text):
    goes_on_with(text)


@pytest.mark.slow
@given(changed(STATE))
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
def test_a_state_changed_at_random_often(text):
    goes_on_with(text)


# --- the last result --------------------------------------------------------------------------------------------------

RESULT = {"boot_id": SICK.boot_id, "health": SICK.report, "agent": {"state_saved": False}}


def takes_over(text: bytes) -> None:
    try:
        last = bounded_json.parse_object(text)
    except bounded_json.Malformed:
        return
    with tempfile.TemporaryDirectory() as directory:
        agent = an_agent(directory, last)
        host = copy.deepcopy(SICK)
        host.uptime += 15.0
        agent._judge(host.snapshot(), [])
        assert State(agent.state.path).load() == json.loads(json.dumps(agent.history))


@given(changed(RESULT))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_a_last_result_changed_at_random(text):
    takes_over(text)


@pytest.mark.slow
@given(changed(RESULT))
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
def test_a_last_result_changed_at_random_often(text):
    takes_over(text)


# --- what the reconciler says -----------------------------------------------------------------------------------------

ORDER = {"id": "n1-1", "kind": "replace", "agent_id": "S0", "gpus": [uuid(0)], "reboot": False}
TOLD = {"order": ORDER, "clear": {"id": "r-1", "device": uuid(0)}}


def is_heard(told: bytes, cleared: bytes, answer: bytes) -> None:
    try:
        said = json.loads(told)
    except ValueError:
        return
    if not isinstance(said, dict):
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "cleared.json").write_bytes(cleared)
        (place / "answer.json").write_bytes(answer)
        inbox = agent_orders.Inbox(directory, str(place / "answer.json"))
        mended = inbox.take(said)
        inbox.remind()
        assert mended is None or (set(mended) == {"device"} and isinstance(mended["device"], (str, type(None))))
        # Once.
        assert inbox.take(said) is None
        assert agent_orders.Inbox(directory, str(place / "answer.json")).take(said) is None
        carried_out: list[list[str]] = []

        def run(argv: Any) -> tuple[int, str]:
            carried_out.append(list(argv))
            return 1, "no"

        where = Place(environment=str(place / "env"), work_dir=directory, start_s=0.0, unit="no-such-unit.service")
        here = node_orders.Settings(
            order=str(place / "order.json"), answer=str(place / "answer.json"), allowed=("reset",), place=where
        )
        node_orders.obey(here, [], run)
        for argv in carried_out:
            assert argv[:3] == ["nvidia-smi", "--gpu-reset", "-i"]


HEARD = (changed(TOLD), changed({"id": "r-0"}), changed({"id": "n1-0", "state": "done", "boot_id": "b"}))


@given(*HEARD)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_what_the_reconciler_says_changed_at_random(told, cleared, answer):
    is_heard(told, cleared, answer)


@pytest.mark.slow
@given(*HEARD)
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
def test_what_the_reconciler_says_changed_at_random_often(told, cleared, answer):
    is_heard(told, cleared, answer)


# --- the configuration ------------------------------------------------------------------------------------------------

CONFIG = {
    "settings": {"kernel_log": "/dev/kmsg", "interval_s": 15, "deadline_s": 20.0, "policy": {"checks": {}}},
    "textfile": "/var/lib/x.prom",
    "dcgm_names": "both",
    "metrics": {"address": "127.0.0.1", "port": 9400},
    "zookeeper": {"servers": ["zk1:2181"], "host": "n1", "credentials": None, "session_s": 10},
    "mesos": {"unit": "mesos-agent.service", "ca_file": None},
    "orders": ["replace"],
}


def is_followed_or_refused(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "agent.json")
        path.write_bytes(text)
        refused = ""
        try:
            config = agent_command.read_config(str(path))
        except agent_command.ConfigError as why:
            config, refused = {}, str(why)
        assert not refused or (refused.startswith(f"{path} ") and refused.endswith(agent_command.REMEDY))
        for key, kind in agent_command.SECTIONS.items():
            if config.get(key) is not None:
                kind(**config[key])


def test_the_configuration_of_the_role_is_followed(tmp_path):
    (tmp_path / "agent.json").write_text(json.dumps(CONFIG))
    assert agent_command.read_config(str(tmp_path / "agent.json")) == CONFIG


@given(changed(CONFIG))
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_a_configuration_changed_at_random(text):
    is_followed_or_refused(text)


@pytest.mark.slow
@given(changed(CONFIG))
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
def test_a_configuration_changed_at_random_often(text):
    is_followed_or_refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '"x"',
        "[" * 100000,
        '{"settings": []}',
        '{"settings": {"interval": 15}}',
        '{"settings": {"interval_s": "15"}}',
        '{"settings": {"interval_s": 0}}',
        '{"settings": {"interval_s": true}}',
        '{"zookeeper": {"host": "n1"}}',
        '{"result": "gpu.json"}',
        '{"more": 1}',
    ],
)
def test_a_configuration_that_cannot_be_followed_is_named_by_every_command(tmp_path, capsys, text):
    path = tmp_path / "agent.json"
    path.write_text(text)
    for command in ("status", "agent", "look", "order"):
        assert agent_command.main(["--config", str(path), command]) == 1
        assert capsys.readouterr().err.startswith(f"gpu-agent: {path} ")
    # Ansible gathers facts of every host, and one with a broken file is not to stop it.
    assert agent_command.main(["--config", str(path), "fact"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stale"] is True
    assert str(path) in told["reason"]


def test_a_policy_that_cannot_be_followed_is_named(tmp_path, capsys):
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({"settings": {"policy": {"checks": {"no_such": {}}}}}))
    assert agent_command.main(["--config", str(path), "agent"]) == 1
    assert "gpu_agent_policy" in capsys.readouterr().err


def test_a_gpu_that_was_there_and_is_lost_with_the_state_is_missed(tmp_path):
    """The last result tells which GPUs there were."""
    host = Host(gpus=2)
    host.look(3)
    agent = an_agent(str(tmp_path), {"boot_id": host.boot_id, "health": host.report})
    agent.boot_id = host.boot_id
    agent.history = agent._remembered()
    gone = host.snapshot()
    gone["pci"] = gone["pci"][:1]
    gone["devices"] = gone["devices"][:1]
    for _look in range(3):
        agent._judge(copy.deepcopy(gone), [])
    told = {row["pci_address"]: row["verdict"] for row in agent.report["devices"]}
    assert told == {address(0): "ok", address(1): "fatal"}
