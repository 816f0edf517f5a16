# SPDX-License-Identifier: GPL-3.0-or-later
"""The role container_runtime with Debian's own Podman and containerd, and GPUs that containers are given.

The driver is a stand-in for NVIDIA's, the GPUs are simulated; the engines and what they make of CDI are real. The
tests run in order on two machines, Debian 13 with the engines one after another, and Debian 12.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.conftest import DEBIAN_12, DEBIAN_13, MACHINES, Role, lab, ssh
from tests.roles.containers import IMAGE, MEMORY, Look, has_exactly, image, look_into, look_through_cri, send

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DAEMON_JSON = "/etc/docker/daemon.json"
CONTAINERS_CONF = "/etc/containers/containers.conf"
CONTAINERD_TOML = "/etc/containerd/config.toml"
CDI = "/etc/cdi/nvidia.json"

# What an operator had in these files before.
OPERATORS_DAEMON = '{"labels": ["site=a"]}\n'
OPERATORS_CONTAINERS = """# Ours.
[containers]
shm_size = "128m"
"""
# The last one, because the lab's machines have not the right to lower what the kernel thinks of a process.
OPERATORS_CONTAINERD = f"""# Ours.
version = 2

[grpc]
  max_recv_message_size = 33554432

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
"""

DOCKER = {
    "container_runtime_engine": "docker",
    "container_runtime_docker_config": {"labels": ["role=gpu"]},
    "container_runtime_validate": "never",
}
PODMAN = {
    "container_runtime_engine": "podman",
    "container_runtime_podman_config": {"containers": {"pids_limit": 4096}},
}
CONTAINERD = {
    "container_runtime_engine": "containerd",
    "container_runtime_containerd_config": {"oom_score": -500},
}
PROVEN = {"container_runtime_validate": "always"}


def on_host(command: str, machine: str = DEBIAN_13) -> str:
    return ssh(machine, command).strip()


def write(machine: str, path: str, text: str) -> None:
    ssh(machine, f"sudo mkdir -p $(dirname {path}); sudo tee {path} >/dev/null <<'END'\n{text}END")


def started(unit: str, machine: str = DEBIAN_13) -> str:
    return on_host(f"systemctl show {unit} -p MainPID -p ExecMainStartTimestampMonotonic --value", machine)


def uuids(machine: str) -> dict[str, str]:
    """The GPUs' UUIDs by the minor numbers of their device files, from the files that the driver shows."""
    fields = "/GPU UUID/ {uuid = $NF} /Device Minor/ {print $NF, uuid}"
    rows = on_host(f"cat /proc/driver/nvidia/gpus/*/information | awk '{fields}'", machine)
    return dict(row.split() for row in rows.splitlines())


@pytest.fixture(scope="module")
def role(repositories: dict[str, str], image_file: Path) -> Iterator[Role]:
    """The role, on machines with two GPUs each and their driver."""
    lab("scenario", DEBIAN_12, "a100-sxm4-40gb-x2")
    driver = {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_branch": 570,
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
    }
    Role("nvidia_driver", MACHINES).converge(driver)
    Role("gpu_device_nodes", MACHINES).converge()
    for machine in MACHINES:
        send(machine, image_file)
    yield Role("container_runtime", MACHINES)
    lab("scenario", DEBIAN_12, "k20c-x1")


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image(tmp_path_factory.mktemp("image"))


def see_what_they_are_given(machine: str, engine: str) -> Look:
    """By index, by UUID, several, all and none; nothing else, and the same after systemd has read its units again."""
    named = uuids(machine)["1"]
    first, by_uuid, both, every, none, unknown = look_into(machine, engine, "0", named, f"0 {named}", "all", "", "7")
    for look, gpus in ((first, [0]), (by_uuid, [1]), (both, [0, 1]), (every, [0, 1]), (none, [])):
        assert isinstance(look, Look), look
        assert has_exactly(look.first, *gpus), look
        assert look.again == look.first
        assert look.again.memory == MEMORY
        assert ("NVIDIA_VISIBLE_DEVICES=void" in look.more) == bool(gpus)
    assert isinstance(unknown, str)
    assert "unresolvable CDI devices nvidia.com/gpu=7" in unknown
    return none


