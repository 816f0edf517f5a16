# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read TOML 1.0 and change settings in its text, leaving comments, order and layout alone.

Python has a reader from 3.11 on and no writer; a host may have 3.9. The reader notes where in the text every value
stands, so that a change replaces that place only. What cannot be changed in place (an array of tables) is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge

Path = tuple[str, ...]

WHITESPACE = " \t"
BARE = re.compile(r"[A-Za-z0-9_-]+")
NUMBER = re.compile(
    r"(?P<hex>0x[0-9A-Fa-f]+(?:_[0-9A-Fa-f]+)*)|(?P<oct>0o[0-7]+(?:_[0-7]+)*)|(?P<bin>0b[01]+(?:_[01]+)*)"
    r"|(?P<dec>[+-]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)"
    r"(?P<frac>(?:\.[0-9]+(?:_[0-9]+)*)?(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?))"
)
SPECIAL_FLOAT = re.compile(r"[+-]?(?:inf|nan)")
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
MOMENT = re.compile(rf"{DATE}(?:[Tt ]{TIME}(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?)?|{TIME}")
ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Unsupported(Exception):
    """A change that cannot be made in the text."""


class Moment(str):
    """A date or a time, as the text has it."""


@dataclass
class Statement:
    """`key = value`: the path of the value from the top, and where things stand in the text."""

    path: Path
    section: int
    start: int
    value: tuple[int, int]
    in_array: bool = False


@dataclass
class Section:
    """`[table]` or `[[table]]`; the first one is what stands above every header."""

    path: Path
    start: int
    header_end: int
    in_array: bool = False


