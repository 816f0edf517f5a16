#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of ports of docs/security.md from plugin_utils/ports.py.

.venv/bin/python tools/ports.py
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils import ports

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"


def page(text: str) -> str:
    """The page with the table as it is to be."""
    table = "\n".join(ports.rows())
    before, head, rest = text.partition(table.partition("\n")[0])
    if not head:
        raise SystemExit(f"{PAGE} has no table of ports")
    return f"{before}{table}\n\n{rest.partition(chr(10) * 2)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
