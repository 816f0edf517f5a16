# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of each engine have the GPUs that they ask for, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.roles.containers import Look, has_exactly, image, look_into, look_through_cri, send
from tests.site.plays import ssh


@pytest.fixture(scope="module")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image(tmp_path_factory.mktemp("image"))


def second_gpu(machine: str) -> str:
    """The UUID of the GPU whose device file is /dev/nvidia1."""
    fields = "/GPU UUID/ {uuid = $NF} /Device Minor/ && $NF == 1 {print uuid}"
    return ssh(machine, f"cat /proc/driver/nvidia/gpus/*/information | awk '{fields}'").strip()


@pytest.mark.parametrize(
    ("machine", "engine"), [("docker", "docker"), ("podman", "podman"), ("podman12", "podman")], ids=str
)
def test_a_container_has_the_gpus_that_it_asks_for(machine: str, engine: str, image_file: Path) -> None:
    send(machine, image_file)
    first, second, every, none, unknown = look_into(machine, engine, "0", second_gpu(machine), "all", "", "7")
    for look, gpus in ((first, [0]), (second, [1]), (every, [0, 1]), (none, [])):
        assert isinstance(look, Look), look
        assert has_exactly(look.first, *gpus), look
        assert look.again == look.first, "systemd has read its units again in between"
    assert isinstance(unknown, str)
    assert "unresolvable CDI devices nvidia.com/gpu=7" in unknown


def test_a_container_of_containerd_has_the_gpus_that_a_kubelet_asks_for(image_file: Path) -> None:
    send("containerd", image_file)
    none, first, second, every, unknown = look_through_cri(
        "containerd",
        [
            {},
            {"cdi_devices": ["nvidia.com/gpu=0"]},
            {"cdi_devices": [f"nvidia.com/gpu={second_gpu('containerd')}"]},
            {"annotations": {"cdi.k8s.io/test": "nvidia.com/gpu=all"}},
            {"cdi_devices": ["nvidia.com/gpu=7"]},
        ],
    )
    for looks, gpus in ((none, []), (first, [0]), (second, [1]), (every, [0, 1])):
        assert all(has_exactly(look, *gpus) for look in looks), looks
    assert "unresolvable CDI devices nvidia.com/gpu=7" in unknown


@pytest.mark.parametrize("machine", ["docker", "podman", "podman12", "containerd"])
def test_nothing_failed_to_start(machine: str) -> None:
    assert ssh(machine, "systemctl list-units --failed --plain --no-legend") == ""