def test_containers_of_docker(role: Role) -> None:
    write(DEBIAN_13, DAEMON_JSON, OPERATORS_DAEMON)
    role.converge(DOCKER, only=DEBIAN_13)
    see_what_they_are_given(DEBIAN_13, "docker")
    # Goes on while other engines take its place.
    ssh(DEBIAN_13, f"sudo docker run --detach --name stays --network none {IMAGE}")


def test_a_malformed_file_of_podman_stops_the_host_before_anything_is_changed(role: Role) -> None:
    for machine in MACHINES:
        write(machine, CONTAINERS_CONF, "[containers\n")
    play = role.run(PODMAN)
    for machine in MACHINES:
        message = " ".join(play.failures[machine])
        assert f"{CONTAINERS_CONF} is not a valid TOML file and is left untouched: line 1, " in message
        assert on_host(f"cat {CONTAINERS_CONF}; ls /usr/bin/podman 2>&1 || true", machine).startswith("[containers\nls")
    assert '"cdi": true' in on_host(f"cat {DAEMON_JSON}"), "nor is the file of the engine before"


def test_podman_takes_the_place_of_docker(role: Role) -> None:
    before = started("docker.service")
    for machine in MACHINES:
        write(machine, CONTAINERS_CONF, OPERATORS_CONTAINERS)
    play = role.converge({**PODMAN, **PROVEN})
    assert "container_runtime : Run a container and test its limits" in play.stdout
    for machine in MACHINES:
        text = on_host(f"cat {CONTAINERS_CONF}", machine)
        assert text.startswith("# Ours.")
        assert 'shm_size = "128m"' in text
        assert "pids_limit = 4096" in text
        kept = on_host(f"cat $(ls {CONTAINERS_CONF}.*)", machine)
        assert kept + "\n" == OPERATORS_CONTAINERS
    # Nothing of the role is left in Docker's file; Docker itself and its containers are not asked for and stay.
    assert json.loads(on_host(f"cat {DAEMON_JSON}")) == json.loads(OPERATORS_DAEMON)
    assert started("docker.service") == before
    assert on_host("sudo docker inspect stays --format '{{.State.Running}}'") == "true"


@pytest.mark.parametrize("machine", MACHINES)
def test_containers_of_podman(role: Role, machine: str) -> None:
    look = see_what_they_are_given(machine, "podman")
    assert look.first.shm == 128_000_000, "the operator's setting"
    assert "pids_limit=4096" in look.more


def test_the_gpus_are_verified_in_containers_of_podman(role: Role, tmp_path: Path) -> None:
    wanted = {
        "gpu_verify_container_engine": "podman",
        "gpu_verify_container_mode": "cdi",
        "gpu_verify_report_dir": str(tmp_path),
        "gpu_verify_cuda_runtime": "skip",
        "gpu_verify_copy_mib": 4,
    }
    Role("gpu_verify", (DEBIAN_13,)).converge(wanted)
    report = json.loads((tmp_path / f"{DEBIAN_13}.json").read_text())
    found = {one["name"]: one for one in report["containers"]["containers"]}
    assert set(found) == {"0", "all"}
    assert all(one["ok"] for one in found.values()), found
    role.is_converged(PODMAN)


def test_files_of_containerd_that_nothing_can_be_merged_into(role: Role) -> None:
    write(DEBIAN_13, CONTAINERD_TOML, "version = 2\n[grpc\n")
    write(DEBIAN_12, CONTAINERD_TOML, "[plugins.cri]\n")
    play = role.run(CONTAINERD)
    message = " ".join(play.failures[DEBIAN_13])
    assert f"{CONTAINERD_TOML} is not a valid TOML file and is left untouched: line " in message
    message = " ".join(play.failures[DEBIAN_12])
    assert f"{DEBIAN_12}: {CONTAINERD_TOML} is written in version 1 of its format" in message
    assert "To do: write the file anew in version 2" in message
    assert on_host(f"cat {CONTAINERD_TOML}") == "version = 2\n[grpc"
    assert on_host(f"cat {CONTAINERD_TOML}; ls /usr/bin/containerd 2>&1 || true", DEBIAN_12).startswith(
        "[plugins.cri]\nls"
    )


