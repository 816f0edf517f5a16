# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the host, as run, ask and execute start them."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run

NOBODYS = "no-such-program"


def shell(script):
    return ["sh", "-c", script]


def test_run_gives_status_output_and_errors_apart():
    assert host_run.run(shell("cat; echo bad >&2; exit 3"), "given\n", 10) == (3, "given\n", "bad\n")


def test_without_input_a_program_that_reads_comes_to_its_end():
    assert host_run.run(["cat"], None, 10) == (0, "", "")


def test_a_status_stands_for_what_kept_it_from_its_end():
    assert host_run.run([NOBODYS], None, 10) == (127, "", f"{NOBODYS}: No such file or directory")
    assert host_run.run(["sleep", "5"], None, 0.2)[:2] == (124, "")
    assert host_run.ask([NOBODYS]) == (127, "")


def test_what_a_program_says_need_not_be_utf_8():
    script = shell(r"printf 'GPU \351\r\nreset\n'")
    assert host_run.run(script, None, 10) == (0, "GPU �\nreset\n", "")
    assert host_run.ask(script) == (0, "GPU �\nreset\n")


def test_programs_speak_english(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert host_run.run(shell('echo "$LC_ALL"'), None, 10)[1] == "C.UTF-8\n"
    assert host_run.ask(shell('echo "$LC_ALL"')) == (0, "C\n")


def test_execute_adds_to_the_environment_and_runs_in_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    told = host_run.execute(
        shell('echo "$KEPT $ADDED"; pwd'), 10, environment={"ADDED": "added"}, directory=str(tmp_path)
    )
    assert told == (0, f"kept added\n{tmp_path}\n".encode(), b"")


def test_execute_merges_what_went_to_either_in_its_order():
    assert host_run.execute(shell("echo one >&2; echo two; echo three >&2"), 10, merged=True) == (
        0,
        b"one\ntwo\nthree\n",
        b"",
    )


def test_execute_raises_what_kept_it_from_its_end():
    with pytest.raises(FileNotFoundError):
        host_run.execute([NOBODYS], 10)
    with pytest.raises(host_run.TimedOut, match=r"^it did not end within 0\.2 s$"):
        host_run.execute(["sleep", "5"], 0.2)
