# SPDX-License-Identifier: GPL-3.0-or-later
"""Where packages come from: the settings of apt and pip of the machine that builds, and nothing else.

They are mounted into a build and are not in the image, so neither are names of mirrors nor their passwords.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import apt_sources

from . import programs

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Of a release of Debian, the archive and its updates for security.
SUITES = ("bullseye", "bookworm", "trixie", "forky", "oldoldstable", "oldstable", "stable", "testing", "sid")
# Where the build finds its settings, its recipe and its wheels.
MOUNT = "/run/gpuops"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Settings of pip that say where packages come from.
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "default-timeout", "timeout")


@dataclass(frozen=True)
class Debian:
    """The mirrors of Debian, with the settings of apt that lead to them."""

    archive: str
    security: str
    options: tuple[str, ...] = ()

    def lines(self, suite: str, signed: bool) -> str:
        option = f"[signed-by={KEYRING}] " if signed else ""
        lines = [f"deb {option}{self.archive} {name} main" for name in (suite, f"{suite}-updates")]
        if self.security:
            lines.append(f"deb {option}{self.security} {suite}-security main")
        return "\n".join(lines) + "\n"


def debian(archive: str = "", security: str = "", root: str = "/") -> Debian:
    """The mirrors of the machine's own sources, whatever release it has. Raises Refused where there are none."""
    for _path, stanza in apt_sources(root):
        if "deb" not in stanza.get("types", "").split() or "main" not in stanza.get("components", "").split():
            continue
        uri = next((uri for uri in stanza.get("uris", "").split() if uri.startswith(("http://", "https://"))), "")
        for suite in stanza.get("suites", "").split():
            base = suite.removesuffix("-security").removesuffix("-updates").removesuffix("/updates")
            if base in SUITES and suite == base:
                archive = archive or uri
            elif base in SUITES and suite.endswith("-security"):
                security = security or uri
    if not archive:
        raise Refused("the sources of apt here name no mirror of Debian", "give --mirror URI", code="no_debian_mirror")
    return Debian(archive, security, _apt_options())


def _apt_options() -> tuple[str, ...]:
    """Proxies and the age of lists that this machine's apt accepts."""
    told = programs.run("apt-config", "dump", "Acquire", what="reading the settings of apt")
    wanted = ("::Proxy", "::Check-Valid-Until", "::Timeout", "::Retries")
    return tuple(
        line
        for line in told.splitlines()
        if any(key in line.split(" ")[0] for key in wanted)
        and line.startswith(("Acquire::http", "Acquire::Check", "Acquire::Retries"))
    )


def write_settings(directory: Path, mirrors: Debian, suite: str) -> list[str]:
    """Write what a build reads of apt's and pip's settings into a directory; return further paths to mount."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(directory / "sources.list", mirrors.lines(suite, signed=False))
    conf = [
        f'Dir::Etc::SourceList "{MOUNT}/settings/sources.list";',
        'Dir::Etc::SourceParts "/dev/null";',
        'APT::Sandbox::User "root";',
        f'Acquire::https::CAInfo "{MOUNT}/settings/ca.crt";',
        *mirrors.options,
    ]
    _write(directory / "apt.conf", "\n".join(conf) + "\n")
    if CERTIFICATES.exists():
        _write(directory / "ca.crt", CERTIFICATES.read_text(encoding="utf-8"))
    settings, paths = pip_settings()
    settings["cert"] = [f"{MOUNT}/settings/ca.crt"]
    lines = [f"{key} = " + "\n    ".join(values) for key, values in settings.items()]
    _write(directory / "pip.conf", "[global]\n" + "\n".join(lines) + "\n")
    return paths


def _write(path: Path, text: str) -> None:
    """For root alone: a mirror's URI may have a password."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def pip_settings() -> tuple[dict[str, list[str]], list[str]]:
    """Where this machine's pip takes packages from, and which directories of the machine that names."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused("pip cannot be asked for its settings", f"see `{' '.join(command)}`", code="no_program")
    found = parse_pip_settings(done.stdout)
    paths = []
    for key in ("index-url", "extra-index-url", "find-links"):
        for value in found.get(key, []):
            path = urlsplit(value).path if value.startswith("file:") else value if value.startswith("/") else ""
            if path and Path(path).is_dir():
                # An index has its files beside it, as a rule.
                paths.append(str(Path(path).parent if Path(path).name == "simple" else Path(path)))
    return found, sorted(set(paths))


def parse_pip_settings(told: str) -> dict[str, list[str]]:
    """The settings of `pip config list` that say where packages come from; those of the environment come last."""
    found: dict[str, list[str]] = {}
    for line in sorted(told.splitlines(), key=lambda line: line.startswith(":env:")):
        name, equals, value = line.partition("=")
        key = name.removeprefix(":env:").rpartition(".")[2]
        if equals and key in PIP_SETTINGS:
            try:
                text = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                continue
            found[key] = str(text).split()
    if "default-timeout" in found:
        found.setdefault("timeout", found.pop("default-timeout"))
    return found
