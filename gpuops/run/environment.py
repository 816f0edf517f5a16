# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment in which gpuops has ansible-runner start Ansible."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuops import site

# Where Ansible looks when neither ANSIBLE_CONFIG nor the directory has one.
OTHER_CONFIGS = (Path("~/.ansible.cfg"), Path("/etc/ansible/ansible.cfg"))


def as_if_called_here() -> dict[str, str]:
    """As if Ansible's commands were called here: ansible-runner itself works in a directory of its own."""
    config = site.config_file()
    # They lie beside the interpreter, also where its environment is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        "ANSIBLE_CONFIG": str(config or os.environ.get("ANSIBLE_CONFIG", "")),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": path,
        "ANSIBLE_HOST_KEY_CHECKING": _host_key_checking(config),
    }


def _host_key_checking(config: Path | None) -> str:
    """What Ansible's own commands would do: ask ssh. ansible-runner accepts unknown host keys unless it is told."""
    if os.environ.get("ANSIBLE_HOST_KEY_CHECKING"):
        return os.environ["ANSIBLE_HOST_KEY_CHECKING"]
    others = (path.expanduser() for path in OTHER_CONFIGS)
    read = config or next((path for path in others if path.is_file()), None)
    found = [site.settings(read, section).get("host_key_checking") for section in ("ssh_connection", "defaults")]
    return next((value for value in found if value), "True")
