# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script of a session in its user's home, for schedulers that must not have the hub's token for the session."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import measure
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Submitter, Wanted

# Makes the script's file in the session's directory, and takes those away that were never started.
KEEP = 'umask 077; mkdir -p -- "$1" && cd -- "$1" && rm -f -- script-* && cat >"$2"'
SERVICE_PREFIX = re.compile(r"/[A-Za-z0-9@%._~/-]{0,300}", re.ASCII)


def home(wanted: Wanted) -> str:
    return wanted.directory.rpartition("/gpuops-jobs/")[0]


def head(wanted: Wanted, variables: Mapping[str, str], port: str) -> list[str]:
    """The first lines of it: what the session is told beside the variables of the hub. Raises Refused.

    :param port: where its server is to listen, as the shell has it.
    """
    prefix = variables.get("JUPYTERHUB_SERVICE_PREFIX", "/")
    if not SERVICE_PREFIX.fullmatch(prefix):
        raise Refused(f"the prefix is {one_line(repr(prefix), 100)}", "give a path", code="invalid_session")
    return [
        f"directory={shlex.quote(wanted.directory)}",
        f"export {measure.GPUS}={wanted.gpus}",
        f'export JUPYTERHUB_SERVICE_URL="https://0.0.0.0:{port}"{shlex.quote(prefix)}',
    ]


def keep(wanted: Wanted, name: str, text: str, run: Run) -> None:
    """Write it as its user, whom alone it can be read by. Raises CallFailed."""
    submitter = Submitter(run)
    argv = [*submitter.as_user(wanted.user), "/bin/sh", "-c", KEEP, "sh", wanted.directory, name]
    status, out, error = run(argv, text, 20.0)
    if status:
        cause = f"the session's script cannot be written: {one_line(error or out, 300)}"
        raise submitter.not_written(wanted.user, wanted.directory, cause)
