# SPDX-License-Identifier: GPL-3.0-or-later
"""The queries of public dashboards for NVIDIA's DCGM exporter, asked of a real Prometheus that scrapes agents.

The text is the agents' own, of simulated GPUs that differ in each reading. Prometheus has the role's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import dcgm, publish
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import prometheus
from tests.unit.plugins.simulated_host import SimulatedHost
from tests.unit.prometheus import Quiet, fetch, query, running, served

# Host -> its gpu_agent_dcgm_names.
HOSTS = {"gpu1": "classic", "gpu2": "current", "gpu3": "both"}
HAVING = {"classic": ("gpu1", "gpu3"), "current": ("gpu2", "gpu3")}
GPUS = 8
XID = 48

Gpu = dict[str, Any]
# A host's GPUs, by host and NVML's index, as the simulated library has them.
Fleet = dict[tuple[str, str], Gpu]
# Query, and the value for a GPU that the unit of the panel asks for.
Panel = tuple[str, Callable[[Gpu], float]]


def temperature(gpu: Gpu) -> float:
    return float(gpu["temperature"]["gpu"])


def power(gpu: Gpu) -> float:
    return float(gpu["power"]["usage_mw"] / 1000)


def hertz(gpu: Gpu) -> float:
    return float(gpu["clocks"]["sm"]["current"] * 1e6)


def use(gpu: Gpu) -> float:
    return float(gpu["utilization"]["gpu"])


def memory_use(gpu: Gpu) -> float:
    return float(gpu["utilization"]["memory"])


def used_mib(gpu: Gpu) -> float:
    return float(gpu["memory"]["used_mib"])


def free_mib(gpu: Gpu) -> float:
    memory = gpu["memory"]
    return float(memory["total_mib"] - memory["reserved_mib"] - memory["used_mib"])


# github.com/NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json, which is 12239 of Grafana's site.
_CHOSEN = '{Hostname=~"gpu1|gpu2|gpu3", gpu=~"0|1|2|3|4|5|6|7"}'
NVIDIA: tuple[Panel, ...] = (
    (f"max(DCGM_FI_DEV_GPU_TEMP{_CHOSEN}) by (Hostname, gpu, uuid)", temperature),
    (f"max(DCGM_FI_DEV_POWER_USAGE{_CHOSEN}) by (Hostname, gpu, uuid)", power),
    (f"max(DCGM_FI_DEV_SM_CLOCK{_CHOSEN} * 1000000) by (Hostname, UUID, gpu)", hertz),
    (f"max(DCGM_FI_DEV_FB_USED{_CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)", used_mib),
)
# The first edition of the same file.
_INSTANCE = '{instance=~"gpu1:9400|gpu2:9400|gpu3:9400", gpu=~"0|1|2|3|4|5|6|7"}'
NVIDIA_FIRST: tuple[Panel, ...] = (
    (f"DCGM_FI_DEV_GPU_TEMP{_INSTANCE}", temperature),
    (f"DCGM_FI_DEV_POWER_USAGE{_INSTANCE}", power),
    (f"DCGM_FI_DEV_SM_CLOCK{_INSTANCE} * 1000000", hertz),
    (f"DCGM_FI_DEV_GPU_UTIL{_INSTANCE}", use),
    (f"DCGM_FI_DEV_FB_USED{_INSTANCE}", used_mib),
)
# github.com/NVIDIA/deepops, src/dashboards/gpu-dashboard.json, which has a row for each host.
DEEPOPS: tuple[Panel, ...] = (
    ('DCGM_FI_DEV_POWER_USAGE{instance="HOST:9400"}', power),
    ('DCGM_FI_DEV_GPU_TEMP{instance="HOST:9400"}', temperature),
    ('DCGM_FI_DEV_GPU_UTIL{instance="HOST:9400"}', use),
    ('DCGM_FI_DEV_MEM_COPY_UTIL{instance="HOST:9400"}', memory_use),
)
# github.com/oracle-quickstart/oci-hpc, playbooks/roles/grafana/files/nvidia-gpu-metrics-single.jsonnet. Its own labels
# of hosts are left out.
_HOSTNAME = '{hostname=~"gpu1|gpu2|gpu3"}'
OCI: tuple[Panel, ...] = (
    (f"DCGM_FI_DEV_GPU_TEMP{_HOSTNAME}", temperature),
    (f"DCGM_FI_DEV_MEMORY_TEMP{_HOSTNAME}", lambda gpu: gpu["temperature"]["memory"]),
    (f"DCGM_FI_DEV_POWER_USAGE{_HOSTNAME}", power),
    (f"DCGM_FI_DEV_GPU_UTIL{_HOSTNAME}", use),
    (f"DCGM_FI_DEV_MEM_COPY_UTIL{_HOSTNAME}", memory_use),
    (f"DCGM_FI_DEV_SM_CLOCK{_HOSTNAME}", lambda gpu: gpu["clocks"]["sm"]["current"]),
    (f"max by(hostname, gpu) (DCGM_FI_DEV_XID_ERRORS{_HOSTNAME})", lambda gpu: XID),
)
# No public dashboard has the names since 4.9. These are NVIDIA's panels under them, with the units of the release notes
# of 4.9.0.
SINCE: tuple[Panel, ...] = (
    (f"max(DCGM_FI_DEV_GPU_TEMP_CELSIUS{_HOSTNAME}) by (hostname, gpu, UUID)", temperature),
    (f"max(DCGM_FI_DEV_BOARD_POWER_WATTS{_HOSTNAME}) by (hostname, gpu, UUID)", power),
    (f"max(DCGM_FI_DEV_SM_CLOCK_HERTZ{_HOSTNAME}) by (hostname, gpu, UUID)", hertz),
    (f"max(DCGM_FI_DEV_GPU_UTIL_RATIO{_HOSTNAME}) by (hostname, gpu, UUID)", lambda gpu: use(gpu) / 100),
    (f"max(DCGM_FI_DEV_FB_USED_BYTES{_HOSTNAME}) by (hostname, gpu)", lambda gpu: used_mib(gpu) * 2**20),
    (f"DCGM_FI_DEV_FB_FREE_BYTES{_INSTANCE}", lambda gpu: free_mib(gpu) * 2**20),
    (f"DCGM_FI_DEV_XID_ERROR{_INSTANCE}", lambda gpu: XID),
)
OF_EACH_GPU = [
    *(("classic", *panel) for panel in (*NVIDIA, *NVIDIA_FIRST, *OCI)),
    *(("current", *panel) for panel in SINCE),
]


def average(values: list[float]) -> float:
    return sum(values) / len(values)


# One number for all GPUs.
TOGETHER: list[tuple[str, str, Callable[[list[float]], float], Callable[[Gpu], float]]] = [
    ("classic", f"avg(DCGM_FI_DEV_GPU_TEMP{_CHOSEN})", average, temperature),
    ("classic", f"sum(DCGM_FI_DEV_POWER_USAGE{_INSTANCE})", sum, power),
    ("classic", 'sum(DCGM_FI_DEV_POWER_USAGE{instance="gpu1:9400"})', sum, power),
    ("classic", 'avg(DCGM_FI_DEV_GPU_UTIL{instance="gpu1:9400"})', average, use),
    ("classic", 'avg(DCGM_FI_DEV_MEM_COPY_UTIL{instance="gpu1:9400"})', average, memory_use),
    ("current", f"avg(DCGM_FI_DEV_GPU_TEMP_CELSIUS{_HOSTNAME})", average, temperature),
    ("current", f"sum(DCGM_FI_DEV_BOARD_POWER_WATTS{_INSTANCE})", sum, power),
]
# What docs/metrics.md says does not exist.
WITHOUT_DATA = (
    f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{_CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_CHOSEN}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    'sum(rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{instance="gpu1:9400"}[1m]))',
)
# The variables at the head of the dashboards, as Grafana asks for them.
CHOICES = [
    ("Hostname", "DCGM_FI_DEV_FB_FREE", HAVING["classic"]),
    ("gpu", 'DCGM_FI_DEV_FB_FREE{Hostname=~"gpu1"}', tuple(map(str, range(GPUS)))),
    ("instance", "DCGM_FI_DEV_GPU_TEMP", tuple(f"{host}:9400" for host in HAVING["classic"])),
    ("gpu", "DCGM_FI_DEV_GPU_UTIL", tuple(map(str, range(GPUS)))),
    ("hostname", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", HAVING["current"]),
]


def differ(scenario: dict[str, Any], first: int) -> None:
    """Give each GPU other readings than all others have."""
    for number, gpu in enumerate(scenario["devices"], first):
        gpu["temperature"].update(gpu=30 + number, memory=60 + number)
        gpu["power"]["usage_mw"] = 100_000 + 1500 * number
        gpu["clocks"]["sm"]["current"] = 1000 + number
        gpu["utilization"].update(gpu=40 + number, memory=10 + number)
        gpu["memory"]["used_mib"] = 1024 + 64 * number


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """What the simulated library has been told; the pages fill it."""
    return {}


@pytest.fixture(scope="module")
def pages(looker: Any, tmp_path_factory: pytest.TempPathFactory, fleet: Fleet) -> dict[str, str]:
    """What each host's agent writes."""
    found = {}
    for number, (name, names) in enumerate(HOSTS.items()):
        host = SimulatedHost(tmp_path_factory.mktemp(name), looker)
        host.take("a100-sxm4-40gb-x8")
        differ(host.scenario, number * GPUS)
        host.save()
        look = host.looking()()
        xids = [
            {"uuid": gpu["uuid"], "pci_address": gpu["pci_address"], "xid": XID, "count": 1, "last": 2000.0}
            for gpu in look["devices"]
        ]
        agent = {"probe_error": None, "probe_seconds": 0.01, "probe_time": 9000.0, "stuck": 0, "xids": xids}
        told = {"time": 9000.0, "uptime": 8000.0, "agent": agent, "snapshot": look, "health": None}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dcgm, "os", SimpleNamespace(uname=lambda name=name: SimpleNamespace(nodename=name)))
            found[name] = publish.page(told, names)
        fleet.update({(name, str(place)): gpu for place, gpu in enumerate(host.scenario["devices"])})
    return found


