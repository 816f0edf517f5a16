# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of Ansible in words: lines for a terminal, and the cause and the remedy of a failure.

A line is a list of (style, text); what a style looks like is the caller's. The styles are good, changed, bad, busy,
faint and plain.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.problems import problems_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import SHORT_TITLES

Line = list[tuple[str, str]]

SYMBOLS = {
    progress.OK: ("good", "✓"),
    progress.CHANGED: ("changed", "±"),
    progress.RUNNING: ("busy", "▸"),
    progress.FAILED: ("bad", "✗"),
    progress.UNREACHABLE: ("bad", "?"),
    progress.SKIPPED: ("faint", "-"),
    "": ("faint", "·"),
}
# For terminals that have ASCII only.
ASCII = {"✓": "+", "±": "c", "▸": ">", "✗": "X", "·": ".", "…": "~", "↻": "R"}

# Messages of ssh about a host that it does not get into, and what to do about it.
_REACH = (
    (
        "host key verification failed",
        "compare the host's key at its console and accept it with `ssh {host}`, or with ssh-keyscan for many hosts",
    ),
    ("permission denied", "give the account ansible_user your public key there (ssh-copy-id), or name another account"),
    ("could not resolve hostname", "set ansible_host to its address, or give its name to the name service"),
    ("", "see that `ssh {host}` gets in as the inventory has it (ansible_host, ansible_user), then run it again"),
)
_CENSORED = "take no_log off for one run to see its result, or look at the host"
_UNKNOWN = "run it again for this host alone, with --limit {host} -vvv"
_LONGEST = 2000
# Of a line that is printed, as of a difference between files.
PART_AT_MOST = 20000
# Of which the summary tells how long each took.
LONGEST_STAGES = 5


def explain(host: str, kind: str, result: Any) -> list[tuple[str, str]]:
    """Why a host failed and what to do about it: (cause, remedy) for each problem of the result.

    A result without problems, as of a module that is not of this collection, is one problem: its message is the cause.
    """
    if not isinstance(result, dict):
        result = {"msg": str(result)}
    if kind == progress.UNREACHABLE:
        cause = _flat(_message(result)) or "the host cannot be reached"
        remedy = next(remedy for words, remedy in _REACH if words in cause.lower())
        # A task of this host that is done on another one: it is that one which cannot be reached.
        unreached = result.get(progress.DELEGATED) or host
        if unreached != host:
            cause = f"{unreached}, where this has to be done for {host}, cannot be reached: {cause}"
        return [(cause, remedy.format(host=unreached))]
    if "censored" in result:
        return [("what failed is hidden by no_log", _CENSORED)]
    problems = problems_of(result)
    if problems:
        return [(_flat(problem.sentence(stop="")), _flat(problem.remedy)) for problem in problems]
    cause = _flat(_message(result))
    if "missing sudo password" in cause.lower():
        return [(cause, "give --ask-become-pass, or let the account use sudo without a password")]
    return [(cause or "the task failed without a message", _UNKNOWN.format(host=host))]


