# SPDX-License-Identifier: GPL-3.0-or-later
"""For each alert: series that make it fire, with what the operator then reads, and series that must not.

Series are made by hand, with the labels that the exporters give. Values are in promtool's notation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import CODES

Series = dict[str, str]


@dataclass(frozen=True)
class Firing:
    """An alert that fires: its labels without alertname and severity, and its annotations.

    `remedy` is None where that of the rule has no template in it.
    """

    labels: dict[str, str]
    summary: str
    evidence: str
    remedy: str | None = None


@dataclass(frozen=True)
class Case:
    alert: str
    at: str
    series: Series
    firing: tuple[Firing, ...]
    quiet: dict[str, Series] = field(default_factory=dict)
    # The time between two values and two evaluations.
    interval: str = "1m"


def named(metric: str, /, **labels: str) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{metric}{{{inner}}}"


NODE = {"host": "gpu1", "instance": "gpu1:9100", "job": "node"}
GPU = {**NODE, "uuid": "GPU-1", "gpu": "0"}
BUS = {**GPU, "pci_address": "0000:3b:00.0"}
# A GPU that never answered has neither.
NAMELESS = {**NODE, "pci_address": "0000:3b:00.0"}
DISK = {**NODE, "device": "/dev/sda1", "fstype": "ext4", "mountpoint": "/"}
FILE_SYSTEM = {**NODE, "device": "/dev/sda1"}
MEMORY_FS = {**NODE, "device": "tmpfs", "fstype": "tmpfs", "mountpoint": "/run"}
CEPH = {"host": "stor1", "instance": "stor1:9283", "job": "ceph"}
PROMETHEUS = {"host": "mon1", "instance": "mon1:9090", "job": "prometheus"}
ALERTMANAGER = {"host": "mon1", "instance": "mon1:9093", "job": "alertmanager"}
SLURM = {"host": "head1", "instance": "head1:9100", "job": "node"}
RECONCILER = SLURM
REGISTRY = {"host": "reg1", "instance": "reg1:9100", "job": "node"}
PORTAL = {"host": "login1", "instance": "login1:9100", "job": "node"}
GIB, TIB = 2**30, 2**40

RESET = "Drain the GPU and reset it with `sudo nvidia-smi --gpu-reset -i GPU-1`; reboot the host if it cannot be reset."
RESEAT = (
    "Reseat the GPU and its cables at the next opportunity; if that does not help, try another slot, then replace the "
    "GPU."
)
OWN_OR_OTHERS = (
    "For one below /etc/kubernetes run `sudo systemctl start baremetal-gpu-kubernetes-renew` on gpu1; for one below "
    "/var/lib/kubelet see `sudo journalctl -u kubelet` there. If "
    "/etc/ssl/portal.pem is your own, replace it and reload the service that uses it."
)
COOLING = "Check fans, filters, air flow and the temperature of the room, and whether other GPUs are hot too."


def reason(code: str, value: str, where: dict[str, str] | None = None) -> Series:
    return {named("gpu_health_reason", **coded(code, where)): value}


def coded(code: str, where: dict[str, str] | None = None) -> dict[str, str]:
    return {**(BUS if where is None else where), "code": code, "action": CODES[code].action}


def disk(free: str, size: int = 100 * GIB, where: dict[str, str] | None = None) -> Series:
    labels = DISK if where is None else where
    return {
        named("node_filesystem_avail_bytes", **labels): free,
        named("node_filesystem_size_bytes", **labels): f"{size}x400",
    }


def images(free: int) -> Series:
    return {
        named("baremetal_gpu_registry_free_bytes", **REGISTRY): f"{free}x60",
        named("baremetal_gpu_registry_min_free_bytes", **REGISTRY): f"{20 * GIB}x60",
    }


def monitors(*in_quorum: int) -> Series:
    return {
        name: value
        for number, there in enumerate(in_quorum, 1)
        for name, value in (
            (named("ceph_mon_quorum_status", **CEPH, ceph_daemon=f"mon.stor{number}"), f"{there}x60"),
            (
                named("ceph_mon_metadata", **CEPH, ceph_daemon=f"mon.stor{number}", hostname=f"stor{number}"),
                "1x60",
            ),
        )
    }


def capacity(used: float) -> Series:
    return {
        named("ceph_cluster_total_used_raw_bytes", **CEPH): f"{int(used * TIB)}x120",
        named("ceph_cluster_total_bytes", **CEPH): f"{10 * TIB}x120",
    }


def mds(rank: str) -> str:
    fs_id = "-1" if rank == "-1" else "1"
    return named("ceph_mds_metadata", **CEPH, ceph_daemon=f"mds.stor{rank}", fs_id=fs_id, hostname="stor1", rank=rank)


def home(used: int, quota: int) -> Series:
    return {
        named("cephfs_home_used_bytes", **CEPH, user="alice"): f"{used * GIB}x120",
        named("cephfs_home_quota_bytes", **CEPH, user="alice"): f"{quota * GIB}x120",
    }


def servers(*serving: int) -> Series:
    return {
        name: value
        for number, serves in enumerate(serving, 1)
        for name, value in (
            (named("zookeeper_serving", host=f"zk{number}", job="node"), f"{serves}x60"),
            (named("zookeeper_ensemble_servers", host=f"zk{number}", job="node"), "3x60"),
        )
    }


def starts(failed: str, started: str) -> Series:
    """Starts of sessions of the portal, counted."""
    return {
        named("portal_session_starts_total", **PORTAL, result=result): values
        for result, values in (("failed", failed), ("started", started))
    }


def sessions(silent: str, unknown: str = "0x60") -> Series:
    return {
        named("portal_sessions_unmeasured", **PORTAL, reason="silent"): silent,
        named("portal_sessions_unmeasured", **PORTAL, reason="unknown"): unknown,
        named("portal_sessions", **PORTAL, state="run"): "5x60",
    }


def slurm_node(state: str, values: str = "1x60", **labels: str) -> Series:
    return {named("slurm_node_info", **SLURM, node="gpu1", state=state, **labels): values}


def holder_stuck(reason: str) -> str:
    return named("slurm_holder_stuck", **SLURM, node="gpu1", reason=reason)


def not_fenced(fenced: str = "0x20", available: str = "1x20") -> Series:
    """A node with a fatal GPU."""
    return {
        named("gpu_health_status", **BUS): "2x20",
        named("slurm_node_fenced_gpus", **SLURM, node="gpu1"): fenced,
        named("slurm_node_available", **SLURM, node="gpu1"): available,
    }


def kubernetes_node(state: str, value: str = "1x30") -> Series:
    return {named("kubernetes_node_info", **SLURM, node="gpu1", state=state): value}


def kubernetes_problem(problem: str, value: str = "1x30") -> Series:
    return {named("kubernetes_node_problem", **SLURM, node="gpu1", problem=problem): value}


def not_withheld(withheld: str = "0x20", available: str = "1x20") -> Series:
    """A node with a fatal GPU."""
    return {
        named("gpu_health_status", **BUS): "2x20",
        named("kubernetes_node_withheld_gpus", **SLURM, node="gpu1"): withheld,
        named("kubernetes_node_available", **SLURM, node="gpu1"): available,
    }


def etcd(**values: str) -> Series:
    """Three members; the first has the values."""
    heads = [{**SLURM, "host": name, "instance": f"{name}:9100"} for name in ("head1", "head2", "head3")]
    well = {"has_leader": "1x40", "database_bytes": "1e8x40", "quota_bytes": "2e9x40"}
    well |= {"fsync_seconds_total": "0+0.6x40", "fsyncs_total": "0+60x40"}
    rows = [{**well, **values}, well, well]
    return {
        named(f"kubernetes_etcd_{name}", **head): row[name]
        for head, row in zip(heads, rows, strict=True)
        for name in well
    }


def up(host: str, job: str, value: str, **labels: str) -> Series:
    return {named("up", host=host, instance=f"{host}:9100", job=job, **labels): value}


FILE = "/var/lib/prometheus/node-exporter/baremetal_gpu.prom"
HOST_FILE = "/var/lib/prometheus/node-exporter/baremetal_gpu_host.prom"
FLEET = {named("gpu_health_status", host=f"gpu{number}", gpu="0"): "0x60" for number in range(3, 11)}
FS = {named("ceph_fs_metadata", **CEPH, fs_id="1", name="cephfs"): "1x60"}
LEASE = {
    named("gpu_info", **GPU, minor="3"): "1x40",
    named("gpu_lease_info", **{**SLURM, "host": "gpu1"}, scheduler="slurm", user="alice", job_id="42", minor="3"): (
        "1x40"
    ),
}
DAY = 24 * 60 * 60
CERTIFICATE = {**NODE, "path": "/etc/ssl/portal.pem"}

CASES = (
    Case(
        "GpuFatal",
        "1m",
        reason("gpu_lost", "2x5") | reason("gpu_missing", "2x5", NAMELESS),
        (
            Firing(
                coded("gpu_lost"),
                "gpu1: GPU 0 is fatal: gpu_lost",
                "The verdict of gpu_lost is 2 (fatal), GPU-1, 0000:3b:00.0.",
                "Drain the host and reboot it; if it happens again, reseat the GPU and check its power, then replace "
                "it.",
            ),
            Firing(
                coded("gpu_missing", NAMELESS),
                "gpu1: GPU 0000:3b:00.0 is fatal: gpu_missing",
                "The verdict of gpu_missing is 2 (fatal), 0000:3b:00.0.",
                "Drain the host and reboot it; if the GPU is still missing, reseat it and check its power. If it was "
                "removed on purpose, run `sudo gpu-agent clear` on the host.",
            ),
        ),
        {
            "degraded": reason("gpu_lost", "1x5"),
            "the host, not a GPU": reason("driver_not_loaded", "2x5", NODE),
        },
    ),
    Case(
        "HostGpusFatal",
        "1m",
        reason("nvml_hang", "2x5", NODE),
        (
            Firing(
                coded("nvml_hang", NODE),
                "gpu1: the GPUs of the host are fatal: nvml_hang",
                "The verdict of nvml_hang is 2 (fatal) for the host.",
                "Look for an Xid in `sudo dmesg`, drain the host and reboot it.",
            ),
        ),
        {"one GPU": reason("gpu_lost", "2x5"), "degraded": reason("sxid_degraded", "1x5", NODE)},
    ),
    Case(
        "FleetGpusFatal",
        "20m",
        FLEET
        | {
            named("gpu_health_status", host="gpu1", gpu="0"): "2x60",
            named("gpu_health_status", host="gpu2", gpu="0"): "2x60",
        },
        (
            Firing(
                {},
                "fleet: 20% of all GPUs are fatal",
                "2 GPUs of 10 have the verdict fatal.",
            ),
        ),
        {
            "one of nine": FLEET | {named("gpu_health_status", host="gpu1", gpu="0"): "2x60"},
            "one of one": {named("gpu_health_status", host="gpu1", gpu="0"): "2x60"},
            "no GPUs": {"nothing": "0x60"},
        },
    ),
    Case(
        "GpuHot",
        "10m",
        reason("thermal_slowdown", "1x20") | {named("gpu_temperature_celsius", **GPU, sensor="gpu"): "91x20"},
        (
            Firing(
                coded("thermal_slowdown"),
                "gpu1: GPU 0 is too hot: thermal_slowdown",
                "It has 91 °C, GPU-1, 0000:3b:00.0.",
                COOLING,
            ),
        ),
        {"fatal by the policy": reason("thermal_slowdown", "2x20"), "a moment": reason("thermal_slowdown", "_x8 1x2")},
    ),
    Case(
        "GpuPowerBrake",
        "10m",
        reason("power_brake", "1x20")
        | {named("gpu_power_watts", **GPU): "180x20", named("gpu_power_limit_watts", **GPU): "400x20"},
        (
            Firing(
                coded("power_brake"),
                "gpu1: GPU 0 is slowed down by the power supply",
                "It draws 180 W of 400 W, GPU-1, 0000:3b:00.0.",
                "Check the power supplies and their cables, and the power budget of the chassis and the rack.",
            ),
        ),
        {"another code": reason("thermal_slowdown", "1x20")},
    ),
    Case(
        "GpuPcieSlow",
        "10m",
        reason("pcie_width", "1x20")
        | {
            named("gpu_pcie_link_width", **GPU, which="current"): "8x20",
            named("gpu_pcie_link_width", **GPU, which="max"): "16x20",
            named("gpu_pcie_link_generation", **GPU, which="current"): "4x20",
            named("gpu_pcie_link_generation", **GPU, which="max"): "4x20",
        },
        (
            Firing(
                coded("pcie_width"),
                "gpu1: GPU 0 has a slow PCIe link: pcie_width",
                "The link has 8 of 16 lanes and generation 4 of 4, GPU-1, 0000:3b:00.0.",
                RESEAT,
            ),
        ),
        {
            "slow without load, which the agent does not call a fault": {
                named("gpu_pcie_link_generation", **GPU, which="current"): "1x20",
                named("gpu_pcie_link_generation", **GPU, which="max"): "4x20",
            }
        },
    ),
    Case(
        "GpuNvlinkFault",
        "10m",
        reason("nvlink_down", "1x20")
        | {
            named("gpu_nvlink_up", **GPU, link="0"): "1x20",
            named("gpu_nvlink_up", **GPU, link="1"): "0x20",
        },
        (
            Firing(
                coded("nvlink_down"),
                "gpu1: GPU 0 has a faulty NVLink: nvlink_down",
                "1 of 2 links are up, GPU-1, 0000:3b:00.0.",
                "Look for Xid 74 in `sudo dmesg`; reset the GPU, then check bridges and NVSwitches.",
            ),
        ),
        {"a link that never was up": {named("gpu_nvlink_up", **GPU, link="1"): "0x20"}},
    ),
    Case(
        "GpuMemoryRepairPending",
        "10m",
        reason("row_remap_pending", "1x20")
        | {named("gpu_ecc_errors_total", **GPU, type="uncorrected", scope="volatile"): "3x20"},
        (
            Firing(
                coded("row_remap_pending"),
                "gpu1: GPU 0 needs a reset: row_remap_pending",
                "It has had 3 uncorrected errors since the driver was loaded, GPU-1, 0000:3b:00.0.",
                RESET,
            ),
        ),
        {"a short look": reason("row_remap_pending", "_x7 1x3")},
    ),
    Case(
        "GpuSettingWrong",
        "20m",
        reason("persistence_mode", "1x30"),
        (
            Firing(
                coded("persistence_mode"),
                "gpu1: GPU 0 has a wrong setting: persistence_mode",
                "The verdict of persistence_mode is 1 (degraded), GPU-1, 0000:3b:00.0.",
                "Run `gpuops up --tags driver` for the host, which starts nvidia-persistenced.",
            ),
        ),
        {"while somebody works on it": reason("persistence_mode", "_x10 1x20")},
    ),
    Case(
        "GpuDegraded",
        "10m",
        reason("xid_degraded", "1x20") | reason("sxid_degraded", "1x20", NODE),
        (
            Firing(
                coded("xid_degraded"),
                "gpu1: GPU 0 is degraded: xid_degraded",
                "The verdict of xid_degraded is 1 (degraded), GPU-1, 0000:3b:00.0.",
                RESET,
            ),
            Firing(
                coded("sxid_degraded", NODE),
                "gpu1: the GPUs of the host are degraded: sxid_degraded",
                "The verdict of sxid_degraded is 1 (degraded).",
                "See `sudo journalctl -u nvidia-fabricmanager` and look for Xids of the GPUs at the links; if it "
                "happens again, reset the GPUs together with the NVSwitches.",
            ),
        ),
        {
            "what has an alert of its own": reason("pcie_width", "1x20") | reason("mig_mode", "1x20"),
            "fatal": reason("xid_degraded", "2x20"),
        },
    ),
    Case(
        "GpuHealthUnknown",
        "20m",
        {named("gpu_health_status", **BUS): "3x30"},
        (
            Firing(
                BUS,
                "gpu1: the health of GPU 0 is unknown",
                "The verdict is 3 (unknown), GPU-1, 0000:3b:00.0.",
            ),
        ),
        {
            "fatal": {named("gpu_health_status", **BUS): "2x30"},
            "for a moment": {named("gpu_health_status", **BUS): "0x10 3x10"},
        },
    ),
    Case(
        "GpusFewerThanBefore",
        "90m",
        {
            named("gpu_devices", **NODE, source="nvml"): "8x60 7x60",
            named("gpu_devices", **NODE, source="pci"): "8x60 7x60",
        },
        (
            Firing(
                {**NODE, "source": "nvml"},
                "gpu1: only 7 GPUs answer",
                "7 GPUs answer, and 8 were on the PCI bus.",
            ),
        ),
        {
            "all there": {
                named("gpu_devices", **NODE, source="nvml"): "8x120",
                named("gpu_devices", **NODE, source="pci"): "8x120",
            },
            "one more than before": {
                named("gpu_devices", **NODE, source="nvml"): "7x60 8x60",
                named("gpu_devices", **NODE, source="pci"): "7x60 8x60",
            },
        },
    ),
    Case(
        "GpuAgentSilent",
        "40m",
        up("gpu1", "node", "1x60") | {named("gpu_probe_success", **NODE): "1x20 stale"},
        (
            Firing(
                NODE,
                "gpu1: the GPU agent is silent",
                "The host answers (up is 1), and gpu_probe_success has no series.",
            ),
        ),
        {
            "the agent runs": up("gpu1", "node", "1x60") | {named("gpu_probe_success", **NODE): "0x60"},
            "a host without GPUs": up("cpu1", "node", "1x60"),
            "the host is silent": up("gpu1", "node", "0x60") | {named("gpu_probe_success", **NODE): "1x20 stale"},
        },
    ),
    Case(
        "GpuAgentStale",
        "30m",
        {named("node_textfile_mtime_seconds", **NODE, file=FILE): "600x40"},
        (
            Firing(
                {**NODE, "file": FILE},
                "gpu1: the metrics of the GPU agent are old",
                "The agent's file was written 20m 0s ago.",
            ),
        ),
        {
            "written with each look": {named("node_textfile_mtime_seconds", **NODE, file=FILE): "0+60x40"},
            "the file of another program": {named("node_textfile_mtime_seconds", **NODE, file="/x/apt.prom"): "0x40"},
        },
    ),
    Case(
        "GpuProbeFailing",
        "20m",
        {
            named("gpu_probe_success", **NODE): "0x30",
            named("gpu_probe_last_success_timestamp_seconds", **NODE): "300x30",
        },
        (
            Firing(
                NODE,
                "gpu1: the GPU agent cannot look at the GPUs",
                "gpu_probe_success is 0; the last look that succeeded was 15 minutes ago.",
            ),
        ),
        {"a single failure": {named("gpu_probe_success", **NODE): "1x14 0 1x20"}},
    ),
    Case(
        "GpuProbeHung",
        "10m",
        {named("gpu_probe_hung", **NODE): "2x20"},
        (Firing(NODE, "gpu1: looks at the GPUs hang in the driver", "2 processes hang."),),
        {"none hangs": {named("gpu_probe_hung", **NODE): "0x20"}},
    ),
    Case(
        "GpuAllocatedUnused",
        "150m",
        LEASE | {named("gpu_utilization_ratio", **GPU, unit="gpu"): "0x40"},
        (
            Firing(
                {
                    "host": "gpu1",
                    "gpu": "0",
                    "uuid": "GPU-1",
                    "minor": "3",
                    "job_id": "42",
                    "scheduler": "slurm",
                    "user": "alice",
                },
                "gpu1: GPU 0 is unused in job 42 of alice",
                "It was busy for 0% of the time at most, within 15 minutes (slurm, GPU-1).",
                "Ask alice whether job 42 still needs the GPU, and end it if not.",
            ),
        ),
        {
            "nobody has it": {named("gpu_utilization_ratio", **GPU, unit="gpu"): "0x40"},
            "busy at times": LEASE | {named("gpu_utilization_ratio", **GPU, unit="gpu"): "0x12 0.9x2 0x26"},
            "only its memory is busy, as MIG tells": LEASE
            | {named("gpu_utilization_ratio", **GPU, unit="memory"): "0x40"},
        },
        "5m",
    ),
    # A boot has given the GPU another number, and nothing told Prometheus that the old series ended; of others the
    # minor is not known.
    Case(
        "GpuAllocatedUnused",
        "150m",
        LEASE
        | {
            named("gpu_info", **GPU, minor="3"): "1x2 _x38",
            named("gpu_info", **GPU | {"gpu": "1", "driver_version": "570.1"}, minor="3"): "_x2 1x38",
            named("gpu_utilization_ratio", **GPU, unit="gpu"): "0x2 _x38",
            named("gpu_utilization_ratio", **GPU | {"gpu": "1"}, unit="gpu"): "_x2 0x38",
            named("gpu_info", **GPU | {"uuid": "GPU-2", "gpu": "5"}): "1x40",
            named("gpu_info", **GPU | {"uuid": "GPU-3", "gpu": "6"}): "1x40",
            named("gpu_utilization_ratio", **GPU | {"uuid": "GPU-2", "gpu": "5"}, unit="gpu"): "0x40",
            named("gpu_utilization_ratio", **GPU | {"uuid": "GPU-3", "gpu": "6"}, unit="gpu"): "0x40",
        },
        (
            Firing(
                {
                    "host": "gpu1",
                    "gpu": "1",
                    "uuid": "GPU-1",
                    "minor": "3",
                    "job_id": "42",
                    "scheduler": "slurm",
                    "user": "alice",
                },
                "gpu1: GPU 1 is unused in job 42 of alice",
                "It was busy for 0% of the time at most, within 15 minutes (slurm, GPU-1).",
                "Ask alice whether job 42 still needs the GPU, and end it if not.",
            ),
        ),
        {},
        "5m",
    ),
    Case(
        "HostSilent",
        "10m",
        up("gpu1", "node", "0x20"),
        (Firing(NODE, "gpu1: the host is silent", "up of gpu1:9100 is 0 for 3 minutes."),),
        {
            "one lost scrape": up("gpu1", "node", "1x8 0 1x10"),
            "a program on it": up("gpu1", "gpu_agent", "0x20"),
            "the target of Debian's own configuration": {'up{job="node",instance="localhost:9100"}': "0x20"},
        },
    ),
    Case(
        "ManyHostsSilent",
        "10m",
        up("gpu1", "node", "0x20")
        | up("gpu2", "node", "0x20")
        | up("gpu3", "node", "1x20")
        | up("gpu4", "node", "1x20"),
        (Firing({}, "fleet: 50% of the hosts are silent", "Silent: gpu1, gpu2."),),
        {
            "one of two": up("gpu1", "node", "0x20") | up("gpu2", "node", "1x20"),
            "two of twenty": {
                key: value
                for number in range(20)
                for key, value in up(f"gpu{number}", "node", "0x20" if number < 2 else "1x20").items()
            },
        },
    ),
    Case(
        "HostDiskFull",
        "20m",
        # Mounted in two places, it is one file system.
        disk(f"{2 * GIB}x400") | disk(f"{2 * GIB}x400", where={**DISK, "mountpoint": "/home/alice"}),
        (
            Firing(
                FILE_SYSTEM,
                "gpu1: /dev/sda1 is full",
                "2% are free, 2.0 GiB. `df /dev/sda1` shows where it is mounted.",
            ),
        ),
        {"space left": disk(f"{6 * GIB}x400"), "not a disk": disk("0x400", GIB, MEMORY_FS)},
    ),
    Case(
        "HostDiskFillsUp",
        "400m",
        disk(f"{30 * GIB}-{GIB // 4}x80"),
        (
            Firing(
                FILE_SYSTEM,
                "gpu1: /dev/sda1 will be full within a day",
                "10% are free, 10.0 GiB. `df /dev/sda1` shows where it is mounted.",
            ),
        ),
        {
            "as large for hours": disk(f"{20 * GIB}x80"),
            "much is left": disk(f"{60 * GIB}-{GIB // 4}x80"),
        },
        "5m",
    ),
    Case(
        "HostInodesLow",
        "20m",
        {named("node_filesystem_files_free", **DISK): "100x30", named("node_filesystem_files", **DISK): "10000x30"},
        (
            Firing(
                FILE_SYSTEM,
                "gpu1: /dev/sda1 has few inodes left",
                "1% of the inodes are free. `df /dev/sda1` shows where it is mounted.",
            ),
        ),
        {
            "enough": {
                named("node_filesystem_files_free", **DISK): "900x30",
                named("node_filesystem_files", **DISK): "10000x30",
            },
            "a file system without inodes": {
                named("node_filesystem_files_free", **DISK): "0x30",
                named("node_filesystem_files", **DISK): "0x30",
            },
        },
    ),
    Case(
        "HostFilesystemReadOnly",
        "10m",
        {named("node_filesystem_readonly", **DISK): "1x20"},
        (
            Firing(
                DISK,
                "gpu1: / is read-only",
                "node_filesystem_readonly of /dev/sda1 is 1.",
                "Look into `sudo dmesg` for errors of /dev/sda1, drain the host, and check or replace the disk.",
            ),
        ),
        {
            "writable": {named("node_filesystem_readonly", **DISK): "0x20"},
            "a disc that is meant so": {
                named("node_filesystem_readonly", **{**DISK, "mountpoint": "/mnt/iso"}): "1x20"
            },
        },
    ),
    Case(
        "HostClockWrong",
        "20m",
        {named("node_time_seconds", **NODE): "90+60x30"},
        (Firing(NODE, "gpu1: the clock is wrong", "It differs by 1m 30s from the clock of Prometheus."),),
        {"a second": {named("node_time_seconds", **NODE): "1+60x30"}},
    ),
    Case(
        "HostClockUnsynchronized",
        "40m",
        {named("node_timex_sync_status", **NODE): "0x60", named("node_timex_maxerror_seconds", **NODE): "16x60"},
        (
            Firing(
                NODE,
                "gpu1: the clock is not synchronized",
                "node_timex_sync_status is 0, and the error may be 16 s or more.",
            ),
        ),
        {
            "kept by a program that does not tell the kernel": {
                named("node_timex_sync_status", **NODE): "0x60",
                named("node_timex_maxerror_seconds", **NODE): "0.5x60",
            }
        },
    ),
    Case(
        "HostMemoryLow",
        "20m",
        {
            named("node_memory_MemAvailable_bytes", **NODE): f"{GIB}x30",
            named("node_memory_MemTotal_bytes", **NODE): f"{100 * GIB}x30",
        },
        (Firing(NODE, "gpu1: almost no memory is left", "1% are available, 1.0 GiB."),),
        {
            "enough": {
                named("node_memory_MemAvailable_bytes", **NODE): f"{5 * GIB}x30",
                named("node_memory_MemTotal_bytes", **NODE): f"{100 * GIB}x30",
            }
        },
    ),
    Case(
        "CertificateExpiresSoon",
        "2h",
        {named("baremetal_gpu_certificate_expiry_timestamp_seconds", **CERTIFICATE): f"{10 * DAY + 7200}x200"},
        (
            Firing(
                CERTIFICATE,
                "gpu1: /etc/ssl/portal.pem expires soon",
                "It expires in 10d 0h 0m 0s.",
                f"Run `gpuops up`, which renews the certificates that it made. {OWN_OR_OTHERS}",
            ),
        ),
        {"in a month": {named("baremetal_gpu_certificate_expiry_timestamp_seconds", **CERTIFICATE): f"{30 * DAY}x200"}},
    ),
    Case(
        "CertificateExpiresNow",
        "2h",
        {named("baremetal_gpu_certificate_expiry_timestamp_seconds", **CERTIFICATE): "3600x200"},
        (
            Firing(
                CERTIFICATE,
                "gpu1: /etc/ssl/portal.pem expires within two days or has expired",
                "It expires in -1h 0m 0s.",
                f"Run `gpuops up` now, which renews the certificates that it made. {OWN_OR_OTHERS}",
            ),
        ),
        {
            "in ten days": {
                named("baremetal_gpu_certificate_expiry_timestamp_seconds", **CERTIFICATE): f"{10 * DAY}x200"
            }
        },
    ),
    Case(
        "CertificateUnreadable",
        "20m",
        {named("baremetal_gpu_certificate_readable", **CERTIFICATE): "0x30"},
        (
            Firing(
                CERTIFICATE,
                "gpu1: /etc/ssl/portal.pem cannot be read as a certificate",
                "baremetal_gpu_certificate_readable is 0.",
                "See `sudo journalctl -u baremetal-gpu-host-metrics` on gpu1; correct the file, or remove it from "
                "node_exporter_certificates.",
            ),
        ),
        {"it is renewed just now": {named("baremetal_gpu_certificate_readable", **CERTIFICATE): "1x18 0 1x20"}},
    ),
    Case(
        "HostMetricsFailing",
        "30m",
        {named("baremetal_gpu_host_part_success", **NODE, part="homes"): "0x40"},
        (
            Firing(
                {**NODE, "part": "homes"},
                "gpu1: no metrics of homes",
                "baremetal_gpu_host_part_success is 0.",
                "See `sudo journalctl -u baremetal-gpu-host-metrics` on gpu1, which says why.",
            ),
        ),
        {"it works": {named("baremetal_gpu_host_part_success", **NODE, part="homes"): "1x40"}},
    ),
    Case(
        "HostMetricsOld",
        "30m",
        {named("node_textfile_mtime_seconds", **NODE, file=HOST_FILE): "600x40"},
        (
            Firing(
                {**NODE, "file": HOST_FILE},
                f"gpu1: {HOST_FILE} is old",
                "It was written 20m 0s ago.",
                "See `systemctl status baremetal-gpu-host-metrics.timer baremetal-gpu-reconciler` on gpu1, and whether "
                "its disk is full.",
            ),
        ),
        {
            "written each minute": {named("node_textfile_mtime_seconds", **NODE, file=HOST_FILE): "0+60x40"},
            "the file of another program": {named("node_textfile_mtime_seconds", **NODE, file="/x/apt.prom"): "0x40"},
        },
    ),
    Case(
        "LogSenderSilent",
        "50m",
        {
            named("baremetal_gpu_log_store_written_timestamp_seconds", host="log1", job="node", sender="gpu1"): "0x60",
        },
        (
            Firing(
                {"host": "gpu1", "sender": "gpu1"},
                "gpu1: its journal does not reach the log host",
                "The log host wrote its last entry 50m 0s ago.",
                "See `sudo journalctl -u systemd-journal-upload` on gpu1, and `sudo journalctl -t baremetal_gpu_log` "
                "on the log host, which names refused senders.",
            ),
        ),
        {
            "it writes each minute": {
                named(
                    "baremetal_gpu_log_store_written_timestamp_seconds", host="log1", job="node", sender="gpu1"
                ): "0+60x60"
            }
        },
    ),
    Case(
        "LogEntriesDropped",
        "70m",
        {named("baremetal_gpu_log_sender_dropped_entries_total", **NODE): "0x30 120x60"},
        (
            Firing(
                NODE,
                "gpu1: entries of its journal were dropped",
                "About 120 entries within an hour.",
            ),
        ),
        {"none was": {named("baremetal_gpu_log_sender_dropped_entries_total", **NODE): "120x90"}},
    ),
    Case(
        "CephSilent",
        "10m",
        up("stor1", "ceph", "0x20") | up("stor2", "ceph", "1x20"),
        (
            Firing(
                {},
                "ceph: no mgr reports on the cluster",
                "ceph_health_status has no series from 2 mgrs.",
            ),
        ),
        {
            "one mgr is enough": up("stor1", "ceph", "0x20") | {named("ceph_health_status", **CEPH): "0x20"},
            "a site without Ceph": up("gpu1", "node", "1x20"),
        },
    ),
    Case(
        "CephHealthError",
        "10m",
        {
            named("ceph_health_status", **CEPH): "2x20",
            named("ceph_health_detail", **CEPH, name="OSD_FULL", severity="HEALTH_ERR"): "1x20",
            named("ceph_health_detail", **CEPH, name="OSD_DOWN", severity="HEALTH_WARN"): "0x20",
        },
        (Firing({}, "ceph: HEALTH_ERR", "ceph_health_status is 2 (error): OSD_FULL."),),
        {"warning": {named("ceph_health_status", **CEPH): "1x20"}},
    ),
    Case(
        "CephHealthWarning",
        "20m",
        {
            named("ceph_health_status", **CEPH): "1x30",
            named("ceph_health_detail", **CEPH, name="OSD_DOWN", severity="HEALTH_WARN"): "1x30",
        },
        (Firing({}, "ceph: HEALTH_WARN", "ceph_health_status is 1 (warning): OSD_DOWN."),),
        {
            "ok": {named("ceph_health_status", **CEPH): "0x30"},
            "during a restart": {named("ceph_health_status", **CEPH): "0x15 1x5 0x10"},
        },
    ),
    Case(
        "CephOsdDown",
        "1h",
        {
            # Ceph tells nothing of it any more when it is out.
            named("ceph_osd_up", **CEPH, ceph_daemon="osd.3"): "0x10 _x60",
            named("ceph_osd_metadata", **CEPH, ceph_daemon="osd.3", hostname="stor2", device_class="ssd"): "1x10 _x60",
            named("ceph_osd_up", **CEPH, ceph_daemon="osd.4"): "1x70",
            named("ceph_osd_metadata", **CEPH, ceph_daemon="osd.4", hostname="stor2", device_class="ssd"): "1x70",
        },
        (
            Firing(
                {"ceph_daemon": "osd.3", "host": "stor2", "hostname": "stor2"},
                "stor2: osd.3 is down",
                "ceph_osd_up of osd.3 is 0.",
                "See `sudo journalctl -u 'ceph-osd@*'` and `sudo dmesg` on stor2. `sudo systemctl start "
                "ceph-osd.target` "
                "there starts what has ended; a broken disk is replaced with the playbook "
                "baremetal.gpu.storage_replace_osd.",
            ),
        ),
        {
            "up": {named("ceph_osd_up", **CEPH, ceph_daemon="osd.3"): "1x70"},
            "removed": {named("ceph_osd_up", **CEPH, ceph_daemon="osd.3"): "1x10 _x60"},
            "up again, as another mgr tells": {
                named("ceph_osd_up", **CEPH, ceph_daemon="osd.3"): "0x10 _x60",
                named("ceph_osd_up", **{**CEPH, "instance": "stor2:9283"}, ceph_daemon="osd.3"): "_x20 1x50",
                named("ceph_osd_metadata", **CEPH, ceph_daemon="osd.3", hostname="stor2"): "1x70",
            },
        },
    ),
    # The disks have gone to another host within the day.
    Case(
        "CephOsdDown",
        "3h",
        {
            named("ceph_osd_up", **CEPH, ceph_daemon="osd.3"): "1x120 0x30 _x60",
            named("ceph_osd_metadata", **CEPH, ceph_daemon="osd.3", hostname="stor9"): "1x60 _x150",
            named("ceph_osd_metadata", **CEPH, ceph_daemon="osd.3", hostname="stor2"): "_x60 1x90 _x60",
        },
        (
            Firing(
                {"ceph_daemon": "osd.3", "host": "stor2", "hostname": "stor2"},
                "stor2: osd.3 is down",
                "ceph_osd_up of osd.3 is 0.",
                "See `sudo journalctl -u 'ceph-osd@*'` and `sudo dmesg` on stor2. `sudo systemctl start "
                "ceph-osd.target` "
                "there starts what has ended; a broken disk is replaced with the playbook "
                "baremetal.gpu.storage_replace_osd.",
            ),
        ),
    ),
    Case(
        "CephMonDown",
        "20m",
        monitors(1, 1, 0),
        (
            Firing(
                {"ceph_daemon": "mon.stor3", "host": "stor3", "hostname": "stor3"},
                "stor3: mon.stor3 is not in the quorum",
                "ceph_mon_quorum_status of mon.stor3 is 0.",
                "Run `sudo systemctl start ceph-mon.target` on stor3; `sudo journalctl -u 'ceph-mon@*'` says why it "
                "ended.",
            ),
        ),
        {"all in": monitors(1, 1, 1)},
    ),
    # Two mgrs name its host in two ways.
    Case(
        "CephMonDown",
        "20m",
        monitors(1, 1, 0)
        | {
            named(
                "ceph_mon_metadata",
                **CEPH | {"instance": "stor2:9283"},
                ceph_daemon="mon.stor3",
                hostname="stor3.example.org",
            ): "1x18 _x40"
        },
        (
            Firing(
                {"ceph_daemon": "mon.stor3", "host": "stor3", "hostname": "stor3"},
                "stor3: mon.stor3 is not in the quorum",
                "ceph_mon_quorum_status of mon.stor3 is 0.",
                "Run `sudo systemctl start ceph-mon.target` on stor3; `sudo journalctl -u 'ceph-mon@*'` says why it "
                "ended.",
            ),
        ),
    ),
    Case(
        "CephMonQuorumAtRisk",
        "20m",
        monitors(1, 1, 0),
        (
            Firing(
                {},
                "ceph: one more lost monitor stops the storage",
                "2 monitors of 3 are in the quorum.",
            ),
        ),
        {"all in": monitors(1, 1, 1), "one of one": monitors(1), "one of five is out": monitors(1, 1, 1, 1, 0)},
    ),
    Case(
        "CephFilesystemWithoutMds",
        "10m",
        FS | {mds("-1"): "1x60"},
        (
            Firing(
                {"fs_id": "1", "name": "cephfs"},
                "ceph: no MDS serves the file system cephfs",
                "ceph_mds_metadata has no MDS with a rank for cephfs (id 1).",
            ),
        ),
        {"served": FS | {mds("0"): "1x60"}, "a cluster without a file system": {mds("-1"): "1x60"}},
    ),
    Case(
        "CephNoMdsOnStandby",
        "20m",
        FS
        | {
            mds("0"): "1x60",
            'up{job="node",host="st1",role="ceph_mdss"}': "1x60",
            'up{job="node",host="st2",role="ceph_mdss,ceph_mons"}': "0x60",
        },
        (
            Firing(
                {},
                "ceph: no MDS is on standby",
                "ceph_mds_metadata has no MDS without a rank, for 1 file systems.",
            ),
        ),
        {
            "one is": FS | {mds("0"): "1x60", mds("-1"): "1x60"},
            "the site has one": FS
            | {
                mds("0"): "1x60",
                'up{job="node",host="head1",role="slurm_controllers,ceph_mdss,registries"}': "1x60",
                'up{job="node",host="gpu1",role="slurm_nodes"}': "1x60",
            },
        },
    ),
    Case(
        "CephCapacityLow",
        "90m",
        capacity(8),
        (Firing({}, "ceph: 80% of the capacity is used", "8.0 of 10.0 TiB are used (raw)."),),
        {"enough": capacity(7)},
    ),
    Case(
        "CephCapacityCritical",
        "20m",
        capacity(9),
        (Firing({}, "ceph: 90% of the capacity is used", "9.0 of 10.0 TiB are used (raw)."),),
        {"low": capacity(8)},
    ),
    Case(
        "HomeNearQuota",
        "90m",
        home(95, 100),
        (
            Firing(
                {"user": "alice"},
                "home of alice: 95% of the quota is used",
                "95.0 of 100.0 GiB are used.",
                "Ask alice to remove data, or raise the quota in `cephfs_homes_users` and run "
                "`gpuops up --tags storage`.",
            ),
        ),
        {"space left": home(80, 100), "without a quota": home(80, 0)},
    ),
    Case(
        "ZookeeperServerMissing",
        "10m",
        servers(1, 1, 0),
        (
            Firing(
                {},
                "zookeeper: only 2 servers serve",
                "2 servers of 3 serve. Not zk3.",
            ),
        ),
        {"all serve": servers(1, 1, 1)},
    ),
    Case(
        "ZookeeperQuorumLost",
        "10m",
        servers(0),
        (Firing({}, "zookeeper: the quorum is lost", "0 servers of 3 serve."),),
        {"two of three": servers(1, 1), "two of three, one says no": servers(1, 1, 0)},
    ),
    Case(
        "RegistryFull",
        "10m",
        images(5 * GIB),
        (
            Firing(
                REGISTRY,
                "reg1: the registry refuses new images",
                "5.0 GiB are free; the minimum is 20.0 GiB.",
                "Delete images that are not needed with `skopeo delete docker://HOST:PORT/NAME:TAG` and run `sudo "
                "systemctl start baremetal-gpu-registry-collect` on reg1, or enlarge the file system.",
            ),
        ),
        {"space left": images(21 * GIB)},
    ),
    Case(
        "RegistrySpaceNotFreed",
        "80h",
        {named("baremetal_gpu_registry_collected_timestamp_seconds", **REGISTRY): "0x160"},
        (
            Firing(
                REGISTRY,
                "reg1: the registry does not free space",
                "The last time was 3d 8h 0m 0s ago.",
                "Read `sudo journalctl -u baremetal-gpu-registry-collect` on reg1: it waits until no image "
                "is being pushed, or "
                "says what it cannot read.",
            ),
        ),
        {
            "every night": {
                named("baremetal_gpu_registry_collected_timestamp_seconds", **REGISTRY): f"0x100 {70 * 3600}x60"
            }
        },
        interval="30m",
    ),
    Case(
        "BackupOld",
        "56h",
        {named("baremetal_gpu_backup_timestamp_seconds", **SLURM): "0x160"},
        (
            Firing(
                SLURM,
                "head1: no backup for two days",
                "The last one was made 2d 8h 0m 0s ago.",
                "Read `sudo journalctl -u baremetal-gpu-backup` on head1, which says what could not be read or "
                "written, and run `sudo systemctl start baremetal-gpu-backup` there.",
            ),
        ),
        {"every night": {named("baremetal_gpu_backup_timestamp_seconds", **SLURM): f"0x50 {24 * 3600}x90"}},
        interval="30m",
    ),
    Case(
        "PortalHubDown",
        "10m",
        {named("portal_hub_up", **PORTAL): "0x20"},
        (
            Firing(
                PORTAL,
                "login1: the hub of the portal does not answer",
                "portal_hub_up is 0.",
                "See `sudo journalctl -u baremetal-gpu-portal` on login1, which says why the hub ended or "
                "does not answer.",
            ),
        ),
        {
            "it is restarted": {named("portal_hub_up", **PORTAL): "1 0 1x20"},
            "a site without a portal": up("gpu1", "node", "1x20"),
        },
    ),
    Case(
        "PortalProxyDown",
        "10m",
        {named("portal_proxy_up", **PORTAL): "0x20"},
        (
            Firing(
                PORTAL,
                "login1: the proxy of the portal does not answer",
                "portal_proxy_up is 0.",
                "See `sudo journalctl -u baremetal-gpu-portal-proxy` on login1, and whether another program uses "
                "its port.",
            ),
        ),
        {"it answers": {named("portal_proxy_up", **PORTAL): "1x20"}},
    ),
    Case(
        "PortalStartsFail",
        "30m",
        starts("0+1x60", "7x60"),
        (
            Firing(
                {**PORTAL, "result": "failed"},
                "login1: sessions of the portal fail to start",
                "30 failed within half an hour, and none started.",
                "See `sudo journalctl -u baremetal-gpu-portal -u 'baremetal-gpu-portal-session@*'` on login1, which "
                "has the errors of Slurm and of the session.",
            ),
        ),
        {
            "others start": starts("0+1x60", "0+1x60"),
            "one fails": starts("0 1x60", "7x60"),
            "none is asked for": starts("9x60", "7x60"),
        },
    ),
    Case(
        "PortalSessionsUnmeasured",
        "30m",
        sessions("2x60"),
        (
            Firing(
                {**PORTAL, "reason": "silent"},
                "login1: sessions of the portal are not measured",
                "2 of 5 sessions send no measurements.",
            ),
        ),
        {"all are": sessions("0x60"), "a part of a GPU cannot be": sessions("0x60", "2x60")},
    ),
    Case(
        "PortalMetricsOld",
        "20m",
        {named("portal_told_timestamp_seconds", **PORTAL): "0x60", named("portal_hub_up", **PORTAL): "1x60"},
        (
            Firing(
                PORTAL,
                "login1: the metrics of the portal are old",
                "They are 20m 0s old.",
                "See `sudo journalctl -u baremetal-gpu-portal` on login1, and whether its disk is full.",
            ),
        ),
        {
            "the hub is down": {
                named("portal_told_timestamp_seconds", **PORTAL): "0x60",
                named("portal_hub_up", **PORTAL): "0x60",
            },
            "it tells": {
                named("portal_told_timestamp_seconds", **PORTAL): "0+60x60",
                named("portal_hub_up", **PORTAL): "1x60",
            },
        },
    ),
    Case(
        "SlurmControllerDown",
        "10m",
        up("head1", "node", "1x20", slurm_controller="yes") | {named("slurm_controller_up", **SLURM): "0x20"},
        (
            Firing(
                {},
                "slurm: no slurmctld answers",
                "slurm_controller_up is 0 on all hosts, or has no series.",
            ),
        ),
        {
            "one of two answers": {
                named("slurm_controller_up", **SLURM): "0x20",
                named("slurm_controller_up", **{**SLURM, "host": "head2"}): "1x20",
            },
            "a site without Slurm": up("gpu1", "node", "1x20"),
        },
    ),
    Case(
        "SlurmControllerDown",
        "10m",
        up("head1", "node", "0x20", slurm_controller="yes"),
        (
            Firing(
                {},
                "slurm: no slurmctld answers",
                "slurm_controller_up is 0 on all hosts, or has no series.",
            ),
        ),
    ),
    Case(
        "SlurmDatabaseDown",
        "20m",
        {named("slurm_database_up", **SLURM): "0x30"},
        (Firing({}, "slurm: slurmdbd does not answer", "slurm_database_up is 0."),),
        {"it answers": {named("slurm_database_up", **SLURM): "1x30"}},
    ),
    Case(
        "SlurmMetricsOld",
        "20m",
        {
            named("slurm_last_success_timestamp_seconds", **SLURM): "300x30",
            named("slurm_controller_up", **SLURM): "1x30",
        },
        (
            Firing(
                SLURM,
                "head1: the metrics of Slurm are old",
                "They are 15m 0s old.",
                "See `sudo journalctl -u baremetal-gpu-slurm-metrics` on head1, and whether its disk is full.",
            ),
        ),
        {
            "fresh": {
                named("slurm_last_success_timestamp_seconds", **SLURM): "0+60x30",
                named("slurm_controller_up", **SLURM): "1x30",
            },
            "slurmctld does not answer, which has an alert": {
                named("slurm_last_success_timestamp_seconds", **SLURM): "300x30",
                named("slurm_controller_up", **SLURM): "0x30",
            },
        },
    ),
    Case(
        "SlurmNodeDown",
        "20m",
        slurm_node("DOWN+DRAIN", reason="Not responding"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: down for Slurm",
                "State DOWN+DRAIN, reason Not responding.",
                "See `sudo journalctl -u slurmd` on gpu1; when slurmd runs, use `sudo scontrol update "
                "nodename=gpu1 state=resume`.",
            ),
        ),
        {
            "idle": slurm_node("IDLE"),
            "drained": slurm_node("IDLE+DRAIN"),
            "down to save energy": slurm_node("IDLE+POWERED_DOWN"),
            "powering down": slurm_node("IDLE+POWERING_DOWN"),
        },
    ),
    Case(
        "SlurmNodeDown",
        "20m",
        slurm_node("IDLE+NOT_RESPONDING"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: down for Slurm",
                "State IDLE+NOT_RESPONDING.",
                "See `sudo journalctl -u slurmd` on gpu1; when slurmd runs, use `sudo scontrol update "
                "nodename=gpu1 state=resume`.",
            ),
        ),
    ),
    Case(
        "SlurmNodeDrainedLong",
        "1500m",
        slurm_node("IDLE+DRAIN", "1x320", reason="disk"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: drained for more than a day",
                "State IDLE+DRAIN, reason disk.",
                "Repair what the reason names, then run `gpuops restore gpu1`.",
            ),
        ),
        {"since an hour": slurm_node("IDLE+DRAIN", "_x288 1x32"), "mixed": slurm_node("MIXED", "1x320")},
        "5m",
    ),
    Case(
        "SlurmHolderStuck",
        "5m",
        {holder_stuck("QOSMaxWallDurationPerJobLimit"): "1x10"},
        (
            Firing(
                {"node": "gpu1", "host": "gpu1", "reason": "QOSMaxWallDurationPerJobLimit"},
                "gpu1: a bad GPU cannot be taken out of service",
                "1 job of the reconciler waits for QOSMaxWallDurationPerJobLimit.",
            ),
        ),
        {"for a minute": {holder_stuck("AssocGrpGRES"): "_x4 1"}},
    ),
    Case(
        "SlurmGpuNotFenced",
        "10m",
        not_fenced(),
        (
            Firing(
                {"host": "gpu1"},
                "gpu1: Slurm still gives a fatal GPU to jobs",
                "1 GPUs are fatal, fewer are fenced, and the node takes jobs.",
                "Run `gpuops drain gpu1`; `sudo gpuops-reconciler status` on the controller says why the GPU is not "
                "fenced.",
            ),
        ),
        {
            "fenced": not_fenced(fenced="1x20"),
            "the node takes no jobs": not_fenced(available="0x20"),
            "until it is fenced": not_fenced(fenced="0x8 1x20"),
            "a host without Slurm": {named("gpu_health_status", **BUS): "2x20"},
        },
    ),
    Case(
        "KubernetesApiDown",
        "5m",
        {named("kubernetes_api_up", **SLURM): "0x20"},
        (
            Firing(
                {},
                "kubernetes: the API server does not answer",
                "kubernetes_api_up is 0 on all control planes, or has no series.",
            ),
        ),
        {
            "it answers one of two": {
                named("kubernetes_api_up", **SLURM): "0x20",
                named("kubernetes_api_up", **{**SLURM, "host": "head2"}): "1x20",
            },
            "a site without one": up("gpu1", "node", "1x20"),
        },
    ),
    Case(
        "KubernetesApiDown",
        "5m",
        up("head1", "node", "1x20", kubernetes_control_plane="yes"),
        (
            Firing(
                {},
                "kubernetes: the API server does not answer",
                "kubernetes_api_up is 0 on all control planes, or has no series.",
            ),
        ),
    ),
    Case(
        "KubernetesEtcdQuorumLost",
        "5m",
        {named("kubernetes_etcd_has_leader", **{**SLURM, "host": name}): "1x1 0x20" for name in ("head1", "head2")},
        (
            Firing(
                {},
                "kubernetes: etcd has no quorum",
                "kubernetes_etcd_has_leader is 0 on all control planes.",
            ),
        ),
        {"one of three is down": etcd(has_leader="0x40")},
    ),
    Case(
        "KubernetesEtcdMemberDown",
        "10m",
        etcd(has_leader="0x40"),
        (
            Firing(
                SLURM,
                "head1: its member of etcd is not part of the quorum",
                "kubernetes_etcd_has_leader is 0.",
                "On head1 see `sudo crictl logs $(sudo crictl ps -a --name etcd -q | head -1)` and "
                "`df -h /var/lib/etcd`.",
            ),
        ),
        {"all answer": etcd(), "an election": etcd(has_leader="1x3 0 1x30")},
    ),
    Case(
        "KubernetesEtcdSlow",
        "30m",
        etcd(fsync_seconds_total="0+9x40"),
        (
            Firing(
                SLURM,
                "head1: the disk of etcd is slow",
                "A write to the disk takes 150ms on average.",
                "See with `iostat -x 5` on head1 what else uses the disk of /var/lib/etcd; give etcd a disk of its "
                "own, or a faster one.",
            ),
        ),
        {"10 ms": etcd(), "slow for some minutes": etcd(fsync_seconds_total="0+0.6x20 21+9x3 48+0.6x20")},
    ),
    Case(
        "KubernetesEtcdNearlyFull",
        "15m",
        etcd(database_bytes="1.8e9x40"),
        (
            Firing(
                SLURM,
                "head1: the database of etcd is nearly full",
                "90% of the quota are used.",
            ),
        ),
        {"5 %": etcd()},
    ),
    Case(
        "KubernetesSnapshotOld",
        "2000m",
        {named("kubernetes_etcd_snapshot_timestamp_seconds", **SLURM): "1800x420"},
        (
            Firing(
                SLURM,
                "head1: no snapshot of etcd for a day",
                "The newest is of 1970-01-01 00:30:00 +0000 UTC; without one it is 1970.",
                "Read `sudo journalctl -u baremetal-gpu-etcd-snapshot` on head1, and run `sudo systemctl start "
                "baremetal-gpu-etcd-snapshot` there.",
            ),
        ),
        {
            "every six hours": {
                named("kubernetes_etcd_snapshot_timestamp_seconds", **SLURM): "0+300x420",
            }
        },
        "5m",
    ),
    Case(
        "KubernetesNodeNotReady",
        "20m",
        kubernetes_node("NotReady"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: not ready for pods",
                "State NotReady.",
                "Run `gpuops doctor gpu1`, which names the cause; `sudo journalctl -u kubelet` is on the node.",
            ),
        ),
        {
            "ready": kubernetes_node("Ready"),
            "cordoned": kubernetes_node("Ready,SchedulingDisabled"),
            "a boot": kubernetes_node("Unknown", "_x10 1x2 _x20"),
        },
    ),
    Case(
        "KubernetesNodeNotReady",
        "20m",
        kubernetes_node("Unknown,SchedulingDisabled"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: not ready for pods",
                "State Unknown,SchedulingDisabled.",
                "Run `gpuops doctor gpu1`, which names the cause; `sudo journalctl -u kubelet` is on the node.",
            ),
        ),
    ),
    Case(
        "KubernetesNodeCordonedLong",
        "1500m",
        kubernetes_node("Ready,SchedulingDisabled", "1x320"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1"},
                "gpu1: cordoned for more than a day",
                "State Ready,SchedulingDisabled.",
                "`gpuops status` says who cordoned it and why. Once it is repaired, run `gpuops restore gpu1`; for a "
                "cordon of kubectl `kubectl uncordon gpu1`.",
            ),
        ),
        {
            "since an hour": kubernetes_node("Ready,SchedulingDisabled", "_x288 1x32"),
            "ready": kubernetes_node("Ready", "1x320"),
        },
        "5m",
    ),
    Case(
        "KubernetesGpusNotGiven",
        "10m",
        kubernetes_problem("gpus_not_watched"),
        (
            Firing(
                {"node": "gpu1", "host": "gpu1", "problem": "gpus_not_watched"},
                "gpu1: its GPUs are not given to pods",
                "gpus_not_watched: 1.",
                "See `systemctl status baremetal-gpu-kubernetes` and `sudo journalctl -u baremetal-gpu-kubernetes` on "
                "gpu1; `gpuops up --tags kubernetes` installs the daemon.",
            ),
        ),
        {
            "another problem": kubernetes_problem("pressure"),
            "until the daemon has started": kubernetes_problem("gpus_not_registered", "1x3"),
        },
    ),
    Case(
        "KubernetesGpuNotWithheld",
        "10m",
        not_withheld(),
        (
            Firing(
                {"host": "gpu1"},
                "gpu1: Kubernetes still gives a fatal GPU to pods",
                "1 GPUs are fatal, fewer are withheld, and the node takes pods.",
                "Run `gpuops drain gpu1`; `sudo journalctl -u baremetal-gpu-kubernetes` there says why the GPU is not "
                "withheld.",
            ),
        ),
        {
            "withheld": not_withheld(withheld="1x20"),
            "the node takes no pods": not_withheld(available="0x20"),
            "until it is withheld": not_withheld(withheld="0x8 1x20"),
            "a host without Kubernetes": {named("gpu_health_status", **BUS): "2x20"},
        },
    ),
    Case(
        "KubernetesPodWaitsLong",
        "1m",
        {named("kubernetes_gpu_pod_waiting_timestamp_seconds", **SLURM, namespace="alice"): f"{60 - DAY}x5"},
        (
            Firing(
                {"namespace": "alice"},
                "kubernetes: a pod of alice has waited for a GPU for half a day",
                "It has waited for 1d 0h 0m 0s.",
            ),
        ),
        {
            "since an hour": {
                named("kubernetes_gpu_pod_waiting_timestamp_seconds", **SLURM, namespace="alice"): "-3600x5"
            }
        },
    ),
    Case(
        "ReconcilerNoLeader",
        "10m",
        {
            named("gpuops_reconciler_leader", **RECONCILER): "0x20",
            named("gpuops_reconciler_leader", **{**RECONCILER, "host": "head2"}): "0x20",
        },
        (
            Firing(
                {},
                "reconciler: there is no leader",
                "gpuops_reconciler_leader is 0 on all hosts, or has no series.",
            ),
        ),
        {
            "one of two leads": {
                named("gpuops_reconciler_leader", **RECONCILER): "0x20",
                named("gpuops_reconciler_leader", **{**RECONCILER, "host": "head2"}): "1x20",
            },
            "a site without one": up("gpu1", "node", "1x20"),
        },
    ),
    Case(
        "ReconcilerFenceLong",
        "1m",
        {
            named("gpuops_reconciler_fence_timestamp_seconds", **RECONCILER, node="gpu1", uuid="GPU-1", step="hold"): (
                f"{60 - 3 * DAY}x5"
            )
        },
        (
            Firing(
                {"host": "gpu1", "node": "gpu1", "uuid": "GPU-1", "step": "hold"},
                "gpu1: GPU-1 has been fenced for days",
                "The fence is 3d 0h 0m 0s old, at the step hold.",
                "Repair what `sudo gpuops-reconciler status` names on its host, then run "
                "`sudo gpuops-reconciler clear gpu1` there.",
            ),
        ),
        {
            "since a day": {
                named("gpuops_reconciler_fence_timestamp_seconds", **RECONCILER, node="gpu1", step="drain"): (
                    f"{-1 * DAY}x5"
                )
            }
        },
    ),
    Case(
        "ReconcilerBreakerHolds",
        "5m",
        {named("gpuops_reconciler_breaker_waiting_hosts", **RECONCILER): "3x10"},
        (Firing({}, "reconciler: the fleet breaker holds", "3 hosts wait to be taken out of service."),),
        {"nothing waits": {named("gpuops_reconciler_breaker_waiting_hosts", **RECONCILER): "0x10"}},
    ),
    Case(
        "ReconcilerQuarantine",
        "1m",
        {named("gpuops_reconciler_quarantine_info", **RECONCILER, node="gpu1", uuid="GPU-1"): "1x10"},
        (
            Firing(
                {"host": "gpu1", "node": "gpu1", "uuid": "GPU-1"},
                "gpu1: GPU-1 is in quarantine",
                "gpuops_reconciler_quarantine_info is 1.",
                "Have the GPU replaced, then run `sudo gpuops-reconciler clear gpu1:GPU-1`.",
            ),
        ),
        {"none": {named("gpuops_reconciler_leader", **RECONCILER): "1x10"}},
    ),
    Case(
        "ReconcilerProblems",
        "20m",
        {named("gpuops_reconciler_problems", **RECONCILER): "2x30"},
        (
            Firing(
                {},
                "reconciler: it has problems",
                "2 problems have lasted for a quarter of an hour.",
            ),
        ),
        {
            "none": {named("gpuops_reconciler_problems", **RECONCILER): "0x30"},
            "for a moment": {named("gpuops_reconciler_problems", **RECONCILER): "0x15 1x5 0x10"},
        },
    ),
    Case(
        "Watchdog",
        "1m",
        {"nothing": "0x5"},
        (Firing({}, "monitoring: it works", "The value is always 1."),),
    ),
    Case(
        "TargetDown",
        "20m",
        up("head1", "slurm", "0x30"),
        (
            Firing(
                {"host": "head1", "instance": "head1:9100", "job": "slurm"},
                "head1: slurm does not answer Prometheus",
                "up of head1:9100 is 0.",
                "See whether the program runs on head1, and whether its port can be reached from Prometheus.",
            ),
        ),
        {
            "a host": up("gpu1", "node", "0x30"),
            "a mgr on standby": up("stor2", "ceph", "0x30"),
            "up": up("head1", "slurm", "1x30"),
        },
    ),
    Case(
        "TextfileUnreadable",
        "20m",
        {named("node_textfile_scrape_error", **NODE): "1x30"},
        (
            Firing(
                NODE,
                "gpu1: node_exporter cannot read a file of metrics",
                "node_textfile_scrape_error is 1.",
                "See `sudo journalctl -u prometheus-node-exporter` on gpu1, which names the file.",
            ),
        ),
        {"readable": {named("node_textfile_scrape_error", **NODE): "0x30"}},
    ),
    Case(
        "RuleEvaluationFailing",
        "20m",
        {named("prometheus_rule_evaluation_failures_total", **PROMETHEUS, rule_group="gpu.yml;gpu"): "0+1x30"},
        (
            Firing(
                {**PROMETHEUS, "rule_group": "gpu.yml;gpu"},
                "mon1: Prometheus cannot evaluate a rule",
                "15 failures within 15 minutes in gpu.yml;gpu.",
                "See `sudo journalctl -u prometheus` on mon1, which names the rule and the cause.",
            ),
        ),
        {
            "of long ago": {
                named("prometheus_rule_evaluation_failures_total", **PROMETHEUS, rule_group="gpu.yml;gpu"): "7x30"
            }
        },
    ),
    Case(
        "PrometheusReloadFailed",
        "10m",
        {
            named("prometheus_config_last_reload_successful", **PROMETHEUS): "0x20",
            named("alertmanager_config_last_reload_successful", **ALERTMANAGER): "0x20",
        },
        (
            Firing(
                PROMETHEUS,
                "mon1: prometheus refuses its configuration",
                "config_last_reload_successful is 0.",
                "See `sudo journalctl -u prometheus -u prometheus-alertmanager` on mon1, which names the line.",
            ),
            Firing(
                ALERTMANAGER,
                "mon1: alertmanager refuses its configuration",
                "config_last_reload_successful is 0.",
                "See `sudo journalctl -u prometheus -u prometheus-alertmanager` on mon1, which names the line.",
            ),
        ),
        {"loaded": {named("prometheus_config_last_reload_successful", **PROMETHEUS): "1x20"}},
    ),
    Case(
        "PrometheusStorageFaulty",
        "90m",
        {named("prometheus_tsdb_compactions_failed_total", **PROMETHEUS): "0x80 3x20"},
        (
            Firing(
                PROMETHEUS,
                "mon1: Prometheus cannot write its data",
                "3 failures within an hour.",
                "See `sudo journalctl -u prometheus` on mon1, and the space and the health of its disk.",
            ),
        ),
        {
            "none": {
                named("prometheus_tsdb_compactions_failed_total", **PROMETHEUS): "3x100",
                named("prometheus_tsdb_wal_corruptions_total", **PROMETHEUS): "0x100",
            }
        },
    ),
    Case(
        "AlertsNotSent",
        "20m",
        {named("prometheus_notifications_dropped_total", **PROMETHEUS): "0+60x30"},
        (
            Firing(
                PROMETHEUS,
                "mon1: alerts do not reach Alertmanager",
                "1 alerts per second are dropped.",
            ),
        ),
        {
            "sent": {named("prometheus_notifications_dropped_total", **PROMETHEUS): "5x30"},
            "two were dropped by a reload": {
                named("prometheus_notifications_dropped_total", **PROMETHEUS): "0x14 2x20"
            },
        },
    ),
    Case(
        "NotificationsFailing",
        "20m",
        {named("alertmanager_notifications_failed_total", **ALERTMANAGER, integration="email"): "0+60x30"},
        (
            Firing(
                {**ALERTMANAGER, "integration": "email"},
                "mon1: notifications by email fail",
                "1 notifications per second fail.",
                "See `sudo journalctl -u prometheus-alertmanager` on mon1, and whether the receiver can be reached.",
            ),
        ),
        {
            "delivered": {
                named("alertmanager_notifications_failed_total", **ALERTMANAGER, integration="email"): "5x30"
            },
            "the receiver was away for a moment": {
                named("alertmanager_notifications_failed_total", **ALERTMANAGER, integration="email"): "0x11 3x20"
            },
        },
    ),
)
