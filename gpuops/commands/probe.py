# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops probe``: judge the GPUs of this host once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.health import text as health_text
from ansible_collections.baremetal.gpu.plugins.module_utils.health.policy import PolicyError
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import NUMBERS
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

USAGE_ERROR = 64


def _read_policy(path: Path | None) -> Any:
    """The policy of a file in YAML or JSON."""
    if path is None:
        return {}
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as failure:
        typer.echo(f"gpuops probe: the policy {path} cannot be read: {failure}", err=True)
        raise typer.Exit(USAGE_ERROR) from failure


def probe(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    policy: Annotated[Path | None, typer.Option(help="The site's health policy, a file in YAML or JSON.")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that NVML has for its answers.")] = 60.0,
    kernel_log: Annotated[
        bool, typer.Option(help="Count the Xids that are still in the kernel's log, which a reset does not remove.")
    ] = True,
) -> None:
    """Judge this host's GPUs by one look; the exit code is 0 ok, 1 degraded, 2 fatal, 3 unknown.

    Examples:

      gpuops probe

      gpuops probe --json --policy policy.yml
    """
    site = _read_policy(policy)
    try:
        found = health_probe.probe(site, deadline_s=timeout, log="/dev/kmsg" if kernel_log else None)
    except PolicyError as wrong:
        typer.echo(f"gpuops probe: {policy}: {wrong}", err=True)
        raise typer.Exit(USAGE_ERROR) from wrong
    if as_json:
        typer.echo(json.dumps({**found["health"], "log_error": found["log_error"]}, indent=2))
    else:
        typer.echo(untrusted_text.several_lines(health_text.table(found["health"])))
    if found["log_error"] and not as_json:
        typer.echo(f"gpuops probe: {found['log_error']}", err=True)
    raise typer.Exit(NUMBERS[found["health"]["verdict"]])
