# SPDX-License-Identifier: GPL-3.0-or-later
"""Build Debian packages and a signed apt repository of them, with dpkg-deb and gpg only."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# The same content gives the same packages, so that a cache in between is never wrong.
EPOCH = 1700000000


@dataclass
class Package:
    """A package: fields of its control file, files by absolute path, maintainer scripts by name.

    :ivar files: text, or the path of a program.
    """

    name: str
    version: str
    files: dict[str, str | Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    depends: str = ""
    recommends: str = ""
    provides: str = ""
    conflicts: str = ""
    replaces: str = ""
    description: str = "stand-in made by a test"
    architecture: str = "amd64"
    maintainer: str = "tests of baremetal.gpu <nobody@example.com>"

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"

    def control(self) -> str:
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": self.maintainer,
            "Depends": self.depends,
            "Recommends": self.recommends,
            "Provides": self.provides,
            "Conflicts": self.conflicts,
            "Replaces": self.replaces,
            "Section": "misc",
            "Priority": "optional",
            "Description": self.description,
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def build_package(package: Package, directory: Path) -> Path:
    """Build a package into a directory. A program and a file whose content begins with #! are executable."""
    target = directory / package.file_name
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        control = root / "DEBIAN"
        control.mkdir(parents=True)
        (control / "control").write_text(package.control())
        for name, text in package.scripts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o755)
        # As dpkg finds them in any package.
        if conffiles := [path for path in package.files if path.startswith("/etc/")]:
            (control / "conffiles").write_text("".join(f"{path}\n" for path in conffiles))
        for path, content in package.files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, place)
            else:
                place.write_text(content)
            place.chmod(0o755 if isinstance(content, Path) or content.startswith("#!") else 0o644)
        for path, goal in package.links.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(goal)
        # Whatever the mask of this process is: dpkg-deb wants it for its own directory, and hosts for theirs.
        for place in (root, *root.rglob("*")):
            if place.is_dir() and not place.is_symlink():
                place.chmod(0o755)
        subprocess.run(
            # Programs of 100 MB are packed in a second.
            ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", root, target],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
            check=True,
            capture_output=True,
        )
    return target


class Key:
    """A signing key of the test's own. `public` is the armoured public key, as repositories publish it."""

    def __init__(self, directory: Path, name: str = "Stand-in repository") -> None:
        self.home = directory / "gnupg"
        self.home.mkdir(parents=True, mode=0o700)
        self._gpg(
            "--quick-generate-key", "--passphrase", "", f"{name} <nobody@example.com>", "ed25519", "sign", "never"
        )
        self.public = self._gpg("--armor", "--export")

    def _gpg(self, *arguments: str, text: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", self.home, "--batch", "--quiet", "--pinentry-mode", "loopback", *arguments]
        return subprocess.run(command, input=text, check=True, capture_output=True).stdout

    def clearsign(self, text: bytes) -> bytes:
        return self._gpg("--clearsign", "--digest-algo", "SHA256", text=text)

    def detach(self, text: bytes) -> bytes:
        return self._gpg("--armor", "--detach-sign", "--digest-algo", "SHA256", text=text)

    def close(self) -> None:
        """End the agent that gpg has started, and forget the key."""
        subprocess.run(["gpgconf", "--homedir", self.home, "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.public).hexdigest()


def build_repository(directory: Path, packages: Iterable[Package], key: Key | None) -> None:
    """A flat repository, like NVIDIA's: packages, Packages, Release and InRelease in one directory, key.asc beside."""
    directory.mkdir(parents=True, exist_ok=True)
    index = ""
    for package in packages:
        content = build_package(package, directory).read_bytes()
        index += package.control() + (
            f"Filename: ./{package.file_name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        )
    files = {"Packages": index.encode(), "Packages.gz": gzip.compress(index.encode(), mtime=EPOCH)}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    sums = "".join(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n" for name, content in files.items())
    release = (
        "Origin: stand-in\nLabel: stand-in\nSuite: stable\nArchitectures: amd64 all\n"
        f"Date: Tue, 14 Nov 2023 22:13:20 UTC\nSHA256:\n{sums}"
    ).encode()
    (directory / "Release").write_bytes(release)
    if key:
        (directory / "InRelease").write_bytes(key.clearsign(release))
        (directory / "Release.gpg").write_bytes(key.detach(release))
        (directory / "key.asc").write_bytes(key.public)
