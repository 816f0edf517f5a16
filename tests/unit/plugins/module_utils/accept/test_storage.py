# SPDX-License-Identifier: GPL-3.0-or-later
"""Storage is measured as its owner, in one file, of which nothing stays behind, however the run ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import storage
from ansible_collections.baremetal.gpu.plugins.module_utils.accept.storage import CannotMeasure, Options
from tests.unit.gpuops.conftest import ROOT


def job(name, **more):
    row = {"jobname": name, "error": 0}
    for direction in ("read", "write"):
        row[direction] = {"bw_bytes": 500_000_000, "iops": 1234.5678}
    return {**row, "sync": {"lat_ns": {"mean": 2_500_000.0}}, **more}


# In the shape of fio 3.33; the figures are made up.
SAID = json.dumps({"fio version": "fio-3.33", "jobs": [job(name) for name in storage.PARTS]})
FIGURES = {"write_mb_s": 500.0, "read_mb_s": 500.0, "read_iops": 1234.568, "write_iops": 1234.568, "fsync_ms": 2.5}


def fio(path, script):
    """A program in fio's place."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Options(mib=1, seconds=0.1, fio=str(path))


def test_what_fio_says_becomes_figures():
    assert storage.figures(SAID) == FIGURES
    assert storage.figures(f"fio: a warning\n{SAID}") == FIGURES


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"jobs": [{"jobname": "write_mb_s"}]}', '{"jobs": 7}'])
def test_what_cannot_be_read_is_told(text):
    with pytest.raises(CannotMeasure, match="cannot be read"):
        storage.figures(text)


def test_an_error_of_the_storage_is_told():
    rows = [job(name, error=28 if name == "write_mb_s" else 0) for name in storage.PARTS]
    with pytest.raises(CannotMeasure, match="write_mb_s: No space left on device"):
        storage.figures(json.dumps({"jobs": rows}))


def test_the_parts_come_one_after_the_other_in_one_small_file(tmp_path):
    words = storage.words("/homes/alice", Options(mib=64, seconds=2))
    assert words.count("--stonewall") == len(storage.PARTS)
    assert {"--size=64m", "--runtime=2", "--filename=data", "--directory=/homes/alice"} <= set(words)


def test_a_directory_is_measured_and_is_as_before(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "said").write_text(SAID)
    found = storage.measure(str(home), fio(tmp_path / "fio", f"echo x > data; cat {tmp_path}/said"))
    assert found["error"] is None
    assert {key: found[key] for key in FIGURES} == FIGURES
    assert found["space"]["free_bytes"] > 0
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take the rights of another user")
def test_all_of_it_has_the_rights_of_the_owner(tmp_path):
    # All that pytest has made.
    for path in (tmp_path, *list(tmp_path.parents)[:-2]):
        path.chmod(path.stat().st_mode | 0o055)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12346)
    found = storage.measure(str(home), fio(tmp_path / "fio", "echo who $(id -u):$(id -g):$(id -G); exit 3"))
    assert "who 12345:12346:12346" in found["error"]
    # What a user puts in the way of root is not followed.
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (home / (storage.PREFIX + socket.gethostname())).symlink_to(tmp_path / "precious")
    assert storage.measure(str(home), fio(tmp_path / "fio", "true"))["error"]
    assert (tmp_path / "precious" / "file").exists()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others may write" in storage.measure(str(shared), fio(tmp_path / "fio", "true"))["error"]


def test_a_program_that_fails_is_told_and_leaves_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    found = storage.measure(str(home), fio(tmp_path / "fio", "echo no such engine; echo x > data; exit 1"))
    assert found["error"] == "fio ended with 1: no such engine"
    assert found["read_iops"] is None
    assert list(home.iterdir()) == []


def test_what_an_earlier_run_has_left_is_removed_first(tmp_path):
    left = tmp_path / (storage.PREFIX + socket.gethostname())
    left.mkdir()
    (left / "data").write_text("x")
    (tmp_path / "said").write_text(SAID)
    found = storage.measure(str(tmp_path), fio(tmp_path / "fio", f"cat {tmp_path}/said"))
    assert found["error"] is None
    assert not left.exists()


def test_a_full_directory_is_left_alone(tmp_path):
    found = storage.measure(str(tmp_path), Options(mib=1 << 30, fio="/bin/false"))
    assert "less than" in found["error"]


def test_a_run_that_is_killed_leaves_neither_file_nor_fio(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    fio(tmp_path / "fio", f"echo $$ > {tmp_path}/pid; echo x > data; exec sleep 60")
    code = (
        "from ansible_collections.baremetal.gpu.plugins.module_utils.accept import storage\n"
        f"storage.measure({str(home)!r}, storage.Options(mib=1, fio={str(tmp_path / 'fio')!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.02)
        assert list(home.iterdir())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for _look in range(200):
        if not list(home.iterdir()):
            break
        time.sleep(0.05)
    assert list(home.iterdir()) == []
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_the_first_directory_that_is_there_is_taken(tmp_path):
    assert storage.first_there([str(tmp_path / "gone"), str(tmp_path)]) == str(tmp_path)
    assert storage.first_there([str(tmp_path / "gone")]) is None


def test_file_systems_are_told_once():
    rows = storage.spaces(("/", "/", "/nowhere"))
    assert [row["path"] for row in rows] == ["/"]
    assert 0 < rows[0]["free_bytes"] <= rows[0]["total_bytes"]


def test_without_fio_there_are_no_figures(tmp_path):
    found = storage.gather([str(tmp_path)], Options(fio="no-such-fio"))
    assert (found["has_fio"], found["measured"]) == (False, None)
    assert stat.S_ISDIR(tmp_path.stat().st_mode)
