# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench.load_inventory SOURCE``: load an inventory as Ansible does, and say what it took.

What is measured is the whole process: Python, Ansible's start, and the inventory. The outcome is a digest of its
hosts, its groups with their hosts, and the hosts' variables.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import sys
from pathlib import Path


def memory_mib() -> float:
    """Highest resident memory of this process alone; getrusage's includes the parent's before exec."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024


def main(source: str) -> None:
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    manager = InventoryManager(DataLoader(), sources=[source])

    used = resource.getrusage(resource.RUSAGE_SELF)
    sample = {"cpu_s": used.ru_utime + used.ru_stime, "memory_mib": memory_mib()}
    # Where a host was seen first differs by nature.
    places = ("inventory_file", "inventory_dir")
    digest = hashlib.sha256()
    for name, group in sorted(manager.groups.items()):
        digest.update(json.dumps([name, sorted(host.name for host in group.get_hosts())]).encode())
    for name, host in sorted(manager.hosts.items()):
        variables = {key: value for key, value in host.vars.items() if key not in places}
        digest.update(json.dumps([name, variables], sort_keys=True).encode())
    outcome = f"{len(manager.hosts)} hosts, {len(manager.groups)} groups, {digest.hexdigest()}"
    print(json.dumps({**sample, "outcome": outcome}))


if __name__ == "__main__":
    main(sys.argv[1])
