# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a distribution: it fetches an image, serves it, and gives it to its container engine."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
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
_REFERENCE = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+):([0-9]{1,5})/([a-z0-9]+(?:[/._-]+[a-z0-9]+)*)", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass
class Node:
    """The arguments are those of the module image_prefetch."""

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
    run: host_run.Run = host_run.run

    def __post_init__(self) -> None:
        match = _REFERENCE.fullmatch(self.reference)
        if not match or not _DIGEST.fullmatch(self.digest):
            raise Refused(f"{self.reference}@{self.digest} is no image", "give HOST:PORT/NAME and sha256:…")
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
                "run the stage `node` on this host, which installs the engine",
                code="no_engine",
            )
        return status == 0

    def fetch(self) -> dict[str, Any]:
        """Fetch and serve the image until nobody wants more of it and the engine has it. Raises Refused and OSError."""
        image = relay.image_of(self.manifest, self.digest)
        place = os.path.join(self.directory, self.digest.replace(":", "-"))
        store = relay.Store(place, image)
        size = sum(blob.size for blob in image.blobs)
        missing = size - sum(store.have(blob.digest) for blob in image.blobs)
        free = shutil.disk_usage(place).free
        if free < missing + SPARE:
            raise Refused(
                f"{place} has {free >> 20} MiB free, and {(missing + SPARE) >> 20} are needed",
                "make space, such as with `docker image prune`",
                code="no_space",
            )
        began = time.monotonic()
        with self._keys() as keys, self._serving(store, relay.context(*keys, server=True)) as server:
            relay.fetch(store, self._sources(relay.context(*keys, server=False)))
            seconds = time.monotonic() - began
            self._give_to_engine(keys)
            while time.monotonic() - server.last_sent < self.linger:
                time.sleep(relay.PAUSE_S)
            served = server.sent
        store.remove()
        # The engine has taken the image from here as well, over the loopback.
        return {"size": size, "fetched": missing, "served": max(0, served - size), "seconds": round(seconds, 1)}

    @contextlib.contextmanager
    def _keys(self) -> Iterator[tuple[str, str]]:
        with tempfile.TemporaryDirectory(prefix="baremetal-gpu-image-") as place:
            paths = os.path.join(place, "client.cert"), os.path.join(place, "client.key")
            for path, text in zip(paths, (self.certificate, self.key)):
                _write(path, text)
            yield paths

    @contextlib.contextmanager
    def _serving(self, store: relay.Store, context: ssl.SSLContext) -> Iterator[relay.Server]:
        try:
            server = relay.Server(("0.0.0.0", self.port), store, context)
        except OSError as error:
            raise Refused(
                f"port {self.port} cannot be served: {error.strerror}",
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

    def _give_to_engine(self, keys: tuple[str, str]) -> None:
        """Have the engine take the image from here, then under its own name: for that it has all layers."""
        here = f"{LOOPBACK}:{self.port}"
        with self._trusted(here, keys) as options:
            self._pull(f"{here}/{self.repository}@{self.digest}", options)
        with tempfile.TemporaryDirectory(prefix="baremetal-gpu-image-") as place:
            self._pull(self.exact, self._login_options(place))
        self.run([self.engine, "rmi", f"{here}/{self.repository}@{self.digest}"], None, ASK_S)

    @contextlib.contextmanager
    def _trusted(self, here: str, keys: tuple[str, str]) -> Iterator[list[str] | None]:
        """The engine takes the certificate of this distribution for its server on this host, and for nothing else."""
        place = os.path.join(CERTIFICATES, here)
        os.makedirs(place, mode=0o700, exist_ok=True)
        try:
            for path in keys:
                shutil.copy(path, place)
            shutil.copy(keys[0], os.path.join(place, "ca.crt"))
            yield [f"--cert-dir={place}"] if self.engine == "podman" else None
        finally:
            shutil.rmtree(place)

    def _login_options(self, place: str) -> list[str] | None:
        if not self.login:
            return None
        path = os.path.join(place, "config.json")
        word = base64.b64encode(self.login.encode()).decode()
        _write(path, json.dumps({"auths": {self.registry: {"auth": word}}}))
        return [f"--authfile={path}"] if self.engine == "podman" else ["--config", place]

    def _pull(self, image: str, options: list[str] | None) -> None:
        given = options or []
        # Docker has its option before the command, Podman after it.
        words = [*given, "pull"] if self.engine == "docker" else ["pull", *given]
        status, out, err = self.run([self.engine, *words, "--quiet", image], None, PULL_S)
        if status != 0:
            raise Refused(
                f"{self.engine} does not take {image}: {untrusted_text.one_line(err or out)}",
                "log in, or make the namespace public with registry_public" if "auth" in err else "see its log",
                code="image_not_taken",
            )


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
