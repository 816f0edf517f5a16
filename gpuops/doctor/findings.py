# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a host fails: findings from the events of the playbook baremetal.gpu.doctor, each with evidence and remedy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.problems import problems_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, moment, rows, texts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import text as line_of
from gpuops.run import events

# Causes and their exit statuses, from what everything else depends on to what depends on the rest. The first that is
# found is the one that gpuops doctor ends with.
CAUSES = {
    "name": (10, "its name or address cannot be resolved"),
    "network": (11, "it does not answer on the network"),
    "host_key": (12, "its SSH host key is not known or has changed"),
    "login": (13, "SSH does not let the account in"),
    "become": (14, "the account may not become root"),
    "python": (15, "Ansible cannot run its modules there"),
    "preflight": (20, "preflight found what is in the way"),
    "driver": (30, "the driver does not respond"),
    "gpu_fatal": (31, "a GPU or the host is judged fatal"),
    "gpu_degraded": (32, "a GPU or the host is judged degraded"),
    "agent": (33, "the agent is not at work"),
    "slurm": (34, "Slurm reports a problem"),
    "kubernetes": (35, "Kubernetes reports a problem"),
    "unit": (40, "a unit of systemd failed"),
    "left_over": (41, "an earlier run left something to be done"),
    "last_run": (50, "the last run failed there, and nothing is found now"),
    "unknown": (60, "the host could not be examined"),
}

# Hosts without a finding that are named.
MOST_NAMES = 20

# Messages of ssh and sudo, in small letters -> cause.
_MESSAGES = (
    ("could not resolve", "name"),
    ("name or service not known", "name"),
    ("host key verification failed", "host_key"),
    ("remote host identification has changed", "host_key"),
    ("permission denied", "login"),
    ("too many authentication failures", "login"),
    ("missing sudo password", "become"),
    ("incorrect sudo password", "become"),
    ("a password is required", "become"),
    ("may not run sudo", "become"),
    ("not in the sudoers", "become"),
    ("connection refused", "network"),
    ("timed out", "network"),
    ("no route to host", "network"),
    ("network is unreachable", "network"),
    ("connection closed", "network"),
    ("connection reset", "network"),
    ("no python", "python"),
    ("python3: not found", "python"),
    ("python3: no such file", "python"),
    ("interpreter", "python"),
)
_REMEDIES = {
    "name": "set ansible_host of {host} to its address, or give its name to the name service",
    "network": "see at its console or its BMC whether {host} is switched on and its sshd runs; then its cable, "
    "VLAN and firewall, and ansible_host and ansible_port",
    "host_key": "compare the host's key at its console; then `ssh-keygen -R ADDRESS` takes the old one away and "
    "`ssh {host}` accepts the new one",
    "login": "give the account ansible_user your public key there (ssh-copy-id), or name another account or key",
    "become": "give --ask-become-pass after --, or let the account use sudo without a password",
    "python": "install python3 there, or set ansible_python_interpreter of {host}",
}


@dataclass(frozen=True)
class Finding:
    """:ivar cause: a key of CAUSES. ``evidence``: what it was seen by."""

    cause: str
    text: str
    evidence: str
    remedy: str


