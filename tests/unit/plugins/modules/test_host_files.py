# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that writes, makes and removes a host's files, in a directory in the place of a host."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import system as drift_system
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_write
from ansible_collections.baremetal.gpu.plugins.modules import host_files
from tests.unit.plugins.service_account import NOBODY, SECRET, is_untouched, needs_root


@pytest.fixture
def module(capsys):
    def run(*entries, check_mode=False, **more):
        arguments = {"entries": list(entries), **more, "_ansible_check_mode": check_mode, "_ansible_diff": True}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            host_files.main()
        return json.loads(capsys.readouterr().out)

    return run


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def one_of_each(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "inside").write_text("x")
    return [
        {"path": str(tmp_path / "old"), "state": "absent"},
        {"path": str(tmp_path / "etc" / "site.d"), "state": "directory", "mode": "0750"},
        {"path": str(tmp_path / "etc" / "site.d" / "conf"), "content": "threads = 8\n", "mode": "0640"},
        {"path": str(tmp_path / "etc" / "link"), "state": "link", "src": "site.d/conf"},
    ]


@needs_root
def test_directories_above_that_an_earlier_version_gave_away_are_roots_again(module, tmp_path):
    for path in (tmp_path / "srv", tmp_path / "srv/mesos", tmp_path / "srv/mesos/master"):
        path.mkdir()
        path.chmod(0o750)
        os.chown(path, NOBODY, NOBODY)
    entry = {
        "path": str(tmp_path / "srv/mesos/master"),
        "state": "directory",
        "mode": "0750",
        "owner": str(NOBODY),
        "group": str(NOBODY),
    }
    assert module(entry)["changed"] is False
    foretold = module({**entry, "reclaim": True}, check_mode=True)
    assert f"{tmp_path}/srv/mesos above it is {NOBODY}'s, not root's" in foretold["changes"][entry["path"]]
    assert module({**entry, "reclaim": True})["changes"] == foretold["changes"]
    told = [(tmp_path / name).stat() for name in ("srv", "srv/mesos", "srv/mesos/master")]
    assert [(stat.S_IMODE(one.st_mode), one.st_uid, one.st_gid) for one in told] == [
        (0o755, 0, 0),
        (0o755, 0, 0),
        (0o750, NOBODY, NOBODY),
    ]
    assert module({**entry, "reclaim": True})["changed"] is False
    # What others have given another mode, or to somebody else, is theirs.
    (tmp_path / "srv/mesos").chmod(0o700)
    os.chown(tmp_path / "srv/mesos", NOBODY, NOBODY)
    assert module({**entry, "reclaim": True})["changed"] is False


def test_all_in_one_run_and_nothing_in_the_next(module, tmp_path):
    entries = one_of_each(tmp_path)
    foretold = module(*entries, check_mode=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    done = module(*entries)
    assert done["changed"] is True
    assert list(done["changes"]) == [item["path"] for item in entries]
    assert (foretold["changes"], foretold["diff"]) == (done["changes"], done["diff"])
    assert not (tmp_path / "old").exists()
    assert (mode(tmp_path / "etc"), mode(tmp_path / "etc/site.d"), mode(tmp_path / "etc/site.d/conf")) == (
        0o755,
        0o750,
        0o640,
    )
    assert (tmp_path / "etc/link").read_text() == "threads = 8\n"
    again = module(*entries)
    assert (again["changed"], again["changes"], again["diff"]) == (False, {}, [])


def test_a_link_that_is_to_go_only_where_it_leads_somewhere_stays_otherwise(module, tmp_path):
    names = ("ours", "theirs", "file")
    (tmp_path / "ours").symlink_to("/lib/ours")
    (tmp_path / "theirs").symlink_to("/lib/theirs")
    (tmp_path / "file").write_text("x")
    entries = [{"path": str(tmp_path / name), "state": "absent", "src": "/lib/ours"} for name in names]
    assert list(module(*entries)["changes"]) == [str(tmp_path / "ours")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "theirs"]
    assert module(*entries)["changed"] is False


def test_the_diff_shows_each_file_before_and_after(module, tmp_path):
    (tmp_path / "a").write_text("one\n")
    done = module({"path": str(tmp_path / "a"), "content": "two\n"}, {"path": str(tmp_path / "b"), "content": "new\n"})
    assert [(item["after_header"], item["before"], item["after"]) for item in done["diff"]] == [
        (str(tmp_path / "a"), "one\n", "two\n"),
        (str(tmp_path / "b"), "", "new\n"),
    ]


def test_only_the_mode_differs(module, tmp_path):
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "a").chmod(0o666)
    before = (tmp_path / "a").stat().st_ino
    done = module({"path": str(tmp_path / "a"), "content": "one\n", "mode": "0600"})
    assert done["changes"] == {str(tmp_path / "a"): "mode is 0666, not 0600"}
    assert mode(tmp_path / "a") == 0o600
    assert (tmp_path / "a").stat().st_ino == before


