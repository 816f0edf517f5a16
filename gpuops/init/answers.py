# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site is to be, from its operator: options, a file or answers to questions."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.init import users

CONTROLLER, GPU, STORAGE, CPU = ROLES = ("controller", "gpu", "storage", "cpu")
ENGINES = ("docker", "podman", "containerd", "none")
SCHEDULERS = SLURM, MESOS, KUBERNETES, NO_SCHEDULER = ("slurm", "mesos", "kubernetes", "none")
HOMES = CEPHFS, NFS, LOCAL = ("cephfs", "nfs", "local")
# What runs on one host of the site: the answer names it, '' is none.
PLACED = ("portal", "registry", "monitoring")
REBOOT = ("refused", "allowed")
KEYS = (
    "user",
    "become",
    "private_key",
    "hosts",
    "public_network",
    "cluster_network",
    "engine",
    "reboot",
    "use_free_disks",
    "scheduler",
    "homes",
    "domain",
    *PLACED,
    "users",
    "groups",
    "variables",
)
HOST_KEYS = ("address", "port", "role", "roles", "disks", "variables")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
# A name that the name service knows, an alias of ssh's configuration, or an address of either family.
_ADDRESS = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9_.:%-]*[A-Za-z0-9])?")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?")
_DOMAIN = re.compile(r"(?=.{4,180}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z][a-z0-9-]*[a-z0-9]", re.ASCII)
_DEVICE = re.compile(r"/dev/[A-Za-z0-9_.:+@=#,!~\\/-]+")
# Ansible's own, and those of the site.
_GROUPS = (
    *("all", "ungrouped", "gpu_cluster", "controllers", "zookeeper", "gpu_nodes", "cpu_nodes", "storage_nodes"),
    *("ceph_mons", "ceph_mgrs", "ceph_osds", "ceph_mdss", "ceph_clients"),
    *("prometheus_servers", "node_exporters", "log_hosts", "log_senders", "grafana_servers"),
    *("slurm_controllers", "slurm_databases", "slurm_logins", "slurm_nodes", "gpu_reconcilers", "nfs_servers"),
    *(
        "mesos_masters",
        "mesos_agents",
        "kubernetes_control_planes",
        "kubernetes_nodes",
        "marathon",
        "portals",
        "registries",
        "registry_clients",
        "user_software_hosts",
        "backup_hosts",
    ),
)
# Variables of Ansible that name the key, too.
_KEY_FILES = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_RANGE = re.compile(r"\[(\d+):(\d+)\]")
MOST = 10000


