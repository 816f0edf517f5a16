# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a new site, from its answers and from what its hosts said."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils import ceph_conf, fleet_file
from gpuops.init import discover
from gpuops.init.answers import CONTROLLER, CPU, GPU, STORAGE, Answers
from gpuops.inventory import snapshot

INVENTORY = "inventory"
PASSWORD = f"{INVENTORY}/.secrets/vault-password"
KINDS = ("controllers", "gpu_nodes", "storage_nodes", "cpu_nodes")
VAULT = f"{INVENTORY}/group_vars/all/vault.yml"


class Occupied(Exception):
    """There is something at the place of the new site."""


@dataclass
class Group:
    """A group of hosts.yml. ``count``: how many cards each of its hosts has, if all have as many."""

    name: str
    about: str = ""
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    count: int = 0


def in_yaml(value: Any) -> str:
    """A value on one line as it stands in YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=100000).strip().removesuffix("...").strip()


def groups(answers: Answers, found: Mapping[str, discover.Found]) -> list[Group]:
    """Everything below gpu_cluster: what hosts are for, models of cards, and who runs what of the storage."""
    names = {role: [host.name for host in answers.of(role)] for role in (CONTROLLER, GPU, STORAGE, CPU)}
    models = discover.model_groups(answers, found)
    grouped = {name for members in models.values() for name in members}
    rows = []
    if names[CONTROLLER]:
        rows.append(Group("controllers", "run what the cluster is steered by", names[CONTROLLER]))
        rows.append(
            Group("zookeeper", "keeps what schedulers must not lose: 1, 3 or 5 servers", _odd(names[CONTROLLER]))
        )
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
            Group(
                "ceph_clients",
                "mount it",
                children=[name for name, role in (("gpu_nodes", GPU), ("cpu_nodes", CPU)) if names[role]],
            ),
        ]
    return rows


def _odd(names: list[str]) -> list[str]:
    return names[: 5 if len(names) >= 5 else 3 if len(names) >= 3 else 1]


def _model(name: str, members: list[str], found: Mapping[str, discover.Found]) -> Group:
    counts = {len(found[member].cards) for member in members}
    count = counts.pop() if len(counts) == 1 else 0
    model = found[members[0]].cards[0]
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
    """Every file of the site by its path in the site's directory."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["y"] = in_yaml
    date = time.strftime("%Y-%m-%d", time.gmtime())

    def made(template: str, **values: Any) -> str:
        return environment.get_template(f"{template}.j2").render(
            answers=answers, date=date, snapshot=snapshot.NAME, **values
        )

    vault = new_secrets(answers)
    rows = groups(answers, found)
    variables = f"{INVENTORY}/group_vars"
    files = {
        "ansible.cfg": made("ansible.cfg", vault=bool(vault)),
        ".gitignore": made("gitignore"),
        f"{INVENTORY}/hosts.yml": made(
            "hosts.yml",
            hosts=_hosts(answers),
            groups=rows,
            kinds=[group.name for group in rows if group.name in KINDS],
        ),
        f"{variables}/gpu_cluster.yml": made("gpu_cluster.yml"),
    }
    if answers.of(GPU):
        files[f"{INVENTORY}/zz_gpus.yml"] = made("gpus.yml")
        files[f"{variables}/gpu_nodes.yml"] = made("gpu_nodes.yml")
    for group in rows:
        if group.name.startswith("gpu_nodes_"):
            files[f"{variables}/{group.name}.yml"] = made("model.yml", group=group)
    if answers.of(CONTROLLER) and all(host.roles == (CONTROLLER,) for host in answers.of(CONTROLLER)):
        files[f"{variables}/controllers.yml"] = made("engineless.yml", about="The controllers run no containers.")
    if answers.of(STORAGE):
        files.update(_storage(answers, found, made, variables))
    if vault:
        password = secrets.token_urlsafe(32)
        files[PASSWORD] = f"{password}\n"
        files[VAULT] = encrypted(vault, password)
    return files


def _hosts(answers: Answers) -> list[dict[str, Any]]:
    reach = discover.reach(answers)["all"]["hosts"]
    return [{"name": host.name, "variables": reach[host.name]} for host in answers.hosts]


def _storage(answers: Answers, found: Mapping[str, discover.Found], made: Any, variables: str) -> dict[str, str]:
    hosts = answers.of(STORAGE)
    network = answers.public_network or discover.common_network(answers, found)
    size = min(3, len(hosts)) if len(hosts) > 1 else 2
    files = {
        f"{variables}/storage_nodes.yml": made(
            "storage_nodes.yml",
            storage_only=all(host.roles == (STORAGE,) for host in hosts),
            network=network,
            network_found=bool(network) and not answers.public_network,
            size=size,
            min_size=max(1, size - 1),
            failure_domain="host" if len(hosts) > 1 else "osd",
        ),
        f"{variables}/ceph_clients.yml": made("ceph_clients.yml"),
    }
    for host in hosts:
        proposed = found[host.name].disks if host.name in found else []
        chosen = host.disks or ([disk.path for disk in proposed] if answers.use_free_disks else [])
        files[f"{INVENTORY}/host_vars/{host.name}.yml"] = made("disks.yml", chosen=chosen, proposed=proposed)
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
        raise Occupied(f"{directory} is no directory. Name a new one")


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
    """Write what the hosts said of their cards where the inventory of the site looks for it. Raises OSError."""
    outcome = snapshot.Outcome(time.time())
    for name, host in found.items():
        outcome.take(name, host.gpu)
    if outcome.found:
        fleet_file.write(str(directory / INVENTORY / snapshot.NAME), outcome.time, outcome.found.values())
