# SPDX-License-Identifier: GPL-3.0-or-later
"""A report as one HTML file, which needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops import pages
from gpuops.report import drawings
from gpuops.status import text as status_text

# A state has a sign and a word, so that nobody depends on colours.
SIGNS = {
    **dict.fromkeys(("ok", "done"), "✓"),
    "changed": "±",
    **dict.fromkeys(("degraded", "unknown"), "!"),
    **dict.fromkeys(("fatal", "failed", "unreachable"), "✗"),
    **dict.fromkeys(("skipped", "no_gpu"), "-"),
}
WORDS = {"no_gpu": "no GPU"}


def models(gpus: list[Mapping[str, Any]]) -> str:
    names = [str(gpu["model"] or "unknown GPU") for gpu in gpus]
    return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))


def html(report: Mapping[str, Any]) -> str:
    """The text of the file."""
    report = untrusted_document.cleaned(report)
    environment = pages.templates(Path(__file__).parent)
    environment.filters.update(moment=pages.moment, clock=progress_text.clock, size=status_text.size)
    hosts = [
        {
            **host,
            "gpus_count": len(host["gpus"]),
            "models": models(host["gpus"]),
            "pairs": drawings.pairs(host["topology"]),
            "drawing": drawings.topology(host["name"], host["topology"]),
        }
        for host in report["hosts"]
    ]
    return environment.get_template("report.html.j2").render(
        report={**report, "hosts": hosts},
        signs=SIGNS,
        words=WORDS,
        timeline=drawings.timeline(report["run"]),
        key=drawings.stage_classes(report["run"]),
    )
