# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a new site, from its answers and the facts of its hosts."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from gpuops.init import discover, proposal
from gpuops.init.answers import (
    CEPHFS,
    CONTROLLER,
    CPU,
    GPU,
    KUBERNETES,
    MESOS,
    NFS,
    NO_SCHEDULER,
    SLURM,
    STORAGE,
    Answers,
    AnswersError,
    Host,
    is_device,
)
from gpuops.inventory import snapshot

INVENTORY = "inventory"
PASSWORD = f"{INVENTORY}/.secrets/vault-password"
KINDS = ("controllers", "gpu_nodes", "storage_nodes", "cpu_nodes")
VAULT = f"{INVENTORY}/group_vars/all/vault.yml"


class Unwritable(Exception):
    """A file would not hold what it is to hold; the text names the file, the value and what to do."""


class Occupied(Exception):
    """There is something at the place of the new site."""


@dataclass
class Group:
    """A group of hosts.yml. ``count``: how many GPUs each of its hosts has, if all have as many."""

    name: str
    about: str = ""
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    count: int = 0


class FromHost(str):
    """A text from a host: Ansible never takes it for a template."""


class _Dumper(yaml.SafeDumper):
    pass


class _Loader(yaml.SafeLoader):
    pass


def _as_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Anything but double quotes needs several lines for a line break, and files have no room for that everywhere.
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _as_text)


def _as_no_template(dumper: yaml.SafeDumper, value: FromHost) -> yaml.ScalarNode:
    return dumper.represent_scalar("!unsafe", str(value), style="'" if value.isprintable() else '"')


_Dumper.add_representer(FromHost, _as_no_template)


