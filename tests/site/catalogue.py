# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpuops image` in the lab, and the image that it has put into the catalogue of a site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.site.plays import ROOT


def gpuops_image(*words: str) -> str:
    """What `gpuops image WORDS` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuops", "image", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def notebook(inventory: Path, address: str) -> str:
    """The image `notebook` by its digest, as the catalogue has it.

    :param address: of the registry.
    """
    told = gpuops_image("list", "-i", str(inventory))
    found = re.search(rf"{re.escape(address)}/catalogue/notebook@sha256:[0-9a-f]{{64}}", told)
    assert found, told
    return found[0]
