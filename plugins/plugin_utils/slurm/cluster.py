# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm cluster as the inventory and the facts of its hosts describe it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import PARTITION
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.node import cpu_ids
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import topology

# Whatever becomes a word of a configuration file: hosts name themselves, and are not trusted with its syntax.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
# The form and the memory of a model, which its GPU type leaves out: a100-sxm4-40gb is of the type a100.
_FORM = re.compile(r"-(sxm\d*|pcie|nvl|hbm\w*|\d+gb)(?=-|$)")
# Debian's packages fix this one. munge does not compare the ids of its own users.
SAME_ON_EVERY_HOST = "slurm"
# The release whose containers were not tried.
OLD = "22.05"
# Where slurmctld saves its state by default: a directory of the package.
STATE_DIRECTORY = "/var/lib/slurm/slurmctld"
# slurm.conf and a systemd unit have it as a word.
PATH = re.compile(r"(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+")
# File systems that several hosts mount at once, by the types in /proc/self/mountinfo.
SHARED_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "ceph",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.glusterfs",
    "gfs2",
    "ocfs2",
    "wekafs",
)
# Settings of slurm.conf that slurmctld takes only with a slurmdbd.
NEED_ACCOUNTING = ("AccountingStorageTRES", "AccountingStorageEnforce")
# Slurm's own wait is 120 s, and a training whose GPU fails is to go on within 90.
REQUEUE_WAIT_S = 30
# A node takes no order to start a job that is older than that wait by its own clock. The look itself takes seconds.
CLOCK_TOLERANCE_S = 20.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of a node.

    :ivar minor: of its device file, /dev/nvidiaMINOR.
    :ivar type: what users ask for, as in gpu:TYPE:1.
    :ivar cores: the cores near it, in Slurm's numbers; empty where all are alike or it is not known.
    :ivar links: NVLinks to each GPU of the node in the order of their minors, -1 for itself; empty where not known.
    """

    minor: int
    type: str
    cores: tuple[int, ...] = ()
    links: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """A node that runs jobs. Memory in MiB, less what the system keeps for itself."""

    name: str
    hostname: str
    address: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int
    gpus: tuple[Gpu, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        return self.sockets * self.cores_per_socket * self.threads_per_core


@dataclass(frozen=True)
class Partition:
    """A partition; `options` are further settings of its line by name."""

    name: str
    nodes: tuple[str, ...]
    default: bool = False
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cluster:
    """What the configuration of a cluster is made of.

    :ivar controllers: host name and address of each host of slurmctld; the first is the primary one.
    :ivar state_directory: where slurmctld saves its state.
    :ivar database: address of the host of slurmdbd; empty without accounting.
    :ivar notes: on nodes that were not looked at.
    :ivar has_rest: whether there is a host of slurmrestd, whose clients log in with tokens.
    :ivar switches: of the network; empty where nothing is known of it.
    :ivar containers: whether jobs can have containers.
    """

    name: str
    controllers: tuple[tuple[str, str], ...]
    state_directory: str
    database: str
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    notes: tuple[str, ...] = ()
    has_rest: bool = False
    switches: tuple[topology.Switch, ...] = ()
    containers: bool = False


def gpu_type(model: str) -> str:
    """The GPU type of a model: a100 for a100-sxm4-40gb."""
    return _FORM.sub("", model)


def gpus(facts: Mapping[str, Any], processors: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs in `ansible_facts.gpu` that NVML reaches, by minor. Those in MIG mode are left out."""
    rows = [row for row in facts.get("devices") or () if _is_usable(row)]
    rows.sort(key=lambda row: int(row["minor"]))
    cores = list(processors.get("cores") or ())
    near = [_cores_near(str(row.get("cpus") or ""), cores) for row in rows]
    # What is near all cores, or is not told for each, is not worth a setting.
    if not all(near) or all(len(one) == len(cores) for one in near):
        near = [()] * len(rows)
    links = _links(facts, rows)
    return tuple(
        Gpu(int(row["minor"]), gpu_type(str(row["slug"])), near[place], links[place]) for place, row in enumerate(rows)
    )


def _is_usable(row: Mapping[str, Any]) -> bool:
    known = isinstance(row.get("minor"), int) and isinstance(row.get("slug"), str)
    return known and bool(WORD.fullmatch(row["slug"])) and not (row.get("mig") or {}).get("enabled")


