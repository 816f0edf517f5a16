# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host mounts of homes: units of earlier runs, what is in the way, and homes that do not hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.homes import mounts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run


def test_units_of_earlier_runs_are_found_and_no_others(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "home-alice.mount").write_text(f"{mounts.MARK}\n[Mount]\n")
    (units / "home-alice.automount").write_text(f"{mounts.MARK}\n[Automount]\n")
    (units / "data.mount").write_text(f"# Not {mounts.MARK}\n[Mount]\n")
    (units / "gone.mount").symlink_to("/dev/null")
    assert mounts.written(str(tmp_path)) == [
        f"/etc/systemd/system/home-alice.{kind}" for kind in ("automount", "mount")
    ]


def test_the_last_mount_at_a_path_is_what_one_sees(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("systemd-1 /home/alice autofs rw 0 0\nnfs:/srv /home/alice nfs4 rw 0 0\n")
    assert mounts.mounted(str(table)) == {"/home/alice": "nfs4"}


def test_a_home_of_the_host_itself_is_in_the_way_and_an_empty_place_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("free", "full", "mounted"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "work").touch()
    (tmp_path / "mounted" / "work").touch()
    (tmp_path / "file").touch()
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        return os.stat_result([*real(path)[:4], 2001 if path.endswith("users") else 0, *real(path)[5:]])

    (tmp_path / "users").mkdir()
    monkeypatch.setattr(os, "lstat", lstat)
    paths = [str(tmp_path / name) for name in ("free", "full", "mounted", "file", "users", "missing")]
    found = mounts.in_the_way(paths, {str(tmp_path / "mounted"): "nfs4"})
    assert [problem.subject for problem in found] == [str(tmp_path / name) for name in ("full", "file", "users")]
    assert all("mv " in problem.remedy for problem in found)


def test_homes_that_do_not_hold_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, open_to_all, plain = (tmp_path / name for name in ("mine", "open", "plain"))
    for path in (mine, open_to_all, plain):
        path.mkdir(mode=0o700)
    open_to_all.chmod(0o755)
    seen = {str(mine): "nfs4", str(open_to_all): "nfs4", str(plain): "ext4"}
    monkeypatch.setattr(mounts, "mounted", lambda: seen)
    paths = [mine, open_to_all, plain, tmp_path / "missing"]
    homes = [{"path": str(path), "uid": os.geteuid(), "gid": 7, "kinds": ["nfs4"]} for path in paths]
    found = {problem.subject: problem.code for problem in mounts.wrong(homes, run, 20)}
    assert found == {
        str(open_to_all): "home_of_another",
        str(plain): "home_not_mounted",
        str(tmp_path / "missing"): "home_not_answering",
    }
    assert mounts.wrong([{**homes[2], "kinds": []}], run, 20) == []


@pytest.mark.parametrize(("known", "modprobe", "has"), [(True, 1, True), (False, 0, True), (False, 1, False)])
def test_a_file_system_is_had_if_it_is_loaded_or_can_be(tmp_path: Path, known: bool, modprobe: int, has: bool) -> None:
    table = tmp_path / "filesystems"
    table.write_text("nodev\tsysfs\n\text4\n" + ("nodev\tnfs4\n" if known else ""))
    assert mounts.has("nfs4", "nfs", lambda *_words: (modprobe, "", ""), str(table)) is has
