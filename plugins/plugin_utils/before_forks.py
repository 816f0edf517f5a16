# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible loads once instead of once for each task of each host.

Each of these runs in a process of its own, forked from that of the playbook, and has what its parent has loaded. A
process that uses any filter of a collection loads all of them, for which Python compiles them anew. Action plugins are
loaded in the parent, so they ask for it. What it saves: `python -m tests.bench scale`.
"""

from __future__ import annotations

import contextlib

from ansible.plugins.loader import filter_loader


def load_filters() -> None:
    """Have the filters of the collection loaded."""
    # What imports an action plugin without running a playbook has no collections set up.
    with contextlib.suppress(KeyError):
        filter_loader.get("baremetal.gpu.drift_document")
