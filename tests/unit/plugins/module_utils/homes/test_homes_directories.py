# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes as directories: made, closed, opened, moved aside, and refused before anything is changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.homes import Home
from ansible_collections.baremetal.gpu.plugins.module_utils.homes import directories
from ansible_collections.baremetal.gpu.plugins.module_utils.homes.directories import Settings

UID, MIB = 2001, 1 << 20


class Quotas:
    """Of a file system that enforces them."""

    def __init__(self) -> None:
        self.limits: dict[int, int] = {}
        self.used: dict[int, int] = {}

    def read(self, uid: int) -> tuple[int, int]:
        return self.limits.get(uid, 0), self.used.get(uid, 0)

    def set(self, uid: int, size: int) -> None:
        self.limits[uid] = size


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """Whose directories are, by inode: only root could give them away."""
    given: dict[int, tuple[int, int]] = {}
    real = os.lstat

    def chown(number: int, uid: int, gid: int) -> None:
        given[os.fstat(number).st_ino] = (uid, gid)

    def lstat(path: Any, **more: Any) -> os.stat_result:
        there = list(real(path, **more))
        there[4], there[5] = given.get(there[1], (there[4], there[5]))
        return os.stat_result(there)

    monkeypatch.setattr(os, "fchown", chown)
    monkeypatch.setattr(os, "lstat", lstat)
    return given


@pytest.fixture
def quotas() -> Quotas:
    return Quotas()


@pytest.fixture
def settings(tmp_path: Path, owners: dict[int, tuple[int, int]], quotas: Quotas) -> Settings:
    return Settings(str(tmp_path), 0o700, 1.0, quotas)  # type: ignore[arg-type]  # what is asked of quotas


def home(state: str = "present", size: int = MIB, uid: int = UID, confirm: str = "") -> Home:
    return Home("alice", state, size, uid, uid, confirm)


def converge(settings: Settings, *homes: Home) -> list[str]:
    """What a run does, if nothing is refused."""
    assert directories.problems(homes, settings) == []
    steps = directories.plan(homes, settings)
    for step in steps:
        step.act()
    return [step.does for step in steps]


def codes(settings: Settings, *homes: Home) -> list[str]:
    return [problem.code for problem in directories.problems(homes, settings)]


def test_a_home_is_made_with_its_quota_and_a_second_run_does_nothing(settings: Settings, quotas: Quotas) -> None:
    assert converge(settings, home()) == ["give alice a quota of 1 MiB", "make the home of alice"]
    there = directories.look(settings.path("alice"))
    assert there == directories.Found(True, UID, UID, 0o700)
    assert quotas.limits == {UID: MIB}
    assert converge(settings, home()) == []


def test_an_archived_home_is_roots_and_is_given_back_with_its_content(settings: Settings) -> None:
    converge(settings, home())
    file = Path(settings.path("alice"), "work")
    file.write_text("mine")
    assert converge(settings, home("archived")) == ["close the home of alice"]
    assert directories.look(settings.path("alice")) == directories.Found(True, 0, 0, 0o700)
    assert converge(settings, home("archived")) == []
    assert converge(settings, home()) == ["open the home of alice"]
    assert file.read_text() == "mine"
    assert directories.look(settings.path("alice")) == directories.Found(True, UID, UID, 0o700)


def test_a_home_is_moved_aside_only_if_its_name_is_given_twice(settings: Settings, tmp_path: Path) -> None:
    converge(settings, home())
    (tmp_path / "alice" / "work").write_text("mine")
    assert codes(settings, home("absent")) == ["not_confirmed"]
    assert codes(settings, home("absent", confirm="alicia")) == ["not_confirmed"]
    assert converge(settings, home("absent", confirm="alice")) == ["move the home of alice aside"]
    (aside,) = (tmp_path / directories.REMOVED).iterdir()
    assert aside.name.startswith("alice.")
    assert (aside / "work").read_text() == "mine"
    assert stat.S_IMODE((tmp_path / directories.REMOVED).stat().st_mode) == 0o700
    assert converge(settings, home("absent", confirm="alice")) == []


def test_a_removed_home_is_kept_from_its_removal_on(settings: Settings, tmp_path: Path) -> None:
    converge(settings, home())
    os.utime(tmp_path / "alice", (1, 1))
    directories.put_aside(settings.path("alice"), str(tmp_path), lambda: 1_800_000_000.5)
    aside = tmp_path / directories.REMOVED / "alice.1800000000"
    assert aside.stat().st_mtime == 1_800_000_000


@pytest.mark.parametrize(
    ("limit", "size", "refused"),
    [
        (10, 5, True),
        (0, 5, True),
        (10, 10, False),
        (10, 20, False),
        # Larger than before, if still too small.
        (3, 5, False),
        (10, 0, False),
    ],
)
def test_no_quota_is_set_below_what_the_home_holds(
    settings: Settings, quotas: Quotas, limit: int, size: int, refused: bool
) -> None:
    quotas.limits, quotas.used = {UID: limit * MIB}, {UID: 8 * MIB}
    assert codes(settings, home(size=size * MIB)) == (["quota_too_small"] if refused else [])


def test_what_belongs_to_another_is_not_given_away(settings: Settings, tmp_path: Path) -> None:
    converge(settings, home(uid=2002))
    assert codes(settings, home()) == ["home_of_another"]
    assert directories.problems([home()], settings)[0].evidence == "2002"


@pytest.mark.parametrize("state", ["present", "archived", "absent"])
def test_a_link_is_not_followed(settings: Settings, tmp_path: Path, state: str) -> None:
    (tmp_path / "alice").symlink_to("/etc")
    assert codes(settings, home(state, confirm="alice")) == ["bad_home"]


def test_no_more_is_promised_than_there_is_but_what_was_promised_stays(settings: Settings, quotas: Quotas) -> None:
    there = os.statvfs(settings.root)
    much = there.f_blocks * there.f_frsize + MIB
    assert codes(settings, home(size=much)) == ["too_much_promised"]
    quotas.limits = {UID: -(-much // 1024) * 1024}
    assert codes(settings, home(size=much)) == []


def test_without_quotas_none_is_set_or_asked_for(settings: Settings, quotas: Quotas) -> None:
    without = Settings(settings.root, 0o700, 1.0, None)
    assert converge(without, home(size=1 << 60)) == ["make the home of alice"]
    assert quotas.limits == {}
