# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a distribution, with an engine that is made up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import prefetch, relay
from tests.unit.plugins.module_utils.images.test_relay import IMAGE, SIZE, contents_of, filled, relay_pair


class Engine:
    """Fetches the manifest and all blobs from wherever it is told to, as an engine does; notes how."""

    def __init__(self) -> None:
        self.images: list[str] = []
        self.calls: list[list[str]] = []
        self.logins: list[dict[str, Any]] = []

    def __call__(self, words: list[str], given: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(words)
        if "inspect" in words:
            return (0 if words[-1] in self.images else 1), "", ""
        if "pull" in words:
            place = Path(words[words.index("--config") + 1]) / "config.json"
            self.logins.append(json.loads(place.read_text())["auths"])
            assert place.stat().st_mode & 0o077 == 0
            self.images.append(words[-1])
        if "rmi" in words:
            self.images.remove(words[-1])
        return 0, "", ""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[relay.Server]:
    server = relay.Server(("127.0.0.1", 0), filled(tmp_path / "registry"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def node(tmp_path: Path, engine: Engine, registry: relay.Server, **changes: Any) -> prefetch.Node:
    certificate, key = (Path(path).read_text() for path in relay_pair(tmp_path))
    given = {
        "reference": f"127.0.0.1:{registry.server_address[1]}/catalogue/base",
        "digest": IMAGE.digest,
        "manifest": IMAGE.manifest,
        "before": [],
        "port": 0,
        "certificate": certificate,
        "key": key,
        "login": "alice:s3cret",
        "engine": "docker",
        "directory": str(tmp_path / "images"),
        "linger": 0,
        "run": engine,
    }
    return prefetch.Node(**{**given, **changes})


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of the test speaks without TLS."""
    monkeypatch.setattr(
        prefetch.Node,
        "_sources",
        lambda self, context: [relay.Source(self._host, self._port, self.repository, None, self.login)],
    )


def test_the_engine_has_the_image_by_its_own_name_and_nothing_is_left(tmp_path, registry, monkeypatch) -> None:
    plain(monkeypatch)
    engine = Engine()
    told = node(tmp_path, engine, registry).fetch()
    assert engine.images == [f"127.0.0.1:{registry.server_address[1]}/catalogue/base@{IMAGE.digest}"]
    assert (told["size"], told["fetched"], told["served"]) == (SIZE, SIZE, 0)
    assert list((tmp_path / "images").iterdir()) == []
    assert node(tmp_path, engine, registry).has_image()


def test_no_command_of_the_engine_has_a_password(tmp_path, registry, monkeypatch) -> None:
    plain(monkeypatch)
    engine = Engine()
    node(tmp_path, engine, registry).fetch()
    words = " ".join(word for call in engine.calls for word in call)
    assert "s3cret" not in words
    assert len(engine.logins) == 2
    assert not [one["auth"] for row in engine.logins for one in row.values() if one["auth"] in words]


def test_a_failure_of_the_engine_is_told_and_keeps_what_was_fetched(tmp_path, registry, monkeypatch) -> None:
    plain(monkeypatch)

    def broken(words: list[str], given: str | None, timeout: float) -> tuple[int, str, str]:
        return 1, "", "no space left on device"

    with pytest.raises(Refused, match=r"docker does not take .*no space left on device"):
        node(tmp_path, broken, registry).fetch()  # type: ignore[arg-type]
    kept = relay.Store(str(tmp_path / "images" / IMAGE.digest.replace(":", "-")), IMAGE)
    assert contents_of(kept) == contents_of(registry.store)


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path, registry, monkeypatch) -> None:
    plain(monkeypatch)
    monkeypatch.setattr(prefetch, "SPARE", 1 << 60)
    with pytest.raises(Refused, match="MiB free"):
        node(tmp_path, Engine(), registry).fetch()
    assert registry.sent == 0


def test_an_engine_that_is_not_there_is_told_with_a_remedy(tmp_path, registry) -> None:
    def missing(words: list[str], given: str | None, timeout: float) -> tuple[int, str, str]:
        return 127, "", "not found"

    with pytest.raises(Refused, match="run `gpuops up --tags containers`"):
        node(tmp_path, missing, registry).has_image()  # type: ignore[arg-type]


@pytest.mark.parametrize("reference", ["base", "r:5000/Base", "r:5000/../x", "r:5000/a --all", "-r:5000/a"])
def test_what_is_no_image_comes_to_no_command(tmp_path, registry, reference: str) -> None:
    engine = Engine()
    with pytest.raises(Refused, match="is not an image"):
        node(tmp_path, engine, registry, reference=reference)
    assert engine.calls == []


def test_who_has_no_login_gets_nothing_over_the_loopback(tmp_path) -> None:
    server = relay.Server(("127.0.0.1", 0), filled(tmp_path / "store"), login="image:word")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = int(server.server_address[1])
        with pytest.raises(OSError, match="login"):
            relay.Source("127.0.0.1", port, "catalogue/base").open(IMAGE.blobs[0].digest, 0)
        with pytest.raises(OSError, match="401"):
            relay.Source("127.0.0.1", port, "catalogue/base", login="image:other").open(IMAGE.blobs[0].digest, 0)
        connection, _answer = relay.Source("127.0.0.1", port, "x", login="image:word").open(IMAGE.blobs[0].digest, 0)
        connection.close()
    finally:
        server.shutdown()
        server.server_close()


def test_the_nodes_before_one_serve_it_the_nearest_first() -> None:
    assert prefetch.before(["a", "b", "c", "d"], "c") == ["b", "a"]
    assert prefetch.before(["a", "b"], "a") == []
    assert prefetch.before([], "a") == []
