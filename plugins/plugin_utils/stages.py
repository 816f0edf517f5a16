# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of a run of playbooks/site.yml, in the order in which a host goes through them.

The only list of them: what is written in Python takes it from here, and a test holds the playbooks to it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Groups that a run makes itself, of the hosts in the inventory's group gpu_cluster.
GPU_PRESENT, GPU_ABSENT = "gpu_present", "gpu_absent"


@dataclass(frozen=True)
class Stage:
    """One stage.

    :ivar name: what tables, records and reports call it.
    :ivar short_title: the same where there is little room, in six characters at most.
    :ivar tag: what confines a run of the site's playbook to it.
    :ivar roles: what does it, in order.
    :ivar groups: whose hosts go through it.
    :ivar loss: what a host that fails it is without. It is left out of the stages after it that need it, too.
    :ivar needs: the stages before it without which a host does not go through it; None for all of them.
    :ivar further_roles: what belongs to it, but is run in parts, by these roles, or by playbooks of a site's own.
    :ivar tag_by_role: whether the name of each role is a tag besides.
    :ivar independent: whether no host waits for another or reads what was found out about it.
    :ivar after_preflight: whether its tag brings preflight along. A host that is as all stages of this kind want it
        leaves the play before any task of theirs.
    """

    name: str
    short_title: str
    tag: str
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    loss: str
    further_roles: tuple[str, ...] = ()
    tag_by_role: bool = False
    independent: bool = False
    after_preflight: bool = False
    needs: tuple[str, ...] | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.tag, *(self.roles if self.tag_by_role else ()))


