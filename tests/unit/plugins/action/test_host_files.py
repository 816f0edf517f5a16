# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller come to a host in one transfer, checked before anything there is changed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml

from tests.unit.project.tree import BIN, try_run

CONTENTS = {"a.whl": b"\0binary\xff" * 1000, "b.whl": b"", "c.pem": b"text\n"}


@pytest.fixture
def play(tmp_path: Path):
    """Runs the module on this machine; the output of Ansible."""
    here = tmp_path / "here"
    here.mkdir()
    for name, content in CONTENTS.items():
        (here / name).write_bytes(content)

    def run(*entries: dict, options=()) -> str:
        task = {"name": "Write", "baremetal.gpu.host_files": {"entries": list(entries)}}
        plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}]
        (tmp_path / "play.yml").write_text(yaml.safe_dump(plays))
        of_host = {"ansible_python_interpreter": f"{BIN}/python", "ansible_remote_tmp": str(tmp_path / "tmp")}
        site = ["-i", "localhost,", "-e", json.dumps(of_host), "--diff"]
        done = try_run([BIN / "ansible-playbook", *site, *options, tmp_path / "play.yml"])
        # What is sent goes when it is done with.
        assert not list((tmp_path / "tmp").glob("*"))
        return done.stdout + done.stderr

    return run


def entries(tmp_path: Path, **more: str) -> list[dict]:
    directory = {"path": str(tmp_path / "there"), "state": "directory", "mode": "0755"}
    rows = [
        {
            "path": str(tmp_path / "there" / name),
            "source": str(tmp_path / "here" / name),
            "sha256": more.get(name.partition(".")[0], hashlib.sha256(content).hexdigest()),
            "mode": "0640",
        }
        for name, content in CONTENTS.items()
    ]
    return [directory, *rows, {"path": str(tmp_path / "there" / "list"), "content": "a b c\n", "mode": "0644"}]


def test_all_of_them_come_and_nothing_comes_a_second_time(play, tmp_path):
    foretold = play(*entries(tmp_path), options=["--check"])
    assert "changed=1" in foretold
    assert not (tmp_path / "there").exists()
    done = play(*entries(tmp_path))
    assert "changed=1" in done
    for name, content in CONTENTS.items():
        assert (tmp_path / "there" / name).read_bytes() == content
        assert (tmp_path / "there" / name).stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "there" / "list").read_text() == "a b c\n"
    shown = re.findall(r"^\+sha256 .*$", foretold, re.MULTILINE)
    assert len(shown) == len(CONTENTS)
    assert shown == re.findall(r"^\+sha256 .*$", done, re.MULTILINE)
    assert "changed=0" in play(*entries(tmp_path))


@pytest.mark.parametrize("name", CONTENTS)
def test_a_single_one_comes_as_it_is(play, tmp_path, name):
    rows = [row for row in entries(tmp_path) if row["path"].rpartition("/")[2] in ("there", name)]
    assert "changed=1" in play(*rows)
    assert (tmp_path / "there" / name).read_bytes() == CONTENTS[name]
    assert (tmp_path / "here" / name).read_bytes() == CONTENTS[name]
    assert "changed=0" in play(*rows)


def test_what_differs_alone_is_replaced_and_has_the_checksum_of_the_controllers_file(play, tmp_path):
    play(*entries(tmp_path))
    rows = entries(tmp_path)
    (tmp_path / "here" / "c.pem").write_bytes(b"other\n")
    rows[3].pop("sha256")
    kept = (tmp_path / "there" / "a.whl").stat().st_ino
    assert "changed=1" in play(*rows)
    assert (tmp_path / "there" / "c.pem").read_bytes() == b"other\n"
    assert (tmp_path / "there" / "a.whl").stat().st_ino == kept


def test_one_that_is_not_what_was_named_changes_nothing(play, tmp_path):
    said = play(*entries(tmp_path, b="0" * 64))
    assert f"{tmp_path}/there/b.whl: its SHA-256 did not match" in said
    assert not (tmp_path / "there").exists()


def test_one_that_is_missing_is_named_before_anything_is_sent(play, tmp_path):
    (tmp_path / "here" / "c.pem").unlink()
    said = play(*entries(tmp_path))
    assert f"{tmp_path}/here/c.pem" in said
    assert "failed=1" in said
    assert not (tmp_path / "there").exists()


def test_what_the_vault_keeps_comes_as_clear_text(play, tmp_path):
    (tmp_path / "word").write_text("word")
    encrypt = ["encrypt", "--vault-password-file", tmp_path / "word", tmp_path / "here" / "c.pem"]
    assert try_run([BIN / "ansible-vault", *encrypt]).returncode == 0
    assert b"$ANSIBLE_VAULT" in (tmp_path / "here" / "c.pem").read_bytes()
    assert "changed=1" in play(*entries(tmp_path), options=["--vault-password-file", tmp_path / "word"])
    assert (tmp_path / "there" / "c.pem").read_bytes() == CONTENTS["c.pem"]
