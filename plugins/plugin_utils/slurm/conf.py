# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration files of a Slurm cluster, from its description. Pure.

slurm.conf, gres.conf, cgroup.conf, topology.conf and oci.conf are the same on every host; nodes have them from
slurmctld.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION, USER
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.node import ranges
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import jwt
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm.cluster import (
    REQUEUE_WAIT_S,
    Cluster,
    Gpu,
    Node,
    Partition,
    has_accounting,
)

HEAD = "# Written by Ansible (baremetal.gpu.{role}). Changes made here are lost.\n"
SPOOL = "/var/lib/slurm/slurmd"
# On every node, from the role slurm_node.
PROGRAM = "/usr/libexec/baremetal-gpu/baremetal-gpu-slurm"
PROLOG = "/usr/libexec/baremetal-gpu/slurm-prolog"
TASK_PROLOG = "/usr/libexec/baremetal-gpu/slurm-task-prolog"
EPILOG = "/usr/libexec/baremetal-gpu/slurm-epilog"
HEALTH_CHECK = "/usr/libexec/baremetal-gpu/slurm-health-check"
# Starts the container of a task, and answers for it.
CONTAINER = "/usr/libexec/baremetal-gpu/slurm-container"
# How often slurmd runs the health check, in seconds.
HEALTH_CHECK_INTERVAL_S = 60
# The exit code of a TaskProlog that refuses a job: one that programs do not have. sacct takes one above 127 for a
# signal.
REFUSED = 119

# Of the operator's jobs, each of which keeps one GPU from users' jobs (module_utils/slurm/control.py).
HOLDERS = {
    "Default": "NO",
    "Hidden": "YES",
    "AllowGroups": USER,
    "MaxTime": "INFINITE",
    "PriorityTier": "60000",
    "State": "UP",
}

# The QOS decides first, then who has used less than their share, then who waits longer. Use is half forgotten after a
# week.
PRIORITY = {
    "PriorityWeightQOS": "100000",
    "PriorityWeightFairshare": "10000",
    "PriorityWeightAge": "1000",
    "PriorityMaxAge": "7-0",
    "PriorityDecayHalfLife": "7-0",
}

# A token cannot be taken back, so it ends. A user asks for a new one at any time.
TOKEN_LIFESPAN = "max_token_lifespan=86400"

CGROUP = """\
# Jobs are held to their cores, their memory and their devices.
ConstrainCores=yes
ConstrainDevices=yes
ConstrainRAMSpace=yes
"""

# Every command has to be there, and where containers are run in one step, slurmstepd asks only for the state: of the
# step, not of a task. A container does not need the configuration of slurmd.
OCI = f"""\
EnvExclude="^(SLURM_CONF|SLURM_CONF_SERVER)="
RunTimeEnvExclude="^(SLURM_CONF|SLURM_CONF_SERVER)="
RunTimeQuery="{CONTAINER} state %n.%u.%j.%s.%t"
RunTimeKill="{CONTAINER} kill %n.%u.%j.%s.%t"
RunTimeDelete="{CONTAINER} delete %n.%u.%j.%s.%t"
RunTimeRun="{CONTAINER} run %n.%u.%j.%s.%t %b"
"""


def gres(gpus: Sequence[Gpu]) -> str:
    """The value of Gres of a node, such as gpu:a100:2."""
    types = list(dict.fromkeys(gpu.type for gpu in gpus))
    return ",".join(f"gpu:{one}:{sum(gpu.type == one for gpu in gpus)}" for one in types)


