# SPDX-License-Identifier: GPL-3.0-or-later
"""What now: where people come in to a site, what browsers must trust, where passwords lie, and what is left to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import fence
from gpuops.run.listing import Listing

# Names in the line of /etc/hosts; a site has more.
MOST_NAMES = 3


def lines(site: Listing, directory: Path) -> list[str]:
    """For a site that a run has brought to its end.

    :param directory: that of its inventory.
    """
    out: list[str] = []
    parts = (_portal, _slurm, _registry, _monitoring, _people)
    for name, told in ((part.__name__.strip("_"), list(part(site, directory))) for part in parts):
        out += [f"  {name if not number else '':<11} {text}" for number, text in enumerate(told)]
    todo = list(_left(site, directory))
    if todo:
        out += ["left to do", *(f"  - {text}" for text in todo)]
    return ["what now", *out] if out else []


def _portal(site: Listing, directory: Path) -> Iterator[str]:
    for host in site.hosts("portals")[:1]:
        row = site.of(host)
        if row.get("portal_state") == "absent":
            return
        name = _plain(row, "portal_name") or host
        port = row.get("portal_port", 443)
        url = f"https://{name}{'' if port == 443 else f':{port}'}"
        yield f"{url}   people log in here and start sessions on GPUs"
        yield f"{url}/hub/now   every GPU, and who has it"
        if row.get("portal_check_names") is False:
            names = [f"{user}.{name}" for user in _users(site)[:MOST_NAMES]] or [f"NAME.{name}"]
            yield "no DNS has this name: /etc/hosts of your own computer needs it, and the one of each user there:"
            yield f"    {_address(site, host)} {name} {' '.join(names)}"
        if not row.get("portal_tls_files"):
            yield f"browsers trust it once they have {_secret(row, 'portal_tls_path', directory, 'portal-tls')}/ca.pem:"
            yield "    Firefox: Settings, Privacy & Security, View Certificates, Authorities, Import"
            yield "    Chrome, Edge: Settings, Privacy and security, Security, Manage certificates, Import"


def _slurm(site: Listing, _directory: Path) -> Iterator[str]:
    for host in site.hosts("slurm_logins")[:1]:
        user = next(iter(_users(site)), "USER")
        yield f"ssh {user}@{_address(site, host)}   with a key of ssh_keys; then: srun --gres=gpu:1 nvidia-smi -L"


def _registry(site: Listing, directory: Path) -> Iterator[str]:
    for host in site.hosts("registries")[:1]:
        row = site.of(host)
        if row.get("registry_state") == "absent":
            return
        yield f"{_plain(row, 'registry_name') or host}:{row.get('registry_port', 5000)}   hosts trust it already"
        if not row.get("registry_tls_files"):
            place = _secret(row, "registry_tls_path", directory, "registry-tls")
            yield f"your own computer trusts it with {place}/ca.pem"
        yield f"passwords are in {_secret(row, 'registry_passwords_path', directory, 'registry')}, a file for each user"


def _monitoring(site: Listing, _directory: Path) -> Iterator[str]:
    for host in site.hosts("prometheus_servers")[:1]:
        login = _plain(site.of(host), "ansible_user")
        yield f"ssh -L 9090:127.0.0.1:9090 -L 9093:127.0.0.1:9093 {f'{login}@' if login else ''}{_address(site, host)}"
        portals = site.hosts("portals")[:1]
        is_in_portal = any(one == host or site.of(one).get("portal_prometheus") for one in portals)
        page = "" if is_in_portal else "http://127.0.0.1:9090/consoles/gpu.html: every GPU; "
        yield f"    then {page}http://127.0.0.1:9090: Prometheus;"
        yield "    http://127.0.0.1:9093: alerts"
    for host in site.hosts("grafana_servers"):
        yield f"dashboards are in the Grafana of {host}"
    if site.hosts("log_hosts"):
        yield "gpuops logs: the journals of all hosts"


def _people(site: Listing, _directory: Path) -> Iterator[str]:
    users, portals = _users(site), site.hosts("portals")
    if users and portals and site.of(portals[0]).get("portal_login", "pam") == "pam":
        yield f"gpuops user invite {users[0]}: a code with which {users[0]} sets a password for the portal"


def _left(site: Listing, directory: Path) -> Iterator[str]:
    names = site.hosts("all") or list((site.content.get("_meta") or {}).get("hostvars") or {})
    rows = [site.of(name) for name in names]
    if any("cluster_users" in row for row in rows) and not _users(site):
        yield "the site has no users: gpuops user add NAME"
    for host in site.hosts("prometheus_servers")[:1]:
        if not site.of(host).get("alertmanager_receivers"):
            yield f"alerts reach no person: set alertmanager_receivers for {host} (docs/monitoring.md)"
    groups = {name: site.hosts(name) for name in (fence.RECONCILERS, fence.CONTROLLERS, fence.MASTERS)}
    if idle := fence.idle(groups, {name: _settled(site.of(name)) for name in {*chain(*groups.values())}}):
        host, mode = idle
        todo = "remove gpu_reconciler_state: absent" if mode == fence.ABSENT else "set gpu_reconciler_mode to act"
        yield f"faulty GPUs stay in service: {todo} for {host} (docs/reconciler.md)"
    if (directory / ".secrets").is_dir():
        yield f"keep a copy of {_near(directory / '.secrets')}: keys and passwords that only this machine has"


def _users(site: Listing) -> list[str]:
    """Names of those who are present, from the first host that knows the list."""
    for name in (site.content.get("_meta") or {}).get("hostvars") or {}:
        rows = site.of(name).get("cluster_users")
        if isinstance(rows, list):
            return [
                str(row["name"])
                for row in rows
                if isinstance(row, Mapping) and row.get("name") and row.get("state", "present") == "present"
            ]
    return []


def _plain(row: Mapping[str, Any], name: str) -> str:
    """A variable that is no template."""
    value = row.get(name)
    return value if isinstance(value, str) and "{{" not in value else ""


def _settled(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables of the reconciler that are no templates."""
    return {name: value for name, value in row.items() if name.startswith("gpu_reconciler_") and "{{" not in str(value)}


def _address(site: Listing, host: str) -> str:
    return _plain(site.of(host), "ansible_host") or host


def _secret(row: Mapping[str, Any], name: str, directory: Path, usual: str) -> str:
    return _plain(row, name) or _near(directory / ".secrets" / usual)


def _near(path: Path) -> str:
    """As it is named from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
