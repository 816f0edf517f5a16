# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's registry: where it is, who pushes there, and the copies from and to it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from ansible_collections.baremetal.gpu.plugins.plugin_utils.certificate_files import AUTHORITY
from gpuops.site import Site

from . import programs

GROUP = "registries"
NAMESPACE = "catalogue"
PORT = 5000
OPERATOR = "operator"
PASSWORDS, CERTIFICATES = Path(".secrets/registry"), Path(".secrets/registry-tls")
USER = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*", re.ASCII)
ADDRESS = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+):[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True)
class Registry:
    """:ivar address: HOST:PORT, as it is in the names of its images.
    :ivar authority: the certificate that its own is checked with; None for those of the system.
    """

    address: str
    authority: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def repository(self, name: str) -> str:
        return f"{self.address}/{NAMESPACE}/{name}"

    @contextlib.contextmanager
    def access(self) -> Iterator[tuple[list[str], list[str]]]:
        """Options of skopeo to copy from here, and to copy to here; the password is in a file of this user alone."""
        with tempfile.TemporaryDirectory(prefix="gpuops-registry-") as scratch:
            place = Path(scratch)
            certificates = place / "certificates"
            certificates.mkdir()
            if self.authority:
                (certificates / "ca.crt").write_bytes(self.authority.read_bytes())
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            auths = {self.address: {"auth": login}} if self.password else {}
            auth = place / "auth.json"
            with open(os.open(auth, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as stream:
                json.dump({"auths": auths}, stream)
            yield (
                [f"--src-authfile={auth}", f"--src-cert-dir={certificates}"],
                [f"--dest-authfile={auth}", f"--dest-cert-dir={certificates}"],
            )

    def push(self, source: str, repository: str, tags: tuple[str, ...]) -> str:
        """Copy an image there under its tags; return the digest that it has there. A push that was cut goes on where
        it was, since layers that are there are not sent again."""
        digest = ""
        with self.access() as (_from, to), tempfile.TemporaryDirectory(prefix="gpuops-push-") as scratch:
            written = Path(scratch) / "digest"
            for tag in tags:
                target = f"docker://{repository}:{tag}"
                watched("skopeo", "copy", f"--digestfile={written}", *to, source, target, what=f"pushing {repository}")
                digest = written.read_text(encoding="ascii").strip()
        if not image_catalogue.DIGEST.fullmatch(digest):
            raise Refused(f"skopeo gives {digest!r} as the digest of {repository}", code="no_digest")
        return digest

    def fetch(self, image: str, target: str) -> None:
        """Copy an image from there."""
        with self.access() as (origin, _to):
            watched("skopeo", "copy", *origin, f"docker://{image}", target, what=f"fetching {image}")

    def digest(self, image: str) -> str:
        """The digest that an image has there; empty where it is not there."""
        with self.access() as (origin, _to):
            words = [word.replace("--src-", "--") for word in origin]
            try:
                format_ = "--format={{.Digest}}"
                told = programs.run(
                    "skopeo", "inspect", format_, *words, f"docker://{image}", what=f"looking for {image}"
                )
            except Refused as refused:
                if "manifest unknown" in str(refused) or "name unknown" in str(refused):
                    return ""
                raise
        return told.strip()


def archive(local: str, target: Path) -> Path:
    """Copy an image that was built here into a file, for a registry elsewhere. One that is there stays."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    try:
        watched("skopeo", "copy", f"containers-storage:{local}", f"oci-archive:{partial}", what=f"copying {local}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def watched(*words: str, what: str) -> None:
    """Run a program whose output, the progress, is for who waits. Raises Refused."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise Refused(f"{what}: {words[0]} cannot be run: {error.strerror}", code="no_program") from error
    if done.returncode != 0:
        raise Refused(f"{what} failed:\n{programs.last(done.stderr)}", "call it again: what is there is kept")


def of_inventory(site: Site, content: Mapping[str, Any], address: str = "", user: str = "") -> Registry:
    """The registry of a site.

    :param content: what `ansible-inventory --list` says.
    :param address: HOST:PORT in place of the one that the inventory names.
    :param user: who logs in; the operator if left out.
    """
    hosts = (content.get(GROUP) or {}).get("hosts") or []
    if not address and not hosts:
        raise Refused(
            f"the inventory {site.inventory} has no host in the group {GROUP}", "add one, or give --registry HOST:PORT"
        )
    values = content.get("_meta", {}).get("hostvars", {}).get(hosts[0], {}) if hosts else {}

    def value(name: str, default: Any) -> str:
        text = str(values.get(name, default))
        if "{{" in text:
            raise Refused(f"{hosts[0]}: {name} is {text!r}, and gpuops reads it as it is", "write the value itself")
        return text

    if not address:
        address = f"{value('registry_name', hosts[0])}:{value('registry_port', PORT)}"
    if not ADDRESS.fullmatch(address):
        raise Refused(f"the address {address!r} of the registry is refused", "give it as HOST:PORT, in lower case")
    user = user or value("registry_operator", OPERATOR)
    if not USER.fullmatch(user):
        raise Refused(f"{user!r} is not a user of the registry", "give a name of registry_users")
    authority = site.directory / CERTIFICATES / AUTHORITY
    password = site.directory / PASSWORDS / user
    try:
        secret = password.read_text(encoding="utf-8").strip() if password.exists() else ""
    except OSError as error:
        raise Refused(f"{password} cannot be read: {error.strerror}", "call gpuops as its owner") from error
    return Registry(address, authority if authority.exists() else None, user, secret)
