#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of ports into docs/security.md.

.venv/bin/python tools/ports.py
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ports import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "security.md"
TABLE = re.compile(r"^\| port \|.*\n(?:\|.*\n)+", re.MULTILINE)


def renewed(page: str) -> str:
    return TABLE.sub(lambda _old: table(), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
