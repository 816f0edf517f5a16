# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what at the registry: Debian's nginx and docker-registry with the configuration of the role, over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_registry import INDEX, MANIFEST, PASSWORDS, LocalRegistry, digest_of, manifest, missing_programs
from tests.local_zookeeper import free_port
from tests.unit.simulators.mesos_cluster import until

pytestmark = pytest.mark.skipif(bool(missing_programs()), reason=missing_programs() or "nothing is missing")

SECRET = b"a layer that is alice's alone"
SHARED = b"a layer of the catalogue"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    found = LocalRegistry(tmp_path_factory.mktemp("registry"))
    try:
        found.start()
        assert found.push("alice", "alice/secret", "v1", SECRET).status == 201
        assert found.push("operator", "catalogue/base", "v1", SHARED).status == 201
        assert found.push("operator", "open/tools", "v1", b"for everybody").status == 201
        yield found
    finally:
        found.stop()


def stored(registry: LocalRegistry) -> set[str]:
    """Manifests and layers of repositories: what a push leaves behind."""
    root = registry.storage / "docker/registry/v2/repositories"
    return {str(path.relative_to(root)) for path in root.rglob("link")}


# --- a user's own ---


@pytest.mark.parametrize(
    "repository", ["alice/x", "alice", "alice/deep/er/name", "alice/blobs/uploads", "alice/a_b__c"]
)
def test_a_user_pushes_and_pulls_below_the_own_name(registry: LocalRegistry, repository: str) -> None:
    assert registry.push("alice", repository, "v1", b"mine").status == 201
    assert registry.pull("alice", repository, "v1") == [b"mine"]


def test_a_user_deletes_the_own_image(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/short", "v1", b"gone soon").status == 201
    digest = registry.ask("HEAD", "/v2/alice/short/manifests/v1", "alice", headers={"Accept": MANIFEST}).headers[
        "docker-content-digest"
    ]
    assert registry.ask("DELETE", f"/v2/alice/short/manifests/{digest}", "alice").status == 202
    assert registry.pull("alice", "alice/short", "v1") == 404


def test_an_image_of_several_architectures(registry: LocalRegistry) -> None:
    assert registry.push("alice", "alice/both", "one", b"of one").status == 201
    config = json.dumps({"tag": "one", "repository": "alice/both"}).encode()
    child = manifest(config, b"of one")
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {
                "mediaType": MANIFEST,
                "size": len(child),
                "digest": digest_of(child),
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        ],
    }
    assert registry.put("alice", "alice/both", "all", json.dumps(index).encode(), INDEX).status == 201
    assert registry.pull("alice", "alice/both", digest_of(child)) == [b"of one"]


def test_an_upload_in_chunks_goes_on_where_it_was(registry: LocalRegistry) -> None:
    begun = registry.ask("POST", "/v2/alice/chunks/blobs/uploads/", "alice")
    path = begun.headers["location"].partition(f":{registry.port}")[2]
    for number in range(3):
        words = {"Content-Type": "application/octet-stream", "Content-Range": f"{number * 1000}-{number * 1000 + 999}"}
        sent = registry.ask("PATCH", path, "alice", bytes([number]) * 1000, words)
        assert sent.status == 202
        path = sent.headers["location"].partition(f":{registry.port}")[2]
        told = registry.ask("GET", path, "alice")
        assert (told.status, told.headers["range"]) == (204, f"0-{number * 1000 + 999}")
    whole = b"".join(bytes([number]) * 1000 for number in range(3))
    assert registry.ask("PUT", f"{path}&digest={digest_of(whole)}", "alice").status == 201
    assert registry.ask("GET", f"/v2/alice/chunks/blobs/{digest_of(whole)}", "alice").body == whole


# --- of others ---


@pytest.mark.parametrize("repository", ["alice/secret", "alice", "alicex/x", "alic/x", "catalogue/base", "open/tools"])
def test_a_push_elsewhere_is_refused_and_leaves_nothing(registry: LocalRegistry, repository: str) -> None:
    before = stored(registry)
    begun = registry.push_blob("bob", repository, b"intruder")
    assert (begun.status, begun.code) == (403, "DENIED")
    assert "reg1" in begun.message
    content = manifest(b"{}", b"intruder")
    assert registry.put("bob", repository, "v1", content, MANIFEST).status == 403
    assert stored(registry) == before


