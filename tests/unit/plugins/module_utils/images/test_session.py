# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a container becomes a layer. The directory is as overlay keeps what a container has changed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.images import session

KEPT = {
    "usr/local/lib/python3.13/dist-packages/lightning/__init__.py": "version = 1",
    "opt/tool/run": "#!/bin/sh",
    "home/alice/notes.txt": "mine",
}
SECRET = {
    "home/alice/.ssh/id_ed25519": "key",
    "home/alice/.bash_history": "export TOKEN=abc",
    "home/alice/.cache/huggingface/token": "hf",
    "home/alice/project/.env": "PASSWORD=x",
    "home/alice/.config/gh/hosts.yml": "oauth",
    "home/alice/.docker/config.json": "auth",
    "root/.python_history": "x",
    "run/secrets/token": "x",
    "tmp/upload": "x",
    "var/log/dpkg.log": "x",
    "etc/resolv.conf": "",
    "etc/sudoers.d/session": "x",
}


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    for name, text in {**KEPT, **SECRET}.items():
        path = tmp_path / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "upper/opt/link").symlink_to("tool")
    return tmp_path / "upper"


def names(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {row.name: row for row in archive.getmembers()}


def test_a_layer_has_what_was_written_and_no_secret(upper: Path, tmp_path: Path) -> None:
    told = session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    found = names(tmp_path / "layer")
    assert set(KEPT) <= set(found)
    assert found["opt/link"].linkname == "tool"
    assert not [name for name in found if name in SECRET or session.is_left_out(name)]
    content = gzip.decompress((tmp_path / "layer").read_bytes())
    assert not [text for text in ("TOKEN=abc", "PASSWORD=x", "oauth") if text.encode() in content]
    assert "home/alice/.ssh" in told["left_out"]


def test_a_further_name_of_a_secret_is_a_secret_too(upper: Path, tmp_path: Path) -> None:
    """As an installer or a program that backs up makes one."""
    for name, other in {
        "root/.netrc": "opt/backup",
        "home/alice/.ssh/id": "opt/deep/key",
        "opt/.env": "a-first",
    }.items():
        for path in (name, other):
            (upper / path).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text(f"the secret {name}")
        (upper / other).hardlink_to(upper / name)
    # What installers link from what they keep, and what is linked elsewhere, is no secret.
    (upper / "opt/lib.so").write_text("a library")
    for path in ("root/.cache/pip/lib.so", "tmp/lib.so", "opt/zlib.so"):
        (upper / path).parent.mkdir(parents=True, exist_ok=True)
        (upper / path).hardlink_to(upper / "opt/lib.so")
    told = session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    found = names(tmp_path / "layer")
    assert not {"opt/backup", "opt/deep/key", "a-first"} & set(found)
    assert {"opt/backup", "opt/deep/key", "a-first"} <= set(told["left_out"])
    assert b"the secret" not in gzip.decompress((tmp_path / "layer").read_bytes())
    assert found["opt/zlib.so"].linkname == "opt/lib.so"


def test_the_digests_are_those_of_the_file_and_of_what_it_unpacks_to(upper: Path, tmp_path: Path) -> None:
    told = session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    content = (tmp_path / "layer").read_bytes()
    assert told["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert told["diff_id"] == f"sha256:{hashlib.sha256(gzip.decompress(content)).hexdigest()}"
    assert told["size"] == len(content)


def test_the_same_changes_give_the_same_layer(upper: Path, tmp_path: Path) -> None:
    one, other = (session.write_layer(str(upper), str(tmp_path / name), 1 << 20) for name in ("one", "other"))
    assert one == other


def test_nobody_else_reads_the_layer_on_its_way(upper: Path, tmp_path: Path) -> None:
    session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    assert (tmp_path / "layer").stat().st_mode & 0o777 == 0o600


def test_a_layer_is_not_written_over_another_file(upper: Path, tmp_path: Path) -> None:
    (tmp_path / "layer").write_text("somebody else's")
    with pytest.raises(FileExistsError):
        session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    assert (tmp_path / "layer").read_text() == "somebody else's"


def test_more_than_the_limit_is_refused(upper: Path, tmp_path: Path) -> None:
    (upper / "opt/data").write_bytes(os.urandom(100_000))
    with pytest.raises(Refused, match="more than 0 MiB"):
        session.write_layer(str(upper), str(tmp_path / "layer"), 50_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes the devices by which overlay says that a file is gone")
def test_what_the_container_has_removed_is_gone_in_the_image(upper: Path, tmp_path: Path) -> None:
    os.mknod(upper / "opt/old", 0o020000, 0)
    os.setxattr(upper / "opt/tool", session.OPAQUE, b"y")
    session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)
    assert {"opt/.wh.old", "opt/tool/.wh..wh..opq"} <= set(names(tmp_path / "layer"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the attributes of overlay")
def test_a_directory_that_overlay_has_only_noted_as_moved_is_refused(upper: Path, tmp_path: Path) -> None:
    os.setxattr(upper / "opt/tool", session.REDIRECT, b"/usr")
    with pytest.raises(Refused, match="/opt/tool was moved"):
        session.write_layer(str(upper), str(tmp_path / "layer"), 1 << 20)


CONTAINER = {
    "Image": f"sha256:{'1' * 64}",
    "State": {"Running": True},
    "GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/var/lib/docker/overlay2/x/diff"}},
}
IMAGE = {"RepoDigests": [f"registry1:5000/catalogue/base@sha256:{'2' * 64}"], "RootFS": {"Layers": ["a"]}}


def engine(container: dict[str, Any], calls: list[list[str]]) -> Any:
    def run(words: list[str], given: str | None, timeout: float) -> tuple[int, str, str]:
        calls.append(words)
        return 0, json.dumps([IMAGE if words[1] == "image" else container]), ""

    return run


def test_a_container_says_where_its_changes_are_and_what_it_is_from() -> None:
    found = session.inspect(engine(CONTAINER, []), "docker", "alice-1")
    assert found["upper"] == "/var/lib/docker/overlay2/x/diff"
    assert found["sources"] == IMAGE["RepoDigests"]
    assert found["running"]


def test_another_way_of_keeping_containers_is_refused() -> None:
    other = {**CONTAINER, "GraphDriver": {"Name": "btrfs", "Data": None}}
    with pytest.raises(Refused, match="by the driver 'btrfs'"):
        session.inspect(engine(other, []), "docker", "alice-1")


@pytest.mark.parametrize("name", ["-v", "a;b", "", "x" * 200])
def test_what_is_no_name_of_a_container_comes_to_no_command(name: str) -> None:
    calls: list[list[str]] = []
    with pytest.raises(Refused, match="is not a container"):
        session.inspect(engine(CONTAINER, calls), "docker", name)
    assert calls == []


def test_a_container_goes_on_after_a_failure() -> None:
    calls: list[list[str]] = []
    with pytest.raises(OSError, match="full"), session.paused(engine(CONTAINER, calls), "docker", "alice-1", True):
        raise OSError("full")
    assert calls == [["docker", "pause", "alice-1"], ["docker", "unpause", "alice-1"]]