def _cores_near(cpus: str, cores: Sequence[Sequence[int]]) -> tuple[int, ...]:
    near = set(cpu_ids(cpus))
    return tuple(number for number, core in enumerate(cores) if near.issuperset(core))


def _links(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    topology = facts.get("topology") or {}
    scores, kinds = topology.get("scores") or [], topology.get("kinds") or {}
    order = [int(row["index"]) for row in rows if isinstance(row.get("index"), int)]
    if len(rows) < 2 or len(order) < len(rows) or max(order) >= len(scores):
        return [()] * len(rows)
    found = [tuple(-1 if mine == other else _nvlinks(kinds, scores[mine][other]) for other in order) for mine in order]
    return found if any(number > 0 for row in found for number in row) else [()] * len(rows)


def _nvlinks(kinds: Mapping[str, Any], score: Any) -> int:
    return int((kinds.get(str(score)) or {}).get("nvlinks") or 0)


def features(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What a node has beside its counts, for `--constraint`: models, architectures, memory of a GPU, nvlink."""
    found: dict[str, None] = {}
    for row in facts.get("devices") or ():
        if not _is_usable(row):
            continue
        found[row["slug"]] = None
        found[str(row.get("architecture") or "")] = None
        if isinstance(row.get("memory_mib"), int):
            found[f"gpu{round(row['memory_mib'] / 1024)}g"] = None
        if row.get("nvlinks"):
            found["nvlink"] = None
    return tuple(word for word in found if WORD.fullmatch(word))


# --- the cluster -----------------------------------------------------------------------------------------------------


def describe(
    params: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]
) -> tuple[Cluster | None, list[Problem]]:
    """The cluster, or every problem that keeps it from being one.

    :param params: the variables of the role slurm_common, without the name of the role before them.
    :param groups: hosts by the name of the group, as in the inventory.
    :param hosts: of each host of the cluster `address`, `look` (the answer of slurm_node_info), `gpu` (the facts of
        its GPUs), `memory_reserve_mib`, `features` and `switch`.
    """
    controllers = list(groups.get(params["controllers_group"]) or ())
    databases = list(groups.get(params["databases_group"]) or ())
    members = list(groups.get(params["nodes_group"]) or ())
    logins = list(groups.get(params["logins_group"]) or ())
    rests = list(groups.get(params["rests_group"]) or ())
    everyone = list(dict.fromkeys([*controllers, *databases, *members, *logins, *rests]))
    kept, left_out, unclear = _not_seen(members, controllers, hosts)
    told = {*kept, *left_out, *(problem.subject for problem in unclear)}
    everyone = [name for name in everyone if name not in told]
    problems = [
        *_count_problems(params, controllers, databases, list(groups.get("portals") or ())),
        *unclear,
        *(problem for name in everyone for problem in _host_problems(name, hosts.get(name) or {})),
        *_state_problems(params, controllers, hosts),
        *_common_problems({name: hosts[name]["look"] for name in everyone if (hosts.get(name) or {}).get("look")}),
    ]
    members = [name for name in members if name not in left_out]
    partitions, wrong = _partitions(params["partitions"], groups, members)
    problems += wrong
    switch_of = {name: str((hosts.get(name) or {}).get("switch") or "") for name in members}
    switches, wrong = topology.describe(switch_of, params["switches"])
    problems += wrong
    if params["containers"]:
        problems += _container_problems({name: (hosts.get(name) or {}).get("look") for name in members})
    if not WORD.fullmatch(str(params["cluster_name"])):
        problems.append(
            Problem(
                "bad_name",
                "slurm_common_cluster_name",
                "the name of the cluster has other characters than letters, digits, dots, hyphens and underscores",
                str(params["cluster_name"]),
                "choose another",
            )
        )
    if "partition_prio" in str((params.get("options") or {}).get("PreemptType", "")):
        problems.append(
            Problem(
                "preemption",
                "slurm_common_options",
                "preemption by partition would let the operator's jobs, which keep bad GPUs, preempt users' jobs",
                str(params["options"]["PreemptType"]),
                "use preempt/qos",
            )
        )
    problems += _accounting_problems(params, databases)
    nodes: list[Node] = []
    if not problems:
        for name in members:
            node = kept.get(name) or _node(name, hosts[name])
            problems += _size_problems(node, hosts.get(name) or {})
            nodes.append(node)
    if problems:
        return None, problems
    return (
        Cluster(
            str(params["cluster_name"]),
            tuple((hosts[name]["look"]["hostname"], str(hosts[name]["address"])) for name in controllers),
            str(params["state_directory"]),
            str(hosts[databases[0]]["address"]) if databases else "",
            tuple(nodes),
            partitions,
            tuple(_notes(kept, left_out)),
            bool(rests),
            switches,
            bool(params["containers"]),
        ),
        [],
    )


def _not_seen(
    members: Sequence[str], controllers: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Node], list[str], list[Problem]]:
    """The nodes that were not looked at: what slurm.conf has of them, the new ones, and those that it does not tell.

    A node that is silent today is no reason to leave the others as they are, nor to take it out of the cluster.
    """
    looks = [hosts[name]["look"] for name in controllers if (hosts.get(name) or {}).get("look")]
    lines: Mapping[str, Any] = looks[0]["node_lines"] if looks else {}
    away = [name for name in members if not (hosts.get(name) or {}).get("look") and name not in controllers]
    # Where no node was seen and none is known, it is not the nodes that are at fault.
    if len(away) == len(members) and not any(name in lines for name in away):
        return {}, [], []
    kept, unclear = {}, []
    for name in away:
        if name not in lines:
            continue
        try:
            kept[name] = configured_node(name, lines[name]["slurm_conf"], lines[name]["gres_conf"])
        except ValueError as failure:
            cause = f"{name} was not looked at in this run, and its lines in the controller's files cannot be read"
            unclear.append(Problem("not_seen", name, cause, str(failure), f"have {name} answer, and run it again"))
    left_out = [name for name in away if name not in lines]
    return kept, left_out, unclear


def _notes(kept: Iterable[str], left_out: Iterable[str]) -> Iterable[str]:
    for name in kept:
        yield f"{name} was not looked at in this run and stays as slurm.conf has it."
    for name in left_out:
        yield f"{name} was not looked at in this run and is not added. Have it answer, and run it again."


def _words(line: str) -> dict[str, str]:
    words = [word.partition("=") for word in line.split()]
    return {key: value for key, _equals, value in words}


def configured_node(name: str, node_lines: Sequence[str], gres_lines: Sequence[str]) -> Node:
    """A node from the lines that conf.py has written of it. Raises ValueError where they are others."""
    if len(node_lines) != 1:
        raise ValueError(f"slurm.conf has {len(node_lines)} lines of it")
    words = _words(node_lines[0])
    try:
        sizes = {key: int(words[key]) for key in ("Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory")}
        hostname, address = words["NodeHostname"], words["NodeAddr"]
    except (KeyError, ValueError):
        raise ValueError(node_lines[0]) from None
    features = tuple(filter(None, words.get("Feature", "").split(",")))
    if not WORD.fullmatch(hostname) or not ADDRESS.fullmatch(address) or not all(map(WORD.fullmatch, features)):
        raise ValueError(node_lines[0])
    return Node(
        name,
        hostname,
        address,
        sizes["Sockets"],
        sizes["CoresPerSocket"],
        sizes["ThreadsPerCore"],
        sizes["RealMemory"],
        tuple(_configured_gpu(line) for line in gres_lines),
        features,
    )


def _configured_gpu(line: str) -> Gpu:
    words = _words(line)
    device = re.fullmatch(r"/dev/nvidia(\d{1,4})", words.get("File", ""))
    links = words.get("Links", "")
    if device is None or not WORD.fullmatch(words.get("Type", "")) or not re.fullmatch(r"[-0-9,]*", links):
        raise ValueError(line)
    return Gpu(
        int(device[1]),
        words["Type"],
        tuple(cpu_ids(words.get("Cores", ""))),
        tuple(int(number) for number in filter(None, links.split(","))),
    )


def _node(name: str, host: Mapping[str, Any]) -> Node:
    look, facts = host["look"], host.get("gpu") or {}
    processors = look["processors"]
    return Node(
        name,
        look["hostname"],
        str(host["address"]),
        int(processors["sockets"]),
        int(processors["cores_per_socket"]),
        int(processors["threads_per_core"]),
        int(look["memory_mib"]) - int(host["memory_reserve_mib"]),
        gpus(facts, processors),
        tuple(dict.fromkeys([*features(facts), *host.get("features", ())])),
    )


# What the portal's hub, which is nobody in Slurm, has to see.
OF_PORTAL = ("jobs", "nodes", "partitions", "reservations")


def _hidden_problems(params: Mapping[str, Any], portals: Sequence[str]) -> Iterable[Problem]:
    """A portal that does not see sessions takes them for ended."""
    options = {str(key).lower(): str(value).lower() for key, value in params["options"].items()}
    hidden = {*params.get("private_data", ()), *options.get("privatedata", "").replace(" ", "").split(",")}
    if hidden & {"all", *OF_PORTAL} and portals:
        yield Problem(
            "hidden_from_portal",
            "slurm_common_private_data",
            "the portal shows who uses what, and its hub would see no sessions",
            ", ".join(sorted(hidden)),
            f"leave out {', '.join(OF_PORTAL)}, or take {portals[0]} out of the group portals",
        )


def _count_problems(
    params: Mapping[str, Any], controllers: Sequence[str], databases: Sequence[str], portals: Sequence[str]
) -> Iterable[Problem]:
    if len(controllers) not in (1, 2):
        yield Problem(
            "controllers",
            params["controllers_group"],
            f"the group {params['controllers_group']} has {len(controllers)} hosts, and one or two are to run "
            "slurmctld",
            ", ".join(controllers),
            "leave one host in it, or a primary and a backup controller",
        )
    if params["enforce"] and not databases:
        yield Problem(
            "no_accounting",
            "slurm_common_enforce",
            "associations or limits are to be enforced, and the cluster has no accounting",
            ", ".join(params["enforce"]),
            f"put a host into the group {params['databases_group']}, or leave slurm_common_enforce empty",
        )
    yield from _hidden_problems(params, portals)
    if len(databases) > 1:
        yield Problem(
            "databases",
            params["databases_group"],
            f"the group {params['databases_group']} has {len(databases)} hosts, and one is to run slurmdbd",
            ", ".join(databases),
            "leave one host in it",
        )


def has_accounting(database: str, options: Mapping[str, object]) -> bool:
    """Whether slurmctld has a slurmdbd: the cluster's own, or one that the operator's settings name."""
    return bool(database) or str(options.get("AccountingStorageType", "")).lower().endswith("/slurmdbd")


def _accounting_problems(params: Mapping[str, Any], databases: Sequence[str]) -> Iterable[Problem]:
    """Settings of the operator's with which slurmctld does not start, or that do nothing, without a slurmdbd."""
    options = params.get("options") or {}
    for key in NEED_ACCOUNTING if not has_accounting("".join(databases), options) else ():
        if options.get(key):
            yield Problem(
                "no_accounting",
                "slurm_common_options",
                f"{key} needs accounting, and the cluster has none",
                str(options[key]),
                f"put a host into the group {params['databases_group']}, or take {key} out",
            )


def _host_problems(name: str, host: Mapping[str, Any]) -> Iterable[Problem]:
    look = host.get("look")
    if not look:
        yield Problem(
            "not_seen", name, f"{name} was not looked at in this run", remedy="correct what kept it from that, above"
        )
        return
    for what, value, pattern in (("name", name, WORD), ("address", str(host["address"]), ADDRESS)):
        if not pattern.fullmatch(value):
            yield Problem("bad_name", name, f"Slurm cannot use this {what} of {name}", value, "choose another")
    if not WORD.fullmatch(str(look["hostname"])):
        yield Problem("bad_name", name, f"Slurm cannot use the host name of {name}", look["hostname"], "choose another")
    for word in host.get("features", ()):
        if not WORD.fullmatch(str(word)):
            yield Problem("bad_feature", name, f"{name} has a feature that Slurm cannot use", str(word), "correct it")
    if not look["installed"] and look["candidate"] == "":
        yield Problem(
            "no_package", name, f"the package sources of {name} have no Slurm", remedy="give it sources that have"
        )
    ahead = look.get("clock_ahead_s")
    if ahead is not None and abs(ahead) > CLOCK_TOLERANCE_S:
        way = "ahead of" if ahead > 0 else "behind"
        yield Problem(
            "clock",
            name,
            f"the clock of {name} is {abs(ahead):.0f} s {way} the controller's, and Slurm refuses what is too old",
            str(ahead),
            "have chrony or systemd-timesyncd set the clocks",
        )


def _state_problems(
    params: Mapping[str, Any], controllers: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]
) -> Iterable[Problem]:
    """Why the state directory cannot be used, or would lose what slurmctld has saved."""
    directory = str(params["state_directory"])
    if not PATH.fullmatch(directory):
        yield Problem(
            "bad_path",
            "slurm_common_state_directory",
            "the state directory is not an absolute path of letters, digits, dots, hyphens, underscores and plus signs",
            directory,
            "choose another",
        )
    seen = {name: (hosts.get(name) or {}).get("look", {}).get("state_directory") or {} for name in controllers}
    for name, row in seen.items():
        if row.get("error"):
            yield Problem(
                "state_not_read",
                name,
                f"the state directory {row['path']} of slurmctld could not be examined on {name}",
                row["error"],
                f"see 'stat {row['path']}' and 'findmnt' on it",
            )
        elif row.get("elsewhere") and not (row["copied"] and not row["running"]):
            yield _not_moved(name, row)
    if len(controllers) == 2 and not any(row.get("error") for row in seen.values()):
        yield from _sharing_problems({name: row for name, row in seen.items() if row})


def _not_moved(name: str, row: Mapping[str, Any]) -> Problem:
    before, after = row["elsewhere"], row["path"]
    # Root may have no rights in a shared directory, and what the reconciler keeps there is root's alone.
    slurms = f"runuser -u slurm -- find {before} -mindepth 1 -maxdepth 1 ! -name gpuops -exec cp -a -t {after} {{}} +"
    roots = f"if [ -d {before}/gpuops ]; then cp -a {before}/gpuops {after}/; fi"
    return Problem(
        "state_elsewhere",
        name,
        f"slurmctld has its state in {before} on {name}; with {after} it would start without its jobs",
        f"slurmctld {'runs' if row['running'] else 'does not run'}, and {after} "
        f"{'has that state' if row['copied'] else 'does not have that state'}",
        f"run on {name}: `sudo sh -c 'cd / && systemctl stop slurmctld && install -d -o slurm -g slurm -m 0700 {after} "
        f"&& {slurms} && {roots}'`, and run it again; jobs continue meanwhile",
    )


def _sharing_problems(seen: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    local = [name for name, row in seen.items() if row["type"] not in SHARED_FILE_SYSTEMS]
    evidence = "; ".join(
        f"{name}: {row['type']} {row['source']} at {row['mount']}, inode {row['inode']} of {row['nearest']}"
        for name, row in seen.items()
    )
    remedy = (
        "mount one directory of a shared file system, such as NFS or CephFS, at the same path on both and set "
        "slurm_common_state_directory to a directory in it; or leave one host in the group"
    )
    if local:
        path, kinds = seen[local[0]]["path"], ", ".join(f"{seen[name]['type']} on {name}" for name in local)
        yield Problem(
            "state_not_shared",
            "slurm_common_state_directory",
            f"two controllers share one state directory, and {path} is not on a shared file system ({kinds})",
            evidence,
            remedy,
        )
    elif len({(row["type"], _source(row["source"]), row["inode"], row["nearest"]) for row in seen.values()}) > 1:
        yield Problem(
            "state_not_the_same",
            "slurm_common_state_directory",
            f"{' and '.join(seen)} do not have the same directory at {seen[min(seen)]['path']}",
            evidence,
            remedy,
        )


def _source(source: str) -> str:
    """The source of a mount with its servers in one order: monitors of Ceph are listed in any."""
    servers, colon, path = source.rpartition(":/")
    return f"{','.join(sorted(servers.split(',')))}{colon}{path}"


def release(version: str) -> str:
    """The release of a package's version: 24.11 for 24.11.5-4+deb13u1. Daemons of two releases may not talk."""
    return ".".join(version.split("-")[0].split(":")[-1].split(".")[:2])


def _common_problems(looks: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    """What must be the same, or must not be, on all hosts."""
    versions = {name: look["installed"] or look["candidate"] for name, look in looks.items()}
    # Where apt has not read its sources yet, the release is that of the distribution.
    told = all(version is not None for version in versions.values())
    releases: dict[str, list[str]] = {}
    ids: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for name, look in looks.items():
        names.setdefault(str(look["hostname"]), []).append(name)
        version = release(versions[name] or "") if told else str(look["distribution"])
        if version:
            releases.setdefault(version, []).append(name)
        user = look["users"].get(SAME_ON_EVERY_HOST)
        if user:
            ids.setdefault(f"{user['uid']}:{user['gid']}", []).append(name)
    if len(releases) > 1:
        yield Problem(
            "releases",
            "slurm",
            f"the hosts have different releases of Slurm: {_listed(releases)}",
            " ".join(sorted(releases)),
            "give all of them the same distribution, or package sources with one release",
        )
    if len(ids) > 1:
        yield Problem(
            "user_ids",
            SAME_ON_EVERY_HOST,
            f"the user slurm has different ids: {_listed(ids)}",
            " ".join(sorted(ids)),
            "give it one uid and gid on all hosts",
        )
    for hostname, sharers in names.items():
        if len(sharers) > 1:
            yield Problem(
                "hostnames",
                hostname,
                f"{' and '.join(sharers)} have the same host name",
                hostname,
                "give each its own",
            )


def _container_problems(looks: Mapping[str, Mapping[str, Any] | None]) -> Iterable[Problem]:
    """Nodes whose release has no containers that were tried."""
    old = []
    for name, look in looks.items():
        version = (look["installed"] or look["candidate"]) if look else None
        if look and (version.startswith(OLD) if version else look["distribution"] == "debian 12"):
            old.append(name)
    if old:
        yield Problem(
            "no_containers",
            "slurm_common_containers",
            f"jobs are to have containers, and Slurm 22.05 has none that are supported: {', '.join(old)}",
            ", ".join(old),
            "leave slurm_common_containers false, or use Debian 13",
        )


def _listed(hosts: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{value} on {' '.join(hosts[value])}" for value in sorted(hosts))


def _size_problems(node: Node, host: Mapping[str, Any]) -> Iterable[Problem]:
    if node.cpus < 1 or node.memory_mib < 1:
        yield Problem(
            "too_small",
            node.name,
            f"{node.name} has {node.cpus} CPUs and {host['look']['memory_mib']} MiB of memory, of which "
            f"{host['memory_reserve_mib']} MiB are kept for the system",
            str(host["memory_reserve_mib"]),
            "lower slurm_common_memory_reserve_mib for it",
        )


def _partitions(
    rows: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]], members: Sequence[str]
) -> tuple[tuple[Partition, ...], list[Problem]]:
    found, problems = [], []
    for row in rows:
        name = str(row.get("name", ""))
        nodes = [one for group in row.get("groups", ()) for one in groups.get(group, ()) if one in members]
        if not WORD.fullmatch(name) or name == PARTITION:
            cause = f"a partition has no usable name; {PARTITION} is that of the operator's jobs"
            problems.append(Problem("bad_name", "slurm_common_partitions", cause, name, "choose another"))
        problems += [
            Problem(
                "no_group",
                "slurm_common_partitions",
                f"the partition {name} is of the group {group}, which the inventory does not have",
                group,
                "correct the name, or add the group",
            )
            for group in row.get("groups", ())
            if group not in groups
        ]
        options = row.get("options") or {}
        for key, value in options.items():
            if not re.fullmatch("[A-Za-z]+", str(key)) or re.search(r"[\s#]", str(value)):
                problems.append(
                    Problem(
                        "bad_option",
                        "slurm_common_partitions",
                        f"the partition {name} has an option that does not fit into a line of slurm.conf",
                        f"{key}={value}",
                        "correct it",
                    )
                )
        found.append(
            Partition(
                name,
                tuple(dict.fromkeys(nodes)),
                bool(row.get("default", False)),
                tuple((str(key), str(value)) for key, value in sorted(options.items())),
            )
        )
    if sum(one.default for one in found) > 1:
        problems.append(
            Problem(
                "defaults",
                "slurm_common_partitions",
                "several partitions are the default one",
                " ".join(one.name for one in found if one.default),
                "leave one",
            )
        )
    return tuple(found), problems


def address_of(name: str, variables: Mapping[str, Any]) -> str:
    """The address of a host of the cluster, which is not part of every run."""
    published = variables.get("slurm_common_host") or {}
    given = (published.get("address"), variables.get("slurm_common_address"), variables.get("ansible_host"))
    return str(next(filter(None, given), name))
