# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at a site once, or again and again in one place of the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.run import screen, session
from gpuops.site import Site
from gpuops.site.secrecy import Redactor
from gpuops.status.look import look

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until q or Ctrl-C.")]
IntervalOption = Annotated[float, typer.Option(min=1.0, help="Seconds between two looks with --watch.")]

Document = Mapping[str, Any]
# A document, the width and, where the picture has to fit on a screen, the height.
Lines = Callable[[Document, int, "int | None"], list[progress_text.Line]]


class Quit:
    """Whether somebody has typed q."""

    typed = False


@contextlib.contextmanager
def quitting_by_key() -> Iterator[Quit]:
    """At a q on the terminal the process gets what Ctrl-C sends."""
    found, terminal = Quit(), _own_terminal()
    if terminal is None:
        yield found
        return
    before = termios.tcgetattr(terminal)
    wake, waker = os.pipe()

    def listen() -> None:
        while True:
            ready, _writable, _failed = select.select([terminal, wake], [], [])
            keys = b"" if wake in ready else os.read(terminal, 100)
            if b"q" in keys.lower():
                found.typed = True
                os.kill(os.getpid(), signal.SIGINT)
            if found.typed or not keys:
                return

    listener = threading.Thread(target=listen, daemon=True)
    tty.setcbreak(terminal)
    listener.start()
    try:
        yield found
    finally:
        os.write(waker, b"x")
        listener.join()
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        os.close(wake)
        os.close(waker)


def _own_terminal() -> int | None:
    """The terminal of standard input; None without one, and in the background, where it is somebody else's."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    try:
        return sys.stdin.fileno() if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp() else None
    except OSError:
        return None


def show(
    site: Site,
    groups: Mapping[str, list[str]],
    limit: str,
    words: Sequence[str],
    passwords: Mapping[str, str],
    *,
    redact: Redactor,
    view: Callable[[Document], Document],
    lines: Lines,
    interval: float | None,
    as_json: bool,
) -> Document | None:
    """Look and show it; the document of the last look, or None where somebody has ended it.

    :param view: the document that is shown, from that of a look.
    :param interval: seconds between two looks; None for one look.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    shown = screen.Quiet(redact, console)
    repaints = interval is not None and not as_json and console.is_terminal and not console.is_dumb_terminal
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop") if repaints else None

    def paint(rows: list[progress_text.Line]) -> None:
        redacted = [[(style, redact(part)) for style, part in row] for row in rows]
        if live:
            live.update(Group(*(screen.text(row, shown.ascii_only) for row in redacted)), refresh=True)

    with (
        quitting_by_key() if repaints else contextlib.nullcontext(Quit()) as quit_key,
        live or contextlib.nullcontext(),
    ):
        try:
            paint([[("faint", "looking at the site; q ends it")]])
            while True:
                found, stopper = look(site, groups, limit, words, passwords, redact=redact)
                if stopper.count:
                    raise KeyboardInterrupt
                document = view(found)
                if as_json:
                    print(json.dumps(redact.document(document), indent=2 if interval is None else None), flush=True)
                elif live:
                    paint(lines(document, console.width, console.height - 1))
                else:
                    shown.lines(lines(document, shown.width, None))
                if interval is None:
                    return document
                time.sleep(interval)
        except KeyboardInterrupt:
            if quit_key.typed:
                return None
            raise typer.Exit(session.INTERRUPTED) from None
