# SPDX-License-Identifier: GPL-3.0-or-later
"""What the answers leave open of a site: names and roles of hosts, and where everything runs, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuops.init.answers import (
    CEPHFS,
    CONTROLLER,
    CPU,
    GPU,
    KUBERNETES,
    LOCAL,
    MESOS,
    NFS,
    NO_SCHEDULER,
    SLURM,
    STORAGE,
    Answers,
    AnswersError,
    Host,
    is_address,
    provisional,
)
from gpuops.init.discover import Found

# The domain of a site that has none: nobody else can have a name below it (it is reserved for private networks).
PRIVATE_DOMAIN = "cluster.internal"
# Where the role nfs_homes has homes by default: on the server, and on each host.
NFS_EXPORT, HOMES = "/srv/homes", "/home"
# Systems whose Slurm runs images.
_RUNS_IMAGES = re.compile(r"Debian (1[3-9]|[2-9][0-9])(\..*)?")
# No mirror of them is reliable, so there is no default.
MESOS_SOURCES = ("mesos_common_url", "mesos_common_path", "mesos_common_repository", "mesos_common_image")

KUBERNETES_KEYS = ("kubernetes_common_repo_key_sha256", "kubernetes_common_repo_options")


def settle(site: Answers, found: Mapping[str, Found]) -> dict[str, str]:
    """Decide what is open; ``reasons`` of the site say why. Returns former names of hosts by their new ones.

    Raises AnswersError with all that does not go together.
    """
    _roles(site, found)
    former = _names(site)
    _services(site)
    names = {former.get(host.name, host.name): host.name for host in site.hosts}
    site.quotas = has_quotas(site, names, found)
    site.images = all(_RUNS_IMAGES.fullmatch(found[name].system) if name in found else False for name in names)
    wrong = list(_wrong(site))
    if wrong:
        raise AnswersError(wrong)
    return former


def _roles(site: Answers, found: Mapping[str, Found]) -> None:
    """Roles of hosts that have none: GPU nodes have GPUs, and one host without is the head."""
    free = [host for host in site.hosts if not host.roles]
    bare = [host for host in free if host.name in found and not found[host.name].gpus]
    blind = len(free) > 1 and not any(host.name in found for host in free)
    if free and not site.of(CONTROLLER):
        head = (bare or free)[0]
        head.roles = (CONTROLLER,) if bare or blind else (CONTROLLER, GPU)
        site.reasons["head"] = (
            "it has no GPU"
            if bare
            else "the only host"
            if len(site.hosts) == 1
            else "the first host, since none could be looked at"
            if blind
            else "the first host, since none is known to have no GPU"
        )
    for host in free:
        host.roles = host.roles or ((CPU,) if host in bare else (GPU,))
    if "head" not in site.reasons:
        has_gpus = any(host.name == site.head and GPU in host.roles for host in site.hosts)
        site.reasons["head"] = "the first controller" if site.of(CONTROLLER) else "the first host"
        if not has_gpus and not site.of(CONTROLLER):
            site.reasons["head"] = "no GPU node"


def _names(site: Answers) -> dict[str, str]:
    """Names for hosts that only have an address, by what they are for."""
    taken = {host.name for host in site.hosts}
    former: dict[str, str] = {}
    for host in site.hosts:
        if not (is_address(host.address) and host.name == provisional(host.address)):
            continue
        kind = "head" if CONTROLLER in host.roles else next(iter(host.roles))
        number = 1
        while f"{kind}{number}" in taken:
            number += 1
        before, host.name = host.name, f"{kind}{number}"
        taken.add(host.name)
        former[host.name] = before
        for key in ("portal", "registry", "monitoring"):
            if getattr(site, key) == before:
                setattr(site, key, host.name)
    return former


def _services(site: Answers) -> None:
    computes = any(host.runs_containers for host in site.hosts)
    why, head = site.reasons, site.head
    if not site.scheduler:
        site.scheduler = SLURM if computes else NO_SCHEDULER
    site.engine = site.engine or ("containerd" if site.scheduler == KUBERNETES else "docker")
    why["scheduler"] = {
        SLURM: f"Slurm: controller, accounting and login on {head}, and a fence that keeps jobs off faulty GPUs",
        MESOS: f"Mesos and Marathon: masters on {', '.join(masters(site))}",
        KUBERNETES: f"Kubernetes: control plane on {control_plane(site)}; pods get no faulty GPU",
        NO_SCHEDULER: "none" if computes else "none, since no host runs jobs",
    }[site.scheduler]
    count = len(site.hosts)
    if not site.homes:
        site.homes = CEPHFS if site.of(STORAGE) else LOCAL if count == 1 else NFS
    why["homes"] = {
        CEPHFS: "on CephFS, with a quota for each user",
        NFS: f"by NFS from {head}" + ("" if count < 4 else "; with four servers or more, consider disks for CephFS"),
        LOCAL: "on the host's own disk" if count == 1 else "each host has its own: files are not the same on them",
    }[site.homes]
    if site.portal is None:
        site.portal = head if site.scheduler == SLURM and not _apart(site) else ""
        if site.scheduler == MESOS:
            why["portal"] = "none: on Mesos it ran with stand-ins only; --portal HOST takes it in"
        elif site.scheduler == KUBERNETES:
            why["portal"] = "none: its sessions do not run on Kubernetes"
        elif _apart(site):
            why["portal"] = "none: it needs homes that are the same on all hosts"
    if site.registry is None:
        site.registry = head if computes else ""
    if site.monitoring is None:
        site.monitoring = head
    why.setdefault("portal", f"https://{portal_name(site)} on {site.portal}" if site.portal else "none")
    why["registry"] = f"{registry_name(site)}:5000 on {site.registry}" if site.registry else "none"
    why["monitoring"] = f"metrics, alerts and logs on {site.monitoring}" if site.monitoring else "none"
    why["users"] = f"{len(site.users)} in the list" if site.users else "none yet; `gpuops user add NAME` adds one"


def _apart(site: Answers) -> bool:
    """Whether a user has another home on each host."""
    return site.homes == LOCAL and len(site.hosts) > 1


def has_quotas(site: Answers, names: Mapping[str, str], found: Mapping[str, Found]) -> bool:
    """Whether the homes without Ceph are on file systems with quotas, as far as it was seen.

    :param names: of the hosts, by those in ``found``.
    """
    place = {NFS: NFS_EXPORT, LOCAL: HOMES}.get(site.homes)
    keep = {name: host for name, host in names.items() if site.homes == LOCAL or host == site.head}
    return bool(keep) and all(name in found and place in found[name].quotas for name in keep)


def masters(site: Answers) -> list[str]:
    """One, three or five hosts that vote: the controllers, or the head."""
    names = [host.name for host in site.of(CONTROLLER)] or [site.head]
    return names[: 5 if len(names) >= 5 else 3 if len(names) >= 3 else 1]


def control_plane(site: Answers) -> str:
    """The first controller, or else the first host that runs containers."""
    inside = [host for host in site.hosts if host.runs_containers]
    return next((host.name for host in (*site.of(CONTROLLER), *inside)), site.head)


def portal_name(site: Answers) -> str:
    return f"portal.{site.domain or PRIVATE_DOMAIN}"


def registry_name(site: Answers) -> str:
    """By its name in the domain; without one by its address, which needs no DNS."""
    if site.domain:
        return f"registry.{site.domain}"
    host = _host(site, site.registry or "")
    return host.address if host and host.address else site.registry or ""


def _host(site: Answers, name: str) -> Host | None:
    return next((host for host in site.hosts if host.name == name), None)


def _wrong(site: Answers) -> list[str]:
    wrong = []
    computes = any(host.runs_containers for host in site.hosts)
    if site.scheduler != NO_SCHEDULER and not computes:
        wrong.append(f"scheduler is {site.scheduler}, and no host runs jobs; give --gpu or --cpu, or --scheduler none")
    if site.homes == CEPHFS and not site.of(STORAGE):
        wrong.append("homes is cephfs, and no host has disks for it; give --storage, or --homes nfs")
    if site.portal and site.scheduler == NO_SCHEDULER:
        wrong.append(
            "portal needs a scheduler for its sessions; give --scheduler slurm, or --portal '' (docs/portal.md has "
            "sessions in Docker on one host)"
        )
    given = {name for host in site.hosts for name in host.variables} | set(site.variables)
    if site.portal and site.scheduler == KUBERNETES:
        wrong.append("portal has no sessions on Kubernetes; give --portal ''")
    if site.scheduler == KUBERNETES and site.engine != "containerd":
        wrong.append(f"engine is {site.engine}, and the nodes of Kubernetes need containerd; give --engine containerd")
    if site.scheduler == KUBERNETES and not given.intersection(KUBERNETES_KEYS):
        wrong.append(
            "scheduler is kubernetes, and nothing says by which key its packages are signed; give "
            "kubernetes_common_repo_key_url and kubernetes_common_repo_key_sha256 in `variables` of the answers file, "
            "and the repository of a containerd from 2.0 on (docs/kubernetes.md, 'Settings')"
        )
    if site.scheduler == MESOS and not given.intersection(MESOS_SOURCES):
        wrong.append(
            "scheduler is mesos, and nothing says where its programs come from; give mesos_common_url, "
            "mesos_common_sha256, marathon_url and marathon_sha256 in `variables` of the answers file "
            "(docs/mesos.md, 'Where the programs come from')"
        )
    if site.portal and _apart(site):
        wrong.append(
            "homes is local, and sessions of the portal run on other hosts than it: both need the same homes; give "
            "--homes nfs, or --portal ''"
        )
    return wrong