@pytest.mark.parametrize(("user", "status"), [("bob", 403), ("", 401)])
def test_nobody_else_pulls_lists_or_deletes(registry: LocalRegistry, user: str, status: int) -> None:
    digest = digest_of(SECRET)
    for method, path in (
        ("GET", "/v2/alice/secret/manifests/v1"),
        ("HEAD", "/v2/alice/secret/manifests/v1"),
        ("GET", "/v2/alice/secret/tags/list"),
        ("GET", f"/v2/alice/secret/blobs/{digest}"),
        ("DELETE", f"/v2/alice/secret/manifests/{digest}"),
        ("DELETE", "/v2/catalogue/base/manifests/v1"),
    ):
        assert registry.ask(method, path, user).status == status, (method, path)
    assert registry.pull("alice", "alice/secret", "v1") == [SECRET]


@pytest.mark.parametrize("user", ["alice", "bob", "operator"])
def test_a_layer_alone_nobody_deletes(registry: LocalRegistry, user: str) -> None:
    answer = registry.ask("DELETE", f"/v2/alice/secret/blobs/{digest_of(SECRET)}", user)
    assert (answer.status, answer.code) == (404, "UNSUPPORTED")
    assert registry.pull("alice", "alice/secret", "v1") == [SECRET]


MOUNTS = [
    "mount={digest}&from=alice/secret",
    "from=alice/secret&mount={digest}",
    "from=alice%2Fsecret&mount={encoded}",
    "from=%61lice/secret&mount={digest}",
    "%66rom=alice/secret&mount={digest}",
    "from=bob/x&from=alice/secret&mount={digest}",
    "from=alice/secret&from=bob/x&mount={digest}",
    "from=bob/../alice/secret&mount={digest}",
    "from=bob%2F..%2Falice%2Fsecret&mount={encoded}",
    "from=catalogue/base&from=alice/secret&mount={digest}",
    "from=ALICE/secret&mount={digest}",
    "x=1&from=alice/secret&mount={digest}",
    "from=alice/secret;mount={digest}",
    "from=alice/secret&mount={digest}&x=1",
]


@pytest.mark.parametrize("words", MOUNTS)
def test_a_layer_of_another_user_cannot_be_taken_by_its_digest(registry: LocalRegistry, words: str) -> None:
    digest = digest_of(SECRET)
    query = words.format(digest=digest, encoded=digest.replace(":", "%3A"))
    asked = registry.ask("POST", f"/v2/bob/thief/blobs/uploads/?{query}", "bob")
    # The protocol's way to say no: the client is to send the layer itself.
    assert asked.status == 202
    assert registry.ask("GET", f"/v2/bob/thief/blobs/{digest}", "bob").status == 404


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b"])
def test_nor_by_a_form(registry: LocalRegistry, kind: str) -> None:
    digest = digest_of(SECRET)
    body = f"mount={digest}&from=alice/secret"
    if "boundary" in kind:
        parts = (("mount", digest), ("from", "alice/secret"))
        body = "".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in parts
        )
        body += "--b--\r\n"
    asked = registry.ask("POST", "/v2/bob/form/blobs/uploads/", "bob", body.encode(), {"Content-Type": kind})
    assert asked.status == 202
    assert registry.ask("GET", f"/v2/bob/form/blobs/{digest}", "bob").status == 404


@pytest.mark.parametrize(
    ("user", "target", "source", "content"),
    [
        ("alice", "alice/second", "alice/secret", SECRET),
        ("bob", "bob/child", "catalogue/base", SHARED),
        ("bob", "bob/child", "open/tools", b"for everybody"),
        ("operator", "catalogue/second", "alice/secret", SECRET),
    ],
)
def test_a_layer_that_can_be_pulled_is_shared(
    registry: LocalRegistry, user: str, target: str, source: str, content: bytes
) -> None:
    digest = digest_of(content)
    query = f"from={source.replace('/', '%2F')}&mount={digest.replace(':', '%3A')}"
    assert registry.ask("POST", f"/v2/{target}/blobs/uploads/?{query}", user).status == 201
    assert registry.ask("GET", f"/v2/{target}/blobs/{digest}", user).body == content