@dataclass
class Document:
    """The data of a text, and where it stands."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    arrays: set[Path] = field(default_factory=set)


class Reader:
    """A recursive descent over the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.document = Document(text)
        # How a table came about decides what may still be added to it.
        self.made: dict[tuple[Any, ...], str] = {}

    def fail(self, reason: str, at: int | None = None) -> merge.Malformed:
        return merge.Malformed(reason, *merge.position(self.text, self.at if at is None else at))

    # Pieces

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def blanks(self) -> None:
        while self.peek() and self.peek() in WHITESPACE:
            self.at += 1

    def newline(self) -> bool:
        for ending in ("\n", "\r\n"):
            if self.text.startswith(ending, self.at):
                self.at += len(ending)
                return True
        return False

    def comment(self) -> None:
        if self.peek() != "#":
            return
        end = self.text.find("\n", self.at)
        if end < 0:
            end = len(self.text)
        elif self.text[end - 1] == "\r":
            end -= 1
        found = CONTROL.search(self.text, self.at, end)
        if found:
            raise self.fail("a control character in a comment", found.start())
        self.at = end

    def end_of_line(self) -> None:
        self.blanks()
        self.comment()
        if self.at < len(self.text) and not self.newline():
            raise self.fail("something stands after the value")

    def filler(self) -> None:
        """Blanks, comments and line ends, as inside an array."""
        while True:
            self.blanks()
            self.comment()
            if not self.newline():
                return

    # Keys

    def key(self) -> Path:
        parts = []
        while True:
            self.blanks()
            if self.peek() == '"':
                parts.append(self.basic_string())
            elif self.peek() == "'":
                parts.append(self.literal_string())
            else:
                found = BARE.match(self.text, self.at)
                if not found:
                    raise self.fail("a key is expected here")
                parts.append(found.group())
                self.at = found.end()
            self.blanks()
            if self.peek() != ".":
                return tuple(parts)
            self.at += 1

    # Values

    def value(self) -> Any:
        start = self.text[self.at : self.at + 3]
        if start == '"""':
            return self.multiline('"""', True)
        if start == "'''":
            return self.multiline("'''", False)
        if start[:1] == '"':
            return self.basic_string()
        if start[:1] == "'":
            return self.literal_string()
        if start[:1] == "[":
            return self.array()
        if start[:1] == "{":
            return self.inline_table()
        for word, result in (("true", True), ("false", False)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return result
        for pattern, convert in ((MOMENT, Moment), (SPECIAL_FLOAT, float)):
            found = pattern.match(self.text, self.at)
            if found:
                self.at = found.end()
                return convert(found.group())
        found = NUMBER.match(self.text, self.at)
        if not found:
            raise self.fail("a value is expected here")
        self.at = found.end()
        digits = found.group().replace("_", "")
        if found.group("dec") is None:
            return int(digits, 0)
        return float(digits) if found.group("frac") else int(digits)

    def escape(self, multiline: bool) -> str:
        start = self.at
        self.at += 1
        letter = self.peek()
        self.at += 1
        if letter in ESCAPES and letter:
            return ESCAPES[letter]
        if letter in ("u", "U"):
            length = 4 if letter == "u" else 8
            digits = self.text[self.at : self.at + length]
            if re.fullmatch(r"[0-9A-Fa-f]+", digits) and len(digits) == length:
                code = int(digits, 16)
                if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                    self.at += length
                    return chr(code)
        if multiline:
            found = re.compile(r"\\[ \t]*\r?\n(?:[ \t\n]|\r\n)*").match(self.text, start)
            if found:
                self.at = found.end()
                return ""
        raise self.fail("an escape that TOML does not know", start)

    def basic_string(self) -> str:
        start = self.at
        self.at += 1
        result: list[str] = []
        while True:
            letter = self.peek()
            if letter == '"':
                self.at += 1
                return "".join(result)
            if letter == "\\":
                result.append(self.escape(False))
                continue
            if not letter or letter == "\n":
                raise self.fail("the string that begins here has no end", start)
            if CONTROL.match(letter):
                raise self.fail("a control character in a string")
            result.append(letter)
            self.at += 1

    def literal_string(self) -> str:
        start = self.at
        end = self.text.find("'", start + 1)
        line = self.text.find("\n", start + 1)
        if end < 0 or 0 <= line < end:
            raise self.fail("the string that begins here has no end", start)
        result = self.text[start + 1 : end]
        if CONTROL.search(result):
            raise self.fail("a control character in a string", start)
        self.at = end + 1
        return result

    def multiline(self, quotes: str, escapes: bool) -> str:
        start = self.at
        self.at += 3
        self.newline()
        result: list[str] = []
        while True:
            if self.text.startswith(quotes, self.at):
                # Up to two quotes may stand right before the closing three.
                while self.text.startswith(quotes[0], self.at + 3) and not self.text.startswith(quotes, self.at + 3):
                    result.append(quotes[0])
                    self.at += 1
                    if len(result) >= 2 and result[-2:] == [quotes[0]] * 2:
                        break
                self.at += 3
                return "".join(result)
            letter = self.peek()
            if not letter:
                raise self.fail("the string that begins here has no end", start)
            if escapes and letter == "\\":
                result.append(self.escape(True))
                continue
            if self.newline():
                result.append("\n")
                continue
            if CONTROL.match(letter):
                raise self.fail("a control character in a string")
            result.append(letter)
            self.at += 1

    def array(self) -> list[Any]:
        start = self.at
        self.at += 1
        result: list[Any] = []
        while True:
            self.filler()
            if self.peek() == "]":
                self.at += 1
                return result
            if self.peek():
                result.append(self.value())
                self.filler()
            if not self.peek():
                raise self.fail("the array that begins here has no end", start)
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "]":
                raise self.fail("a comma or ] is expected here")

    def inline_table(self) -> dict[str, Any]:
        self.at += 1
        result: dict[str, Any] = {}
        closed: set[Path] = set()
        self.blanks()
        if self.peek() == "}":
            self.at += 1
            return result
        while True:
            start = self.at
            path = self.key()
            self.equals()
            value = self.value()
            if any(path[:depth] in closed for depth in range(1, len(path) + 1)) or merge.has(result, path):
                raise self.fail(f"the key {merge.name(path)} occurs twice", start)
            closed.add(path)
            table = result
            for part in path[:-1]:
                table = table.setdefault(part, {})
            table[path[-1]] = value
            self.blanks()
            if self.peek() == "}":
                self.at += 1
                return result
            if self.peek() != ",":
                raise self.fail("a comma or } is expected here")
            self.at += 1
            self.blanks()

    def equals(self) -> None:
        self.blanks()
        if self.peek() != "=":
            raise self.fail("= is expected here")
        self.at += 1
        self.blanks()

    # The whole

    def read(self) -> Document:
        document = self.document
        document.sections.append(Section((), 0, 0))
        table: dict[str, Any] = document.data
        place: tuple[Any, ...] = ()
        while True:
            self.filler()
            if self.at >= len(self.text):
                return document
            line = self.text.rfind("\n", 0, self.at) + 1
            if self.peek() == "[":
                table, place = self.header(line)
            else:
                self.statement(table, place, line)

    def header(self, line: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        start = self.at
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path = self.key()
        closing = "]]" if array else "]"
        if not self.text.startswith(closing, self.at):
            raise self.fail(f"{closing} is expected here")
        self.at += len(closing)
        table: Any = self.document.data
        place: tuple[Any, ...] = ()
        inside = False
        for index, part in enumerate(path):
            last = index == len(path) - 1
            place = (*place, part)
            how = self.made.get(place)
            if last and array:
                if how not in (None, "array"):
                    raise self.fail(f"{merge.name(path)} is there already, and is not an array of tables", start)
                self.made[place] = "array"
                self.document.arrays.add(path)
                elements = table.setdefault(part, [])
                elements.append({})
                table = elements[-1]
                place = (*place, len(elements) - 1)
                inside = True
            elif how == "array" and not last:
                table = table[part][-1]
                place = (*place, len(self._list_at(place)) - 1)
                inside = True
            elif last and how not in (None, "implied"):
                raise self.fail(f"the table {merge.name(path)} is there already", start)
            elif how == "value":
                raise self.fail(f"{merge.name(path[: index + 1])} is not a table", start)
            else:
                self.made[place] = "header" if last else (how or "implied")
                table = table.setdefault(part, {})
        self.end_of_line()
        self.document.sections.append(Section(path, line, self.at, inside))
        return table, place

    def _list_at(self, place: tuple[Any, ...]) -> list[Any]:
        value: Any = self.document.data
        for part in place:
            value = value[part]
        return value  # type: ignore[no-any-return]

    def statement(self, table: dict[str, Any], place: tuple[Any, ...], line: int) -> None:
        start = self.at
        key = self.key()
        self.equals()
        value_start = self.at
        value = self.value()
        value_end = self.at
        section = self.document.sections[-1]
        for index, part in enumerate(key[:-1]):
            place = (*place, part)
            # A table that has a header is not extended from elsewhere, a value not at all.
            if self.made.get(place) not in (None, "dotted", "implied"):
                raise self.fail(f"{merge.name(section.path + key[: index + 1])} cannot be extended here", start)
            self.made[place] = "dotted"
            table = table.setdefault(part, {})
        place = (*place, key[-1])
        if place in self.made:
            raise self.fail(f"the key {merge.name(section.path + key)} occurs twice", start)
        self.made[place] = "value"
        table[key[-1]] = value
        number = len(self.document.sections) - 1
        self.document.statements.append(
            Statement(section.path + key, number, line, (value_start, value_end), section.in_array)
        )
        self.end_of_line()


def read(text: str) -> Document:
    """The document in a text, which for the document begins behind its byte order mark."""
    try:
        return Reader(text[len(merge.byte_order_mark(text)) :]).read()
    except RecursionError:
        raise merge.Malformed("the values are nested too deeply", 1, 1) from None


def parse(text: str) -> dict[str, Any]:
    """The data of a text."""
    return read(text).data


# Writing


def render_key(part: str) -> str:
    return part if BARE.fullmatch(part) else render_string(part)


def render_string(value: str) -> str:
    # JSON's escapes are TOML's, but for the delete character, and a lone surrogate, which TOML cannot hold at all.
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Unsupported(f"TOML cannot hold the text {value!r}") from None
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def render_value(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Moment):
        return str(value)
    if isinstance(value, str):
        return render_string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(render_value(item) for item in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{render_key(key)} = {render_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    raise Unsupported(f"TOML has no value such as {json.dumps(value)}")


def edit(text: str, after: dict[str, Any]) -> str:
    """The text changed in such a way that its data are `after`."""
    mark = merge.byte_order_mark(text)
    return mark + _edited(text[len(mark) :], after)


def _edited(text: str, after: dict[str, Any]) -> str:
    document = read(text)
    before = document.data
    if merge.same(before, after):
        return text
    for path in document.arrays:
        if not merge.same(merge.get(before, path), merge.get(after, path)):
            raise Unsupported(f"{merge.name(path)} is an array of tables, which is not changed here; change it by hand")
    if text and not text.endswith("\n"):
        document = read(text + "\n")
    text = document.text
    edits: list[tuple[int, int, str]] = []
    covered: set[Path] = set()
    kept: dict[int, int] = {}
    for statement in document.statements:
        if statement.in_array:
            continue
        start, end = statement.value
        line_end = text.index("\n", end) + 1
        old, new = merge.get(before, statement.path), merge.get(after, statement.path)
        gone = not merge.has(after, statement.path)
        if gone or (isinstance(new, dict) and not isinstance(old, dict)):
            edits.append((statement.start, line_end, ""))
            continue
        covered.add(statement.path)
        kept[statement.section] = line_end
        if not merge.same(old, new):
            edits.append((start, end, render_value(new)))
    headers: dict[Path, int] = {}
    for number, section in enumerate(document.sections):
        if section.in_array:
            continue
        if number and not isinstance(merge.get(after, section.path), dict):
            edits.append((section.start, section.header_end, ""))
        else:
            headers[section.path] = number
    insertions: dict[int, list[str]] = {}
    tables: dict[Path, list[str]] = {}
    for path, value in merge.leaves(after).items():
        if any(path[:depth] in covered or path[:depth] in document.arrays for depth in range(1, len(path) + 1)):
            continue
        # An empty table is a header of its own.
        empty = isinstance(value, dict)
        table = path if empty else path[:-1]
        if empty and (path in headers or _implied(headers, path)):
            continue
        dotted = _dotted(document, covered, table)
        if not empty and (table in headers or dotted is not None):
            number = headers[table] if dotted is None else dotted.section
            section = document.sections[number]
            place = kept.get(number, section.header_end) if dotted is None else text.index("\n", dotted.value[1]) + 1
            key = ".".join(render_key(part) for part in path[len(section.path) :])
            line = f"{_indent(document, number)}{key} = {render_value(value)}\n"
            insertions.setdefault(place, []).append(line)
        else:
            lines = tables.setdefault(table, [])
            if not empty:
                lines.append(f"{render_key(path[-1])} = {render_value(value)}\n")
    edits += [(place, place, "".join(lines)) for place, lines in insertions.items()]
    for start, end, new_text in sorted(edits, key=lambda item: (item[0], item[1]), reverse=True):
        text = text[:start] + new_text + text[end:]
    for table, lines in tables.items():
        text += ("\n" if text.strip() else "") + "[" + ".".join(map(render_key, table)) + "]\n" + "".join(lines)
    # The one thing that must never happen is to write a file that says something else.
    try:
        result = parse(text)
    except merge.Malformed as error:
        raise Unsupported(f"the change cannot be made in the text of the file ({error}); make it by hand") from None
    if not merge.same(result, after):
        names = ", ".join(merge.name(path) for path in merge.differences(result, after))
        raise Unsupported(f"the change cannot be made in the text of the file ({names}); make it by hand")
    return text


def _implied(headers: dict[Path, int], path: Path) -> bool:
    """Whether a table that is empty now is there because of the header of a table below it."""
    return any(header[: len(path)] == path and len(header) > len(path) for header in headers)


def _dotted(document: Document, covered: set[Path], table: Path) -> Statement | None:
    """The last statement that makes a table by the dots in its key: the table cannot have a header then."""
    found = None
    for statement in document.statements:
        section = document.sections[statement.section]
        if (
            statement.path in covered
            and len(section.path) < len(table) < len(statement.path)
            and statement.path[: len(table)] == table
        ):
            found = statement
    return found


def _indent(document: Document, number: int) -> str:
    """The blanks that the statements of a section begin with."""
    for statement in document.statements:
        if statement.section == number:
            line = document.text[statement.start :]
            return line[: len(line) - len(line.lstrip(WHITESPACE))]
    return ""
