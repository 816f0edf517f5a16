# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of homes. Mounts and the attributes that CephFS gives are made up; directories are real."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import homes
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.promtool import faults, needs_promtool

GIB = 2**30


class Ceph:
    """Attributes by the name of the home: {name of the attribute: value, or the number of an error}."""

    def __init__(self, **homes: dict[str, bytes | int]) -> None:
        self.homes, self.asked = homes, set[str]()

    def __call__(self, path: str, name: str) -> bytes:
        self.asked.add(os.path.basename(path))
        found = self.homes.get(os.path.basename(path), {}).get(name, errno.ENODATA)
        if isinstance(found, int):
            raise OSError(found, os.strerror(found))
        return found


def home(used: int, quota: int | None = None) -> dict[str, bytes | int]:
    return {homes.USED: str(used).encode(), **({} if quota is None else {homes.QUOTA: str(quota).encode()})}


Table = Callable[..., str]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A file as the kernel's table of mounts; each mount is a path in its words and a type."""

    def made(*mounts: tuple[str, str]) -> str:
        rows = [
            f"{36 + number} 35 0:{number} / {path} rw,relatime shared:1 - {kind} none rw\n".encode(
                errors="surrogateescape"
            )
            for number, (path, kind) in enumerate((("/", "ext4"), *mounts))
        ]
        (tmp_path / "mountinfo").write_bytes(b"".join(rows))
        return str(tmp_path / "mountinfo")

    return made


def users(part: Part, name: str = "cephfs_home_used_bytes") -> dict[str, float]:
    return {labels["user"]: value for metric, labels, value in part.samples if metric == name}


def test_each_home_that_is_mounted_is_told_of_with_its_quota(table: Table) -> None:
    mounts = table(("/home/alice", "ceph"), ("/home/bob", "fuse.ceph-fuse"), ("/home/carol", "ext4"))
    ceph = Ceph(alice=home(7 * GIB, 50 * GIB), bob=home(3), carol=home(1))
    part = homes.look("/home/", mounts, ceph)
    assert users(part) == {"alice": 7 * GIB, "bob": 3.0}
    assert users(part, "cephfs_home_quota_bytes") == {"alice": 50 * GIB, "bob": 0.0}
    assert part.complaints == []
    assert "carol" not in ceph.asked


def test_mounts_that_are_elsewhere_or_below_a_home_are_no_homes(table: Table) -> None:
    mounts = table(("/srv/home/eve", "ceph"), ("/srv/homes/alice/data", "ceph"), ("/data", "ceph"), ("/srv", "autofs"))
    assert homes.look("/srv/homes", mounts, Ceph(eve=home(1), data=home(1))).samples == []


@pytest.mark.parametrize("mount", ["", "/homes"])
def test_where_one_mount_has_all_homes_its_directories_are_homes(tmp_path: Path, table: Table, mount: str) -> None:
    root = tmp_path / "homes"
    for name in ("alice", "bob"):
        (root / name).mkdir(parents=True)
    (root / "a file").touch()
    (root / "link").symlink_to(root / "alice")
    (root / "loop").symlink_to(root / "loop")
    ceph = Ceph(alice=home(1), bob=home(2), link=home(9), loop=home(9), **{"a file": home(9)})
    part = homes.look(str(root), table((f"{tmp_path}{mount}", "ceph")), ceph)
    assert users(part) == {"alice": 1.0, "bob": 2.0}
    assert ceph.asked == {"alice", "bob"}


def test_no_directory_of_another_file_system_is_looked_at(tmp_path: Path, table: Table) -> None:
    (tmp_path / "alice").mkdir()
    ceph = Ceph(alice=home(1))
    part = homes.look(str(tmp_path), table(("/srv", "ceph"), (str(tmp_path), "ext4")), ceph)
    assert (part.samples, part.complaints, ceph.asked) == ([], [], set())
    # With the kernel's own answer: no file system of a test has the attributes.
    assert homes.look(str(tmp_path), table((str(tmp_path), "ceph"))).samples == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (errno.EACCES, "Permission denied"),
        (errno.ENOTCONN, "endpoint is not connected"),
        (b"", "not a number"),
        (b"-1", "not a number"),
        (b"9" * 40, "not a number"),
        (b"7\nup 1", "not a number"),
    ],
)
def test_a_home_that_cannot_be_read_is_told_of_and_hides_no_other(table: Table, wrong: bytes | int, said: str) -> None:
    ceph = Ceph(alice={homes.USED: wrong}, bob=home(2), carol={homes.USED: b"1", homes.QUOTA: wrong})
    part = homes.look("/home", table(("/home/alice", "ceph"), ("/home/bob", "ceph"), ("/home/carol", "ceph")), ceph)
    assert users(part) == {"bob": 2.0}
    assert [said in complaint for complaint in part.complaints] == [True, True]


NAMES = ['eve"} 1', "eve\nup 0", "eve\\", "eve\t\x1b[0m", "eve\udcff\udcfe", "é\u202e", "x" * 255]


@needs_promtool
def test_promtool_takes_homes_with_any_names(tmp_path: Path, table: Table) -> None:
    part = named(tmp_path, table)
    assert faults(exposition(part.samples, METRICS)) == ""


def named(tmp_path: Path, table: Table) -> Part:
    root = tmp_path / "homes"
    for name in NAMES:
        (root / name).mkdir(parents=True)
    return homes.look(str(root), table((str(root), "ceph")), lambda _path, _name: b"1")


def test_names_of_directories_are_labels_and_nothing_else(tmp_path: Path, table: Table) -> None:
    part = named(tmp_path, table)
    text = exposition(part.samples, METRICS)
    text.encode("utf-8")
    families = parse(text)
    assert set(families) == {"cephfs_home_used_bytes", "cephfs_home_quota_bytes"}
    told = {dict(labels)["user"] for labels in families["cephfs_home_used_bytes"].series}
    assert {'eve"} 1', "eve up 0", "eve\\", "eve \ufffd[0m", "eve\ufffd\ufffd", "é\ufffd"} <= told
    assert len(told) == len(NAMES)
    assert max(map(len, told)) <= homes.NAME_AT_MOST


def test_two_names_that_look_alike_give_one_series(table: Table) -> None:
    mounts = table(("/home/a\\040b", "ceph"), ("/home/a\\012b", "ceph"), ("/home/\udcff", "fuse.ceph"))
    part = homes.look("/home", mounts, lambda _path, _name: b"1")
    assert sorted(users(part)) == ["a b", "\ufffd"]
    assert len(part.samples) == 4


def test_too_many_homes_are_told_of(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "HOMES_AT_MOST", 3)
    for number in range(5):
        (tmp_path / "homes" / f"u{number}").mkdir(parents=True)
    part = homes.look(f"{tmp_path}/homes", table((f"{tmp_path}/homes", "ceph")), lambda _path, _name: b"1")
    assert len(users(part)) == 3
    assert "more than 3 homes" in part.complaints[0]