def _flat(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST else f"{joined[:_LONGEST]} …"


def _message(result: dict[str, Any]) -> str:
    """The message of a task that failed; for a loop, those of its items."""
    listed = result.get("results")
    items = [row for row in listed if isinstance(row, dict) and row.get("failed")] if isinstance(listed, list) else []
    if items:
        messages = [_message(row) for row in items]
        return " | ".join(dict.fromkeys(text for text in messages if text))
    message = result.get("msg") or ""
    if not isinstance(message, str):
        message = "; ".join(str(part) for part in message) if isinstance(message, list) else str(message)
    message = message.removeprefix("Task failed: ")
    # The message of a command is only that its exit status was not 0.
    more = [str(result.get(key) or "").strip() for key in ("stderr", "reason")]
    if result.get("module_stderr"):
        more.append(str(result["module_stderr"]).strip().rsplit("\n", 1)[-1])
    return ": ".join([message.rstrip(), *(text for text in more if text and text not in message)]).lstrip(": ")


def clock(seconds: float) -> str:
    """A length of time: 42s, 3m05s, 1h02m."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def failure_lines(failure: progress.Failure, width: int) -> list[Line]:
    """A failure, to be printed when it happens."""
    where = f" in {failure.stage}" if failure.stage else ""
    word = "unreachable" if failure.kind == progress.UNREACHABLE else "failed"
    lines: list[Line] = [
        [("bad", f"✗ {failure.host}"), ("plain", f" {word}{where} after {clock(failure.after)}: {failure.task}")]
    ]
    for cause, remedy in explain(failure.host, failure.kind, failure.result):
        lines += wrapped("  cause:  ", cause, width)
        if remedy:
            lines += wrapped("  remedy: ", remedy, width, "changed")
    return lines


def note_line(kind: str, host: str, stage: str, task: str, after: float) -> Line:
    """What is printed of a host before its next event."""
    where = f" in {stage}" if stage else ""
    if kind == progress.REBOOTING:
        return [("busy", f"↻ {host}"), ("plain", f" reboots{where} after {clock(after)}")]
    text = f" fails{where} after {clock(after)}: {task}; the cause follows when the others are through it"
    return [("bad", f"… {host}"), ("plain", text)]


def wrapped(head: str, text: str, width: int, style: str = "plain") -> list[Line]:
    """Text in as many lines as it takes, behind a head that stands before the first."""
    room = max(20, width - len(head))
    rows, row = [], ""
    for word in text.split():
        if row and len(row) + 1 + len(word) > room:
            rows.append(row)
            row = word
        else:
            row = f"{row} {word}".strip()
    rows.append(row)
    return [
        [("faint", head if not number else " " * len(head)), (style, content)] for number, content in enumerate(rows)
    ]


def live(run: progress.Run, now: float, width: int, height: int) -> list[Line]:
    """The picture of a run under way: no more than ``height`` lines of ``width`` characters."""
    stages = run.stages()
    head: Line = [("plain", f"{run.play or 'starting'}: "), ("plain", run.task)]
    lines: list[Line] = [_clip(head, width), _clip(_state(run, now), width)]
    chosen = _interesting(run, max(1, height - 4))
    if chosen and stages:
        lines += matrix(run, stages, chosen, now, width)
    others = len(run.hosts) - len(chosen)
    if others > 0:
        lines.append([("faint", f"and {others} hosts more")])
    return lines[:height]


def _state(run: progress.Run, now: float) -> Line:
    counts = run.counts()
    busy = sum(1 for host in run.hosts.values() if host.task)
    line: Line = [("plain", f"{clock(run.elapsed(now))} so far")]
    left = run.remaining(now)
    if left is not None:
        text = f", about {clock(left)} to go" if left >= 1 else ", longer than the last runs"
        line.append(("plain", text))
    line.append(("plain", f"; {counts['hosts']} hosts"))
    if busy:
        line.append(("busy", f", {busy} busy"))
    for kind in ("failed", "unreachable"):
        if counts[kind]:
            line.append(("bad", f", {counts[kind]} {kind}"))
    return line


def _interesting(run: progress.Run, most: int) -> list[str]:
    """The hosts to show where not all fit: those that failed, then those that have been busy longest, then others."""
    if len(run.hosts) <= most:
        return list(run.hosts)

    def weight(item: tuple[str, progress.Host]) -> tuple[int, float]:
        host = item[1]
        return (0 if host.out else 1 if host.task else 2, host.since if host.task else 0.0)

    chosen = {name for name, _host in sorted(run.hosts.items(), key=weight)[:most]}
    return [name for name in run.hosts if name in chosen]


def matrix(run: progress.Run, stages: list[str], names: list[str], now: float, width: int) -> list[Line]:
    """Hosts and stages, and what each host is doing or where it ended."""
    first = min(max(len(name) for name in names), max(8, width // 4))
    wide = first + sum(max(len(stage), 8) + 2 for stage in stages) + 30 <= width
    titles = stages if wide else [SHORT_TITLES.get(stage, stage)[:6] for stage in stages]
    columns = [max(len(title), 8) if wide else len(title) for title in titles]
    gap = "  " if wide else " "
    header = " " * first + "".join(gap + title.ljust(size) for title, size in zip(titles, columns, strict=True))
    lines: list[Line] = [[("faint", header[:width])]]
    for name in names:
        host = run.hosts[name]
        line: Line = [("bad" if host.out else "plain", _fit(name, first))]
        for stage, size in zip(stages, columns, strict=True):
            state = run.cell(name, stage)
            style, symbol = SYMBOLS[state]
            seconds = host.seconds.get(stage, 0.0)
            text = f"{symbol} {clock(seconds)}" if wide and state and seconds >= 1 else symbol
            line.append((style, gap + text.ljust(size)))
        line.append(_doing(host, now))
        lines.append(_clip(line, width))
    return lines


def _doing(host: progress.Host, now: float) -> tuple[str, str]:
    if host.task:
        what = "rebooting" if host.rebooting else host.task
        return "busy", f"  {clock(max(0.0, now - host.since))} {what}"
    if host.failure is not None and host.out:
        return "bad", f"  {host.failure.kind}: {host.failure.task}"
    return "plain", ""


def _fit(text: str, size: int) -> str:
    return text.ljust(size) if len(text) <= size else f"{text[: size - 1]}…"


def _clip(line: Line, width: int) -> Line:
    """A line that is no wider than the terminal."""
    left, out = width, []
    for style, text in line:
        if len(text) > left:
            out.append((style, f"{text[: max(0, left - 1)]}…" if left > 0 else ""))
            break
        out.append((style, text))
        left -= len(text)
    return out


def summary(run: progress.Run, width: int, most: int | None = 40) -> list[Line]:
    """How a run ended: hosts and stages, their times, and the hosts that were left out."""
    counts = run.counts()
    total: Line = [
        ("plain", f"{_hosts(counts['hosts'])} in {clock(run.elapsed(run.started))}: "),
        ("changed", f"{counts['ok']} stopped on the way") if run.cut else ("good", f"{counts['ok']} done"),
    ]
    if counts["ok"]:
        total.append(("plain", f" ({counts['changed']} changed)" if counts["changed"] else " (nothing changed)"))
    for kind in ("failed", "unreachable"):
        if counts[kind]:
            total += [("plain", ", "), ("bad", f"{counts[kind]} {kind}")]
    if counts["unfinished"]:
        total += [("plain", ", "), ("changed", f"{counts['unfinished']} not finished")]
    lines: list[Line] = []
    stages = run.stages()
    names = list(run.hosts)
    if most is not None and len(names) > most:
        names = [name for name in names if run.hosts[name].out][:most]
    if names and stages:
        lines += matrix(run, stages, names, run.ended or run.started, width)
    lines += [_clip(line, width) for line in _times(run)]
    lines.append(total)
    return lines


def _times(run: progress.Run) -> list[Line]:
    """Where the time went: a line for each of the longest stages, and one for all others."""
    spent = sorted(((run.stage_seconds.get(stage, 0.0), stage) for stage in run.stages()), reverse=True)
    spent = [row for row in spent if row[0] >= 0.5]
    rows, others = spent[:LONGEST_STAGES], spent[LONGEST_STAGES:]
    if others:
        rows.append((sum(seconds for seconds, _stage in others), f"{len(others)} more"))
    room = max((len(stage) for _seconds, stage in rows), default=0)
    return [
        [("faint", f"{'' if number else 'time:':6}{stage:{room}} {clock(seconds):>6}")]
        for number, (seconds, stage) in enumerate(rows)
    ]


def _hosts(number: int) -> str:
    return "1 host" if number == 1 else f"{number} hosts"


def plain(line: Line, ascii_only: bool = False) -> str:
    """A line without its styles."""
    return ascii_text("".join(part for _style, part in line), ascii_only).rstrip()


def ascii_text(text: str, ascii_only: bool = True) -> str:
    """A part of a line for a terminal, which gets nothing to obey and no further line.

    :param ascii_only: the terminal may have nothing but ASCII.
    """
    text = untrusted_text.one_line(text, PART_AT_MOST)
    if not ascii_only or text.isascii():
        return text
    return "".join(ASCII.get(character, character) for character in text).encode("ascii", "replace").decode("ascii")