def handler(text: str) -> type[Quiet]:
    class Exporter(Quiet):
        def do_GET(self) -> None:
            self.answer(200, text)

    return Exporter


@pytest.fixture(scope="module")
def address(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the role's configuration, which has scraped all hosts."""
    place = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        listening = {name: stack.enter_context(served(handler(text))) for name, text in pages.items()}
        hostvars = {
            name: {"ansible_host": "127.0.0.1", "node_exporter_listen": exporter}
            for name, exporter in listening.items()
        }
        plan = prometheus.desired(
            {
                "docs_url": "",
                "external_url": "",
                "alertmanager": "",
                "remote_write": [],
                "scrape_configs": [],
                "external_labels": {},
                "ceph": False,
                "state": "present",
                "listen": "127.0.0.1:9090",
                "scrape_interval": "1s",
                "retention_time": "90d",
                "retention_size": "20GB",
                "node_tls": "off",
            },
            {},
            {
                "host": "head1",
                "servers": ["head1"],
                "exporters": list(HOSTS),
                "groups": {"node_exporters": list(HOSTS)},
                "hostvars": hostvars,
                "certificates": {},
            },
        )
        files = {file["path"]: file.get("content", "") for file in plan.desired["files"]}
        (place / "node.json").write_text(files[f"{prometheus.TARGETS}/node.json"])
        config = yaml.safe_load(files[prometheus.CONFIG].replace(prometheus.TARGETS, str(place)))
        ready = GPUS * len(HOSTS)
        yield stack.enter_context(
            running({**config, "rule_files": []}, place, lambda at: len(query(at, "gpu_info")) == ready)
        )


def values(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """By host, as the labels of the series tell it, and GPU."""
    found = {}
    for row in rows:
        labels = row["metric"]
        host = labels.get("Hostname") or labels.get("hostname") or labels["instance"].removesuffix(":9400")
        assert (host, labels["gpu"]) not in found, f"twice: {labels}"
        found[host, labels["gpu"]] = float(row["value"][1])
    return found


@pytest.mark.parametrize(("names", "panel", "value"), OF_EACH_GPU, ids=lambda part: part if "{" in str(part) else "")
def test_a_panel_of_each_gpu_has_it_in_the_panels_unit(address, fleet, names, panel, value):
    expected = {place: value(gpu) for place, gpu in fleet.items() if place[0] in HAVING[names]}
    assert values(query(address, panel)) == pytest.approx(expected)


@pytest.mark.parametrize(("panel", "value"), DEEPOPS)
@pytest.mark.parametrize("host", HAVING["classic"])
def test_a_panel_of_a_host_has_only_that_hosts_gpus(address, fleet, host, panel, value):
    expected = {place: value(gpu) for place, gpu in fleet.items() if place[0] == host}
    assert values(query(address, panel.replace("HOST", host))) == pytest.approx(expected)


@pytest.mark.parametrize(("names", "panel", "together", "value"), TOGETHER)
def test_a_panel_of_all_gpus_counts_each_once(address, fleet, names, panel, together, value):
    hosts = ("gpu1",) if "gpu1:9400" in panel and "|" not in panel else HAVING[names]
    (row,) = query(address, panel)
    assert float(row["value"][1]) == pytest.approx(
        together([value(gpu) for place, gpu in fleet.items() if place[0] in hosts])
    )


def test_the_total_of_the_present_edition_is_that_of_the_highest_gpu_of_each_number(address, fleet):
    (row,) = query(address, f"sum(max(DCGM_FI_DEV_POWER_USAGE{_CHOSEN}) by (gpu))")
    assert float(row["value"][1]) == pytest.approx(sum(power(fleet["gpu3", str(gpu)]) for gpu in range(GPUS)))


@pytest.mark.parametrize(("label", "series", "expected"), CHOICES)
def test_what_can_be_chosen_at_the_head_of_a_dashboard(address, label, series, expected):
    told = json.loads(fetch(address, f"/api/v1/label/{label}/values?match[]={quote(series)}"))
    assert told["data"] == list(expected)


@pytest.mark.parametrize("panel", WITHOUT_DATA)
def test_what_the_page_of_metrics_says_does_not_exist_has_no_data(address, panel):
    assert query(address, panel) == []


def test_the_agents_own_series_keep_the_address_of_node_exporter(address):
    assert {row["metric"]["instance"][:10] for row in query(address, "gpu_info")} == {"127.0.0.1:"}
