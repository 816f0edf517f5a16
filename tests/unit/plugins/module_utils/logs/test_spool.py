# SPDX-License-Identifier: GPL-3.0-or-later
"""What waits to be sent, and what was dropped before it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.logs import spool
from tests.unit.plugins import exposition
from tests.unit.plugins.module_utils.logs.journals import cursor, file, head

PREFIX = "baremetal_gpu_log_sender_"


class Host:
    """A host with a journal, where journald and systemd-journal-upload do what a test says.

    :ivar said: what the program has written into the journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal"
        self.journal.mkdir()
        self.said: list[str] = []
        self.boot()

    def boot(self) -> None:
        self._spool = spool.Spool(
            str(self.journal),
            str(self.path / "upload"),
            str(self.path / "state.json"),
            str(self.path / "spool.prom"),
            self.said.append,
        )

    def has(self, number: int, first: int, last: int, **more: int) -> None:
        file(self.journal / f"system@{number:032x}-0-0.journal", head(number, first, last, **more))

    def drops(self, number: int) -> None:
        (self.journal / f"system@{number:032x}-0-0.journal").unlink()

    def confirmed(self, seqnum: int) -> None:
        (self.path / "upload").write_text(cursor(seqnum))

    def look(self) -> dict[str, float]:
        """Metrics without what all their names begin with."""
        assert self._spool.look() == ""
        found = exposition.parse((self.path / "spool.prom").read_text())
        return {name.removeprefix(PREFIX): family.series[()] for name, family in found.items()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_comes_after_the_cursor_waits(host: Host) -> None:
    host.has(1, 1, 100)
    host.has(2, 101, 150)
    host.confirmed(90)
    found = host.look()
    assert found["waiting_entries"] == 60
    assert found["confirmed_timestamp_seconds"] == 90
    assert found["oldest_waiting_timestamp_seconds"] == 90
    host.confirmed(150)
    found = host.look()
    assert found["waiting_entries"] == 0
    assert "oldest_waiting_timestamp_seconds" not in found


def test_before_the_first_contact_everything_waits(host: Host) -> None:
    host.has(1, 1, 100)
    found = host.look()
    assert found["waiting_entries"] == 100
    assert "confirmed_timestamp_seconds" not in found


def test_what_journald_drops_before_it_was_sent_is_counted_and_said(host: Host) -> None:
    host.has(1, 1, 100)
    host.has(2, 101, 200)
    host.has(3, 201, 210)
    host.confirmed(60)
    host.look()
    host.drops(1)
    host.drops(2)
    found = host.look()
    assert found["dropped_entries_total"] == 140
    assert found["waiting_entries"] == 10
    (said,) = host.said
    assert said.startswith("about 140 entries of the journal were dropped before the log host had them")
    assert "log_sender_spool" in said
    assert host.look()["dropped_entries_total"] == 140
    assert len(host.said) == 1


def test_what_was_sent_may_go(host: Host) -> None:
    host.has(1, 1, 100)
    host.has(2, 101, 200)
    host.confirmed(200)
    host.look()
    host.drops(1)
    assert host.look()["dropped_entries_total"] == 0
    assert host.said == []


def test_a_log_host_that_comes_back_right_after_the_drop_hides_nothing(host: Host) -> None:
    host.has(1, 1, 100)
    host.has(2, 101, 200)
    host.confirmed(20)
    host.look()
    host.drops(1)
    host.confirmed(200)
    assert host.look()["dropped_entries_total"] == 80


def test_the_count_outlives_a_boot_and_sees_what_went_meanwhile(host: Host) -> None:
    host.has(1, 1, 100)
    host.has(2, 101, 200)
    host.confirmed(0)
    host.look()
    host.drops(1)
    host.look()
    host.boot()
    assert host.look()["dropped_entries_total"] == 100
    host.drops(2)
    host.boot()
    assert host.look()["dropped_entries_total"] == 200


def test_a_file_that_journald_archives_is_the_same(host: Host) -> None:
    host.has(1, 1, 100)
    host.confirmed(1)
    host.look()
    before = next(host.journal.iterdir())
    before.rename(host.journal / "system@00-1-1.journal")
    assert host.look()["dropped_entries_total"] == 0


def test_another_series_of_numbers_is_compared_by_time(host: Host) -> None:
    # journald begins with 1 again where it lost its files.
    host.has(1, 1, 50, series=2, realtime=(500_000_000, 600_000_000))
    host.has(2, 51, 60, series=2, realtime=(10_000_000, 20_000_000))
    host.confirmed(300)
    assert host.look()["waiting_entries"] == 50


def test_of_a_user_s_journal_only_what_was_not_sent_is_counted(host: Host) -> None:
    # It has numbers of its own, and the cursor is between two of its entries.
    host.has(1, 1, 100)
    host.has(2, 1, 80, series=2, realtime=(1_000_000, 99_000_000))
    host.confirmed(100)
    assert host.look()["waiting_entries"] == 0
    host.has(2, 1, 85, series=2, realtime=(1_000_000, 105_000_000))
    assert host.look()["waiting_entries"] == 5
    host.boot()
    host.drops(2)
    assert host.look()["dropped_entries_total"] == 5


def test_entries_of_users_lie_between_those_of_the_system(host: Host) -> None:
    # The file has 30 entries of the numbers 1 to 100; 20 of the numbers follow the cursor.
    host.has(1, 1, 100, entries=30)
    host.confirmed(80)
    assert host.look()["waiting_entries"] == 20


@pytest.mark.parametrize(
    "text",
    ["", "LAST_CURSOR=", "LAST_CURSOR=s=zz;i=1;t=2", "LAST_CURSOR=i=1", "x" * 5000, "LAST_CURSOR=s=ab;i=" + "f" * 99],
)
def test_a_cursor_that_cannot_be_read_is_none(text: str) -> None:
    assert spool.cursor_of(text) == spool.NOTHING_SENT


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"cursor": ["", 0, 0], "files": [[1]], "sent": {}, "dropped": 0}',
        '{"cursor": ["", 0, 0], "files": [], "sent": [], "dropped": 0}',
        '{"cursor": ["", "x", 0], "files": [], "sent": {}, "dropped": 0}',
        '{"cursor": ["", 0, 0], "files": [], "sent": {}, "dropped": null}',
        "[" * 100000,
    ],
)
def test_a_damaged_state_is_told_and_left_behind(host: Host, text: str) -> None:
    (host.path / "state.json").write_text(text)
    host.boot()
    (said,) = host.said
    assert "is damaged" in said
    host.has(1, 1, 5)
    assert host.look()["dropped_entries_total"] == 0


def test_a_directory_of_metrics_that_is_gone_is_told(host: Host) -> None:
    host.has(1, 1, 5)
    program = spool.Spool(
        str(host.journal), "/nowhere", str(host.path / "state.json"), str(host.path / "no" / "x.prom"), host.said.append
    )
    assert "cannot be written" in program.look()
