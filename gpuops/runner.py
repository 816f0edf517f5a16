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
    """Ctrl-C and SIGTERM while Ansible runs.

    ansible-runner gives Ansible a terminal of its own, so that Ctrl-C does not get to it. The first is passed on as
    one, which has Ansible end its workers; after the second nothing is waited for.
    """

    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self.count = 0
        self.pid: int | None = None
        self._on_stop = on_stop
        self._sent = 0

    def asked(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._on_stop(self.count)
        self.send()

    def send(self) -> None:
        """To the whole group, as a terminal would. Before the first event nobody knows whom."""
        if self.pid is None or self._sent >= self.count:
            return
        self._sent = self.count
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgid(self.pid), signal.SIGINT if self.count == 1 else signal.SIGKILL)

    def cancelled(self) -> bool:
        """Whether ansible-runner has to end it: when it was asked to stop twice, or before anything had begun."""
        return self.count >= 2 or (self.count == 1 and self.pid is None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
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

    def handle(event: dict[str, Any]) -> bool:
        stopper.pid = stopper.pid or event.get("pid")
        stopper.send()
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
            cancel_callback=stopper.cancelled,
            passwords=dict(passwords or {}),
            quiet=True,
            suppress_env_files=True,
            settings={"suppress_output_file": True, "pexpect_timeout": 1},
            # Not ansible-runner's own, but the one that ansible.cfg names.
            fact_cache_type="",
            envvars=as_if_called_here(),
        )
    return int(runner.rc if runner.rc is not None else 1)