STAGES = (
    Stage(
        name="preflight",
        short_title="check",
        tag="preflight",
        roles=("gpu_preflight",),
        groups=("gpu_cluster",),
        loss="everything: nothing is changed on it",
        independent=True,
    ),
    Stage(
        name="driver",
        short_title="driver",
        tag="driver",
        roles=("nouveau", "nvidia_driver", "gpu_device_nodes"),
        groups=(GPU_PRESENT,),
        loss="its GPUs: no program can use them",
        independent=True,
        after_preflight=True,
    ),
    Stage(
        name="cuda",
        short_title="cuda",
        tag="cuda",
        roles=("cuda",),
        groups=(GPU_PRESENT,),
        loss="the CUDA toolkits",
        independent=True,
        after_preflight=True,
    ),
    Stage(
        name="containers",
        short_title="engine",
        tag="containers",
        roles=("container_runtime",),
        groups=(GPU_PRESENT, GPU_ABSENT),
        loss="containers, or GPUs in them",
        independent=True,
        after_preflight=True,
    ),
    Stage(
        name="mig",
        short_title="mig",
        tag="mig",
        roles=("gpu_mig",),
        groups=(GPU_PRESENT,),
        loss="the instances of its GPUs",
        independent=True,
    ),
    Stage(
        name="verify",
        short_title="verify",
        tag="verify",
        roles=("gpu_verify",),
        groups=(GPU_PRESENT,),
        loss="the proof that its GPUs work",
        independent=True,
    ),
    Stage(
        name="agent",
        short_title="agent",
        tag="agent",
        roles=("gpu_agent",),
        groups=(GPU_PRESENT,),
        loss="verdicts on its GPUs",
        tag_by_role=True,
        independent=True,
    ),
    Stage(
        name="users",
        short_title="users",
        tag="users",
        roles=("users",),
        groups=(
            "gpu_cluster",
            "ceph_clients",
            "home_hosts",
            "nfs_servers",
            "slurm_controllers",
            "slurm_nodes",
            "slurm_logins",
            "slurm_rests",
            "mesos_agents",
            "portals",
        ),
        loss="the accounts of people, or changes to them",
        needs=("preflight",),
    ),
    Stage(
        name="software",
        short_title="softw",
        tag="software",
        roles=("user_software",),
        groups=("user_software_hosts",),
        loss="the programs that people expect, or modules",
        needs=("preflight",),
    ),
    Stage(
        name="storage",
        short_title="store",
        tag="storage",
        roles=("ceph_mon", "ceph_mgr", "ceph_osd", "ceph_mds", "cephfs_homes", "cephfs_client"),
        groups=("ceph_mons", "ceph_mgrs", "ceph_osds", "ceph_mdss", "ceph_clients"),
        loss="its part in the storage, or the homes and what else is mounted",
        further_roles=("ceph_common",),
    ),
    Stage(
        name="homes",
        short_title="homes",
        tag="homes",
        roles=("nfs_homes",),
        groups=("nfs_servers", "home_hosts", "gpu_cluster"),
        loss="its part in the homes",
        needs=("preflight", "users"),
    ),
    Stage(
        name="scheduler",
        short_title="sched",
        tag="scheduler",
        roles=("zookeeper", "mesos_master", "mesos_agent", "marathon"),
        groups=("zookeeper", "mesos_masters", "mesos_agents", "marathon"),
        loss="its part in the scheduler, or jobs",
        further_roles=("mesos_common", "marathon_apps"),
        tag_by_role=True,
    ),
    Stage(
        name="reconciler",
        short_title="reconc",
        tag="scheduler",
        roles=("gpu_reconciler",),
        groups=("gpu_reconcilers",),
        loss="the reconciler: GPUs with a fatal verdict stay with the scheduler",
        tag_by_role=True,
    ),
    Stage(
        name="slurm",
        short_title="slurm",
        tag="slurm",
        roles=(
            "slurm_common",
            "munge",
            "slurm_database",
            "slurm_controller",
            "slurm_accounts",
            "slurm_node",
            "slurm_login",
            "slurm_rest",
        ),
        groups=("slurm_controllers", "slurm_databases", "slurm_nodes", "slurm_logins", "slurm_rests"),
        loss="its part in Slurm, or jobs",
        further_roles=("slurm_apps",),
        needs=("preflight", "driver", "cuda", "containers", "mig", "verify", "agent", "users", "storage", "homes"),
    ),
    Stage(
        name="registry",
        short_title="images",
        tag="registry",
        roles=("registry", "registry_client"),
        groups=("registries", "registry_clients"),
        loss="its images, or trust in the registry that has them",
        needs=("preflight", "containers"),
    ),
    Stage(
        name="kubernetes",
        short_title="k8s",
        tag="kubernetes",
        roles=(
            "kubernetes_common",
            "kubernetes_control_plane",
            "kubernetes_node",
            "kubernetes_network",
            "kubernetes_gpu",
            "kubernetes_users",
        ),
        groups=("kubernetes_control_planes", "kubernetes_nodes"),
        loss="its part in Kubernetes, or pods",
        further_roles=("kubernetes_apps",),
        needs=(
            *("preflight", "driver", "cuda", "containers", "mig", "verify"),
            *("agent", "users", "storage", "homes", "registry"),
        ),
    ),
    Stage(
        name="portal",
        short_title="portal",
        tag="portal",
        roles=("portal",),
        groups=("slurm_nodes", "mesos_agents", "portals"),
        loss="the portal, or the environment of its sessions",
    ),
    Stage(
        name="monitoring",
        short_title="watch",
        tag="monitoring",
        roles=("node_exporter", "alertmanager", "prometheus", "grafana_dashboards", "log_host", "log_sender"),
        groups=("node_exporters", "prometheus_servers", "grafana_servers", "log_hosts", "log_senders"),
        loss="its metrics, alerts or logs",
        needs=("preflight",),
    ),
    Stage(
        name="backup",
        short_title="backup",
        tag="backup",
        roles=("backup",),
        groups=("backup_hosts",),
        loss="archives of what it alone knows",
        needs=("preflight",),
    ),
    Stage(
        name="firewall",
        short_title="wall",
        tag="firewall",
        roles=("firewall",),
        groups=("firewalled",),
        loss="rules of its own on who reaches its ports",
        needs=("preflight",),
    ),
)

# They work for other roles, so what they do belongs to the stage that is under way.
SHARED_ROLES = ("converge", "kubernetes_operator", "mesos_operator", "slurm_operator")

NAMES = tuple(stage.name for stage in STAGES)


def behind(name: str) -> tuple[Stage, ...]:
    """The stages after one; none for a name that is no stage's."""
    return STAGES[NAMES.index(name) + 1 :] if name in NAMES else ()


def does_without(stage: Stage, failed: str) -> bool:
    """Whether a stage goes on where another one has failed."""
    needs = NAMES[: NAMES.index(stage.name)] if stage.needs is None else stage.needs
    return failed not in needs


# Name -> short title.
SHORT_TITLES = {stage.name: stage.short_title for stage in STAGES}
# Role -> name.
NAME_OF_ROLE = {role: stage.name for stage in STAGES for role in stage.roles + stage.further_roles}
# One for each stage, or for several that only come together.
TAGS = tuple(dict.fromkeys(stage.tag for stage in STAGES))
# What a host goes through by itself, after preflight.
ROLES_OF_A_NODE = tuple(
    role for stage in STAGES if stage.independent and stage.name != "preflight" for role in stage.roles
)
