# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SSH jump of the portal, as items of a desired document: an sshd of its own, which nobody logs in to.

sshd runs as an account without rights, and a key that it accepts runs one program, as that account too. Were it the
user's account, the user's shell would read files of the home first, which may hold any command.
"""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import ssh
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import ROOT_OWNS, unit_path

ROLE = "portal"
PACKAGE = "openssh-server"
SSHD_CONFIG = "/etc/baremetal-gpu/portal/sshd_config"
KEYS = "/usr/libexec/baremetal-gpu/portal-keys"
JUMP, KEYS_SOCKET, KEYS_UNIT = (
    f"{ssh.ACCOUNT}.service",
    "baremetal-gpu-portal-keys.socket",
    "baremetal-gpu-portal-keys@.service",
)
UNITS = (JUMP, KEYS_SOCKET, KEYS_UNIT)


def present(port: int) -> Document:
    values = {
        "ssh_port": port,
        "jump": ssh.PROGRAM,
        "jump_key": ssh.JUMP_KEY,
        "jump_user": ssh.ACCOUNT,
        "keys": KEYS,
        "sshd_config": SSHD_CONFIG,
    }
    written, program = {"mode": "0644", **ROOT_OWNS}, {"mode": "0755", **ROOT_OWNS}
    return {
        "files": [
            {"path": SSHD_CONFIG, "content": render(ROLE, "sshd_config.j2", **values), **written},
            {"path": ssh.PROGRAM, "content": bundle("portal.ssh_jump"), **program},
            {"path": KEYS, "content": bundle("portal.ssh_keys"), **program},
            *({"path": unit_path(name), "content": render(ROLE, f"{name}.j2", **values), **written} for name in UNITS),
        ],
        "units": [
            {
                "name": KEYS_SOCKET,
                "enabled": True,
                "state": "started",
                "restart_on": [unit_path(KEYS_SOCKET)],
            },
            {
                "name": JUMP,
                "enabled": True,
                "state": "started",
                # A reload keeps connections.
                "reload_on": [SSHD_CONFIG],
                "restart_on": [unit_path(JUMP)],
            },
        ],
    }


def absent() -> Document:
    """Connections end. The key stays, by which people know the jump."""
    paths = (SSHD_CONFIG, ssh.PROGRAM, KEYS, *map(unit_path, UNITS))
    return {
        "files": [{"path": path, "state": "absent"} for path in paths],
        "units": [{"name": name, "enabled": False, "state": "stopped"} for name in (JUMP, KEYS_SOCKET)],
    }
