# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench.call_callbacks PLUGIN HOSTS``: what the stdout callback costs in a run of ansible-playbook.

The CPU time is that of the calls alone, with the copy of each result that Ansible makes for a plugin which asks for it.
The hosts do nothing: some tasks are skipped, the others are done on the controller. Output goes to /dev/null.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: Say, ansible.builtin.debug: {msg: one}}
    - {name: Skip, ansible.builtin.debug: {msg: two}, when: false}
    - {name: Set, ansible.builtin.set_fact: {a: [1, 2, 3]}}
    - {name: Skip again, ansible.builtin.debug: {msg: three}, when: false}
"""


def main() -> None:
    plugin, hosts = sys.argv[1], int(sys.argv[2])
    os.environ["ANSIBLE_STDOUT_CALLBACK"] = plugin
    from ansible.cli.playbook import PlaybookCLI
    from ansible.executor import task_queue_manager

    original = task_queue_manager.TaskQueueManager.send_callback
    spent, calls = 0.0, 0

    def send(*given: Any, **named: Any) -> None:
        nonlocal spent, calls
        begin = time.thread_time()
        try:
            original(*given, **named)
        finally:
            spent += time.thread_time() - begin
            calls += 1

    task_queue_manager.TaskQueueManager.send_callback = send
    terminal = os.dup(1)
    with tempfile.TemporaryDirectory(prefix="bench-progress-") as folder:
        place = Path(folder)
        (place / "play.yml").write_text(PLAYBOOK)
        (place / "hosts.ini").write_text("".join(f"h{number} ansible_connection=local\n" for number in range(hosts)))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        status = PlaybookCLI(
            ["ansible-playbook", "-f", "2", "-i", str(place / "hosts.ini"), str(place / "play.yml")]
        ).run()
        sys.stdout.flush()
        os.dup2(terminal, 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": spent, "memory_mib": memory, "outcome": f"{calls} events, status {status}"}))


if __name__ == "__main__":
    main()
