# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops image``: the images that people start from."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import relay
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue, untrusted_document
from gpuops.commands.locked_run import run_locked
from gpuops.image import build as builds
from gpuops.image import prefetch, programs, recipe, registry, saved, site_catalogue, sources
from gpuops.inventory.snapshot import InventoryError, content_of, hosts_of
from gpuops.run import events, playbooks
from gpuops.site import InventoryOption, Site, SiteError, find

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Build, push and distribute the images that people start from, and keep sessions as images.

    Examples:

      sudo gpuops image build notebook

      sudo gpuops image push notebook

      gpuops image prefetch notebook gpu_nodes
    """,
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuops" / "images"

PORT = 5005
LOCK = ("image.lock", "gpuops image prefetch, restore or save")

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


def _registry(site: Site, address: str, user: str = "") -> registry.Registry:
    return registry.of_inventory(site, content_of(site.inventory), address, user)


def _run(
    command: str, site: Site, playbook: str, variables: Mapping[str, Any], forks: int, take: events.Take | None = None
) -> None:
    """Run a playbook with variables that nobody else reads; ends the command if a host failed."""
    with tempfile.TemporaryDirectory(prefix="gpuops-image-") as scratch:
        path = Path(scratch) / "variables.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            json.dump(variables, stream)
        outcome = run_locked(
            f"image {command}",
            site,
            False,
            LOCK,
            playbook=playbook,
            options=["-e", f"@{path}", "--forks", str(forks)],
            also=take,
        )
    if outcome.status:
        typer.echo(f"output and events: {outcome.directory}")
        raise typer.Exit(outcome.status)


def _sentence(row: Mapping[str, Any]) -> str:
    """What a host says of its part in a distribution."""
    parts = [f"{row.get('seconds')} s"]
    for name in ("fetched", "served"):
        count = untrusted_document.number(row.get(name))
        if count is not None:
            parts.append(f"{name} {count / 1e6:.0f} MB")
    return ", ".join(parts)


def _distribute(
    command: str, site: Site, there: registry.Registry, image: str, hosts: list[str], login: str, port: int = 0
) -> None:
    """Bring an image, REFERENCE@DIGEST, to hosts. Raises Refused and InventoryError.

    :param port: on which nodes serve each other; 0 for each of them to fetch from the registry by itself.
    """
    reference, _at, digest = image.partition("@")
    chosen = hosts_of(site.inventory, ",".join(hosts))[1]
    repository = reference.partition("/")[2]
    manifest, found = saved.Client(there).manifest(repository, digest)
    size = sum(blob.size for blob in relay.image_of(manifest, found).blobs)
    typer.echo(f"{image}: {size / 1e6:.0f} MB to {len(chosen)} hosts")
    certificate, key = prefetch.pair()
    told: list[str] = []

    def take(event: events.Event) -> None:
        if isinstance(event, events.HostResult) and event.succeeded and event.result.get("seconds") is not None:
            told.append(f"{event.host}: {_sentence(event.result)}")

    variables = {
        "prefetch_hosts": ",".join(chosen),
        "prefetch_image": {
            "reference": reference,
            "digest": digest,
            "manifest": base64.b64encode(manifest).decode(),
        },
        "prefetch_login": login,
        "prefetch_certificate": certificate,
        "prefetch_key": key,
        "prefetch_port": port or PORT,
        "prefetch_direct": not port,
    }
    # All at once: each serves the next while it fetches.
    _run(command, site, playbooks.PREFETCH_IMAGE, variables, len(chosen), take)
    for line in told:
        typer.echo(line)


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
    archive: Annotated[
        Path | None, typer.Option("--from", exists=True, help="A file that gpuops fetch has made of the image.")
    ] = None,
) -> None:
    """Push an image that was built here to the site's registry, and note its digest in the site's catalogue.

    A push that was cut goes on when it is called again.

    Examples:

      sudo gpuops image push notebook

      gpuops image push notebook --from mirror/images/notebook-0123456789abcdef.tar
    """
    with _refusals("push"):
        programs.need(programs.MOVERS if archive else {**programs.MOVERS, "buildah": "buildah"}, root=not archive)
        site = find(inventory)
        definition = _definition(images, name, variant)
        there = _registry(site, registry_address)
        rows = site_catalogue.read(site)
        if not archive and not builds.inspect(definition.local):
            raise Refused(
                f"{definition.local} is not there", f"build it: gpuops image build {name} --variant {variant}"
            )
        repository = there.repository(definition.published)
        tags = (definition.local.rpartition(":")[2], "latest")
        source = f"oci-archive:{archive}" if archive else f"containers-storage:{definition.local}"
        digest = there.push(source, repository, tags)
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


PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on which nodes serve each other.")]
AsOption = Annotated[str, typer.Option("--as", help="User of the registry; its password is beside the inventory.")]


@app.command("prefetch")
def prefetch_command(
    name: NameArgument,
    hosts: Annotated[list[str], typer.Argument(metavar="HOST", help="Hosts or groups of the inventory.")],
    inventory: InventoryOption = None,
    registry_address: RegistryOption = "",
    port: PortOption = PORT,
    as_user: AsOption = "",
) -> None:
    """Bring an image of the catalogue to nodes before anybody waits for it.

    Each node fetches it from the node before it and serves the next one at the
    same time, so that many nodes take little longer than one. What was fetched
    before a cut stays; call it again.

    Nodes fetch without a login, unless --as names a user of the registry.

    Examples:

      gpuops image prefetch notebook gpu_nodes
    """
    with _refusals("prefetch"):
        site = find(inventory)
        row = image_catalogue.find(site_catalogue.read(site), name)
        if row is None:
            raise Refused(f"the catalogue of the site has no image {name!r}", "see `gpuops image list`")
        there = _registry(site, registry_address, as_user)
        _distribute("prefetch", site, there, image_catalogue.exact(row), hosts, _login(there, as_user), port)


def _login(there: registry.Registry, as_user: str) -> str:
    if not as_user:
        return ""
    if not there.password:
        raise Refused(
            f"there is no password of {as_user} beside the inventory",
            "add the user to registry_users, and run `gpuops up --tags registry`",
        )
    return f"{as_user}:{there.password}"


def _of_user(given: str) -> tuple[str, str, str]:
    """USER/NAME or USER/NAME:TAG, as user, repository and tag."""
    repository, _colon, tag = given.partition(":")
    user, _slash, name = repository.partition("/")
    if not registry.USER.fullmatch(user) or not saved.NAME.fullmatch(name) or not saved.TAG.fullmatch(tag or "latest"):
        raise Refused(f"{given!r} is not the name of a user's image", "give USER/NAME or USER/NAME:TAG")
    return user, repository, tag or "latest"


@app.command("save")
def save(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host of the container.")],
    container: Annotated[str, typer.Argument(metavar="CONTAINER", help="Its name or id there.")],
    image: Annotated[str, typer.Argument(metavar="USER/NAME", help="The image, below the name of its user.")],
    inventory: InventoryOption = None,
    registry_address: RegistryOption = "",
    at_most: Annotated[int, typer.Option("--at-most", min=1, help="Largest size of what is new, in MiB.")] = 20480,
) -> None:
    """Keep what a session has changed as an image of its user.

    Of the container that is what it has written beside its mounts: homes, data
    and secrets that are mounted are not in it, nor is its environment. Files
    such as .ssh, histories of shells and all of /run, /tmp and /root stay out.
    The user's quota in the registry holds.

    Examples:

      gpuops image save node3 notebook-alice alice/lectures
    """
    with _refusals("save"):
        site = find(inventory)
        if len(hosts_of(site.inventory, host)[1]) != 1:
            raise Refused(f"{host} are several hosts", "name the one that the container runs on")
        user, repository, tag = _of_user(image)
        there = _registry(site, registry_address, user)
        _login(there, user)
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="gpuops-session-") as scratch:
            target = Path(scratch) / "layer.tar.gz"

            def take(event: events.Event) -> None:
                if isinstance(event, events.HostResult) and event.succeeded and event.result.get("diff_id"):
                    found.update(event.result)

            variables = {
                "session_host": host,
                "session_container": container,
                "session_target": str(target),
                "session_at_most": at_most,
            }
            _run("save", site, playbooks.SAVE_SESSION, variables, 1, take)
            origins = untrusted_document.texts(found.get("sources"))
            origin = next((one for one in origins if one.startswith(f"{there.address}/")), "")
            if not origin:
                raise Refused(
                    f"{container} on {host} was not started from an image of {there.address}",
                    "start sessions from images of the catalogue",
                )
            layer = saved.layer(target, found)
            below, _at, digest = origin.removeprefix(f"{there.address}/").partition("@")
            who = {"user": user, "host": host, "container": container}
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pushed = saved.push(saved.Client(there), below, digest, repository, tag, layer, who, moment)
        for path in untrusted_document.texts(found.get("left_out")):
            typer.echo(f"left out: /{path}")
        typer.echo(f"{there.address}/{repository}@{pushed}")


@app.command("restore")
def restore(
    image: Annotated[str, typer.Argument(metavar="USER/NAME", help="An image that was saved.")],
    hosts: Annotated[list[str], typer.Argument(metavar="HOST", help="Hosts or groups of the inventory.")],
    inventory: InventoryOption = None,
    registry_address: RegistryOption = "",
) -> None:
    """Bring a saved session to other hosts, with the very digest that it was saved with.

    Examples:

      gpuops image restore alice/lectures node5
    """
    with _refusals("restore"):
        site = find(inventory)
        user, repository, tag = _of_user(image)
        there = _registry(site, registry_address, user)
        login = _login(there, user)
        _content, digest = saved.Client(there).manifest(repository, tag)
        exact = f"{there.address}/{repository}@{digest}"
        _distribute("restore", site, there, exact, hosts, login)
        typer.echo(f"{exact} is there")
