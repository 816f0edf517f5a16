# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as scontrol prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import node, state

LINE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=2 CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.10 AvailableFeatures=a100 "
    "Gres=gpu:a100:2(S:0-1) NodeAddr=10.0.0.2 NodeHostName=n1 Version=24.11.5 OS=Linux 6.12.0 #1 SMP RealMemory=1000 "
    "State={state} ThreadsPerCore=1 Partitions=all BootTime=2026-01-01T00:00:00 {end}"
)


@pytest.mark.parametrize(
    ("text", "busy", "in_service"),
    [
        ("IDLE", False, True),
        ("MIXED", True, True),
        ("ALLOCATED+DRAIN", True, True),
        ("IDLE+DRAIN", False, True),
        ("IDLE*", False, False),
        ("IDLE+NOT_RESPONDING", False, False),
        ("DOWN", False, False),
        ("DOWN*+DRAIN", False, False),
        ("IDLE+DRAIN+INVALID_REG", False, False),
        ("UNKNOWN", False, False),
        ("DOWN+COMPLETING", True, False),
    ],
)
def test_the_state_of_a_node(text: str, busy: bool, in_service: bool) -> None:
    found = state.parse(LINE.format(state=text, end=""))
    assert found is not None
    assert (found["busy"], found["in_service"]) == (busy, in_service)
    assert (found["name"], found["gres"]) == ("n1", "gpu:a100:2")


def test_the_reason_of_a_node_is_told_without_who_and_when() -> None:
    found = state.parse(LINE.format(state="DOWN", end="Reason=gres/gpu count: 1 < 2 [slurm@2026-01-01T00:00:00]"))
    assert found is not None
    assert found["reason"] == "gres/gpu count: 1 < 2"


def test_a_node_without_gpus_has_no_gres() -> None:
    found = state.parse(LINE.replace("gpu:a100:2(S:0-1)", "(null)").format(state="IDLE", end=""))
    assert found is not None
    assert found["gres"] == ""


def test_without_an_answer_every_node_of_the_configuration_may_have_jobs(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=a\nNodeName=n1 Gres=gpu:a100:2 State=UNKNOWN\nNodeName=n2\n")
    found = state.configured(str(tmp_path / "slurm.conf"))
    assert {name: (row["gres"], row["busy"]) for name, row in found.items()} == {
        "n1": ("gpu:a100:2", True),
        "n2": ("", True),
    }


def test_cores_are_counted_socket_by_socket(tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    # Threads of a core are not neighbours, and neither are the CPUs of a socket.
    for cpu, (socket, core) in enumerate([(1, 0), (0, 0), (1, 1), (0, 1), (1, 0), (0, 0), (1, 1), (0, 1)]):
        directory = cpus / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "physical_package_id").write_text(f"{socket}\n")
        (directory / "core_id").write_text(f"{core}\n")
    (cpus / "online").write_text("0-7\n")
    assert node.processors(str(tmp_path)) == {
        "sockets": 2,
        "cores_per_socket": 2,
        "threads_per_core": 2,
        "cores": [[1, 5], [3, 7], [0, 4], [2, 6]],
    }


@pytest.mark.parametrize(("text", "numbers"), [("0-2,5", [0, 1, 2, 5]), ("", []), ("x", []), ("3", [3])])
def test_a_list_of_cpus_is_read(text: str, numbers: list[int]) -> None:
    assert node.cpu_ids(text) == numbers


def test_the_candidate_is_what_apt_would_install_as_far_as_it_has_read_its_sources(tmp_path: Path) -> None:
    answer = "slurm-wlm-basic-plugins:\n  Installed: (none)\n  Candidate: 24.11.5-4+deb13u1\n  Version table:\n"
    assert node.candidate_version(str(tmp_path), lambda _argv: (0, answer)) == "24.11.5-4+deb13u1"
    assert node.candidate_version(str(tmp_path), lambda _argv: (0, "")) is None
    lists = tmp_path / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    (lists / "deb.example_dists_trixie_main_binary-amd64_Packages").touch()
    assert node.candidate_version(str(tmp_path), lambda _argv: (0, "")) == ""


OPEN = {"in_service": True, "drained": False, "takes_jobs": True, "state": "MIXED"}


def gpus(**verdicts: str) -> list[dict[str, Any]]:
    """A GPU for each name. That of m0 is the minor 0; any other is gone."""
    return [
        {"name": name, "minor": int(name[1:]) if name[0] == "m" else None, "verdict": verdict}
        for name, verdict in verdicts.items()
    ]


@pytest.mark.parametrize(
    ("more", "fenced", "verdicts", "found"),
    [
        ({}, [], {"m0": "ok", "m1": "fatal"}, ["m1"]),
        ({}, [1], {"m0": "ok", "m1": "fatal"}, []),
        ({}, [0], {"m0": "ok", "m1": "fatal"}, ["m1"]),
        ({}, [], {"m0": "degraded", "m1": "unknown"}, []),
        # One that has gone has no minor any more; the holder knows it from gres.conf.
        ({}, [1], {"m0": "ok", "gone": "fatal"}, []),
        ({}, [0], {"m0": "fatal", "gone": "fatal"}, ["gone"]),
        ({}, [1], {"m0": "ok", "gone": "fatal", "lost": "fatal"}, ["lost"]),
        ({"takes_jobs": False}, [], {"m0": "fatal"}, []),
        ({"drained": True}, [], {"m0": "fatal"}, []),
        ({"in_service": False}, [], {"m0": "fatal"}, []),
    ],
)
def test_a_fatal_gpu_that_jobs_can_get_is_not_fenced(more, fenced, verdicts, found) -> None:
    rows = state.unfenced({**OPEN, "fenced": fenced, **more}, gpus(**verdicts))
    assert [row["name"] for row in rows] == found
