# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop-in files for the units of Slurm's packages."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render


def path(unit: str) -> str:
    """Where the drop-in file of a unit is."""
    return f"/etc/systemd/system/{unit}.d/baremetal-gpu.conf"


def drop_in(role: str, unit: str, more: str = "") -> list[doc.Entry]:
    """The directory and the file of a unit's drop-in, as a desired document has them.

    :param more: sections besides [Service].
    """
    content = render("slurm_common", "drop-in.conf.j2", role=role, more=more)
    # Before the package, which starts the unit at once.
    return [doc.Directory(path(unit).rpartition("/")[0], early=True), doc.File(path(unit), content, early=True)]
