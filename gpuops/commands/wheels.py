# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels of the portal, which a run needs on the controller and fetches where that has a way out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from gpuops.fetch import wheels
from gpuops.fetch.manifest import ManifestError
from gpuops.run import listing, playbooks
from gpuops.run.listing import Listing
from gpuops.site import Site, SiteError

PORTAL_TAG = "portal"


def listed(site: Site, playbook: str, words: Sequence[str]) -> Listing | None:
    """The inventory of a run of the whole site. What keeps it from being read, Ansible tells in the run itself."""
    try:
        return listing.read(site, words) if playbook == playbooks.SITE else None
    except SiteError:
        return None


def bring(command: str, site: Site, inventory: Listing | None, tags: str) -> None:
    """Fetch what is missing. Where that is not possible, it is told, and the run refuses the portal before any change.

    A place that the inventory names is the operator's own, and stays as it is.
    """
    rows = [inventory.of(host) for host in inventory.hosts("portals")] if inventory else []
    kept = any("portal_wheelhouse" in row or row.get("portal_state") == "absent" for row in rows)
    if not rows or kept or (tags and PORTAL_TAG not in tags.split(",")):
        return
    place = site.directory / ".wheels"
    is_terminal = sys.stderr.isatty()
    seen: list[int] = []

    def told(done: int, of: int) -> None:
        if is_terminal or not seen:
            text = f"fetching the wheels of the portal, once: {done} of {of}"
            typer.echo(f"\r{text}" if is_terminal else text, err=True, nl=not is_terminal)
        seen.append(done)

    try:
        count = wheels.fetch(wheels.every(), place, told=told)
    except (ManifestError, OSError) as failure:
        text = f"gpuops {command}: the wheels of the portal cannot be fetched: {failure}"
        typer.echo(f"{chr(10) if is_terminal and seen else ''}{text}\ndocs/air-gapped.md has the way without", err=True)
        return
    if seen:
        typer.echo(f"{chr(13) if is_terminal else ''}{count} wheels of the portal are in {place}", err=True)
