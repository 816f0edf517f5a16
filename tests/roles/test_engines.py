# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_runtime with Debian's own Podman and containerd, and cards that their containers are given.

The driver is a stand-in for NVIDIA's, the cards are simulated; the engines and what they make of CDI are real. The
tests run in order on one machine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.roles.conftest import DEBIAN_13, Role, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CONTAINERD_TOML = "/etc/containerd/config.toml"
# What an operator had there before.
OPERATORS = """# Ours.
version = 2

[grpc]
  max_recv_message_size = 33554432

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.com/pause:3.9"
"""


def on_host(command: str) -> str:
    return ssh(DEBIAN_13, command).strip()


@pytest.fixture(scope="module")
def role(repositories: dict[str, str]) -> Role:
    """The role, on a machine with a driver."""
    driver = {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_branch": 570,
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
    }
    Role("nvidia_driver", (DEBIAN_13,)).converge(driver)
    Role("gpu_device_nodes", (DEBIAN_13,)).converge()
    return Role("container_runtime", (DEBIAN_13,))


def verified(engine: str, tmp_path: Any) -> dict[str, Any]:
    """The report of gpu_verify, which queries the cards in containers of the engine."""
    play = Role("gpu_verify", (DEBIAN_13,)).converge(
        {
            "gpu_verify_container_engine": engine,
            "gpu_verify_container_mode": "cdi",
            "gpu_verify_report_dir": str(tmp_path),
            "gpu_verify_cuda_runtime": "skip",
            "gpu_verify_copy_mib": 4,
        }
    )
    assert play.rc == 0
    return json.loads((tmp_path / f"{DEBIAN_13}.json").read_text())


PODMAN = {
    "container_runtime_engine": "podman",
    "container_runtime_podman_containers_conf": "[containers]\npids_limit = 4096\n",
}


def test_podman_runs_within_limits(role: Role) -> None:
    play = role.converge({**PODMAN, "container_runtime_validate": "always"})
    assert "container_runtime : Run a container and try its limits" in play.stdout
    assert on_host("sudo podman info --format '{{.Host.OCIRuntime.Name}}'") == "crun"
    assert "pids_limit = 4096" in on_host("cat /etc/containers/containers.conf.d/50-baremetal-gpu.conf")
    role.is_converged(PODMAN)


def test_containers_of_podman_see_exactly_the_cards_that_they_are_given(role: Role, tmp_path: Any) -> None:
    report = verified("podman", tmp_path)
    found = {one["name"]: one for one in report["containers"]["containers"]}
    assert set(found) == {"0", "all"}
    assert all(one["ok"] for one in found.values()), found
    assert found["0"]["query"]["device_files"].count("/dev/nvidia0") == 1
    assert "/dev/nvidia1" not in found["0"]["query"]["device_files"]
    assert "/dev/nvidia1" in found["all"]["query"]["device_files"]


def test_a_card_by_its_uuid(role: Role) -> None:
    specification = yaml.safe_load(on_host("cat /etc/cdi/nvidia.yaml"))
    uuid = next(row["name"] for row in specification["devices"] if row["name"].startswith("GPU-"))
    listing = on_host(
        f"sudo podman run --rm --network none --device nvidia.com/gpu={uuid} --volume /usr:/usr:ro "
        "localhost/baremetal-gpu/empty:1 /usr/bin/ls /dev"
    ).split()
    assert [name for name in listing if name.startswith("nvidia") and name[6:].isdigit()] == ["nvidia0"]
    with pytest.raises(AssertionError, match="unresolvable CDI devices"):
        on_host("sudo podman run --rm --device nvidia.com/gpu=7 localhost/baremetal-gpu/empty:1 /usr/bin/ls")


CONTAINERD = {
    "container_runtime_engine": "containerd",
    "container_runtime_containerd_config": {"oom_score": -500},
}


def started() -> str:
    return on_host("systemctl show containerd.service -p MainPID -p ExecMainStartTimestampMonotonic --value")


def test_a_malformed_file_of_containerd_is_left_alone(role: Role) -> None:
    ssh(DEBIAN_13, f"sudo mkdir -p /etc/containerd; printf 'version = 2\\n[grpc\\n' | sudo tee {CONTAINERD_TOML}")
    play = role.run(CONTAINERD)
    message = " ".join(play.failures[DEBIAN_13])
    assert f"{CONTAINERD_TOML} is not a valid TOML file and is left untouched: line " in message
    assert on_host(f"cat {CONTAINERD_TOML}") == "version = 2\n[grpc"


def test_containerd_runs_with_cdi_and_the_operators_settings(role: Role) -> None:
    ssh(DEBIAN_13, f"sudo tee {CONTAINERD_TOML} >/dev/null <<'END'\n{OPERATORS}END")
    play = role.converge({**CONTAINERD, "container_runtime_validate": "always"})
    assert "container_runtime : Run a container and try its limits" in play.stdout
    text = on_host(f"cat {CONTAINERD_TOML}")
    assert text.startswith("# Ours.")
    dump = on_host("sudo containerd config dump")
    assert "max_recv_message_size = 33554432" in dump
    assert "registry.example.com/pause:3.9" in dump
    assert "enable_cdi = true" in dump
    assert "oom_score = -500" in dump
    assert on_host("systemctl is-enabled containerd") == "enabled"


def test_a_second_run_leaves_containerd_running(role: Role) -> None:
    before = started()
    role.is_converged(CONTAINERD)
    assert started() == before
    role.converge({**CONTAINERD, "container_runtime_containerd_config": {"oom_score": -600}})
    assert started() != before, "containerd reads its file only when it starts"


def test_a_container_of_containerd_sees_exactly_the_card_that_it_is_given(role: Role) -> None:
    """By its device file: containerd's own client knows no CDI before 2.0, and Debian has no client of the CRI."""
    ssh(DEBIAN_13, "sudo podman save localhost/baremetal-gpu/empty:1 | sudo ctr image import - >/dev/null")
    listing = on_host(
        "sudo ctr run --rm --device /dev/nvidia1 --mount type=bind,src=/usr,dst=/usr,options=rbind:ro "
        "localhost/baremetal-gpu/empty:1 cards /usr/bin/ls /dev"
    ).split()
    assert [name for name in listing if name.startswith("nvidia") and name[6:].isdigit()] == ["nvidia1"]


def test_absent_takes_out_what_was_put_in(role: Role) -> None:
    gone = {**CONTAINERD, "container_runtime_state": "absent"}
    role.converge(gone)
    assert on_host(f"cat {CONTAINERD_TOML}") + "\n" == OPERATORS
    role.is_converged(gone)
    role.converge({**PODMAN, "container_runtime_state": "absent"})
    assert on_host("ls /etc/containers/containers.conf.d 2>/dev/null || true") == ""
