# SPDX-License-Identifier: GPL-3.0-or-later
"""The site that a command is about: its inventory, and where gpuops keeps what it remembers of it."""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpuops.site import secrecy

REMEMBERED = ".gpuops"

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


def settings(config: Path | None, section: str = "defaults") -> dict[str, str]:
    """A section of an ansible.cfg; empty where there is none or it cannot be read."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    try:
        parser.read([config] if config else [])
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}


def secrets(site: Site, words: Sequence[str] = (), typed: Iterable[str] = (), playbook: str = "") -> set[str]:
    """Texts that nobody is to read on a screen or in a file.

    :param words: further options for Ansible's commands, which may name passwords and variables.
    :param typed: passwords that somebody has typed.
    :param playbook: a file with variables beside it, or a name of a collection's.
    """
    config = config_file()
    return secrecy.gather(site.inventory, config, settings(config), words, typed, playbook)


def redactor(site: Site, words: Sequence[str] = (), typed: Iterable[str] = ()) -> secrecy.Redactor:
    """What takes the secrets of a site out of texts."""
    return secrecy.Redactor(secrets(site, words, typed))
