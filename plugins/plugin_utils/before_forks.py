# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible does once instead of once for each task of each host.

Each of these runs in a process of its own, forked from that of the playbook, and has what its parent has loaded. A
process that uses any filter of a collection loads all of them, for which Python compiles them anew. And each looks
through all that its parent has made when it collects garbage, which copies the memory of both. Action plugins are
loaded in the parent, so they ask for it. What it saves: `python -m tests.bench scale`.
"""

from __future__ import annotations

import contextlib
import gc
import os

from ansible.plugins.loader import filter_loader, lookup_loader


def load_plugins() -> None:
    """Load what nearly every task of the roles uses."""
    # What imports an action plugin without running a playbook has no collections set up.
    with contextlib.suppress(KeyError):
        filter_loader.get("baremetal.gpu.drift_document")
    lookup_loader.get("ansible.builtin.vars")
    lookup_loader.get("ansible.builtin.varnames")


def load_plugins_while_hosts_answer() -> None:
    """Load it as soon as the first host is asked: the playbook's process has nothing to do until that has answered."""
    playbook = os.getpid()
    loaded = False

    def load() -> None:
        nonlocal loaded
        # Processes of hosts have this from their parent, and may fork too.
        if not loaded and os.getpid() == playbook:
            loaded = True
            load_plugins()
            freeze()

    os.register_at_fork(after_in_parent=load)


def freeze() -> None:
    """Leave what there is by now to no garbage collection."""
    gc.freeze()