def test_a_file_that_need_only_exist_keeps_its_content(module, tmp_path):
    (tmp_path / "a").write_text("an earlier reason\n")
    (tmp_path / "a").chmod(0o600)
    entry = {"path": str(tmp_path / "a"), "content": "another\n", "force": False, "mode": "0644"}
    assert module(entry)["changed"] is True
    assert ((tmp_path / "a").read_text(), mode(tmp_path / "a")) == ("an earlier reason\n", 0o644)
    (tmp_path / "a").unlink()
    module(entry)
    assert (tmp_path / "a").read_text() == "another\n"


def test_behind_a_link_the_file_is_replaced_and_the_link_stays(module, tmp_path):
    (tmp_path / "kept").write_text("one\n")
    (tmp_path / "a").symlink_to("kept")
    module({"path": str(tmp_path / "a"), "content": "two\n"})
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "kept").read_text() == "two\n"


def test_a_link_that_leads_elsewhere_is_turned(module, tmp_path):
    (tmp_path / "a").symlink_to("old")
    entry = {"path": str(tmp_path / "a"), "state": "link", "src": "new"}
    assert module(entry)["changes"] == {str(tmp_path / "a"): "points to old"}
    assert os.readlink(tmp_path / "a") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_content_that_does_not_pass_its_check_leaves_the_file_as_it_was(module, tmp_path):
    (tmp_path / "a").write_text("one\n")
    said = module({"path": str(tmp_path / "a"), "content": "two\n", "validate": "grep -q one %s"})
    assert said["failed"] is True
    assert said["msg"].startswith(f"{tmp_path}/a: the content did not pass grep -q one %s")
    assert (tmp_path / "a").read_text() == "one\n"
    assert module({"path": str(tmp_path / "a"), "content": "one, two\n", "validate": "grep -q one %s"})["changed"]


def test_a_copy_is_kept_where_it_is_asked_for(module, tmp_path):
    (tmp_path / "a").write_text("one\n")
    done = module({"path": str(tmp_path / "a"), "content": "two\n", "backup": True})
    with open(done["backup_files"][str(tmp_path / "a")]) as kept:
        assert kept.read() == "one\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_secret_is_never_open_to_others(module, tmp_path, monkeypatch):
    """Not even between its appearance and the setting of its mode."""
    seen = []

    def watched(real):
        def call(*arguments, **more):
            seen.extend(mode(path) for path in tmp_path.iterdir())
            return real(*arguments, **more)

        return call

    for name in ("fchmod", "replace"):
        monkeypatch.setattr(host_write.os, name, watched(getattr(os, name)))
    module({"path": str(tmp_path / "secret"), "content": "s3cret", "mode": "0640"})
    assert seen == [0o600, 0o640]
    assert mode(tmp_path / "secret") == 0o640


