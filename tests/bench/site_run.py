# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml on machines of the lab, with its events."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import ansible_runner

from tests.bench.harness import ROOT


def run_site(limit: str, take: Callable[[dict[str, Any]], None], *words: str, toolkits: bool = False) -> None:
    """Run it with further words for ansible-playbook, and every event is handed over.

    :param limit: the machines.
    :param toolkits: whether CUDA's are to be there, which are gigabytes of packages, or nothing is done about them.
    """

    def handle(event: dict[str, Any]) -> bool:
        take(event)
        return False  # Nothing of it has to be kept.

    # The runner may be writing down an event yet when it has returned.
    with tempfile.TemporaryDirectory(prefix="bench-site-", ignore_cleanup_errors=True) as private:
        runner = ansible_runner.run(
            private_data_dir=private,
            playbook=str(ROOT / "playbooks" / "site.yml"),
            inventory=str(ROOT / "inventories" / "lab"),
            limit=limit,
            cmdline=" ".join((*words, *(() if toolkits else ("-e '{\"cuda_versions\": []}'",)))),
            quiet=True,
            suppress_env_files=True,
            event_handler=handle,
            envvars={
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            },
        )
    if runner.rc:
        raise SystemExit(f"site.yml ended with {runner.rc} on {limit}")
