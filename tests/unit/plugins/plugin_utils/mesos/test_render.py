# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is rendered from facts and health is what an agent starts with, and its master shows. The facts are made up."""

from __future__ import annotations

import shlex
import signal
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.plugin_utils import allocatable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import render as mesos_render
from tests.unit.simulators.mesos_cluster import Cluster, Program, free_port, until

CAPACITY = {"cpus": 64, "memory_mib": 512000, "disk_mib": 900000, "reserve": {"cpus": 2, "mem": 12000}}


def facts(count: int) -> dict[str, Any]:
    row = {"slug": "a100-sxm4-40gb", "architecture": "ampere", "compute_capability": "8.0", "memory_mib": 40960}
    devices = [{**row, "index": n, "uuid": f"GPU-{n}", "pci_address": f"0:{n}", "nvlinks": 12} for n in range(count)]
    return {
        "pci": [{"kind": "gpu", "device": "20b0", "address": f"0:{n}"} for n in range(count)],
        "devices": devices,
        "topology": None,
    }


def health(count: int, *fatal: int) -> dict[str, Any]:
    return {"devices": [{"uuid": f"GPU-{n}", "verdict": "fatal" if n in fatal else "ok"} for n in range(count)]}


class Host:
    """An agent that is started from what is rendered, as its unit would start it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.port = cluster, free_port()

    def start(self, feed: dict[str, Any], gpus: str) -> Program:
        settings = {
            **mesos_render.agent_settings(feed, CAPACITY),
            "master": f"127.0.0.1:{self.cluster.port}",
            "work_dir": f"{self.cluster.base}/gpu1",
            "hostname": "gpu1",
            "port": self.port,
            "strict": False,
        }
        flags = mesos_flags.known("agent", "clusterd")
        assert mesos_flags.problems("agent", settings, flags) == []
        text, arguments = mesos_flags.render("agent", settings)
        environment = dict(line.split("=", 1) for line in text.splitlines())
        environment = {name: "".join(shlex.split(value)) for name, value in environment.items()}
        program = Program("agent", arguments, {**environment, "STAND_IN_GPUS": gpus})
        self.cluster.agents.append(program)
        return program


@pytest.fixture
def host(tmp_path):
    cluster = Cluster(tmp_path)
    yield Host(cluster)
    cluster.stop()


def test_the_master_shows_exactly_the_healthy_gpus_and_the_attributes(host):
    feed = allocatable.feed(facts(4), health(4, 1), site={"rack": "r 1"})
    host.start(feed, "ok,GPU is lost,ok,ok")
    row = host.cluster.registered("gpu1")
    assert (row["resources"]["gpus"], row["resources"]["cpus"], row["resources"]["mem"]) == (3, 62, 500000)
    assert row["attributes"] == {
        "gpu_model": "a100-sxm4-40gb",
        "gpu_arch": "ampere",
        "gpu_count_class": 4,
        "gpu_memory_gib": 40,
        "cuda_capability": 8,
        "nvlink": "yes",
        "rack": "r-1",
    }


def test_a_host_without_gpus_registers_without_a_trace_of_gpus(host):
    host.start(allocatable.feed({"pci": [], "devices": [], "topology": None}), "")
    row = host.cluster.registered("gpu1")
    assert (row["resources"]["gpus"], row["attributes"]) == (0, {})


def test_a_host_whose_last_gpu_fails_still_starts(host):
    host.start(allocatable.feed(facts(1), health(1, 0)), "GPU is lost")
    row = host.cluster.registered("gpu1")
    assert (row["resources"]["gpus"], row["attributes"]["gpu_model"]) == (0, "a100-sxm4-40gb")


def test_one_gpu_fewer_is_refused_with_the_old_checkpoint_and_taken_without_it(host):
    host.start(allocatable.feed(facts(2), health(2)), "ok,ok")
    old = host.cluster.registered("gpu1")
    # The master has it before it knows that itself.
    until((host.cluster.base / "gpu1/meta/slaves/latest").is_symlink)
    host.cluster.agents[0].stop(signal.SIGKILL)
    fewer = allocatable.feed(facts(2), health(2, 0))
    assert host.start(fewer, "GPU is lost,ok").ended()[0] == 1
    (host.cluster.base / "gpu1/meta/slaves/latest").unlink()
    host.start(fewer, "GPU is lost,ok")
    new = until(lambda: (row := host.cluster.slave("gpu1")) and row["id"] != old["id"] and row)
    assert (new["resources"]["gpus"], new["attributes"]) == (1, old["attributes"])
