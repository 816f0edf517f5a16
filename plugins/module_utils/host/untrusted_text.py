# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text that comes from a host, a user or the network, made harmless where it enters the program.

A terminal obeys escape sequences, XML refuses control characters, no file takes a lone surrogate, and a line break in
a name makes two lines of one. So text from outside goes through here once, where it is read; what comes after may
print it, store it and compare it. Quoting for YAML, HTML or a shell is still the job of whoever writes these.
"""

from __future__ import annotations

# What stands for a character that was taken out, so that the reader sees that there was something.
REPLACEMENT = "\ufffd"
LINE_AT_MOST = 500
TEXT_AT_MOST = 20000
CUT = " …"


def one_line(value: object, at_most: int = LINE_AT_MOST) -> str:
    """A value as one printable line of at most `at_most` characters.

    Line breaks, tabs and other white space become blanks; control characters, escape sequences' first characters,
    invisible format characters (which can reverse what is shown) and lone surrogates become U+FFFD.
    """
    return _bounded(_printable(_text(value, at_most)), at_most)


def several_lines(value: object, at_most: int = TEXT_AT_MOST) -> str:
    """A value as printable text of at most `at_most` characters that keeps its line breaks (as newlines) and tabs."""
    text = _text(value, at_most).replace("\r\n", "\n")
    return _bounded("\n".join("\t".join(map(_printable, line.split("\t"))) for line in text.split("\n")), at_most)


def _text(value: object, at_most: int) -> str:
    if isinstance(value, bytes):
        # Not more is decoded than can be kept: a character has at most four bytes.
        return value[: 4 * at_most + 4].decode("utf-8", "replace")
    return (value if isinstance(value, str) else str(value))[: at_most + 1]


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character.isspace() else REPLACEMENT for character in text
    )


def _bounded(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else text[: max(0, at_most - len(CUT))] + CUT