def test_containerd_runs_with_cdi_and_the_operators_settings(role: Role) -> None:
    write(DEBIAN_13, CONTAINERD_TOML, OPERATORS_CONTAINERD)
    ssh(DEBIAN_12, f"sudo rm {CONTAINERD_TOML}")
    play = role.converge({**CONTAINERD, **PROVEN})
    assert "container_runtime : Run a container and test its limits" in play.stdout
    text = on_host(f"cat {CONTAINERD_TOML}")
    assert text.startswith("# Ours.")
    dump = on_host("sudo containerd config dump")
    assert "max_recv_message_size = 33554432" in dump
    assert f'sandbox_image = "{IMAGE}"' in dump
    assert "enable_cdi = true" in dump
    # Debian's package brings the file, and with it where the plugins of its network are.
    packaged = on_host("sudo containerd config dump", DEBIAN_12)
    assert 'bin_dir = "/usr/lib/cni"' in packaged
    assert "enable_cdi" not in packaged, "containerd 1.6 does not have it"
    assert "This containerd has no CDI." in play.stdout
    assert on_host(f"ls {CDI} 2>&1 || true", DEBIAN_12).startswith("ls"), "no other engine is wanted any more"
    for machine in MACHINES:
        assert "oom_score = -500" in on_host("sudo containerd config dump", machine)
        assert on_host("systemctl is-enabled containerd", machine) == "enabled"
        assert on_host(f"cat {CONTAINERS_CONF}", machine) + "\n" == OPERATORS_CONTAINERS


def test_a_run_cut_before_the_restart_of_containerd_is_completed_by_the_next(role: Role) -> None:
    """The first thing named systemctl that the module finds kills it instead of restarting containerd."""
    trap = "/usr/local/sbin/systemctl"
    write(
        DEBIAN_13,
        trap,
        '#!/bin/sh\ncase "$1" in restart) kill -9 $PPID ;; *) exec /usr/bin/systemctl "$@" ;; esac\n',
    )
    ssh(DEBIAN_13, f"sudo chmod 0755 {trap}")
    before = started("containerd.service")
    changed = {**CONTAINERD, "container_runtime_containerd_config": {"oom_score": -600}}
    assert role.run(changed, only=DEBIAN_13).rc != 0, "the trap did not close"
    assert "oom_score = -600" in on_host(f"cat {CONTAINERD_TOML}")
    assert started("containerd.service") == before
    ssh(DEBIAN_13, f"sudo rm {trap}")
    role.converge(changed, only=DEBIAN_13)
    after = started("containerd.service")
    assert after != before, "containerd reads its file only when it starts"
    assert "oom_score = -600" in on_host("sudo containerd config dump")
    role.is_converged({**CONTAINERD, **changed}, only=DEBIAN_13)
    assert started("containerd.service") == after


def test_containers_of_containerd(role: Role) -> None:
    """Through the Container Runtime Interface, as a kubelet asks for them."""
    ssh(DEBIAN_13, "sudo apt-get install -qq --no-install-recommends python3-grpcio >/dev/null")
    limits = {"memory_bytes": MEMORY, "cpu_period": 100000, "cpu_quota": 50000}
    none, first, by_uuid, every, unknown = look_through_cri(
        DEBIAN_13,
        [
            {},
            {"cdi_devices": ["nvidia.com/gpu=0"], **limits},
            {"cdi_devices": [f"nvidia.com/gpu={uuids(DEBIAN_13)['1']}"], **limits},
            {"annotations": {"cdi.k8s.io/test": "nvidia.com/gpu=all"}, **limits},
            {"cdi_devices": ["nvidia.com/gpu=7"]},
        ],
    )
    for looks, gpus in ((none, []), (first, [0]), (by_uuid, [1]), (every, [0, 1])):
        before, after = looks
        assert has_exactly(before, *gpus), before
        assert before == after
        assert (after.memory == MEMORY) == bool(gpus)
    assert "unresolvable CDI devices nvidia.com/gpu=7" in unknown


def test_absent_takes_out_what_was_put_in(role: Role) -> None:
    gone = {**CONTAINERD, "container_runtime_state": "absent"}
    role.converge(gone)
    assert on_host(f"cat {CONTAINERD_TOML}") + "\n" == OPERATORS_CONTAINERD
    assert "oom_score" not in on_host(f"cat {CONTAINERD_TOML}", DEBIAN_12)
    for machine in MACHINES:
        left = on_host(f"sudo ls {CDI} /var/lib/baremetal-gpu/config_merge 2>/dev/null || true", machine)
        assert left == "/var/lib/baremetal-gpu/config_merge:", left
    role.is_converged(gone)
    assert on_host("sudo docker inspect stays --format '{{.State.Running}}'") == "true"
