# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an image: Debian by mmdebstrap, the layers above it by buildah, all of it held against the image's locks."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document

from . import locks, programs, sources
from .recipe import LOCAL, Definition

# The rights of the machine suffice for chroot; there is no network, cgroup or namespace to set up.
ISOLATION = "--isolation=chroot"
Say = Callable[[str], None]


@dataclass
class Builder:
    """:ivar cache: where wheels are kept, and the log of builds.
    :ivar relock: the image whose locks are written anew, and not held against what there is; empty for none.
    :ivar again: build also what is there.
    """

    mirrors: sources.Debian
    cache: Path
    say: Say
    relock: str = ""
    again: bool = False
    built: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.cache / "build.log"

    def build(self, image: Definition) -> str:
        """The id of the image, built now if there is none of this very definition. Raises Refused."""
        if image.name in self.built:
            return self.built[image.name]
        parent = self.build(image.parent) if image.parent else ""
        relocked = image.name == self.relock
        if relocked:
            self._lock_python(image, parent)
        here = {} if self.again or relocked else inspect(image.local)
        if here:
            self.say(f"{image.name}: is there")
            self.built[image.name] = str(here["id"])
        else:
            self._need_locks(image)
            self.say(f"{image.name}: building (log: {self.log})")
            self.built[image.name] = self._build(image, parent)
        return self.built[image.name]

    def _need_locks(self, image: Definition) -> None:
        missing = [path for path in (image.debian_lock, image.python_lock) if path and not path.exists()]
        if missing and image.name != self.relock:
            raise Refused(
                f"{image.name} has no {missing[0]}, which pins what is in it",
                "build it with --relock on a machine whose settings of apt and pip lead to what it wants",
                code="no_image_lock",
            )

    def _build(self, image: Definition, parent: str) -> str:
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpuops-image-", dir=self.cache) as scratch:
            work = Path(scratch)
            context = work / "context"
            shutil.copytree(image.own, context)
            if image.parent is None:
                self._debian(image, context / "rootfs.tar")
            words = self._mounts(image, work)
            self._fetch_wheels(image, parent, words)
            arguments = {
                "SOURCE_DATE_EPOCH": str(image.epoch),
                "VARIANT": image.variant,
                **({"PARENT": parent} if parent else {}),
                **(
                    {}
                    if image.parent
                    else {
                        "USER_NAME": image.user.name,
                        "USER_UID": str(image.user.uid),
                        "USER_GID": str(image.user.gid),
                    }
                ),
            }
            candidate = f"{LOCAL}/{image.published}:candidate"
            programs.run(
                "buildah",
                "build",
                ISOLATION,
                "--pull=never",
                "--no-cache",
                f"--timestamp={image.epoch}",
                f"--label=org.opencontainers.image.title={image.name}",
                *(f"--build-arg={name}={value}" for name, value in arguments.items()),
                *words,
                f"--file={context / 'Containerfile'}",
                f"--tag={candidate}",
                context,
                what=f"building {image.name}",
                log=self.log,
            )
            found = contents(candidate, image.name)
            self._hold_against_lock(image, parent, found)
            # The lock, which may be new, is part of the name.
            programs.run("buildah", "tag", candidate, image.local, what=f"naming {image.name}")
            programs.run("buildah", "rmi", candidate, what=f"naming {image.name}")
        return str(inspect(image.local)["id"])

    def _debian(self, image: Definition, target: Path) -> None:
        """Debian's own part: packages from the mirrors, and nothing of the mirrors or of this machine in it."""
        hooks = (
            # Whoever starts a container gets keys of its own, and names mirrors of their own.
            'rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/apt/sources.list" "$1/etc/apt/apt.conf.d/99mmdebstrap"',
            f'mkdir -p "$1{sources.MOUNT}"',
        )
        options = [f"--aptopt={line}" for line in self.mirrors.options]
        programs.run(
            "mmdebstrap",
            "--mode=root",
            "--variant=apt",
            f"--include={','.join(locks.wanted(image.own / 'debian.in'))}",
            '--aptopt=APT::Install-Recommends "false"',
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            *options,
            *(f"--customize-hook={hook}" for hook in hooks),
            image.suite,
            target,
            "-",
            given=self.mirrors.lines(image.suite, signed=True),
            what=f"making Debian {image.suite}",
            environment={"SOURCE_DATE_EPOCH": str(image.epoch)},
            log=self.log,
        )

    def _mounts(self, image: Definition, work: Path) -> list[str]:
        """Options that mount the recipe, the settings of this machine and the wheels below one directory."""
        further = sources.write_settings(work / "settings", self.mirrors, image.suite)
        wheels = self.cache / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        places = {
            image.directory: f"{sources.MOUNT}/recipe:ro",
            work / "settings": f"{sources.MOUNT}/settings:ro",
            wheels: f"{sources.MOUNT}/wheels",
        }
        return [f"--volume={here}:{there}" for here, there in places.items()] + [
            f"--volume={path}:{path}:ro" for path in further
        ]

    def _in(self, parent: str, mounts: list[str], *words: str, what: str) -> str:
        """Run a program in a container of the parent that is thrown away."""
        name = programs.run("buildah", "from", "--pull-never", parent, what=what).strip()
        try:
            return programs.run(
                "buildah",
                "run",
                ISOLATION,
                "--user=root",
                f"--env=PIP_CONFIG_FILE={sources.MOUNT}/settings/pip.conf",
                *mounts,
                name,
                "--",
                *words,
                what=what,
                log=self.log,
            )
        finally:
            programs.run("buildah", "rm", name, what="removing a container")

    def _fetch_wheels(self, image: Definition, parent: str, mounts: list[str]) -> None:
        """Fetch what the lock names with this machine's settings of pip. What is there is not fetched again."""
        if image.python_lock is None:
            return
        self._in(
            parent,
            mounts,
            *("python3", "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--quiet"),
            "--no-cache-dir",
            *(f"--dest={sources.MOUNT}/wheels", f"--find-links={sources.MOUNT}/wheels"),
            f"--requirement={sources.MOUNT}/recipe/{image.python_lock.relative_to(image.directory)}",
            what=f"fetching the wheels of {image.name}",
        )

    def _lock_python(self, image: Definition, parent: str) -> None:
        """Write the lock of Python's packages: the newest that go together, and with what the parents have."""
        if image.python_wanted is None or image.python_lock is None:
            return
        self.say(f"{image.name}: locking Python's packages")
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpuops-image-", dir=self.cache) as scratch:
            work = Path(scratch)
            inherited = locks.inherited_python(image)
            mounts = self._mounts(image, work)
            (work / "settings" / "inherited.txt").write_text(
                "".join(f"{name}=={version}\n" for name, version in inherited.items()), encoding="ascii"
            )
            report = self._in(
                parent,
                mounts,
                *("python3", "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report=-"),
                *("--only-binary=:all:", "--no-cache-dir", "--root-user-action=ignore", "--break-system-packages"),
                f"--constraint={sources.MOUNT}/settings/inherited.txt",
                f"--requirement={sources.MOUNT}/recipe/{image.python_wanted.relative_to(image.directory)}",
                what=f"locking {image.name}",
            )
        image.python_lock.write_text(locks.python_lock(json.loads(report), inherited), encoding="ascii")

    def _hold_against_lock(self, image: Definition, parent: str, found: Mapping[str, str]) -> None:
        """Refuse packages of Debian that are not those of the lock, or write it."""
        before = contents(parent, image.parent.name) if image.parent and parent else {}
        own = {name: version for name, version in found.items() if before.get(name) != version}
        if image.name == self.relock:
            if image.debian_lock:
                image.debian_lock.write_text(locks.debian_lock(own), encoding="ascii")
            return
        locked = locks.read_debian(image.debian_lock) if image.debian_lock else {}
        differences = locks.differences(locked, own)
        if differences:
            raise Refused(
                f"{image.name}: the mirror has other packages than {image.debian_lock or 'its parent'}: "
                f"{'; '.join(differences[:5])}" + (f" and {len(differences) - 5} more" if len(differences) > 5 else ""),
                "take a mirror of that day with --mirror, or accept what Debian has now with --relock",
                code="image_lock_differs",
            )