def _from_host(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> FromHost:
    return FromHost(loader.construct_scalar(node))


_Loader.add_constructor("!unsafe", _from_host)


def in_yaml(value: Any) -> str:
    """A value on one line as it stands in YAML."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=float("inf"))
    return str(text).strip().removesuffix("...").strip()


def in_comment(value: Any) -> str:
    """A value as it stands in a comment: one line."""
    return untrusted_text.one_line(value, 200)


# In what a file is to hold: a value that its template has.
ANY = object()


def read(name: str, text: str) -> Any:
    """What Ansible will read in a file. Raises Unwritable."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        where = untrusted_text.one_line(error)
        raise Unwritable(f"{name} would be no YAML: {where}. Look for odd characters in the answers") from error


def _compare(name: str, where: str, found: Any, meant: Any) -> None:
    """Raises Unwritable where a file has something else than it is to hold."""
    if meant is ANY:
        return
    same = type(found) is type(meant)
    if same and isinstance(meant, dict):
        for key in {**meant, **found}:
            inner = f"{where}.{key}" if where else str(key)
            if key not in meant or key not in found:
                raise Unwritable(f"{name} would {'have' if key in found else 'lack'} {in_comment(inner)}; {_ODD}")
            _compare(name, inner, found[key], meant[key])
    elif same and isinstance(meant, list) and len(found) == len(meant):
        for number, (one, other) in enumerate(zip(found, meant, strict=True)):
            _compare(name, f"{where}[{number}]", one, other)
    elif not same or found != meant:
        value = untrusted_text.one_line(repr(meant), 200)
        raise Unwritable(f"{name} would not hold {value} as {in_comment(where) or 'a whole'}; {_ODD}")


_ODD = "give another value for it, without odd characters"


def groups(answers: Answers, found: Mapping[str, discover.Found]) -> list[Group]:
    """Everything below gpu_cluster: what hosts are for, models of GPUs, and who runs what of the storage."""
    names = {role: [host.name for host in answers.of(role)] for role in (CONTROLLER, GPU, STORAGE, CPU)}
    models = discover.model_groups(answers, found)
    grouped = {name for members in models.values() for name in members}
    rows = []
    if names[CONTROLLER]:
        rows.append(Group("controllers", "run what the cluster is steered by", names[CONTROLLER]))
    if names[GPU]:
        rest = [name for name in names[GPU] if name not in grouped]
        rows.append(Group("gpu_nodes", hosts=rest, children=list(models)))
        rows += [_model(name, members, found) for name, members in models.items()]
    if names[CPU]:
        rows.append(Group("cpu_nodes", "containers without GPUs", names[CPU]))
    if names[STORAGE]:
        some = _odd(names[STORAGE])
        rows += [
            Group("storage_nodes", "have the disks", names[STORAGE]),
            Group("ceph_mons", "three or five keep a quorum when one is lost", some),
            Group("ceph_mgrs", hosts=some),
            Group("ceph_osds", children=["storage_nodes"]),
            Group("ceph_mdss", hosts=names[STORAGE][:2]),
            Group("ceph_clients", "mount it", *_compute(answers, [answers.head, answers.portal or ""])),
        ]
    if answers.homes == NFS:
        rows.append(Group("nfs_servers", "has the homes", [answers.head]))
    rows += _scheduler(answers)
    if answers.scheduler != NO_SCHEDULER:
        logins = [answers.head, answers.portal or ""]
        rows.append(Group("user_software_hosts", "compilers, MPI, tools, modules", *_compute(answers, logins)))
        rows.append(Group("backup_hosts", "makes an archive every night of what it alone knows", [answers.head]))
    if answers.registry:
        rows += [
            Group("registries", "keeps the images of containers", [answers.registry]),
            Group("registry_clients", "pull them", *_compute(answers)),
        ]
    if answers.portal:
        rows.append(Group("portals", "where people log in and start sessions", [answers.portal]))
    if answers.monitoring:
        rows += [
            Group("prometheus_servers", "watches the hosts, sends alerts", [answers.monitoring]),
            Group("node_exporters", "are watched", children=["gpu_cluster"]),
            Group("log_hosts", "keeps the logs", [answers.monitoring]),
            Group("log_senders", "send their logs", children=["gpu_cluster"]),
            Group("grafana_servers", "have a Grafana, which gets dashboards; put your own here"),
        ]
    return rows


def _compute(answers: Answers, more: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """(hosts, groups) of all that run jobs, and of more hosts."""
    groups = [name for name, role in (("gpu_nodes", GPU), ("cpu_nodes", CPU)) if answers.of(role)]
    inside = [host.name for host in answers.hosts if host.runs_containers]
    return [name for name in dict.fromkeys(more) if name and name not in inside], groups


def _scheduler(answers: Answers) -> list[Group]:
    """The groups of the scheduler, with the reconciler, which keeps jobs off GPUs that fail. Slurm's needs no group."""
    head, masters = [answers.head], proposal.masters(answers)
    if answers.scheduler == SLURM:
        return [
            Group("slurm_controllers", "decides which job runs where", head),
            Group("slurm_databases", "accounts, limits and GPU hours", head),
            Group("slurm_logins", "where users submit jobs", list(dict.fromkeys([*head, answers.portal or head[0]]))),
            Group("slurm_nodes", "run jobs", *_compute(answers)),
        ]
    if answers.scheduler == MESOS:
        return [
            Group("zookeeper", "keeps what schedulers must not lose: 1, 3 or 5 servers", masters),
            Group("mesos_masters", hosts=masters),
            Group("mesos_agents", "run jobs", *_compute(answers)),
            Group("marathon", hosts=masters),
            Group("gpu_reconcilers", "keep jobs off GPUs that fail", masters),
        ]
    if answers.scheduler == KUBERNETES:
        about = "API server and etcd: one host, or three with an address that they share"
        return [
            Group("kubernetes_control_planes", about, [proposal.control_plane(answers)]),
            Group("kubernetes_nodes", "run pods", *_compute(answers)),
        ]
    return []


def _odd(names: list[str]) -> list[str]:
    return names[: 5 if len(names) >= 5 else 3 if len(names) >= 3 else 1]


def _model(name: str, members: list[str], found: Mapping[str, discover.Found]) -> Group:
    counts = {len(found[member].gpus) for member in members}
    count = counts.pop() if len(counts) == 1 else 0
    model = found[members[0]].gpus[0]
    return Group(name, f"Nodes with {f'{count}x ' if count else ''}{model}", members, count=count)


def new_secrets(answers: Answers) -> dict[str, Any]:
    """What the vault holds: nothing for a site without storage."""
    if not answers.of(STORAGE):
        return {}
    return {
        "vault_ceph_fsid": str(uuid.uuid4()),
        "vault_ceph_keys": {name: ceph_conf.new_key() for name in ceph_conf.CAPS},
    }


def encrypted(content: Mapping[str, Any], password: str) -> str:
    """A file of Ansible Vault."""
    from ansible.parsing.vault import VaultLib, VaultSecret

    head = "---\n# Generated once for this cluster. Change a key only together with the cluster.\n"
    text = head + yaml.safe_dump(dict(content), sort_keys=False)
    vault = VaultLib([("default", VaultSecret(password.encode()))])
    return str(vault.encrypt(text, secret=VaultSecret(password.encode())).decode())


def render(answers: Answers, found: Mapping[str, discover.Found]) -> dict[str, str]:
    """Every file of the site by its path in the site's directory. Raises Unwritable and AnswersError."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(y=in_yaml, comment=in_comment, from_host=FromHost)
    date = time.strftime("%Y-%m-%d", time.gmtime())

    def made(template: str, **values: Any) -> str:
        return environment.get_template(f"{template}.j2").render(
            answers=answers, date=date, snapshot=snapshot.NAME, **values
        )

    vault = new_secrets(answers)
    rows = groups(answers, found)
    variables = f"{INVENTORY}/group_vars"
    hosts, kinds = _hosts(answers), [group.name for group in rows if group.name in KINDS]
    files = {
        "ansible.cfg": made("ansible.cfg", vault=bool(vault)),
        ".gitignore": made("gitignore"),
        f"{INVENTORY}/hosts.yml": made("hosts.yml", hosts=hosts, groups=rows, kinds=kinds),
        f"{variables}/gpu_cluster.yml": made("gpu_cluster.yml"),
    }
    meant: dict[str, Any] = {
        f"{INVENTORY}/hosts.yml": _meant_hosts(hosts, rows, kinds),
        f"{variables}/gpu_cluster.yml": _meant_cluster(answers),
    }
    if answers.of(GPU):
        files[f"{INVENTORY}/zz_gpus.yml"] = made("gpus.yml")
        files[f"{variables}/gpu_nodes.yml"] = made("gpu_nodes.yml")
    for group in rows:
        if group.name.startswith("gpu_nodes_"):
            name = f"{variables}/{group.name}.yml"
            files[name] = made("model.yml", group=group)
            meant[name] = {"gpu_verify_expected": group.count} if group.count else None
    if answers.of(CONTROLLER) and not any(_has_engine(answers, host) for host in answers.of(CONTROLLER)):
        files[f"{variables}/controllers.yml"] = made("engineless.yml", about="The controllers run no containers.")
    for name, content in _services(answers).items():
        path = f"{variables}/{name}"
        files[path], meant[path] = made(name.rpartition("/")[2], **_TOLD, environments=_ENVIRONMENTS), content
    for host in _apart(answers):
        name = f"{INVENTORY}/host_vars/{host.name}.yml"
        files[name] = made("engineless.yml", about="This host runs no containers, unlike others of its groups.")
        meant[name] = {"container_runtime_engine": "none"}
    if answers.of(STORAGE):
        for name, (text, content) in _storage(answers, found, made, variables).items():
            files[name], meant[name] = text, content
    contents = {name: read(name, text) for name, text in files.items() if name.endswith(".yml")}
    _refuse_twice(answers, contents)
    for name, content in meant.items():
        _compare(name, "", contents[name], content)
    if vault:
        password = secrets.token_urlsafe(32)
        files[PASSWORD] = f"{password}\n"
        files[VAULT] = encrypted(vault, password)
    return files


def _refuse_twice(answers: Answers, contents: Mapping[str, Any]) -> None:
    """Raise AnswersError for variables of all hosts that a file of a group would override."""
    ours, groups_of = f"{INVENTORY}/group_vars/gpu_cluster.yml", f"{INVENTORY}/group_vars/"
    keys = {"converge_reboot": "reboot", "container_runtime_engine": "engine"}
    wrong = [f"variables has {name}; give `{keys[name]}` instead" for name in keys if name in answers.variables]
    for path, content in contents.items():
        if path.startswith(groups_of) and path != ours and not path.startswith(f"{groups_of}all/"):
            wrong += [
                f"variables has {name}, and init writes it to {path}; leave it out, and change it there afterwards"
                for name in sorted(answers.variables.keys() & (content or {}).keys())
            ]
    if wrong:
        raise AnswersError(wrong)


# What the templates of services ask of a site.
_TOLD = {"portal_name": proposal.portal_name, "registry_name": proposal.registry_name}
# What people find in the portal beside JupyterLab alone.
_ENVIRONMENTS = [
    {"name": "science", "packages": ["python3-numpy", "python3-pandas", "python3-matplotlib", "python3-sklearn"]},
    {"name": "pytorch", "packages": ["python3-torch"]},
]


def _services(answers: Answers) -> dict[str, Any]:
    """The files of what is not a kind of hosts, below group_vars, each with what it is to hold."""
    found: dict[str, Any] = {
        "all/cluster.yml": {
            "cluster_homes": answers.homes,
            **({} if answers.homes == CEPHFS else {"nfs_homes_quota": answers.quotas}),
            **({"slurm_common_enforce": ["associations", "limits", "qos"]} if answers.scheduler == SLURM else {}),
            **({"slurm_common_containers": answers.images} if answers.scheduler == SLURM and answers.registry else {}),
            **({"portal_scheduler": "marathon"} if answers.portal and answers.scheduler == MESOS else {}),
        },
        "all/users.yml": {"cluster_groups": answers.groups, "cluster_users": answers.users},
    }
    if answers.scheduler == MESOS:
        found["gpu_reconcilers.yml"] = {"gpu_reconciler_mode": "act"}
        found["mesos_agents.yml"] = {
            "converge_drain_role": "baremetal.gpu.mesos_operator",
            "gpu_agent_orders": ["replace"],
        }
    if answers.portal:
        found["portals.yml"] = {
            "portal_name": proposal.portal_name(answers),
            **({} if answers.domain else {"portal_check_names": False}),
            **({"portal_ssh": False} if answers.scheduler == MESOS else {}),
            "portal_environments": _ENVIRONMENTS,
        }
    if answers.registry:
        found["registries.yml"] = {
            "registry_name": proposal.registry_name(answers),
            "registry_public": ["catalogue"],
            "registry_quota": "50G",
        }
    if answers.monitoring:
        found["prometheus_servers.yml"] = {"alertmanager_receivers": []}
    return found


def _apart(answers: Answers) -> list[Host]:
    """The hosts that run no containers, while others of each of their groups do."""
    bare = [host for host in answers.hosts if not _has_engine(answers, host)]
    without = {role for role in (CONTROLLER, STORAGE) if all(host in bare for host in answers.of(role))}
    return [host for host in bare if not without.intersection(host.roles)]


def _has_engine(answers: Answers, host: Host) -> bool:
    """Whether it gets a container engine: for jobs, or for the control plane of Kubernetes."""
    return host.runs_containers or (answers.scheduler == KUBERNETES and CONTROLLER in host.roles)


def _hosts(answers: Answers) -> list[dict[str, Any]]:
    reach = discover.reach(answers)["all"]["hosts"]
    return [{"name": host.name, "variables": reach[host.name]} for host in answers.hosts]


def _meant_hosts(hosts: list[dict[str, Any]], rows: list[Group], kinds: list[str]) -> dict[str, Any]:
    """What hosts.yml is to hold."""
    children: dict[str, Any] = {
        "gpu_cluster": {
            "hosts": {row["name"]: row["variables"] for row in hosts},
            "children": dict.fromkeys(kinds) or None,
        }
    }
    for group in rows:
        parts = {"hosts": dict.fromkeys(group.hosts), "children": dict.fromkeys(group.children)}
        children[group.name] = {key: value for key, value in parts.items() if value} or None
    return {"all": {"children": children}}


def _meant_cluster(answers: Answers) -> dict[str, Any]:
    """What the variables of all hosts are to be."""
    return {
        **({"ansible_user": answers.user} if answers.user else {}),
        "ansible_become": answers.become,
        **({"ansible_ssh_private_key_file": answers.private_key} if answers.private_key else {}),
        "ansible_python_interpreter": ANY,
        "converge_reboot": answers.reboot,
        "gpu_preflight_refuse": ANY,
        "container_runtime_engine": answers.engine,
        "container_runtime_nvidia": ANY,
        **answers.variables,
    }


def _storage(
    answers: Answers, found: Mapping[str, discover.Found], made: Any, variables: str
) -> dict[str, tuple[str, Any]]:
    """The files of the storage, each with what it is to hold. Raises Unwritable."""
    hosts, apart = answers.of(STORAGE), [host.name for host in _apart(answers)]
    engineless = not any(_has_engine(answers, host) for host in hosts)
    network: str = answers.public_network or FromHost(discover.common_network(answers, found))
    size = min(3, len(hosts)) if len(hosts) > 1 else 2
    text = made(
        "storage_nodes.yml",
        engineless=engineless,
        network=network or "",
        network_found=bool(network) and not answers.public_network,
        size=size,
        min_size=max(1, size - 1),
        failure_domain="host" if len(hosts) > 1 else "osd",
    )
    names = [
        *("ceph_common_fsid", "ceph_common_keys", "ceph_common_options", "ceph_osd_method", "ceph_osd_wipe"),
        *("ceph_mds_pool_size", "ceph_mds_pool_min_size", "ceph_mds_failure_domain"),
        *(["ceph_mgr_modules"] if answers.monitoring else []),
        *(["container_runtime_engine"] if engineless else []),
    ]
    meant = {
        **dict.fromkeys(names, ANY),
        "ceph_common_public_network": network or "",
        "ceph_common_cluster_network": answers.cluster_network,
    }
    clients = {
        **dict.fromkeys(("cephfs_client_fsid", "cephfs_client_method", "cephfs_homes_size", "cephfs_homes_root"), ANY),
    }
    files = {
        f"{variables}/storage_nodes.yml": (text, meant),
        f"{variables}/ceph_clients.yml": (made("ceph_clients.yml"), clients),
    }
    for host in hosts:
        proposed = found[host.name].disks if host.name in found else []
        for disk in proposed:
            if not is_device(disk.path):
                path = untrusted_text.one_line(repr(disk.path), 120)
                raise Unwritable(
                    f"host {host.name} reports a disk {path}, which is not a name of one. Look at the host, and "
                    "name its disks in the answers file"
                )
        free = [FromHost(disk.path) for disk in proposed]
        chosen: list[str] = list(host.disks or (free if answers.use_free_disks else []))
        text = made("disks.yml", chosen=chosen, proposed=proposed, engineless=host.name in apart)
        engine = {"container_runtime_engine": "none"} if host.name in apart else {}
        files[f"{INVENTORY}/host_vars/{host.name}.yml"] = text, {"ceph_osd_devices": chosen, **engine}
    return files


def check_place(directory: Path) -> None:
    """Raises Occupied unless nothing is there, or an empty directory."""
    if directory.is_dir():
        there = sorted(directory.iterdir())
        if there:
            raise Occupied(
                f"{directory} has {there[0].name} in it already, and nothing is overwritten. Name a new directory, or "
                "move what is there"
            )
    elif directory.exists() or directory.is_symlink():
        raise Occupied(f"{directory} is not a directory. Name a new one")


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files; none of them may be there. Raises Occupied, OSError."""
    check_place(directory)
    for name, text in files.items():
        path = directory / name
        private = ".secrets" in path.parts
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        except FileExistsError as there:
            raise Occupied(f"{path} appeared meanwhile, and nothing is overwritten") from there
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def write_snapshot(directory: Path, found: Mapping[str, discover.Found]) -> None:
    """Write the facts of the hosts' GPUs where the inventory of the site looks for it. Raises OSError."""
    outcome = snapshot.Outcome(time.time())
    for name, host in found.items():
        outcome.take(name, host.gpu)
    if outcome.found:
        fleet_file.write(str(directory / INVENTORY / snapshot.NAME), outcome.time, outcome.found.values())
