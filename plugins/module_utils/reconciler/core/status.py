# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler knows of every node, for people."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Plan, Store


def overview(store: Store) -> dict[str, Any]:
    """{leader, fleet, nodes: {host: {verdict, listed, problem, memory, last}}, without_own_login: hosts}."""
    fleet, rows, apart = store.load()
    verdicts = store.verdicts()
    told = {host: row for host, row in verdicts.items() if not isinstance(row, Unusable)}
    problems = {
        host: f"its verdict is ignored: {row.why}" for host, row in verdicts.items() if isinstance(row, Unusable)
    }
    return {
        "leader": store.leader(),
        "fleet": fleet,
        "nodes": {
            host: {
                "verdict": told.get(host, {}).get("verdict"),
                "listed": told.get(host, {}).get("listed"),
                "problem": apart.get(host) or problems.get(host),
                **(rows.get(host) or {"memory": None, "last": []}),
            }
            for host in sorted({*rows, *verdicts, *apart})
        },
        "without_own_login": store.without_own_login(),
    }


def stage(memory: dict[str, Any] | None, plan: Plan) -> str:
    """Where a node is on its way, in a word."""
    if memory is None:
        return "never touched"
    if memory["order"]:
        return f"order {memory['order']['kind']}"
    return plan.stage(memory) or ("coming back" if memory["fenced"] else "in")


def table(found: dict[str, Any], plan: Plan) -> str:
    """One line per node, and what is not as it should be."""
    rows = [("NODE", "VERDICT", "GPUS", "STAGE", "LAST")]
    for host, row in found["nodes"].items():
        last = row["last"][-1] if row["last"] else None
        ago = f"{last.get('kind') or last['what']}, {time.time() - last['time']:.0f} s ago" if last else "nothing"
        gpus = "?" if row["listed"] is None else str(len(row["listed"]))
        rows.append((host, row["verdict"] or "silent", gpus, stage(row["memory"], plan), ago))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    for host, row in found["nodes"].items():
        memory = row["memory"] or {}
        for uuid, counts in sorted((memory.get("gpus") or {}).items()):
            if counts.get("quarantine"):
                lines.append(f"{host}: {uuid} is in quarantine until `sudo gpuops-reconciler clear {host}:{uuid}`")
        if row["problem"]:
            lines.append(f"{host} is left as it is: {row['problem']}")
        if memory.get("failed"):
            lines.append(f"{host}: {memory['failed']['what']} failed: {memory['failed']['why']}")
    if found["without_own_login"]:
        hosts = ", ".join(found["without_own_login"])
        lines.append(f"These hosts publish with a shared login: {hosts}. To do: run `gpuops up --tags agent` for them.")
    lines.append(f"{found['leader']} leads." if found["leader"] else "Nobody leads.")
    return "\n".join(lines)
