# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a playbook through ansible-runner, and stops it at Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gpuops.run import events
from gpuops.run.environment import as_if_called_here
from gpuops.run.playbooks import SITE
from gpuops.site import Site

# Options with which Ansible prompts for a password: its prompt, as a regular expression, and the prompt of gpuops.
PROMPTS = {
    "--ask-vault-pass": (r"Vault password.*:\s*?$", "Vault password"),
    "--ask-vault-password": (r"Vault password.*:\s*?$", "Vault password"),
    "-J": (r"Vault password.*:\s*?$", "Vault password"),
    "--ask-become-pass": (r"BECOME password.*:\s*?$", "Password for sudo"),
    "-K": (r"BECOME password.*:\s*?$", "Password for sudo"),
    "--ask-pass": (r"SSH password.*:\s*?$", "Password for SSH"),
    "-k": (r"SSH password.*:\s*?$", "Password for SSH"),
}


# How long Ansible is given to end after a signal, before the next one: it ends its workers and waits for them.
PATIENCE_S = {signal.SIGINT: 10.0, signal.SIGTERM: 5.0}


class Stopper:
    """Ctrl-C and SIGTERM while Ansible runs, in one process or several.

    :ivar count: how often somebody has signalled.
    """

    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self.count = 0
        self._on_stop = on_stop

    def signalled(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._on_stop(self.count)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Signals come to the main thread; other threads leave it to whoever started them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Ending:
    """How one process of Ansible is stopped, once somebody has signalled.

    ansible-runner gives Ansible a terminal of its own, so that Ctrl-C does not get to it. It is passed on as an
    interrupt, at which Ansible ends its workers and itself. But Python drops an interrupt that comes in the middle of
    a fork, and the next one would leave the workers behind: after a while, or at the second Ctrl-C, the process is
    terminated, at which it ends them too. Killed, as the last resort, it cannot.
    """

    def __init__(self, stopper: Stopper) -> None:
        # Not known before its first event.
        self.pid: int | None = None
        self._stopper = stopper
        self._sent: signal.Signals | None = None
        self._since = 0.0

    def go_on(self) -> bool:
        """Send what is due, to be called about once a second; whether ansible-runner has to end the process itself."""
        if not self._stopper.count:
            return False
        if self.pid is None:
            return True
        due = self._due()
        if due != self._sent:
            self._sent, self._since = due, time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # To the whole group, as a terminal would.
                os.killpg(os.getpgid(self.pid), due)
        return due == signal.SIGKILL

    def _due(self) -> signal.Signals:
        is_over = self._sent is not None and time.monotonic() - self._since >= PATIENCE_S.get(self._sent, 0.0)
        if self._sent is None:
            return signal.SIGINT
        if self._sent == signal.SIGINT:
            return signal.SIGTERM if is_over or self._stopper.count > 1 else signal.SIGINT
        return signal.SIGKILL if is_over else signal.SIGTERM


def run(
    site: Site,
    private: Path,
    on_event: events.Take,
    stopper: Stopper,
    *,
    playbook: str = SITE,
    limit: str = "",
    tags: str = "",
    options: Sequence[str] = (),
    passwords: Mapping[str, str] | None = None,
    redact: Callable[[Any], Any] | None = None,
) -> int:
    """Ansible's exit status. Nothing of the events is kept: they hold whatever modules returned.

    :param private: a directory for ansible-runner, not there yet; the caller removes it.
    :param options: further words for the command line of ansible-playbook.
    :param passwords: answers to Ansible's prompts, by regular expression.
    :param redact: takes secrets out of an event.
    """
    import ansible_runner

    ending = Ending(stopper)
    take = events.Entry(on_event, redact)

    def handle(event: dict[str, Any]) -> bool:
        if ending.pid is None and event.get("pid"):
            ending.pid = event["pid"]
            # The command line with its variables, and the environment: of no use any more, and not for reading.
            for path in private.glob("artifacts/*/command"):
                path.unlink(missing_ok=True)
        take(event)
        return False

    private.mkdir(mode=0o700)
    with stopper.watching():
        runner = ansible_runner.run(
            private_data_dir=str(private),
            playbook=playbook,
            # Words of the command line, such as -e @file, mean what they mean here.
            project_dir=os.getcwd(),
            inventory=str(site.inventory),
            limit=limit or None,
            tags=tags or None,
            cmdline=shlex.join(options) or None,
            event_handler=handle,
            cancel_callback=ending.go_on,
            passwords=dict(passwords or {}),
            quiet=True,
            suppress_env_files=True,
            settings={"suppress_output_file": True, "pexpect_timeout": 1},
            # Not ansible-runner's own, but the one that ansible.cfg names.
            fact_cache_type="",
            envvars=as_if_called_here(),
        )
    return int(runner.rc if runner.rc is not None else 1)
