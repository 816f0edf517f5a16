# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log host removes, and what it keeps."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.logs import journal_file, store
from tests.unit.plugins import exposition
from tests.unit.plugins.module_utils.logs.journals import file, head

DAY = 86400.0
NOW = time.time()
MIB = 1 << 20


class Host:
    """A log host whose receivers archive their files when they are restarted.

    :ivar said: what the program has written into the journal.
    :ivar restarted: the hosts whose receivers were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self.restarted: list[str] = []
        self.free = 1 << 40
        self.refuses = ""
        self._number = 0

    def archived(self, sender: str, mebibytes: int = 1, days: float = 0.5) -> Path:
        """A file that was written to so many days ago."""
        self._number += 1
        name = f"{sender}@{self._number:032x}-{1:016x}-{1:016x}.journal"
        return file(self.path / name, head(self._number, 1, 10), mebibytes, NOW - days * DAY)

    def active(self, sender: str, mebibytes: int = 1, age_days: float = 0.0) -> Path:
        self._number += 1
        begun = int((NOW - age_days * DAY) * 1e6)
        content = head(self._number, 1, 10, realtime=(begun, begun + 1))
        return file(self.path / f"{sender}.journal", content, mebibytes, NOW)

    def restart(self, sender: str) -> str:
        self.restarted.append(sender)
        if not self.refuses:
            store.rotate(str(self.path), sender, NOW)
        return self.refuses

    def look(self, space: int = 1000, free: int = 0, days: float = 30, senders: list[str] | None = None) -> str:
        """One look with limits in MiB and days."""
        program = store.Store(
            store.Limits(space * MIB, free * MIB, days * DAY),
            str(self.path),
            str(self.path / "store.prom"),
            self.restart,
            lambda text, priority: self.said.append(text),
            lambda: NOW,
            lambda directory: self.free,
            senders,
        )
        return program.look()

    def left(self) -> set[str]:
        return {path.name.partition(".")[0].partition("@")[0] for path in self.path.glob("*.journal")}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_entries_are_kept_for_their_days_and_no_longer(host: Host) -> None:
    old, new = host.archived("a", days=30.1), host.archived("a", days=29.9)
    assert host.look() == ""
    assert (old.exists(), new.exists()) == (False, True)
    (said,) = host.said
    assert said.startswith("removed entries of a until ")
    assert said.endswith("because of their age")


def test_what_a_host_says_of_its_times_keeps_nothing(host: Host) -> None:
    path = host.archived("a", days=31)
    content = head(99, 1, 2, realtime=(int(4e15), int(4e15)))
    file(path, content, 1, NOW - 31 * DAY)
    host.look()
    assert not path.exists()


def test_the_host_that_floods_loses_its_own_past(host: Host) -> None:
    quiet = [host.archived("quiet", days=20), host.archived("quiet", days=10)]
    flood = [host.archived("flood", 10, days=1 - index / 10) for index in range(5)]
    assert host.look(space=30) == ""
    assert all(path.exists() for path in quiet)
    # The oldest first.
    assert [path.exists() for path in flood] == [False, False, False, True, True]
    assert host.said[0].endswith("10 MiB, for space")


def test_among_equal_hosts_nobody_is_emptied(host: Host) -> None:
    for name in "abc":
        for days in (3, 2, 1):
            host.archived(name, 2, days=days)
    host.look(space=12)
    assert host.left() >= {"a", "b", "c"}
    assert sum(store.stored(str(host.path))[index].bytes for index in range(3)) <= 12 * MIB


def test_room_of_the_file_system_stays_free(host: Host) -> None:
    path = host.archived("a")
    host.free = 5 * MIB
    told = host.look(free=10)
    assert not path.exists()
    assert "log_host_space" in told


def test_what_is_written_to_is_never_removed(host: Host) -> None:
    path = host.active("a", 10)
    told = host.look(space=5)
    assert path.exists()
    assert "too much for the limits" in told


@pytest.mark.parametrize(("mebibytes", "age"), [(1, 1.1), (65, 0.1)])
def test_an_active_file_is_archived_when_it_is_old_or_large(host: Host, mebibytes: int, age: float) -> None:
    path = host.active("a", mebibytes, age)
    assert host.look() == ""
    assert host.restarted == ["a"]
    (archived,) = host.path.glob("a@*.journal")
    assert not path.exists()
    assert [row.is_active for row in journal_file.listed(str(host.path))] == [False]
    assert archived.stat().st_size


def test_a_young_active_file_stays(host: Host) -> None:
    host.active("a")
    host.look()
    assert host.restarted == []


def test_when_a_file_was_made_is_what_this_host_says(host: Host) -> None:
    # The entries claim to be old.
    path = host.active("a", age_days=400)
    made = int((NOW - 60) * 1e6).to_bytes(8, "little")
    try:
        os.setxattr(path, "user.crtime_usec", made)
    except OSError:
        pytest.skip("this file system has no extended attributes")
    host.look()
    assert host.restarted == []


def test_a_receiver_that_does_not_restart_is_told(host: Host) -> None:
    host.active("a", age_days=2)
    host.archived("b", days=40)
    host.refuses = "the receiver of a does not restart: it hangs"
    assert "it hangs" in host.look()
    # The rest is done.
    assert host.left() == {"a"}


def test_a_receiver_that_does_not_archive_is_told(host: Host) -> None:
    host.active("a", age_days=2)
    host.restart = lambda sender: ""  # type: ignore[method-assign]
    assert host.look() == "the journal of a was not archived"


def test_metrics_tell_of_each_host(host: Host) -> None:
    host.archived("a", 2, days=3)
    host.archived("b", 1, days=1)
    host.archived("b", 1, days=40)
    host.look(space=100)
    found = exposition.parse((host.path / "store.prom").read_text())
    taken = found["baremetal_gpu_log_store_bytes"].series
    assert {dict(labels)["sender"]: value for labels, value in taken.items()} == {"a": 2 * MIB, "b": MIB}
    written = found["baremetal_gpu_log_store_written_timestamp_seconds"].series[(("sender", "a"),)]
    assert written == pytest.approx(NOW - 3 * DAY, abs=1)
    assert found["baremetal_gpu_log_store_removed_bytes_total"].series[(("reason", "age"),)] == MIB
    assert found["baremetal_gpu_log_store_limit_bytes"].series[()] == 100 * MIB


def test_a_host_that_never_sent_is_waited_for_and_one_that_left_is_not(host: Host) -> None:
    host.archived("left", days=3)
    host.look(senders=["new"])
    found = exposition.parse((host.path / "store.prom").read_text())
    written = found["baremetal_gpu_log_store_written_timestamp_seconds"].series
    assert written == {(("sender", "new"),): pytest.approx(NOW, abs=1)}


def test_without_a_directory_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert Host(tmp_path / "none").look() == ""


def test_the_program_wants_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        store.main(["--space", "0", "--days", "3"])
    assert "--space" in capsys.readouterr().err
