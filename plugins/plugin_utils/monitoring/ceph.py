# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on Ceph: the module prometheus of the mgr, and the homes on CephFS.

The mgr that is active tells of the whole cluster, so its own host is no part of an alert. Ceph's `hostname` becomes
`host` where a daemon is the subject: a silent host then hides its daemons.
"""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, looked_up

_USED = "max(ceph_cluster_total_used_raw_bytes) / max(ceph_cluster_total_bytes)"
_IN_QUORUM = "count(max by (ceph_daemon) (ceph_mon_quorum_status) == 1)"
_MONITORS = "count(max by (ceph_daemon) (ceph_mon_quorum_status))"
_CHECKS = "{{ range query `max by (name) (ceph_health_detail) == 1` | sortByLabel `name` }} {{ .Labels.name }}{{ end }}"
_TIB = "%.1f TiB"
# The mgr leaves out an OSD that is down and out. The last that was told of it counts for so long.
_OUT = "1d"
_OSD_UP = f"max by (ceph_daemon) (ceph_osd_up) or min by (ceph_daemon) (last_over_time(ceph_osd_up[{_OUT}]))"

_OSD_TOLD = f"timestamp(ceph_osd_metadata) or max_over_time(timestamp(ceph_osd_metadata)[{_OUT}:10m])"


def _on_host(state: str, told: str) -> str:
    """`state` by daemon, with the label `host` where the metadata were told last; `told` is when they were."""
    newest = f"0 * topk by (ceph_daemon) (1, max by (ceph_daemon, hostname) ({told}))"
    return (
        f'label_replace(({state}) + on (ceph_daemon) group_left (hostname) {newest}, "host", "$1", "hostname", "(.+)")'
    )


def _value(query: str, show: str) -> str:
    return looked_up(query, (), show)


ALERTS = (
    Alert(
        "CephSilent",
        'count(up{job="ceph"}) unless on () ceph_health_status',
        "page",
        "No mgr reports on the cluster: the monitors have no quorum, or no mgr runs.",
        "ceph: no mgr reports on the cluster",
        "ceph_health_status has no series from {{ $value }} mgrs.",
        "Run `sudo ceph status` on a monitor's host. If it does not answer, start the monitors with "
        "`sudo systemctl start ceph-mon.target` on their hosts, otherwise the mgrs with "
        "`sudo systemctl start ceph-mgr.target`.",
        "5m",
    ),
    Alert(
        "CephHealthError",
        "max(ceph_health_status) == 2",
        "page",
        "Ceph reports HEALTH_ERR: data is unavailable or at risk.",
        "ceph: HEALTH_ERR",
        "ceph_health_status is {{ $value }} (error):" + _CHECKS + ".",
        "Do what `sudo ceph health detail` says on a host of ceph_mons.",
        "2m",
    ),
    Alert(
        "CephHealthWarning",
        "max(ceph_health_status) == 1",
        "ticket",
        "Ceph has reported HEALTH_WARN for a quarter of an hour.",
        "ceph: HEALTH_WARN",
        "ceph_health_status is {{ $value }} (warning):" + _CHECKS + ".",
        "Do what `sudo ceph health detail` says on a host of ceph_mons.",
        "15m",
    ),
    Alert(
        "CephOsdDown",
        _on_host(f"({_OSD_UP}) == 0", _OSD_TOLD),
        "ticket",
        "An OSD is down. After ten minutes Ceph copies its data to other OSDs and reports nothing more about it. The "
        "alert ends a day later, or when the OSD is back.",
        "{{ $labels.hostname }}: {{ $labels.ceph_daemon }} is down",
        "ceph_osd_up of {{ $labels.ceph_daemon }} is {{ $value }}.",
        "See `sudo journalctl -u 'ceph-osd@*'` and `sudo dmesg` on {{ $labels.hostname }}. `sudo systemctl start "
        "ceph-osd.target` there starts what has ended; a broken disk is replaced with the playbook "
        "baremetal.gpu.storage_replace_osd.",
        "5m",
    ),
    Alert(
        "CephMonDown",
        _on_host("max by (ceph_daemon) (ceph_mon_quorum_status) == 0", "timestamp(ceph_mon_metadata)"),
        "ticket",
        "A monitor is not in the quorum.",
        "{{ $labels.hostname }}: {{ $labels.ceph_daemon }} is not in the quorum",
        "ceph_mon_quorum_status of {{ $labels.ceph_daemon }} is {{ $value }}.",
        "Run `sudo systemctl start ceph-mon.target` on {{ $labels.hostname }}; `sudo journalctl -u 'ceph-mon@*'` says "
        "why it ended.",
        "10m",
    ),
    Alert(
        "CephMonQuorumAtRisk",
        f"{_IN_QUORUM} <= floor({_MONITORS} / 2) + 1 and {_IN_QUORUM} < {_MONITORS}",
        "page",
        "Monitors are missing from the quorum. If one more is lost, the storage stops.",
        "ceph: one more lost monitor stops the storage",
        "{{ $value }} monitors of " + _value(_MONITORS, "%.0f") + " are in the quorum.",
        "Run `sudo systemctl start ceph-mon.target` on the hosts of the monitors that `sudo ceph quorum_status` does "
        "not list, and do not reboot any monitor's host.",
        "15m",
    ),
    Alert(
        "CephFilesystemWithoutMds",
        'max by (fs_id, name) (ceph_fs_metadata) unless on (fs_id) ceph_mds_metadata{rank!="-1"}',
        "page",
        "No metadata server serves a file system: every access to the homes waits.",
        "ceph: no MDS serves the file system {{ $labels.name }}",
        "ceph_mds_metadata has no MDS with a rank for {{ $labels.name }} (id {{ $labels.fs_id }}).",
        "Run `sudo systemctl start ceph-mds.target` on the hosts of ceph_mdss; `sudo ceph fs status` shows which ranks "
        "have no MDS.",
        "2m",
    ),
    Alert(
        "CephNoMdsOnStandby",
        'count(ceph_fs_metadata) unless on () ceph_mds_metadata{rank="-1"} '
        'unless on () count(up{job="node",role=~"(.*,)?ceph_mdss(,.*)?"}) == 1',
        "ticket",
        "No metadata server is on standby, so the loss of the active one stops the homes. On a site with one host in "
        "ceph_mdss the alert does not fire.",
        "ceph: no MDS is on standby",
        "ceph_mds_metadata has no MDS without a rank, for {{ $value }} file systems.",
        "Run `sudo systemctl start ceph-mds.target` on the hosts whose MDS `sudo ceph fs status` does not list.",
        "15m",
    ),
    Alert(
        "CephCapacityLow",
        f"{_USED} > 0.75",
        "ticket",
        "Three quarters of the raw capacity is used. New disks take time to get, and the data of a failed host needs "
        "space elsewhere.",
        "ceph: {{ $value | humanizePercentage }} of the capacity is used",
        _value("max(ceph_cluster_total_used_raw_bytes) / 2^40", "%.1f")
        + " of "
        + _value("max(ceph_cluster_total_bytes) / 2^40", _TIB)
        + " are used (raw).",
        "Add OSDs, or ask users to remove data; `sudo ceph df` shows which pool is large.",
        "1h",
    ),
    Alert(
        "CephCapacityCritical",
        f"{_USED} > 0.85",
        "page",
        "More than 85 % of the raw capacity is used. When any OSD is 95 % full, Ceph refuses every write.",
        "ceph: {{ $value | humanizePercentage }} of the capacity is used",
        _value("max(ceph_cluster_total_used_raw_bytes) / 2^40", "%.1f")
        + " of "
        + _value("max(ceph_cluster_total_bytes) / 2^40", _TIB)
        + " are used (raw).",
        "Have data removed now; `sudo ceph df` and `sudo ceph osd df` show where it is.",
        "10m",
    ),
    Alert(
        "HomeNearQuota",
        "max by (user) (cephfs_home_used_bytes) / (max by (user) (cephfs_home_quota_bytes) > 0) > 0.9",
        "info",
        "The home of a user is almost full. When it reaches its quota, the user's programs cannot write.",
        "home of {{ $labels.user }}: {{ $value | humanizePercentage }} of the quota is used",
        looked_up("max(cephfs_home_used_bytes{user=%q}) / 2^30", ("user",), "%.1f")
        + " of "
        + looked_up("max(cephfs_home_quota_bytes{user=%q}) / 2^30", ("user",), "%.1f GiB")
        + " are used.",
        "Ask {{ $labels.user }} to remove data, or raise the quota in `cephfs_homes_users` and run "
        "`gpuops up --tags storage`.",
        "1h",
    ),
)
