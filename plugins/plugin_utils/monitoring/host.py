# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on hosts: node_exporter, and the certificates that its textfile collector reports."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, looked_up

# File systems on disks of the host. The rest is memory, images that are always full, or somebody else's storage.
_DISKS = 'fstype!~"tmpfs|ramfs|overlay|squashfs|iso9660|erofs|nfs.*|ceph|fuse.*"'
# One series for each file system: it can be mounted in hundreds of places, such as the homes of an NFS server.
_ONCE = "min by (job, instance, host, device)"
_FREE = f"{_ONCE} (node_filesystem_avail_bytes{{{_DISKS}}} / node_filesystem_size_bytes{{{_DISKS}}})"
_WHERE = ". `df {{ $labels.device }}` shows where it is mounted."
_FREE_NOW = (
    "{{ $value | humanizePercentage }} are free, "
    + looked_up("node_filesystem_avail_bytes{host=%q,device=%q} / 2^30", ("host", "device"), "%.1f GiB")
    + _WHERE
)
_CERTIFICATE = "baremetal_gpu_certificate_expiry_timestamp_seconds - time()"
_DAY = 24 * 60 * 60
# Debian's own configuration, with which Prometheus runs until the role has written another one, has a job of this name,
# too. Its target belongs to no host.
_NODES = 'up{job="node",host!=""}'

_OF_OTHERS = (
    "For one below /etc/kubernetes run `sudo systemctl start baremetal-gpu-kubernetes-renew` on {{ $labels.host }}; "
    "for one below /var/lib/kubelet see `sudo journalctl -u kubelet` there. If {{ $labels.path }} is your own, replace "
    "it and reload the service that uses it."
)