class AnswersError(Exception):
    """The answers are no site; ``problems`` are all that is wrong, each with what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass
class Host:
    """:ivar roles: none where they are to be proposed. ``disks``: those that become OSDs; None without an answer."""

    name: str
    roles: tuple[str, ...]
    address: str = ""
    port: int = 0
    disks: list[str] | None = None
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def runs_containers(self) -> bool:
        """Whether jobs run there; what controls and what stores needs no engine."""
        return GPU in self.roles or CPU in self.roles


@dataclass
class Answers:
    """A site. ``variables`` are Ansible's, for all hosts, such as how to reach them.

    :ivar scheduler: as ``homes`` and ``engine`` empty until it is proposed.
    :ivar portal: the host that it is on, as ``registry`` and ``monitoring`` (which keeps the logs, too); empty for
        none, and None until it is proposed.
    :ivar users: rows of cluster_users, as ``groups`` of cluster_groups.
    :ivar quotas: whether homes without Ceph were seen to have quotas.
    :ivar images: whether all hosts were seen to have a release whose Slurm runs images.
    :ivar reasons: why it is so, by subject, for people to read.
    """

    hosts: list[Host]
    user: str = ""
    become: bool = True
    private_key: str = ""
    public_network: str = ""
    cluster_network: str = ""
    engine: str = ""
    reboot: str = "refused"
    use_free_disks: bool = False
    scheduler: str = ""
    homes: str = ""
    domain: str = ""
    portal: str | None = None
    registry: str | None = None
    monitoring: str | None = None
    users: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    quotas: bool = False
    images: bool = False
    reasons: dict[str, str] = field(default_factory=dict)

    def of(self, role: str) -> list[Host]:
        return [host for host in self.hosts if role in host.roles]

    @property
    def head(self) -> str:
        """The host that has what there is once: the first controller, or else the first host without GPUs, or any."""
        without = [host for host in self.hosts if GPU not in host.roles]
        return next((host.name for host in (*self.of(CONTROLLER), *without, *self.hosts)), "")


def expand(text: str) -> list[str]:
    """``gpu[01:04]`` as four names; with as many digits as the first number is written with. Raises ValueError."""
    match = _RANGE.search(text)
    if not match:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first or last - first >= MOST:
        raise ValueError(f"{text}: from {match[1]} to {match[2]} is not a range")
    numbers = [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return [name for number in numbers for name in expand(text[: match.start()] + number + text[match.end() :])]


def named(words: Sequence[str], role: str = "") -> dict[str, dict[str, Any]]:
    """Hosts from words such as ``gpu[1:4]=192.0.2.[31:34]``, as the answers file has them. Raises ValueError.

    An address alone is a host whose name is to be proposed, too.
    """
    hosts: dict[str, dict[str, Any]] = {}
    for word in words:
        left, _equals, right = word.partition("=")
        names, addresses = expand(left), expand(right) if right else []
        if addresses and len(addresses) != len(names):
            raise ValueError(f"{word}: {len(names)} names and {len(addresses)} addresses")
        for number, name in enumerate(names):
            address = addresses[number] if addresses else name if is_address(name) else ""
            name = provisional(name) if is_address(name) else name
            hosts[name] = {"roles": [role] if role else [], **({"address": address} if address else {})}
    return hosts


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def provisional(address: str) -> str:
    """What a host is called that only has an address."""
    return address.replace(":", "-")


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Answers of two sources; of a host that both name, the roles of both."""
    hosts: dict[str, Any] = {}
    for source in (first.get("hosts") or {}, second.get("hosts") or {}):
        if not isinstance(source, Mapping):
            return {**first, **second, "hosts": source}
        for name, row in source.items():
            before, now = hosts.get(name) or {}, row or {}
            if not isinstance(before, Mapping) or not isinstance(now, Mapping):
                hosts[name] = now
                continue
            roles = dict.fromkeys([*_roles(before), *_roles(now)])
            hosts[name] = {**before, **now, "roles": list(roles)}
            hosts[name].pop("role", None)
    return {**first, **second, "hosts": hosts}


def _roles(row: Mapping[str, Any]) -> list[str]:
    given = row.get("roles", row.get("role")) or []
    return [str(role) for role in given] if isinstance(given, list) else [str(given)]


def read(content: Any) -> Answers:
    """Answers from the content of a file. Raises AnswersError with everything that is wrong."""
    if not isinstance(content, Mapping):
        raise AnswersError([f"the answers are {type(content).__name__}, not a mapping with {', '.join(KEYS)}"])
    wrong = [f"{key} is unknown; there are {', '.join(KEYS)}" for key in content if key not in KEYS]
    rows = content.get("hosts") or {}
    if not isinstance(rows, Mapping):
        raise AnswersError([*wrong, "hosts is not a mapping of names; write `hosts: {gpu1: {role: gpu}}`"])
    hosts = [_host(str(name), row if row is not None else {}, wrong) for name, row in rows.items()]
    if not hosts:
        wrong.append(
            "no host is named; give addresses, --gpu, --storage, --controller or --cpu, or hosts in the answers file"
        )
    _unique(hosts, wrong)
    for key, choices in (("engine", ENGINES), ("reboot", REBOOT), ("scheduler", SCHEDULERS), ("homes", HOMES)):
        if content.get(key) is not None and content[key] not in choices:
            wrong.append(f"{key} is {content[key]!r}; take one of {', '.join(choices)}")
    for key in ("public_network", "cluster_network"):
        _check_network(key, content.get(key), wrong)
    wrong += [
        f"{key} is {content[key]!r}; write true or false"
        for key in ("become", "use_free_disks")
        if not isinstance(content.get(key, True), bool)
    ]
    _variables("variables", content.get("variables") or {}, "write Ansible's variables for all hosts", wrong)
    _check_text("private_key", content.get("private_key"), wrong)
    plain = {key: content[key] for key in KEYS if key != "hosts" and content.get(key) is not None}
    for key in PLACED:
        if key in plain:
            plain[key] = _host_of(key, plain[key], hosts, wrong)
    domain = plain.get("domain")
    if domain and not (isinstance(domain, str) and _DOMAIN.fullmatch(domain)):
        wrong.append(f"domain is {domain!r}; write one in lower case, such as cluster.example.org")
    if content.get("user") and not (isinstance(content["user"], str) and _ACCOUNT.fullmatch(content["user"])):
        wrong.append(f"user is {content['user']!r}; write the name of an account, of letters, digits and . _ - @")
    plain["users"], plain["groups"] = users.read(content.get("users") or [], content.get("groups") or [], wrong)
    if wrong:
        raise AnswersError(wrong)
    if plain.get("private_key"):
        plain["private_key"] = _from_everywhere(plain["private_key"])
    return Answers(hosts=hosts, **plain)


