# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest: everything that a site's hosts have yet to install, by operating system.

It is read from a run of site.yml in check mode, so it holds what the roles really ask for on these very hosts: the
driver branch that suits the cards, the headers of the kernels that are there, the versions that the inventory pins.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuops.ansible_environment import as_if_called_here

SCHEMA = 1
DRIFT_MODULE = "baremetal.gpu.host_drift_info"
SITE = Path(__file__).resolve().parents[2] / "playbooks" / "site.yml"


class ManifestError(Exception):
    """The manifest cannot be made or read; the message says what to do."""


@dataclass
class Release:
    """What the hosts of one release of an operating system need.

    ``name``, such as debian13, is the directory of the mirror. ``packages`` are as apt-get takes them: ``name`` or
    ``name=version``. ``components`` are the archive's.
    """

    name: str
    codename: str
    architecture: str
    components: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


@dataclass
class Download:
    """A file by URL. ``sha256`` is what its content must have."""

    url: str
    sha256: str


@dataclass
class Manifest:
    hosts: list[str] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    downloads: list[Download] = field(default_factory=list)

    def dump(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, sort_keys=True) + "\n"


def load(path: Path) -> Manifest:
    """Read a manifest that dump() wrote."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ManifestError(f"{path}: schema {data['schema']}, but this gpuops reads {SCHEMA}; make it anew")
        return Manifest(
            hosts=list(data["hosts"]),
            releases=[Release(**row) for row in data["releases"]],
            downloads=[Download(**row) for row in data["downloads"]],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path} is no manifest: {error}; make one with `gpuops manifest`") from error


def from_inventory(inventory: Path, extra_vars: Iterable[str] = ()) -> Manifest:
    """Run site.yml in check mode on every host of the inventory and note what it would install."""
    import ansible_runner

    with tempfile.TemporaryDirectory(prefix="gpuops-manifest-") as private:
        runner = ansible_runner.run(
            private_data_dir=private,
            playbook=str(SITE),
            inventory=str(inventory.resolve()),
            # An air-gapped host is expected to reach nothing yet: that is what the mirror is for.
            cmdline=" ".join(
                ["--check", "-e gpu_preflight_check_network=false", *(f"-e {word}" for word in extra_vars)]
            ),
            quiet=True,
            suppress_env_files=True,
            envvars=as_if_called_here(),
        )
        if runner.rc != 0:
            raise ManifestError(f"site.yml --check ended with {runner.rc}:\n{runner.stdout.read()[-4000:]}")
        return from_events(list(runner.events))


def from_events(events: list[dict[str, Any]]) -> Manifest:
    """The manifest of a check run, from ansible-runner's events."""
    systems: dict[str, dict[str, Any]] = {}
    wanted: dict[str, list[dict[str, Any]]] = {}
    sources: dict[str, list[dict[str, Any]]] = {}
    downloads: dict[str, str] = {}
    for event in events:
        if event.get("event") != "runner_on_ok":
            continue
        data = event["event_data"]
        host, result = data["host"], data.get("res") or {}
        plan = (result.get("ansible_facts") or {}).get("gpu_plan")
        if plan:
            systems[host] = plan["os"]
        if data.get("resolved_action", data.get("task_action")) == DRIFT_MODULE:
            drift = result.get("drift") or {}
            wanted.setdefault(host, []).extend(row for row in drift.get("packages", ()) if "install" in row["actions"])
            sources.setdefault(host, []).extend(drift.get("repositories", ()))
            for row in drift.get("files", ()):
                if row.get("url"):
                    downloads[row["url"]] = row["sha256"]
    releases: dict[str, Release] = {}
    for host in sorted(wanted):
        if host not in systems:
            raise ManifestError(f"{host}: the run has no plan of preflight for this host, which names its system")
        release = _release(systems[host])
        release = releases.setdefault(release.name, release)
        release.components = sorted({*release.components, *_components(sources.get(host, []))})
        release.packages = sorted({*release.packages, *map(_package, wanted[host])})
    return Manifest(
        hosts=sorted(systems),
        releases=[releases[name] for name in sorted(releases)],
        downloads=[Download(url, sha256) for url, sha256 in sorted(downloads.items())],
    )


def _release(system: dict[str, Any]) -> Release:
    machine = system["machine"]
    return Release(
        name=system["key"],
        codename=system["codename"],
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        components=["main"],
    )


def _components(repositories: list[dict[str, Any]]) -> set[str]:
    """The components of the archive that repositories in the form of deb822 add to what a host has."""
    found = (re.findall(r"^Components: (.*)$", row.get("content", ""), re.MULTILINE) for row in repositories)
    return {component for stanzas in found for stanza in stanzas for component in stanza.split()}


def _package(row: dict[str, Any]) -> str:
    version = row.get("version", "")
    exact = version and not any(character in version for character in "*?[")
    return f"{row['name']}={version}" if exact else str(row["name"])
