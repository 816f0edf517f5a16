# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a playbook through ansible-runner, and stops it when asked to."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gpuops.ansible_environment import as_if_called_here
from gpuops.site import Site

SITE_PLAYBOOK = "baremetal.gpu.site"


# Options with which Ansible asks for a password: what it asks with, as a regular expression, and what gpuops asks with.
ASKED = {
    "--ask-vault-pass": (r"Vault password.*:\s*?$", "Vault password"),
    "--ask-vault-password": (r"Vault password.*:\s*?$", "Vault password"),
    "-J": (r"Vault password.*:\s*?$", "Vault password"),
    "--ask-become-pass": (r"BECOME password.*:\s*?$", "Password for sudo"),
    "-K": (r"BECOME password.*:\s*?$", "Password for sudo"),
    "--ask-pass": (r"SSH password.*:\s*?$", "Password for SSH"),
    "-k": (r"SSH password.*:\s*?$", "Password for SSH"),
}


class Stopper:
    """Ctrl-C and SIGTERM while Ansible runs, in one process or several.

    ansible-runner gives Ansible a terminal of its own, so that Ctrl-C does not get to it. The first is passed on as
    one, which has Ansible end its workers; after the second nothing is waited for.
    """

    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self.count = 0
        self._on_stop = on_stop
        # How much of it each process has been told.
        self._told: dict[int, int] = {}

    def asked(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._on_stop(self.count)
        for pid in list(self._told):
            self.send(pid)

    def send(self, pid: int) -> None:
        """To the whole group, as a terminal would. Nobody knows it before its first event."""
        if self._told.setdefault(pid, 0) >= self.count:
            return
        self._told[pid] = self.count
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgid(pid), signal.SIGINT if self.count == 1 else signal.SIGKILL)

    def ended(self, pid: int | None) -> None:
        """Another process may get its number."""
        self._told.pop(pid or 0, None)

    def cancelled(self, pid: int | None) -> bool:
        """Whether ansible-runner has to end it: when it was asked to stop twice, or before anything had begun."""
        return self.count >= 2 or (self.count == 1 and pid is None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Signals come to the main thread; other threads leave it to whoever started them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(
    site: Site,
    private: Path,
    on_event: Callable[[Mapping[str, Any]], None],
    stopper: Stopper,
    *,
    playbook: str = SITE_PLAYBOOK,
    limit: str = "",
    tags: str = "",
    options: Sequence[str] = (),
    passwords: Mapping[str, str] | None = None,
) -> int:
    """Ansible's exit status. Nothing of the events is kept: they hold whatever modules returned.

    :param private: a directory for ansible-runner, not there yet; the caller removes it.
    :param options: further words for the command line of ansible-playbook.
    :param passwords: answers to what Ansible asks, by regular expression.
    """
    import ansible_runner

    pid: int | None = None

    def handle(event: dict[str, Any]) -> bool:
        nonlocal pid
        pid = pid or event.get("pid")
        if pid:
            stopper.send(pid)
        on_event(event)
        return False

    private.mkdir(mode=0o700)
    with stopper.watching():
        runner = ansible_runner.run(
            private_data_dir=str(private),
            playbook=playbook,
            inventory=str(site.inventory),
            limit=limit or None,
            tags=tags or None,
            cmdline=shlex.join(options) or None,
            event_handler=handle,
            cancel_callback=lambda: stopper.cancelled(pid),
            passwords=dict(passwords or {}),
            quiet=True,
            suppress_env_files=True,
            settings={"suppress_output_file": True, "pexpect_timeout": 1},
            # Not ansible-runner's own, but the one that ansible.cfg names.
            fact_cache_type="",
            envvars=as_if_called_here(),
        )
    stopper.ended(pid)
    return int(runner.rc if runner.rc is not None else 1)
