# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node publishes is read as text of somebody else's making: whole and of its shape, or not at all."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import history as health_history
from ansible_collections.baremetal.gpu.plugins.module_utils.health import published as published_verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import fleet as reconcile_fleet
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows as reconciler_rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Node, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan as reconcile
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.backend import MesosBackend
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from tests.unit.plugins.module_utils.reconciler.mesos.mesos_world import World

ACT = Policy(mode="act")


def verdict() -> dict[str, Any]:
    one = World(2, ACT)
    one.fault("GPU-1")
    told = one.node().verdict
    assert told is not None
    reasons = [{"code": "nvml_hang", "verdict": "degraded", "action": "none", "text": "it hung"}]
    mesos = {"agent_id": "S0", "unit": "active", "executors": 0, "unread": "/x: closed"}
    answer = {"id": "n1-1-5", "state": "done", "error": None, "end_boot_id": "1"}
    return {**told, "reasons": reasons, "order": answer, "mesos": mesos}


def why_not(told: Any) -> str:
    found = published_verdict.read("n1", told if isinstance(told, bytes) else json.dumps(told).encode())
    return found.why if isinstance(found, Unusable) else ""


def changed(*path: Any, value: Any) -> dict[str, Any]:
    told = verdict()
    place: Any = told
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return told


def test_what_the_agent_publishes_is_taken_as_it_is_and_what_is_not_known_is_left_out():
    told = verdict()
    assert published_verdict.read("n1", json.dumps({**told, "news": [1]}).encode()) == told


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not an object"),
        (b'{"schema": 1, "x": ' + b"[" * 60 + b"]" * 60 + b"}", "nested too deep"),
        (b'{"schema": 1, "x": ' + b'{"a":' * 200000, "nested too deep|bytes"),
        (b'{"schema": 1, "x": "' + b"x" * 600000 + b'"}', "bytes"),
        (b'{"schema": 1, "time": 1e999}', "not finite"),
        (b'{"schema": 1, "time": NaN}', "not a number"),
        (b'{"schema": 1, "time": ' + b"9" * 5000 + b"}", "5000 digits"),
        (changed("schema", value=2), "schema 2"),
        (changed("schema", value=True), "schema"),
        (changed("host", value="n2"), "it belongs to n2"),
        (changed("host", value="../fleet"), "not the name of a host"),
        (changed("time", value="yesterday"), "it.time is 'yesterday'"),
        (changed("devices", value=None), "it.devices is null"),
        (changed("devices", value=[3]), r"it\.devices\[0\] is 3"),
        (changed("devices", 0, "pci_address", value=[1]), "pci_address is a list"),
        (changed("devices", 0, "pci_address", value="0000:3b:00.0\n"), "pci_address"),
        (changed("devices", 0, "uuid", value={"a": 1}), "uuid is an object"),
        (changed("devices", 0, "uuid", value="GPU-0,GPU-1"), "not a UUID"),
        (changed("devices", 0, "uuid", value="GPU-1"), "devices has GPU-1 more than once"),
        (changed("devices", 0, "index", value=True), "index"),
        (changed("devices", 0, "verdict", value=["ok"]), "verdict is a list"),
        (changed("devices", 1, "reasons", 0, "code", value="\x1b[2J"), "not a code"),
        (changed("devices", 1, "reasons", value=[{}]), "has no code, verdict"),
        (changed("reasons", value=[{"code": "x", "verdict": "ok"}] * 300), "a list of 256 at most"),
        (changed("listed", value="GPU-0"), "listed"),
        (changed("listed", value=["GPU-0", "GPU-0"]), "listed has GPU-0 more than once"),
        (changed("held_back", value=[1]), "held_back"),
        (changed("order", value="done"), "order"),
        (changed("order", "state", value="won"), "order.state"),
        (changed("mesos", "executors", value=-1), "executors"),
        (changed("mesos", "agent_id", value="../x"), "agent_id"),
    ],
)
def test_what_has_not_its_shape_is_not_used_and_is_named(told: Any, words: str):
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(why_not(told))


def test_texts_of_a_host_are_printable_and_bounded():
    told = published_verdict.checked("n1", changed("order", "error", value="\x1b]0;x\x07\n" + "y" * 9000))
    assert told["order"]["error"].isprintable()
    assert len(told["order"]["error"]) <= 500


def test_a_verdict_from_the_future_is_not_used_and_a_clock_that_is_a_little_ahead_is_no_matter():
    assert published_verdict.in_the_future({"time": 1000.0}, 900.0) == ""
    assert "300 s" not in published_verdict.in_the_future({"time": 5000.0}, 900.0)
    assert "4100 s in the future" in published_verdict.in_the_future({"time": 5000.0}, 900.0)


