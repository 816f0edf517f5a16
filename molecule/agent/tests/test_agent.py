# SPDX-License-Identifier: GPL-3.0-or-later
"""What users, an operator and a metrics exporter learn from the agent about the GPUs of a host."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host

from tests.site.plays import kernel_says, until

METRICS = "/var/lib/prometheus/node-exporter/baremetal_gpu.prom"
# What the kernel logs when the first GPU of the machine does not answer any more.
FALLEN_OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


def status(host: Host) -> dict[str, Any]:
    """What the agent answers a user; the exit status says the verdict, too."""
    return dict(json.loads(host.run("runuser -u alice -- gpu-agent status --json").stdout))


def verdicts(host: Host) -> list[str]:
    return [device["verdict"] for device in status(host)["health"]["devices"]]


def test_a_user_learns_that_the_gpus_are_well(host: Host) -> None:
    until(lambda: verdicts(host) == ["ok", "ok"], 60, lambda: status(host))
    assert host.run("runuser -u alice -- gpu-agent status").rc == 0


def test_the_facts_of_the_host_say_the_same(host: Host) -> None:
    facts = json.loads(host.check_output("/etc/ansible/facts.d/gpu.fact"))
    assert (facts["present"], facts["stale"], facts["health"]["verdict"]) == (True, False, "ok")
    assert [device["slug"] for device in facts["devices"]] == ["a100-sxm4-40gb"] * 2


def test_an_exporter_reads_the_verdicts(host: Host) -> None:
    lines = host.check_output(f"runuser -u alice -- cat {METRICS}").splitlines()
    assert "gpu_node_health_status 0" in lines
    assert len([line for line in lines if line.startswith("gpu_health_status{")]) == 2


def test_a_user_learns_of_an_xid_with_its_remedy_until_an_operator_clears_it(host: Host) -> None:
    kernel_says("gpu1", FALLEN_OFF_THE_BUS)
    until(lambda: verdicts(host) == ["fatal", "ok"], 60, lambda: status(host))
    shown = host.run("runuser -u alice -- gpu-agent status")
    assert shown.rc == 2
    assert "Xid 79" in shown.stdout
    assert "remedy" in shown.stdout
    assert host.run("runuser -u alice -- gpu-agent clear").rc != 0, "a user is no operator"
    assert verdicts(host) == ["fatal", "ok"]
    host.check_output("gpu-agent clear")
    until(lambda: verdicts(host) == ["ok", "ok"], 60, lambda: status(host))


def test_the_agent_comes_back_when_it_is_killed(host: Host) -> None:
    before = host.check_output("systemctl show --property=MainPID --value baremetal-gpu-agent")
    host.check_output("systemctl kill --signal=KILL baremetal-gpu-agent")

    def pid() -> str:
        return host.check_output("systemctl show --property=MainPID --value baremetal-gpu-agent")

    until(lambda: pid() not in ("0", before), 60, pid)
    until(lambda: verdicts(host) == ["ok", "ok"], 60, lambda: status(host))
