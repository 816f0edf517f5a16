# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment in which gpuops has ansible-runner start Ansible."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def as_if_called_here() -> dict[str, str]:
    """As if Ansible's commands were called here: ansible-runner itself works in a directory of its own."""
    here = Path("ansible.cfg").resolve()
    config = os.environ.get("ANSIBLE_CONFIG") or (str(here) if here.is_file() else "")
    # They lie beside the interpreter, also where its environment is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"ANSIBLE_CONFIG": config, "ANSIBLE_NOCOLOR": "1", "PATH": path}
