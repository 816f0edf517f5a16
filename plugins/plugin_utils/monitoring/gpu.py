# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on GPUs: the agent's verdicts and readings, and who has which GPU.

The agent debounces its findings and knows the site's policy. So a fault of a GPU is one of its reasons, by code, and no
rule repeats the agent's thresholds on the readings.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import (
    ACTIONS,
    CODES,
    DEVICE_CODES,
    NODE_CODES,
    remedy,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import DEGRADED, FATAL, NUMBERS, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, Record, looked_up, newest

# Codes of degraded GPUs that have an alert of their own. All others are GpuDegraded.
HOT = ("thermal_slowdown", "temperature_limit")
POWER = ("power_brake",)
PCIE = ("pcie_width", "pcie_generation", "pcie_replays")
NVLINK = ("nvlink_down", "nvlink_errors", "fabric_unhealthy")
MEMORY = ("ecc_sram_uncorrected", "row_remap_pending", "retired_pages_pending", "memory_repair_pending")
SETTINGS = ("persistence_mode", "clocks_locked", "mig_mode")
FAMILIES = (*HOT, *POWER, *PCIE, *NVLINK, *MEMORY, *SETTINGS)

_GPU = "GPU {{ or $labels.gpu $labels.pci_address }}"
_WHICH = "{{ with $labels.uuid }}, {{ . }}{{ end }}, {{ $labels.pci_address }}"
_HOST_AND_GPU = ("host", "gpu")


def _remedy(codes: Iterable[str]) -> str:
    """A template with the remedy of the alert's code and action, in the words of the agent."""
    # Those of a code for its own action come before those that an action has for all codes.
    cases: dict[str, list[str]] = {}
    for code in codes:
        cases.setdefault(remedy(code, CODES[code].action), []).append(f"{code} {CODES[code].action}")
    parts = [f"match `^({'|'.join(pairs)})$` . }}}}{_sentence(text)}" for text, pairs in cases.items()]
    parts += [f"match ` {action}$` . }}}}{_sentence(remedy('', action))}" for action in ACTIONS]
    known = "{{ else if ".join(parts)
    return (
        "{{ with printf `%s %s` $labels.code $labels.action }}{{ if "
        + known
        + "{{ else }}See what `gpu-agent status` says on the host.{{ end }}{{ end }}"
    )


def _sentence(text: str) -> str:
    """A remedy in a template, for the GPU of the alert; one of the host has none."""
    gpu = "{{ with or $labels.uuid $labels.pci_address }} -i {{ . }}{{ end }}"
    return text[:1].upper() + text[1:].replace(" -i UUID", gpu) + "."


def _degraded(codes: tuple[str, ...]) -> str:
    return f'gpu_health_reason{{code=~"{"|".join(codes)}"}} == {NUMBERS[DEGRADED]}'


def _reading(query: str, show: str) -> str:
    return looked_up(query, _HOST_AND_GPU, show)


# When a host was looked at for the readings that were there a minute ago; nothing where those were old.
_LOOKED = "max by (host) (gpu_probe_last_success_timestamp_seconds offset 1m > time() - 300)"
# Leases that had begun before that look, and that their scheduler has reported after it: at the look, the job had the
# GPU.
_SURE = (
    f"(gpu_lease_start_timestamp_seconds * 0 + on (host) group_left () {_LOOKED}) "
    "<= on (instance) group_left () max by (instance) "
    "(slurm_last_success_timestamp_seconds or kubernetes_last_success_timestamp_seconds) "
    "> gpu_lease_start_timestamp_seconds"
)
_GPU_OF = newest('gpu_info{uuid!="",minor!=""}', "host, minor")


def of_gpus(readings: str) -> str:
    """Readings with the labels of gpu_info, one for each `host` and `minor`."""
    return f"{_GPU_OF} * on (host, uuid) group_left () max by (host, uuid) ({readings})"


_USE = of_gpus('gpu_utilization_ratio{unit="gpu"} offset 1m')
_LEASE_USE = (
    "max by (scheduler, host, minor, job_id, user, account) "
    f"(gpu_lease_info and on (scheduler, host, job_id) ({_SURE})) "
    f"* on (host, minor) group_left (model) ({_USE})"
)


