# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench.record_answers HOST``: what modules answer on a finished host of the lab.

Runs site.yml there and writes converged_host.json, from which the connection plugin `canned` answers for as many hosts
as a benchmark likes. The host must be finished: the run fails if it changes anything.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.run import FINISHED
from tests.bench.harness import ROOT
from tests.bench.site_run import run_site

ANSWERS = Path(__file__).with_name("converged_host.json")
# What the controller does itself.
ITS_OWN = (
    *(f"ansible.builtin.{name}" for name in ("assert", "debug", "group_by", "include_role", "include_tasks")),
    *(f"ansible.builtin.{name}" for name in ("include_vars", "set_fact", "validate_argument_spec")),
    "baremetal.gpu.gpu_verify_report",
)
# What the controller adds to a module's answer.
ADDED = ("_ansible_no_log", "_ansible_delegated_vars", "ansible_loop_var", "invocation", "diff")


def main(host: str) -> None:
    answers: dict[str, Any] = {}

    def take(event: dict[str, Any]) -> None:
        data = event.get("event_data") or {}
        if event["event"] == "runner_on_ok" and data.get("host") == host and data["task_action"] not in ITS_OWN:
            result = {key: value for key, value in data["res"].items() if key not in ADDED}
            # What the action plugin makes of the module's answer says less.
            if FINISHED in result:
                return
            if result.get("changed"):
                raise SystemExit(f"{host}: {data['task']} changed something, so the host is not finished")
            for row in result.get("results", [result]):
                answers.setdefault(data["task_action"], {key: row[key] for key in row if key not in (*ADDED, "item")})

    run_site(host, take, "--skip-tags storage")
    ANSWERS.write_text(json.dumps(dict(sorted(answers.items())), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{ANSWERS.relative_to(ROOT)}: {', '.join(sorted(answers))}")


if __name__ == "__main__":
    main(sys.argv[1])
