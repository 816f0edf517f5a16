# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose container engines trust the registry of the site.

Each engine has a directory for each registry, and reads it when it is asked for an image. So the files are this role's
own, those of other registries stay, and nothing is restarted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.registry import site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import bracketed, wrong

ROLE = "registry_client"
# The authority for whatever else asks the registry, such as skopeo by --cert-dir.
DIRECTORY = "/etc/baremetal-gpu/registry-client"
AUTHORITY = f"{DIRECTORY}/ca.crt"
# By engine, its directories above that of the registry, and the name of the authority there.
ENGINES = {
    "docker": (("/etc/docker", "/etc/docker/certs.d"), "ca.crt"),
    "podman": (("/etc/containers", "/etc/containers/certs.d"), "ca.crt"),
    "containerd": (("/etc/containerd", "/etc/containerd/certs.d"), "ca.crt"),
}
HOSTS_TOML = "hosts.toml"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of a host that pulls images.

    :param params: the variables of the role; ``certificates``, what the module cluster_certificates has returned, may
        be empty until the tasks have read them.
    :param peers: ``host``, the name of this host; ``registries``, those of the group; ``name``, ``names``, ``port`` and
        ``caches``, the variables of the registry's host.
    :return: With the parts `url`, where the registry is asked, and `record`, the file of its authority on the host.
    """
    parts = {"url": "", "record": AUTHORITY}
    addresses = _addresses(peers) if peers["registries"] else []
    if params["state"] == "absent":
        return Plan(_absent(addresses), parts=parts)
    problems = tuple(_problems(params, peers))
    if problems:
        return Plan(problems=problems, parts=parts)
    parts["url"] = f"https://{addresses[0]}/v2/"
    document = _present(params, addresses) if params["certificates"].get("authority") else doc.Document()
    return Plan(document, parts=parts)


def _addresses(peers: Mapping[str, Any]) -> list[str]:
    """The registry and its caches as images name them: each name with each port."""
    names = site.names(peers["registries"][0], peers["name"], peers["names"])
    ports = [peers["port"], *(row.get("port") for row in peers["caches"])]
    return [f"{bracketed(name)}:{port}" for port in ports for name in names]


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    if not peers["registries"]:
        yield Problem("no_registry", "registries", "there is no registry", "", "add a host to the group registries")
        return
    names = site.names(peers["registries"][0], peers["name"], peers["names"])
    yield from site.wrong_names("registry_names", names)
    for port in (peers["port"], *(row.get("port") for row in peers["caches"])):
        if not site.is_port(port):
            yield wrong("registry_port", "it is not a valid port", port, f"give a port such as {site.PORT}")
    unknown = sorted(set(params["engines"]) - set(ENGINES))
    if unknown:
        cause = "there is no such engine"
        yield wrong("registry_client_engines", cause, ", ".join(unknown), f"give some of {', '.join(ENGINES)}")


def _files(engine: str, address: str) -> list[str]:
    (_above, directory), authority = ENGINES[engine]
    names = (authority, HOSTS_TOML) if engine == "containerd" else (authority,)
    return [f"{directory}/{address}/{name}" for name in names]


def _hosts_toml(address: str) -> str:
    authority = f"{ENGINES['containerd'][0][1]}/{address}/{ENGINES['containerd'][1]}"
    return (
        "# Written by Ansible (baremetal.gpu.registry_client). Changes made here are lost.\n"
        f'server = "https://{address}"\n\n[host."https://{address}"]\n  ca = "{authority}"\n'
    )


def _present(params: Mapping[str, Any], addresses: list[str]) -> doc.Document:
    authority = params["certificates"]["authority"]
    trusted = doc.File(AUTHORITY, source=authority["path"], sha256=authority["sha256"])
    files: list[doc.Entry] = [doc.Directory("/etc/baremetal-gpu"), doc.Directory(DIRECTORY), trusted]
    for engine, (above, _authority) in ENGINES.items():
        wanted = engine in params["engines"]
        # Of the engine; it may have other rights there.
        files += [doc.Directory(path, mode=None, owner=None, group=None) for path in above if wanted]
        for address in addresses:
            if wanted:
                files.append(doc.Directory(f"{above[-1]}/{address}"))
            for path in _files(engine, address):
                if not wanted:
                    files.append(doc.Absent(path))
                elif path.endswith(HOSTS_TOML):
                    files.append(doc.File(path, _hosts_toml(address)))
                else:
                    files.append(replace(trusted, path=path))
    proof = doc.Proof(ROLE, "that the registry is reached and its certificate is trusted")
    return doc.Document(files=files, proofs=[proof])


def _absent(addresses: list[str]) -> doc.Document:
    """Directories stay, for what others may have put there."""
    paths = [path for engine in ENGINES for address in addresses for path in _files(engine, address)]
    return doc.Document(files=[*map(doc.Absent, (*paths, AUTHORITY))], proofs=[doc.Proof(ROLE, state="absent")])
