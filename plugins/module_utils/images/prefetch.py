# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a distribution: it fetches an image, serves it, and gives it to its container engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import relay

LOOPBACK = "127.0.0.1"
CERTIFICATES = "/etc/docker/certs.d"
# Of an engine that unpacks gigabytes.
PULL_S, ASK_S = 7200.0, 60.0
# What has to be free beside the image itself.
SPARE = 1 << 30
NEAREST = 3
_REFERENCE = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9][a-z0-9.-]*):([0-9]{1,5})/([a-z0-9]+(?:[/._-]+[a-z0-9]+)*)", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass
class Node:
    """The arguments are those of the module image_prefetch; ``before`` are the nodes that serve this one."""

    reference: str
    digest: str
    manifest: bytes
    before: Sequence[str]
    port: int
    certificate: str
    key: str
    login: str
    engine: str
    directory: str
    linger: int
    direct: bool = False
    run: host_run.Run = host_run.run

    def __post_init__(self) -> None:
        match = _REFERENCE.fullmatch(self.reference)
        if not match or not _DIGEST.fullmatch(self.digest):
            raise Refused(f"{self.reference}@{self.digest} is not an image", "give HOST:PORT/NAME and sha256:…")
        self.registry, self.repository = f"{match[1]}:{match[2]}", match[3]
        self._host, self._port = match[1].strip("[]"), int(match[2])

    @property
    def exact(self) -> str:
        return f"{self.reference}@{self.digest}"

    def has_image(self) -> bool:
        """Whether the engine has it. Raises Refused where there is no engine to ask."""
        status, _out, err = self.run([self.engine, "image", "inspect", "--format={{.Id}}", self.exact], None, ASK_S)
        if status == host_run.NOT_FOUND or "Cannot connect" in err:
            raise Refused(
                f"{self.engine} does not answer: {untrusted_text.one_line(err)}",
                "run `gpuops up --tags containers` for this host, which installs the engine",
                code="no_engine",
            )
        return status == 0

    def fetch(self) -> dict[str, Any]:
        """Fetch and serve the image until nobody wants more of it and the engine has it. Raises Refused and OSError."""
        if self.direct:
            # The engine fetches the layers that it lacks, and no others.
            began = time.monotonic()
            self._pull(self.exact, self.registry, self.login)
            return {"seconds": round(time.monotonic() - began, 1)}
        image = relay.image_of(self.manifest, self.digest)
        place = os.path.join(self.directory, self.digest.replace(":", "-"))
        store = relay.Store(place, image)
        size = sum(blob.size for blob in image.blobs)
        missing = size - sum(store.have(blob.digest) for blob in image.blobs)
        free = shutil.disk_usage(place).free
        if free < missing + SPARE:
            raise Refused(
                f"{place} has {free >> 20} MiB free, and {(missing + SPARE) >> 20} are needed",
                "make space, such as with `sudo docker image prune`",
                code="no_space",
            )
        began = time.monotonic()
        with self._keys() as keys, self._serving(store, self.port, relay.context(*keys, server=True)) as server:
            relay.fetch(store, self._sources(relay.context(*keys, server=False)))
            seconds = time.monotonic() - began
            self._give_to_engine(store)
            while time.monotonic() - server.last_sent < self.linger:
                time.sleep(relay.PAUSE_S)
            served = server.sent
        store.remove()
        return {"size": size, "fetched": missing, "served": served, "seconds": round(seconds, 1)}

    @contextlib.contextmanager
    def _keys(self) -> Iterator[tuple[str, str]]:
        with tempfile.TemporaryDirectory(prefix="baremetal-gpu-image-") as place:
            paths = os.path.join(place, "client.cert"), os.path.join(place, "client.key")
            for path, text in zip(paths, (self.certificate, self.key)):
                _write(path, text)
            yield paths

    @contextlib.contextmanager
    def _serving(
        self, store: relay.Store, port: int, context: ssl.SSLContext | None, login: str = ""
    ) -> Iterator[relay.Server]:
        try:
            server = relay.Server((LOOPBACK if login else "0.0.0.0", port), store, context, login)
        except OSError as error:
            raise Refused(
                f"port {port} cannot be served: {error.strerror}",
                "give another with --port, or wait for the distribution that has it",
                code="port_in_use",
            ) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()

    def _sources(self, context: ssl.SSLContext) -> list[relay.Source]:
        authority = os.path.join(CERTIFICATES, self.registry, "ca.crt")
        trusting = ssl.create_default_context(cafile=authority if os.path.exists(authority) else None)
        nodes = [
            relay.Source(host, self.port, self.repository, context, patience=relay.PATIENCE_S)
            for host in self.before[:NEAREST]
        ]
        return [*nodes, relay.Source(self._host, self._port, self.repository, trusting, self.login)]

    def _give_to_engine(self, store: relay.Store) -> None:
        """Have the engine take the image from here, then under its own name: for that it has all layers.

        An engine trusts the loopback without certificates, so a login of this moment keeps other users of the host out.
        """
        login = f"image:{secrets.token_urlsafe(24)}"
        with self._serving(store, 0, None, login) as server:
            here = f"{LOOPBACK}:{server.server_address[1]}"
            image = f"{here}/{self.repository}@{self.digest}"
            self._pull(image, here, login)
        self._pull(self.exact, self.registry, self.login)
        self.run([self.engine, "rmi", image], None, ASK_S)

    def _options(self, place: str, registry: str, login: str) -> tuple[list[str], list[str]]:
        """Options before the engine's command and after it, with the login in a file of root's."""
        path = os.path.join(place, "config.json")
        auths = {registry: {"auth": relay.basic(login).split()[1]}} if login else {}
        _write(path, json.dumps({"auths": auths}))
        if self.engine == "docker":
            return ["--config", place], []
        return [], [f"--authfile={path}", *(["--tls-verify=false"] if registry.startswith(LOOPBACK) else [])]

    def _pull(self, image: str, registry: str, login: str) -> None:
        with tempfile.TemporaryDirectory(prefix="baremetal-gpu-image-") as place:
            before, after = self._options(place, registry, login)
            words = [self.engine, *before, "pull", *after, "--quiet", image]
            status, out, err = self.run(words, None, PULL_S)
        if status != 0:
            told = untrusted_text.one_line(err or out)
            needs_login = "auth" in told or "denied" in told
            raise Refused(
                f"{self.engine} does not take {image}: {told}",
                "give --as with a user of the registry, or make the namespace public with registry_public"
                if needs_login
                else f"see the journal of {self.engine}",
                code="image_not_taken",
            )


def before(nodes: Sequence[str], own: str) -> list[str]:
    """The nodes that serve this one, the nearest first."""
    return list(reversed(nodes[: list(nodes).index(own)])) if own in nodes else []


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
