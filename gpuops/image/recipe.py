# SPDX-License-Identifier: GPL-3.0-or-later
"""The definitions of images: a directory with a catalogue, and for each image what it is built of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host import errors
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates

DIRECTORY = templates.ROLES.parent / "images"
CATALOGUE = "catalogue.yml"
SCHEMA = 1
# Where the machine that builds has images, and how much of a key is in their names.
LOCAL, SHORT = "localhost/catalogue", 16
# What builds read where their Containerfile names it, and what all of them do.
SHARED = ("finish", "install-debian", "install-python", "sbom.py")
ALWAYS = ("finish", "sbom.py")
ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,30}", re.ASCII)
SUITE = re.compile(r"[a-z]+", re.ASCII)


@dataclass(frozen=True)
class User:
    """The account of an image, which a container has if it is given no other."""

    name: str = "user"
    uid: int = 1000
    gid: int = 1000

    def __post_init__(self) -> None:
        if not ACCOUNT.fullmatch(self.name) or self.name == "root":
            raise Refused(f"the user {self.name!r} of an image is refused", "give the name of a person's account")
        if not (0 < self.uid < 2**31 and 0 < self.gid < 2**31):
            raise Refused(f"the user has the numbers {self.uid} and {self.gid}", "give numbers from 1 on")


@dataclass(frozen=True)
class Definition:
    """An image, with all that decides what is in it."""

    directory: Path
    row: Mapping[str, Any]
    suite: str
    epoch: int
    variant: str
    user: User
    parent: Definition | None

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def own(self) -> Path:
        return self.directory / self.name

    @property
    def published(self) -> str:
        """Its name in the registry and in the site's catalogue."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def local(self) -> str:
        """Its name in the storage of the machine that builds; another definition has another."""
        return f"{LOCAL}/{self.published}:{self.key[:SHORT]}"

    @property
    def python_wanted(self) -> Path | None:
        """What it wants of Python, of the variant or of all; None where it wants nothing."""
        return self._wanted("python")

    @property
    def python_lock(self) -> Path | None:
        return self.python_wanted and self.python_wanted.with_suffix(".lock")

    @property
    def debian_wanted(self) -> Path | None:
        """What it wants of Debian, of the variant or of all; None where it wants nothing."""
        return self._wanted("debian")

    @property
    def debian_lock(self) -> Path | None:
        return self.debian_wanted and self.debian_wanted.with_suffix(".lock")

    @property
    def needs(self) -> Mapping[str, str]:
        """What a node must have; without CUDA nothing."""
        needs: Mapping[str, str] = self.row.get("needs", {})
        return {} if self.variant == "cpu" else needs

    def _wanted(self, kind: str) -> Path | None:
        for name in (f"{kind}-{self.variant}.in", f"{kind}.in"):
            if (self.own / name).exists():
                return self.own / name
        return None

    @property
    def key(self) -> str:
        """Says whether an image is of this definition: a digest of everything that goes into it."""
        found = hashlib.sha256()
        settings = [self.suite, self.epoch, self.variant, self.user.__dict__, self.parent.key if self.parent else ""]
        found.update(json.dumps(settings).encode())
        recipe = (self.own / "Containerfile").read_text(encoding="utf-8")
        shared = [name for name in SHARED if name in recipe or name in ALWAYS]
        files = [self.directory / name for name in shared] + sorted(self.own.rglob("*"))
        for path in files:
            if path.is_file():
                found.update(f"{path.relative_to(self.directory)}\0".encode() + path.read_bytes() + b"\0")
        return found.hexdigest()


def load(directory: Path) -> dict[str, Any]:
    """The catalogue of a directory of definitions, checked. Raises Refused, which names all that is wrong."""
    path = directory / CATALOGUE
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(f"{path} cannot be read: {error}", "give --images with a directory of definitions") from error
    found = _problems(document)
    if found:
        raise Refused(f"{path}: {errors.text(found)}", code="invalid_image_catalogue")
    return dict(document)


def _problems(document: Any) -> list[Problem]:
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        return [
            Problem(
                "invalid_image_catalogue",
                CATALOGUE,
                f"it has not the schema {SCHEMA}",
                "",
                f"give `schema: {SCHEMA}`, and then `release` and `images`",
            )
        ]
    found = image_catalogue.problems(document.get("images"), required=("name",))
    release = document.get("release")
    release = release if isinstance(release, Mapping) else {}
    if not SUITE.fullmatch(str(release.get("suite"))) or not isinstance(release.get("epoch"), int):
        cause = "its release has no suite of Debian, or no epoch in seconds"
        found.append(Problem("invalid_image_catalogue", CATALOGUE, cause, "", "give suite and epoch"))
    if found:
        return found
    names = [row["name"] for row in document["images"]]
    for number, row in enumerate(document["images"]):
        if row.get("from") not in ("", None, *names[:number]):
            cause, remedy = "it is from no image before it", f"give one of {', '.join(names[:number]) or 'none'}"
            found.append(Problem("invalid_image_catalogue", f"image {row['name']}", cause, str(row["from"]), remedy))
        if not isinstance(row.get("variants", []), list) or set(row.get("variants", [])) - set(
            image_catalogue.VARIANTS
        ):
            cause, remedy = "its variants are not right", f"give some of {', '.join(image_catalogue.VARIANTS)}"
            found.append(Problem("invalid_image_catalogue", f"image {row['name']}", cause, "", remedy))
    return found


def definition(directory: Path, name: str, variant: str, user: User) -> Definition:
    """An image of a directory of definitions, with its parents. Raises Refused."""
    catalogue = load(directory)
    rows = {row["name"]: row for row in catalogue["images"]}
    if name not in rows:
        raise Refused(f"there is no image {name!r} in {directory}", f"take one of {', '.join(rows)}")

    directory = directory.resolve()

    def made(row: Mapping[str, Any]) -> Definition:
        parent = row.get("from")
        return Definition(
            directory,
            row,
            catalogue["release"]["suite"],
            catalogue["release"]["epoch"],
            variant if row.get("variants") else "",
            user,
            made(rows[parent]) if parent else None,
        )

    return made(rows[name])


def published(directory: Path, name: str) -> Definition:
    """An image by its name in a site's catalogue, such as pytorch-cuda. Raises Refused."""
    names = {row["name"]: row for row in load(directory)["images"]}
    image, _hyphen, variant = name.rpartition("-")
    if image in names and variant in names[image].get("variants", []):
        return definition(directory, image, variant, User())
    if name in names and names[name].get("variants"):
        variants = ", ".join(f"{name}-{variant}" for variant in names[name]["variants"])
        raise Refused(f"the image {name} has variants", f"take one of {variants}")
    return definition(directory, name, "cpu", User())
