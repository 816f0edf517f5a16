# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: Show hosts and stages in place of every task
version_added: 0.1.0
description:
  - On a terminal, shows one picture that is kept up to date. It has a line for each host with what became of it at each
    stage and what it is doing now, and how long the run has taken.
  - A failure is printed when it happens, with its cause and its remedy as far as the playbook gives them. At the end
    there is a summary by host and stage.
  - Without a terminal nothing but reboots, failures and the summary is printed.
  - A stage is what one or several roles of this collection do, such as C(driver) or C(storage). A role of another
    collection is a stage of its own, and so is a play without roles.
  - With C(-v), every task that changed a host and the messages of M(ansible.builtin.debug) are printed too. With
    C(--diff), so are differences.
requirements:
  - Set as stdout callback in the configuration.
options:
  redraw_interval:
    description:
      - The picture is drawn no more often than this, in seconds. Once a second it is drawn in any case.
    type: float
    default: 0.2
    ini:
      - section: callback_baremetal_gpu_progress
        key: redraw_interval
    env:
      - name: BAREMETAL_GPU_PROGRESS_REDRAW_INTERVAL
  live:
    description:
      - Whether there is a picture. V(auto) is where standard output is a terminal that can move its cursor.
    type: str
    choices: [auto, 'yes', 'no']
    default: auto
    ini:
      - section: callback_baremetal_gpu_progress
        key: live
    env:
      - name: BAREMETAL_GPU_PROGRESS_LIVE
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
ansible.cfg: |
  [defaults]
  stdout_callback = baremetal.gpu.progress