@pytest.mark.parametrize(
    "data",
    [
        b'{"kind": "clear"}',
        b'{"kind": "clear", "host": "../n1"}',
        b'{"kind": "clear", "host": "n1", "uuid": [1]}',
        b'{"kind": "drop"}',
        b"[]",
    ],
)
def test_requests_are_read_as_strictly(data: bytes):
    with pytest.raises(Malformed):
        reconciler_rows.request(data)


def test_what_the_reconciler_wrote_is_read_back_in_all_stages():
    one = World(3, Policy(mode="act", repairs=("reboot",)))
    one.fault("GPU-1")
    for _turn in range(40):
        one.settle(turns=1)
        row = {"memory": one.memory, "last": [{"time": 1.0, "what": "begin", "kind": "drain"}], "clear": None}
        assert reconciler_rows.node(reconcile, "n1", json.dumps(row).encode()) == row


# --- everything else that may come ---


JUNK: list[Any] = [
    None, True, -1, 0, 1e308, 10**20, "", "x", "\x1b[31m", "\ud800", "GPU-0", "n1", "fatal", "drain", [], [[]], {},
    {"a": 1}, [1, "x", None], "x" * 1000, {"id": {}}, [{"code": "x", "verdict": "fatal"}],
]  # fmt: skip


def mutated(told: Any, chance: random.Random) -> Any:
    """One place of a document is another value, is gone, or is there twice."""
    told = copy.deepcopy(told)
    for _time in range(chance.randint(1, 3)):
        place, key = {"": told}, ""
        while True:
            value = place[key]
            keys = (
                list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
            )
            if not keys or chance.random() < 0.15:
                break
            place, key = value, chance.choice(keys)
        if place is not told and key == "":
            continue
        what = chance.random()
        if what < 0.7:
            place[key] = copy.deepcopy(chance.choice(JUNK))
        elif what < 0.85 and isinstance(place, dict):
            del place[key]
        elif isinstance(place, list):
            place.append(copy.deepcopy(place[key]))
    return told


class Nowhere:
    """Where the driver writes and asks, in which nothing happens."""

    def __init__(self, agents: list[dict[str, Any]]) -> None:
        self.state = {"slaves": agents, "frameworks": []}
        self.served: list[str] = []

    def get(self, _path: str) -> Any:
        return self.state

    def schedule(self) -> dict[str, Any]:
        return {}

    def deactivate(self, agent_id: str) -> None:
        self.served.append(agent_id)
        for row in self.state["slaves"]:
            if isinstance(row, dict) and row.get("id") == agent_id:
                row["deactivated"] = True

    def __getattr__(self, _name: str) -> Any:
        return lambda *_words: {}

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        return {"time": 0.0, "host": host, "what": what, **more}


def serve(published: dict[str, Any], rows: dict[str, Any], agents: list[dict[str, Any]]) -> list[str]:
    """The agents that were taken out in one turn with these hosts, and n9, which has a fatal GPU."""
    sick = {**verdict(), "host": "n9"}
    whole = {"id": "S9", "hostname": "n9", "pid": "slave(1)@10.0.0.9:5051", "active": True, "resources": {"gpus": 2.0}}
    world: Any = Nowhere([*agents, whole])
    now = World(2, ACT).now
    driver = Driver(world, MesosBackend(world), ACT, world, {}, rows, clock=lambda: now)
    driver.verdicts = {**published, "n9": sick}
    driver.turn()
    assert driver.held == ""
    return list(world.served)


def fuzz(seed: int) -> None:
    chance = random.Random(seed)
    told = mutated(verdict(), chance)
    data = json.dumps(told).encode()
    if chance.random() < 0.2:
        place = chance.randrange(len(data))
        data = data[:place] + bytes([chance.randrange(256)]) + data[place + chance.randrange(2) :]
    published = published_verdict.read("n1", data)
    agent = {"id": "S0", "hostname": "n1", "pid": "slave(1)@10.0.0.1:5051", "active": True, "resources": {"gpus": 2.0}}
    agents = [mutated(agent, chance)] if chance.random() < 0.3 else [agent]
    one = World(2, ACT)
    one.fault("GPU-1")
    one.settle(turns=chance.randrange(6))
    row = {"memory": one.memory, "last": [], "clear": None}
    try:
        rows = {"n1": reconciler_rows.node(reconcile, "n1", json.dumps(mutated(row, chance)).encode())}
    except Malformed:
        rows = {}
    assert "S9" in serve({"n1": published}, {host: row for host, row in rows.items() if "memory" in row}, agents), seed


