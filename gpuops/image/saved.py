# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's layer on top of the image that it was started from, as an image in the namespace of its user.

The layers of the image below are in the registry already, and are shared and not sent. So what a user has pushed, and
what counts against the user's quota, is the layer alone; the registry knows who may push.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import json
import re
import ssl
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import relay

from .registry import Registry

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
LAYERS = {
    MANIFESTS[0]: "application/vnd.oci.image.layer.v1.tar+gzip",
    MANIFESTS[1]: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
PREFIX = "baremetal.gpu.session"
TIMEOUT_S = 300.0
ANSWER_AT_MOST = 8 << 20
NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*", re.ASCII)


TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True)
class Layer:
    """:ivar diff_id: digest of what the file unpacks to."""

    path: Path
    digest: str
    diff_id: str
    size: int


def layer(path: Path, told: Mapping[str, Any]) -> Layer:
    """A layer that a host has sent, held against what it says of it. Raises Refused."""
    digest, unpacked, size = hashlib.sha256(), hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
                size += len(block)
        with gzip.open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                unpacked.update(block)
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"what the host sent is not a layer: {error}", "save the session again") from error
    found = Layer(path, f"sha256:{digest.hexdigest()}", f"sha256:{unpacked.hexdigest()}", size)
    if (found.digest, found.diff_id) != (told.get("digest"), told.get("diff_id")):
        raise Refused("what the host sent does not match its own checksums", "save the session again")
    return found


