# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at this host once, and judges it by the same rules as the agent, without a history."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml, nvml_messages, pci, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log


def look(binding_source: str | None, deadline_s: float, root: str = "/") -> dict[str, Any]:
    """A snapshot with everything in it, from a child process with a deadline. Never raises, never hangs."""
    try:
        if not pci.gpus(pci.scan(root)):
            return snapshot.without_nvml(None, root)
    except pci.BusUnreadable:
        # NVML may know all the same.
        pass

    def read() -> dict[str, Any]:
        try:
            binding = nvml.load_binding(binding_source)
        except nvml.NoBinding:
            return {
                "error": nvml_messages.error(
                    None,
                    "no_pynvml",
                    "there is no pynvml to ask NVML with",
                    "install nvidia-ml-py where the command runs; with Ansible, on the controller",
                )
            }
        return {"snapshot": snapshot.Reader(binding, root, trace).read(slow=True)}

    trace = nvml.Trace()
    answer = nvml.in_child(read, deadline_s, trace)
    found: dict[str, Any] = answer.get("snapshot") or snapshot.without_nvml(answer["error"], root)
    return found


def events(path: str, boot_id: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """What the kernel still has in its log, and why it was not read, None if it was."""
    try:
        return kernel_log.Parser(boot_id).events(kernel_log.read(path)), None
    except OSError as failure:
        return [], f"{path} cannot be read ({failure.strerror}), so Xids are not judged; ask as root"


def probe(
    policy: dict[str, Any] | None,
    binding_source: str | None = None,
    deadline_s: float = 60.0,
    log: str | None = "/dev/kmsg",
    root: str = "/",
) -> dict[str, Any]:
    """{health: the report, log_error: why the kernel's log was not read, or null}. `log` is None to leave it out.

    Raises PolicyError for a policy that cannot be followed.
    """
    seen = look(binding_source, deadline_s, root)
    logged, log_error = events(log, seen["boot_id"]) if log else ([], None)
    return {"health": health.judge_once(seen, logged, policy, log_error is None), "log_error": log_error}