def with_models(leases: str) -> str:
    """Leases with the models of their GPUs; those of GPUs that are not known stay without."""
    return f"({leases}) * on (host, minor) group_left (model) {_GPU_OF} or ({leases}) unless on (host, minor) {_GPU_OF}"


RECORDS = (
    Record("fleet:gpu_health_status:count", "count(gpu_health_status) or vector(0)", "GPUs with a verdict"),
    Record(
        "fleet:gpu_health_status:fatal",
        f"count(gpu_health_status == {NUMBERS[FATAL]}) or vector(0)",
        "GPUs whose verdict is fatal",
    ),
    Record(
        "fleet:gpu_lease_info:gpus",
        "count(count by (host, minor) (gpu_lease_info)) or vector(0)",
        "GPUs that a scheduler has allocated",
    ),
    Record(
        "user:gpu_lease_info:gpus",
        "count by (scheduler, user) (count by (scheduler, user, host, minor) (gpu_lease_info))",
        "GPUs that a user has",
    ),
    Record(
        "user:gpu_lease_info:measured",
        f"count by (scheduler, user, account, model) ({_LEASE_USE})",
        "GPUs that a user has, by account and model, if it is known whether the user's jobs use them",
    ),
    Record(
        "user:gpu_lease_info:unused",
        f"count by (scheduler, user, account, model) ({_LEASE_USE} == 0)",
        "The same GPUs if their utilisation is 0",
    ),
    Record(
        "fleet:gpu_utilization_ratio:avg",
        'avg(gpu_utilization_ratio{unit="gpu"})',
        "Share of time in which kernels ran, over all GPUs",
    ),
    Record(
        "host:gpu_utilization_ratio:avg",
        'avg by (host) (gpu_utilization_ratio{unit="gpu"})',
        "The same for the GPUs of a host",
    ),
    Record("fleet:gpu_power_watts:sum", "sum(gpu_power_watts)", "Power draw of all GPUs"),
    Record("host:gpu_power_watts:sum", "sum by (host) (gpu_power_watts)", "Power draw of the GPUs of a host"),
)

