# SPDX-License-Identifier: GPL-3.0-or-later
"""A host made of files in a directory, for comparing with desired documents. All contents are made by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KERNEL = "6.12.1-amd64"


class DriftHost:
    """Writes what the inspection reads, and answers the commands that it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.unit_answers: dict[str, dict[str, str]] = {}
        self.policies: dict[str, str] = {}
        self.rpms = ""
        self.package("dpkg", "1.22")

    def file(self, path: str, content: str = "", mode: int = 0o644) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(mode)
        return target

    def directory(self, path: str, mode: int = 0o755) -> None:
        target = self.root / path.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(mode)

    def link(self, path: str, to: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(to)

    def package(
        self,
        name: str,
        version: str = "1.0-1",
        status: str = "install ok installed",
        architecture: str = "amd64",
        provides: str = "",
        into: str = "status",
        conffiles: dict[str, str] | None = None,
    ) -> None:
        """`conffiles` are contents of configuration files as the package brought them, by path."""
        path = self.root / "var/lib/dpkg" / into
        path.parent.mkdir(parents=True, exist_ok=True)
        stanza = f"Package: {name}\nStatus: {status}\nArchitecture: {architecture}\nVersion: {version}\n"
        if provides:
            stanza += f"Provides: {provides}\n"
        if conffiles:
            digests = {one: hashlib.md5(text.encode()).hexdigest() for one, text in conffiles.items()}
            stanza += "Conffiles:\n" + "".join(f" {one} {digest}\n" for one, digest in digests.items())
        # A description whose lines look like fields must not be taken for them.
        stanza += "Description: a package\n Package: not a field\n .\n"
        with path.open("a") as stream:
            stream.write(stanza + "\n")

    def unit(self, name: str, active: str = "active", enabled: str = "enabled", **properties: str) -> None:
        self.unit_answers[name] = {
            "Id": name,
            "Names": name,
            "LoadState": "loaded",
            "ActiveState": active,
            "UnitFileState": enabled,
            "NeedDaemonReload": "no",
            **properties,
        }

    def kernel_module(self, name: str, version: str = "", users: int = 0, holders: Sequence[str] = ()) -> None:
        base = f"/sys/module/{name}"
        self.file(f"{base}/initstate", "live\n")
        self.file(f"{base}/refcnt", f"{users}\n")
        self.directory(f"{base}/holders")
        for holder in holders:
            self.directory(f"{base}/holders/{holder}")
        if version:
            self.file(f"{base}/version", f"{version}\n")

    def policy(self, name: str, *versions: str, candidate: str = "") -> None:
        lines = [f"{name}:", "  Installed: (none)", f"  Candidate: {candidate or versions[0]}", "  Version table:"]
        for version in versions:
            lines += [f"     {version} 500", "        500 http://deb.example/debian trixie/main amd64 Packages"]
        self.policies[name] = "\n".join(lines) + "\n"

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        self.commands.append(list(command))
        if command[0] == "systemctl":
            blocks = []
            for name in command[command.index("--") + 1 :]:
                missing = {"Id": name, "Names": name, "LoadState": "not-found", "ActiveState": "inactive"}
                properties = self.unit_answers.get(name, missing)
                blocks.append("".join(f"{key}={value}\n" for key, value in properties.items()))
            return 0, "\n".join(blocks)
        if command[0] == "apt-cache":
            return 0, "".join(self.policies.get(name, "") for name in command)
        if command[0] == "rpm":
            return 0, self.rpms
        raise AssertionError(f"unexpected command {command}")

    def build(self, what: dict[str, Any]) -> None:
        """From the words of a case: method name -> list of its arguments."""
        for method, calls in what.items():
            for call in calls:
                arguments = dict(call)
                if "mode" in arguments:
                    arguments["mode"] = int(arguments["mode"], 8)
                versions = arguments.pop("versions", [])
                if versions:
                    getattr(self, method)(arguments.pop("name"), *versions, **arguments)
                else:
                    getattr(self, method)(**arguments)
