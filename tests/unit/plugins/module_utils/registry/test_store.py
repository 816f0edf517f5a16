# SPDX-License-Identifier: GPL-3.0-or-later
"""Space of the registry's images: what is freed, what is mended, what is copied, and when pushes are refused. The
storage is that of Debian's docker-registry."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import layout, store
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.backup import backup
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.collect import Ages, collect, mend, remove_uploads
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.watch import Usage, Watch
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import registry as plan
from tests.local_registry import INDEX, MANIFEST, LocalRegistry, digest_of, manifest, missing_programs

pytestmark = pytest.mark.skipif(bool(missing_programs()), reason=missing_programs() or "nothing is missing")
DAY = 86400.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    found = LocalRegistry(tmp_path_factory.mktemp("registry"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def registry(running: LocalRegistry) -> Iterator[LocalRegistry]:
    """Running, with nothing in it."""
    yield running
    shutil.rmtree(running.storage / "docker", ignore_errors=True)


def free(registry: LocalRegistry, untagged_days: float = 0, grace_s: float = 0, later: float = 1) -> Any:
    """What the unit does: the registry that writes is off meanwhile."""
    registry.stop("write")
    try:
        return collect(str(registry.storage), Ages(untagged_days * DAY, grace_s), time.time() + later)
    finally:
        registry.start("write")


def blobs(registry: LocalRegistry) -> set[str]:
    return {digest for digest, _status in layout.blobs(str(registry.storage))}


def digest(registry: LocalRegistry, repository: str, tag: str) -> str:
    asked = registry.ask(
        "HEAD", f"/v2/{repository}/manifests/{tag}", "operator", headers={"Accept": f"{MANIFEST}, {INDEX}"}
    )
    assert asked.status == 200
    return asked.headers["docker-content-digest"]


def delete(registry: LocalRegistry, repository: str, tag: str) -> None:
    path = f"/v2/{repository}/manifests/{digest(registry, repository, tag)}"
    assert registry.ask("DELETE", path, "operator").status == 202


def put_index(registry: LocalRegistry, repository: str, tag: str, *children: bytes) -> None:
    rows = [
        {
            "mediaType": MANIFEST,
            "size": len(child),
            "digest": digest_of(child),
            "platform": {"architecture": f"arch{number}", "os": "linux"},
        }
        for number, child in enumerate(children)
    ]
    content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
    assert registry.put("alice", repository, tag, content, INDEX).status == 201


def child(registry: LocalRegistry, repository: str, layer: bytes) -> bytes:
    """An image without a tag; the value is its manifest."""
    config = json.dumps({"of": layer.decode()}).encode()
    for content in (config, layer):
        assert registry.push_blob("alice", repository, content).status == 201
    found = manifest(config, layer)
    assert registry.put("alice", repository, digest_of(found), found, MANIFEST).status == 201
    return found


# --- freeing ---


def test_a_deleted_image_is_freed_and_what_others_share_stays(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/a", "v1", b"shared", b"only of a").status == 201
    assert registry.push("alice", "alice/b", "v1", b"shared").status == 201
    delete(registry, "alice/a", "v1")
    freed = free(registry)
    assert freed.blobs == 3
    assert digest_of(b"only of a") not in blobs(registry)
    assert registry.pull("alice", "alice/b", "v1") == [b"shared"]
    assert free(registry).blobs == 0
    # What was freed can be pushed again.
    assert registry.push("alice", "alice/a", "v1", b"shared", b"only of a").status == 201
    assert registry.pull("alice", "alice/a", "v1") == [b"shared", b"only of a"]


def test_an_image_for_several_architectures_stays_whole(registry: LocalRegistry) -> None:
    one, two = child(registry, "alice/multi", b"one"), child(registry, "alice/multi", b"two")
    put_index(registry, "alice/multi", "v1", one, two)
    lost = child(registry, "alice/multi", b"lost")
    freed = free(registry, untagged_days=1, later=2 * DAY)
    assert freed.manifests == 1
    assert registry.pull("alice", "alice/multi", digest_of(lost)) == 404
    for content, found in ((b"one", one), (b"two", two)):
        assert registry.pull("alice", "alice/multi", digest_of(found)) == [content]


def test_a_manifest_without_a_tag_goes_after_its_time_and_not_before(registry: LocalRegistry) -> None:
    for layer in (b"old", b"new"):
        assert registry.push("alice", "alice/moved", "latest", layer).status == 201
        if layer == b"old":
            old = digest(registry, "alice/moved", "latest")
    assert free(registry, untagged_days=0, later=900 * DAY).manifests == 0
    assert free(registry, untagged_days=2, later=DAY).manifests == 0
    assert registry.pull("alice", "alice/moved", old) == [b"old"]
    assert free(registry, untagged_days=2, later=3 * DAY).manifests == 1
    assert registry.pull("alice", "alice/moved", old) == 404
    assert registry.pull("alice", "alice/moved", "latest") == [b"new"]


def sign(registry: LocalRegistry, repository: str, of: str, tags: list[str], names_subject: bool = True) -> str:
    """Push a signature of a manifest as clients do, with these tags, or without one; the signature's digest."""
    config, layer = b"{}", f"signature of {of} {tags} {names_subject}".encode()
    for content in (config, layer):
        assert registry.push_blob("alice", repository, content).status == 201
    signature = json.loads(manifest(config, layer)) | {"annotations": {"of": of}}
    if names_subject:
        signature["subject"] = {"mediaType": MANIFEST, "digest": of, "size": 1}
    content = json.dumps(signature).encode()
    for tag in tags or [digest_of(content)]:
        assert registry.put("alice", repository, tag, content, MANIFEST).status == 201
    return digest_of(content)


