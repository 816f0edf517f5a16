# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows after site.yml, queried with its own tools and none of the collection's."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from testinfra.host import Host

from tests.roles.containers import Look, has_exactly, image, look_into, send

GPU_HOSTS = {"gpu1": ("550.", 2, "NVIDIA A100-SXM4-40GB"), "gpu2": ("470.", 1, "Tesla K20c")}
QUERY = Path(__file__).parents[2] / "shared" / "nvml_query.py"


@pytest.fixture
def name(host: Host) -> str:
    return host.run("hostname").stdout.strip()


@pytest.fixture
def gpu(name: str) -> tuple[str, int]:
    """The driver branch and the number of GPUs that belong to this host."""
    if name not in GPU_HOSTS:
        pytest.skip(f"{name} has no NVIDIA GPU")
    return GPU_HOSTS[name][:2]


def as_user(host: Host, command: str) -> str:
    """Output of a command of alice, who is in no group but her own."""
    return host.check_output(f"runuser -u alice -- {command}")


def test_a_user_sees_the_gpus(host: Host, name: str, gpu: tuple[str, int]) -> None:
    rows = [
        line.split(maxsplit=2) for line in as_user(host, f"python3 -c {shlex.quote(QUERY.read_text())}").splitlines()
    ]
    _, count, model = GPU_HOSTS[name]
    assert [(index, shown) for index, _uuid, shown in rows] == [(str(index), model) for index in range(count)]
    assert len({uuid for _index, uuid, _shown in rows}) == count


def test_a_user_without_a_gpu_is_told_so(host: Host, name: str) -> None:
    if name in GPU_HOSTS:
        pytest.skip(f"{name} has NVIDIA GPUs")
    assert host.run(f"runuser -u alice -- python3 -c {shlex.quote(QUERY.read_text())}").rc != 0


def test_a_container_sees_the_gpus_that_it_asks_for(name: str, tmp_path: Path) -> None:
    if name != "gpu1":
        pytest.skip(f"the Docker of {name} is older than CDI, or it has no GPU")
    send(name, image(tmp_path))
    one, every, none = look_into(name, "docker", "1", "all", "")
    for look, gpus in ((one, [1]), (every, [0, 1]), (none, [])):
        assert isinstance(look, Look), look
        assert has_exactly(look.first, *gpus), look


def test_nothing_failed_to_start(host: Host) -> None:
    assert host.run("systemctl list-units --failed --plain --no-legend").stdout == ""


def test_docker_runs_and_starts_at_boot(host: Host) -> None:
    docker = host.service("docker")
    assert docker.is_running
    assert docker.is_enabled


def test_a_host_without_a_gpu_has_no_driver(host: Host, name: str) -> None:
    if name in GPU_HOSTS:
        pytest.skip(f"{name} has NVIDIA GPUs")
    packages = host.run("dpkg-query --show --showformat '${db:Status-Status} ${Package}\\n'").stdout.splitlines()
    assert [line for line in packages if line.startswith("installed") and "nvidia" in line] == []


def test_modules_are_built_for_every_installed_kernel(host: Host, gpu: tuple[str, int]) -> None:
    kernels = host.check_output("ls /lib/modules").split()
    status = host.run("dkms status").stdout.splitlines()
    assert kernels
    for kernel in kernels:
        assert [line for line in status if "nvidia" in line and kernel in line and "installed" in line], status


def test_driver_is_of_the_branch_that_the_gpus_need_and_held(host: Host, gpu: tuple[str, int]) -> None:
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


def test_the_agent_watches_the_gpus_and_finds_them_well(host: Host, gpu: tuple[str, int]) -> None:
    _, count = gpu
    agent = host.service("baremetal-gpu-agent")
    assert agent.is_running
    assert agent.is_enabled
    # For everybody, and by the exit status too.
    assert "ok" in as_user(host, "gpu-agent status")
    metrics = host.file("/var/lib/prometheus/node-exporter/baremetal_gpu.prom").content_string.splitlines()
    assert "gpu_node_health_status 0" in metrics
    assert len([line for line in metrics if line.startswith("gpu_health_status{") and line.endswith(" 0")]) == count


def test_a_host_without_a_gpu_has_no_agent(host: Host, name: str) -> None:
    if name in GPU_HOSTS:
        pytest.skip(f"{name} has NVIDIA GPUs")
    assert not host.service("baremetal-gpu-agent").exists
    assert not host.file("/usr/local/bin/gpu-agent").exists


def test_no_interrupted_change_is_pending(host: Host) -> None:
    assert host.run("find /var/lib/baremetal-gpu/pending -type f").stdout == ""
