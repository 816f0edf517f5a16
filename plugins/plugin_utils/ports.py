# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports on which the services of a site listen: what docs/security.md shows and the role firewall opens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Port:
    """One service, in the words of the page.

    :ivar groups: of the inventory, whose hosts it is on; empty for all.
    :ivar public: the variable that has the port, and its default, where users reach it from outside the site. A service
        without is for the site's hosts alone, or listens on loopback.
    """

    port: str
    service: str
    groups: tuple[str, ...]
    access: str
    encrypted: str
    public: tuple[str, int] | None = None


SSH = 22
PORTS = (
    Port(
        "22",
        "SSH, of the distribution",
        (),
        "the operator's key; on nodes of Slurm users too, [while they have a job there](slurm.md#ssh-to-a-node)",
        "yes",
    ),
    Port(
        "2181",
        "ZooKeeper (`zookeeper_client_port`)",
        ("zookeeper",),
        "everybody to nodes without an ACL; digest logins to the rest",
        "no",
    ),
    Port(
        "2888, 3888",
        "ZooKeeper among its servers",
        ("zookeeper",),
        "with `zookeeper_quorum_auth: required` whoever has the quorum's password, otherwise everybody",
        "no",
    ),
    Port(
        "5050",
        "Mesos master (`mesos_master_port`)",
        ("mesos_masters",),
        "reading: everybody, unless `mesos_common_authenticate_readonly`; changes: the principals",
        "with `mesos_common_tls: required`",
    ),
    Port(
        "5051",
        "Mesos agent (`mesos_agent_port`)",
        ("mesos_agents",),
        "as the master",
        "with `mesos_common_tls: required`",
    ),
    Port(
        "one port above 1024 for each executor",
        "Mesos executors",
        ("mesos_agents",),
        "the host's agent",
        "with `mesos_common_tls: required`",
    ),
    Port(
        "31000-32000",
        "ports of tasks (`mesos_agent_ports`)",
        ("mesos_agents",),
        "depends on the task",
        "depends on the task",
    ),
    Port(
        "8080",
        "Marathon (`marathon_port`)",
        ("marathon",),
        "`operator` with its password (HTTP basic)",
        "with `mesos_common_tls`",
    ),
    Port(
        "6817, 6818, 6819",
        "slurmctld, slurmd, slurmdbd",
        ("slurm_controllers", "slurm_nodes", "slurm_databases"),
        "whoever has a munge credential; with `slurm_rests` also whoever has a [token](slurm.md#tokens)",
        "no",
    ),
    Port(
        "6820, on a loopback address only (`slurm_rest_listen`)",
        "slurmrestd",
        ("slurm_rests",),
        "whoever has a token, on that host",
        "no",
    ),
    Port(
        "19532 (`log_host_port`)",
        "nginx, for [journals](logs.md)",
        ("log_hosts",),
        "a host of `log_senders` with its certificate: it can add to its own journal",
        "yes",
    ),
    Port(
        "5000 (`registry_port`), and those of `registry_caches`",
        "nginx, for [images](registry.md)",
        ("registries",),
        "users with their passwords, each to the own namespace; everybody to `registry_public`",
        "yes",
        public=("registry_port", 5000),
    ),
    Port(
        "443 (`portal_port`)",
        "the portal's proxy",
        ("portals",),
        "who logs in; see [the portal](#the-portal)",
        "yes",
        public=("portal_port", 443),
    ),
    Port(
        "8081 (`portal_hub_port`)",
        "the portal's hub, for sessions",
        ("portals",),
        "the proxy and sessions, by certificates of the portal's own authority",
        "yes",
    ),
    Port(
        "8001, on loopback only",
        "the proxy, for the hub",
        ("portals",),
        "the hub, with the token of `proxy.env` and its certificate",
        "yes",
    ),
    Port(
        "2222 (`portal_ssh_port`)",
        "the portal's jump of SSH, with `portal_ssh`",
        ("portals",),
        "who has a key of a user with a session; it reaches the user's sessions alone",
        "yes",
        public=("portal_ssh_port", 2222),
    ),
    Port(
        "20000-29999 (`portal_session_port_first`, `portal_session_port_last`)",
        "sessions of the portal: JupyterLab, and with `portal_ssh` sshd from the middle on",
        ("slurm_nodes",),
        "the session's user, by the hub's login or a key",
        "yes",
    ),
    Port(
        "2049",
        "NFS, the homes",
        ("nfs_servers",),
        "the hosts with homes, by their addresses, and `nfs_homes_clients`",
        "no",
    ),
    Port(
        "3300, 6789",
        "Ceph monitors",
        ("ceph_mons",),
        "whoever has a key (cephx)",
        "with `ceph_common_secure`",
    ),
    Port(
        "6800-7300",
        "Ceph OSDs, MDS, mgr",
        ("ceph_osds", "ceph_mdss", "ceph_mgrs"),
        "whoever has a key (cephx)",
        "with `ceph_common_secure`",
    ),
    Port(
        "none, or `gpu_agent_metrics_port`",
        "the agent's [metrics](metrics.md#a-port-of-the-agent)",
        ("gpu_nodes",),
        "everybody who reaches `gpu_agent_metrics_address`; 127.0.0.1 by default",
        "no",
    ),
    Port(
        "9100 (`node_exporter_listen`)",
        "node_exporter",
        ("node_exporters",),
        "hosts of the site, by a certificate of the [monitoring's authority](monitoring.md#who-can-read-it)",
        "yes",
    ),
    Port(
        "5001, on loopback only (`registry_loopback_port`)",
        "nginx, with the same rules",
        ("registries",),
        "as port 5000; from where a request came it believes from nginx alone",
        "no",
    ),
    Port(
        "9090, 9093, on a loopback address only",
        "Prometheus, Alertmanager",
        ("prometheus_servers",),
        "everybody on that host",
        "no",
    ),
    Port(
        "ports of mgr modules",
        "for example 9283 for `prometheus`, if `ceph_mgr_modules` enables it",
        ("ceph_mgrs",),
        "everybody",
        "no",
    ),
    Port(
        "one that the kernel chooses (`accept_network_port`)",
        "`gpuops accept`, only while it measures the network",
        ("gpu_cluster",),
        "who has the run's token; the listener runs as `nobody`",
        "no",
    ),
    Port(
        "one that is drawn, and others that the kernel chooses",
        "ranks of the all-reduce of `gpuops accept`, as `nobody`",
        ("slurm_nodes",),
        "everybody; they send numbers only",
        "no",
    ),
    Port(
        "those that the kernel chooses",
        "processes of a [training](training.md) of several, as its user",
        ("slurm_nodes",),
        "everybody; they meet in a file of the user's, and send numbers only",
        "no",
    ),
)


def rows() -> Iterator[str]:
    """The table of docs/security.md, as tools/ports.py writes it."""
    yield "| port | service | where | who has access | encrypted |"
    yield "| --- | --- | --- | --- | --- |"
    for one in PORTS:
        where = ", ".join(f"`{group}`" for group in one.groups) or "all hosts"
        yield f"| {one.port} | {one.service} | {where} | {one.access} | {one.encrypted} |"


def public() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The variables of ports that are open to users, with the default and the groups."""
    return {one.public[0]: (one.public[1], one.groups) for one in PORTS if one.public}