def put_additions(registry: LocalRegistry, repository: str, of: str, *additions: str) -> None:
    """The list of additions under the tag that clients give it where the registry keeps no list."""
    rows = [{"mediaType": MANIFEST, "size": 1, "digest": one} for one in additions]
    content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
    assert registry.put("alice", repository, of.replace(":", "-"), content, INDEX).status == 201


@pytest.mark.parametrize("kind", ["untagged", "listed", "by tag", "both", "of an architecture"])
def test_a_signature_goes_with_its_image_and_does_not_keep_it(registry: LocalRegistry, kind: str) -> None:
    assert registry.push("alice", "alice/train", "latest", b"old layer").status == 201
    old = digest(registry, "alice/train", "latest")
    if kind == "of an architecture":
        put_index(registry, "alice/train", "latest", child(registry, "alice/train", b"old layer"))
        old = next(iter(layout.references(str(registry.storage), digest(registry, "alice/train", "latest"))))
    by_tag = [f"{old.replace(':', '-')}.sig"] if kind in ("by tag", "both") else []
    signature = sign(registry, "alice/train", old, by_tag, kind != "by tag")
    if kind in ("listed", "both"):
        put_additions(registry, "alice/train", old, signature)
    free(registry, untagged_days=1, later=3 * DAY)
    assert {old, signature, digest_of(b"old layer")} <= blobs(registry)
    # The tag moves on.
    assert registry.push("alice", "alice/train", "latest", b"new layer").status == 201
    free(registry, untagged_days=1, later=3 * DAY)
    assert not {old, signature, digest_of(b"old layer")} & blobs(registry)
    assert layout.Repository(str(registry.storage), "alice/train").tags() == ["latest"]
    assert free(registry, untagged_days=1, later=3 * DAY) == (0, 0, 0)