ALERTS = (
    Alert(
        "GpuFatal",
        f'gpu_health_reason{{pci_address!=""}} == {NUMBERS[FATAL]}',
        "ticket",
        "A GPU cannot be trusted with work. `code` is the [health code](health-codes.md); the agent has already "
        "confirmed it, so the alert does not wait. Where the reconciler acts, it keeps new jobs off the GPU.",
        "{{ $labels.host }}: " + _GPU + " is fatal: {{ $labels.code }}",
        "The verdict of {{ $labels.code }} is {{ $value }} (fatal)" + _WHICH + ".",
        _remedy(DEVICE_CODES),
    ),
    Alert(
        "HostGpusFatal",
        f'gpu_health_reason{{pci_address=""}} == {NUMBERS[FATAL]}',
        "ticket",
        "A fault of the whole host, such as a driver that is not loaded: none of its GPUs can be trusted with work.",
        "{{ $labels.host }}: the GPUs of the host are fatal: {{ $labels.code }}",
        "The verdict of {{ $labels.code }} is {{ $value }} (fatal) for the host.",
        _remedy(NODE_CODES),
    ),
    Alert(
        "FleetGpusFatal",
        "fleet:gpu_health_status:fatal / fleet:gpu_health_status:count > 0.1 and fleet:gpu_health_status:fatal >= 2",
        "page",
        "So many GPUs are fatal at the same time that a common cause is likely: cooling, power or a new driver.",
        "fleet: {{ $value | humanizePercentage }} of all GPUs are fatal",
        "{{ with query `fleet:gpu_health_status:fatal` }}{{ . | first | value }}{{ end }} GPUs of "
        "{{ with query `fleet:gpu_health_status:count` }}{{ . | first | value }}{{ end }} have the verdict fatal.",
        "Find what the hosts of GpuFatal have in common (rack, room, driver, last change) before you repair any.",
        "5m",
    ),
    Alert(
        "GpuHot",
        _degraded(HOT),
        "ticket",
        "For most of ten minutes a GPU was so hot that it slowed down.",
        "{{ $labels.host }}: " + _GPU + " is too hot: {{ $labels.code }}",
        "It has " + _reading('gpu_temperature_celsius{host=%q,gpu=%q,sensor="gpu"}', "%.0f °C") + _WHICH + ".",
        _remedy(HOT),
        "5m",
    ),
    Alert(
        "GpuPowerBrake",
        _degraded(POWER),
        "ticket",
        "For most of ten minutes the machine's power supply slowed a GPU down. The driver's own power cap is normal "
        "and does not count.",
        "{{ $labels.host }}: " + _GPU + " is slowed down by the power supply",
        "It draws "
        + _reading("gpu_power_watts{host=%q,gpu=%q}", "%.0f W")
        + " of "
        + _reading("gpu_power_limit_watts{host=%q,gpu=%q}", "%.0f W")
        + _WHICH
        + ".",
        _remedy(POWER),
        "5m",
    ),
    Alert(
        "GpuPcieSlow",
        _degraded(PCIE),
        "ticket",
        "The PCIe link of a GPU has fewer lanes than it supports, is slower under load than it should be, or resends "
        "many packets.",
        "{{ $labels.host }}: " + _GPU + " has a slow PCIe link: {{ $labels.code }}",
        "The link has "
        + _reading('gpu_pcie_link_width{host=%q,gpu=%q,which="current"}', "%.0f")
        + " of "
        + _reading('gpu_pcie_link_width{host=%q,gpu=%q,which="max"}', "%.0f lanes")
        + " and generation "
        + _reading('gpu_pcie_link_generation{host=%q,gpu=%q,which="current"}', "%.0f")
        + " of "
        + _reading('gpu_pcie_link_generation{host=%q,gpu=%q,which="max"}', "%.0f")
        + _WHICH
        + ".",
        _remedy(PCIE),
        "5m",
    ),
    Alert(
        "GpuNvlinkFault",
        _degraded(NVLINK),
        "ticket",
        "An NVLink of a GPU is down or has errors, or the NVSwitch fabric reports a fault. Jobs on several GPUs "
        "become slow.",
        "{{ $labels.host }}: " + _GPU + " has a faulty NVLink: {{ $labels.code }}",
        _reading("count(gpu_nvlink_up{host=%q,gpu=%q} == 1) or vector(0)", "%.0f")
        + " of "
        + _reading("count(gpu_nvlink_up{host=%q,gpu=%q}) or vector(0)", "%.0f links are up")
        + _WHICH
        + ".",
        _remedy(NVLINK),
        "5m",
    ),
    Alert(
        "GpuMemoryRepairPending",
        _degraded(MEMORY),
        "ticket",
        "Memory of a GPU had errors, and the next reset repairs it. The GPU works until then.",
        "{{ $labels.host }}: " + _GPU + " needs a reset: {{ $labels.code }}",
        "It has had "
        + _reading(
            'gpu_ecc_errors_total{host=%q,gpu=%q,type="uncorrected",scope="volatile"}',
            "%.0f uncorrected errors since the driver was loaded",
        )
        + _WHICH
        + ".",
        _remedy(MEMORY),
        "5m",
    ),
    Alert(
        "GpuSettingWrong",
        _degraded(SETTINGS),
        "info",
        "A setting of a GPU is not what the site wants: persistence mode, clocks or MIG.",
        "{{ $labels.host }}: " + _GPU + " has a wrong setting: {{ $labels.code }}",
        "The verdict of {{ $labels.code }} is {{ $value }} (degraded)" + _WHICH + ".",
        _remedy(SETTINGS),
        "15m",
    ),
    Alert(
        "GpuDegraded",
        f'gpu_health_reason{{code!~"{"|".join(FAMILIES)}"}} == {NUMBERS[DEGRADED]}',
        "ticket",
        "A GPU or a host works, but needs attention. This alert covers all codes that have no alert of their own, and "
        "those that the site's policy has made degraded.",
        "{{ $labels.host }}: {{ with or $labels.gpu $labels.pci_address }}GPU {{ . }} is{{ else }}the GPUs of the host "
        "are{{ end }} degraded: {{ $labels.code }}",
        "The verdict of {{ $labels.code }} is {{ $value }} (degraded){{ with $labels.uuid }}, {{ . }}{{ end }}"
        "{{ with $labels.pci_address }}, {{ . }}{{ end }}.",
        _remedy(code for code in CODES if code not in FAMILIES),
        "5m",
    ),
    Alert(
        "GpuHealthUnknown",
        f"gpu_health_status == {NUMBERS[UNKNOWN]}",
        "ticket",
        "The agent runs, but cannot determine whether a GPU is healthy.",
        "{{ $labels.host }}: the health of " + _GPU + " is unknown",
        "The verdict is {{ $value }} (unknown)" + _WHICH + ".",
        "Run `gpu-agent status` on the host to see which checks are unknown, and look for NVRM lines in `sudo dmesg`.",
        "10m",
    ),
    Alert(
        "GpusFewerThanBefore",
        'gpu_devices{source="nvml"} < on (host) group_left () '
        'max by (host) (max_over_time(gpu_devices{source="pci"}[1d]))',
        "ticket",
        "Fewer GPUs answer than were on the PCI bus within the last day, and no health code says why. A GPU that was "
        "removed or given to a virtual machine still counts for a day.",
        "{{ $labels.host }}: only {{ $value }} GPUs answer",
        "{{ $value }} GPUs answer, and "
        + looked_up('max(max_over_time(gpu_devices{host=%q,source="pci"}[1d]))', ("host",), "%.0f")
        + " were on the PCI bus.",
        "Compare `lspci -d 10de:` with `nvidia-smi -L` on the host. If a GPU is missing, drain and reboot the host.",
        "15m",
    ),
    Alert(
        "GpuAgentSilent",
        'up{job="node"} == 1 and on (host) max_over_time(gpu_probe_success[7d]) unless on (host) gpu_probe_success',
        "ticket",
        "A host answers, but has no metrics of the GPU agent any more, although it had them within the last seven "
        "days: the agent has stopped. If it was removed on purpose, silence the alert; it ends after seven days.",
        "{{ $labels.host }}: the GPU agent is silent",
        "The host answers (up is {{ $value }}), and gpu_probe_success has no series.",
        "See `systemctl status baremetal-gpu-agent` on the host, and run `gpuops up --tags agent` for it.",
        "10m",
    ),
    Alert(
        "GpuAgentStale",
        'time() - node_textfile_mtime_seconds{file=~".*baremetal_gpu[.]prom"} > 300',
        "ticket",
        "The agent's file exists but is no longer written, so all numbers in it are old: the agent was killed, or the "
        "disk is full.",
        "{{ $labels.host }}: the metrics of the GPU agent are old",
        "The agent's file was written {{ $value | humanizeDuration }} ago.",
        "See `systemctl status baremetal-gpu-agent` on the host, and whether its disk is full.",
        "5m",
    ),
    Alert(
        "GpuProbeFailing",
        "gpu_probe_success == 0",
        "ticket",
        "The agent runs, but its looks at the GPUs fail: NVML gives no usable answer.",
        "{{ $labels.host }}: the GPU agent cannot look at the GPUs",
        "gpu_probe_success is {{ $value }}; the last look that succeeded was "
        + looked_up("(time() - gpu_probe_last_success_timestamp_seconds{host=%q}) / 60", ("host",), "%.0f minutes ago")
        + ".",
        "Run `gpu-agent status` on the host to see the error, and look for Xid and NVRM lines in `sudo dmesg`.",
        "10m",
    ),
    Alert(
        "GpuProbeHung",
        "gpu_probe_hung > 0",
        "ticket",
        "Processes of the agent hang in a call to the driver and cannot be ended.",
        "{{ $labels.host }}: looks at the GPUs hang in the driver",
        "{{ $value }} processes hang.",
        "Look for an Xid in `sudo dmesg`, drain the host and reboot it.",
        "5m",
    ),
    Alert(
        "GpuAllocatedUnused",
        of_gpus('max_over_time(gpu_utilization_ratio{unit="gpu"}[15m])')
        + " * on (host, minor) group_right (gpu, uuid) "
        "max by (scheduler, host, minor, job_id, user) (gpu_lease_info) < 0.01",
        "info",
        "A job has had a GPU for two hours and has not used it. GPUs in MIG mode report no utilisation and are left "
        "out.",
        "{{ $labels.host }}: GPU {{ $labels.gpu }} is unused in job {{ $labels.job_id }} of {{ $labels.user }}",
        "It was busy for {{ $value | humanizePercentage }} of the time at most, within 15 minutes "
        "({{ $labels.scheduler }}, {{ $labels.uuid }}).",
        "Ask {{ $labels.user }} whether job {{ $labels.job_id }} still needs the GPU, and end it if not.",
        "2h",
    ),
)
