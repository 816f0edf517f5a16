# SPDX-License-Identifier: GPL-3.0-or-later
"""The role gpu_agent: the real agent as a unit of systemd, with simulated GPUs.

The machines of the lab have no log of a kernel of their own; the simulators' pipe stands in for /dev/kmsg, and lines
are written into it as the kernel would.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import pytest

from tests.roles.conftest import DEBIAN_13, Role, lab, ssh
from tests.site import plays
from tests.site.plays import KERNEL_LOG, kernel_says

pytestmark = [pytest.mark.lab, pytest.mark.slow]

WANTED: dict[str, Any] = {"gpu_agent_kernel_log": KERNEL_LOG, "gpu_agent_interval": 2}


def on_host(command: str) -> str:
    return ssh(DEBIAN_13, command).strip()


@pytest.fixture(scope="module")
def role(driven_machine: str) -> Role:
    return Role("gpu_agent", (driven_machine,))


def status() -> dict[str, Any]:
    return json.loads(ssh(DEBIAN_13, "gpu-agent status --json", check=False))


def verdicts() -> list[str]:
    return [row["verdict"] for row in status()["health"]["devices"]]


until = functools.partial(plays.until, seconds=60, told=status)


def running() -> str:
    return on_host("systemctl show baremetal-gpu-agent -p MainPID --value")


def test_wrong_settings_are_refused_before_anything_is_changed(role: Role) -> None:
    play = role.run({**WANTED, "gpu_agent_policy": {"thresholds": {"retired_pages": "many"}}})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "retired_pages" in message
    assert "many" in message
    assert on_host("ls /usr/local/bin /etc/baremetal-gpu 2>/dev/null | grep -c gpu-agent || true") == "0"


def test_the_agent_runs_and_says_that_the_gpus_are_well(role: Role) -> None:
    role.converge(WANTED)
    until(lambda: verdicts() == ["ok", "ok"])
    assert on_host("gpu-agent status; echo $?").endswith("0")
    role.is_converged(WANTED)


def test_facts_hold_what_the_agent_saw(role: Role) -> None:
    local = json.loads(on_host("/etc/ansible/facts.d/gpu.fact"))
    assert local["present"] is True
    assert local["stale"] is False
    assert [row["slug"] for row in local["devices"]] == ["a100-sxm4-40gb"] * 2
    assert local["health"]["verdict"] == "ok"


def test_metrics_are_what_an_exporter_reads(role: Role) -> None:
    text = on_host("cat /var/lib/prometheus/node-exporter/baremetal_gpu.prom")
    assert "\ngpu_node_health_status 0\n" in text
    assert text.count("\ngpu_health_status{") == 2
    assert on_host("stat -c %a /var/lib/prometheus/node-exporter/baremetal_gpu.prom") == "644"


def test_a_gpu_that_falls_off_the_bus_is_fatal_at_once_and_until_it_is_cleared(role: Role) -> None:
    kernel_says(DEBIAN_13, "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    until(lambda: verdicts() == ["fatal", "ok"])
    shown = ssh(DEBIAN_13, "gpu-agent status; echo $?", check=False)
    assert "Xid 79" in shown
    assert "remedy" in shown
    assert shown.strip().endswith("2")
    # Well again by NVML's word, but only an operator or a reboot knows whether it is.
    ssh(DEBIAN_13, "sudo systemctl kill -s KILL baremetal-gpu-agent")
    until(lambda: running() != "0" and status()["age_s"] < 2)
    assert verdicts() == ["fatal", "ok"], "a fault was forgotten when the agent was killed"
    assert "cleared xid_fatal" in on_host("sudo gpu-agent clear")
    until(lambda: verdicts() == ["ok", "ok"])


def test_an_applications_own_xid_is_counted_and_no_fault(role: Role) -> None:
    kernel_says(DEBIAN_13, "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault")
    until(lambda: 'xid="31"} 1' in on_host("cat /var/lib/prometheus/node-exporter/baremetal_gpu.prom"))
    assert verdicts() == ["ok", "ok"]


def test_a_gpu_that_hangs_is_a_finding_and_no_hang(role: Role) -> None:
    scenario = json.loads(on_host("cat /opt/baremetal-gpu-simulators/scenario.json"))
    role.converge({**WANTED, "gpu_agent_look_timeout": 3, "gpu_agent_first_look_timeout": 3})
    pid = running()
    set_scenario({**scenario, "faults": [{"call": "nvmlDeviceGetPower*", "device": 1, "hang": True}]})
    until(lambda: verdicts() == ["ok", "fatal"])
    (reason,) = status()["health"]["devices"][1]["reasons"]
    assert reason["code"] == "gpu_hang"
    assert "of GPU 1" in reason["text"]
    assert running() == pid
    assert processes() <= 2, "never more than one child"
    set_scenario(scenario)
    on_host("sudo gpu-agent look")
    until(lambda: status()["health"]["verdict"] == "ok")
    assert running() == pid


def processes() -> int:
    """The agent, and its child."""
    return int(on_host("pgrep -c -f 'gpu-agent agent$'"))


def set_scenario(scenario: dict[str, Any]) -> None:
    place = "/opt/baremetal-gpu-simulators/scenario.json"
    ssh(DEBIAN_13, f"sudo tee {place}.new >/dev/null <<'END'\n{json.dumps(scenario)}\nEND")
    ssh(DEBIAN_13, f"sudo mv {place}.new {place}")


def test_a_driver_that_is_exchanged_is_noticed(role: Role) -> None:
    """The library is replaced as dpkg does it: a new file under another name takes the place of the old one."""
    before = running()
    library = on_host("realpath /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    on_host(f"sudo cp -p {library} {library}.dpkg-new && sudo mv {library}.dpkg-new {library}")
    until(lambda: running() not in (before, "0"))
    until(lambda: verdicts() == ["ok", "ok"] and not status()["stale"])
    now = running()
    time.sleep(5)
    assert running() == now, "it starts again and again"


LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
DEVICE_FILES = "sudo systemctl restart baremetal-gpu-device-nodes"
# What is wrong with the driver itself: code, (verdict of the host, of its GPUs), how it comes and how it is mended.
OF_DRIVER = {
    "device_file_missing": ("fatal", ["ok", "fatal"], "sudo rm /dev/nvidia1", DEVICE_FILES),
    "node_device_file_missing": ("fatal", ["ok", "ok"], "sudo rm /dev/nvidia-uvm", DEVICE_FILES),
    "driver_library_missing": (
        "fatal",
        ["unknown", "unknown"],
        f"sudo mv {LIBRARY} {LIBRARY}.aside",
        f"sudo mv {LIBRARY}.aside {LIBRARY}",
    ),
    "driver_library_mismatch": (
        "fatal",
        ["unknown", "unknown"],
        f"readlink {LIBRARY} | sudo tee /root/was; "
        f"sudo cp $(realpath {LIBRARY}) $(dirname {LIBRARY})/libnvidia-ml.so.570.999.99; "
        f"sudo ln -sfn libnvidia-ml.so.570.999.99 {LIBRARY}",
        f"sudo ln -sfn $(sudo cat /root/was) {LIBRARY}",
    ),
    "driver_not_loaded": (
        "fatal",
        ["unknown", "unknown"],
        "sudo systemctl stop baremetal-gpu-agent nvidia-persistenced; "
        "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo systemctl start baremetal-gpu-agent",
        "sudo modprobe nvidia && sudo modprobe nvidia_uvm && sudo systemctl start nvidia-persistenced; " + DEVICE_FILES,
    ),
}


@pytest.mark.parametrize("code", OF_DRIVER)
def test_what_is_wrong_with_the_driver_itself(role: Role, code: str) -> None:
    host, gpus, come, go = OF_DRIVER[code]
    on_host(come)

    def told() -> tuple[list[str], str, list[str]]:
        health = status()["health"]
        codes = [row["code"] for part in (health, *health["devices"]) for row in part["reasons"]]
        return codes, health["verdict"], [row["verdict"] for row in health["devices"]]

    try:
        until(lambda: told() == ([code], host, gpus))
        shown = ssh(DEBIAN_13, "gpu-agent status", check=False)
    finally:
        on_host(go)
    # One that is just starting again, because the library is another one, does not answer and looks by itself.
    ssh(DEBIAN_13, "sudo gpu-agent look", check=False)
    assert code in shown
    assert "remedy" in shown
    until(lambda: told() == ([], "ok", ["ok", "ok"]))


def test_a_power_cut_loses_nothing(role: Role) -> None:
    kernel_says(DEBIAN_13, "NVRM: Xid (PCI:0000:3b:00): 95, pid=4242, name=python3, Uncontained: FBHUB.")
    until(lambda: verdicts() == ["fatal", "ok"])
    lab("power-cut", DEBIAN_13)
    lab("up", "--machine", DEBIAN_13)
    until(lambda: status().get("age_s", 99) < 5)
    # In the unit's view of /proc, a machine of the lab has the boot of its host, which goes on: so the fault stays.
    until(lambda: verdicts() == ["fatal", "ok"])
    told = status()["agent"]
    assert told["problems"] == []
    assert [row["count"] for row in told["xids"] if row["xid"] == 95] == [1]
    on_host("sudo gpu-agent clear")
    until(lambda: verdicts() == ["ok", "ok"])


def test_the_unit_may_do_little(role: Role) -> None:
    exposure = on_host("systemd-analyze security --no-pager baremetal-gpu-agent | grep -o 'Overall exposure.*'")
    score = float(exposure.split(": ")[1].split()[0])
    assert score < 3, exposure
    shown = on_host(
        "systemctl show baremetal-gpu-agent -p NoNewPrivileges -p ProtectSystem -p CapabilityBoundingSet "
        "-p DevicePolicy -p PrivateNetwork -p Type -p WatchdogUSec"
    ).splitlines()
    assert sorted(shown) == [
        "CapabilityBoundingSet=cap_syslog",
        "DevicePolicy=closed",
        "NoNewPrivileges=yes",
        "PrivateNetwork=yes",
        "ProtectSystem=strict",
        "Type=notify",
        "WatchdogUSec=1min",
    ]


def test_what_would_change_is_announced_and_nothing_is_done(role: Role) -> None:
    settled = {**WANTED, "gpu_agent_look_timeout": 3, "gpu_agent_first_look_timeout": 3}
    before, pid = on_host("cat /etc/baremetal-gpu/agent.json"), running()
    play = role.run({**settled, "gpu_agent_interval": 7}, options="--check --diff")
    assert play.rc == 0, play.tail()
    assert '+    "interval_s": 7' in play.stdout
    assert '-    "interval_s": 2' in play.stdout
    assert (on_host("cat /etc/baremetal-gpu/agent.json"), running()) == (before, pid)
    play = role.run({**settled, "gpu_agent_state": "absent"}, options="--check --diff")
    assert play.rc == 0, play.tail()
    assert running() == pid


def test_prometheus_scrapes_the_agent_where_a_port_is_asked_for(role: Role) -> None:
    scrape = (
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:9400/metrics\").read().decode())'"
    )
    served = {**WANTED, "gpu_agent_dcgm_names": "both", "gpu_agent_metrics_port": 9400}
    role.converge(served)
    until(lambda: verdicts() == ["ok", "ok"])
    text = on_host(scrape)
    assert text.count("\ngpu_health_status{") == 2
    assert text.count("\nDCGM_FI_DEV_FB_TOTAL{") == text.count("\nDCGM_FI_DEV_FB_CAPACITY_BYTES{") == 2
    assert f'Hostname="{on_host("uname -n")}"' in text
    assert on_host("ss -Hltn 'sport = :9400' | awk '{print $4}'") == "127.0.0.1:9400"
    assert status()["agent"]["problems"] == []
    role.is_converged(served)
    role.converge(WANTED)
    until(lambda: verdicts() == ["ok", "ok"])
    assert on_host("ss -Hltn 'sport = :9400'") == ""
    assert "DCGM" not in on_host("cat /var/lib/prometheus/node-exporter/baremetal_gpu.prom")


def test_absent_leaves_nothing(role: Role) -> None:
    gone = {**WANTED, "gpu_agent_state": "absent"}
    role.converge(gone)
    left = on_host(
        "ls -d /usr/libexec/baremetal-gpu/gpu-agent /usr/local/bin/gpu-agent /etc/baremetal-gpu/agent.json "
        "/etc/ansible/facts.d/gpu.fact /var/lib/baremetal-gpu/agent /var/lib/prometheus/node-exporter/*.prom "
        "2>/dev/null || true"
    )
    assert left == ""
    assert on_host("systemctl is-active baremetal-gpu-agent || true") == "inactive"
    role.is_converged(gone)
    assert "baremetal-gpu-agent" not in lab("ssh", DEBIAN_13, "--", "ls /etc/systemd/system")
