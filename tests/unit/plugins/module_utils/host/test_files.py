# SPDX-License-Identifier: GPL-3.0-or-later
"""Root's writes in directories that a service account owns, and what such an account can plant there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from tests.unit.plugins.service_account import NOBODY, SECRET, is_untouched, needs_root

# --- what it is for ---------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_with_its_mode(tmp_path):
    path = tmp_path / "a"
    path.write_text("a longer text than the new one")
    host_files.write(str(path), "new\n", 0o640)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new\n", 0o640)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fchmod"])
def test_what_fails_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    path.write_text("old")

    def full(*_arguments, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host_files.os, call, full)
    with pytest.raises(OSError, match="No space left"):
        host_files.write(str(path), "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_roots_own_links_are_followed_where_that_is_asked_for(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("one")
    (tmp_path / "way").symlink_to("kept")
    (tmp_path / "end").symlink_to("way/../kept/file")
    host_files.write(str(tmp_path / "end"), "two", follow=True)
    assert (tmp_path / "kept/file").read_text() == "two"
    assert host_files.read(str(tmp_path / "end")) == b"two"
    host_files.write(str(tmp_path / "way/new"), "three")
    assert (tmp_path / "kept/new").read_text() == "three"
    host_files.write(str(tmp_path / "end"), "four")
    assert not (tmp_path / "end").is_symlink()
    assert (tmp_path / "kept/file").read_text() == "two"


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        host_files.write(str(tmp_path / "a/file"), "x")


def test_directories_are_made_with_their_mode(tmp_path):
    assert host_files.make_directories(str(tmp_path / "a/b"), 0o750)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o755, 0o750]
    assert not host_files.make_directories(str(tmp_path / "a/b"), 0o700)
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o750


@needs_root
def test_directories_above_are_roots_whoever_gets_the_last(tmp_path):
    os.umask(before := os.umask(0o077))
    os.umask(0o077)
    try:
        host_files.make_directories(str(tmp_path / "a/b/c"), 0o700, NOBODY, NOBODY)
    finally:
        os.umask(before)
    told = {name: (tmp_path / name).stat() for name in ("a", "a/b", "a/b/c")}
    assert {name: (stat.S_IMODE(one.st_mode), one.st_uid, one.st_gid) for name, one in told.items()} == {
        "a": (0o755, 0, 0),
        "a/b": (0o755, 0, 0),
        "a/b/c": (0o700, NOBODY, NOBODY),
    }


def test_what_is_larger_than_expected_is_not_read(tmp_path):
    (tmp_path / "a").write_text("12345")
    assert host_files.read(str(tmp_path / "a"), at_most=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        host_files.read(str(tmp_path / "a"), at_most=4)


def test_drafts_of_a_killed_writer_go(tmp_path):
    (tmp_path / f"{host_files.DRAFT}0123").write_text("half")
    (tmp_path / ".other").write_text("kept")
    with host_files.place(str(tmp_path / "a")) as there:
        there.clean()
    assert [one.name for one in tmp_path.iterdir()] == [".other"]


def test_what_cannot_be_read_is_put_aside_and_earlier_ones_stay(tmp_path):
    path = tmp_path / "state.json"
    for number in range(7):
        path.write_text(str(number))
        assert host_files.put_aside(str(path)) is not None
    kept = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert kept == {
        "state.json.unreadable": "0",
        "state.json.unreadable.2": "1",
        "state.json.unreadable.3": "2",
        "state.json.unreadable.4": "3",
        "state.json.unreadable.5": "6",
    }


# --- a service account in its own directory ---------------------------------------------------------------------------


@needs_root
def test_a_planted_link_is_replaced_and_neither_written_nor_read_through(account, shadow):
    account.does(lambda: os.symlink(str(shadow), "myid"))
    path = account.directory / "myid"
    with pytest.raises(host_files.Unsafe, match=f"{path}: is a link in a directory that nobody can change"):
        host_files.read(str(path))
    host_files.write(str(path), "1\n", 0o640, NOBODY, NOBODY, follow=True)
    assert is_untouched(shadow)
    assert not path.is_symlink()
    assert (path.read_text(), path.stat().st_uid) == ("1\n", NOBODY)


@needs_root
@pytest.mark.parametrize("name", ["myid.new", f"{host_files.DRAFT}new", ".myid.new"])
def test_a_link_in_the_place_of_a_draft_is_not_written_through(account, shadow, name):
    account.does(lambda: os.symlink(str(shadow), name))
    host_files.write(str(account.directory / "myid"), "1\n")
    assert is_untouched(shadow)
    assert (account.directory / "myid").read_text() == "1\n"


@needs_root
@pytest.mark.parametrize("work", ["write", "read", "remove", "make_directories", "check"])
def test_a_directory_that_was_turned_into_a_link_stops_all_work_in_it(account, tmp_path, work):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(SECRET)
    account.does(lambda: os.symlink("../etc", "data"))
    path = str(account.directory / ("data/new" if work == "make_directories" else "data/passwd"))
    with pytest.raises(host_files.Unsafe, match="leads through the link data, which nobody can turn"):
        getattr(host_files, work)(path, *(["x"] if work == "write" else []))
    assert [(one.name, one.read_text()) for one in (tmp_path / "etc").iterdir()] == [("passwd", SECRET)]


@needs_root
def test_below_a_directory_of_somebody_else_roots_own_directory_is_not_trusted(account, tmp_path, shadow):
    inner = account.directory / "roots"
    inner.mkdir()
    os.symlink(str(shadow), inner / "file")
    with pytest.raises(host_files.Unsafe, match="is a link"):
        host_files.read(str(inner / "file"))
    account.does(lambda: (os.rename("roots", "away"), os.symlink("..", "roots")))
    with pytest.raises(host_files.Unsafe, match="leads through the link roots"):
        host_files.write(str(inner / "shadow"), "x")
    assert is_untouched(shadow)


@needs_root
def test_a_hard_link_is_neither_read_nor_given_away(account, shadow):
    path = account.directory / "myid"
    os.link(shadow, path)
    with pytest.raises(host_files.Unsafe, match=r"second name \(a hard link\)"):
        host_files.read(str(path))
    with host_files.place(str(path)) as there, pytest.raises(host_files.Unsafe, match="hard link"):
        there.give(0o666, NOBODY, NOBODY)
    host_files.write(str(path), "1\n", 0o644, NOBODY, NOBODY)
    assert is_untouched(shadow)
    assert path.read_text() == "1\n"


@needs_root
def test_a_pipe_in_the_place_of_a_file_stops_nobody(account):
    account.does(lambda: os.mkfifo("myid"))
    path = str(account.directory / "myid")
    with pytest.raises(host_files.Unsafe, match="is not a file"):
        host_files.read(path)
    with host_files.place(path) as there, pytest.raises(host_files.Unsafe, match="is not a file"):
        there.give(0o600)


@needs_root
def test_removing_takes_the_link_and_not_what_it_leads_to(account, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(SECRET)
    account.does(lambda: (os.symlink("../etc", "old"), os.mkdir("tree"), os.symlink("../../etc", "tree/deep")))
    host_files.remove(str(account.directory / "old"))
    host_files.remove(str(account.directory / "tree"))
    assert list(account.directory.iterdir()) == []
    assert (tmp_path / "etc/passwd").read_text() == SECRET


@needs_root
def test_a_link_that_was_planted_before_the_directory_became_roots_is_not_followed(account, shadow):
    account.does(lambda: os.symlink(str(shadow), "key.pem"))
    os.chown(account.directory, 0, 0)
    host_files.write(str(account.directory / "key.pem"), "key", follow=True)
    assert is_untouched(shadow)


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_others_may_write_to_is_theirs_too(tmp_path, shadow, mode):
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 0, NOBODY)
    shared.chmod(mode)
    os.symlink(str(shadow), shared / "file")
    os.lchown(shared / "file", NOBODY, NOBODY)
    host_files.write(str(shared / "file"), "x", follow=True)
    assert is_untouched(shadow)
    assert (shared / "file").read_text() == "x"


@needs_root
def test_an_account_that_turns_its_directory_all_the_time_wins_nothing(account, tmp_path):
    """A race: directory and link take turns in one place as fast as they can."""
    target = tmp_path / "etc"
    target.mkdir()

    def turn():
        os.mkdir("a")
        os.symlink("../etc", "b")
        for _turn in range(5000):
            os.rename("a", "data")
            os.rename("data", "a")
            os.rename("b", "data")
            os.rename("data", "b")

    child = os.fork()
    if child == 0:
        try:
            account.does(turn)
        finally:
            os._exit(0)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        with contextlib.suppress(OSError):
            host_files.write(str(account.directory / "data/cron"), "x", durable=False)
    assert list(target.iterdir()) == []


def test_a_directory_that_an_access_list_opens_to_a_service_is_foreign(tmp_path):
    there = tmp_path / "data"
    there.mkdir(mode=0o755)
    # owner rwx, the user nobody rwx, group r-x, mask rwx, others r-x; see acl(5).
    none = 0xFFFFFFFF
    rows = [(1, 7, none), (2, 7, 65534), (4, 5, none), (0x10, 7, none), (0x20, 5, none)]
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(there, "system.posix_acl_access", text)
    except OSError as why:
        pytest.skip(f"no access lists here: {why.strerror}")
    (tmp_path / "secret").write_text("root's own")
    (there / "myid").symlink_to(tmp_path / "secret")
    with pytest.raises(host_files.Unsafe, match="access list"):
        host_files.read(str(there / "myid"))
    host_files.write(str(there / "myid"), "7", follow=True)
    assert (tmp_path / "secret").read_text() == "root's own"


@pytest.mark.parametrize(("read", "nothing"), [(host_files.read_text, ""), (host_files.read_bytes, b"")])
def test_what_is_no_plain_file_reads_as_nothing(tmp_path, read, nothing):
    os.mkfifo(tmp_path / "pipe")
    assert [read(str(tmp_path / name)) for name in ("pipe", "missing", "")] == [nothing] * 3


def test_text_that_is_read_need_not_be_utf_8_nor_all(tmp_path):
    (tmp_path / "text").write_bytes(b"GPU \xe9\r\nreset\n")
    assert host_files.read_text(str(tmp_path / "text")) == "GPU \ufffd\nreset\n"
    assert host_files.read_text(str(tmp_path / "text"), 5) == "GPU \ufffd"
    assert host_files.read_bytes(str(tmp_path / "text")) == b"GPU \xe9\r\nreset\n"