@pytest.mark.parametrize("part", range(4))
def test_whatever_a_host_publishes_and_whatever_is_in_its_journal_the_next_host_is_served(part: int):
    for seed in range(part * 100, part * 100 + 100):
        fuzz(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_same_for_longer(part: int):
    for seed in range(10_000 + part * 2000, 10_000 + part * 2000 + 2000):
        fuzz(seed)


FACTS: dict[str, Any] = {
    "schema": fleet.SCHEMA,
    "present": True,
    "pci": [{"kind": "gpu", "model": "A100 80GB", "architecture": "ampere"}],
    "driver": {"branch": "580", "cuda": "13.0", "nvml_error": None},
    "devices": [
        {
            "index": 0,
            "uuid": "GPU-0",
            "slug": "a100",
            "mig": {"enabled": True},
            "nvlinks": [{"active": True}],
            "error": {"name": "lost"},
        }
    ],
    "health": {"verdict": "fatal", "devices": [{"uuid": "GPU-0", "verdict": "fatal"}]},
}


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_whatever_the_facts_of_a_host_are_they_are_read_or_refused(number: int):
    for seed in range(number):
        chance = random.Random(seed)
        host = mutated({"gpu": mutated(FACTS, chance), "ansible_local": {"gpu": mutated(FACTS, chance)}}, chance)
        try:
            facts = fleet.facts_of(host)
            assert all(isinstance(name, str) and name for name in fleet.groups(facts)), seed
            fleet.gpus(facts)
        except fleet.BrokenFacts:
            continue


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_whatever_stands_where_an_order_is_read_it_is_an_order_or_refused(number: int):
    order = {"id": "n1-1", "kind": "replace", "agent_id": "S0", "gpus": ["GPU-0"], "at": 1.0, "reboot": ["GPU-1"]}
    told = {"order": order, "clear": {"id": "r-1", "device": "GPU-0"}}
    for seed in range(number):
        try:
            found = published_verdict.orders(json.dumps(mutated(told, random.Random(seed))).encode())
        except Malformed:
            continue
        taken = found.get("order")
        assert taken is None or (isinstance(taken["id"], str) and all(isinstance(uuid, str) for uuid in taken["gpus"]))


def test_a_host_of_which_nothing_can_be_made_after_all_is_named_and_the_others_are_served(monkeypatch):
    observe = reconcile.observe

    def fails(memory: Any, node: Node, *more: Any) -> Any:
        if node.host == "n1" and node.verdict is not None:
            raise RecursionError("what nobody has thought of")
        return observe(memory, node, *more)

    monkeypatch.setattr(reconcile, "observe", fails)
    agent = {"id": "S0", "hostname": "n1", "pid": "slave(1)@10.0.0.1:5051", "active": True, "resources": {"gpus": 2.0}}
    assert serve({"n1": verdict()}, {}, [agent]) == ["S9"]


def test_agents_of_mesos_that_nobody_can_be_told_of_are_passed_over():
    rows = [{"id": "S1"}, {"id": "S2", "hostname": "../n1", "resources": {}}, None, {"id": "S3", "hostname": ["n1"]}]
    assert serve({}, {}, rows) == ["S9"]  # type: ignore[arg-type]


def test_the_breakers_memory_is_made_anew_from_the_hosts_where_it_is_lost():
    one = World(2, ACT)
    one.fault("GPU-1")
    one.settle(turns=1)
    one.memory["fenced"] = {"at": 5.0, "agent_id": "S0", "why": "x"}
    assert reconcile_fleet.rebuilt({"n1": one.memory})["fences"] == [[5.0, "n1"]]
    for data in (b'{"fences": 3}', b'{"fences": [["a", "n1"]]}', b'{"permitted": [1]}', b"null"):
        with pytest.raises(Malformed):
            reconciler_rows.fleet(data)


def test_a_number_of_agents_that_is_no_number_is_refused():
    with pytest.raises(Malformed):
        json_object(b'{"gpus": Infinity}')
    assert mesos_operator.agent_of({"id": "S0", "hostname": "n1"})["resources"] == {}


def test_all_gpus_that_an_agent_remembers_may_be_told_of():
    row = {"pci_address": None, "index": None, "verdict": "ok", "reasons": []}
    devices = [{**row, "uuid": f"GPU-{number}"} for number in range(health_history.DEVICES_MOST)]
    told = {"schema": 1, "host": "n1", "reasons": [], "devices": devices}
    assert published_verdict.read("n1", json.dumps(told).encode()) == told