class Client:
    """As much of the registry's protocol as an image on top of another needs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        host, _colon, port = registry.address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        authority = str(registry.authority) if registry.authority else None
        self._context = ssl.create_default_context(cafile=authority)
        word = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
        self._login = {"Authorization": f"Basic {word}"} if registry.password else {}

    @contextmanager
    def _ask(
        self, method: str, path: str, body: bytes | BinaryIO | None = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._context)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers={**self._login, **names})
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Refused(
                f"the registry {self._registry.address} does not answer: {untrusted_text.one_line(error)}",
                "see whether it runs, and call it again: what is there is kept",
                code="registry_silent",
            ) from error
        finally:
            connection.close()

    def _refuse(self, what: str, answer: http.client.HTTPResponse) -> Refused:
        told = untrusted_text.one_line(answer.read(2000))
        remedy = "see its log"
        if answer.status in (401, 403):
            remedy = f"see whether {self._registry.user or 'everybody'} may do that, and has space left in its quota"
        elif answer.status in (413, 507):
            remedy = "remove images of the user, or raise its quota"
        return Refused(f"{what}: the registry answers {answer.status} {told}", remedy, code="registry_refuses")

    def manifest(self, repository: str, reference: str) -> tuple[bytes, str]:
        """A manifest as it is there, and its digest."""
        path = f"/v2/{repository}/manifests/{reference}"
        with self._ask("GET", path, Accept=", ".join(MANIFESTS)) as answer:
            if answer.status != 200:
                raise self._refuse(f"{repository}:{reference} is not available", answer)
            content = answer.read(relay.MANIFEST_AT_MOST)
        return content, f"sha256:{hashlib.sha256(content).hexdigest()}"

    def blob(self, repository: str, digest: str) -> bytes:
        """A small blob, such as a configuration."""
        with self._ask("GET", f"/v2/{repository}/blobs/{digest}") as answer:
            content = answer.read(ANSWER_AT_MOST)
            if answer.status != 200 or f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
                raise self._refuse(f"{digest} of {repository} is not available", answer)
        return content

    def has(self, repository: str, digest: str) -> bool:
        with self._ask("HEAD", f"/v2/{repository}/blobs/{digest}") as answer:
            return answer.status == 200

    def share(self, repository: str, digest: str, origin: str) -> None:
        """Have a blob of another repository in this one, without sending it."""
        if self.has(repository, digest):
            return
        query = f"mount={digest}&from={quote(origin, safe='/')}"
        with self._ask("POST", f"/v2/{repository}/blobs/uploads/?{query}", b"") as answer:
            if answer.status != 201:
                raise self._refuse(f"{digest} of {origin} cannot be shared with {repository}", answer)

    def send(self, repository: str, digest: str, body: bytes | BinaryIO, size: int) -> None:
        if self.has(repository, digest):
            return
        with self._ask("POST", f"/v2/{repository}/blobs/uploads/", b"") as answer:
            if answer.status != 202:
                raise self._refuse(f"nothing can be pushed to {repository}", answer)
            place = urlsplit(answer.getheader("Location") or "")
        query = f"{place.query}&" if place.query else ""
        headers = {"Content_Length": str(size), "Content_Type": "application/octet-stream"}
        with self._ask("PUT", f"{place.path}?{query}digest={digest}", body, **headers) as answer:
            if answer.status != 201:
                raise self._refuse(f"{digest} cannot be pushed to {repository}", answer)

    def publish(self, repository: str, tag: str, manifest: bytes, kind: str) -> str:
        """Put a manifest under a tag; return its digest."""
        with self._ask("PUT", f"/v2/{repository}/manifests/{tag}", manifest, Content_Type=kind) as answer:
            if answer.status != 201:
                raise self._refuse(f"{repository}:{tag} cannot be pushed", answer)
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def on_top(
    manifest: Mapping[str, Any], config: Mapping[str, Any], layer: Layer, labels: Mapping[str, str], moment: str
) -> tuple[dict[str, Any], bytes]:
    """The manifest and the configuration of an image with one more layer. Its settings are those of the one below."""
    kind = str(manifest.get("mediaType") or MANIFESTS[0])
    settings = dict(config.get("config") or {})
    settings["Labels"] = {**(settings.get("Labels") or {}), **labels}
    rootfs = dict(config["rootfs"])
    rootfs["diff_ids"] = [*rootfs["diff_ids"], layer.diff_id]
    history = [*(config.get("history") or []), {"created": moment, "created_by": "gpuops image save"}]
    made = {**config, "config": settings, "rootfs": rootfs, "history": history, "created": moment}
    content = json.dumps(made, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    row = {"mediaType": LAYERS[kind], "digest": layer.digest, "size": layer.size}
    return (
        {
            **manifest,
            "config": {**manifest["config"], "digest": digest, "size": len(content)},
            "layers": [*manifest["layers"], row],
        },
        content,
    )


def push(
    client: Client,
    origin: str,
    origin_digest: str,
    repository: str,
    tag: str,
    layer: Layer,
    who: Mapping[str, str],
    moment: str,
) -> str:
    """Push a layer as an image on top of another that the registry has; return its digest.

    :param origin: repository of the image below, and its digest.
    :param who: labels that say whose it is and where it was, without their prefix.
    """
    content, digest = client.manifest(origin, origin_digest)
    if digest != origin_digest:
        raise Refused(f"the registry has something else as {origin}@{origin_digest}", code="wrong_manifest")
    below = relay.image_of(content, digest)
    manifest = json.loads(content)
    if str(manifest.get("mediaType") or MANIFESTS[0]) not in MANIFESTS:
        raise Refused(f"{origin}@{digest} has the unknown kind {manifest.get('mediaType')!r}", "push it again")
    labels = {
        f"{PREFIX}.{name}": value for name, value in {**who, "from": f"{origin}@{digest}", "when": moment}.items()
    }
    blob_of_settings = client.blob(origin, manifest["config"]["digest"])
    try:
        made, settings = on_top(manifest, json.loads(blob_of_settings), layer, labels, moment)
    except MISSHAPEN as why:
        cause = f"the settings of {origin}@{digest} are none of an image: {type(why).__name__}"
        raise Refused(cause, "push it again", code="wrong_manifest") from why
    for blob in below.blobs:
        if blob.digest != manifest["config"]["digest"]:
            client.share(repository, blob.digest, origin)
    with layer.path.open("rb") as stream:
        client.send(repository, layer.digest, stream, layer.size)
    client.send(repository, made["config"]["digest"], settings, len(settings))
    kind = str(manifest.get("mediaType") or MANIFESTS[0])
    return client.publish(repository, tag, json.dumps(made, separators=(",", ":")).encode(), kind)
