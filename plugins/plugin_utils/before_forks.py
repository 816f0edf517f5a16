# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible does once instead of once for each task of each host.

Each of these runs in a process of its own, forked from that of the playbook, and has what its parent has loaded. A
process that uses any filter of a collection loads all of them, for which Python compiles them anew. And each looks
through all that its parent has made when it collects garbage, which copies the memory of both. Action plugins are
loaded in the parent, so they ask for it. What it saves: `python -m tests.bench scale` and `node`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib import import_module

from ansible import constants
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, lookup_loader, module_loader
from ansible.template import Templar

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles


def load_plugins() -> None:
    """Load what nearly every task of the roles uses."""
    # What imports an action plugin without running a playbook has no collections set up.
    with contextlib.suppress(KeyError):
        filter_loader.get("baremetal.gpu.drift_document")
    lookup_loader.get("ansible.builtin.vars")
    # The filter desired imports the plan of a role when it is first used.
    for role in roles.names():
        import_module(f"{roles.PACKAGE}.{role}")


def package_module(name: str) -> None:
    """Put together what Ansible sends to a host to run a module.

    Ansible keeps it for the run, in DEFAULT_LOCAL_TMP, whatever the arguments are; otherwise the first host that needs
    it has it made, and the others wait for that. Where this cannot be done it is left to them, and so is the complaint.
    """
    with contextlib.suppress(Exception):
        module_common.modify_module(
            module_name=name,
            module_path=module_loader.find_plugin_with_context(name, ".py").plugin_resolved_path,
            module_args={},
            templar=Templar(loader=DataLoader()),
            # Any interpreter will do: what is kept does not name it.
            task_vars={"ansible_python_interpreter": sys.executable},
            module_compression=constants.config.get_config_value("DEFAULT_MODULE_COMPRESSION"),
        )


def prepare_while_hosts_answer(module: str) -> None:
    """Load it, and package a module, as soon as the first host is asked: the playbook's process has nothing to do
    until that has answered."""
    playbook = os.getpid()
    prepared = False

    def prepare() -> None:
        nonlocal prepared
        # Processes of hosts have this from their parent, and may fork too.
        if not prepared and os.getpid() == playbook:
            prepared = True
            load_plugins()
            package_module(module)
            freeze()

    os.register_at_fork(after_in_parent=prepare)


def freeze() -> None:
    """Leave what there is by now to no garbage collection."""
    gc.freeze()
