# SPDX-License-Identifier: GPL-3.0-or-later
"""Which result of the agent is relied on, and what everybody says where none can be. The results are hand-made."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command as agent_command
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot
from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from tests.unit.plugins.fake_host import FakeHost
from tests.unit.plugins.health_host import Host, uuid

BOOT = "5c3a1f2e-8f6b-4c1d-9e2a-000000000001"
RESULT, CONFIG = "run/baremetal-gpu/gpu.json", "etc/baremetal-gpu/agent.json"


def report(verdict: str = "ok", gpus: tuple[str, ...] = ("ok", "ok")) -> dict[str, Any]:
    common: dict[str, Any] = {"since": 1.0, "reasons": [], "suspected": [], "checks": {}}
    devices = [
        {"uuid": uuid(n), "index": n, "pci_address": f"0000:{n + 2:02x}:00.0", "verdict": one, **common}
        for n, one in enumerate(gpus)
    ]
    return {"schema": 1, "verdict": verdict, **common, "devices": devices}


def result(**changes: Any) -> dict[str, Any]:
    now: dict[str, Any] = {"time": time.time(), "uptime": agent_result.uptime(), "interval_s": 15.0, "boot_id": BOOT}
    agent: dict[str, Any] = {"problems": [], "log_error": None}
    return {"schema": 1, **now, "agent": agent, "health": report(), **changes}


@pytest.fixture
def host(fake_host: FakeHost) -> FakeHost:
    fake_host.write("proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    fake_host.write(CONFIG, json.dumps({"settings": {}}))
    return fake_host


def leave(host: FakeHost, **changes: Any) -> None:
    host.write(RESULT, json.dumps(result(**changes)))


def test_a_result_of_this_boot_that_is_new_is_relied_on(host: FakeHost) -> None:
    leave(host)
    assert health_facts.of_agent(host.path)[0]["health"]["verdict"] == "ok"
    assert health_facts.of_agent(host.path)[1] is None


def test_a_host_that_no_agent_is_to_watch_has_none_to_miss(fake_host: FakeHost) -> None:
    assert health_facts.of_agent(fake_host.path) == (None, None)


# What depends on the time is made when the test begins.
UNUSABLE: dict[str, tuple[Any, str]] = {
    "another boot": ({"boot_id": "another"}, "another boot"),
    "no boot": ({"boot_id": None}, "another boot"),
    "too old": (lambda: {"time": time.time() - 3600}, "s old"),
    "too old by the clock that nobody sets": (lambda: {"uptime": agent_result.uptime() - 3600}, "s old"),
    "in the future": (lambda: {"time": time.time() + 3600}, "in the future"),
    "a minute in the future": (lambda: {"time": time.time() + 60}, "in the future"),
    "in the future of this boot": (lambda: {"uptime": agent_result.uptime() + 3600}, "in the future"),
    "no time": ({"time": None}, "when it was made"),
    "a text for a time": ({"time": "now"}, "when it was made"),
    "true for a time": ({"time": True}, "when it was made"),
    "not a number": ({"time": float("nan")}, "when it was made"),
    "never": ({"time": float("inf")}, "when it was made"),
    "an interval without end": ({"interval_s": float("inf")}, "how often"),
    "an interval of years": ({"interval_s": 1e12, "time": 1.0}, "how often"),
    "a number too large": ({"interval_s": 10**400}, "how often"),
    "no interval": ({"interval_s": None}, "how often"),
    "no report": ({"health": None}, "no readable report"),
    "half a report": ({"health": {"verdict": "ok"}}, "no readable report"),
    "a verdict that there is not": ({"health": {**report(), "verdict": "fine"}}, "no readable report"),
    "a list for a GPU": ({"health": {**report(), "devices": [[]]}}, "no readable report"),
    "a text for reasons": ({"health": {**report(), "reasons": "none"}}, "no readable report"),
    "a number among reasons": ({"health": {**report(), "reasons": [1]}}, "no readable report"),
}


@pytest.mark.parametrize(("changes", "why"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_result_that_is_not_relied_on_is_told_with_the_reason(host: FakeHost, changes: Any, why: str) -> None:
    leave(host, **(changes() if callable(changes) else changes))
    found, error = health_facts.of_agent(host.path)
    assert found is None
    assert error is not None
    assert why in error
    assert error.isprintable()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "\x00" * 100, "[" * 100000, '{"time": ' + "1" * 5000 + "}", "\udcff"]
)
def test_what_is_no_result_is_told(host: FakeHost, content: str) -> None:
    path = Path(host.path) / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    found, error = health_facts.of_agent(host.path)
    assert found is None
    assert error


def test_no_result_at_all_is_told(host: FakeHost) -> None:
    assert "there is none at /run/baremetal-gpu/gpu.json" in (health_facts.of_agent(host.path)[1] or "")


def test_a_pipe_in_its_place_hangs_nobody(host: FakeHost) -> None:
    path = Path(host.path) / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    assert "not a plain file" in (health_facts.of_agent(host.path)[1] or "")


@pytest.mark.parametrize("config", ["{", "[]", '{"result": 7}', '{"result": "gpu.json"}'])
def test_a_configuration_that_says_nothing_is_told(host: FakeHost, config: str) -> None:
    leave(host)
    host.write(CONFIG, config)
    assert CONFIG in (health_facts.of_agent(host.path)[1] or "")


def test_a_boot_that_cannot_be_told_is_none_that_agrees(host: FakeHost) -> None:
    leave(host, boot_id=None)
    (Path(host.path) / "proc/sys/kernel/random/boot_id").unlink()
    assert "another boot" in (health_facts.of_agent(host.path)[1] or "")


# --- which boot it is -------------------------------------------------------------------------------------------------


def test_the_boot_is_what_the_unit_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd writes it without hyphens, and the kernel with them."""
    monkeypatch.setenv(boot.VARIABLE, BOOT.replace("-", ""))
    assert boot.boot_id() == BOOT
    monkeypatch.setenv(boot.VARIABLE, "")
    assert boot.boot_id() != BOOT


