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
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import unit_path

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


def present(port: int) -> tuple[list[doc.Entry], list[doc.Unit]]:
    """Its files and units."""
    values = {
        "ssh_port": port,
        "jump": ssh.PROGRAM,
        "jump_key": ssh.JUMP_KEY,
        "jump_user": ssh.ACCOUNT,
        "keys": KEYS,
        "sshd_config": SSHD_CONFIG,
    }
    files = [
        doc.File(SSHD_CONFIG, render(ROLE, "sshd_config.j2", **values)),
        doc.File(ssh.PROGRAM, bundle("portal.ssh_jump"), "0755"),
        doc.File(KEYS, bundle("portal.ssh_keys"), "0755"),
        *(doc.File(unit_path(name), render(ROLE, f"{name}.j2", **values)) for name in UNITS),
    ]
    # A reload keeps connections.
    jump = doc.Unit.running(JUMP, restart_on=[unit_path(JUMP)], reload_on=[SSHD_CONFIG])
    return [*files], [doc.Unit.running(KEYS_SOCKET, [unit_path(KEYS_SOCKET)]), jump]


def absent() -> tuple[list[doc.Entry], list[doc.Unit]]:
    """Connections end. The key stays, by which people know the jump."""
    paths = (SSHD_CONFIG, ssh.PROGRAM, KEYS, *map(unit_path, UNITS))
    return [*map(doc.Absent, paths)], [*map(doc.Unit.stopped, (JUMP, KEYS_SOCKET))]
