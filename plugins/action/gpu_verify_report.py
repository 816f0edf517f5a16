# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.verify.query import problems, report
from ansible_collections.baremetal.gpu.plugins.plugin_utils.refusal import refusal


class ActionModule(ActionBase):
    """Judges on the controller; nothing is sent to the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "facts": {"type": "dict", "required": True},
                "query": {"type": "dict", "required": True},
                "expected": {"type": "int", "default": 0},
                "directory": {"type": "str", "default": ""},
            }
        )
        host = str((task_vars or {}).get("inventory_hostname", ""))
        if "query" not in arguments["query"]:
            raise AnsibleActionFail(f"{host}: query is not an answer of gpu_query")
        verdict = report(arguments["facts"], arguments["query"], host, arguments["expected"])
        result.update(changed=False, report=verdict, causes=verdict["causes"])
        if arguments["directory"] and not self._task.check_mode:
            result["file"] = write(arguments["directory"], host, verdict)
            for source in (task_vars or {}).get("ansible_inventory_sources") or []:
                if is_read(result["file"], str(source)):
                    # Once for all hosts of a run.
                    self._display.warning(
                        f"gpu_verify_report_dir is {arguments['directory']}, where Ansible looks for inventory, so it "
                        f"reads the reports as that. To do: set it to {source}/.gpuops/verify or a place elsewhere"
                    )
        # In check mode what loads the driver was only pretended.
        pretended = self._task.check_mode and verdict["driver"]["loaded"] is None
        if not verdict["ok"] and not pretended:
            causes = problems(verdict) or [Problem("gpu_failed", host, "a GPU did not pass", "", "read the report")]
            lines = [f"- {problem.subject}: {problem.code}: {problem}" for problem in causes]
            if "file" in result:
                # It would bury the message.
                del result["report"]
            result.update(
                failed=True,
                msg=f"{host} does not pass:\n" + "\n".join(lines),
                problems=[problem.as_dict() for problem in causes],
            )
        return result


def is_read(path: str, source: str) -> bool:
    """Whether Ansible takes the file for a part of an inventory: all is, below its directory, that is not hidden."""
    below = os.path.relpath(os.path.realpath(path), os.path.realpath(source))
    return os.path.isdir(source) and not any(part.startswith(".") for part in below.split(os.sep))


def write(directory: str, host: str, verdict: dict[str, Any]) -> str:
    """In one step, so that a reader never finds half a report."""
    if "/" in host or "\0" in host or host.startswith("."):
        problem = Problem(
            "host_name",
            host,
            f"{host!r}: a report is named after its host, and no file can have this name",
            "",
            "give the host a name of letters, digits and . _ - in the inventory, and its address as ansible_host",
        )
        raise refusal("host", [problem])
    path = os.path.join(os.path.expanduser(directory), f"{host}.json")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".report-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)
            json.dump(verdict, stream, indent=1, sort_keys=True)
            stream.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        problem = Problem(
            "report_not_written",
            path,
            f"the report cannot be written to {path}: {error.strerror}",
            "",
            "set gpu_verify_report_dir to a directory that you may write to, or to '' for none",
        )
        raise refusal(host, [problem]) from None
    return path
