# SPDX-License-Identifier: GPL-3.0-or-later
"""Heads and names of journal files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.logs import journal_file
from tests.unit.plugins.module_utils.logs.journals import head

# Captured: the head of a file that systemd 252 wrote, with ten entries.
CAPTURED = bytes.fromhex(
    "4c504b5348485248000000001c0000000000000000000000a20f316dea6c47a993265a63ca7b0ab23d1219c7c4c5404a"
    "aa1f6d2a48adfda40123456789abcdef0123456789abcdefa20f316dea6c47a993265a63ca7b0ab20801000000000000"
    "f8fe7f0000000000f81500000000000080e33800000000001801000000000000d0140000000000007004390000000000"
    "29000000000000000a000000000000000a000000000000000100000000000000b8fc38000000000010671e18240a0600"
    "388a1e18240a0600204e0000000000000e00000000000000050000000000000000000000000000000a00000000000000"
    "0000000000000000000000000000000040003900060000000500000000000000"
)
ARCHIVED = "src1@436166a06cfb4659aaeba89a9175ddc6-000000000000000a-00060a24181e4000.journal"


def test_a_head_tells_its_entries() -> None:
    found = journal_file.parse(head(7, 5, 14, series=3, realtime=(1_700_000_000_000_000, 1_700_000_009_000_000)))
    assert found is not None
    assert (found.entries, found.head_seqnum, found.tail_seqnum) == (10, 5, 14)
    assert (found.file_id[-1], found.seqnum_id[-1]) == ("7", "3")
    assert (found.head_realtime, found.tail_realtime) == (1_700_000_000_000_000, 1_700_000_009_000_000)


def test_a_real_head_is_read_as_journalctl_reads_it() -> None:
    found = journal_file.parse(CAPTURED)
    assert found is not None
    assert found.file_id == "a20f316dea6c47a993265a63ca7b0ab2"
    assert (found.entries, found.head_seqnum, found.tail_seqnum) == (10, 1, 10)
    assert (found.head_realtime, found.tail_realtime) == (1_700_000_000_010_000, 1_700_000_000_019_000)


@pytest.mark.parametrize("content", [b"", b"LPKSHHRH", b"x" * 300, head(1, 1, 1)[:150]])
def test_what_is_no_journal_has_no_head(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(content)
    assert journal_file.read(str(path)) is None


def test_a_file_that_went_has_no_head(tmp_path: Path) -> None:
    assert journal_file.read(str(tmp_path / "gone.journal")) is None


def test_files_are_told_by_their_names(tmp_path: Path) -> None:
    unclean = ARCHIVED.replace(".journal", ".journal~")
    for name in ("src1.journal", "src-1.example.com.journal", ARCHIVED, unclean, "src1.journal.tmp", "x", ".journal"):
        (tmp_path / name).touch()
    found = {Path(row.path).name: (row.of, row.is_active) for row in journal_file.listed(str(tmp_path))}
    assert found == {
        "src1.journal": ("src1", True),
        "src-1.example.com.journal": ("src-1.example.com", True),
        ARCHIVED: ("src1", False),
        unclean: ("src1", False),
    }


def test_an_archived_name_is_read_as_one() -> None:
    found = journal_file.parse(head(1, 10, 20))
    assert found is not None
    name = journal_file.archived_name("/x/src1.journal", found)
    assert name == f"/x/src1@{'0' * 31}1-000000000000000a-{10_000_000:016x}.journal"
