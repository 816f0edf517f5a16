# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command `gpu-agent` on a node: the agent, and what an operator asks it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import dcgm, metrics_server, node_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import orders as agent_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import slurm as agent_slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import zookeeper as agent_zookeeper
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.agent import Agent, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.publish import ResultFile, Textfile
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result, policy, verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.health import text as health_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace

NO_AGENT = 4
LOOK_AT_AGENT = "See `systemctl status baremetal-gpu-agent`."


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    sys.stderr.write(f"gpu-agent: {text}\n")


class ConfigError(ValueError):
    """The agent's configuration cannot be followed; the message names the file, the key and the remedy."""


def read_config(path: str) -> dict[str, Any]:
    """The agent's configuration; what it leaves out has a default. Raises ConfigError."""
    try:
        text = host_files.read(path, CONFIG_AT_MOST)
    except FileNotFoundError:
        return {}
    except OSError as failure:
        raise ConfigError(f"{path} cannot be read: {failure.strerror}. {REMEDY}") from None
    try:
        config = bounded_json.parse(text)
    except bounded_json.Malformed as failure:
        raise ConfigError(f"{path} is not valid JSON: {failure}. {REMEDY}") from None
    try:
        _check(config)
    except bounded_json.Malformed as failure:
        raise ConfigError(f"{path} cannot be followed: {failure}. {REMEDY}") from None
    return dict(config)


def _check(config: Any) -> None:
    if not isinstance(config, dict):
        raise bounded_json.Malformed("it is not an object")
    for key in config:
        if key not in CONFIG:
            raise bounded_json.Malformed(f"it has {key!r}, which is not a setting")
    for key, right in CONFIG.items():
        if key in config and not right(config[key]):
            raise bounded_json.Malformed(f"{key} is {one_line(config[key], 60)!r}")
    for key, kind in SECTIONS.items():
        if config.get(key) is not None:
            _check_section(config[key], kind, key)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


CONFIG_AT_MOST = 1 << 20
REMEDY = "Run `gpuops up --tags agent` where the inventory is, which writes it."
SECTIONS: dict[str, type] = {
    "settings": Settings,
    "zookeeper": agent_zookeeper.Settings,
    "slurm": agent_slurm.Settings,
    "mesos": mesos_replace.Place,
    "metrics": metrics_server.Settings,
}
CONFIG: dict[str, Callable[[Any], bool]] = {
    "result": lambda value: _is_text(value) and value.startswith("/"),
    "textfile": lambda value: value is None or _is_text(value),
    "dcgm_names": lambda value: _is_text(value) and value in dcgm.CHOICES,
    "orders": _are_texts,
    **{key: lambda value: value is None or isinstance(value, dict) for key in SECTIONS},
}
# What a field of such a section may be, by its annotation. All times are above nothing.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 16,
    "float": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9,
    "list[str]": _are_texts,
    "dict[str, Any]": lambda value: isinstance(value, dict),
}


def _check_section(given: dict[str, Any], kind: type, where: str) -> None:
    fields = {row.name: row for row in dataclasses.fields(kind)}
    for name, value in given.items():
        if name not in fields:
            raise bounded_json.Malformed(f"{where} has {name!r}, which is not a setting")
        right = _KINDS.get(str(fields[name].type))
        if right is not None and not right(value):
            raise bounded_json.Malformed(f"{where}.{name} is {one_line(value, 60)!r}")
    for name, row in fields.items():
        if name not in given and row.default is dataclasses.MISSING and row.default_factory is dataclasses.MISSING:
            raise bounded_json.Malformed(f"{where} has no {name}")