def test_what_was_there_keeps_its_owner_and_mode(module, tmp_path):
    if os.geteuid():
        pytest.skip("gives a file to another user, which is root's to do")
    (tmp_path / "a").write_text("one\n")
    os.chown(tmp_path / "a", NOBODY, NOBODY)
    (tmp_path / "a").chmod(0o604)
    module({"path": str(tmp_path / "a"), "content": "two\n"})
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid, mode(tmp_path / "a")) == (NOBODY, NOBODY, 0o604)


def test_an_owner_that_is_not_there_is_named(module, tmp_path):
    said = module({"path": str(tmp_path / "a"), "content": "x", "owner": "no-such-user"})
    assert said["msg"] == f"{tmp_path}/a: there is no owner no-such-user on the host; make it first"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"path": "DIR/full", "content": "x"}, "DIR/full: is not a file; move it away"),
        ({"path": "DIR/full", "state": "link", "src": "x"}, "DIR/full: is a directory, and is to be a link to x"),
        ({"path": "DIR/file", "state": "directory"}, "DIR/file: is not a directory; move it away"),
        ({"path": "DIR/none/file", "content": "x"}, "DIR/none/file: there is no directory DIR/none"),
        ({"path": "DIR/none"}, "DIR/none: is missing, and no content is given"),
    ],
)
def test_what_is_in_the_way_stays_and_what_came_before_is_told(module, tmp_path, entry, why):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("p")
    (tmp_path / "file").write_text("f")
    first = {"path": str(tmp_path / "first"), "content": "1"}
    said = module(first, {**entry, "path": entry["path"].replace("DIR", str(tmp_path))})
    assert said["failed"] is True
    assert said["msg"].startswith(why.replace("DIR", str(tmp_path)))
    assert (said["changed"], list(said["changes"])) == (True, [str(tmp_path / "first")])
    assert (tmp_path / "full" / "precious").read_text() == "p"
    assert (tmp_path / "file").read_text() == "f"


def test_nonsense_is_refused_before_anything_is_changed(module, tmp_path):
    said = module(
        {"path": str(tmp_path / "first"), "content": "1"},
        {"path": "etc/x", "content": "x"},
        {"path": "/etc/x", "mode": "u=rw"},
        {"path": "/etc/y", "content": "y", "validate": "check"},
    )
    assert said["failed"] is True
    assert "etc/x: name an absolute path" in said["msg"]
    assert "/etc/x: mode 'u=rw' is not in octal digits, such as '0644'" in said["msg"]
    assert "/etc/y: validate has no %s for the file that it checks: check" in said["msg"]
    assert list(tmp_path.iterdir()) == []


# --- in a directory of a service account, which somebody has taken over -----------------------------------------------

MYID = {"content": "1\n", "mode": "0640", "owner": "65534", "group": "65534"}


@needs_root
@pytest.mark.parametrize("entry", [MYID, {**MYID, "content": SECRET}, {**MYID, "content": SECRET, "force": False}])
def test_a_planted_link_is_replaced_and_said(module, account, shadow, entry):
    account.does(lambda: os.symlink(str(shadow), "myid"))
    path = account.directory / "myid"
    foretold = module({"path": str(path), **entry}, check_mode=True)
    done = module({"path": str(path), **entry})
    assert (foretold["changes"], foretold["diff"]) == (done["changes"], done["diff"])
    assert done["changes"] == {str(path): "is a link, not a file"}
    assert [SECRET in item["before"] for item in done["diff"]] == [False]
    assert is_untouched(shadow)
    assert (path.is_symlink(), path.read_text(), path.stat().st_uid) == (False, entry["content"], NOBODY)
    assert module({"path": str(path), **entry})["changed"] is False


@needs_root
@pytest.mark.parametrize("content", ["1\n", SECRET])
def test_a_hard_link_is_replaced_and_its_content_is_not_shown(module, account, shadow, content):
    path = account.directory / "myid"
    os.link(shadow, path)
    done = module({"path": str(path), **MYID, "content": content})
    assert "second name (a hard link)" in done["changes"][str(path)]
    assert SECRET not in done["diff"][0]["before"]
    assert is_untouched(shadow)
    assert path.read_text() == content


