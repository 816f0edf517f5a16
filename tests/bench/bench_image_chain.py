# SPDX-License-Identifier: GPL-3.0-or-later
"""An image to eight nodes, each of which serves the next while it fetches, against the time of one node.

Registry and nodes are servers on this machine. LINK limits the bytes per second of each link to far less than this
machine can carry, so the links decide the ratio, as with gigabytes on real links. The clock stops when a node has all
layers; unpacking is left to the engine and takes the same time for one node and for many.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.images import relay
from tests.bench import harness

NODES = 8
LAYERS, LAYER = 5, 8 << 20
# Bytes in a second. An image of 15 GB over a link of 10 Gbit/s takes as long as this one.
LINK = 4 << 20
# The time of all nodes divided by that of one.
GOAL = 1.5


class Link:
    """Lets so many bytes through in a second, in one direction."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + count / LINK
        time.sleep(max(0.0, self._free_at - time.monotonic()))


def made(directory: Path) -> relay.Store:
    """The registry's part: an image of random layers."""
    layers = [os.urandom(LAYER) for _number in range(LAYERS)]
    rows = [{"digest": f"sha256:{hashlib.sha256(layer).hexdigest()}", "size": len(layer)} for layer in layers]
    manifest = json.dumps({"config": rows[0], "layers": rows}).encode()
    image = relay.image_of(manifest, f"sha256:{hashlib.sha256(manifest).hexdigest()}")
    store = relay.Store(str(directory), image)
    for row, layer in zip(rows, layers, strict=True):
        store.append(str(row["digest"]), layer)
    return store


@contextmanager
def serving(store: relay.Store) -> Iterator[relay.Source]:
    server = relay.Server(("127.0.0.1", 0), store, pace=Link())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield relay.Source("127.0.0.1", int(server.server_address[1]), "catalogue/bench", patience=relay.PATIENCE_S)
    finally:
        server.shutdown()
        server.server_close()


def seconds(registry: relay.Store, directory: Path, nodes: int) -> float:
    """How long it takes until the last of so many nodes has all layers."""
    stores = [relay.Store(str(directory / f"node{number}"), registry.image) for number in range(nodes)]
    with serving(registry) as first:

        def chain(left: list[relay.Store], source: relay.Source) -> float:
            if not left:
                began = time.monotonic()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return time.monotonic() - began
            threads.append(threading.Thread(target=relay.fetch, args=(left[0], [source])))
            with serving(left[0]) as own:
                return chain(left[1:], own)

        threads: list[threading.Thread] = []
        found = chain(stores, first)
    if not all(store.whole for store in stores):
        raise SystemExit("image_chain: a node did not get the image; see what its thread has printed")
    return found


def run(quick: bool) -> list[harness.Figure]:
    rounds = 1 if quick else 3
    ratios = []
    with tempfile.TemporaryDirectory(prefix="bench-image-chain-") as scratch:
        registry = made(Path(scratch) / "registry")
        for number in range(rounds):
            one = seconds(registry, Path(scratch) / f"one{number}", 1)
            ratios.append(seconds(registry, Path(scratch) / f"all{number}", NODES) / one)
    what = f"{LAYERS * LAYER >> 20} MiB to {NODES} nodes, {LINK >> 20} MiB/s per link"
    return [harness.Figure.of(what, "time of all ÷ time of one", "", ratios, None if quick else GOAL)]
