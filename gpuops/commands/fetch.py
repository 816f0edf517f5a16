# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops manifest and gpuops fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from gpuops.fetch import debian, downloads, wheels
from gpuops.fetch import manifest as manifests
from gpuops.image import build as builds
from gpuops.image import programs, recipe, registry
from gpuops.site import InventoryOption, SiteError, find, redactor


def manifest(
    inventory: InventoryOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("manifest.json"),
    extra_vars: Annotated[list[str] | None, typer.Option("--extra-vars", "-e", help="As in ansible-playbook.")] = None,
    image: Annotated[
        list[str] | None, typer.Option("--image", help="An image of the catalogue too, such as notebook; repeatable.")
    ] = None,
    images: Annotated[
        Path, typer.Option("--images", exists=True, file_okay=False, help="Directory of definitions of images.")
    ] = recipe.DIRECTORY,
) -> None:
    """Note everything that the hosts of an inventory have yet to install. Changes nothing on them.

    Examples:

      gpuops manifest

      gpuops manifest --inventory inventories/mysite --output manifest.json

      gpuops manifest --image notebook --image pytorch-cuda
    """
    try:
        site = find(inventory)
        site.refuse_inside(output)
        wanted = [recipe.published(images, name) for name in image or []]
        words = [part for word in extra_vars or [] for part in ("-e", word)]
        found = manifests.from_inventory(site.inventory, extra_vars or [], redactor(site, words).document)
        found.images = [manifests.Image(one.published, one.key[: recipe.SHORT]) for one in wanted]
        found.check()
    except (Refused, SiteError, manifests.ManifestError) as error:
        raise SystemExit(f"gpuops manifest: {error}") from error
    try:
        output.write_text(found.dump(), encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"gpuops manifest: {output} cannot be written: {error.strerror}") from error
    for release in found.releases:
        typer.echo(f"{release.name}: {len(release.packages)} packages named by the roles")
    typer.echo(f"{len(found.hosts)} hosts, {len(found.downloads)} files by URL, {len(found.wheels)} wheels: {output}")


def fetch(
    manifest_file: Annotated[Path, typer.Argument(metavar="MANIFEST", exists=True, help="Written by gpuops manifest.")],
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The mirror; made if it is not there.")],
    archive: Annotated[str, typer.Option(help="URI of the archive of the distribution.")],
    security: Annotated[str, typer.Option(help="URI of its archive of security updates.")] = "",
    proxy: Annotated[str, typer.Option(help="Proxy for apt.")] = "",
) -> None:
    """Fill a mirror from a manifest, on a machine that reaches the archives. What is there is not fetched again.

    Examples:

      gpuops fetch manifest.json mirror
    """
    try:
        debian.need_tools()
        content = manifests.load(manifest_file)
        for release in content.releases:
            if not release.is_debian:
                typer.echo(f"{release.name}: not fetched; dnf reposync makes a mirror of its repositories", err=True)
                continue
            sources = [(archive, [release.codename, f"{release.codename}-updates"])]
            if security:
                sources.append((security, [f"{release.codename}-security"]))
            count = debian.fetch(release, sources, directory / release.name, proxy)
            typer.echo(f"{release.name}: {count} packages")
        for row in content.downloads:
            typer.echo(downloads.fetch(row, directory / "files"))
        if content.images:
            programs.need({**programs.MOVERS, "buildah": "buildah"}, root=True)
        for image in content.images:
            local = f"{recipe.LOCAL}/{image.name}:{image.key}"
            if not builds.inspect(local):
                name, _hyphen, variant = image.name.rpartition("-")
                words = f"{name} --variant {variant}" if variant in image_catalogue.VARIANTS else image.name
                raise Refused(f"{local} is not there", f"build it here: gpuops image build {words}")
            typer.echo(registry.archive(local, directory / "images" / image.file))
        if content.wheels:
            typer.echo(f"wheels: {wheels.fetch(content.wheels, directory / 'wheels')} files")
    except (Refused, manifests.ManifestError) as error:
        raise SystemExit(f"gpuops fetch: {error}") from error