# --- paths that are not what they seem ---


@pytest.mark.parametrize(
    "path",
    [
        "/v2/bob/../alice/secret/manifests/v1",
        "/v2/bob/..%2falice/secret/manifests/v1",
        "/v2/bob/%2e%2e/alice/secret/manifests/v1",
        "/v2/bob%2f..%2falice/secret/manifests/v1",
        "/v2/bob/./../alice/secret/manifests/v1",
        "/v2//alice/secret/manifests/v1",
        "//v2/alice/secret/manifests/v1",
        "/v2/bob//alice/secret/manifests/v1",
        "/v2/%61lice/secret/manifests/v1",
        "/v2/alice%2fsecret/manifests/v1",
        "/v2/Alice/secret/manifests/v1",
        "/v2/ALICE/secret/manifests/v1",
        "/V2/alice/secret/manifests/v1",
        "/v2/bob/x/manifests/../../../alice/secret/manifests/v1",
        "/v2/bob/x/blobs/uploads/../../../../alice/secret/manifests/v1",
        "/v2/bob\\..\\alice/secret/manifests/v1",
        "/v2/alice/secret/manifests/v1/",
        "/v2/alice/secret/manifests/v1;bob",
        "/v2/alice/secret/manifests/v1%00",
        "/v2/alice/secret/manifests/v1%3fbob",
        "/v2",
        "/v1/repositories/alice/secret/tags",
        "/debug/health",
        "/metrics",
        "/",
    ],
)
def test_a_path_that_is_written_in_another_way_leads_nowhere(registry: LocalRegistry, path: str) -> None:
    for user in ("bob", ""):
        for method in ("GET", "PUT", "DELETE"):
            asked = registry.ask(method, path, user, headers={"Accept": MANIFEST})
            assert asked.status in (400, 401, 403, 404), (method, user, asked)
            assert SECRET not in asked.body
            assert digest_of(SECRET).encode() not in asked.body
    assert registry.pull("alice", "alice/secret", "v1") == [SECRET]


def test_a_url_in_the_request_line_is_no_way_around(registry: LocalRegistry) -> None:
    asked = registry.ask("GET", f"https://127.0.0.1:{registry.port}/v2/alice/secret/manifests/v1", "bob")
    assert asked.status in (400, 403, 404)
    assert b"layers" not in asked.body


