# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one child process that talks to NVML for the agent.

A sick GPU can hang a call for ever, and a broken library can crash its process, so the agent itself never makes one.
The child keeps NVML open between looks; it answers a line of JSON for every question that it reads, and sends a line
on its own for every event that NVML reports.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml as nvml_errors
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml_messages
from ansible_collections.baremetal.gpu.plugins.module_utils.health import look_shape
from ansible_collections.baremetal.gpu.plugins.module_utils.host import child
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed

LIBRARY = "libnvidia-ml.so"
NAMES = tuple(f"{place}/{LIBRARY}.1" for place in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib"))
# In capitals: with NVML opened anew, and also the GPUs that are avoided.
QUICK, SLOW = b"q", b"s"
# An answer for eight GPUs is some 20 kB; what grows beyond this is garbage.
ANSWER_AT_MOST = 4 << 20
EVENT_WAIT_MS = 2000
# It ends after it has waited for events.
STOP_S = EVENT_WAIT_MS / 1000 + 1
# A GPU over which so many looks in a row came to nothing is avoided, so that the others can be looked at; it is tried
# again after a while, and after ever longer ones.
STRIKES = 2
RETRY_S, RETRY_AT_MOST_S = 60.0, 3600.0


def mapped_library(maps: str = "/proc/self/maps", names: Iterable[str] = NAMES) -> tuple[str, int] | None:
    """Inode of the NVML library that this process has mapped, and the path under which it is found.

    The kernel knows the file that a chain of links ended at. Where the loader's own name leads there too, that name is
    told: links are turned, as by update-alternatives, while the file stays.
    """
    with open(maps, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(None, 5)
            if len(fields) == 6 and LIBRARY in fields[5]:
                path, inode = fields[5].rstrip("\n"), int(fields[4])
                found = (name for pattern in names for name in glob.glob(pattern))
                return next((name for name in found if not library_has_changed((name, inode))), path), inode
    return None


def library_has_changed(mapped: tuple[str, int] | None) -> bool:
    """Whether who opens the library now gets another file than the one that is mapped, or none."""
    if mapped is None:
        return False
    path, inode = mapped
    try:
        return os.stat(path).st_ino != inode
    except OSError:
        return True


class Child:
    """What runs in the child. `reader` is snapshot.Reader, or something that answers like it."""

    def __init__(self, reader: Any, questions: int, answers: int) -> None:
        self.reader = reader
        self.questions = questions
        self.answers = answers
        self._writing = threading.Lock()
        self._watching: threading.Thread | None = None
        self._library: tuple[str, int] | None = None

    def serve(self) -> int:
        """Answer until the agent closes the pipe; the value is the status to exit with."""
        while True:
            asked = os.read(self.questions, 1)
            if not asked:
                self.reader.close()
                return 0
            if library_has_changed(self._library):
                # Told first: letting go of the old driver may hang.
                self._send({"library_changed": True})
                self.reader.close()
                return 0
            if asked.isupper():
                self.reader.avoid = {}
                self.reader.close()
            begun = time.monotonic()
            snapshot = self.reader.read(slow=asked.lower() == SLOW)
            self._send({"snapshot": snapshot, "seconds": time.monotonic() - begun})
            self._library = self._library or mapped_library()
            if self._watching is None and snapshot["devices"]:
                self._watching = threading.Thread(target=self._watch, daemon=True)
                self._watching.start()

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n"
        with self._writing:
            while line:
                line = line[os.write(self.answers, line) :]

    def _watch(self) -> None:
        """Send the events of NVML as they come. A GPU or driver without them leaves that to the kernel's log."""
        for event in self.reader.events(EVENT_WAIT_MS):
            self._send({"event": event})


def _is_there(process: int) -> bool:
    """Whether a process that was killed still is. One that an earlier agent left behind is not a child of this one."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return os.path.exists(f"/proc/{process}")


def left_behind(root: str = "/") -> list[int]:
    """Other processes of this unit: children that hang in the kernel since before the agent was restarted."""
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="ascii") as file:
            group = next(line.rstrip("\n").split(":", 2)[2] for line in file if line.startswith("0::"))
        if not group.endswith(".service"):
            # Started by hand: the other processes there are somebody else's.
            return []
        with open(os.path.join(root, "sys/fs/cgroup", group.lstrip("/"), "cgroup.procs"), encoding="ascii") as file:
            return [int(line) for line in file if int(line) != os.getpid()]
    except (OSError, StopIteration):
        return []


class Prober:
    """The agent's side: starts the child, asks it, and gets rid of it when it hangs.

    There is never a second child while one is stuck in the kernel. `descriptor` is for poll(2), None without a child.
    """

    def __init__(self, make_reader: Callable[[], Any], deadline_s: float, start_deadline_s: float) -> None:
        self.make_reader = make_reader
        self.deadline_s = deadline_s
        self.start_deadline_s = start_deadline_s
        self.process: int | None = None
        self.descriptor: int | None = None
        # Killed, and not yet gone: a call that hangs in the kernel does not end for a signal.
        self.stuck: list[int] = left_behind()
        self.deadline: float | None = None
        # Index of a GPU -> why it is not asked.
        self.avoid: dict[int, dict[str, Any]] = {}
        self._strikes: dict[int, int] = {}
        self._retry_at, self._retry_s = 0.0, RETRY_S
        self._retrying = self._anew = False
        self._hang: dict[str, Any] | None = None
        self._trace = nvml_errors.Trace()
        self._question: int | None = None
        self._answered = False
        self._buffer = b""

    def ask(self, slow: bool) -> bool:
        """Ask for a look. False if a child is stuck, so that nobody can be asked."""
        self.reap()
        if self.stuck:
            return False
        question = self._start() if self._question is None else self._question
        asked = SLOW if slow else QUICK
        self._retrying = self._anew or (bool(self.avoid) and time.monotonic() >= self._retry_at)
        self._anew = False
        # Where it has ended, its descriptor tells how.
        with contextlib.suppress(BrokenPipeError):
            os.write(question, asked.upper() if self._retrying else asked)
        self.deadline = time.monotonic() + (self.deadline_s if self._answered else self.start_deadline_s)
        return True

    def retry(self) -> None:
        """Open NVML anew for the next look, and ask the GPUs that are avoided: somebody may have mended them."""
        self._anew, self._retry_s = True, RETRY_S

    def still_stuck(self) -> dict[str, Any]:
        """The error for a look that was not taken, because a child is stuck."""
        hang = self._hang or nvml_messages.error(
            None,
            "timeout",
            "a process that asked NVML before the agent was started anew",
            "a GPU hangs: look for an Xid in `sudo dmesg`, drain the host and reboot it",
        )
        return {**hang, "text": f"{hang['text']}; the call hangs in the kernel and cannot be ended", "stuck": True}

    def _blame(self, error: dict[str, Any]) -> dict[str, Any]:
        """Remember which GPU a look came to nothing over."""
        gpu = error.get("device")
        if gpu is not None:
            self._strikes[gpu] = self._strikes.get(gpu, 0) + 1
            if self._strikes[gpu] >= STRIKES:
                if gpu in self.avoid:
                    self._retry_s = min(2 * self._retry_s, RETRY_AT_MOST_S)
                self.avoid[gpu] = error
                self._retry_at = time.monotonic() + self._retry_s
        return error

    def _absolve(self) -> None:
        """A look was taken: of the GPUs that it asked, none hangs."""
        if self._retrying:
            self.avoid, self._retry_s = {}, RETRY_S
        self._strikes = {gpu: strikes for gpu, strikes in self._strikes.items() if gpu in self.avoid}
        self._hang = None

    def _start(self) -> int:
        """Start a child; the value is the end of the pipe to ask it by."""
        questions, question = os.pipe()
        self._question = question
        self.descriptor, answers = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._answered, self._buffer = False, b""
        self._trace.clear()
        try:
            process = os.fork()
        except OSError:
            os.close(questions)
            os.close(answers)
            raise
        if process == 0:
            status = 1
            try:
                os.close(question)
                os.close(self.descriptor)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                reader = self.make_reader()
                reader.trace, reader.avoid = self._trace, dict(self.avoid)
                status = Child(reader, questions, answers).serve()
            finally:
                os._exit(status)
        os.close(questions)
        os.close(answers)
        self.process = process
        return question

    def receive(self) -> list[dict[str, Any]]:
        """What the child has said. An `error` among it, in the form of nvml_error, says that the child is no more."""
        messages: list[dict[str, Any]] = []
        while self.descriptor is not None:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return messages
            if not chunk:
                return [*messages, *self._ended()]
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                try:
                    message = look_shape.message(line, ANSWER_AT_MOST)
                except Malformed as why:
                    return [*messages, self._garbage(str(why))]
                if "snapshot" in message:
                    self._answered, self.deadline = True, None
                    self._absolve()
                messages.append(message)
                if "library_changed" in message:
                    self.deadline = None
                    return messages
            if len(self._buffer) > ANSWER_AT_MOST:
                return [*messages, self._garbage("it does not end")]
        return messages

    def _garbage(self, why: str) -> dict[str, Any]:
        self.kill()
        return {
            "error": nvml_messages.error(
                None,
                "garbage",
                f"the process that asks NVML gave an answer that cannot be read: {why}",
                "the NVML library is broken: reinstall the driver's libraries",
            )
        }

    def _ended(self) -> list[dict[str, Any]]:
        """The child closed its side without being asked to: it crashed."""
        process = self.process
        self._close()
        if process is None:
            return []
        status = child.reap(process)
        if status is None:
            # Its pipe is closed by now, but the kernel hangs over letting go of the GPUs.
            os.kill(process, signal.SIGKILL)
            self.stuck.append(process)
            self._hang = nvml_errors.does_not_end(self._trace)
            return [{"error": self._blame(self._hang)}]
        how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"with {os.WEXITSTATUS(status)}"
        return [{"error": self._blame(nvml_errors.crashed(how, self._trace))}]

    def overdue(self) -> dict[str, Any] | None:
        """What to report if the child did not answer in time; it is killed then. None if all is well."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return None
        seconds = self.deadline_s if self._answered else self.start_deadline_s
        self.kill()
        self._hang = nvml_errors.timed_out(seconds, self._trace)
        return self._blame(self._hang)

    def stop(self, patience_s: float = STOP_S) -> None:
        """Let the child let go of the GPUs and end, if it is not busy; otherwise, and where it does not, kill it."""
        if self.process is not None and self.deadline is None and self._question is not None:
            os.close(self._question)
            self._question = None
            end = time.monotonic() + patience_s
            while _is_there(self.process):
                if time.monotonic() >= end:
                    break
                time.sleep(0.01)
            else:
                self.process = None
        self.kill()

    def kill(self) -> None:
        process = self.process
        self._close()
        if process is not None:
            os.kill(process, signal.SIGKILL)
            self.stuck.append(process)
            self.reap(0.5)

    def reap(self, patience_s: float = 0.0) -> None:
        """See whether what was killed is gone."""
        end = time.monotonic() + patience_s
        while True:
            self.stuck = [process for process in self.stuck if _is_there(process)]
            if not self.stuck or time.monotonic() >= end:
                return
            time.sleep(0.01)

    def _close(self) -> None:
        for descriptor in (self._question, self.descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self._question = self.descriptor = self.process = self.deadline = None
