#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the dashboards of Grafana into roles/grafana_dashboards/files.

.venv/bin/python tools/dashboards.py [--check]

With --check nothing is written, and a file that would be written differently ends it with 1.

A number for a thing that the site does not have is missing, and never 0: so counts are sums of `== bool`, or have a 0
that exists only while its exporter answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shape_common
from grafana_foundation_sdk.models import dashboard as shape
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdict
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.gpu import of_gpus
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import newest

FILES = Path(__file__).resolve().parents[1] / "roles" / "grafana_dashboards" / "files"
TAG = "baremetal.gpu"
SOURCE = shape.DataSourceRef("prometheus", "${datasource}")
WIDTH = 24

_COLOURS = {verdict.OK: "green", verdict.DEGRADED: "orange", verdict.FATAL: "red", verdict.UNKNOWN: "purple"}
VERDICTS = {str(number): (word, _COLOURS[word]) for word, number in verdict.NUMBERS.items()}
YES_NO = {"0": ("no", "red"), "1": ("yes", "green")}
CEPH = {"0": ("ok", "green"), "1": ("warning", "orange"), "2": ("error", "red")}
# From which value on a number is orange, and from which on red.
ANY_IS_BAD = ((1, "red"),)
ANY_IS_ODD = ((1, "orange"),)

HOST = 'host=~"$host"'
GPU = f'{HOST},gpu=~"$gpu"'
USER = 'user=~"$user"'
LEASES = f"max by (scheduler, host, minor, job_id, user) (gpu_lease_info{{{USER}}})"


def of_users(readings: str) -> str:
    """Readings of the GPUs that users have, each with the labels of its lease."""
    return f"{of_gpus(readings)} * on (host, minor) group_right (gpu, uuid) {LEASES}"


Panel = Any
Query = tuple[str, str]


def asked(query: str, legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id("A").expr(query).legend_format(legend or "__auto").datasource(SOURCE)


def begun(panel: Panel, title: str, unit: str, description: str, width: int, height: int) -> Panel:
    panel = panel.title(title).description(description).unit(unit).datasource(SOURCE)
    return panel.span(width).height(height)


def colours(values: tuple[tuple[float, str], ...]) -> build.ThresholdsConfig:
    steps = [shape.Threshold(color="green"), *(shape.Threshold(float(value), colour) for value, colour in values)]
    return build.ThresholdsConfig().mode(shape.ThresholdsMode.ABSOLUTE).steps(steps)


def words(of_values: dict[str, tuple[str, str]]) -> list[shape.ValueMap]:
    rows = enumerate(of_values.items())
    return [
        shape.ValueMap(
            {value: shape.ValueMappingResult(text, colour, index=index) for index, (value, (text, colour)) in rows}
        )
    ]


def number(
    title: str,
    unit: str,
    description: str,
    query: str,
    limits: tuple[tuple[float, str], ...] = (),
    texts: dict[str, tuple[str, str]] | None = None,
) -> Panel:
    """One number, as it is now."""
    panel = begun(stat.Panel(), title, unit, description, 4, 4).thresholds(colours(limits))
    panel = panel.with_target(asked(query).instant()).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.graph_mode(shape_common.BigValueGraphMode.NONE)
    return panel.mappings(words(texts)) if texts else panel


def lines(
    title: str, unit: str, description: str, *queries: Query, top: float | None = None, stacked: bool = False
) -> Panel:
    """Values over time."""
    panel = begun(timeseries.Panel(), title, unit, description, 12, 8).min(0.0)
    panel = panel.fill_opacity(40.0 if stacked else 5.0).show_points(shape_common.VisibilityMode.NEVER)
    legend = common.VizLegendOptions().display_mode(shape_common.LegendDisplayMode.TABLE)
    legend = legend.placement(shape_common.LegendPlacement.RIGHT).show_legend(True).calcs(["lastNotNull", "max"])
    panel = panel.legend(legend).tooltip(
        common.VizTooltipOptions().mode(shape_common.TooltipDisplayMode.MULTI).sort(shape_common.SortOrder.DESCENDING)
    )
    if top is not None:
        panel = panel.max(top)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(shape_common.StackingMode.NORMAL))
    for letter, (query, text) in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(asked(query, text).range().ref_id(letter))
    return panel