@needs_root
def test_a_file_that_keeps_its_content_is_not_given_away_where_it_may_be_from_elsewhere(module, account, shadow):
    path = account.directory / "log"
    os.link(shadow, path)
    said = module({"path": str(path), "mode": "0666", "owner": "65534"})
    assert said["failed"] is True
    assert "second name (a hard link)" in said["msg"]
    assert is_untouched(shadow)


@needs_root
@pytest.mark.parametrize(
    "entry",
    [
        {"path": "data/passwd", "content": "x"},
        {"path": "data/passwd", "state": "absent"},
        {"path": "data/passwd", "state": "link", "src": "/x"},
        {"path": "data/new", "state": "directory"},
        {"path": "data", "state": "directory", "mode": "0777", "owner": "65534"},
    ],
)
def test_a_directory_turned_into_a_link_stops_the_run_which_names_it(module, account, tmp_path, entry):
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "passwd").write_text(SECRET)
    account.does(lambda: os.symlink("../etc", "data"))
    said = module({**entry, "path": str(account.directory / entry["path"])})
    assert said["failed"] is True
    assert said.get("changes", {}) == {}
    assert said["msg"].startswith(f"{account.directory / entry['path']}: ")
    assert "nobody" in said["msg"]
    assert "To do: " in said["msg"]
    assert [(one.name, one.read_text()) for one in etc.iterdir()] == [("passwd", SECRET)]
    assert etc.stat().st_uid == 0


@needs_root
@pytest.mark.parametrize("check_mode", [True, False])
def test_it_is_said_before_anything_is_changed_and_in_check_mode_too(module, account, tmp_path, check_mode):
    account.does(lambda: os.symlink("..", "data"))
    first = {"path": str(tmp_path / "first"), "content": "1"}
    paths = [str(account.directory / "data" / name) for name in ("one", "two")]
    said = module(first, *({"path": path, "content": "x"} for path in paths), check_mode=check_mode)
    assert said["failed"] is True
    assert all(f"{path}: the way leads through the link data, which nobody can turn" in said["msg"] for path in paths)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["zookeeper"]
    # Who takes the link away goes on.
    done = module({"path": str(account.directory / "data"), "state": "absent"}, {"path": paths[0], "state": "absent"})
    assert list(done["changes"]) == [str(account.directory / "data")]


@needs_root
def test_a_pipe_in_the_place_of_a_file_is_named(module, account):
    account.does(lambda: os.mkfifo("myid"))
    path = account.directory / "myid"
    assert module({"path": str(path), **MYID})["msg"] == f"{path}: is not a file; move it away"


@needs_root
def test_paths_for_other_modules_are_cleared_of_planted_links(module, account, shadow, tmp_path):
    account.does(lambda: (os.symlink(str(shadow), "key.pem"), os.symlink("..", "data")))
    (tmp_path / "own").symlink_to(shadow)
    paths = [str(account.directory / "key.pem"), str(tmp_path / "own"), str(tmp_path / "none")]
    done = module(no_links=paths)
    assert done["changes"] == {paths[0]: "is a link that is not root's own"}
    assert not (account.directory / "key.pem").is_symlink()
    assert (tmp_path / "own").is_symlink()
    assert "leads through the link data" in module(no_links=[str(account.directory / "data/shadow")])["msg"]
    assert is_untouched(shadow)


@needs_root
def test_what_is_foreign_is_said_by_the_look_and_its_content_is_not_told(account, shadow):
    account.does(lambda: (os.symlink(str(shadow), "myid"), os.symlink("..", "data")))
    os.link(shadow, account.directory / "hard")
    for name in ("myid", "hard", "data/shadow"):
        item = {"path": str(account.directory / name), "content": SECRET}
        why = drift_system.file_drift(item)
        assert why is not None, name
        assert SECRET not in drift_system.file_diff({**item, "why": why, "content": "1"})["before"]
