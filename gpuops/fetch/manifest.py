# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest: everything that a site's hosts have yet to install, by operating system.

It is read from a run of site.yml in check mode, so it holds what the roles really need on these very hosts: the
driver branch that suits the GPUs, the headers of the kernels that are there, the versions that the inventory pins.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.system import distributions
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import parse_deb822
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue, untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, rows, texts
from gpuops.run import events, playbooks
from gpuops.run.environment import as_if_called_here

SCHEMA = 1
DRIFT_MODULE = "host_drift_info"


# What a manifest may have in it, whoever has written it: it comes from the answers of hosts, and apt runs as root on
# the machine that fills the mirror. Names of packages are as Debian's policy has them (5.6.1), versions too (5.6.12).
# One that ends with a minus would have apt remove it.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")
_VERSION = re.compile(r"([0-9]+:)?[0-9][A-Za-z0-9.+~-]*")
# Those of rpm, which nothing is fetched for.
_RPM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9+._-]*")
_RPM_VERSION = re.compile(r"([0-9]+:)?[A-Za-z0-9][A-Za-z0-9._+~^-]*")
_COMPONENT = re.compile(r"[a-z0-9]+([/-][a-z0-9]+)*")
_KEY = re.compile(r"[0-9a-f]{16}")
_SHA256 = re.compile(r"[0-9a-f]{1,64}")
# Of a URL what may stand in it as it is (RFC 3986), and of a file what a name in the mirror may be.
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~-]*")
NAME_AT_MOST, URL_AT_MOST = 200, 2000
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


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

    def check(self) -> None:
        """Raises ManifestError for what is no release that the collection knows, or no package of one."""
        if not isinstance(self.name, str) or self.name not in distributions.SUPPORTED:
            _refuse("release", self.name, f"there are {', '.join(distributions.SUPPORTED)}")
        codename = distributions.CODENAMES.get(self.name, "")
        if self.codename != codename:
            _refuse(f"codename of {self.name}", self.codename, f"it is {codename or 'empty'}")
        if self.architecture not in ARCHITECTURES.values():
            _refuse(f"architecture of {self.name}", self.architecture, f"take {' or '.join(ARCHITECTURES.values())}")
        for component in _listed("components", self.components):
            _grammar("component of an archive", component, _COMPONENT, "such as main or non-free/debug")
        names, versions = (_PACKAGE, _VERSION) if self.is_debian else (_RPM, _RPM_VERSION)
        for package in _listed("packages", self.packages):
            name, equals, version = package.partition("=") if isinstance(package, str) else (package, "", "")
            _grammar("package", name, names, "a name as the packages of the release have them, such as libc6-dev")
            if equals:
                _grammar(f"version of {name}", version, versions, "such as 1:2.3-4")

    @property
    def is_debian(self) -> bool:
        """Whether its packages are apt's."""
        return distributions.SUPPORTED[self.name]["family"] == "debian"


@dataclass
class Download:
    """A file by URL. ``sha256`` is what its content must have."""

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name in the mirror."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def check(self) -> None:
        """Raises ManifestError for what is not to be fetched."""
        check_url(self.url)
        if not _FILE.fullmatch(self.file) or len(self.file) > NAME_AT_MOST:
            _refuse("URL", self.url, "its path has to end with the name of a file, of letters, digits and . _ + ~ -")
        _grammar(f"SHA-256 of {self.url}", self.sha256, _SHA256, "hexadecimal digits in lower case")


@dataclass
class Image:
    """An image of the catalogue by its name there. ``key`` says of which definition it is, with its locks."""

    name: str
    key: str

    @property
    def file(self) -> str:
        """Its name in the mirror."""
        return f"{self.name}-{self.key}.tar"

    def check(self) -> None:
        """Raises ManifestError for what is no image of a catalogue."""
        _grammar("image", self.name, image_catalogue.NAME, "a name of the catalogue, such as notebook")
        _grammar(f"key of the image {self.name}", self.key, _KEY, "16 hexadecimal digits in lower case")


