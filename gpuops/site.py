# SPDX-License-Identifier: GPL-3.0-or-later
"""The site that a command is about: its inventory, and where gpuops keeps what it remembers of it."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

REMEMBERED = ".gpuops"
SECRETS = ".secrets"

InventoryOption = Annotated[
    Path | None,
    typer.Option("--inventory", "-i", help="The site's inventory; the one that ansible.cfg names if left out."),
]


class SiteError(Exception):
    """There is no usable site; the text says what to do."""


@dataclass(frozen=True)
class Site:
    """A site by its inventory, an absolute path.

    Ansible passes over hidden entries of an inventory directory, so what gpuops remembers lies in one.
    """

    inventory: Path

    @property
    def directory(self) -> Path:
        return self.inventory if self.inventory.is_dir() else self.inventory.parent

    @property
    def remembered(self) -> Path:
        return self.directory / REMEMBERED

    def refuse_inside(self, path: Path) -> None:
        """Raises SiteError for a file that Ansible would read as inventory from then on."""
        place = path.resolve()
        if not self.inventory.is_dir() or not place.is_relative_to(self.inventory):
            return
        if not any(part.startswith(".") for part in place.relative_to(self.inventory).parts):
            raise SiteError(
                f"{path} would be in the inventory's directory {self.inventory}, and Ansible would read it as "
                "inventory. Give --output with a place elsewhere"
            )


def find(given: Path | None) -> Site:
    """The site of an option, of ANSIBLE_INVENTORY or of ansible.cfg here. Raises SiteError."""
    if given is None:
        given = _configured()
    if given is None:
        raise SiteError(
            "no inventory is named. Give --inventory DIRECTORY, or call gpuops in a directory whose ansible.cfg has "
            "`inventory` in its section [defaults], such as one that `gpuops init` made"
        )
    if not given.exists():
        raise SiteError(f"the inventory {given} does not exist. Make one with `gpuops init DIRECTORY`")
    return Site(given.resolve())


def _configured() -> Path | None:
    if os.environ.get("ANSIBLE_INVENTORY"):
        return Path(os.environ["ANSIBLE_INVENTORY"])
    config = config_file()
    named = settings(config).get("inventory")
    if config is None or not named:
        return None
    return (config.parent / Path(named).expanduser()).resolve()


def config_file() -> Path | None:
    """The ansible.cfg that holds here, as far as gpuops looks: that of ANSIBLE_CONFIG, or the one in this directory."""
    path = Path(os.environ.get("ANSIBLE_CONFIG") or "ansible.cfg")
    return path.resolve() if path.is_file() else None


def settings(config: Path | None) -> dict[str, str]:
    """The section [defaults] of an ansible.cfg; empty where there is none or it cannot be read."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    try:
        parser.read([config] if config else [])
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser["defaults"]) if parser.has_section("defaults") else {}


def secrets(site: Site) -> set[str]:
    """Texts that nobody is to read in a log: the values of the files of secrets beside the inventory, and of its vault
    where its password is in a file. Short ones are left out, since they would black out whole words."""
    found: set[str] = set()
    for path in sorted(site.directory.glob(f"{SECRETS}/*")):
        found.update(_values(_read(path)))
    password_file = settings(config_file()).get("vault_password_file")
    config = config_file()
    if password_file and config:
        password = _read(config.parent / Path(password_file).expanduser())
        if isinstance(password, str) and password.strip():
            found.add(password.strip())
            for path in sorted(site.directory.glob("group_vars/**/*vault*")):
                found.update(_values(_decrypted(path, password.strip())))
    return {text for text in found if len(text) >= 8}


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _decrypted(path: Path, password: str) -> Any:
    import yaml
    from ansible.errors import AnsibleError
    from ansible.parsing.vault import VaultLib, VaultSecret, is_encrypted

    try:
        data = path.read_bytes()
        if is_encrypted(data):
            data = VaultLib([("default", VaultSecret(password.encode()))]).decrypt(data)
        return yaml.safe_load(data)
    except (OSError, AnsibleError, yaml.YAMLError):
        return None


def _values(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield from (line.strip() for line in content.splitlines())
    elif isinstance(content, dict):
        for key, value in content.items():
            # The UUID of a cluster is no secret, and whoever reads an error needs it.
            if not str(key).endswith("fsid"):
                yield from _values(value)
    elif isinstance(content, list):
        for value in content:
            yield from _values(value)
