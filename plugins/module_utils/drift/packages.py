# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What package managers have on disk: the packages of dpkg and of rpm with its locks, and files for apt and dnf."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call
from ansible_collections.baremetal.gpu.plugins.module_utils.system.dpkg import STATUS, parse_dpkg

# States of dpkg in which a package is neither there nor gone, in dpkg's own words.
INCOMPLETE = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")


def read_conffiles(text: str, name: str) -> dict[str, str]:
    """What dpkg's status file tells of the configuration files of a package: path -> MD5 of the file as shipped."""
    found: dict[str, str] = {}
    for stanza in re.findall(rf"^Package: {re.escape(name)}\n(?:.+\n)*", text, re.MULTILINE):
        listed = re.search(r"^Conffiles:[^\n]*\n((?: .+\n)+)", stanza, re.MULTILINE)
        for line in listed.group(1).splitlines() if listed else ():
            path, digest = line.split()[:2]
            found[path] = digest
    return found


class Packages:
    """The installed packages of a host, whichever manager put them there."""

    def __init__(
        self,
        manager: str,
        rows: Iterable[dict[str, Any]],
        interrupted: str | None = None,
        locked: Iterable[str] = (),
        root: str = "/",
    ) -> None:
        self.manager = manager
        self._root = root
        self.interrupted = interrupted
        self._locked = set(locked)
        self._rows: dict[str, dict[str, Any]] = {}
        self._provided: dict[str, str] = {}
        self._versions: dict[str, list[str]] = {}
        rows = list(rows)
        # dpkg is always installed, and in the architecture of the system.
        native = next((row.get("architecture") for row in rows if row["name"] == "dpkg"), None)
        for row in rows:
            self._rows[f"{row['name']}:{row.get('architecture')}"] = row
            if row["name"] not in self._rows or row.get("architecture") in (native, "all"):
                self._rows[row["name"]] = row
            for alias in row.get("aliases", ()):
                self._rows[alias] = row
            if manager == "dnf":
                self._versions.setdefault(row["name"], []).append(row["version"])
            if row["state"] == "installed":
                for name in row.get("provides", ()):
                    self._provided[name] = row["name"]

    def get(self, name: str) -> dict[str, Any] | None:
        return self._rows.get(name)

    def installed(self, name: str) -> dict[str, Any] | None:
        row = self._rows.get(name)
        return row if row and row["state"] == "installed" else None

    def provider(self, name: str) -> str | None:
        """The installed package that stands for a virtual one."""
        return self._provided.get(name)

    def is_bound(self, name: str) -> bool:
        """Whether anything keeps the manager from changing a package: a hold, or a lock of whichever version."""
        row = self._rows.get(name)
        return name in self._locked or bool(row and row["want"] == "hold")

    def interruption(self, names: Iterable[str]) -> str | None:
        """What a run of the package manager that was cut has left half done."""
        twice = [name for name in names if len(self.versions(name)) > 1]
        if not self.interrupted and twice:
            listed = ", ".join(f"{name} is installed at {' and '.join(self.versions(name))}" for name in twice)
            return f"dnf was interrupted: {listed}"
        return self.interrupted

    def edited(self, name: str) -> list[str]:
        """Configuration files of a package that are not as it brought them. Of rpm none: it keeps those itself."""
        if self.manager != "apt":
            return []
        shipped = read_conffiles(read_text(os.path.join(self._root, STATUS)), name)
        return sorted(path for path, digest in shipped.items() if _md5(self._root, path) not in (None, digest))

    def versions(self, name: str) -> list[str]:
        """Versions at which a package is installed. Of what rpm may keep several, such as kernels, only one is asked
        for, by a name with its version in it."""
        return sorted(self._versions.get(name, []))

    def matching(self, pattern: str) -> list[str]:
        """Names of packages that are on the host in any way and match a shell pattern."""
        return sorted({row["name"] for row in self._rows.values() if fnmatch.fnmatchcase(row["name"], pattern)})

    def following(self, pattern: str) -> list[re.Match[str]]:
        """Matches of a regular expression with the whole names of installed packages."""
        names = sorted({row["name"] for row in self._rows.values() if row["state"] == "installed"})
        return [match for match in (re.fullmatch(pattern, name) for name in names) if match]


def _md5(root: str, path: str) -> str | None:
    try:
        with open(os.path.join(root, path.lstrip("/")), "rb") as stream:
            # dpkg's own way to tell whether the operator changed a file; nothing is protected by it.
            return hashlib.new("md5", stream.read(), usedforsecurity=False).hexdigest()
    except FileNotFoundError:
        return None