class Reader:
    """Takes the events of a run for one host; ``findings`` is what they amount to."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._findings: list[Finding] = []
        self.checked: list[str] = []
        self._units: list[str] = []
        self._journals: dict[str, str] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult) or event.host != self.host:
            return
        result, action = event.result, event.task.action
        if action == "slurm_cluster_info":
            self._scheduler(event, "slurm", "Slurm")
        elif action in ("kubernetes_cluster_info", "kubernetes_node_info"):
            self._scheduler(event, "kubernetes", "Kubernetes")
        elif event.outcome == progress.UNREACHABLE:
            self._add(self._access(result, progress.UNREACHABLE))
        elif action == "gpu_preflight_info":
            self._preflight(result, event.outcome == progress.FAILED)
        elif action == "gpu_facts":
            self._facts(result)
        elif event.ran("systemctl", "list-units"):
            self.checked.append("units of systemd")
            self._units = [line.split()[0] for line in str(result.get("stdout") or "").splitlines() if line.split()]
        elif event.ran("journalctl"):
            self._journals = {
                str(row.get("item")): " | ".join(str(row.get("stdout") or "").splitlines()) for row in event.items
            }
        elif event.ran("systemctl", "show"):
            self._agent(str(result.get("stdout") or ""))
        elif event.ran("grep"):
            self._left_over(str(result.get("stdout") or ""))

    def findings(self, last_failure: Mapping[str, Any] | None = None) -> list[Finding]:
        """Everything that was found, the cause that others may follow from first.

        :param last_failure: the failure of the host in the last run, as events.jsonl has it.
        """
        units = [
            Finding(
                "unit",
                f"{unit} failed",
                self._journals.get(unit) or "systemctl list-units --failed",
                f"see `sudo journalctl -u {unit}` there, fix the cause, and `sudo systemctl restart {unit}`",
            )
            for unit in self._units
        ]
        found = [*self._findings, *units]
        if not found and not self.checked:
            found = [
                Finding(
                    "unknown",
                    "there is no result of the host",
                    "no check ran",
                    f"run `ansible {self.host} -m ansible.builtin.ping -vvv`",
                )
            ]
        if not found and last_failure:
            reasons = rows(last_failure.get("reasons")) or [{}]
            found = [
                Finding(
                    "last_run",
                    f"the last run failed in {last_failure.get('stage') or 'no stage'}: {reasons[0].get('cause', '')}",
                    f"task: {last_failure.get('task')}",
                    str(reasons[0].get("remedy") or "run it again"),
                )
            ]
        order = list(CAUSES)
        # A fatal GPU follows from nothing else here, and nothing on the host follows from a wrong clock.
        order.insert(order.index("preflight"), order.pop(order.index("gpu_fatal")))
        last = [row for row in found if row.cause == "preflight" and row.evidence.startswith("time_")]
        return sorted(found, key=lambda row: (row in last, order.index(row.cause)))

    def _add(self, finding: Finding) -> None:
        if finding not in self._findings:
            self._findings.append(finding)

    def _access(self, result: Mapping[str, Any], kind: str) -> Finding:
        ((message, remedy), *_more) = progress_text.explain(self.host, kind, dict(result))
        small = f"{message} {result.get('module_stderr', '')} {result.get('module_stdout', '')}".lower()
        otherwise = "network" if kind == progress.UNREACHABLE else "unknown"
        cause = next((name for words, name in _MESSAGES if words in small), otherwise)
        return Finding(cause, CAUSES[cause][1], message, _REMEDIES.get(cause, remedy).format(host=self.host))

    def _preflight(self, result: Mapping[str, Any], failed: bool) -> None:
        if "problems" not in result:
            if failed:
                self._add(self._access(result, progress.FAILED))
            return
        self.checked.append("preflight")
        for row in rows(result["problems"]):
            code, value = line_of(row.get("code")), line_of(row.get("evidence"))
            evidence = f"{code}: {value}" if value else code
            self._add(Finding("preflight", line_of(row.get("cause")), evidence, line_of(row.get("remedy"))))

    def _facts(self, result: Mapping[str, Any]) -> None:
        facts = mapping(result.get("ansible_facts")).get("gpu")
        if not isinstance(facts, dict):
            if not self._findings:
                self._add(self._access(result, progress.FAILED))
            return
        self.checked.append("driver and GPUs")
        error = mapping(mapping(facts.get("driver")).get("nvml_error"))
        if error and facts.get("present"):
            self._add(Finding("driver", str(error.get("text")), str(error.get("name")), str(error.get("remedy") or "")))
        health = mapping(facts.get("health"))
        for cause in (health.get("agent_error"), *texts(health.get("problems"))):
            if cause:
                see = "see `systemctl status baremetal-gpu-agent` and `sudo journalctl -u baremetal-gpu-agent` there"
                self._add(Finding("agent", line_of(cause), "gpu_facts", see))
        if health.get("log_error"):
            self.checked.append(f"not the kernel's log ({line_of(health['log_error'])})")
        for who, part in [("the host", health), *((_gpu(gpu), gpu) for gpu in rows(health.get("devices")))]:
            for row in rows(part.get("reasons")):
                cause = "gpu_fatal" if row.get("verdict") == FATAL else "gpu_degraded"
                text = f"{who}: {row.get('text') or row.get('code')}"
                self._add(Finding(cause, text, _evidence(row), f"{row.get('remedy')} (action: {row.get('action')})"))

    def _agent(self, output: str) -> None:
        state = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        if not state:
            return
        self.checked.append("agent")
        if state.get("UnitFileState") == "enabled" and state.get("ActiveState") not in ("active", "activating"):
            self._add(
                Finding(
                    "agent",
                    CAUSES["agent"][1],
                    f"baremetal-gpu-agent.service is {state.get('ActiveState')}",
                    "see `sudo journalctl -u baremetal-gpu-agent` there, then `sudo systemctl restart "
                    "baremetal-gpu-agent`",
                )
            )

    def _scheduler(self, event: events.HostResult, cause: str, name: str) -> None:
        """What a scheduler says of the host, or why it cannot be asked."""
        if event.outcome == progress.UNREACHABLE:
            # Where its controller is not reached, nothing is known that way.
            if not event.delegated_to:
                self._add(self._access(event.result, progress.UNREACHABLE))
            return
        if "nodes" in event.result:
            self.checked.append(name)
        for problem in problems_of(event.result):
            named = problem.subject == self.host or problem.cause.startswith(problem.subject)
            text = problem.cause if named else f"{problem.subject}: {problem.cause}"
            self._add(Finding(cause, text, problem.evidence or problem.code, problem.remedy))

    def _left_over(self, output: str) -> None:
        self.checked.append("records of earlier runs")
        for line in output.splitlines():
            path, _colon, content = line.partition(":")
            name = path.rpartition("/")[2]
            if name == "drained":
                self._add(
                    Finding(
                        "left_over",
                        "work is off the host",
                        content,
                        f"`gpuops up --limit {self.host}` gives it work again, once nothing else is wrong",
                    )
                )
            elif name:
                self._add(
                    Finding(
                        "left_over",
                        f"{name} is due since a run was cut",
                        line,
                        f"`gpuops up --limit {self.host}` finishes it",
                    )
                )


def _gpu(gpu: Mapping[str, Any]) -> str:
    for key in ("index", "pci_address", "uuid"):
        if gpu.get(key) is not None:
            return f"GPU {line_of(gpu[key])}"
    return "a GPU"


def _evidence(row: Mapping[str, Any]) -> str:
    evidence = mapping(row.get("evidence"))
    values = [f"{key} {line_of(evidence[key])}" for key in ("value", "threshold") if evidence.get(key) is not None]
    parts = [line_of(row.get("code")), *values]
    xids = mapping(evidence.get("xids"))
    if xids:
        parts.append("Xids " + ", ".join(f"{number}: {line_of(count)}" for number, count in xids.items()))
    since = moment(evidence.get("since"))
    if since is not None:
        parts.append("since " + time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since)))
    return ", ".join(parts)


def exit_status(findings: list[Finding]) -> int:
    return CAUSES[findings[0].cause][0] if findings else 0


def as_json(host: str, reader: Reader, findings: list[Finding]) -> dict[str, Any]:
    return {
        "host": host,
        "status": exit_status(findings),
        "checked": reader.checked,
        "findings": [asdict(row) for row in findings],
    }


class Readers:
    """Takes the events of a run for many hosts; each has a Reader."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.readers = {host: Reader(host) for host in hosts}

    def take(self, event: events.Event) -> None:
        reader = self.readers.get(event.host) if isinstance(event, events.HostResult) else None
        if reader is not None:
            reader.take(event)


