# SPDX-License-Identifier: GPL-3.0-or-later
"""JupyterHub and JupyterLab for the tests of the portal: the role's own wheels, in an environment in .cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal
from gpuops.fetch import wheels
from gpuops.fetch.manifest import ManifestError

CACHE = Path(__file__).resolve().parents[1] / ".cache"
WHEELS, ENVIRONMENT = CACHE / "wheels", CACHE / "portal-environment"
PYTHON = f"3.{sys.version_info.minor}"
# Of which list of wheels it is made.
MADE_FROM = ENVIRONMENT / "made-from"


def environment() -> Path:
    """The environment, which GPUOPS_JUPYTERHUB may name. It need not be there."""
    return Path(os.environ.get("GPUOPS_JUPYTERHUB") or ENVIRONMENT)


def fetch() -> str:
    """Fetch the wheels and make the environment, where that was not done yet; what went wrong, or nothing."""
    rows = {row["file"]: row for what in ("hub", "session") for row in portal.wheels(PYTHON, what)}
    if not rows:
        return f"there are no wheels of the portal for Python {PYTHON}"
    lock = "".join(f"{row['name']}=={row['version']} --hash=sha256:{row['sha256']}\n" for row in rows.values())
    made_from = hashlib.sha256(lock.encode()).hexdigest()
    if "GPUOPS_JUPYTERHUB" in os.environ or (MADE_FROM.is_file() and MADE_FROM.read_text() == made_from):
        return ""
    try:
        wheels.fetch(rows, WHEELS)
    except ManifestError as why:
        return str(why)
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(lock)
        file.flush()
        pip = [ENVIRONMENT / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        for command in (
            [sys.executable, "-m", "venv", ENVIRONMENT],
            [*pip, "--no-deps", f"--find-links={WHEELS}", "--require-hashes", f"--requirement={file.name}"],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                return f"{command[0]}: {done.stderr[-1000:].strip()}"
    MADE_FROM.write_text(made_from)
    return ""