def _host(name: str, row: Any, wrong: list[str]) -> Host:
    if not isinstance(row, Mapping):
        wrong.append(f"host {name}: {row!r} is not a mapping; write `{name}: {{role: gpu, address: 192.0.2.31}}`")
        return Host(name, ())
    if not _NAME.fullmatch(name) or len(name) > 253:
        wrong.append(f"host {name!r}: a name has letters, digits and . _ - only")
    elif name in _GROUPS:
        wrong.append(f"host {name}: a group of the site has this name; give the host another one")
    wrong += [f"host {name}: {key} is unknown; there are {', '.join(HOST_KEYS)}" for key in row if key not in HOST_KEYS]
    roles = tuple(_roles(row))
    if any(role not in ROLES for role in roles):
        wrong.append(f"host {name}: its role is {', '.join(roles)}; take of {', '.join(ROLES)}")
    port = row.get("port") or 0
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65536:
        wrong.append(f"host {name}: port is {port!r}; write a number below 65536")
        port = 0
    disks = row.get("disks")
    if disks is not None and not (isinstance(disks, list) and all(map(is_device, disks))):
        wrong.append(f"host {name}: disks are {disks!r}; list paths such as /dev/disk/by-id/wwn-0x5000c500a1b2c110")
        disks = None
    address = row.get("address") or ""
    if address and not (isinstance(address, str) and len(address) <= 253 and _ADDRESS.fullmatch(address)):
        wrong.append(f"host {name}: address is {address!r}; write an IP address such as 192.0.2.31, or a DNS name")
        address = ""
    variables = _variables(f"host {name}: variables", row.get("variables") or {}, "write Ansible's for it", wrong)
    return Host(name, roles, address, port, disks, variables)


def is_device(path: Any) -> bool:
    """Whether this is the path of a device as the kernel and udev name them."""
    return isinstance(path, str) and bool(_DEVICE.fullmatch(path)) and len(path) <= 255 and ".." not in path


def _variables(what: str, given: Any, remedy: str, wrong: list[str]) -> dict[str, Any]:
    """Variables of Ansible that an operator gives, which may be templates."""
    if not isinstance(given, Mapping):
        wrong.append(f"{what} is not a mapping; {remedy}")
        return {}
    wrong += [
        f"{what} has {key!r}, which is not a name of a variable; take letters, digits and underscores"
        for key in given
        if not (isinstance(key, str) and key.isascii() and key.isidentifier())
    ]
    return {key: _from_everywhere(value) if key in _KEY_FILES else value for key, value in given.items()}


def _from_everywhere(path: Any) -> Any:
    """The path of a file that is named from the working directory, which is another one in a later call."""
    if not isinstance(path, str) or not path or path.startswith("~") or "{{" in path:
        return path
    return os.path.abspath(path)


def _check_text(key: str, value: Any, wrong: list[str]) -> None:
    if value and not (isinstance(value, str) and value.isprintable()):
        wrong.append(f"{key} is {value!r}; write one line of text")


def _host_of(key: str, given: Any, hosts: Sequence[Host], wrong: list[str]) -> str:
    """The host that an answer names, or has the address of."""
    for host in hosts:
        if given and given in (host.name, host.address):
            return host.name
    if given:
        wrong.append(f"{key} is {given!r}, which is not a host of the site; name one of them, or '' for none")
    return ""


def _unique(hosts: Sequence[Host], wrong: list[str]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for host in hosts:
        if host.address:
            other = seen.setdefault((host.address, host.port), host.name)
            if other != host.name:
                wrong.append(f"host {host.name}: {host.address} is the address of {other} too; correct one of them")


def _check_network(key: str, value: Any, wrong: list[str]) -> None:
    if not value:
        return
    try:
        ipaddress.ip_network(str(value))
    except ValueError as error:
        wrong.append(f"{key} is {value!r}: {error}; write a network such as 192.0.2.0/24")