def settings(
    cluster: Cluster,
    options: Mapping[str, object],
    prolog: bool = True,
    enforce: Sequence[str] = (),
    health_check: bool = False,
    private_data: Sequence[str] = (),
) -> dict[str, str]:
    """The settings of slurm.conf that are not nodes or partitions; `options` are the operator's and win.

    :param enforce: what slurmctld refuses by the accounting.
    :param private_data: what it hides of other users.
    """
    name, address = cluster.controllers[0]
    found = {
        "ClusterName": cluster.name,
        "SlurmctldHost": f"{name}({address})",
        "SlurmctldParameters": "enable_configless",
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        # So long a job that was queued again waits at least, and a node takes the order to start one.
        "AuthInfo": f"cred_expire={REQUEUE_WAIT_S}",
        "CredType": "cred/munge",
        "StateSaveLocation": cluster.state_directory,
        "SlurmdSpoolDir": SPOOL,
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/cgroup,task/affinity",
        "JobAcctGatherType": "jobacct_gather/cgroup",
        # A cgroup for the job from its start, which logins by SSH can be put into.
        "PrologFlags": "Contain",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",
        # Jobs start in passes over the whole queue, highest priority first. Started as it is submitted, a job could
        # have a GPU that became free this moment and that an operator's job waits for. By default Slurm leaves three
        # seconds between two passes, which every job would wait for.
        "SchedulerParameters": "defer,batch_sched_delay=1",
        "PriorityType": "priority/multifactor",
        # A node comes back by itself after silence and after a boot that nobody asked for, such as a loss of power. One
        # that somebody drained does not.
        "ReturnToService": "2",
        "MpiDefault": "none",
        "GresTypes": "gpu",
        # slurmctld does not start with it where no slurmdbd counts.
        **({"AccountingStorageTRES": "gres/gpu"} if has_accounting(cluster.database, options) else {}),
        "DefMemPerCPU": str(min((node.memory_mib // node.cpus for node in cluster.nodes), default=1024)),
    }
    if cluster.database:
        found |= {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": cluster.database}
        found |= {"AccountingStorageEnforce": ",".join(enforce)} if enforce else {}
        found |= PRIORITY
    found |= {"PrivateData": ",".join(private_data)} if private_data else {}
    if cluster.has_rest:
        found |= jwt.settings("slurmctld", TOKEN_LIFESPAN)
    if cluster.switches:
        found |= {"TopologyPlugin": "topology/tree"}
    if prolog and any(node.gpus for node in cluster.nodes):
        found |= {"Prolog": PROLOG, "TaskProlog": TASK_PROLOG, "Epilog": EPILOG, "RequeueExit": str(REFUSED)}
    # The operator's own program has an interval of its own.
    if health_check and "HealthCheckProgram" not in options and any(node.gpus for node in cluster.nodes):
        found |= {"HealthCheckProgram": HEALTH_CHECK, "HealthCheckInterval": str(HEALTH_CHECK_INTERVAL_S)}
        found |= {"HealthCheckNodeState": "ANY"}
    found |= {str(key): str(value) for key, value in options.items()}
    # Slurm itself makes the name small, for the accounting too.
    return found | {"ClusterName": found["ClusterName"].lower()}


def node_line(node: Node) -> str:
    """The line of a node in slurm.conf."""
    words = [
        f"NodeName={node.name}",
        f"NodeHostname={node.hostname}",
        f"NodeAddr={node.address}",
        f"Sockets={node.sockets}",
        f"CoresPerSocket={node.cores_per_socket}",
        f"ThreadsPerCore={node.threads_per_core}",
        f"RealMemory={node.memory_mib}",
        *([f"Gres={gres(node.gpus)}"] if node.gpus else []),
        *([f"Feature={','.join(node.features)}"] if node.features else []),
        "State=UNKNOWN",
    ]
    return " ".join(words)


def partition_line(partition: Partition, nodes: Mapping[str, Node]) -> str:
    """The line of a partition in slurm.conf. A job gets a fair part of a node's cores for each of its GPUs."""
    with_gpus = [nodes[name] for name in partition.nodes if nodes[name].gpus]
    cores = min((node.cpus // len(node.gpus) for node in with_gpus), default=0)
    given = {
        "Nodes": ",".join(partition.nodes) or '""',
        "Default": "YES" if partition.default else "NO",
        "State": "UP",
        **({"DefCpuPerGPU": str(cores)} if cores else {}),
        **dict(partition.options),
    }
    return " ".join([f"PartitionName={partition.name}", *(f"{key}={value}" for key, value in given.items())])


def holders_line(cluster: Cluster) -> str:
    """The line of the operator's partition."""
    names = ",".join(node.name for node in cluster.nodes if node.gpus)
    return " ".join(
        [f"PartitionName={PARTITION}", f"Nodes={names}", *(f"{key}={value}" for key, value in HOLDERS.items())]
    )


def slurm_conf(
    cluster: Cluster,
    options: Mapping[str, object] | None = None,
    prolog: bool = True,
    enforce: Sequence[str] = (),
    health_check: bool = False,
    private_data: Sequence[str] = (),
) -> str:
    """The text of slurm.conf."""
    nodes = {node.name: node for node in cluster.nodes}
    named = settings(cluster, options or {}, prolog, enforce, health_check, private_data)
    # The first is the primary controller, the next one its backup.
    backups = [f"SlurmctldHost={name}({address})" for name, address in cluster.controllers[1:]]
    # A host whose slurm.conf is this one has the other files, too.
    others = {"topology.conf": topology_conf(cluster), "oci.conf": oci_conf(cluster)}
    lines = [
        f"# With the {name} of SHA-256 {hashlib.sha256(text.encode()).hexdigest()}."
        for name, text in others.items()
        if text
    ]
    for key, value in named.items():
        lines += [f"{key}={value}", *(backups if key == "SlurmctldHost" else [])]
    lines += [
        "",
        *(node_line(node) for node in cluster.nodes),
        "",
        *(partition_line(one, nodes) for one in cluster.partitions),
        *([holders_line(cluster)] if any(node.gpus for node in cluster.nodes) else []),
    ]
    return HEAD.format(role="slurm_controller") + "\n".join(lines) + "\n"


def gres_conf(cluster: Cluster) -> str:
    """The text of gres.conf: a line for each GPU, so that nothing has to be detected."""
    lines = ["AutoDetect=off"]
    for node in cluster.nodes:
        for gpu in node.gpus:
            words = [f"NodeName={node.name}", "Name=gpu", f"Type={gpu.type}", f"File=/dev/nvidia{gpu.minor}"]
            words += [f"Cores={ranges(gpu.cores)}"] if gpu.cores else []
            words += [f"Links={','.join(map(str, gpu.links))}"] if gpu.links else []
            lines.append(" ".join(words))
    return HEAD.format(role="slurm_controller") + "\n".join(lines) + "\n"


def topology_conf(cluster: Cluster) -> str:
    """The text of topology.conf; empty where nothing is known of the network."""
    lines = []
    for switch in cluster.switches:
        below = f"Switches={','.join(switch.switches)}" if switch.switches else f"Nodes={','.join(switch.nodes)}"
        lines.append(f"SwitchName={switch.name} {below}")
    return HEAD.format(role="slurm_controller") + "\n".join(lines) + "\n" if lines else ""


def oci_conf(cluster: Cluster) -> str:
    """The text of oci.conf; empty where jobs have no containers."""
    return HEAD.format(role="slurm_controller") + OCI if cluster.containers else ""


def cgroup_conf() -> str:
    """The text of cgroup.conf."""
    return HEAD.format(role="slurm_controller") + CGROUP