def agent(config: dict[str, Any]) -> int:
    settings = Settings(**config.get("settings", {}))
    try:
        policy.merge(settings.policy)
    except policy.PolicyError as failure:
        complain(f"the policy of the configuration cannot be followed: {failure}. To do: correct gpu_agent_policy")
        return 1
    publishers: list[Any] = [ResultFile(config.get("result", agent_result.RESULT))]
    if config.get("textfile"):
        publishers.append(Textfile(config["textfile"], config.get("dcgm_names", "none")))
    if config.get("metrics"):
        where_to_listen = metrics_server.Settings(**config["metrics"])
        publishers.append(metrics_server.MetricsServer(where_to_listen, config.get("dcgm_names", "none")))
    place = mesos_replace.Place(**config.get("mesos", {}))
    describe = functools.partial(agent_orders.describe, place=place, answer=settings.answer)
    if config.get("zookeeper"):
        where = agent_zookeeper.Settings(**config["zookeeper"])
        publishers.append(agent_zookeeper.ZooKeeper(where, lambda result: describe(where.host, result=result)))
    if config.get("slurm"):
        heads = agent_slurm.Settings(**config["slurm"])
        publishers.append(agent_slurm.SlurmController(heads, lambda result: describe(heads.host, result=result)))
    # Loaded before the child is forked, which then shares it.
    binding = nvml.load_binding(None)
    Agent(settings, lambda: snapshot.Reader(binding, settings.root), publishers).run()
    return 0


