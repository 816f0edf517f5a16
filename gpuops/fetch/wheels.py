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

# So many come by one call of pip: it says nothing before its end.
AT_ONCE = 12
# Arguments; exit status and what it said.
Pip = Callable[[list[str]], "tuple[int, str]"]


def tags(file: str) -> tuple[str, str, str]:
    """Python, ABI and platforms of a wheel, as its name has them."""
    python, abi, platforms = file.removesuffix(".whl").rsplit("-", 3)[1:]
    return python.split(".")[0], abi, platforms


def _pip(words: list[str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr or done.stdout


def every() -> list[str]:
    """The files of all wheels, for each Python that hosts may have."""
    return [str(row["file"]) for row in portal.lock()]


def fetch(
    files: Iterable[str], directory: Path, pip: Pip = _pip, told: Callable[[int, int], None] = lambda done, of: None
) -> int:
    """Fill a directory with wheels of the list by the names of their files; return how many are there.

    What is there with the right content is not fetched again. Raises ManifestError, OSError.

    :param told: is given how many there are, of how many, before anything that has to be fetched.
    """
    rows = [row for row in portal.lock() if row["file"] in set(files)]
    directory.mkdir(parents=True, exist_ok=True)
    missing = sorted((row for row in rows if not _is_there(directory, row)), key=lambda row: tags(row["file"]))
    done = len(rows) - len(missing)
    # pip chooses by what it is told of the host's Python, so those of one kind come together.
    for kind, group in itertools.groupby(missing, key=lambda row: tags(row["file"])):
        of_kind = list(group)
        for part in (of_kind[at : at + AT_ONCE] for at in range(0, len(of_kind), AT_ONCE)):
            told(done, len(rows))
            _download(kind, part, directory, pip)
            done += len(part)
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
    # Where there is no way out, that is found soon.
    words += ["--retries=2", "--timeout=15"]
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
