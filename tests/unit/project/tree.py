# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the project as a whole look at: the files under version control and how to run a tool."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Every file under version control, relative to the root."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # A link is there even where it leads nowhere.
    return tuple(Path(name) for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name))


def tracked(under: str, suffix: str = "") -> list[Path]:
    """Files under version control in a folder, relative to the root."""
    return [path for path in tracked_files() if path.is_relative_to(under) and path.name.endswith(suffix)]


# What develops and tests the project, the lab among it. No user gets anything of it.
DEVELOPMENT = ("inventories/lab", "molecule", "tests", "tools")


@functools.cache
def _development_contents() -> dict[bytes, Path]:
    files = [path for folder in DEVELOPMENT for path in tracked(folder)]
    return {hashlib.sha256((ROOT / path).read_bytes()).digest(): path for path in files}


def development_files(contents: Iterable[bytes]) -> list[Path]:
    """Files of the tests, the lab and the tools that are among these contents, under whatever name."""
    known = _development_contents()
    digests = (hashlib.sha256(content).digest() for content in contents)
    return [known[digest] for digest in digests if digest in known]


def role_names() -> list[str]:
    """Every role under version control."""
    return sorted({path.parts[1] for path in tracked("roles") if len(path.parts) > 2})


def load_yaml(path: Path | str) -> Any:
    """Content of a YAML file, path relative to the root."""
    return yaml.safe_load((ROOT / path).read_text())


def clone(directory: Path) -> Path:
    """What `git clone` of this checkout gives, with what is not committed yet: a copy that follows links, say, would
    hide what goes wrong for everybody else."""
    origin, target = directory / "origin", directory / "clone"
    for path in tracked_files():
        (origin / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, origin / path, follow_symlinks=False)
    git = ("git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")
    for command in (
        (*git, "-C", origin, "init", "--quiet"),
        # A file may be tracked although .gitignore names it.
        (*git, "-C", origin, "add", "--all", "--force"),
        (*git, "-C", origin, "commit", "--quiet", "--no-verify", "--message", "As it is"),
        (*git, "clone", "--quiet", origin, target),
    ):
        run(*command)
    return target


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Output of a tool of the virtual environment; fails the test with that output if the tool does."""
    done = try_run(command, cwd=cwd, **environment)
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def try_run(command: Sequence[str | Path], cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same for a tool that may fail."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={
            **os.environ,
            # Tools that call each other find their own virtual environment's programs first.
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "ANSIBLE_NOCOLOR": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
