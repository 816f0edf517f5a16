# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe RPM packages and signed repositories of them, and build them in a machine that has Debian's RPM tools.

The controller needs nothing for it: `Workshop` makes spec files and a script, and the machine does the rest with
rpmbuild, rpmsign and createrepo_c.
"""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field

# Debian's own packages. createrepo-c and rpm build the repositories, the others are what a host of EL has.
TOOLS = ("dnf", "python3-dnf", "dnf-plugins-core", "rpm", "createrepo-c", "gnupg")

# As the machine's rpm is told to sign and to build: nothing is worked out from the files, compressed or stripped.
MACROS = """\
%_topdir /root/rpmbuild
%debug_package %{nil}
%_build_id_links none
%__os_install_post %{nil}
%_binary_payload w0.gzdio
%_gpg_path /root/.gnupg
"""


@dataclass
class Package:
    """A package: files by absolute path, scripts by their section (post, preun …), relations as in a spec file."""

    name: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    release: str = "1.el9"
    epoch: int = 0
    architecture: str = "x86_64"

    @property
    def nevra(self) -> str:
        """As the metadata of a module names it."""
        return f"{self.name}-{self.epoch}:{self.version}-{self.release}.{self.architecture}"

    def spec(self) -> str:
        """A spec file. A file whose content begins with #! is executable."""
        head = {
            "Name": self.name,
            "Version": self.version,
            "Release": self.release,
            "Epoch": str(self.epoch),
            "Summary": f"Stand-in for {self.name}, made by a test of baremetal.gpu",
            "License": "GPL-3.0-or-later",
            # Of the machine that builds: what is inside is text in any case.
            "AutoReqProv": "no",
        }
        lines = [f"{name}: {value}" for name, value in head.items() if (name, value) != ("Epoch", "0")]
        if self.architecture == "noarch":
            lines.append("BuildArch: noarch")
        for word in ("requires", "provides", "conflicts"):
            lines += [f"{word.capitalize()}: {relation}" for relation in getattr(self, word)]
        lines += ["%description", "A stand-in.", "%install"]
        for path in self.directories:
            lines.append(f"mkdir -p '%{{buildroot}}{path}'")
        for path, text in self.files.items():
            coded = base64.b64encode(text.encode()).decode()
            lines.append(f"mkdir -p \"$(dirname '%{{buildroot}}{path}')\"")
            lines.append(f"echo {coded} | base64 -d > '%{{buildroot}}{path}'")
            lines.append(f"chmod {'755' if text.startswith('#!') else '644'} '%{{buildroot}}{path}'")
        for path, goal in self.links.items():
            lines.append(f"mkdir -p \"$(dirname '%{{buildroot}}{path}')\"; ln -s '{goal}' '%{{buildroot}}{path}'")
        for section, text in self.scripts.items():
            lines += [f"%{section}", text.strip()]
        lines.append("%files")
        lines += [f"%dir {path}" for path in self.directories]
        lines += [*self.files, *self.links]
        return "\n".join(lines) + "\n"


@dataclass
class Module:
    """A stream of a module, which hides packages of the same names that are not in it."""

    name: str
    stream: str
    packages: tuple[Package, ...]

    def document(self) -> str:
        artifacts = "".join(f"      - {package.nevra}\n" for package in self.packages)
        return (
            "---\ndocument: modulemd\nversion: 2\ndata:\n"
            f"  name: {self.name}\n  stream: '{self.stream}'\n  version: 20240101000000\n  context: standin1\n"
            "  arch: x86_64\n  summary: Stand-in\n  description: Stand-in made by a test of baremetal.gpu\n"
            "  license:\n    module: [GPL-3.0-or-later]\n"
            f"  artifacts:\n    rpms:\n{artifacts}...\n"
        )


class Workshop:
    """What is to be built below a directory of the machine: repositories by name, each signed by a key by name."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files: dict[str, str] = {"macros": MACROS}
        self._steps: list[str] = []
        self._keys: set[str] = set()

    def repository(
        self, name: str, packages: Iterable[Package], key: str, *, claims: str = "", modules: Iterable[Module] = ()
    ) -> None:
        """A repository with its key as key.asc beside it; `claims` names another key than the one it signs with."""
        packages, modules = list(packages), list(modules)
        packages += [one for module in modules for one in module.packages if one not in packages]
        for number, package in enumerate(packages):
            self._files[f"{name}/{number:03}.spec"] = package.spec()
        for one in filter(None, (key, claims)):
            if one not in self._keys:
                self._keys.add(one)
                self._steps.append(
                    f"gpg --batch --quiet --passphrase '' --quick-generate-key '{one} <nobody@example.com>'"
                    " rsa2048 sign never"
                )
        place = f"{self.directory}/{name}"
        self._steps += [
            f"mkdir -p {place}",
            # One by one: rpmbuild takes the architecture of one spec file along to the next.
            f"for spec in {name}/*.spec; do rpmbuild -bb --quiet --define '_rpmdir {place}'"
            " --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' $spec; done",
            f"rpmsign --define '_gpg_name {key}' --addsign {place}/*.rpm >/dev/null",
            f"createrepo_c --quiet {place}",
            f"gpg --batch --quiet --armor --export '{claims or key}' > {place}/key.asc",
        ]
        if modules:
            self._files[f"{name}/modules.yaml"] = "".join(module.document() for module in modules)
            self._steps.append(f"modifyrepo_c --mdtype=modules {name}/modules.yaml {place}/repodata >/dev/null")

    def archive(self) -> bytes:
        """A tar archive with everything and the script `build`, which builds it as root."""
        script = '#!/bin/bash\nset -euo pipefail\ncd "$(dirname "$0")"\ncp macros /root/.rpmmacros\n'
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name, text in {**self._files, "build": script + "\n".join(self._steps) + "\n"}.items():
                data = text.encode()
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o755 if name == "build" else 0o644
                archive.addfile(member, io.BytesIO(data))
        return content.getvalue()