def inspect(reference: str) -> dict[str, Any]:
    """``id``, ``labels`` and the rest of an image in the storage here; empty where there is none."""
    try:
        told = programs.run("buildah", "inspect", "--type=image", reference, what=f"looking at {reference}")
    except Refused:
        return {}
    document = untrusted_document.mapping(untrusted_document.parse(told))
    config = untrusted_document.mapping(untrusted_document.mapping(document.get("OCIv1")).get("config"))
    return {
        "id": document.get("FromImageID", ""),
        "digest": document.get("FromImageDigest", ""),
        "labels": untrusted_document.mapping(config.get("Labels")),
    }


def sbom(reference: str, name: str) -> str:
    """The list of what is in an image, as its build wrote it: CycloneDX in JSON."""
    container = programs.run("buildah", "from", "--pull-never", reference, what=f"looking into {reference}").strip()
    try:
        root = Path(programs.run("buildah", "mount", container, what=f"looking into {reference}").strip())
        return (root / "usr/share/sbom" / f"{name}.cdx.json").read_text(encoding="utf-8")
    finally:
        programs.run("buildah", "rm", container, what="removing a container")


def contents(reference: str, name: str) -> dict[str, str]:
    """The packages of Debian in an image, with their versions."""
    return locks.debian_of_sbom(json.loads(sbom(reference, name)))
