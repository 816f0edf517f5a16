# SPDX-License-Identifier: GPL-3.0-or-later
"""Text from outside: printable, bounded, one line where one line is wanted."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

EVERYTHING = "".join(map(chr, range(0x110000)))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("Größe 3 µs", "Größe 3 µs"),
        ("a\nb\r\nc\td\u2028e\x85f", "a b  c d e f"),
        ("\x1b[2J\x1b]0;title\x07", "\ufffd[2J\ufffd]0;title\ufffd"),
        ("abc\u202edef\u2066", "abc\ufffddef\ufffd"),
        ("\ud800x\x00", "\ufffdx\ufffd"),
        (b"\xff disk \xc3\xa4", "\ufffd disk ä"),
        (17, "17"),
        (None, "None"),
    ],
)
def test_one_line_is_printable(value: object, line: str) -> None:
    assert untrusted_text.one_line(value) == line


def test_every_character_there_is_comes_out_printable() -> None:
    line = untrusted_text.one_line(EVERYTHING, at_most=len(EVERYTHING))
    assert line.isprintable()
    line.encode("utf-8")
    text = untrusted_text.several_lines(EVERYTHING, at_most=len(EVERYTHING))
    assert set(text) - set(line) == {"\n", "\t"}


@pytest.mark.parametrize("clean", [untrusted_text.one_line, untrusted_text.several_lines])
def test_the_length_is_bounded_and_the_cut_shown(clean: object) -> None:
    assert callable(clean)
    for length in (0, 1, 9, 10, 11, 10**6):
        cleaned = clean("x" * length, 10)
        assert len(cleaned) <= 10
        assert cleaned == ("x" * length if length <= 10 else "xxxxxxxx …")
    assert clean(b"\xf0\x9f\x90\xb3" * 1000, 10) == "🐳" * 8 + " …"


def test_several_lines_keeps_newlines_and_tabs_only() -> None:
    assert untrusted_text.several_lines("a\r\nb\tc\rd\x1b[0m\n") == "a\nb\tc d\ufffd[0m\n"
