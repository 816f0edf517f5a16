# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node agent: watches the GPUs of one host, judges them and publishes the verdicts.

One process that sleeps until something happens: the kernel logs a line, the child that talks to NVML answers, a look is
due, an operator asks something. It never calls NVML itself, so that nothing a GPU does can stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import recall as agent_recall
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.orders import Inbox
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.prober import Prober
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.state import State
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.told import Told
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml_messages, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import look_shape, published
from ansible_collections.baremetal.gpu.plugins.module_utils.health.described import ANSWER
from ansible_collections.baremetal.gpu.plugins.module_utils.health.policy import PolicyError
from ansible_collections.baremetal.gpu.plugins.module_utils.host.boot import boot_id
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.sd_notify import notify, watchdog_interval
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log

SCHEMA = 1
REQUEST_AT_MOST = 4096


@dataclass
class Settings:
    """What the unit of the agent sets. Times are in seconds. `root` is where the host's own files are found."""

    state_directory: str = "/var/lib/baremetal-gpu/agent"
    socket: str = "/run/baremetal-gpu/agent.sock"
    kernel_log: str = "/dev/kmsg"
    interval_s: float = 15.0
    slow_interval_s: float = 3600.0
    deadline_s: float = 20.0
    start_deadline_s: float = 90.0
    policy: dict[str, Any] = field(default_factory=dict)
    root: str = "/"
    # Where the program that carries out orders leaves its answer.
    answer: str = ANSWER


