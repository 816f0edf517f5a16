# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles that bring a server of nginx have in common."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc


def no_default_site(role: str) -> doc.File:
    """Where nginx is new, an empty default site: Debian's package would put a page of its own on port 80."""
    content = f"# Written by Ansible (baremetal.gpu.{role}): there is no default site.\n"
    return doc.File("/etc/nginx/sites-enabled/default", content, early=True, force=False)