@pytest.mark.parametrize("method", ["POST", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND"])
def test_methods_that_the_protocol_does_not_have_are_refused(registry: LocalRegistry, method: str) -> None:
    asked = registry.ask(method, "/v2/alice/secret/manifests/v1", "alice", headers={"Accept": MANIFEST})
    assert asked.status in (400, 404, 405)
    for words in ({"X-HTTP-Method-Override": "DELETE"}, {"X-Original-URI": "/v2/bob/x"}, {"X-Real-IP": "127.0.0.1"}):
        assert registry.ask("GET", "/v2/alice/secret/manifests/v1", "bob", headers=words).status == 403


# --- passwords and tokens ---


@pytest.mark.parametrize("user", ["alice", "bob", "operator", "nobody", "catalogue"])
@pytest.mark.parametrize("password", ["", "wrong", "alice-secret-12"])
def test_a_wrong_password_is_refused(registry: LocalRegistry, user: str, password: str) -> None:
    for path in ("/v2/", "/v2/alice/secret/manifests/v1", "/v2/open/tools/manifests/v1", "/token"):
        asked = registry.ask("GET", path, user, password=password)
        assert asked.status == 401, path
        assert asked.headers["www-authenticate"].startswith('Bearer realm="https://127.0.0.1:')


def test_a_password_that_is_given_as_a_hash(registry: LocalRegistry) -> None:
    assert registry.push("carol", "carol/x", "v1", b"hers").status == 201
    assert registry.ask("GET", "/v2/", "carol", password="carol-secret-123").status == 401


def test_a_token_is_as_good_as_the_password_it_is_from(registry: LocalRegistry) -> None:
    token = json.loads(registry.ask("GET", "/token?service=registry", "alice").body)["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    assert registry.ask("GET", "/v2/", headers=bearer).status == 200
    assert registry.ask("GET", "/v2/alice/secret/tags/list", headers=bearer).status == 200
    assert registry.ask("GET", "/v2/catalogue/base/tags/list", headers=bearer).status == 200
    assert registry.ask("DELETE", "/v2/catalogue/base/manifests/v1", headers=bearer).status == 403
    wrong = base64.b64encode(b"alice:wrong").decode()
    assert registry.ask("GET", "/v2/", headers={"Authorization": f"Bearer {wrong}"}).status == 401


@pytest.mark.parametrize(
    "word", ["Bearer anonymous", "Bearer x", "Basic Og==", "Basic", "Bearer", "Digest a", "x" * 5000]
)
def test_nobody_gets_what_is_public_and_nothing_else(registry: LocalRegistry, word: str) -> None:
    words = {"Authorization": word}
    assert registry.ask("GET", "/v2/alice/secret/tags/list", headers=words).status == 401
    assert registry.ask("GET", "/v2/catalogue/base/tags/list", headers=words).status == 401
    assert registry.ask("GET", "/v2/", headers=words).status == 401
    assert registry.ask("POST", "/v2/open/x/blobs/uploads/", headers=words).status == 401


def test_a_public_image_is_pulled_without_a_login(registry: LocalRegistry) -> None:
    assert registry.pull("", "open/tools", "v1") == [b"for everybody"]
    token = json.loads(registry.ask("GET", "/token?scope=repository:open/tools:pull").body)["token"]
    asked = registry.ask("GET", "/v2/open/tools/tags/list", headers={"Authorization": f"Bearer {token}"})
    assert asked.status == 200


def test_clients_that_post_for_a_token_are_sent_to_the_other_way(registry: LocalRegistry) -> None:
    # containerd then asks by GET.
    assert registry.ask("POST", "/token", "alice", b"grant_type=password").status == 405


# --- all repositories ---


def test_the_operator_alone_lists_all_images_and_may_delete_them(registry: LocalRegistry) -> None:
    listed = json.loads(registry.ask("GET", "/v2/_catalog?n=100", "operator").body)["repositories"]
    assert {"alice/secret", "catalogue/base"} <= set(listed)
    assert registry.ask("GET", "/v2/_catalog", "alice").status == 403
    assert registry.ask("GET", "/v2/_catalog").status == 401
    assert registry.push("operator", "alice/by-operator", "v1", b"x").status == 201
    head = registry.ask("HEAD", "/v2/alice/by-operator/manifests/v1", "operator", headers={"Accept": MANIFEST})
    digest = head.headers["docker-content-digest"]
    assert registry.ask("DELETE", f"/v2/alice/by-operator/manifests/{digest}", "operator").status == 202


def test_a_user_who_was_removed_is_out_at_once(registry: LocalRegistry) -> None:
    assert registry.ask("GET", "/v2/", "bob").status == 200
    path = registry.place("/etc/baremetal-gpu/registry/htpasswd")
    before = path.read_text()
    path.write_text("".join(line for line in before.splitlines(True) if not line.startswith("bob:")))
    try:
        assert registry.ask("GET", "/v2/", "bob").status == 401
    finally:
        path.write_text(before)


# --- refusals for want of space ---


def refuse(registry: LocalRegistry, name: str, message: str) -> Path:
    path = registry.refused / f"{name}.json"
    path.write_text(json.dumps({"errors": [{"code": "DENIED", "message": message}]}))
    return path


@pytest.mark.parametrize(("name", "alice", "bob"), [("space-alice", 403, 201), ("all", 403, 403), ("writes", 403, 403)])
def test_a_push_is_refused_with_the_reason(registry: LocalRegistry, name: str, alice: int, bob: int) -> None:
    reason = refuse(registry, name, "reg1: no space")
    try:
        asked = registry.push("alice", "alice/more", "v1", name.encode())
        assert asked.status == alice
        assert asked.message == "reg1: no space"
        assert registry.push("bob", "bob/more", "v1", name.encode()).status == bob
        # Nothing is told to who does not know the password.
        assert registry.ask("POST", "/v2/alice/more/blobs/uploads/", "alice", password="no").code == "UNAUTHORIZED"
        assert registry.pull("alice", "alice/secret", "v1") == [SECRET]
    finally:
        reason.unlink()
    assert registry.push("alice", "alice/more", "v1", name.encode()).status == 201


def test_what_was_begun_is_finished_when_the_space_gets_short(registry: LocalRegistry) -> None:
    begun = registry.ask("POST", "/v2/alice/begun/blobs/uploads/", "alice")
    path = begun.headers["location"].partition(f":{registry.port}")[2]
    reason = refuse(registry, "all", "reg1: no space")
    try:
        assert registry.ask("PATCH", path, "alice", b"rest").status == 202
    finally:
        reason.unlink()


def test_the_reasons_cannot_be_read_from_outside(registry: LocalRegistry) -> None:
    reason = refuse(registry, "space-bob", "bob has too much")
    try:
        for path in (str(reason), "/run/baremetal-gpu-registry-store/refused/space-bob.json"):
            asked = registry.ask("GET", path, "alice")
            assert asked.status == 404
            assert b"too much" not in asked.body
    finally:
        reason.unlink()


def test_no_word_of_a_login_is_in_a_log(registry: LocalRegistry) -> None:
    token = base64.b64encode(b"alice:alice-secret-123").decode()
    assert registry.ask("GET", "/v2/", "alice").status == 200
    texts = [path.read_text() for path in (registry.base / "log").iterdir()]
    assert texts
    assert not any(word in text for text in texts for word in ("alice-secret-123", token))


def test_images_are_pulled_while_nothing_can_be_written(registry: LocalRegistry) -> None:
    registry.stop("write")
    try:
        assert registry.pull("alice", "alice/secret", "v1") == [SECRET]
        refused = registry.push("alice", "alice/later", "v1", b"later")
        assert (refused.status, refused.code) == (503, "UNAVAILABLE")
        assert "reg1" in refused.message
        shutil.rmtree(registry.place("/run/baremetal-gpu-registry-write"))
        assert registry.push("alice", "alice/later", "v1", b"later").status == 503
    finally:
        registry.start("write")
    assert registry.push("alice", "alice/later", "v1", b"later").status == 201


# --- copies of another registry ---


def test_a_cache_has_what_its_upstream_has_and_takes_nothing(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(registry.base / "tls" / "ca.pem"))
    upstream = {"upstream": f"https://127.0.0.1:{registry.port}", "path": str(tmp_path / "copies")}
    account = {"username": "alice", "password": PASSWORDS["alice"]}
    own = {"name": "own", "port": free_port(), **upstream, **account}
    cache = LocalRegistry(tmp_path, caches=[own])
    try:
        cache.start()
        cache.port = own["port"]
        assert cache.pull("bob", "open/tools", "v1") == [b"for everybody"]
        assert cache.pull("bob", "alice/secret", "v1") == [SECRET]
        assert cache.pull("", "open/tools", "v1") == 401
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert cache.ask(method, "/v2/open/tools/manifests/v1", "operator").status == 403
        assert cache.ask("GET", "/debug/vars", "bob").status == 404
        # A copy is served without the upstream, once it is kept, which is after it was served the first time.
        digest = digest_of(SECRET)
        until(lambda: list((tmp_path / "copies").rglob(f"{digest.partition(':')[2]}/data")))
        registry.stop("nginx")
        assert cache.ask("GET", f"/v2/alice/secret/blobs/{digest}", "bob").body == SECRET
    finally:
        cache.stop()
        registry.start("nginx")
