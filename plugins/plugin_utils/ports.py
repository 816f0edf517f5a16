# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What listens on the hosts of a site, and who has to reach it.

The only list of it: the role firewall opens these ports, tools/ports.py prints the table of docs/security.md, and a
test holds both to the defaults of the roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# From where a port is reached. What listens on a loopback address needs no rule.
EVERYBODY, SITE, LOOPBACK = "everybody", "the site's hosts", "the host itself"
ALL_HOSTS = "all hosts"
_SPAN = re.compile(r"(?:\S*:)?([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
Span = tuple[int, int]
# What the kernel gives a program that asks for no port in particular, and some more.
CHOSEN: Span = (1024, 65535)


@dataclass(frozen=True)
class Port:
    """One row of the table.

    :ivar ports: each a variable of a role with its default, or "" with what is always so. A default is a port, a range
        such as "6830-7568", an address with a port, or a list of these; 0 for none.
    :ivar until: the variable of the last port, and its default, where `ports` has the one of the first.
    :ivar shown: what the table has in the place of numbers.
    """

    service: str
    ports: tuple[tuple[str, Any], ...]
    groups: tuple[str, ...]
    whom: str
    access: str
    encrypted: str
    until: tuple[str, int] = ("", 0)
    shown: str = ""

    def spans(self, variables: Mapping[str, Any]) -> list[Span]:
        """The first and last port of each range. Raises ValueError with the name of a variable that has no port."""
        found = [span for name, default in self.ports for span in spans_of(name, variables.get(name, default))]
        if self.until[0]:
            ((_first, last),) = spans_of(self.until[0], variables.get(*self.until))
            return [(found[0][0], last)]
        return found

    def row(self) -> str:
        """As a line of the table."""
        numbers = self.shown or ", ".join(_shown(span) for span in self.spans({}))
        names = [name for name, _default in self.ports if name] + [name for name in self.until[:1] if name]
        named = f" ({', '.join(f'`{name}`' for name in names)})" if names else ""
        where = ", ".join(name if name == ALL_HOSTS else f"`{name}`" for name in self.groups)
        return f"| {numbers} | {self.service}{named} | {where} | {self.whom} | {self.access} | {self.encrypted} |"


def _shown(span: Span) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def spans_of(name: str, value: Any) -> Iterator[Span]:
    """The ports of a value. Raises ValueError."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from spans_of(name, one)
        return
    if isinstance(value, Mapping):
        value = value.get("port", 0)
    found = _SPAN.fullmatch(str(value))
    first = int(found[1]) if found else -1
    last = int(found[2] or found[1]) if found else -1
    if (first, last) == (0, 0):
        return
    if not 0 < first <= last < 65536:
        raise ValueError(f"{name} is {value!r}, which is not a valid port")
    yield first, last


PORTS = (
    Port(
        "SSH, of the distribution",
        (("", 22),),
        (ALL_HOSTS,),
        EVERYBODY,
        "the operator's key; on nodes of Slurm users too, [while they have a job there](slurm.md#ssh-to-a-node)",
        "yes",
    ),
    Port(
        "ZooKeeper",
        (("zookeeper_client_port", 2181),),
        ("zookeeper",),
        SITE,
        "everybody to nodes without an ACL; digest logins to the rest",
        "no",
    ),
    Port(
        "ZooKeeper among its servers",
        (("zookeeper_peer_port", 2888), ("zookeeper_election_port", 3888)),
        ("zookeeper",),
        SITE,
        "with `zookeeper_quorum_auth: required` clients with the quorum's password, otherwise everybody",
        "no",
    ),
    Port(
        "Mesos master",
        (("mesos_master_port", 5050),),
        ("mesos_masters",),
        SITE,
        "reading: everybody, unless `mesos_common_authenticate_readonly`; changes: the principals",
        "with `mesos_common_tls: required`",
    ),
    Port(
        "Mesos agent",
        (("mesos_agent_port", 5051),),
        ("mesos_agents",),
        SITE,
        "as the master",
        "with `mesos_common_tls: required`",
    ),
    Port(
        "Mesos executors",
        (("", "1024-65535"),),
        ("mesos_agents",),
        SITE,
        "the host's agent",
        "with `mesos_common_tls: required`",
        shown="one port above 1024 for each executor",
    ),
    Port(
        "ports of tasks",
        (("mesos_agent_ports", ["31000-32000"]),),
        ("mesos_agents",),
        SITE,
        "depends on the task",
        "depends on the task",
    ),
    Port(
        "Marathon",
        (("marathon_port", 8080),),
        ("marathon",),
        SITE,
        "`operator` with its password (HTTP basic)",
        "with `mesos_common_tls`",
    ),
    Port(
        "slurmctld, slurmd, slurmdbd",
        (("", 6817), ("", 6818), ("", 6819)),
        ("slurm_controllers", "slurm_nodes", "slurm_databases"),
        SITE,
        "clients with a munge credential; with `slurm_rests` also those with a [token](slurm.md#tokens)",
        "no",
    ),
    Port(
        "srun, for what its job prints",
        (("", "1024-65535"),),
        ("slurm_logins", "slurm_nodes"),
        SITE,
        "clients with a munge credential",
        "no",
        shown="those that the kernel chooses",
    ),
    Port(
        "the reconciler of Slurm, for the agents of nodes",
        (("gpu_reconciler_port", 6821),),
        ("slurm_controllers",),
        SITE,
        "root of a node, with a munge credential, each for its own node",
        "yes",
    ),
    Port(
        "slurmrestd",
        (("slurm_rest_listen", "127.0.0.1:6820"),),
        ("slurm_rests",),
        LOOPBACK,
        "clients with a token, on that host",
        "no",
    ),
    Port(
        "the API server of [Kubernetes](kubernetes.md)",
        (("", 6443),),
        ("kubernetes_control_planes",),
        EVERYBODY,
        "users, nodes and programs of the cluster with a certificate or a token",
        "yes",
    ),
    Port(
        "etcd of Kubernetes",
        (("", "2379-2380"),),
        ("kubernetes_control_planes",),
        SITE,
        "the control planes, with certificates of etcd's own authority",
        "yes",
    ),
    Port(
        "kubelet",
        (("", 10250),),
        ("kubernetes_control_planes", "kubernetes_nodes"),
        SITE,
        "the API server, by its certificate",
        "yes",
    ),
    Port(
        "services of Kubernetes of the type NodePort",
        (("", "30000-32767"),),
        ("kubernetes_control_planes", "kubernetes_nodes"),
        SITE,
        "depends on the pod",
        "depends on the pod",
    ),
    Port(
        "nginx, for [journals](logs.md)",
        (("log_host_port", 19532),),
        ("log_hosts",),
        SITE,
        "a host of `log_senders` with its certificate: it can add to its own journal",
        "yes",
    ),
    Port(
        "nginx, for [images](registry.md)",
        (("registry_port", 5000), ("registry_caches", [])),
        ("registries",),
        EVERYBODY,
        "users with their passwords, each to their own namespace; everybody to `registry_public`",
        "yes",
    ),
    Port(
        "the portal's proxy",
        (("portal_port", 443),),
        ("portals",),
        EVERYBODY,
        "who logs in; see [the portal](#the-portal)",
        "yes",
    ),
    Port(
        "the portal's hub, for sessions",
        (("portal_hub_port", 8081),),
        ("portals",),
        SITE,
        "the proxy and sessions, by certificates of the portal's own authority",
        "yes",
    ),
    Port(
        "the proxy, for the hub",
        (("", 8001),),
        ("portals",),
        LOOPBACK,
        "the hub, with the token of `proxy.env` and its certificate",
        "yes",
    ),
    Port(
        "the portal's jump of SSH, with `portal_ssh`",
        (("portal_ssh_port", 2222),),
        ("portals",),
        EVERYBODY,
        "who has a key of a user with a session; it reaches the user's sessions alone",
        "yes",
    ),
    Port(
        "sessions of the portal: JupyterLab, and with `portal_ssh` sshd from the middle on",
        (("portal_session_port_first", 20000),),
        ("slurm_nodes", "mesos_agents", "portals"),
        SITE,
        "the session's user, by the hub's login or a key",
        "yes",
        until=("portal_session_port_last", 29999),
    ),
    Port(
        "Ceph monitors",
        (("", 3300), ("", 6789)),
        ("ceph_mons",),
        SITE,
        "clients with a key (cephx)",
        "with `ceph_common_secure`",
    ),
    Port(
        "Ceph OSDs, MDS, mgr",
        (("", "6830-7568"),),
        ("ceph_osds", "ceph_mdss", "ceph_mgrs"),
        SITE,
        "clients with a key (cephx)",
        "with `ceph_common_secure`",
    ),
    Port(
        "NFS, the homes",
        (("", 2049),),
        ("nfs_servers",),
        SITE,
        "the hosts with homes, by their addresses, and `nfs_homes_clients`",
        "no",
    ),
    Port(
        "the agent's [metrics](metrics.md#a-port-of-the-agent)",
        (("gpu_agent_metrics_port", 0),),
        ("gpu_nodes",),
        SITE,
        "everybody who reaches `gpu_agent_metrics_address`; 127.0.0.1 by default",
        "no",
        shown="none, or the one of the variable",
    ),
    Port(
        "node_exporter",
        (("node_exporter_listen", ":9100"),),
        ("node_exporters",),
        SITE,
        "hosts of the site, by a certificate of the [monitoring's authority](monitoring.md#who-can-read-it)",
        "yes",
    ),
    Port(
        "nginx, with the same rules",
        (("registry_loopback_port", 5001),),
        ("registries",),
        LOOPBACK,
        "as port 5000; from where a request came it believes from nginx alone",
        "no",
    ),
    Port(
        "Prometheus, Alertmanager",
        (("prometheus_listen", "127.0.0.1:9090"), ("alertmanager_listen", "127.0.0.1:9093")),
        ("prometheus_servers",),
        LOOPBACK,
        "everybody on that host",
        "no",
    ),
    Port(
        "the mgr module `prometheus`, if `ceph_mgr_modules` enables it",
        (("", 9283),),
        ("ceph_mgrs",),
        SITE,
        "everybody",
        "no",
    ),
    Port(
        "`gpuops accept`, only while it measures the network (`accept_network_port`)",
        (("", "1024-65535"),),
        ("gpu_cluster",),
        SITE,
        "who has the run's token; the listener runs as `nobody`",
        "no",
        shown="one that the kernel chooses",
    ),
    Port(
        "ranks of the all-reduce of `gpuops accept`, as `nobody`",
        (("", "1024-65535"),),
        ("slurm_nodes",),
        SITE,
        "everybody; they send numbers only",
        "no",
        shown="one that is drawn, and others that the kernel chooses",
    ),
    Port(
        "processes of a [training](training.md) of several, as its user",
        (("", "1024-65535"),),
        ("slurm_nodes",),
        SITE,
        "everybody; they meet in a file of the user's, and send numbers only",
        "no",
        shown="those that the kernel chooses",
    ),
)


def table() -> str:
    """The table of docs/security.md."""
    head = ["port", "service", "where", "opened to", "who has access", "encrypted"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(port.row() for port in PORTS)]
    return "\n".join(lines) + "\n"
