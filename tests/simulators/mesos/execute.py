# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for mesos-execute: one command as a task, and what became of it.

It knows the flags below and no others of the real one. The status is 0 for TASK_FINISHED and 1 for any other end.
"""

from __future__ import annotations

import json
import queue
import sys
import time
import urllib.error
import uuid
from typing import Any, NoReturn

import ensemble
import grammar
import web

FLAGS = {
    "master": "",
    "name": "",
    "command": "",
    "resources": "cpus:1;mem:128",
    "framework_capabilities": "",
    "principal": "",
    "secret": "",
    "role": "*",
}


def usage(text: str) -> NoReturn:
    grammar.die(f"{text}\n\nUsage: mesos-execute [options]")


def flags(arguments: list[str]) -> dict[str, str]:
    found = dict(FLAGS)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or name[2:] not in FLAGS:
            usage(f"Failed to load unknown flag '{name[2:]}'")
        if not equals:
            usage(f"Failed to load non-boolean flag '{name[2:]}': Missing value")
        found[name[2:]] = grammar.fetched(name[2:], value)
    for name in ("master", "name", "command"):
        if not found[name]:
            usage(f"Missing required option: --{name}")
    return found


def leader(master: str) -> str:
    """host:port of who leads now."""
    if not ensemble.names_zookeeper(master):
        return master.strip().rpartition("@")[2]
    found: queue.Queue[str] = queue.Queue()

    def changed(members: ensemble.Members | None, _: str | None) -> None:
        if members:
            address = json.loads(next(iter(members.values())))["address"]
            found.put(f"{address['ip']}:{address['port']}")

    where = ensemble.url(master, "Failed to create a master detector")
    ensemble.Group(where, "json.info_", 10.0, changed, lambda why: grammar.end(f"Failed to detect: {why}")).start()
    return found.get()


class Client:
    def __init__(self, given: dict[str, str]) -> None:
        self.master, self.given = leader(given["master"]), given
        principal = given["principal"]
        told = {
            "name": "mesos-execute instance",
            "role": given["role"],
            "capabilities": [name for name in given["framework_capabilities"].split(",") if name],
            "failover_timeout": 0.0,
            "credential": {"principal": principal, "secret": given["secret"].rstrip()} if principal else None,
        }
        while principal and not web.sasl():
            print("SASL(-4): no mechanism available: No worthy mechs found", file=sys.stderr, flush=True)
            time.sleep(0.5)
        try:
            self.framework = self.call("framework", told)["id"]
        except urllib.error.HTTPError as why:
            grammar.die(f"Received an ERROR event: {why.read().decode()}")
        print(f"Subscribed with ID {self.framework}", flush=True)

    framework = ""

    def call(self, what: str, body: dict[str, Any]) -> Any:
        return web.call(f"http://{self.master}/stand-in/{what}", {"framework_id": self.framework, **body})

    def submit(self) -> str:
        """Waits for an offer that is large enough, and gives the task's id."""
        needs = {name: value for name, value in grammar.resources(self.given["resources"]).items() if name != "ports"}
        task_id = f"{self.given['name']}-{uuid.uuid4().hex[:8]}"
        while True:
            for offer in self.call("offers", {}):
                if all(offer["resources"].get(name, 0.0) >= value for name, value in needs.items()):
                    task = {"id": task_id, "name": self.given["name"], "cmd": self.given["command"], "resources": needs}
                    self.call("launch", {"agent_id": offer["agent_id"], "task": task})
                    print(f"Submitted task '{self.given['name']}' to agent '{offer['agent_id']}'", flush=True)
                    return task_id
            time.sleep(0.5)

    def watch(self, task_id: str) -> str:
        """The state that the task ends in."""
        seen = ""
        while True:
            row = next((row for row in self.call("tasks", {})["tasks"] if row["id"] == task_id), {"state": "TASK_LOST"})
            if row["state"] != seen:
                seen = row["state"]
                print(f"Received status update {seen} for task '{self.given['name']}'", flush=True)
            if seen not in ("TASK_STAGING", "TASK_RUNNING", "TASK_KILLING", "TASK_UNREACHABLE"):
                return seen
            time.sleep(0.3)


def main() -> None:
    client = Client(flags(sys.argv[1:]))
    raise SystemExit(0 if client.watch(client.submit()) == "TASK_FINISHED" else 1)


if __name__ == "__main__":
    main()
