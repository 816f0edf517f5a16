# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels of the portal, fetched by pip from the index that it is set to, each with the SHA-256 of the role's list."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal

from .downloads import digest
from .manifest import ManifestError

# Arguments; exit status and what it said.
Pip = Callable[[list[str]], "tuple[int, str]"]


def tags(file: str) -> tuple[str, str, str]:
    """Python, ABI and platforms of a wheel, as its name has them."""
    python, abi, platforms = file.removesuffix(".whl").rsplit("-", 3)[1:]
    return python.split(".")[0], abi, platforms


def _pip(words: list[str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr or done.stdout


def fetch(files: Iterable[str], directory: Path, pip: Pip = _pip) -> int:
    """Fill a directory with wheels of the list by the names of their files; return how many are there.

    What is there with the right content is not fetched again. Raises ManifestError.
    """
    rows = [row for row in portal.lock() if row["file"] in set(files)]
    directory.mkdir(parents=True, exist_ok=True)
    missing = sorted((row for row in rows if not _is_there(directory, row)), key=lambda row: tags(row["file"]))
    # pip chooses by what it is told of the host's Python, so those of one kind come together.
    for kind, group in itertools.groupby(missing, key=lambda row: tags(row["file"])):
        _download(kind, list(group), directory, pip)
    wrong = [row["file"] for row in rows if not _is_there(directory, row)]
    if wrong:
        raise ManifestError(f"pip did not bring {', '.join(wrong[:5])}; see whether the index of pip has them")
    return len(rows)


def _is_there(directory: Path, row: Mapping[str, Any]) -> bool:
    path = directory / row["file"]
    return path.is_file() and digest(path) == str(row["sha256"])


def _download(kind: tuple[str, str, str], rows: list[Mapping[str, Any]], directory: Path, pip: Pip) -> None:
    python, abi, platforms = kind
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    words += ["--only-binary=:all:", f"--dest={directory}"]
    if python.startswith("cp"):
        words += ["--implementation=cp", f"--python-version={python[2:]}", f"--abi={abi}"]
        words += [f"--platform={name}" for name in platforms.split(".")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.writelines(f"{row['name']}=={row['version']} --hash=sha256:{row['sha256']}\n" for row in rows)
        lock.flush()
        status, said = pip([*words, f"--requirement={lock.name}"])
    if status:
        raise ManifestError(f"pip download ended with {status}: {untrusted_text.several_lines(said[-2000:])}")
