# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program gpu-mig on a node: it cuts the GPUs as the file of settings says, at every boot and on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, mig, mig_layout
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused

CONFIG = "/etc/baremetal-gpu/mig.json"
CONFIG_AT_MOST = 64 << 10
DIFFERENT = 3


def _settings(path: str) -> tuple[list[mig_layout.Rule], list[str]]:
    """The rules of the file, and the units that may be stopped for a while. Raises Refused."""
    remedy = "run `gpuops up --tags mig` for this host, which writes the file"
    try:
        config = bounded_json.parse(host_files.read(path, CONFIG_AT_MOST))
    except (OSError, bounded_json.Malformed) as failure:
        raise Refused(f"{path} cannot be read: {failure}", remedy, subject=path) from None
    units = config.get("stop_units") if isinstance(config, dict) else None
    if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
        raise Refused(f"{path} has no list stop_units", remedy, subject=path)
    return mig_layout.rules(config.get("layout"), config.get("config") or ""), units


def _complain(problems: Sequence[Problem]) -> int:
    for problem in problems:
        sys.stderr.write(f"gpu-mig: {problem}\n")
    return 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu-mig", description="Cut the GPUs of this host by MIG as it is set.")
    parser.add_argument("action", choices=["apply", "check", "show"], nargs="?", default="show")
    parser.add_argument("--config", default=CONFIG, help="the file of settings")
    action, path = (vars(parser.parse_args(argv))[name] for name in ("action", "config"))
    try:
        chosen, units = _settings(path)
        found = mig.bring_about(chosen, None, host_run.run, check=action != "apply", ours=units)
        if found.problems:
            return _complain(found.problems)
        if action == "apply":
            # What the instances need in /dev; at boot nothing else would make it.
            device_nodes.create(device_nodes.expected_nodes())
    except Refused as refused:
        return _complain([refused.problem])
    except (OSError, device_nodes.DriverNotLoaded) as failure:
        return _complain([Problem("no_device_nodes", "/dev", str(failure), "", "run `gpuops doctor`")])
    sys.stdout.write(found.after if action == "apply" else found.before)
    for step in found.steps:
        sys.stdout.write(f"{'done' if action == 'apply' else 'to do'}: {step}\n")
    return DIFFERENT if action == "check" and found.steps else 0


if __name__ == "__main__":
    raise SystemExit(main())
