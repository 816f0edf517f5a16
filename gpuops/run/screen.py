# SPDX-License-Identifier: GPL-3.0-or-later
"""How a run is shown: a live picture on a terminal, failures and a summary elsewhere, or events for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.site.secrecy import Redactor

STYLES = {
    "good": "green",
    "changed": "yellow",
    "bad": "bold red",
    "busy": "cyan",
    "faint": "dim",
    "plain": "",
}
STOPPING = (
    "stopping: Ansible ends what it is at; press Ctrl-C again to end it at once",
    "ended at once",
)


def text(line: progress_text.Line, ascii_only: bool) -> Text:
    return Text.assemble(
        *((progress_text.ascii_text(part, ascii_only), STYLES[style]) for style, part in line), no_wrap=True
    )


def failure_row(failure: progress.Failure) -> dict[str, Any]:
    """A failure for programs."""
    reasons = progress_text.explain(failure.host, failure.kind, failure.result)
    return {
        "host": failure.host,
        "kind": failure.kind,
        "stage": failure.stage,
        "task": failure.task,
        "reasons": [{"cause": cause, "remedy": remedy} for cause, remedy in reasons],
    }


class Shown:
    """What every way of showing a run does, with nothing shown. Redacts what it prints."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self.redact = redact

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_error: object) -> None:
        """Take away what is not to stay."""

    def began(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        """``about``: what is run, for programs."""

    def event(self, run: progress.Run) -> None:
        """Something happened."""

    def failure(self, failure: progress.Failure) -> None:
        """A host failed."""

    def note(self, kind: str, host: str, stage: str, task: str, after: float) -> None:
        """A host reboots, or fails for a reason that follows."""

    def stopping(self, count: int) -> None:
        """Somebody pressed Ctrl-C."""

    def ended(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        """The run is over."""


class Quiet(Shown):
    """Failures and the summary, for a log or a terminal that cannot move its cursor.

    :param part: what a run is called that is one of several; it ends with a line, and with no table.
    """

    def __init__(self, redact: Callable[[str], str] = str, console: Console | None = None, part: str = "") -> None:
        super().__init__(redact)
        self.part = part
        self.console = console or Console(highlight=False, emoji=False, markup=False)
        self.ascii_only = "utf" not in (self.console.encoding or "").lower()

    def lines(self, lines: Iterable[progress_text.Line]) -> None:
        for line in lines:
            redacted = [(style, self.redact(part)) for style, part in line]
            self.console.print(text(redacted, self.ascii_only), soft_wrap=True)

    @property
    def width(self) -> int:
        # A log has no width; long lines are for whoever reads it to fold.
        return self.console.width if self.console.is_terminal else 160

    def failure(self, failure: progress.Failure) -> None:
        self.lines(progress_text.failure_lines(failure, self.width))

    def note(self, kind: str, host: str, stage: str, task: str, after: float) -> None:
        self.lines([progress_text.note_line(kind, host, stage, task, after)])

    def stopping(self, count: int) -> None:
        self.lines([[("changed", STOPPING[min(count, 2) - 1])]])

    def ended(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        lines = progress_text.summary(run, self.width)
        self.lines([[("plain", f"{self.part}: "), *lines[-1]]] if self.part else lines)


class Picture(Quiet):
    """The same below a picture that is kept up to date."""

    def __enter__(self) -> Picture:
        self._live = Live(console=self.console, transient=True, refresh_per_second=4, get_renderable=lambda: self)
        return self

    def began(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        self.run = run
        self._live.start()

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def note(self, kind: str, host: str, stage: str, task: str, after: float) -> None:
        """The picture has it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich draws, four times a second."""
        for line in progress_text.live(self.run, time.monotonic(), options.max_width - 1, console.height - 2):
            yield text(line, self.ascii_only)

    def ended(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        self._live.stop()
        super().ended(run, about)


class Events(Shown):
    """A line of JSON for each thing that happens."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        super().__init__(redact)
        self._stage = ""

    def _print(self, row: Mapping[str, Any]) -> None:
        redacted = self.redact.document(row) if isinstance(self.redact, Redactor) else row
        print(json.dumps(redacted), flush=True)

    def began(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        self._print({"event": "start", **about, "expected_seconds": sum(run.expected.values()) or None})

    def event(self, run: progress.Run) -> None:
        if run.stage != self._stage:
            self._stage = run.stage
            if run.stage:
                now = time.monotonic()
                left = run.remaining(now)
                self._print(
                    {
                        "event": "stage",
                        "stage": run.stage,
                        "play": run.play,
                        "elapsed_seconds": round(run.elapsed(now), 1),
                        "remaining_seconds": None if left is None else round(left, 1),
                    }
                )

    def failure(self, failure: progress.Failure) -> None:
        self._print({"event": "failure", **failure_row(failure)})

    def note(self, kind: str, host: str, stage: str, task: str, after: float) -> None:
        self._print({"event": kind, "host": host, "stage": stage, "task": task})

    def stopping(self, count: int) -> None:
        self._print({"event": "stopping", "at_once": count > 1})

    def ended(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        self._print({"event": "end", **about})


def choose(as_json: bool, redact: Callable[[str], str], part: str = "") -> Shown:
    """:param part: see Quiet."""
    if as_json:
        return Events(redact)
    console = Console(highlight=False, emoji=False, markup=False)
    kind = Picture if console.is_terminal and not console.is_dumb_terminal else Quiet
    return kind(redact, console, part)
