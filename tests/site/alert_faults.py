# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that are to be told, and their repairs: made on the lab's machines, one round after the other.

The tables are in test_alerts.py, for machines of `make lab-node`, and in test_alerts_*.py, for a cluster. Each
alert is in one of them, or in PROVEN_BY_PROMTOOL.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from tests.site.plays import ssh, until

# Nobody sets the clock of the machines' host; the watchdog always fires.
ALWAYS = {"HostClockUnsynchronized", "Watchdog"}
# More than the longest `for` of a rule in a usual round, with the time that its reading needs.
PATIENCE_S = 1200.0
HOUR_S = 3600.0
SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
MESSAGES = "/tmp/messages.jsonl"
WEBHOOK = "http://127.0.0.1:9999/"
RECEIVER = f"""
import http.server, json, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("{MESSAGES}", "a") as file:
            file.write(json.dumps({{"at": time.time(), **told}}) + "\\n")
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 9999), Handler).serve_forever()
"""
# What monitoring is given, so that it tells the receiver.
VARIABLES: dict[str, Any] = {
    "alertmanager_receivers": [{"name": "test", "severities": ["page", "ticket"], "webhook": WEBHOOK}],
    "alertmanager_watchdog_webhook": f"{WEBHOOK}watchdog",
    "alertmanager_group_interval": "10s",
}
# Alert -> why no round of the lab has it.
PROVEN_BY_PROMTOOL: Mapping[str, str] = {
    "HostClockWrong": "the machines share the clock of their host",
    "HostClockUnsynchronized": "nobody sets the clock of the machines' host, so it always fires",
    "GpuProbeHung": "no process of a machine is beyond SIGKILL, as one that hangs in the driver is",
    "BackupOld": "it waits for two days",
    "SlurmNodeDrainedLong": "it waits for a day",
    "ReconcilerFenceLong": "it waits for two days",
    "SlurmGpuNotFenced": "the reconciler and the health check close the node before",
    **dict.fromkeys(
        (alert.name for alert in rules.ALERTS["kubernetes"]), "the lab's cluster of Kubernetes has no monitoring"
    ),
    "SlurmHolderStuck": "the roles take away the limits that would cause it",
}
# Alert -> the test that has it, where there is neither fault nor repair.
TESTED_ELSEWHERE: Mapping[str, str] = {"Watchdog": "test_monitoring.py"}


def is_of_the_lab(labels: Mapping[str, str]) -> bool:
    """Whether an alert tells of the lab and not of a fault: the machines share the clock of their host, and its disk,
    parts of which have other names in them. Disks that faults fill are loop devices.
    """
    return labels["alertname"] in ALWAYS or (
        labels["alertname"] in ("HostDiskFull", "HostDiskFillsUp") and not labels["device"].startswith("/dev/loop")
    )


class Watch:
    """What the host of Prometheus knows, and what people were told by the receiver there."""

    def __init__(self, server: str) -> None:
        self.server = server

    def prepare(self, hosts: Sequence[str]) -> None:
        """Start the receiver, and forget the certificates of an earlier run, whose authority is gone."""
        for host in hosts:
            ssh(host, "sudo rm -rf /etc/prometheus/tls")
        missing = "sudo apt-get update -q && sudo apt-get install -y -q curl openssl"
        ssh(self.server, f"command -v curl && command -v openssl || {{ {missing}; }}")
        ssh(self.server, f"sudo rm -f {MESSAGES}; sudo tee /tmp/receiver.py >/dev/null <<'END'\n{RECEIVER}\nEND")
        ssh(self.server, "systemctl is-active -q receiver || sudo systemd-run --unit=receiver python3 /tmp/receiver.py")

    def end(self) -> None:
        ssh(self.server, "sudo systemctl stop receiver")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers."""
        answer = ssh(self.server, f"curl -s --data-urlencode 'query={expression}' http://127.0.0.1:9090/api/v1/query")
        return list(json.loads(answer)["data"]["result"])

    def targets(self) -> dict[str, str]:
        """The hosts that Prometheus scrapes, with `up` or `down`."""
        found = json.loads(ssh(self.server, "curl -s http://127.0.0.1:9090/api/v1/targets"))["data"]["activeTargets"]
        return {one["labels"]["host"]: one["health"] for one in found if one["labels"]["job"] == "node"}

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ssh(self.server, f"cat {MESSAGES} 2>/dev/null || true").splitlines()]

    def told(self, alert: str, status: str = "firing", since: float = 0.0, host: str = "") -> list[dict[str, Any]]:
        """What came about an alert: the parts of messages, each with the time `at` which it came."""
        return [
            {**one, "at": message["at"]}
            for message in self.messages()
            if message["at"] >= since
            for one in message["alerts"]
            if one["status"] == status
            and one["labels"]["alertname"] == alert
            and host in ("", one["labels"].get("host"))
            and not is_of_the_lab(one["labels"])
        ]

    def everything(self, since: float) -> set[str]:
        """The names of the alerts that people were told of."""
        return {
            one["labels"]["alertname"]
            for message in self.messages()
            if message["at"] >= since
            for one in message["alerts"]
            if not is_of_the_lab(one["labels"])
        }

    def loud(self) -> set[tuple[str, str]]:
        """The alerts that fire now, with their hosts."""
        found = [row["metric"] for row in self.query('ALERTS{alertstate="firing"}')]
        return {(one["alertname"], one.get("host", "")) for one in found if not is_of_the_lab(one)}

    def now(self) -> float:
        """The time of the server's clock."""
        return float(ssh(self.server, "date +%s.%N"))

    def is_quiet(self) -> None:
        """Wait until no alert fires."""
        until(lambda: not self.loud(), PATIENCE_S, self.loud)