class Agent:
    """``Agent(settings, make_reader, publishers).run()`` until SIGTERM.

    `make_reader` returns a snapshot.Reader in the child; `publishers` are those of publish.py or answer alike.
    One that hears something too has `pipe`, which has a fileno() to wait for, or None, and `hear()`.
    """

    def __init__(self, settings: Settings, make_reader: Callable[[], Any], publishers: Iterable[Any]) -> None:
        self.settings = settings
        self.publishers = list(publishers)
        self.prober = Prober(make_reader, settings.deadline_s, settings.start_deadline_s)
        self.state = State(os.path.join(settings.state_directory, "state.json"))
        self.boot_id = boot_id(settings.root)
        self.last: dict[str, Any] | None = None
        self.report: dict[str, Any] | None = None
        self.probe: dict[str, Any] = {"error": None, "seconds": None, "time": None}
        self.problems: dict[str, str] = {}
        self.saved = True
        self.told = Told()
        self.history = self._remembered()
        self.selector = selectors.DefaultSelector()
        self.stopping = False
        self.kernel: kernel_log.Log | None = None
        self.parser = kernel_log.Parser(self.boot_id)
        self.inbox = Inbox(settings.state_directory, settings.answer)
        self._listens = False
        self._watched_child: int | None = None
        # Publisher -> its pipe, and the number that this had when it was registered.
        self._watched_pipes: dict[Any, tuple[Any, int]] = {}
        self._next_look = self._next_slow_look = time.monotonic()
        self._next_watchdog = 0.0

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._listen_to_signals()
        self._listen_to_kernel()
        self._listen_to_operators()
        notify("READY=1\nSTATUS=looking at the GPUs")
        try:
            while not self.stopping:
                self._look_if_due()
                self._watch_child()
                self._watch_pipes()
                for key, _mask in self.selector.select(self._patience()):
                    key.data()
                self._check_deadline()
                self._pet_watchdog()
        finally:
            notify("STOPPING=1")
            self.prober.stop()
            for publisher in self.publishers:
                with contextlib.suppress(OSError):
                    publisher.close()

    def _patience(self) -> float:
        # While an answer is waited for, nobody is asked again, even where that is due.
        due = [self._next_look if self.prober.deadline is None else self.prober.deadline]
        if watchdog_interval() is not None:
            due.append(self._next_watchdog)
        return max(0.0, min(due) - time.monotonic())

    def _pet_watchdog(self) -> None:
        interval = watchdog_interval()
        if interval is not None and time.monotonic() >= self._next_watchdog:
            notify("WATCHDOG=1")
            self._next_watchdog = time.monotonic() + interval

    def _listen_to_signals(self) -> None:
        # Kept, or they would be closed.
        self._wake = reader, writer = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def stop(_number: int, _frame: Any) -> None:
            self.stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.selector.register(reader, selectors.EVENT_READ, lambda: reader.recv(64))

    # --- the kernel's log -----------------------------------------------------------------------------------------

    def _listen_to_kernel(self) -> None:
        """Open the log where it is not open. It begins anew then, and the numbers of its records tell what is known."""
        if self.kernel is not None:
            return
        try:
            self.kernel = kernel_log.Log(self.settings.kernel_log)
        except OSError as failure:
            self._kernel_log_fails(str(failure.strerror))
            return
        if self.kernel.pollable:
            try:
                self.selector.register(self.kernel.descriptor, selectors.EVENT_READ, self._read_kernel)
            except OSError:
                # As a plain file, what else cannot be waited for is read with every look.
                self.kernel.pollable = False

    def _kernel_log_fails(self, why: str) -> None:
        self.problems["kernel_log"] = f"{self.settings.kernel_log} cannot be read ({why}), so Xids come from NVML only"

    def _read_kernel(self) -> None:
        log = self.kernel
        if log is None:
            return
        why = "it has ended"
        try:
            events = self.parser.events(log.read())
            failed = log.ended
        except OSError as failure:
            events, failed, why = [], True, str(failure.strerror)
        if failed and not log.pollable and log.ended:
            # The end of a plain file is only where it is now. It grows, or another one takes its place.
            log.ended = failed = False
            if self._is_another(log.descriptor):
                log.close()
                self.kernel = None
        if failed:
            # What has ended can be read for ever, so it is not waited for. The next look opens it again.
            if log.pollable:
                self.selector.unregister(log.descriptor)
            log.close()
            self.kernel = None
            self._kernel_log_fails(why)
        else:
            self.problems.pop("kernel_log", None)
        if events:
            self._judge(None, events)

    def _is_another(self, descriptor: int) -> bool:
        """Whether the file in the log's place is not the one that is open any more, or was cut."""
        try:
            open_one, now = os.fstat(descriptor), os.stat(self.settings.kernel_log)
        except OSError:
            return True
        return not os.path.samestat(open_one, now) or now.st_size < os.lseek(descriptor, 0, os.SEEK_CUR)

    # --- the GPUs ------------------------------------------------------------------------------------------------

    def _look_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_look or self.prober.deadline is not None:
            return
        slow = now >= self._next_slow_look
        self._next_look = now + self.settings.interval_s
        self._listen_to_kernel()
        if self.kernel is not None and not self.kernel.pollable:
            self._read_kernel()
        self._listen_to_operators()
        mended = self.inbox.again()
        if mended:
            self._clear(mended["device"], None)
        try:
            asked = self.prober.ask(slow)
        except OSError as failure:
            # No memory or no processes left: that is not the GPUs' fault, and may be over with the next look.
            self.prober.kill()
            why = f"no process to ask NVML with can be started ({failure.strerror})"
            self._failed(nvml_messages.error(None, "no_process", why, "see what fills the host's memory and processes"))
            return
        if not asked:
            self._failed(self.prober.still_stuck())
        elif slow:
            self._next_slow_look = now + self.settings.slow_interval_s

    def _watch_child(self) -> None:
        """Keep the selector's list in step with the child, which comes and goes."""
        wanted = self.prober.descriptor
        if wanted == self._watched_child:
            return
        if self._watched_child is not None:
            self.selector.unregister(self._watched_child)
        if wanted is not None:
            self.selector.register(wanted, selectors.EVENT_READ, self._hear_child)
        self._watched_child = wanted

    def _hear_child(self) -> None:
        for message in self.prober.receive():
            if "snapshot" in message:
                look = message["snapshot"]
                succeeded = self.probe["time"] if snapshot.refused(look) else look["time"]
                self.probe = {"error": None, "seconds": message["seconds"], "time": succeeded}
                senseless = look_shape.senseless(look)
                self.problems.pop("answers", None)
                if senseless:
                    self.problems["answers"] = one_line(f"NVML gives impossible answers: {'; '.join(senseless[:3])}")
                self._judge(look, [])
            elif "event" in message:
                self._judge(None, [message["event"]])
            elif "library_changed" in message:
                # The driver was replaced. systemd starts the agent again, with the new driver's devices allowed.
                self.stopping = True
            else:
                self._failed(message["error"])
        if self.prober.descriptor is None and self._watched_child is not None:
            # It closed its end; the number of the descriptor may be used again at once.
            self.selector.unregister(self._watched_child)
            self._watched_child = None

    def _check_deadline(self) -> None:
        error = self.prober.overdue()
        if error:
            self._watch_child()
            self._failed(error)

    def _failed(self, error: dict[str, Any]) -> None:
        """A look that failed says nothing of the GPUs, and that it failed is told."""
        self.probe["error"] = error
        self._judge(snapshot.without_nvml(error, self.settings.root), [])

    # --- the reconciler -------------------------------------------------------------------------------------------

    def _watch_pipes(self) -> None:
        """Keep the selector's list in step with the publishers that hear something, whose sockets come and go."""
        for publisher in self.publishers:
            pipe = getattr(publisher, "pipe", None)
            watched = self._watched_pipes.get(publisher)
            if watched and watched[0] is not pipe:
                self.selector.unregister(watched[1])
                del self._watched_pipes[publisher]
            if pipe is not None and publisher not in self._watched_pipes:
                self.selector.register(pipe.fileno(), selectors.EVENT_READ, lambda one=publisher: self._heed(one))
                self._watched_pipes[publisher] = pipe, pipe.fileno()

    def _heed(self, publisher: Any) -> None:
        for told in publisher.hear():
            self._obey(told)

    def _obey(self, told: dict[str, Any]) -> None:
        """What the reconciler says to this host."""
        mended = self.inbox.take(told)
        if mended:
            self._clear(mended["device"], None)
        self._tell_of_inbox()

    def _tell_of_inbox(self) -> None:
        if self.inbox.problem:
            self.problems["inbox"] = self.inbox.problem
        else:
            self.problems.pop("inbox", None)

    # --- verdicts -------------------------------------------------------------------------------------------------

    def _judge(self, look: dict[str, Any] | None, events: list[dict[str, Any]]) -> None:
        """`look` is None where only events are new: what was seen before is then not counted as seen again."""
        if look is not None and not (self.probe["error"] and self.last):
            self.last = look
        self.report, self.history = self._judged(look, events)
        with contextlib.suppress(OSError):
            self.told.tell(self.report)
        self._save()
        self._publish()

    def _judged(
        self, look: dict[str, Any] | None, events: list[dict[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        # What the log says of a device counts only where there is one, also before the first look has told.
        bus = snapshot.bus(self.settings.root) if events and look is None else None
        try:
            return health.judge(look, events, self.history, self.settings.policy, bus=bus)
        except PolicyError:
            raise
        except MISSHAPEN as failure:
            # What was remembered cannot be gone on with, although it had its form when it was read.
            traceback.print_exc()
            self.state.put_aside(f"{type(failure).__name__}: {failure}")
            self.problems["state"] = one_line(self.state.lost)
            told = {"boot_id": self.boot_id, "health": self.report} if self.report else self._last()
            self.history, _found = agent_recall.recalled({}, told, self.boot_id)
        return health.judge(look, events, self.history, self.settings.policy, bus=bus)

    # --- what is remembered -----------------------------------------------------------------------------------------

    def _remembered(self) -> dict[str, Any]:
        """From the disk; what is not there, from what was published last in this boot."""
        with contextlib.suppress(OSError):
            self.state.clean()
        history = self.state.load()
        if self.state.lost:
            self.problems["state"] = one_line(self.state.lost)
        last = self._last()
        if self.state.is_new or agent_recall.has_unsaved(last):
            history, found = agent_recall.recalled(history, last, self.boot_id)
            if found:
                told = f"{found} faults are known from the last result only, as the state did not have them"
                self.problems["recalled"] = told
        return history

    def _last(self) -> dict[str, Any]:
        for publisher in self.publishers:
            if hasattr(publisher, "last"):
                try:
                    found: dict[str, Any] = publisher.last()
                    return found
                except (OSError, ValueError) as failure:
                    self.problems["last"] = one_line(f"the last result cannot be read: {failure}")
        return {}

    def _save(self) -> None:
        """A disk that does not take the state keeps nobody from being told of it."""
        try:
            self.state.save(self.history)
        except OSError as failure:
            self.saved = False
            self.problems["save"] = one_line(
                f"the state cannot be saved ({failure.strerror}): {self.state.path}. Verdicts are published. "
                "To do: see `df` and `df -i` for the disk, and `sudo dmesg`"
            )
        else:
            self.saved = True
            self.problems.pop("save", None)

    def result(self) -> dict[str, Any]:
        """What the publishers get; see publish.py."""
        look = self.last or {}
        return {
            "schema": SCHEMA,
            "time": time.time(),
            "uptime": snapshot.uptime(),
            "boot_id": self.boot_id,
            "interval_s": self.settings.interval_s,
            "agent": {
                "probe_error": self.probe["error"],
                "probe_seconds": self.probe["seconds"],
                "probe_time": self.probe["time"],
                "stuck": len(self.prober.stuck),
                "problems": list(self.problems.values()),
                "log_error": self.problems.get("kernel_log"),
                # What is not saved, the next agent takes over from here.
                "state_saved": self.saved,
                "xids": health.xid_counts(self.history),
            },
            "snapshot": look,
            "health": self.report,
        }

    def _publish(self) -> None:
        self.inbox.remind()
        self._tell_of_inbox()
        result = self.result()
        for publisher in self.publishers:
            name = type(publisher).__name__
            try:
                publisher.publish(result)
                self.problems.pop(name, None)
            except Exception as failure:
                # One place that cannot be told, for whatever reason, must not keep the others from being told.
                self.problems[name] = one_line(f"{name} failed: {failure}")
        if self.report:
            told = [f"{self.report['verdict']}", *self.problems.values()]
            notify(f"STATUS={one_line('; '.join(told))}")

    # --- operators ------------------------------------------------------------------------------------------------

    def _listen_to_operators(self) -> None:
        """Where it cannot be listened, as on a full /run, the GPUs are watched all the same. Each look tries again."""
        if self._listens:
            return
        path = self.settings.socket
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            listener.listen(8)
        except OSError as failure:
            listener.close()
            self.problems["socket"] = (
                f"the agent does not answer requests: {path} cannot be created ({failure.strerror})"
            )
            return
        finally:
            os.umask(before)
        self.problems.pop("socket", None)
        self._listens = True
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, lambda: self._serve(listener))

    def _serve(self, listener: socket.socket) -> None:
        try:
            client, _address = listener.accept()
        except OSError:
            # Gone again, or no descriptor is left: that is for whoever asks, and not the GPUs' fault.
            return
        with client:
            client.settimeout(1.0)
            try:
                request = json.loads(client.recv(REQUEST_AT_MOST))
                answer = self._answer(request)
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as failure:
                answer = {"error": one_line(f"the request is not valid: {failure}")}
            except OSError:
                return
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(answer).encode("utf-8") + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "clear":
            for name in ("device", "code"):
                if not isinstance(request.get(name), (str, type(None))):
                    raise ValueError(f"{name} is not text")
            return {"cleared": self._clear(request.get("device"), request.get("code")), "health": self.report}
        if request["do"] == "look":
            self._next_look = self._next_slow_look = time.monotonic()
            self.prober.retry()
            return {"asked": True}
        if request["do"] == "publish":
            self._publish()
            return {"published": True}
        if request["do"] == "hear":
            self._obey(published.orders(json.dumps(request["orders"]).encode()))
            return {"heard": True}
        raise ValueError(f"do is {request['do']}, and can be clear, hear, look or publish")

    def _clear(self, device: str | None, code: str | None) -> list[dict[str, Any]]:
        self.history, cleared = health.clear(self.history, device, code)
        self.prober.retry()
        self._judge(None, [])
        return cleared
