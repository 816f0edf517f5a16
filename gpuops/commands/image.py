# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops image``: the images that people start from."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from gpuops.image import build as builds
from gpuops.image import programs, recipe, registry, site_catalogue, sources
from gpuops.inventory.snapshot import InventoryError, content_of
from gpuops.site import InventoryOption, Site, SiteError, find

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Build, push and distribute the images that people start from, and keep sessions as images.",
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuops" / "images"

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="An image of the catalogue.")]
ImagesOption = Annotated[
    Path, typer.Option("--images", exists=True, file_okay=False, help="Directory of definitions, with a catalogue.yml.")
]
VariantOption = Annotated[
    str, typer.Option("--variant", help="cpu or cuda, of an image that has both; cpu if left out.")
]
RegistryOption = Annotated[str, typer.Option("--registry", help="HOST:PORT of another registry than the inventory's.")]


@contextlib.contextmanager
def _refusals(command: str) -> Iterator[None]:
    """What was refused or failed, in a sentence and without a traceback."""
    try:
        yield
    except (Refused, SiteError, InventoryError) as why:
        raise SystemExit(f"gpuops image {command}: {why}") from why


def _definition(images: Path, name: str, variant: str, user: recipe.User | None = None) -> recipe.Definition:
    if variant not in image_catalogue.VARIANTS:
        raise Refused(f"there is no variant {variant!r}", f"give {' or '.join(image_catalogue.VARIANTS)}")
    return recipe.definition(images, name, variant, user or recipe.User())


def _user(given: str) -> recipe.User:
    """NAME:UID:GID."""
    if not given:
        return recipe.User()
    words = given.split(":")
    if len(words) != 3 or not words[1].isdecimal() or not words[2].isdecimal():
        raise Refused(f"--user is {given!r}", "give NAME:UID:GID, such as user:1000:1000")
    return recipe.User(words[0], int(words[1]), int(words[2]))


def _registry(site: Site, address: str) -> registry.Registry:
    return registry.of_inventory(site, content_of(site.inventory), address)


@app.command("build")
def build(
    name: NameArgument,
    variant: VariantOption = "cpu",
    images: ImagesOption = recipe.DIRECTORY,
    user: Annotated[str, typer.Option("--user", help="NAME:UID:GID of the account in the image.")] = "",
    mirror: Annotated[str, typer.Option("--mirror", help="Mirror of Debian; that of apt's sources if left out.")] = "",
    security: Annotated[str, typer.Option("--security", help="Mirror of Debian's updates for security.")] = "",
    relock: Annotated[
        bool, typer.Option("--relock", help="Write the locks of this image anew, of what there is now.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Build also what is there, and what it is from.")] = False,
    cache: Annotated[Path, typer.Option("--cache", help="Directory for wheels and the log.")] = CACHE,
    sbom: Annotated[Path | None, typer.Option("--sbom", help="File for the list of what is in the image.")] = None,
) -> None:
    """Build an image and those that it is from. What is there already is not built again.

    Everything comes from the mirrors of this machine's apt and pip, and is
    held against the locks of the image.

    Examples:

      sudo gpuops image build notebook

      sudo gpuops image build pytorch --variant cuda
    """
    with _refusals("build"):
        programs.need(programs.BUILDERS, root=True)
        definition = _definition(images, name, variant, _user(user))
        builder = builds.Builder(
            sources.debian(mirror, security), cache.resolve(), typer.echo, name if relock else "", again
        )
        identity = builder.build(definition)
        if sbom:
            sbom.write_text(builds.sbom(definition.local, definition.name), encoding="utf-8")
        typer.echo(f"{definition.local} {identity}")


@app.command("push")
def push(
    name: NameArgument,
    variant: VariantOption = "cpu",
    images: ImagesOption = recipe.DIRECTORY,
    inventory: InventoryOption = None,
    registry_address: RegistryOption = "",
) -> None:
    """Push an image that was built here to the site's registry, and note its digest in the site's catalogue.

    A push that was cut goes on when it is called again.

    Examples:

      sudo gpuops image push notebook
    """
    with _refusals("push"):
        programs.need({**programs.MOVERS, "buildah": "buildah"}, root=True)
        site = find(inventory)
        definition = _definition(images, name, variant)
        there = _registry(site, registry_address)
        rows = site_catalogue.read(site)
        here = builds.inspect(definition.local)
        if not here:
            raise Refused(f"{definition.local} is not there", f"build it: gpuops image build {name}")
        repository = there.repository(definition.published)
        tags = (definition.local.rpartition(":")[2], "latest")
        digest = there.push(f"containers-storage:{definition.local}", repository, tags)
        row = {
            "name": definition.published,
            "description": definition.row.get("description", ""),
            "reference": repository,
            "digest": digest,
            "needs": dict(definition.needs),
        }
        path = site_catalogue.write(site, site_catalogue.with_row(rows, row))
        typer.echo(f"{repository}@{digest}")
        typer.echo(f"noted in {path}")


@app.command("list")
def list_command(
    inventory: InventoryOption = None,
    images: ImagesOption = recipe.DIRECTORY,
    check: Annotated[bool, typer.Option("--check", help="Ask the registry whether it has them.")] = False,
    registry_address: RegistryOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List the images that the site has pushed, and those that it could build.

    Examples:

      gpuops image list

      gpuops image list --check
    """
    with _refusals("list"):
        site = find(inventory)
        rows: list[dict[str, Any]] = site_catalogue.read(site)
        if check:
            programs.need(programs.MOVERS)
            there = _registry(site, registry_address)
            for row in rows:
                row["in_registry"] = there.digest(image_catalogue.exact(row)) == row["digest"]
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
            return
        for row in rows:
            needs = ", ".join(f"{key} {version}" for key, version in row.get("needs", {}).items())
            typer.echo(f"{row['name']}: {row.get('description', '')}")
            typer.echo(f"  {image_catalogue.exact(row)}")
            if needs:
                typer.echo(f"  needs {needs}")
            if row.get("in_registry") is False:
                typer.echo("  the registry does not have it; push it again")
        for row in recipe.load(images)["images"]:
            for variant in row.get("variants") or [""]:
                published = f"{row['name']}-{variant}" if variant else row["name"]
                if published not in {one["name"] for one in rows}:
                    typer.echo(f"{published}: not pushed; {row.get('description', '')}")
        if check and not all(row["in_registry"] for row in rows):
            raise typer.Exit(1)
