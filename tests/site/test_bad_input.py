# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input on real machines: refused with the host, the value and the remedy, and nothing on the host is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import lab, run_playbook, ssh

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Bad:
    """One way in which a run is refused.

    ``prepare`` is run on the machine before, ``undo`` after; ``says`` is what the operator must be able to read.
    """

    name: str
    machine: str
    says: tuple[str, ...]
    extra_vars: dict[str, Any] = field(default_factory=dict)
    prepare: str = ""
    undo: str = ""


CASES = (
    Bad(
        "unsupported operating system",
        "cpu1",
        ("debian 11", "To do: "),
        prepare="sudo cp -a /etc/os-release /root/os-release.kept; sudo rm /etc/os-release;"
        ' printf \'ID=debian\\nVERSION_ID="11"\\nNAME="Debian GNU/Linux"\\n\' | sudo tee /etc/os-release',
        undo="sudo rm /etc/os-release; sudo mv /root/os-release.kept /etc/os-release",
    ),
    Bad("branch 550 for a K20c", "gpu2", ("550", "K20c", "470"), {"nvidia_driver_branch": 550}),
    Bad("CUDA 12 on branch 470", "gpu2", ("12.4", "470"), {"cuda_versions": ["12.4"], "cuda_method": "nvidia_repo"}),
    Bad(
        "Secure Boot with modules that nobody signed",
        "gpu1",
        ("Secure Boot", "mokutil"),
        prepare="sudo mount -t tmpfs none /sys/firmware && sudo mkdir -p /sys/firmware/efi/efivars &&"
        " printf '\\006\\000\\000\\000\\001' |"
        " sudo tee /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c >/dev/null",
        undo="sudo umount /sys/firmware",
    ),
    Bad("no headers for the kernel", "gpu1", ("headers", "linux-headers-"), {"gpu_preflight_kernels": "running"}),
    Bad(
        "malformed daemon.json",
        "gpu1",
        ("/etc/docker/daemon.json", "line 2"),
        prepare="sudo mkdir -p /etc/docker; printf '{\\n  \"debug\": tru\\n}\\n' | sudo tee /etc/docker/daemon.json",
        undo="sudo rm -r /etc/docker",
    ),
    Bad(
        "an installer without its checksum",
        "gpu1",
        ("nvidia_driver_runfile_sha256",),
        {"nvidia_driver_method": "runfile", "nvidia_driver_runfile_path": "/root/NVIDIA-Linux-x86_64-550.163.01.run"},
    ),
    Bad(
        "a package source that nobody serves",
        "gpu1",
        ("http://192.0.2.1/cuda", "To do: check the network"),
        {"nvidia_driver_method": "nvidia_repo", "nvidia_driver_repo_url": "http://192.0.2.1/cuda"},
    ),
    Bad(
        "a full disk",
        "gpu1",
        ("MiB", "free"),
        {"gpu_preflight_disk_mib": {"driver": {"/usr": 99_000_000}}},
    ),
    Bad("an unknown driver branch", "gpu1", ("latest", "nvidia_driver_branch"), {"nvidia_driver_branch": "latest"}),
    Bad("an unknown engine", "cpu1", ("rkt", "docker, podman"), {"container_runtime_engine": "rkt"}),
    Bad(
        "a value that its role refuses after the driver is there",
        "gpu1",
        ("container_runtime_validate", "sometimes", "on_change, always, never", "To do: set"),
        {"container_runtime_validate": "sometimes"},
    ),
)


@contextmanager
def prepared(case: Bad) -> Iterator[None]:
    if case.prepare:
        ssh(case.machine, case.prepare)
    try:
        yield
    finally:
        if case.undo:
            ssh(case.machine, case.undo)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_input_is_refused_before_anything_changed(case: Bad, bare_lab: None) -> None:
    with prepared(case):
        before = lab("changes", case.machine)
        play = run_playbook("site.yml", limit=case.machine, extra_vars=case.extra_vars)
        after = lab("changes", case.machine)
    assert play.rc != 0, play.tail()
    assert after == before
    message = "\n".join(play.failures[case.machine])
    missing = [text for text in (case.machine, *case.says) if text not in message]
    assert missing == [], f"not said: {missing}\n{message}"


def test_all_problems_of_a_host_are_told_at_once(bare_lab: None) -> None:
    play = run_playbook(
        "preflight.yml",
        limit="gpu1",
        extra_vars={"nvidia_driver_branch": "latest", "cuda_versions": "12.4", "container_runtime_engine": "rkt"},
    )
    message = "\n".join(play.failures["gpu1"])
    assert "gpu1: 3 problems. Nothing was changed." in message


def test_a_refused_host_does_not_stop_the_others(bare_lab: None) -> None:
    play = run_playbook("preflight.yml", extra_vars={"nvidia_driver_branch": 550})
    assert list(play.failures) == ["gpu2"]
    assert {"gpu1", "cpu1"} <= set(play.stats["ok"])


def test_an_installer_with_another_checksum_is_refused(bare_lab: None, tmp_path: Path) -> None:
    installer = tmp_path / "NVIDIA-Linux-x86_64-550.163.01.run"
    installer.write_text("not an installer\n", encoding="ascii")
    found = hashlib.sha256(installer.read_bytes()).hexdigest()
    before = lab("changes", "gpu1")
    play = run_playbook(
        "site.yml",
        limit="gpu1",
        extra_vars={
            "nvidia_driver_method": "runfile",
            "nvidia_driver_version": "550.163.01",
            "nvidia_driver_runfile_path": str(installer),
            "nvidia_driver_runfile_sha256": "0" * 64,
        },
    )
    assert play.rc != 0, play.tail()
    assert lab("changes", "gpu1") == before
    message = "\n".join(play.failures["gpu1"])
    assert [text for text in ("gpu1", str(installer), "0" * 64, found) if text not in message] == [], message
