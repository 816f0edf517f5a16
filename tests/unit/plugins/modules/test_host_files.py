# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that writes, makes and removes a host's files, in a directory in the place of a host."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import host_files


@pytest.fixture
def module(capsys):
    def run(*entries, check_mode=False):
        arguments = {"entries": list(entries), "_ansible_check_mode": check_mode, "_ansible_diff": True}
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
        0o750,
        0o750,
        0o640,
    )
    assert (tmp_path / "etc/link").read_text() == "threads = 8\n"
    again = module(*entries)
    assert (again["changed"], again["changes"], again["diff"]) == (False, {}, [])


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
    real = host_files.AnsibleModule.set_fs_attributes_if_different

    def watched(self, arguments, *rest, **more):
        seen.append(mode(tmp_path / "secret"))
        return real(self, arguments, *rest, **more)

    monkeypatch.setattr(host_files.AnsibleModule, "set_fs_attributes_if_different", watched)
    module({"path": str(tmp_path / "secret"), "content": "s3cret", "mode": "0640"})
    assert seen[0] == 0o600
    assert mode(tmp_path / "secret") == 0o640


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"path": "DIR/full", "content": "x"}, "DIR/full: is no file; move it away"),
        ({"path": "DIR/full", "state": "link", "src": "x"}, "DIR/full: is a directory, and is to be a link to x"),
        ({"path": "DIR/file", "state": "directory"}, "DIR/file: is no directory; move it away"),
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