def test_another_tree_has_a_boot_of_its_own(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(boot.VARIABLE, "0" * 32)
    assert boot.boot_id(host.path) == BOOT


def test_the_agents_unit_tells_it() -> None:
    unit = (Path(__file__).parents[5] / "roles/gpu_agent/templates/baremetal-gpu-agent.service.j2").read_text()
    assert f"\n{boot.UNIT_LINE}\n" in unit


# --- what the site says -----------------------------------------------------------------------------------------------


def gathered(host: FakeHost, gpus: int = 1) -> dict[str, Any]:
    """The facts of a look that finds all well in the GPUs that are there."""
    shown = Host(gpus=gpus)
    for row in shown.pci:
        host.pci(row["address"], "20b0", driver="nvidia")
    look = shown.snapshot()
    devices = [gpu_facts.device_facts(row, details=False) for row in look["devices"]]
    answer = {"error": None, "cuda": "12.4", "devices": devices, "topology": None, "look": look}
    return gpu_facts.gather(gpu_facts.COMPACT, root=host.path, probe=lambda *_asked: answer, verdicts=gpu_verdicts)


def test_a_look_in_place_of_the_agent_finds_nothing_well(host: FakeHost) -> None:
    leave(host, boot_id="another", health=report("fatal", ("ok", "fatal")))
    health = gathered(host)["health"]
    assert (health["source"], health["verdict"]) == ("look", "unknown")
    assert [row["verdict"] for row in health["devices"]] == ["unknown"]
    assert "another boot" in health["agent_error"]


def test_a_look_without_an_agent_may_find_all_well(fake_host: FakeHost) -> None:
    health = gathered(fake_host)["health"]
    assert (health["source"], health["verdict"], health["agent_error"]) == ("look", "ok", None)


def test_a_gpu_that_has_vanished_is_fatal_everywhere(host: FakeHost) -> None:
    """The bus has one GPU less, and all that is there is well: only the agent knows."""
    shown = Host(gpus=2)
    shown.look()
    shown.pci, shown.devices = shown.pci[:1], shown.devices[:1]
    shown.look()
    leave(host, health=shown.report)
    facts = gathered(host)
    assert facts["health"]["verdict"] == "fatal"
    assert fleet.UNHEALTHY in fleet.groups(facts)
    feed = allocatable.feed(facts, facts["health"], keep=[uuid(0), uuid(1)])
    assert [row["uuid"] for row in feed["gpus"]] == [uuid(0)]


def test_the_only_gpu_that_has_vanished_leaves_no_host_without_gpus(host: FakeHost) -> None:
    (Path(host.path) / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    facts = gpu_facts.gather(gpu_facts.COMPACT, root=host.path, verdicts=gpu_verdicts)
    assert facts["present"] is False
    assert facts["health"]["verdict"] == "unknown"
    assert "there is none at" in facts["health"]["agent_error"]


def test_what_hinders_the_agent_is_told(host: FakeHost) -> None:
    problems = ["/dev/kmsg cannot be read (x), so Xids come from NVML only", "state: \x1b[2J"]
    leave(host, agent={"problems": problems, "log_error": problems[0]})
    health = gathered(host)["health"]
    assert health["log_error"] == problems[0]
    assert len(health["problems"]) == 2
    assert all(text.isprintable() for text in health["problems"])


def test_a_scheduler_keeps_what_it_has_and_gets_nothing_new_while_the_agent_is_silent(host: FakeHost) -> None:
    facts = gathered(host, gpus=2)
    feed = allocatable.feed(facts, facts["health"], keep=[uuid(1)])
    assert [row["uuid"] for row in feed["gpus"]] == [uuid(1)]


# --- on the host itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"time": 3600.0}, {"time": -3600.0}, {"boot_id": "another"}])
def test_gpuops_on_the_host_says_so_too(
    host: FakeHost, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    facts = {"schema": 1, "present": True, "health": {**report(), "source": "agent", "agent_error": None}}
    late = {"time": time.time() + changes["time"]} if "time" in changes else {}
    leave(host, facts=facts, **{**changes, **late})
    config = {"result": f"{host.path}/{RESULT}", "settings": {"root": host.path}}
    status = agent_command.status(config, as_json=False)
    said = capsys.readouterr().out
    assert (status == 0) is not bool(changes)
    assert ("cannot be relied on" in said) is bool(changes)
    agent_command.fact(config)
    fact = json.loads(capsys.readouterr().out)
    assert fact["stale"] is bool(changes)
    assert fact["health"]["verdict"] == ("unknown" if changes else "ok")
    assert bool(fact["health"]["agent_error"]) is bool(changes)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "leaves",
    [
        _pipe,
        Path.mkdir,
        lambda path: path.write_text(""),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text(json.dumps(result(health=None))),
        lambda path: path.write_text(json.dumps(result(health={"verdict": "ok"}))),
        lambda path: path.write_text(json.dumps(result(agent=None))),
        lambda path: path.write_text(json.dumps(result(facts=[]))),
    ],
)
def test_what_is_no_result_neither_hangs_nor_ends_gpuops_on_the_host(tmp_path: Path, capsys, leaves: Any) -> None:
    path, config = tmp_path / "gpu.json", tmp_path / "agent.json"
    config.write_text(json.dumps({"result": str(path)}))
    leaves(path)
    assert agent_command.main(["--config", str(config), "status"]) in (3, 4)
    capsys.readouterr()
    assert agent_command.main(["--config", str(config), "fact"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stale"] is True
    assert told["present"] is None
