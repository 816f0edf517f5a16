# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows after site.yml, asked with its own tools and none of the collection's."""

from __future__ import annotations

import pytest
from testinfra.host import Host

GPU_HOSTS = {"gpu1": ("550.", 2), "gpu2": ("470.", 1)}


@pytest.fixture
def name(host: Host) -> str:
    return host.run("hostname").stdout.strip()


@pytest.fixture
def gpu(name: str) -> tuple[str, int]:
    """The driver branch and the number of cards that belong to this host."""
    if name not in GPU_HOSTS:
        pytest.skip(f"{name} has no NVIDIA card")
    return GPU_HOSTS[name]


def test_nothing_failed_to_start(host: Host) -> None:
    assert host.run("systemctl list-units --failed --plain --no-legend").stdout == ""


def test_docker_runs_and_starts_at_boot(host: Host) -> None:
    docker = host.service("docker")
    assert docker.is_running
    assert docker.is_enabled


def test_a_host_without_a_card_has_no_driver(host: Host, name: str) -> None:
    if name in GPU_HOSTS:
        pytest.skip(f"{name} has NVIDIA cards")
    packages = host.run("dpkg-query --show --showformat '${db:Status-Status} ${Package}\\n'").stdout.splitlines()
    assert [line for line in packages if line.startswith("installed") and "nvidia" in line] == []


def test_modules_are_built_for_every_installed_kernel(host: Host, gpu: tuple[str, int]) -> None:
    kernels = host.check_output("ls /lib/modules").split()
    status = host.run("dkms status").stdout.splitlines()
    assert kernels
    for kernel in kernels:
        assert [line for line in status if "nvidia" in line and kernel in line and "installed" in line], status


def test_driver_is_of_the_branch_that_the_cards_need_and_held(host: Host, gpu: tuple[str, int]) -> None:
    branch, _ = gpu
    shown = host.check_output("dpkg-query --show --showformat '${Package} ${Version}\\n' '*nvidia*-kernel-dkms'")
    packages = [line.split() for line in shown.splitlines() if len(line.split()) == 2]
    assert len(packages) == 1, packages
    package, version = packages[0]
    assert version.startswith(branch)
    assert package in host.run("apt-mark showhold").stdout.split()


def test_nouveau_is_blacklisted(host: Host, gpu: tuple[str, int]) -> None:
    settings = host.check_output("modprobe --showconfig").splitlines()
    assert "blacklist nouveau" in settings
    assert "options nouveau modeset=0" in settings


def test_device_nodes(host: Host, gpu: tuple[str, int]) -> None:
    _, count = gpu
    for path in ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{minor}" for minor in range(count))]:
        assert host.file(path).exists, path
    assert not host.file(f"/dev/nvidia{count}").exists


def test_the_agent_watches_the_cards_and_finds_them_well(host: Host, gpu: tuple[str, int]) -> None:
    _, count = gpu
    agent = host.service("baremetal-gpu-agent")
    assert agent.is_running
    assert agent.is_enabled
    metrics = host.file("/var/lib/prometheus/node-exporter/baremetal_gpu.prom").content_string.splitlines()
    assert "gpu_node_health_status 0" in metrics
    assert len([line for line in metrics if line.startswith("gpu_health_status{") and line.endswith(" 0")]) == count


def test_a_host_without_a_card_has_no_agent(host: Host, name: str) -> None:
    if name in GPU_HOSTS:
        pytest.skip(f"{name} has NVIDIA cards")
    assert not host.service("baremetal-gpu-agent").exists
    assert not host.file("/usr/local/bin/gpu-agent").exists


def test_no_interrupted_change_is_pending(host: Host) -> None:
    assert host.run("find /var/lib/baremetal-gpu/pending -type f").stdout == ""