def ask_agent(config: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    path = config.get("settings", {}).get("socket", Settings.socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.settimeout(10.0)
        try:
            to.connect(path)
            to.sendall(json.dumps(request).encode("utf-8"))
            with to.makefile(encoding="utf-8") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        except (OSError, ValueError, RecursionError) as failure:
            complain(
                f"the agent does not answer at {path} ({failure}). Is it running? "
                "See `systemctl status baremetal-gpu-agent`, and ask as root."
            )
            raise SystemExit(NO_AGENT) from failure
    if "error" in answer:
        complain(f"the agent refused: {answer['error']}")
        raise SystemExit(2)
    return answer


def read_result(config: dict[str, Any]) -> dict[str, Any]:
    """The agent's last result, with its age in seconds, whether it is stale, and why. Raises OSError and Unusable."""
    path = config.get("result", agent_result.RESULT)
    result = agent_result.load(path)
    if not agent_result.is_report(result.get("health")):
        raise agent_result.Unusable(f"{path} has no readable report")
    result["age_s"] = round(max(0.0, agent_result.age_s(result)), 1)
    result["stale_why"] = None
    try:
        agent_result.check(result, config.get("settings", {}).get("root", Settings.root))
    except agent_result.Unusable as failure:
        result["stale_why"] = str(failure)
    result["stale"] = result["stale_why"] is not None
    return result


def status(config: dict[str, Any], as_json: bool) -> int:
    try:
        result = read_result(config)
    except (OSError, ValueError) as failure:
        say(f"gpu-agent: there is no result of the agent ({failure}). {LOOK_AT_AGENT}")
        return NO_AGENT
    report = result["health"]
    try:
        table = health_text.table(report)
    except MISSHAPEN as failure:
        say(f"gpu-agent: there is no result that can be shown ({one_line(failure)}). {LOOK_AT_AGENT}")
        return NO_AGENT
    if as_json:
        say(json.dumps(result))
    else:
        age = f"{result['age_s']:g} s ago"
        if result["stale"]:
            age += f", and cannot be relied on: {result['stale_why']}. Is the agent running?"
        say(table)
        say(f"Seen {age}.")
        for problem in health_facts.by_agent(result, report, details=False)["problems"]:
            say(f"The agent says: {problem}")
    return verdict.NUMBERS[verdict.UNKNOWN] if result["stale"] else verdict.NUMBERS[report["verdict"]]


def probe(config: dict[str, Any], as_json: bool) -> int:
    """Look once, here and now, whether or not an agent runs. What needs time or a history is not judged."""
    settings = config.get("settings", {})
    found = health_probe.probe(settings.get("policy"), log=settings.get("kernel_log", Settings.kernel_log))
    report = found["health"]
    say(json.dumps({**report, "log_error": found["log_error"]}) if as_json else health_text.table(report))
    if found["log_error"] and not as_json:
        complain(found["log_error"])
    return verdict.NUMBERS[report["verdict"]]


def fact(config: dict[str, Any]) -> int:
    """For /etc/ansible/facts.d: the facts of the agent's last look. Without any it says so, and does not fail."""
    try:
        result = read_result(config)
        facts = {**result["facts"], "age_s": result["age_s"], "stale": result["stale"]}
        if result["stale"]:
            why = f"the report of the agent on the host cannot be used: {result['stale_why']}"
            facts["health"] = {**health_facts.at_best_unknown(facts["health"]), "agent_error": why}
    except (OSError, *MISSHAPEN) as failure:
        why = f"the agent has left no result: {one_line(failure)}"
        facts = {"schema": 1, "present": None, "reason": why, "stale": True}
    say(json.dumps(facts))
    return 0


def clear(config: dict[str, Any], device: str | None, code: str | None) -> int:
    cleared = ask_agent(config, {"do": "clear", "device": device, "code": code})["cleared"]
    for row in cleared:
        say(f"cleared {row['code']} of {row.get('device') or 'the node'}")
    if not cleared:
        say("There was nothing to clear; `gpu-agent status` shows what there is.")
    return 0 if cleared else 1


def order(config: dict[str, Any]) -> int:
    """Carry out what the reconciler has ordered, until nothing is left to be done."""
    place = mesos_replace.Place(**config.get("mesos", {}))
    agent_settings = Settings(**config.get("settings", {}))
    settings = node_orders.Settings(
        order=os.path.join(agent_settings.state_directory, agent_orders.ORDER),
        answer=agent_settings.answer,
        allowed=tuple(config.get("orders", ())),
        place=place,
        root=agent_settings.root,
    )
    done: dict[str, Any] = {}
    while True:
        try:
            devices = read_result(config)["facts"]["devices"]
        except (OSError, *MISSHAPEN):
            devices = []
        try:
            answer = node_orders.obey(settings, devices)
        except OSError as failure:
            # The agent asks for it again.
            complain(f"the order waits: {failure}")
            return 1
        say(json.dumps(answer))
        if answer == done or not answer or answer["state"] == "running":
            break
        done = answer
    ask_agent(config, {"do": "publish"})
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-agent", description="The health of this host's NVIDIA GPUs.")
    parser.add_argument(
        "--config", default=agent_result.CONFIG, help="configuration of the agent (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("status", f"show the agent's last verdict; the exit code is {verdict.IN_WORDS}, {NO_AGENT} no agent"),
        ("probe", f"look at the GPUs once, without the agent; the exit code is {verdict.IN_WORDS}"),
    ):
        commands.add_parser(name, help=text, description=text).add_argument(
            "--json", action="store_true", help="print JSON instead of a table"
        )
    text = "clear faults that wait for an operator, after the cause was repaired"
    one = commands.add_parser("clear", help=text, description=text)
    one.add_argument("device", nargs="?", help="UUID or PCI address; by default the faults of the node and every GPU")
    one.add_argument("code", nargs="?", help="code of the fault; by default all")
    commands.add_parser("look", help="have the agent look at once, also at what it looks at once an hour")
    commands.add_parser("agent", help="run the agent; systemd does this")
    commands.add_parser("order", help="carry out the reconciler's order that lies here; systemd does this, as root")
    commands.add_parser("fact", help="print the facts of the last look, for Ansible")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    asked = arguments().parse_args(words)
    try:
        config = read_config(asked.config)
    except ConfigError as failure:
        if asked.command == "fact":
            say(json.dumps({"schema": 1, "present": None, "reason": str(failure), "stale": True}))
            return 0
        complain(str(failure))
        return 1
    if asked.command == "agent":
        return agent(config)
    if asked.command == "status":
        return status(config, asked.json)
    if asked.command == "probe":
        return probe(config, asked.json)
    if asked.command == "fact":
        return fact(config)
    if asked.command == "clear":
        return clear(config, asked.device, asked.code)
    if asked.command == "order":
        return order(config)
    ask_agent(config, {"do": "look"})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