ALERTS = (
    Alert(
        "HostSilent",
        f"{_NODES} == 0",
        "ticket",
        "A host does not answer Prometheus. Until it answers, most other alerts of the host are hidden. Essential "
        "services, such as slurmctld, have alerts of their own with the severity page.",
        "{{ $labels.host }}: the host is silent",
        "up of {{ $labels.instance }} is {{ $value }} for 3 minutes.",
        "Log in and run `sudo systemctl status prometheus-node-exporter`; if the login fails, check console and power "
        "through the BMC. Restart the host only if it hangs: a restart ends its jobs.",
        "3m",
    ),
    Alert(
        "ManyHostsSilent",
        f"count({_NODES} == 0) / count({_NODES}) > 0.1 and count({_NODES} == 0) >= 2",
        "page",
        "More than a tenth of the hosts, and at least two, do not answer: check switches, rack power and network.",
        "fleet: {{ $value | humanizePercentage }} of the hosts are silent",
        f"Silent: {{{{ range $number, $_ := query `{_NODES} == 0` | sortByLabel `host` }}}}"
        "{{ if $number }}, {{ end }}"
        "{{ .Labels.host }}{{ end }}.",
        "Find the switch or power supply that the silent hosts share.",
        "3m",
    ),
    Alert(
        "HostDiskFull",
        f"{_FREE} < 0.05",
        "ticket",
        "A file system on a disk has less than 5 % of its space left.",
        "{{ $labels.host }}: {{ $labels.device }} is full",
        _FREE_NOW,
        "Find large files with `du -x` where it is mounted, and remove them or add space.",
        "10m",
    ),
    Alert(
        "HostDiskFillsUp",
        f"{_FREE} < 0.3 and {_ONCE} (predict_linear(node_filesystem_avail_bytes{{{_DISKS}}}[6h], {_DAY})) < 0",
        "ticket",
        "A file system on a disk will be full within a day if it keeps growing as in the last six hours.",
        "{{ $labels.host }}: {{ $labels.device }} will be full within a day",
        _FREE_NOW,
        "Find what grows with `du -x` where it is mounted, and stop it, remove files or add space.",
        "1h",
    ),
    Alert(
        "HostInodesLow",
        f"{_ONCE} (node_filesystem_files_free{{{_DISKS}}} / node_filesystem_files{{{_DISKS}}}) < 0.05",
        "ticket",
        "A file system has few inodes left. Without inodes no file can be created, even if there is free space.",
        "{{ $labels.host }}: {{ $labels.device }} has few inodes left",
        "{{ $value | humanizePercentage }} of the inodes are free" + _WHERE,
        "Find directories with many files with `du -x --inodes` where it is mounted, and remove files.",
        "10m",
    ),
    Alert(
        "HostFilesystemReadOnly",
        f'node_filesystem_readonly{{{_DISKS},mountpoint=~"/|/var|/var/lib|/home"}} == 1',
        "ticket",
        "A file system that the host writes to is read-only. The kernel does that after a disk error.",
        "{{ $labels.host }}: {{ $labels.mountpoint }} is read-only",
        "node_filesystem_readonly of {{ $labels.device }} is {{ $value }}.",
        "Look into `sudo dmesg` for errors of {{ $labels.device }}, drain the host, and check or replace the disk.",
        "5m",
    ),
    Alert(
        "HostClockWrong",
        "abs(node_time_seconds - timestamp(node_time_seconds)) > 5",
        "ticket",
        "The clock of a host differs from that of Prometheus by more than 5 seconds. munge, Ceph and certificates "
        "depend on it.",
        "{{ $labels.host }}: the clock is wrong",
        "It differs by {{ $value | humanizeDuration }} from the clock of Prometheus.",
        "Check `timedatectl` and the time service on the host. If all hosts have this alert, check them on the host of "
        "Prometheus.",
        "10m",
    ),
    Alert(
        "HostClockUnsynchronized",
        "node_timex_sync_status == 0 and node_timex_maxerror_seconds >= 16",
        "ticket",
        "No time service synchronizes the clock of a host, so it drifts.",
        "{{ $labels.host }}: the clock is not synchronized",
        "node_timex_sync_status is {{ $value }}, and the error may be "
        + looked_up("node_timex_maxerror_seconds{host=%q}", ("host",), "%.0f s")
        + " or more.",
        "Start chrony or systemd-timesyncd on the host, and check with `chronyc sources` or "
        "`timedatectl timesync-status` whether it reaches its servers.",
        "30m",
    ),
    Alert(
        "HostMemoryLow",
        "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < 0.03",
        "ticket",
        "A host has almost no memory left, and the kernel is about to kill processes.",
        "{{ $labels.host }}: almost no memory is left",
        "{{ $value | humanizePercentage }} are available, "
        + looked_up("node_memory_MemAvailable_bytes{host=%q} / 2^30", ("host",), "%.1f GiB")
        + ".",
        "Run `ps -eo rss,user,args --sort=-rss` to see which processes use it, and check the memory limits of jobs.",
        "10m",
    ),
    Alert(
        "CertificateExpiresSoon",
        f"{_CERTIFICATE} < {21 * _DAY}",
        "ticket",
        "A certificate expires within three weeks.",
        "{{ $labels.host }}: {{ $labels.path }} expires soon",
        "It expires in {{ $value | humanizeDuration }}.",
        "Run `gpuops up`, which renews the certificates that it made. " + _OF_OTHERS,
        "1h",
    ),
    Alert(
        "CertificateExpiresNow",
        f"{_CERTIFICATE} < {2 * _DAY}",
        "page",
        "A certificate expires within two days or has expired. Clients refuse a service whose certificate has expired.",
        "{{ $labels.host }}: {{ $labels.path }} expires within two days or has expired",
        "It expires in {{ $value | humanizeDuration }}.",
        "Run `gpuops up` now, which renews the certificates that it made. " + _OF_OTHERS,
    ),
    Alert(
        "CertificateUnreadable",
        "baremetal_gpu_certificate_readable == 0",
        "ticket",
        "A watched certificate cannot be read, so it is unknown when it expires.",
        "{{ $labels.host }}: {{ $labels.path }} cannot be read as a certificate",
        "baremetal_gpu_certificate_readable is {{ $value }}.",
        "See `sudo journalctl -u baremetal-gpu-host-metrics` on {{ $labels.host }}; correct the file, or remove it "
        "from node_exporter_certificates.",
        "10m",
    ),
    Alert(
        "HostMetricsFailing",
        "baremetal_gpu_host_part_success == 0",
        "ticket",
        "Metrics of certificates, ZooKeeper, homes, the portal or Kubernetes are missing, so their alerts cannot fire.",
        "{{ $labels.host }}: no metrics of {{ $labels.part }}",
        "baremetal_gpu_host_part_success is {{ $value }}.",
        "See `sudo journalctl -u baremetal-gpu-host-metrics` on {{ $labels.host }}, which says why.",
        "15m",
    ),
    Alert(
        "HostMetricsOld",
        'time() - node_textfile_mtime_seconds{file=~".*baremetal_gpu_(host|reconciler)[.]prom"} > 600',
        "ticket",
        "A file of metrics exists but is no longer written, so all numbers in it are old: a program was killed, or "
        "the disk is full.",
        "{{ $labels.host }}: {{ $labels.file }} is old",
        "It was written {{ $value | humanizeDuration }} ago.",
        "See `systemctl status baremetal-gpu-host-metrics.timer baremetal-gpu-reconciler` on {{ $labels.host }}, and "
        "whether its disk is full.",
        "5m",
    ),
)