"""

import os
import re
import shutil
import sys
import threading
import time

from ansible import context
from ansible.plugins.callback import CallbackBase

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text

# Of what is printed of one task with -v or --diff.
LONGEST = 200000
COLOURS = re.compile("\x1b\\[[0-9;]*m")
STYLES = {
    "good": "\x1b[32m",
    "changed": "\x1b[33m",
    "bad": "\x1b[1;31m",
    "busy": "\x1b[36m",
    "faint": "\x1b[2m",
    "plain": "",
}


class Screen:
    """Lines that stay, and below them a picture that is drawn again and again.

    It writes to the descriptor itself: Ansible forks its workers at any time, and a worker must not inherit a stream
    that another thread holds locked.
    """

    def __init__(self, stream, live: bool, colour: bool, ascii_only: bool) -> None:
        self.live = live
        self._colour = colour
        self._ascii = ascii_only
        self._stream = stream
        self._lines = 0
        self._pid = os.getpid()

    @staticmethod
    def size():
        size = shutil.get_terminal_size((80, 24))
        return size.columns, size.lines

    def print(self, lines) -> None:
        """Lines that stay."""
        self._write(self._erasure() + "".join(f"{self._words(line)}\n" for line in lines))

    def draw(self, lines) -> None:
        picture = self._erasure() + "".join(f"{self._words(line)}\n" for line in lines)
        self._lines = len(lines)
        self._write(picture)

    def erase(self) -> None:
        """Make room for what others print. Does nothing in a worker, whose picture is a copy."""
        if self._lines and os.getpid() == self._pid:
            self._write(self._erasure())

    def _erasure(self) -> str:
        lines, self._lines = self._lines, 0
        return f"\x1b[{lines}A\r\x1b[J" if lines else ""

    def _words(self, line) -> str:
        if not self._colour:
            return progress_text.plain(line, self._ascii)
        return "".join(
            f"{STYLES[style]}{progress_text.ascii_text(text, self._ascii)}\x1b[0m"
            if STYLES[style]
            else progress_text.ascii_text(text, self._ascii)
            for style, text in line
        )

    def _write(self, text: str) -> None:
        if not text:
            return
        self._stream.flush()
        data = text.encode("ascii" if self._ascii else "utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._stream.fileno(), data) :]
        except OSError:
            # Nobody reads any more; the run goes on.
            self.live = False


def has_rescue(task) -> bool:
    """Whether a failure of the task leads to a rescue of one of the blocks around it."""
    inner, outer = task, task._parent
    while outer is not None:
        if getattr(outer, "rescue", None) and any(inner._uuid == child._uuid for child in outer.block):
            return True
        inner, outer = outer, outer._parent
    return False


class CallbackModule(CallbackBase):
    """Feeds the events to a progress.Run and shows it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "baremetal.gpu.progress"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._run = progress.Run(time.monotonic(), on_failure=self._failed, on_note=self._note)
        self._stages = {}
        self._plays_left = set()
        self._lock = threading.RLock()
        self._drawn = 0.0
        self._interval = 0.2
        self._stop = threading.Event()
        self._screen = None
        self._prompting = False
        self._verbose = False
        self._diff = False

    def set_options(self, *args, **kwargs):
        super().set_options(*args, **kwargs)
        self._interval = self.get_option("redraw_interval")
        live_option = self.get_option("live")
        terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        colour = terminal and not os.environ.get("NO_COLOR") and not os.environ.get("ANSIBLE_NOCOLOR")
        live = live_option == "yes" or (live_option == "auto" and terminal)
        self._screen = Screen(sys.stdout, live, colour, encoding != "utf8")
        self._verbose = self._display.verbosity > 0
        self._diff = bool(context.CLIARGS.get("diff"))
        if live:
            self._give_way()

    # Events

    def v2_playbook_on_start(self, playbook):
        self._plays_left.update(play._uuid for play in playbook.get_plays())
        if self._screen.live:
            threading.Thread(target=self._tick, name="progress", daemon=True).start()

    def v2_playbook_on_play_start(self, play):
        with self._lock:
            self._stages.clear()
            self._plays_left.discard(play._uuid)
            self._run.play_started(play.get_name().strip(), time.monotonic())

    def v2_playbook_on_task_start(self, task, is_conditional):
        now = time.monotonic()
        with self._lock:
            # An include_role has no role yet, but is named after the one that it includes.
            role = task._role.get_name() if task._role else getattr(task, "_role_name", None) or ""
            self._stages[task._uuid] = self._run.task_started(task.name or task.action, role, task.action, now)
            self._draw(now)

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_start(self, host, task):
        with self._lock:
            self._run.host_started(
                host.name, task.name or task.action, self._stage(task), task.action, time.monotonic()
            )

    def v2_runner_on_ok(self, result):
        kind = progress.CHANGED if result.result.get("changed") else progress.OK
        self._done(result, kind)
        if roles := result.result.get(progress.FINISHED):
            with self._lock:
                self._run.host_finished(result.host.name, roles)
        if self._verbose:
            self._print_result(result, kind)

    def v2_runner_on_skipped(self, result):
        self._done(result, progress.SKIPPED)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if ignore_errors:
            self._done(result, progress.OK)
        else:
            self._out(result, progress.FAILED)

    def v2_runner_on_unreachable(self, result):
        if result.task.ignore_unreachable:
            self._done(result, progress.OK)
        else:
            self._out(result, progress.UNREACHABLE)

    def v2_on_file_diff(self, result):
        if not self._diff:
            return
        rows = result.result.get("results") if result.task.loop else None
        for row in rows or [result.result]:
            if row.get("diff") and row.get("changed"):
                # Its colours are Ansible's own, and what a file has in it may look like some.
                difference = COLOURS.sub("", self._get_diff(row["diff"]))
                self._print(f"{result.host.name}: {result.task.name}\n{difference}")

    def v2_playbook_on_no_hosts_matched(self):
        self._print(f"{self._run.play}: no host matches, so there is nothing to do")

    def v2_playbook_on_stats(self, stats):
        self._stop.set()
        with self._lock:
            self._run.counted(stats.failures, stats.changed)
            ended_in = self._run.broke_off() if self._plays_left else None
            if ended_in is not None:
                self._run.unfinished.update(name for name, host in self._run.hosts.items() if not host.out)
            self._run.finished(time.monotonic())
            self._screen.live = False
            width, _height = self._screen.size()
            self._screen.print(progress_text.summary(self._run, width))
            if ended_in is not None:
                text = (
                    f"Ansible ended the run in {ended_in}, where all hosts of a play failed: {len(self._plays_left)} "
                    "plays were not begun. Fix the causes above and run it again; `gpuops up` goes on with the "
                    "stages that do not need it"
                )
                self._screen.print(progress_text.wrapped("", text, width))

    # What they lead to

    def _stage(self, task):
        return self._stages.get(task._uuid, self._run.stage)

    def _done(self, result, kind):
        now = time.monotonic()
        with self._lock:
            self._run.host_done(result.host.name, kind, self._stage(result.task), now)
            self._draw(now)

    def _out(self, result, kind):
        task = result.task
        with self._lock:
            self._run.host_failed(
                result.host.name,
                kind,
                task.name or task.action,
                self._stage(task),
                {**result.result, progress.DELEGATED: task.delegate_to} if task.delegate_to else result.result,
                time.monotonic(),
                rescued=kind is progress.FAILED and has_rescue(task),
            )

    def _failed(self, failure):
        """Called by the run, for what is worth telling at once."""
        width, _height = self._screen.size()
        self._screen.print(progress_text.failure_lines(failure, width))
        self._drawn = 0.0

    def _note(self, kind, host, stage, task):
        """Called by the run; a picture shows it anyway."""
        if not self._screen.live:
            after = self._run.elapsed(time.monotonic())
            self._screen.print([progress_text.note_line(kind, host, stage, task, after)])

    def _print_result(self, result, kind):
        """With -v: what was changed, and the messages of debug."""
        message = result.result.get("msg") if result.task.action in ("debug", "ansible.builtin.debug") else None
        if kind is progress.CHANGED or message is not None:
            words = message if message is not None else "changed"
            self._print(f"{result.host.name}: {result.task.name}: {words}", indent="  ")

    def _print(self, text, indent=""):
        with self._lock:
            first, *others = untrusted_text.several_lines(text, LONGEST).rstrip("\n").split("\n")
            # What a host returns in several lines stands behind its name, and looks like nothing of ours.
            self._screen.print([[("plain", line)] for line in (first, *(f"{indent}{line}" for line in others))])

    def _draw(self, now):
        if self._screen.live and not self._prompting and now - self._drawn >= self._interval:
            self._drawn = now
            width, height = self._screen.size()
            self._screen.draw(progress_text.live(self._run, now, width - 1, height - 2))

    def _tick(self):
        while not self._stop.wait(1.0):
            with self._lock:
                self._draw(time.monotonic())

    def _give_way(self):
        """Take the picture away before Ansible itself prints anything, such as a warning or a question."""
        display = self._display.display

        def after_erasing(*args, **kwargs):
            if threading.current_thread().name != "progress":
                self._screen.erase()
            return display(*args, **kwargs)

        def without_picture(prompt):
            def prompting(*args, **kwargs):
                self._screen.erase()
                self._prompting = True
                try:
                    return prompt(*args, **kwargs)
                finally:
                    self._prompting = False

            return prompting

        self._display.display = after_erasing
        for name in ("prompt_until", "do_var_prompt"):
            setattr(self._display, name, without_picture(getattr(self._display, name)))