@dataclass
class Manifest:
    hosts: list[str] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    downloads: list[Download] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    # By the names of their files; the collection itself has the list with the checksums.
    wheels: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raises ManifestError, which names the value and what it has to be."""
        for release in self.releases:
            release.check()
        if len({release.name for release in self.releases}) < len(self.releases):
            raise ManifestError("a release is there twice; make the manifest anew with `gpuops manifest`")
        for image in self.images:
            image.check()
        known = {row["file"] for row in portal.lock()}
        for name in _listed("wheels", self.wheels):
            if name not in known:
                _refuse("wheel", name, "it is not on the list of the collection")
        files: dict[str, Download] = {}
        for download in self.downloads:
            download.check()
            other = files.setdefault(download.file, download)
            if other != download:
                raise ManifestError(
                    f"{download.url} ({download.sha256}) and {other.url} ({other.sha256}) would be one file of the "
                    "mirror; see which host needs what, and correct the variable that names the URL"
                )

    def dump(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, sort_keys=True) + "\n"


def check_url(url: Any) -> None:
    """Raises ManifestError unless it is one that leads to a web server."""
    if not isinstance(url, str) or not _URL.fullmatch(url) or len(url) > URL_AT_MOST:
        _refuse("URL", url, "write one of letters, digits and the signs that RFC 3986 allows")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine:
        _refuse("URL", url, "only http:// and https:// are fetched")


def _listed(what: str, found: Any) -> list[Any]:
    if not isinstance(found, list):
        _refuse(what, found, "it has to be a list")
    return list(found)


def _grammar(what: str, value: Any, pattern: re.Pattern[str], remedy: str) -> None:
    if not isinstance(value, str) or len(value) > NAME_AT_MOST or not pattern.fullmatch(value):
        _refuse(what, value, f"it has to be {remedy}")


def _refuse(what: str, value: Any, remedy: str) -> NoReturn:
    raise ManifestError(f"{what} {untrusted_text.one_line(repr(value), 120)} is refused: {remedy}")


def load(path: Path) -> Manifest:
    """Read a manifest that dump() wrote, or that somebody has edited. Raises ManifestError."""
    try:
        data = untrusted_document.load(str(path))
        if data["schema"] != SCHEMA:
            raise ManifestError(f"{path}: schema {data['schema']}, but this gpuops reads {SCHEMA}; make it anew")
        found = Manifest(
            hosts=list(data["hosts"]),
            releases=[Release(**row) for row in data["releases"]],
            downloads=[Download(**row) for row in data["downloads"]],
            # An older gpuops knew none.
            images=[Image(**row) for row in data.get("images", [])],
            # Those of earlier releases have none.
            wheels=list(data.get("wheels", [])),
        )
        found.check()
        return found
    except ManifestError as error:
        raise ManifestError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path} is not a manifest: {error}; make one with `gpuops manifest`") from error


def from_inventory(
    inventory: Path, extra_vars: Iterable[str] = (), redact: Callable[[Any], Any] | None = None
) -> Manifest:
    """Run site.yml in check mode on every host of the inventory and note what it would install.

    :param redact: takes secrets out of events.
    """
    import ansible_runner

    taken: list[events.Event] = []
    take = events.Entry(taken.append, redact)

    def handle(event: dict[str, Any]) -> bool:
        take(event)
        return False

    # An air-gapped host is expected to reach nothing yet: that is what the mirror is for. Nor are there wheels yet.
    words = ["--check", "-e", "gpu_preflight_check_network=false", "-e", "portal_wheelhouse="]
    words += [part for word in extra_vars for part in ("-e", word)]
    with tempfile.TemporaryDirectory(prefix="gpuops-manifest-") as private:
        runner = ansible_runner.run(
            private_data_dir=private,
            playbook=playbooks.SITE,
            # Words of the command line, such as -e @file, mean what they mean here.
            project_dir=os.getcwd(),
            inventory=str(inventory.resolve()),
            cmdline=shlex.join(words),
            event_handler=handle,
            quiet=True,
            suppress_env_files=True,
            envvars=as_if_called_here(),
        )
    if runner.rc != 0:
        output = "\n".join(event.output for event in taken)
        raise ManifestError(f"site.yml --check ended with {runner.rc}:\n{output[-4000:]}")
    return from_events(taken)


def from_events(taken: Iterable[events.Event]) -> Manifest:
    """The manifest of a check run, from its events. Raises ManifestError, which names the host."""
    systems: dict[str, dict[str, Any]] = {}
    missing: dict[str, list[dict[str, Any]]] = {}
    sources: dict[str, list[dict[str, Any]]] = {}
    downloads: dict[str, Download] = {}
    first_host: dict[str, str] = {}
    wheels: set[str] = set()
    known = {row["file"] for row in portal.lock()}
    for event in taken:
        if not isinstance(event, events.HostResult) or not event.succeeded:
            continue
        host, result = event.host, event.result
        plan = mapping(mapping(result.get("ansible_facts")).get("gpu_plan"))
        if plan:
            systems[host] = mapping(plan.get("os"))
        if event.task.action == DRIFT_MODULE:
            drift = mapping(result.get("drift"))
            missing.setdefault(host, []).extend(
                row for row in rows(drift.get("packages")) if "install" in texts(row.get("actions"))
            )
            sources.setdefault(host, []).extend(rows(drift.get("repositories")))
            for row in rows(drift.get("files")):
                file = str(row.get("source") or "").rpartition("/")[2]
                if file in known:
                    wheels.add(file)
                if row.get("url"):
                    found = Download(row["url"], row.get("sha256") or "")
                    _of_host(host, found)
                    if downloads.setdefault(found.url, found) != found:
                        raise ManifestError(
                            f"{host} needs {found.url} with the SHA-256 {found.sha256}, and {first_host[found.url]} "
                            f"with {downloads[found.url].sha256}; see which of the two is the publisher's, and "
                            "look at the other host"
                        )
                    first_host.setdefault(found.url, host)
    releases: dict[str, Release] = {}
    for host in sorted(missing):
        if host not in systems:
            raise ManifestError(f"{host}: the run has no plan of preflight for this host, which names its system")
        found_release = _release(systems[host])
        found_release.components = sorted({"main", *_components(sources.get(host, []))})
        found_release.packages = sorted({_package(row) for row in missing[host]})
        _of_host(host, found_release)
        release = releases.setdefault(found_release.name, found_release)
        if release.architecture != found_release.architecture:
            raise ManifestError(
                f"{host} is {found_release.architecture}, and others of {release.name} are {release.architecture}; "
                "make a manifest and a mirror for each of the two, with --inventory"
            )
        release.components = sorted({*release.components, *found_release.components})
        release.packages = sorted({*release.packages, *found_release.packages})
    found_manifest = Manifest(
        hosts=sorted(systems),
        releases=[releases[name] for name in sorted(releases)],
        downloads=[downloads[url] for url in sorted(downloads)],
        wheels=sorted(wheels),
    )
    found_manifest.check()
    return found_manifest


def _of_host(host: str, part: Release | Download) -> None:
    """Raises ManifestError, which names the host, unless its part may be in a manifest."""
    try:
        part.check()
    except ManifestError as error:
        raise ManifestError(f"{host}: {error}. Look at the host: it has this of itself") from error


def _release(system: dict[str, Any]) -> Release:
    machine, family = str(system.get("machine")), system.get("family")
    return Release(
        name=system.get("key") or "",
        # Only apt has a use for it.
        codename="" if family == "redhat" else system.get("codename") or "",
        architecture=ARCHITECTURES.get(machine, machine),
    )


def _components(repositories: list[dict[str, Any]]) -> set[str]:
    """The components of the archive that repositories in the form of deb822 add to what a host has."""
    stanzas = (stanza for row in repositories for stanza in parse_deb822(str(row.get("content") or "")))
    return {component for stanza in stanzas for component in stanza.get("components", "").split()}


def _package(row: dict[str, Any]) -> str:
    name, version = str(row.get("name")), str(row.get("version") or "")
    exact = version and not any(character in version for character in "*?[")
    return f"{name}={version}" if exact else name