def version_matches(row: dict[str, Any], wanted: str) -> bool:
    """Whether an installed version is the wanted one: exactly, or by a shell pattern.

    A Debian epoch (`1:24.0`) and an rpm's epoch and release may be left out.
    """
    version = str(row.get("version") or "")
    forms = {version, version.split(":", 1)[-1], *row.get("forms", ())}
    return any(fnmatch.fnmatchcase(form, wanted) for form in forms)


def upstream(row: dict[str, Any]) -> str:
    """The version of an installed package without what its distribution adds: `1:570.86-2` -> `570.86`."""
    return str(row["version"]).split(":", 1)[-1].split("-", 1)[0]


def numbers(version: str) -> list[int]:
    """What versions are sorted by."""
    return [int(number) for number in re.findall(r"\d+", version)]


def read_dpkg(root: str = "/") -> Packages:
    """One read of the status file, and of the journal that a dpkg leaves behind when it is cut."""
    admin = os.path.join(root, "var/lib/dpkg")
    rows = {(row["name"], row.get("architecture")): row for row in parse_dpkg(read_text(os.path.join(admin, "status")))}
    journal = sorted(
        path for path in glob.glob(os.path.join(admin, "updates", "*")) if re.match(r"\d+$", os.path.basename(path))
    )
    for path in journal:
        for row in parse_dpkg(read_text(path)):
            rows[(row["name"], row.get("architecture"))] = row
    incomplete = sorted(
        f"{row['name']} is {row['state'] if row['flag'] == 'ok' else row['flag']}"
        for row in rows.values()
        if row["state"] in INCOMPLETE or row["flag"] == "reinstreq"
    )
    interrupted = None
    if incomplete:
        more = f" and {len(incomplete) - 5} more" if len(incomplete) > 5 else ""
        interrupted = f"dpkg was interrupted: {', '.join(incomplete[:5])}{more}"
    elif journal:
        interrupted = "dpkg was interrupted: its journal in /var/lib/dpkg/updates is not merged"
    return Packages("apt", rows.values(), interrupted, root=root)


RPM_QUERY = (
    "rpm",
    "-qa",
    "--qf",
    "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\n",
)


# The plugin of dnf that holds packages; without it nobody reads the list of locks.
VERSIONLOCK = "python3-dnf-plugin-versionlock"