def test_a_signature_stays_with_each_image_that_has_it_and_where_a_tag_is_its_own(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/train", "v1", b"one").status == 201
    assert registry.push("alice", "alice/train", "v2", b"two").status == 201
    one, two = (digest(registry, "alice/train", tag) for tag in ("v1", "v2"))
    shared = sign(registry, "alice/train", one, [f"{image.replace(':', '-')}.sbom" for image in (one, two)], False)
    own = sign(registry, "alice/train", one, ["release-notes"])
    # Signatures of images elsewhere.
    elsewhere = sign(registry, "alice/train", "sha256:" + "0" * 64, [f"sha256-{'0' * 64}.sig"])
    delete(registry, "alice/train", "v1")
    free(registry, untagged_days=1, later=3 * DAY)
    assert {two, shared, own, elsewhere, digest_of(b"two")} <= blobs(registry)
    assert digest_of(b"one") not in blobs(registry)


def test_what_was_signed_a_moment_ago_stays_with_its_signature(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/train", "latest", b"old layer").status == 201
    old = digest(registry, "alice/train", "latest")
    sign(registry, "alice/train", old, [f"{old.replace(':', '-')}.sig"])
    assert registry.push("alice", "alice/train", "latest", b"new layer").status == 201
    assert free(registry, untagged_days=1, grace_s=4 * DAY, later=3 * DAY) == (0, 0, 0)
    free(registry, untagged_days=1, grace_s=2 * DAY, later=3 * DAY)
    assert digest_of(b"old layer") not in blobs(registry)


def test_a_manifest_that_says_what_it_is_built_on_does_not_keep_that(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/train", "base", b"base").status == 201
    base = digest(registry, "alice/train", "base")
    config, layer = b"{}", b"own"
    for content in (config, layer):
        assert registry.push_blob("alice", "alice/train", content).status == 201
    built = json.loads(manifest(config, layer)) | {"annotations": {"org.opencontainers.image.base.digest": base}}
    assert registry.put("alice", "alice/train", "v1", json.dumps(built).encode(), MANIFEST).status == 201
    assert registry.push("alice", "alice/train", "base", b"new base").status == 201
    free(registry, untagged_days=1, later=3 * DAY)
    assert digest_of(b"own") in blobs(registry)
    assert not {base, digest_of(b"base")} & blobs(registry)


def test_layers_of_a_push_that_is_not_at_its_end_stay(registry: LocalRegistry) -> None:
    assert registry.push_blob("alice", "alice/slow", b"first layer").status == 201
    begun = registry.ask("POST", "/v2/alice/slow/blobs/uploads/", "alice")
    assert free(registry, grace_s=DAY, later=3600).blobs == 0
    # The rest of the push.
    assert registry.ask("HEAD", f"/v2/alice/slow/blobs/{digest_of(b'first layer')}", "alice").status == 200
    assert registry.push("alice", "alice/slow", "v1", b"first layer").status == 201
    assert begun.status == 202
    # What nobody finished goes with time.
    assert registry.push_blob("alice", "alice/slow", b"never used").status == 201
    assert free(registry, grace_s=DAY, later=2 * DAY).blobs == 1
    assert not list((registry.storage / "docker/registry/v2/repositories/alice/slow/_uploads").iterdir())
    assert registry.pull("alice", "alice/slow", "v1") == [b"first layer"]


def test_a_push_that_nobody_goes_on_with_is_given_up_and_can_begin_again(registry: LocalRegistry) -> None:
    uploads = registry.storage / "docker/registry/v2/repositories/alice/slow/_uploads"
    begun = registry.ask("POST", "/v2/alice/slow/blobs/uploads/", "alice")
    now = time.time()
    assert remove_uploads(str(registry.storage), 3600, now + 1800).blobs == 0
    assert remove_uploads(str(registry.storage), 3600, now + 7200).blobs == 1
    assert not list(uploads.iterdir())
    # The registry runs meanwhile; who goes on after all is told to begin again.
    assert registry.ask("PATCH", begun.headers["location"], "alice", b"rest").status == 404
    assert registry.push("alice", "alice/slow", "v1", b"layer").status == 201
    assert remove_uploads(str(registry.storage), 3600, now + 7200).blobs == 0
    assert registry.pull("alice", "alice/slow", "v1") == [b"layer"]


def test_nothing_is_freed_if_something_cannot_be_read(registry: LocalRegistry, monkeypatch: Any) -> None:
    assert registry.push("alice", "alice/a", "v1", b"layer").status == 201
    assert registry.push("alice", "alice/b", "v1", b"other").status == 201
    delete(registry, "alice/a", "v1")
    before, real = blobs(registry), layout.references

    def fails(root: str, asked: str) -> frozenset[str]:
        if asked == digest(registry, "alice/b", "v1"):
            raise OSError(5, "Input/output error", "a disk")
        return real(root, asked)

    monkeypatch.setattr(layout, "references", fails)
    with pytest.raises(OSError, match="Input/output error"):
        collect(str(registry.storage), Ages(0, 0), time.time() + 1)
    assert blobs(registry) == before


def test_it_does_not_run_beside_the_registry_that_writes(registry: LocalRegistry, capsys: Any) -> None:
    words = ["--storage", str(registry.storage), "--socket", str(registry.place(plan.socket_of("write")))]
    assert store.main([*words, "collect"]) == 1
    assert "is running" in capsys.readouterr().out
    registry.stop("write")
    try:
        assert store.main([*words, "collect", "--record", str(registry.base / "collected")]) == 0
    finally:
        registry.start("write")
    assert (registry.base / "collected").read_text() == "0\n"


def test_a_push_under_way_is_waited_for(registry: LocalRegistry, capsys: Any) -> None:
    socket = str(registry.place(plan.socket_of("write")))
    begun = registry.ask("POST", "/v2/alice/w/blobs/uploads/", "alice")
    path = begun.headers["location"].partition(f":{registry.port}")[2]
    connection = http.client.HTTPSConnection("127.0.0.1", registry.port, context=registry.tls, timeout=60)
    connection.putrequest("PATCH", path)
    connection.putheader("Authorization", "Basic " + base64.b64encode(b"alice:alice-secret-123").decode())
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"five")
    until = time.monotonic() + 30
    while store.sockets(socket, Path(store.SOCKETS).read_text())[1] != 1:
        assert time.monotonic() < until
    # Who pushes all the time, however little, does not keep others' space.
    assert store.wait(socket, 0) == 0
    assert "1 requests are cut now" in capsys.readouterr().out
    done: list[int] = []
    waiting = threading.Thread(target=lambda: done.append(store.wait(socket, 60)))
    waiting.start()
    connection.send(b" more!")
    assert connection.getresponse().status == 202
    connection.close()
    waiting.join(timeout=60)
    assert done == [0]


# --- nothing that was acknowledged is lost ---


class Pusher(threading.Thread):
    """Pushes images, each with a layer that all of them share, and moves a tag. Of each it knows whether it was
    acknowledged."""

    def __init__(self, registry: LocalRegistry, user: str) -> None:
        super().__init__()
        self.registry, self.user, self.ended = registry, user, threading.Event()
        self.acknowledged: dict[str, list[bytes]] = {}
        self.latest: set[bytes] = set()
        self.failed = 0

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            own = f"{self.user} {number}".encode() * 500
            try:
                done = self.registry.push(self.user, f"{self.user}/img", f"v{number}", b"shared by all", own)
                if done.status != 201:
                    self.failed += 1
                    continue
                self.acknowledged[f"v{number}"] = [b"shared by all", own]
                moved = self.registry.push(self.user, f"{self.user}/img", "latest", own)
                self.latest = {own} if moved.status == 201 else self.latest | {own}
            except OSError:
                self.failed += 1
                self.latest.add(own)


def check(registry: LocalRegistry, pushers: list[Pusher]) -> None:
    for pusher in pushers:
        for tag, layers in pusher.acknowledged.items():
            assert registry.pull(pusher.user, f"{pusher.user}/img", tag) == layers, (pusher.user, tag)
        if pusher.latest:
            (layer,) = registry.pull(pusher.user, f"{pusher.user}/img", "latest")
            assert layer in pusher.latest


def pushing(registry: LocalRegistry) -> list[Pusher]:
    pushers = [Pusher(registry, user) for user in ("alice", "bob")]
    for pusher in pushers:
        pusher.start()
    return pushers


def acknowledges(pushers: list[Pusher], more: int) -> None:
    """Wait until this many more are acknowledged of each."""
    until = time.monotonic() + 60
    had = [len(pusher.acknowledged) for pusher in pushers]
    while any(len(one.acknowledged) < before + more for one, before in zip(pushers, had, strict=True)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_freeing_beside_pushes_loses_nothing_that_was_acknowledged(registry: LocalRegistry) -> None:
    pushers = pushing(registry)
    freed = 0
    try:
        for number in range(6):
            acknowledges(pushers, 2)
            tag = next(iter(pushers[0].acknowledged))
            del pushers[0].acknowledged[tag]
            delete(registry, "alice/img", tag)
            # Without a grace at all, even layers go whose manifest comes next; that push fails and is no loss.
            freed += free(registry, grace_s=0 if number % 2 else DAY).blobs
            check(registry, [])
    finally:
        for pusher in pushers:
            pusher.ended.set()
        for pusher in pushers:
            pusher.join()
    assert freed > 0
    check(registry, pushers)


@pytest.mark.parametrize("names", [("write",), ("read",), ("write", "read"), ("nginx",)])
def test_a_kill_in_the_middle_of_pushes_loses_nothing_that_was_acknowledged(
    registry: LocalRegistry, names: tuple[str, ...]
) -> None:
    chance = random.Random(1)
    pushers = pushing(registry)
    try:
        for _number in range(5):
            acknowledges(pushers, 1)
            time.sleep(chance.random() * 0.1)
            if "nginx" in names:
                # With its workers.
                registry.stop("nginx", how=signal.SIGTERM)
            else:
                registry.stop(*names, how=signal.SIGKILL)
            if "write" in names:
                mend(str(registry.storage))
            registry.start(*names)
    finally:
        for pusher in pushers:
            pusher.ended.set()
        for pusher in pushers:
            pusher.join()
    check(registry, pushers)


def test_a_cut_in_the_middle_of_freeing_loses_nothing(registry: LocalRegistry, monkeypatch: Any) -> None:
    for number in range(6):
        assert registry.push("alice", "alice/img", f"v{number}", b"shared", str(number).encode()).status == 201
    for number in range(3):
        delete(registry, "alice/img", f"v{number}")
    real, left = host_files.remove, [0]

    class Cut(Exception):
        pass

    def remove(path: str) -> None:
        if not left[0]:
            raise Cut
        left[0] -= 1
        real(path)

    cuts = 0
    registry.stop("write")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(host_files, "remove", remove)
            for steps in range(100):
                left[0] = steps % 3
                try:
                    collect(str(registry.storage), Ages(0, 0), time.time() + 1)
                    break
                except Cut:
                    cuts += 1
                    for number in range(3, 6):
                        assert registry.pull("alice", "alice/img", f"v{number}") == [b"shared", str(number).encode()]
    finally:
        registry.start("write")
    assert cuts > 3
    assert digest_of(b"0") not in blobs(registry)
    assert registry.pull("alice", "alice/img", "v5") == [b"shared", b"5"]


# --- mending ---


def test_a_tag_whose_link_was_cut_gets_its_manifest_back(registry: LocalRegistry) -> None:
    for layer in (b"old", b"new"):
        assert registry.push("alice", "alice/cut", "latest", layer).status == 201
        if layer == b"old":
            old = digest(registry, "alice/cut", "latest")
            os.utime(
                registry.storage
                / "docker/registry/v2/repositories/alice/cut/_manifests/tags/latest/index"
                / old.replace(":", "/")
                / "link",
                (1, 1),
            )
    link = registry.storage / "docker/registry/v2/repositories/alice/cut/_manifests/tags/latest/current/link"
    link.write_text("")
    assert registry.pull("alice", "alice/cut", "latest") != [b"new"]
    mended = mend(str(registry.storage))
    assert mended.tags == ["alice/cut:latest"]
    assert registry.pull("alice", "alice/cut", "latest") == [b"new"]
    assert mend(str(registry.storage)) == ([], [])


def test_a_manifest_that_was_cut_can_be_pushed_again(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/cut", "v1", b"layer").status == 201
    found = digest(registry, "alice/cut", "v1")
    data = Path(layout.blob_path(str(registry.storage), found))
    whole = data.read_bytes()
    for cut in (b"", whole[:100]):
        data.write_bytes(cut)
        # The registry takes what is there for the manifest.
        assert registry.push("alice", "alice/cut", "v1", b"layer").status == 201
        assert data.read_bytes() == cut
        assert mend(str(registry.storage)).blobs == [found]
        assert registry.push("alice", "alice/cut", "v1", b"layer").status == 201
        assert registry.pull("alice", "alice/cut", "v1") == [b"layer"]


def test_an_empty_layer_is_no_fault(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/empty", "v1", b"").status == 201
    assert mend(str(registry.storage)) == ([], [])
    assert registry.pull("alice", "alice/empty", "v1") == [b""]


# --- copies ---


def restored(registry: LocalRegistry, copy: Path) -> None:
    """The copy takes the place of the storage."""
    registry.stop("read", "write")
    shutil.rmtree(registry.storage / "docker")
    shutil.copytree(copy / "docker", registry.storage / "docker")
    registry.start("read", "write")


def test_a_copy_has_every_image_whole_and_loses_those_that_were_deleted(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("alice/a", "alice/deep/b"):
        assert registry.push("alice", name, "v1", b"shared", name.encode()).status == 201
    one = child(registry, "alice/multi", b"one")
    put_index(registry, "alice/multi", "v1", one)
    first = backup(str(registry.storage), str(copy))
    assert (first.repositories, first.damaged) == (3, [])
    assert backup(str(registry.storage), str(copy)).blobs == 0
    delete(registry, "alice/a", "v1")
    assert registry.push("alice", "alice/deep/b", "v2", b"later").status == 201
    backup(str(registry.storage), str(copy))
    restored(registry, copy)
    assert registry.pull("alice", "alice/deep/b", "v1") == [b"shared", b"alice/deep/b"]
    assert registry.pull("alice", "alice/deep/b", "v2") == [b"later"]
    assert registry.pull("alice", "alice/multi", digest_of(one)) == [b"one"]
    assert registry.pull("alice", "alice/a", "v1") == 404
    assert digest_of(b"alice/a") not in {found for found, _status in layout.blobs(str(copy))}


def test_what_a_copy_that_was_killed_has_left_takes_no_space(registry: LocalRegistry, tmp_path: Path) -> None:
    assert registry.push("alice", "alice/train", "v1", b"layer").status == 201
    left = Path(layout.blob_path(str(tmp_path), f"sha256:{'0' * 64}")).with_name("data.new")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 1000)
    assert backup(str(registry.storage), str(tmp_path)).damaged == []
    assert not list(tmp_path.rglob("*.new"))


def test_a_copy_that_is_made_beside_pushes_is_consistent(registry: LocalRegistry, tmp_path: Path) -> None:
    pushers = pushing(registry)
    known: list[dict[str, list[bytes]]] = []
    try:
        for _number in range(3):
            acknowledges(pushers, 2)
            known = [dict(pusher.acknowledged) for pusher in pushers]
            backup(str(registry.storage), str(tmp_path))
    finally:
        for pusher in pushers:
            pusher.ended.set()
        for pusher in pushers:
            pusher.join()
    restored(registry, tmp_path)
    for pusher, tags in zip(pushers, known, strict=True):
        # A tag that moves is where it was at some time.
        pusher.acknowledged, pusher.latest = tags, set()
    check(registry, pushers)


def test_a_damaged_blob_is_named_and_does_not_overwrite_the_copy(
    registry: LocalRegistry, tmp_path: Path, capsys: Any
) -> None:
    assert registry.push("alice", "alice/a", "v1", b"layer").status == 201
    Path(layout.blob_path(str(registry.storage), digest_of(b"layer"))).write_bytes(b"rotten")
    words = ["--storage", str(registry.storage), "backup", "--target", str(tmp_path)]
    assert store.main(words) == 1
    assert digest_of(b"layer") in capsys.readouterr().out
    assert not os.path.exists(layout.blob_path(str(tmp_path), digest_of(b"layer")))
    assert store.main(["--storage", str(registry.storage), "backup", "--target", str(tmp_path / "none")]) == 1


# --- refusals ---


class Space:
    """A storage whose free space is what it is told."""

    def __init__(self, registry: LocalRegistry, quota: int = 0) -> None:
        self.registry, self.free, self.now = registry, 1 << 40, time.time()
        self.limits = registry.base / "limits.json"
        self.give(quota)
        self.said: list[str] = []
        self.watch = Watch(
            str(registry.storage),
            str(self.limits),
            str(registry.refused),
            str(registry.base / "registry.prom"),
            free=lambda path: self.free,
            clock=lambda: self.now,
            say=lambda text, priority: self.said.append(text),
        )

    def give(self, quota: int) -> None:
        quotas = {"alice": quota} if quota else {}
        document = {"host": "reg1", "min_free": 100 << 20, "quotas": quotas}
        self.limits.write_text(json.dumps(document))

    def look(self) -> str:
        self.now += 3600
        return self.watch.look()


def test_a_user_over_the_quota_is_told_so_and_can_push_after_deleting(registry: LocalRegistry) -> None:
    space = Space(registry, quota=100_000)
    assert space.look() == ""
    for number in range(2):
        assert registry.push("alice", f"alice/n{number}", "v1", os.urandom(60_000)).status == 201
    assert space.look() == ""
    refused = registry.push("alice", "alice/more", "v1", b"x")
    assert (refused.status, refused.code) == (403, "DENIED")
    assert "reg1" in refused.message
    assert "alice has 0.1 MiB of 0.1 MiB" in refused.message
    assert registry.push("bob", "bob/more", "v1", b"x").status == 201
    delete(registry, "alice/n0", "v1")
    # Its layers count until they are freed.
    space.now += 2 * DAY
    space.look()
    assert registry.push("alice", "alice/more", "v1", b"x").status == 403
    free(registry)
    space.look()
    assert registry.push("alice", "alice/more", "v1", b"x").status == 201
    text = (registry.base / "registry.prom").read_text()
    assert 'baremetal_gpu_registry_quota_bytes{namespace="alice"} 100000' in text
    assert 'baremetal_gpu_registry_refuses{namespace="alice"} 0' in text


def test_layers_without_an_image_count_as_long_as_they_are_on_the_disk(registry: LocalRegistry) -> None:
    space = Space(registry, quota=100_000)
    layer = os.urandom(120_000)
    assert registry.push_blob("alice", "alice/layers", layer).status == 201
    for _day in range(3):
        space.now += DAY
        space.look()
        refused = registry.push("alice", "alice/more", "v1", b"x")
        assert (refused.status, refused.code) == (403, "DENIED")
    # Nor does a layer that its user takes out of the repository become nobody's.
    path = f"/v2/alice/layers/blobs/{digest_of(layer)}"
    assert registry.ask("DELETE", path, "alice").status == 404
    assert registry.ask("HEAD", path, "alice").status == 200
    space.give(0)
    space.look()


def test_a_new_quota_counts_without_a_restart(registry: LocalRegistry) -> None:
    space = Space(registry, quota=10)
    assert registry.push("alice", "alice/a", "v1", b"more than ten bytes").status == 201
    space.look()
    assert registry.push("alice", "alice/a", "v2", b"x").status == 403
    space.give(1 << 30)
    space.look()
    assert registry.push("alice", "alice/a", "v2", b"x").status == 201


def test_too_little_free_space_refuses_pushes_of_all_and_names_the_host(registry: LocalRegistry) -> None:
    space = Space(registry)
    begun = registry.ask("POST", "/v2/alice/a/blobs/uploads/", "alice")
    path = begun.headers["location"].partition(f":{registry.port}")[2]
    space.free = 50 << 20
    space.look()
    refused = registry.push("alice", "alice/a", "v1", b"x")
    assert refused.status == 403
    assert "reg1: 50.0 MiB are free; the minimum is 100.0 MiB" in refused.message
    # What was begun has the rest of the space.
    sent = registry.ask("PATCH", path, "alice", b"x")
    assert sent.status == 202
    space.free = 5 << 20
    space.look()
    path = sent.headers["location"].partition(f":{registry.port}")[2]
    assert registry.ask("PATCH", path, "alice", b"x").status == 403
    space.free = 1 << 40
    space.look()
    assert registry.push("alice", "alice/a", "v1", b"x").status == 201
    assert len(space.said) == 4


def test_images_can_be_deleted_where_nothing_else_can_be_written(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/a", "v1", b"x").status == 201
    space = Space(registry)
    space.free = 0
    space.look()
    delete(registry, "alice/a", "v1")
    assert registry.pull("alice", "alice/a", "v1") == 404
    space.free = 1 << 40
    space.look()


def test_a_storage_that_cannot_be_read_refuses_pushes(registry: LocalRegistry, monkeypatch: Any) -> None:
    space = Space(registry)

    def fails(_self: Any) -> dict[str, int]:
        raise OSError(5, "Input/output error", "/srv/images")

    with monkeypatch.context() as patch:
        patch.setattr(Usage, "measure", fails)
        assert "Input/output error" in space.look()
    refused = registry.push("alice", "alice/a", "v1", b"x")
    assert (refused.status, "cannot be read" in refused.message) == (403, True)
    assert space.look() == ""
    assert registry.push("alice", "alice/a", "v1", b"x").status == 201


def test_broken_limits_keep_the_refusals_that_are_there(registry: LocalRegistry) -> None:
    space = Space(registry)
    space.free = 0
    space.look()
    space.limits.write_text("{")
    assert "gpuops up --tags registry" in space.look()
    assert registry.push("alice", "alice/a", "v1", b"x").status == 403
    space.give(0)
    space.free = 1 << 40
    space.look()
    assert registry.push("alice", "alice/a", "v1", b"x").status == 201


def test_a_link_that_was_cut_says_again_what_its_path_says(registry: LocalRegistry) -> None:
    assert registry.push("bob", "bob/img", "v1", b"one", b"two").status == 201
    links = [*registry.storage.glob("**/_layers/sha256/*/link"), *registry.storage.glob("**/revisions/sha256/*/link")]
    assert len(links) >= 3
    for link in links:
        link.write_text("")
    assert registry.pull("bob", "bob/img", "v1") != [b"one", b"two"]
    mend(str(registry.storage))
    assert registry.pull("bob", "bob/img", "v1") == [b"one", b"two"]