# A command of a host, or what is called; empty for what another fault of the same round makes.
Action = str | Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """A fault whose alert is to come for a host, empty for the site, and its repair.

    :ivar on: the machine whose commands make and repair it; the host by default.
    :ivar unheard: a more telling alert hides it, or the fault itself keeps it from being told: then it has to fire.
    :ivar passes: it ends by itself some time after the fault, which may be before the repair.
    """

    alert: str
    host: str = ""
    make: Action = ""
    repair: Action = ""
    on: str = ""
    unheard: bool = False
    passes: bool = False

    def do(self, action: Action) -> None:
        if callable(action):
            action()
        elif action:
            ssh(self.on or self.host, action)

    @property
    def is_told(self) -> bool:
        return not self.unheard and rules.BY_NAME[self.alert].severity != "info"


@dataclass(frozen=True)
class Round:
    """Faults that do not hide each other, made at the same time, so that their waits are one.

    :ivar also: alerts that may come with them.
    """

    faults: tuple[Fault, ...]
    also: frozenset[str] = frozenset()
    patience_s: float = PATIENCE_S

    @property
    def alerts(self) -> set[str]:
        return {fault.alert for fault in self.faults}


def of_one_cause(alerts: Sequence[str], host: str, make: Action, repair: Action, **more: Any) -> tuple[Fault, ...]:
    """Alerts of one fault."""
    first, *others = alerts
    return (
        Fault(first, host, make, repair, **more),
        *(Fault(alert, host, **more) for alert in others),
    )


def _wait(watch: Watch, of: Round, begun: float, since: float, status: str) -> dict[Fault, float]:
    """The seconds until each alert had come, or was over. One that people are not told of is told by Prometheus.

    :param begun: when the faults were made.
    """
    took: dict[Fault, float] = {}

    def missing() -> list[Fault]:
        firing = watch.loud()
        for fault in of.faults:
            if fault in took:
                continue
            if not fault.is_told:
                if ((fault.alert, fault.host) in firing) == (status == "firing"):
                    took[fault] = watch.now() - since
            elif found := watch.told(fault.alert, status, begun if fault.passes else since, fault.host):
                took[fault] = max(0.0, min(one["at"] for one in found) - since)
        return [fault for fault in of.faults if fault not in took]

    until(lambda: not missing(), of.patience_s, lambda: (missing(), watch.loud()))
    return took


def prove(watch: Watch, of: Round, show: Callable[[str], object]) -> None:
    """Make faults, wait for their alerts and for no other, repair, wait for their end, and show how long it took."""
    since = watch.now()
    with contextlib.ExitStack() as repairs:
        # All of them, in their order, whatever becomes of one.
        for fault in reversed(of.faults):
            repairs.callback(fault.do, fault.repair)
        for fault in of.faults:
            fault.do(fault.make)
        came = _wait(watch, of, since, since, "firing")
        others = watch.everything(since) - of.alerts - of.also
        mended = watch.now()
    over = _wait(watch, of, since, mended, "resolved")
    for fault, seconds in came.items():
        show(f"| {fault.alert} | {fault.host or 'fleet'} | {seconds:.0f} s | {over[fault]:.0f} s |")
    assert not others, others
    watch.is_quiet()


def table() -> Iterator[Callable[[str], None]]:
    """What a fixture of a module yields: takes the rows of prove() and prints them at its end."""
    lines = ["| alert | host | fault to message | repair to end |", "| --- | --- | --- | --- |"]
    yield lines.append
    print("\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def show() -> Iterator[Callable[[str], None]]:
    yield from table()


def put(path: str, content: str) -> str:
    return f"sudo tee {path} >/dev/null <<'END'\n{content}\nEND"


def drop_in(unit: str, setting: str) -> str:
    """A command that changes how systemd treats a service, until the next boot."""
    directory = f"/run/systemd/system/{unit}.service.d"
    return (
        f"sudo mkdir -p {directory}\n{put(f'{directory}/fault.conf', f'[Service]{chr(10)}{setting}')}\n"
        "sudo systemctl daemon-reload"
    )


def without_drop_in(unit: str) -> str:
    """The end of drop_in()."""
    return f"sudo rm /run/systemd/system/{unit}.service.d/fault.conf\nsudo systemctl daemon-reload"


def hang(unit: str, works: str) -> str:
    """A command after which a daemon does nothing any more. Its watchdog would see that, and does not change while the
    daemon runs, so it is started without one first.

    :param works: a command that succeeds once the daemon has done its work after its start.
    """
    return (
        f"{drop_in(unit, 'WatchdogSec=0')}\nsudo systemctl restart {unit}\n"
        f"until {works}; do sleep 1; done\nsudo systemctl kill -s STOP {unit}"
    )


def go_on(unit: str) -> str:
    """The end of hang()."""
    return f"{without_drop_in(unit)}\nsudo systemctl restart {unit}"


def scenario(machine: str, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Change the simulated GPUs of a machine; without a change they are as they were at first."""
    kept = f"{SCENARIO}.well"
    ssh(machine, f"test -e {kept} || sudo cp {SCENARIO} {kept}")
    content = json.loads(ssh(machine, f"cat {kept}"))
    changed = deepcopy(content)
    if change:
        change(changed)
    ssh(machine, f"{put(f'{SCENARIO}.new', json.dumps(changed))}\nsudo mv {SCENARIO}.new {SCENARIO}")
    # What is looked at once an hour needs two looks to count, and three to be over.
    ssh(machine, "for look in 1 2 3; do sudo gpu-agent look; sleep 1; done", check=False)
