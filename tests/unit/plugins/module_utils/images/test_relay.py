# SPDX-License-Identifier: GPL-3.0-or-later
"""An image on its way through a chain of nodes, over sockets of this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import relay

CONTENTS = (b"config", b"layer one " * 100000, b"layer two " * 200000)


def made(contents: tuple[bytes, ...] = CONTENTS) -> relay.Image:
    rows = [{"digest": f"sha256:{hashlib.sha256(part).hexdigest()}", "size": len(part)} for part in contents]
    manifest = json.dumps({"config": rows[0], "layers": rows[1:]}).encode()
    return relay.image_of(manifest, f"sha256:{hashlib.sha256(manifest).hexdigest()}")


IMAGE = made()
SIZE = sum(blob.size for blob in IMAGE.blobs)


def filled(directory: Path) -> relay.Store:
    store = relay.Store(str(directory), IMAGE)
    for blob, content in zip(IMAGE.blobs, CONTENTS, strict=True):
        if store.have(blob.digest) < blob.size:
            store.append(blob.digest, content)
    return store


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., relay.Server]]:
    monkeypatch.setattr(relay, "PAUSE_S", 0.01)
    servers: list[relay.Server] = []

    def begin(store: relay.Store, **options: object) -> relay.Server:
        server = relay.Server(("127.0.0.1", 0), store, **options)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def source(server: relay.Server, patience: float = 0.0) -> relay.Source:
    return relay.Source("127.0.0.1", server.server_address[1], "catalogue/base", patience=patience)


def contents_of(store: relay.Store) -> tuple[bytes, ...]:
    return tuple(Path(store.path(blob.digest)).read_bytes() for blob in IMAGE.blobs)


def test_every_link_of_a_chain_carries_the_image_once(tmp_path, serve):
    registry = serve(filled(tmp_path / "registry"))
    stores = [relay.Store(str(tmp_path / f"node{number}"), IMAGE) for number in range(8)]
    servers = [registry, *(serve(store) for store in stores)]
    threads = [
        threading.Thread(target=relay.fetch, args=(store, [source(before), source(registry)]))
        for store, before in zip(stores, servers, strict=False)
    ]
    # The last begins first: it waits for what its source does not have yet.
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [contents_of(store) for store in stores] == [CONTENTS] * 8
    assert [server.sent for server in servers] == [SIZE] * 8 + [0]


def test_a_node_that_does_not_answer_is_passed_over(tmp_path, serve):
    registry = serve(filled(tmp_path / "registry"))
    gone = relay.Server(("127.0.0.1", 0), relay.Store(str(tmp_path / "gone"), IMAGE))
    gone.server_close()
    store = relay.Store(str(tmp_path / "node"), IMAGE)
    relay.fetch(store, [source(gone), source(registry)])
    assert store.whole


def test_what_was_there_before_a_cut_is_not_fetched_again(tmp_path, serve):
    registry = serve(filled(tmp_path / "registry"))
    before = relay.Store(str(tmp_path / "node"), IMAGE)
    before.append(IMAGE.blobs[0].digest, CONTENTS[0])
    before.append(IMAGE.blobs[2].digest, CONTENTS[2][:1000])
    after = relay.Store(str(tmp_path / "node"), IMAGE)
    relay.fetch(after, [source(registry)])
    assert contents_of(after) == CONTENTS
    assert registry.sent == SIZE - len(CONTENTS[0]) - 1000


def test_a_blob_that_is_not_what_its_digest_says_is_not_kept_and_comes_from_the_next(tmp_path, serve):
    registry = serve(filled(tmp_path / "registry"))
    store = filled(tmp_path / "liar")
    path = Path(store.path(IMAGE.blobs[1].digest))
    path.write_bytes(b"x" * IMAGE.blobs[1].size)
    liar = serve(store)
    node = relay.Store(str(tmp_path / "node"), IMAGE)
    relay.fetch(node, [source(liar), source(registry)])
    assert contents_of(node) == CONTENTS


def test_a_file_of_an_earlier_run_that_somebody_has_changed_is_fetched_anew(tmp_path, serve):
    registry = serve(filled(tmp_path / "registry"))
    store = filled(tmp_path / "node")
    path = Path(store.path(IMAGE.blobs[1].digest))
    path.write_bytes(b"x" * IMAGE.blobs[1].size)
    node = relay.Store(str(tmp_path / "node"), IMAGE)
    relay.fetch(node, [source(registry)])
    assert contents_of(node) == CONTENTS


def test_without_any_source_it_says_so_and_keeps_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "PAUSE_S", 0)
    node = relay.Store(str(tmp_path / "node"), IMAGE)
    node.append(IMAGE.blobs[0].digest, CONTENTS[0])
    with pytest.raises(Refused, match=r"no more of the image comes: 127\.0\.0\.1:1: "):
        relay.fetch(node, [relay.Source("127.0.0.1", 1, "catalogue/base")])
    assert relay.Store(str(tmp_path / "node"), IMAGE).have(IMAGE.blobs[0].digest) == len(CONTENTS[0])


@pytest.mark.parametrize(
    "document",
    [
        b"no JSON",
        b"[]",
        b'{"config": {"digest": "sha256:0", "size": 1}, "layers": []}',
        b'{"manifests": []}',
        json.dumps({"config": {"digest": f"sha256:{'0' * 64}", "size": -1}, "layers": []}).encode(),
    ],
)
def test_a_manifest_that_describes_no_image_is_refused(document):
    with pytest.raises(Refused):
        relay.image_of(document, f"sha256:{hashlib.sha256(document).hexdigest()}")


def test_a_manifest_of_another_digest_is_refused():
    with pytest.raises(Refused, match="the manifest is not that of"):
        relay.image_of(IMAGE.manifest, f"sha256:{'0' * 64}")


def test_only_who_has_the_key_is_served(tmp_path, serve):
    names = relay_pair(tmp_path)
    registry = serve(filled(tmp_path / "registry"), context=relay.context(*names, server=True))
    own, stranger = relay.Store(str(tmp_path / "own"), IMAGE), relay.Store(str(tmp_path / "stranger"), IMAGE)
    one = source(registry)
    one.context = relay.context(*names, server=False)
    relay.fetch(own, [one])
    assert own.whole
    other = source(registry)
    (tmp_path / "other").mkdir()
    other.context = relay.context(*relay_pair(tmp_path / "other"), server=False)
    with pytest.raises(Refused):
        relay.fetch(stranger, [other])
    assert stranger.have(IMAGE.blobs[0].digest) == 0


def relay_pair(directory: Path) -> tuple[str, str]:
    """A certificate and its key, as gpuops makes them for a distribution."""
    from gpuops.image.prefetch import pair

    certificate, key = pair()
    paths = directory / "certificate.pem", directory / "key.pem"
    for path, text in zip(paths, (certificate, key), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])
