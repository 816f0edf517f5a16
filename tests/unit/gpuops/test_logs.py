# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops logs: what is asked of the log host, what is made of the answer, and as it is called."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.logs.entries import Reader
from gpuops.logs.query import Query, QueryError
from gpuops.run import events
from tests.unit.gpuops.conftest import HERE, Bench

ANSWER = ["journalctl", "--quiet"]
NOON = time.mktime((2026, 11, 28, 12, 0, 0, 0, 0, -1))


def entry(message: Any = "hello", after: float = 0, **more: Any) -> dict[str, Any]:
    """An entry as journalctl prints it, so many seconds after noon."""
    return {
        "__REALTIME_TIMESTAMP": str(int((NOON + after) * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(int(after * 1e6)),
        "_BOOT_ID": "b" * 32,
        "_HOSTNAME": "gpu1",
        "SYSLOG_IDENTIFIER": "slurmd",
        "_PID": "42",
        "PRIORITY": "6",
        "_TRANSPORT": "journal",
        "MESSAGE": message,
        **more,
    }


def answer(*rows: Any, rc: int = 0, stderr: str = "", **more: Any) -> Reader:
    """What is made of an answer with these entries, the newest first."""
    printed = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    result = {"cmd": ANSWER, "rc": rc, "stderr": stderr, "stdout_lines": printed, **more}
    return read("ok", result)


def read(kind: str, result: dict[str, Any]) -> Reader:
    reader = Reader()
    data = {"host": "log1", "task": "Read entries", "task_action": "ansible.builtin.command", "res": result}
    entry_point = events.Entry(reader.take)
    entry_point({"event": f"runner_on_{kind}", "event_data": data})
    return reader


def said(reader: Reader) -> list[str]:
    return [progress_text.plain(line) for one in reader.entries for line in one.lines()]


def test_entries_are_shown_oldest_first_with_who_wrote_them() -> None:
    reader = answer(entry("two", 2), entry("one", 1))
    assert said(reader) == ["2026-11-28 12:00:01 gpu1 slurmd[42]: one", "2026-11-28 12:00:02 gpu1 slurmd[42]: two"]
    assert (reader.problem, reader.unreadable) == ("", 0)


def test_a_message_of_the_kernel_is_told_as_one() -> None:
    row = entry("NVRM: Xid (PCI:0000:3b:00): 79", _TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel", PRIORITY="2")
    del row["_PID"]
    reader = answer(row)
    assert said(reader) == ["2026-11-28 12:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:3b:00): 79"]
    assert reader.entries[0].kernel
    assert reader.entries[0].lines()[0][-1][0] == "bad"


def test_a_message_of_several_lines_stays_together_and_is_bounded() -> None:
    lines = said(answer(entry("\n".join(f"line {number}" for number in range(100)))))
    assert lines[1] == "    line 1"
    assert lines[-1] == "    … and 59 more lines"


def test_a_message_cannot_command_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;x\x07\u202egnp.exe\rroot"
    reader = answer(entry(hostile, _HOSTNAME="gpu1\x1b[31m\nroot", SYSLOG_IDENTIFIER="\x9b2J"))
    (line,) = said(reader)
    assert line.isprintable()
    assert "\x1b" not in json.dumps(reader.entries[0].as_dict(), ensure_ascii=False)


def test_bytes_that_are_no_text_are_read_as_far_as_they_are() -> None:
    assert answer(entry([104, 105, 255])).entries[0].message == "hi\ufffd"
    assert answer(entry(["one", "two"])).entries[0].message == "one two"
    assert "longer" in answer(entry(None)).entries[0].message


def test_what_a_host_sent_twice_is_shown_once() -> None:
    reader = answer(entry("b", 2), entry("a", 1), entry("b", 2), entry("a", 1), entry("a", 3))
    assert sorted(one.message for one in reader.entries) == ["a", "a", "b"]


@pytest.mark.parametrize(
    "row",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({}),
        json.dumps(entry(__REALTIME_TIMESTAMP="soon")),
        json.dumps(entry(__REALTIME_TIMESTAMP="9" * 30)),
        json.dumps(entry(__REALTIME_TIMESTAMP={"a": 1})),
    ],
)
def test_what_is_no_entry_is_counted_and_hides_no_other(row: str) -> None:
    reader = answer(row, entry("fine"))
    assert reader.unreadable == 1
    assert [one.message for one in reader.entries] == ["fine"]


@pytest.mark.parametrize("field", ["PRIORITY", "_PID", "_HOSTNAME", "SYSLOG_IDENTIFIER", "_SYSTEMD_UNIT"])
@pytest.mark.parametrize("value", [None, {}, [], [300], "x" * 5000, 7, True, ["a", 1]])
def test_fields_may_have_any_shape(field: str, value: Any) -> None:
    reader = answer(entry(**{field: value}))
    assert reader.unreadable == 0
    assert all(len(line) < 400 for line in said(reader))


def test_nothing_found_is_no_problem() -> None:
    assert answer(rc=1).problem == ""
    assert answer(rc=1, stderr="Failed to open files: No such file or directory").problem.startswith("Failed to open")


@pytest.mark.parametrize("kind", ["failed", "unreachable"])
def test_a_log_host_that_does_not_answer_is_a_problem(kind: str) -> None:
    assert read(kind, {"msg": "No route to host"}).problem == "No route to host"


def test_an_answer_that_was_left_out_is_a_problem() -> None:
    assert "fewer --lines" in read("ok", {}).problem


def test_without_an_answer_there_is_a_problem() -> None:
    assert Reader().problem


def test_everything_is_asked_in_one_word_each() -> None:
    query = Query(("gpu1", "gpu-2.example.com"), "-2h", "Xid.* (31|79); rm -rf /", ("slurmd", "ceph-osd@*"), False, 5)
    assert query.arguments() == [
        # One pattern: journalctl fails for each that no file fits, and a new host has none yet.
        "--file=/var/log/journal/remote/{gpu1,gpu-2.example.com}{.journal,@*.journal*}",
        "--lines=5",
        "--since=-2h",
        "--grep=Xid.* (31|79); rm -rf /",
        "--unit=slurmd",
        "--unit=ceph-osd@*",
    ]


def test_all_hosts_and_the_kernel() -> None:
    assert Query(kernel=True).arguments() == ["--directory=/var/log/journal/remote", "--lines=200", "_TRANSPORT=kernel"]


def test_braces_reach_journalctl_as_they_are() -> None:
    """Ansible takes them for a template otherwise."""
    query = Query(grep="{{ lookup('pipe', 'id') }}")
    assert "{{" not in query.variable()
    assert json.loads(base64.b64decode(query.variable())) == query.arguments()


@pytest.mark.parametrize(
    "query",
    [
        Query(since="$(id)"),
        Query(since="now\n"),
        Query(since="x" * 61),
        Query(grep="a\nb"),
        Query(grep="x" * 301),
        Query(units=("--file=/etc/shadow",)),
        Query(units=("a/b",)),
        Query(units=("",)),
        Query(hosts=("../../etc",)),
        Query(hosts=("*",)),
        Query(hosts=("a{b,c}",)),
        Query(lines=0),
        Query(lines=5001),
        Query(kernel=True, units=("slurmd",)),
    ],
)
def test_what_cannot_be_asked_is_refused(query: Query) -> None:
    with pytest.raises(QueryError):
        query.arguments()


# -- as it is called --------------------------------------------------------------------------------------------------


@pytest.fixture
def site(bench: Bench) -> Bench:
    """A site whose log host is this machine, with a journalctl of the test's."""
    groups = {
        "log_hosts": {"hosts": {"log1": HERE}},
        "log_senders": {"hosts": {"log1": {}, "gpu1": {}}},
    }
    bench.inventory.write_text(json.dumps({"all": {"children": groups}}))
    program = bench.path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"here = pathlib.Path({str(bench.path)!r})\n"
        "(here / 'asked.json').write_text(json.dumps(sys.argv[1:]))\n"
        "print((here / 'answer').read_text(), end='')\n"
    )
    program.chmod(0o755)
    return bench


def called(site: Bench, rows: list[dict[str, Any]], *words: str) -> tuple[Any, list[str]]:
    """What gpuops did, and what journalctl was asked."""
    (site.path / "answer").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    path = f"{site.path / 'bin'}:{site.environment()['PATH']}"
    done = site.call("logs", *words, PATH=path)
    asked = site.path / "asked.json"
    return done, json.loads(asked.read_text()) if asked.exists() else []


def test_it_asks_the_log_host_and_prints_what_it_says(site: Bench) -> None:
    grep = "a {{ 7 * 6 }} 'quoted\" $HOME"
    done, asked = called(site, [entry("two", 2), entry("one", 1)], "--host", "gpu1", "--grep", grep, "--since", "-2h")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == ["one", "two"]
    assert asked[-4:] == [
        "--file=/var/log/journal/remote/gpu1{.journal,@*.journal*}",
        "--lines=200",
        "--since=-2h",
        f"--grep={grep}",
    ]
    assert "--reverse" in asked


def test_a_group_stands_for_its_hosts_and_json_has_a_line_for_each_entry(site: Bench) -> None:
    done, asked = called(site, [entry("x")], "--host", "log_senders", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout)
    assert (row["message"], row["host"], row["time"]) == ("x", "gpu1", NOON)
    (files,) = [word for word in asked if word.startswith("--file=")]
    assert files.count(",gpu") == 1


def test_as_many_entries_as_may_be_asked_for_are_shown(site: Bench) -> None:
    """ansible-runner empties large results by default."""
    rows = [entry(f"{number} {'x' * 500}", -number) for number in range(5000)]
    done, _asked = called(site, rows, "--lines", "5000")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5000


def test_long_messages_are_cut_and_not_left_out(site: Bench) -> None:
    # As journalctl prints fields of more than 4096 bytes only with --all, and bytes that are no text as numbers.
    rows = [
        entry("first words " + "x" * 100_000, 3),
        entry([*b"no text \xff", *b"y" * 9000], 2),
        entry("\u00e9" * 4096, 1),
        entry("short", 0),
    ]
    done, asked = called(site, rows, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--all" in asked
    short, whole, no_text, long = (json.loads(line)["message"] for line in done.stdout.splitlines())
    assert (short, whole) == ("short", "\u00e9" * 4096)
    assert long.startswith("first words xxx")
    assert no_text.startswith("no text \ufffdyyy")
    for message in (long, no_text):
        assert message.endswith(" …")
        assert len(message) == 4096


def test_nothing_found_is_said(site: Bench) -> None:
    done, _asked = called(site, [], "--kernel")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no entry fits" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "nobody"], "nobody"),
        (["--lines", "9999"], "--lines"),
        (["--since", "$(id)"], "--since"),
        (["--unit", "--file=/etc/shadow"], "not the name of a unit"),
    ],
)
def test_wrong_words_ask_nothing(site: Bench, words: list[str], why: str) -> None:
    done, asked = called(site, [], *words)
    assert done.returncode == 64
    assert why in done.stderr
    assert asked == []


def test_a_site_without_a_log_host_is_told_what_to_do(bench: Bench) -> None:
    bench.hosts(gpu1=HERE)
    done = bench.call("logs")
    assert done.returncode == 64
    assert "log_hosts" in done.stderr


def test_a_log_host_that_is_not_reached_is_exit_status_3(site: Bench) -> None:
    dead = {"ansible_host": "127.0.0.1", "ansible_port": 9}
    site.inventory.write_text(json.dumps({"all": {"children": {"log_hosts": {"hosts": {"log1": dead}}}}}))
    done = site.call("logs")
    assert done.returncode == 3
    assert "gpuops logs: " in done.stderr
