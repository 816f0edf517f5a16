# SPDX-License-Identifier: GPL-3.0-or-later
"""Where this host gets Debian packages from: its own apt settings decide, the lab names no mirror."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .system import LabError, run

DEBIAN_SUITES = ("bullseye", "bookworm", "trixie", "forky", "oldoldstable", "oldstable", "stable", "testing", "sid")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass
class Entry:
    """One source of packages: what matters of a 'deb' line or a deb822 stanza."""

    uris: list[str]
    suites: list[str]
    components: list[str] = field(default_factory=list)


@dataclass
class Mirrors:
    """The archive and, where the host has one, the archive of security updates."""

    main: str
    security: str = ""
    proxy: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def sources(self, suite: str) -> list[tuple[str, list[str]]]:
        """The URIs and suites that a machine of this suite uses."""
        sources = [(self.main, [suite, f"{suite}-updates"])]
        if self.security:
            sources.append((self.security, [f"{suite}-security"]))
        return sources

    def one_line(self, suite: str, signed: bool = True) -> str:
        """The sources as 'deb' lines."""
        option = f" [signed-by={KEYRING}]" if signed else ""
        return "".join(f"deb{option} {uri} {name} main\n" for uri, suites in self.sources(suite) for name in suites)

    def deb822(self, suite: str) -> str:
        """The sources as deb822 stanzas."""
        return "\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: main\nSigned-By: {KEYRING}\n"
            for uri, suites in self.sources(suite)
        )


def parse_one_line(text: str) -> Iterator[Entry]:
    """The entries of a sources.list file."""
    for line in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            yield Entry([match[1]], [match[2]], match[3].split())


def parse_deb822(text: str) -> Iterator[Entry]:
    """The enabled binary entries of a deb822 file."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and name:
                fields[name] += f" {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in (
            "no",
            "false",
            "0",
        ):
            yield Entry(
                fields.get("uris", "").split(), fields.get("suites", "").split(), fields.get("components", "").split()
            )


def read_entries(directory: Path) -> list[Entry]:
    """Every entry of an apt configuration directory."""
    entries: list[Entry] = []
    for path in [directory / "sources.list", *sorted((directory / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix == ".list":
            entries.extend(parse_one_line(path.read_text(encoding="utf-8")))
        elif path.is_file() and path.suffix == ".sources":
            entries.extend(parse_deb822(path.read_text(encoding="utf-8")))
    return entries


def _uri(entry: Entry) -> str:
    """The first URI of an entry, looked up in its list where it is a 'mirror+file:' one."""
    for uri in entry.uris:
        if uri.startswith("mirror+file:"):
            path = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
            listed = path.read_text(encoding="utf-8").split() if path.exists() else []
            uri = next((word for word in listed if word.startswith("http")), "")
        if uri.startswith(("http://", "https://")):
            return uri.rstrip("/")
    return ""


def choose(entries: list[Entry]) -> tuple[str, str]:
    """The archive's and the security archive's URI; empty where the entries name none."""
    main = security = ""
    for entry in entries:
        if "main" not in entry.components:
            continue
        for suite in entry.suites:
            base = suite.removesuffix("-security").removesuffix("/updates")
            if base not in DEBIAN_SUITES:
                continue
            if suite == base:
                main = main or _uri(entry)
            else:
                security = security or _uri(entry)
    return main, security


def find(directory: Path = Path("/etc/apt")) -> Mirrors:
    """The mirrors of this host, with its proxy and its settings on the age of package lists."""
    main, security = choose(read_entries(directory))
    main = os.environ.get("GPUOPS_LAB_MIRROR", main)
    security = os.environ.get("GPUOPS_LAB_SECURITY_MIRROR", security)
    if not main:
        raise LabError(
            f"no Debian mirror in {directory}: the lab's machines run Debian; name one in GPUOPS_LAB_MIRROR "
            "(and GPUOPS_LAB_SECURITY_MIRROR)"
        )
    keys = {
        "proxy": "Acquire::http::Proxy",
        "check_valid_until": "Acquire::Check-Valid-Until",
        "check_date": "Acquire::Check-Date",
    }
    words = [word for name, key in keys.items() for word in (name, key)]
    said = run("apt-config", "shell", *words).stdout
    values = dict(part.split("=", 1) for part in shlex.split(said))
    options = {keys[name]: value for name, value in values.items() if name != "proxy" and value}
    return Mirrors(main, security, values.get("proxy", ""), options)