def states(title: str, description: str, query: str, legend: str, texts: dict[str, tuple[str, str]]) -> Panel:
    """States over time, a band for each series."""
    panel = begun(statetimeline.Panel(), title, "none", description, 12, 8).mappings(words(texts))
    return panel.with_target(asked(query, legend).range()).merge_values(True)


def listed(title: str, unit: str, description: str, query: str, value: str, *columns: str) -> Panel:
    """Series as they are now, a row for each: the labels, and the value under the name `value`, if it has one."""
    panel = begun(table.Panel(), title, unit, description, 12, 8)
    panel = panel.with_target(asked(query).instant().format(PromQueryFormat.TABLE))
    order = {name: position for position, name in enumerate((*columns, "Value"))}
    hidden = {"Time": True, **({} if value else {"Value": True})}
    renamed = {"Value": value} if value else {}
    arranged = {"excludeByName": hidden, "indexByName": order, "renameByName": renamed}
    return panel.with_transformation(shape.DataTransformerConfig("organize", options=arranged))


def variable(name: str, query: str, label: str) -> build.QueryVariable:
    made = build.QueryVariable(name).label(label).datasource(SOURCE)
    made = made.query({"query": query, "refId": "StandardVariableQuery"})
    made = made.refresh(shape.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made = made.sort(shape.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
    return made.multi(True).include_all(True).all_value(".*")


VARIABLES: dict[str, Callable[[], build.QueryVariable]] = {
    "host": lambda: variable("host", "label_values(gpu_info, host)", "Host"),
    "gpu": lambda: variable("gpu", f"label_values(gpu_info{{{HOST}}}, gpu)", "GPU"),
    "user": lambda: variable("user", "label_values(gpu_lease_info, user)", "User"),
}


def dashboard(name: str, title: str, description: str, variables: tuple[str, ...], panels: list[Panel]) -> str:
    """The text of a file."""
    made = build.Dashboard(title).uid(f"baremetal-gpu-{name.replace('_', '-')}").description(description).tags([TAG])
    made = made.time("now-6h", "now").refresh("1m").timezone("browser").readonly()
    made = made.tooltip(shape.DashboardCursorSync.CROSSHAIR)
    made = made.with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for one in variables:
        made = made.with_variable(VARIABLES[one]())
    others = build.DashboardLink("GPU cluster").type(shape.DashboardLinkType.DASHBOARDS).tags([TAG])
    made = made.link(others.as_dropdown(True).keep_time(True).include_vars(True))
    for number_, panel in enumerate(panels, 1):
        made = made.with_panel(panel.id(number_))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def verdict_lines(title: str, selector: str) -> Panel:
    """How many GPUs have which verdict, without those that are well."""
    return lines(
        title,
        "short",
        "GPUs by verdict. Those that are ok are left out.",
        *((f"count(gpu_health_status{selector} == {value})", VERDICTS[value][0]) for value in list(VERDICTS)[1:]),
        stacked=True,
    )


def fleet() -> str:
    return dashboard(
        "fleet",
        "GPU cluster: fleet",
        "All GPUs at a glance.",
        (),
        [
            number("GPUs", "short", "GPUs that have a verdict.", "fleet:gpu_health_status:count"),
            number(
                "Fatal",
                "short",
                "GPUs whose verdict is fatal: no job should run on them.",
                "fleet:gpu_health_status:fatal",
                ANY_IS_BAD,
            ),
            number("In jobs", "short", "GPUs that a scheduler has given out.", "fleet:gpu_lease_info:gpus"),
            number(
                "Use", "percentunit", "Share of time in which kernels ran, over all.", "fleet:gpu_utilization_ratio:avg"
            ),
            number("Power", "watt", "Power draw of all GPUs.", "fleet:gpu_power_watts:sum"),
            number(
                "Silent hosts",
                "short",
                "Hosts that had a GPU agent within a day, and have none now: it is silent, or the host is.",
                'count(up{job="node"} and on (host) max_over_time(gpu_probe_success[1d]) '
                "unless on (host) gpu_probe_success) or 0 * fleet:gpu_health_status:count",
                ANY_IS_BAD,
            ),
            listed(
                "Firing alerts",
                "none",
                "Alerts that fire in Prometheus, whether or not Alertmanager tells of them.",
                'max by (severity, alertname, host, gpu, code) (ALERTS{alertstate="firing",alertname!="Watchdog"})',
                "",
                "severity",
                "alertname",
                "host",
                "gpu",
                "code",
            ),
            verdict_lines("Verdicts that are not ok", ""),
            states(
                "Verdict on each host",
                "Verdict on the GPUs of a host as a whole, over time.",
                "max by (host) (gpu_node_health_status)",
                "{{host}}",
                VERDICTS,
            ),
            lines(
                "Use of each host",
                "percentunit",
                "Share of time in which kernels ran, over the GPUs of a host.",
                ("host:gpu_utilization_ratio:avg", "{{host}}"),
                top=1,
            ),
        ],
    )


def node() -> str:
    return dashboard(
        "node",
        "GPU cluster: node",
        "A host with its GPUs, and who has them.",
        ("host",),
        [
            states(
                "Verdict on each GPU",
                "Verdict of the GPU agent over time.",
                f"max by (host, gpu, pci_address) (gpu_health_status{{{HOST}}})",
                "{{host}} {{gpu}} {{pci_address}}",
                VERDICTS,
            ),
            listed(
                "Reasons",
                "none",
                "Why the verdict is not ok: the code and the verdict that it leads to.",
                f"max by (host, gpu, pci_address, code) (gpu_health_reason{{{HOST}}})",
                "verdict",
                "host",
                "gpu",
                "pci_address",
                "code",
            ).mappings(words(VERDICTS)),
            lines(
                "Use",
                "percentunit",
                "Share of time in which kernels ran, for each GPU.",
                (f'gpu_utilization_ratio{{{HOST},unit="gpu"}}', "{{host}} {{gpu}}"),
                top=1,
            ),
            lines(
                "Memory used",
                "bytes",
                "Memory that is used, for each GPU.",
                (f'gpu_memory_bytes{{{HOST},state="used"}}', "{{host}} {{gpu}}"),
            ),
            lines(
                "Temperature",
                "celsius",
                "Temperature of each GPU.",
                (f'gpu_temperature_celsius{{{HOST},sensor="gpu"}}', "{{host}} {{gpu}}"),
            ),
            lines(
                "Power",
                "watt",
                "Power draw of each GPU.",
                (f"gpu_power_watts{{{HOST}}}", "{{host}} {{gpu}}"),
            ),
            listed(
                "Jobs",
                "none",
                "GPUs that jobs have, by the number of the device file.",
                f"max by (host, minor, user, job_id, job_name, partition) (gpu_lease_info{{{HOST}}})",
                "",
                "host",
                "minor",
                "user",
                "job_id",
                "job_name",
                "partition",
            ),
            lines(
                "Processor and memory of the host",
                "percentunit",
                "Share of the processor's time that is not idle, and share of memory that is not available.",
                (
                    f'1 - avg by (host) (rate(node_cpu_seconds_total{{{HOST},mode="idle"}}[$__rate_interval]))',
                    "{{host}} processor",
                ),
                (
                    f"1 - node_memory_MemAvailable_bytes{{{HOST}}} / node_memory_MemTotal_bytes{{{HOST}}}",
                    "{{host}} memory",
                ),
                top=1,
            ),
        ],
    )


def gpu() -> str:
    return dashboard(
        "gpu",
        "GPU cluster: GPU",
        "Everything that is known of one GPU.",
        ("host", "gpu"),
        [
            listed(
                "Identity",
                "none",
                "Model, address and driver.",
                f"max by (host, gpu, minor, model, pci_address, uuid, driver_version) (gpu_info{{{GPU}}})",
                "",
                "host",
                "gpu",
                "minor",
                "model",
                "pci_address",
                "uuid",
                "driver_version",
            ),
            states(
                "Verdict",
                "Verdict of the GPU agent over time.",
                f"max by (host, gpu) (gpu_health_status{{{GPU}}})",
                "{{host}} {{gpu}}",
                VERDICTS,
            ),
            lines(
                "Use",
                "percentunit",
                "Share of time in which a unit was busy. A GPU in MIG mode tells none.",
                (f"gpu_utilization_ratio{{{GPU}}}", "{{host}} {{gpu}} {{unit}}"),
                top=1,
            ),
            lines(
                "Memory",
                "bytes",
                "Memory by what it is used for.",
                (f"gpu_memory_bytes{{{GPU}}}", "{{host}} {{gpu}} {{state}}"),
                stacked=True,
            ),
            lines(
                "Temperature",
                "celsius",
                "Temperature of the GPU and of its memory.",
                (f"gpu_temperature_celsius{{{GPU}}}", "{{host}} {{gpu}} {{sensor}}"),
            ),
            lines(
                "Power",
                "watt",
                "Power draw, and the limit that is enforced.",
                (f"gpu_power_watts{{{GPU}}}", "{{host}} {{gpu}}"),
                (f"gpu_power_limit_watts{{{GPU}}}", "{{host}} {{gpu}} limit"),
            ),
            lines("Clocks", "hertz", "Clocks by domain.", (f"gpu_clock_hertz{{{GPU}}}", "{{host}} {{gpu}} {{domain}}")),
            lines(
                "Errors",
                "short",
                "Errors within the interval: of memory, by kind; of the PCIe link and NVLinks; and Xids.",
                (
                    f'increase(gpu_ecc_errors_total{{{GPU},scope="volatile"}}[$__rate_interval])',
                    "{{host}} {{gpu}} memory {{type}}",
                ),
                (f"increase(gpu_pcie_replay_total{{{GPU}}}[$__rate_interval])", "{{host}} {{gpu}} PCIe replays"),
                (
                    f"sum by (host, gpu, type) (increase(gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval]))",
                    "{{host}} {{gpu}} NVLink {{type}}",
                ),
                (
                    f"sum by (host, uuid, xid) (increase(gpu_xid_errors_total{{{HOST}}}[$__rate_interval])) "
                    f"* on (host, uuid) group_left (gpu) {newest(f'gpu_info{{{GPU}}}', 'host, uuid')}",
                    "{{host}} {{gpu}} Xid {{xid}}",
                ),
            ),
            lines(
                "PCIe link",
                "short",
                "Lanes and generation of the link. An idle GPU lowers the generation to save power.",
                (f'gpu_pcie_link_width{{{GPU},which="current"}}', "{{host}} {{gpu}} lanes"),
                (f'gpu_pcie_link_generation{{{GPU},which="current"}}', "{{host}} {{gpu}} generation"),
            ),
            lines(
                "NVLinks that are up",
                "short",
                "How many NVLinks of a GPU are up.",
                (f"sum by (host, gpu) (gpu_nvlink_up{{{GPU}}})", "{{host}} {{gpu}}"),
            ),
        ],
    )


def jobs_and_users() -> str:
    use = of_users('gpu_utilization_ratio{unit="gpu"}')
    lately = of_users('max_over_time(gpu_utilization_ratio{unit="gpu"}[15m])')
    memory = of_users('gpu_memory_bytes{state="used"}')
    return dashboard(
        "jobs_and_users",
        "GPU cluster: jobs and users",
        "Who has which GPUs, and what they do with them.",
        ("user",),
        [
            lines(
                "GPUs of each user",
                "short",
                "GPUs that a user's jobs have.",
                (f"sum by (user) (user:gpu_lease_info:gpus{{{USER}}})", "{{user}}"),
                stacked=True,
            ),
            lines(
                "Use of each user's GPUs",
                "percentunit",
                "Share of time in which kernels ran, over the GPUs of a user. GPUs in MIG mode are not in it.",
                (f"avg by (user) ({use})", "{{user}}"),
                top=1,
            ),
            lines(
                "Idle GPUs in jobs",
                "short",
                "GPUs that a job has and that were not used within a quarter of an hour.",
                (f"count by (user) ({lately} < 0.01)", "{{user}}"),
                stacked=True,
            ),
            lines(
                "Memory that users use",
                "bytes",
                "Memory of GPUs that is used, for each user.",
                (f"sum by (user) ({memory})", "{{user}}"),
                stacked=True,
            ),
            listed(
                "Jobs with GPUs",
                "short",
                "Jobs that have GPUs, and how many on each host.",
                f"count by (user, job_id, job_name, partition, host) (gpu_lease_info{{{USER}}})",
                "GPUs",
                "user",
                "job_id",
                "job_name",
                "partition",
                "host",
            ),
            listed(
                "Running for",
                "s",
                "How long jobs have had their GPUs.",
                "time() - min by (job_id, user) (gpu_lease_start_timestamp_seconds "
                f"* on (scheduler, host, job_id) group_left (user) "
                f"{newest(f'gpu_lease_info{{{USER}}}', 'scheduler, host, job_id')})",
                "time",
                "user",
                "job_id",
            ),
            lines(
                "Jobs",
                "short",
                "Jobs of users that wait or have resources, by Slurm's state.",
                ("sum by (state) (slurm_jobs)", "{{state}}"),
                stacked=True,
            ),
            lines(
                "Why jobs wait",
                "short",
                "Jobs of users that wait, by Slurm's reason.",
                ("sum by (reason) (slurm_jobs_waiting)", "{{reason}}"),
                stacked=True,
            ),
        ],
    )


def storage() -> str:
    used = "max(ceph_cluster_total_used_raw_bytes) / max(ceph_cluster_total_bytes)"
    by_pool = f"* on (pool_id) group_left (name) {newest('ceph_pool_metadata', 'pool_id')}"
    return dashboard(
        "storage",
        "GPU cluster: storage",
        "Ceph, and the homes of users.",
        (),
        [
            number("Health", "none", "What Ceph says of itself.", "max(ceph_health_status)", texts=CEPH),
            number(
                "Raw capacity used",
                "percentunit",
                "Share of the raw capacity. At 95 % of any OSD, Ceph refuses every write.",
                used,
                ((0.75, "orange"), (0.85, "red")),
            ),
            number(
                "OSDs down",
                "short",
                "OSDs that are down.",
                "sum(max by (ceph_daemon) (ceph_osd_up) == bool 0)",
                ANY_IS_BAD,
            ),
            number(
                "Monitors out of the quorum",
                "short",
                "Monitors that are not in the quorum.",
                "sum(max by (ceph_daemon) (ceph_mon_quorum_status) == bool 0)",
                ANY_IS_BAD,
            ),
            number(
                "Metadata servers on standby",
                "short",
                "Without one, the loss of the active server stops the homes.",
                'count(max by (ceph_daemon) (ceph_mds_metadata{rank="-1"})) or 0 * max(ceph_health_status)',
            ),
            number(
                "Degraded objects",
                "short",
                "Objects that have fewer copies than they should.",
                "max(ceph_num_objects_degraded)",
                ANY_IS_ODD,
            ),
            listed(
                "Health checks",
                "none",
                "Why the health is not ok.",
                "max by (severity, name) (ceph_health_detail) == 1",
                "",
                "severity",
                "name",
            ),
            lines(
                "Capacity",
                "bytes",
                "Raw capacity of the cluster, and what is used of it.",
                ("max(ceph_cluster_total_used_raw_bytes)", "used"),
                ("max(ceph_cluster_total_bytes)", "all"),
            ),
            lines(
                "Traffic of pools",
                "Bps",
                "Bytes that clients read and write, for each pool.",
                (f"max by (pool_id) (rate(ceph_pool_rd_bytes[$__rate_interval])) {by_pool}", "{{name}} read"),
                (f"max by (pool_id) (rate(ceph_pool_wr_bytes[$__rate_interval])) {by_pool}", "{{name}} written"),
            ),
            listed(
                "Homes nearest to their quota",
                "percentunit",
                "Share of its quota that a home uses; the twenty highest.",
                "topk(20, max by (user) (cephfs_home_used_bytes) / (max by (user) (cephfs_home_quota_bytes) > 0))",
                "used",
                "user",
            ),
        ],
    )


def scheduler() -> str:
    return dashboard(
        "scheduler",
        "GPU cluster: scheduler",
        "Slurm and the reconciler.",
        (),
        [
            number(
                "Slurm controller",
                "none",
                "Whether a slurmctld answers.",
                "max(slurm_controller_up)",
                texts=YES_NO,
            ),
            number(
                "Slurm database",
                "none",
                "Whether slurmdbd answers. Without accounting there is none.",
                "max(slurm_database_up)",
                texts=YES_NO,
            ),
            number(
                "Nodes that take no jobs",
                "short",
                "Nodes that do not answer or are drained.",
                "sum(max by (node) (slurm_node_available) == bool 0)",
                ANY_IS_ODD,
            ),
            number(
                "Jobs that wait",
                "short",
                "Jobs of users that wait.",
                "sum(slurm_jobs_waiting) or 0 * (max(slurm_controller_up) == 1)",
            ),
            number(
                "Reconciler leads",
                "none",
                "Whether a reconciler leads. Without one no GPU is fenced.",
                "max(gpuops_reconciler_leader)",
                texts=YES_NO,
            ),
            number(
                "GPUs in quarantine",
                "short",
                "GPUs that stay out of use until an operator clears them.",
                "count(max by (node, uuid) (gpuops_reconciler_quarantine_info)) or 0 * max(gpuops_reconciler_leader)",
                ANY_IS_ODD,
            ),
            lines(
                "GPUs",
                "short",
                "GPUs of all nodes: allocated to jobs, held by the reconciler, or free.",
                ("sum by (state) (max by (node, state) (slurm_node_gpus))", "{{state}}"),
                stacked=True,
            ),
            lines(
                "Processors",
                "short",
                "Processors of all nodes: allocated or free.",
                ("sum by (state) (max by (node, state) (slurm_node_cpus))", "{{state}}"),
                stacked=True,
            ),
            listed(
                "Nodes that take no jobs, and why",
                "none",
                "The state in Slurm's words, the reason of who drained the node, and the code of gpuops doctor.",
                'max by (node, state, problem, reason) (slurm_node_info{problem!=""})',
                "",
                "node",
                "state",
                "problem",
                "reason",
            ),
            listed(
                "Fences",
                "s",
                "Fences of the reconciler that are in effect, by the step that they are at, and since when.",
                "time() - max by (node, uuid, step) (gpuops_reconciler_fence_timestamp_seconds)",
                "time",
                "node",
                "uuid",
                "step",
            ),
        ],
    )


DASHBOARDS = {
    "fleet": fleet,
    "node": node,
    "gpu": gpu,
    "jobs_and_users": jobs_and_users,
    "storage": storage,
    "scheduler": scheduler,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if something is to be written")
    check = parser.parse_args().check
    different = []
    for name, made in DASHBOARDS.items():
        path, text = FILES / f"{name}.json", made()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        different.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and different:
        sys.stderr.write(f"{FILES}: {', '.join(different)} would be written differently; run tools/dashboards.py\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