def lines(host: str, reader: Reader, findings: list[Finding], width: int) -> list[Line]:
    """The findings in words."""
    out: list[Line] = []
    for row in findings:
        out.append([("bad", f"{row.cause}: "), ("plain", host)])
        out += progress_text.wrapped("  cause:    ", row.text, width)
        out += progress_text.wrapped("  evidence: ", row.evidence, width, "faint")
        out += progress_text.wrapped("  remedy:   ", row.remedy, width, "changed")
    if findings:
        if len(findings) > 1:
            out.append([("plain", ""), ("faint", "Begin with the first: others may follow from it.")])
    else:
        out.append([("good", f"{host}: nothing was found")])
    if reader.checked:
        out.append([("faint", f"checked: {', '.join(reader.checked)}")])
    return out


def lines_of_all(readers: Readers, found: Mapping[str, list[Finding]], width: int) -> list[Line]:
    """The findings on many hosts: those with the most basic problem first, and one line for all without any."""
    out: list[Line] = []
    well = [host for host, rows_of in found.items() if not rows_of]
    ill = sorted((host for host in found if found[host]), key=lambda host: exit_status(found[host]))
    for host in ill:
        out += [*lines(host, readers.readers[host], found[host], width), [("plain", "")]]
    if well:
        shown = ", ".join(well[:MOST_NAMES]) + (f" and {len(well) - MOST_NAMES} more" if len(well) > MOST_NAMES else "")
        out += progress_text.wrapped("", f"{shown}: nothing was found", width, "good")
    return out
