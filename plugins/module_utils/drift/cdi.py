# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the specification of the GPUs is as nvidia_cdi would leave it. Reads only.

What this check cannot decide counts as drift: the module itself then says what is wrong.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def specification(item: dict[str, Any]) -> tuple[str | None, list[str]]:
    """Why the specification of the GPUs differs from what nvidia_cdi writes, or None; and notes on it."""
    path = item["path"]
    try:
        text, former = cdi.written(path), cdi.former(path)
    except OSError as error:
        return str(error), []
    if former:
        return f"replaces {former}", []
    if text is not None and not cdi.is_ours(text):
        return (None, [cdi.staying(path)]) if item["state"] == "absent" else ("was written by something else", [])
    if item["state"] == "absent":
        return None if text is None else "is there", []
    if text is None:
        return "is not there", []
    try:
        spec, found, _hook = cdi.specify(path, item["devices"], engine=item.get("engine") or "")
    except (cdi.CannotTell, Refused) as error:
        return str(error), []
    return None if cdi.render(spec) == text else "does not match the current GPUs and driver", found.notes