def parse_rpm(text: str, locked: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Rows of the output of RPM_QUERY. `locked` are lines of the list of locks."""
    patterns = list(locked)
    rows = []
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) != 5:
            continue
        name, epoch, version, release, architecture = parts
        forms = [version, f"{version}-{release}", f"{epoch}:{version}", f"{epoch}:{version}-{release}"]
        full = [f"{name}-{form}" for form in forms[1::2]]
        held = any(
            fnmatch.fnmatchcase(candidate, pattern)
            for pattern in patterns
            for nevr in full
            for candidate in (nevr, f"{nevr}.{architecture}", f"{nevr}.*")
        )
        rows.append(
            {
                "name": name,
                "architecture": architecture,
                "version": forms[1],
                "forms": forms,
                # Of a kernel and its headers several versions are installed; they are asked for by this name.
                "aliases": [f"{full[0]}.{architecture}"],
                "want": "hold" if held else "install",
                "flag": "ok",
                "state": "installed",
            }
        )
    return rows


def parse_versionlock(text: str) -> list[str]:
    """Lines of dnf's versionlock.list; those that exclude a version (`!`) lock nothing."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and line[0] not in "#!"]


def lock_name(lock: str) -> str:
    """The package that a lock is for: `a-b-0:1.2-3.el9.*` -> `a-b`."""
    return lock.rsplit("-", 2)[0]


def read_rpm(root: str, run: Call) -> Packages:
    code, out = run(RPM_QUERY)
    out = out if code == 0 else ""
    locks = []
    if any(row["name"] == VERSIONLOCK for row in parse_rpm(out)):
        locks = parse_versionlock(read_text(os.path.join(root, "etc/dnf/plugins/versionlock.list")))
    return Packages("dnf", parse_rpm(out, locks), locked=map(lock_name, locks))


def read_packages(root: str, run: Call) -> Packages:
    if os.path.exists(os.path.join(root, STATUS)):
        return read_dpkg(root)
    return read_rpm(root, run)


def parse_policy(text: str) -> dict[str, dict[str, Any]]:
    """The answer of `apt-cache policy NAME...`: name -> its candidate and every version that is to be had."""
    found: dict[str, dict[str, Any]] = {}
    name = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            name = line.rstrip().rstrip(":")
            found[name] = {"candidate": None, "versions": []}
        elif name and line.startswith("  Candidate: "):
            candidate = line.split(": ", 1)[1].strip()
            found[name]["candidate"] = None if candidate == "(none)" else candidate
        elif name:
            match = re.match(r"^ (?:\*\*\*|   ) (\S+) -?\d+$", line)
            if match:
                found[name]["versions"].append(match.group(1))
    return found


def policy_command(names: Sequence[str]) -> list[str]:
    # With its caches switched off apt-cache writes nothing to the host.
    return ["apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "policy", *names]


# --- sources ---------------------------------------------------------------------------------------------------------

BANNER = "# Written by baremetal.gpu; changes are overwritten.\n"


def missing_components(
    sources: Iterable[dict[str, str]], suites: Sequence[str], wanted: Sequence[str]
) -> list[dict[str, Any]]:
    """Stanzas that add components of the same archive that the host takes `main` from.

    Only what no source of the host has yet: apt complains about whatever is configured twice.
    """
    offered: dict[tuple[str, str], list[str]] = {}
    origin: dict[tuple[str, str], dict[str, str]] = {}
    for stanza in sources:
        if "deb" not in stanza.get("types", "").split():
            continue
        components = stanza.get("components", "").split()
        for uri in stanza.get("uris", "").split():
            for suite in stanza.get("suites", "").split():
                if suite not in suites:
                    continue
                place = (uri.rstrip("/"), suite)
                offered.setdefault(place, []).extend(components)
                if "main" in components:
                    origin.setdefault(place, stanza)
    added: list[dict[str, Any]] = []
    for (uri, suite), stanza in origin.items():
        missing = [name for name in wanted if name not in offered[(uri, suite)]]
        if not missing:
            continue
        keep = {key: stanza[key] for key in ("signed-by", "architectures", "trusted") if stanza.get(key)}
        twin = next(
            (row for row in added if (row["uris"], row["components"], row["keep"]) == ([uri], missing, keep)), None
        )
        if twin:
            twin["suites"].append(suite)
        else:
            added.append({"uris": [uri], "suites": [suite], "components": missing, "keep": keep})
    return added


def _field(name: str, value: Any) -> str:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif isinstance(value, (list, tuple)):
        value = " ".join(str(part) for part in value)
    return f"{name}: {value}\n"


def render_deb822(repository: dict[str, Any], signed_by: str | None) -> str:
    text = BANNER + _field("Types", "deb") + _field("URIs", repository["uris"]) + _field("Suites", repository["suites"])
    for name, key in (("Components", "components"), ("Architectures", "architectures")):
        if repository.get(key):
            text += _field(name, repository[key])
    if signed_by:
        text += _field("Signed-By", signed_by)
    for name, value in sorted((repository.get("options") or {}).items()):
        text += _field(name, value)
    return text


def render_components(stanzas: Iterable[dict[str, Any]]) -> str:
    """A sources file out of what missing_components() found; empty where nothing is missing."""
    names = {"signed-by": "Signed-By", "architectures": "Architectures", "trusted": "Trusted"}
    blocks = []
    for stanza in stanzas:
        text = _field("Types", "deb") + _field("URIs", stanza["uris"]) + _field("Suites", stanza["suites"])
        text += _field("Components", stanza["components"])
        for key, value in stanza["keep"].items():
            text += _field(names[key], value)
        blocks.append(text)
    return BANNER + "\n".join(blocks) if blocks else ""


def render_yum(repository: dict[str, Any], key_path: str | None) -> str:
    settings: dict[str, Any] = {
        "name": repository["name"],
        "baseurl": repository.get("baseurl") or " ".join(repository.get("uris") or []),
        "enabled": 1,
        "gpgcheck": 1,
    }
    if key_path:
        settings["gpgkey"] = f"file://{key_path}"
    settings.update(repository.get("options") or {})
    lines = []
    for name, value in settings.items():
        if isinstance(value, bool):
            value = int(value)
        elif isinstance(value, (list, tuple)):
            value = " ".join(str(part) for part in value)
        lines.append(f"{name}={value}\n")
    return f"{BANNER}[{repository['name']}]\n{''.join(lines)}"


def render_pin(pin: dict[str, Any]) -> str:
    package = pin["package"]
    if isinstance(package, (list, tuple)):
        package = " ".join(package)
    return f"{BANNER}Package: {package}\nPin: {pin['pin']}\nPin-Priority: {pin.get('priority') or 1001}\n"
