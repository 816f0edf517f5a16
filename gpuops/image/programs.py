# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that work on images, and what they say when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# Program -> package of Debian.
BUILDERS = {"mmdebstrap": "mmdebstrap", "buildah": "buildah"}
MOVERS = {"skopeo": "skopeo"}
LAST_LINES = 20


def need(programs: Mapping[str, str], root: bool = False) -> None:
    """Refuses early where a program is missing, or root's rights where they are needed."""
    missing = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if missing:
        raise Refused(f"missing here: {', '.join(missing)}", f"apt-get install {' '.join(missing)}", code="no_program")
    if root and os.geteuid() != 0:
        raise Refused("building an image needs root", "call it with sudo", code="no_root")


def run(
    *words: str | os.PathLike[str],
    what: str,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    given: str | None = None,
    hint: str = "",
) -> str:
    """The standard output of a program. Its error output goes to the log, and its end into the refusal if it fails.

    :param what: what was to be done, for the refusal.
    """
    argv = [str(word) for word in words]
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise Refused(f"{what}: {argv[0]} cannot be run: {error.strerror}", code="no_program") from error
    if log:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"$ {argv[0]}: {what}\n{done.stdout}{done.stderr}\n")
    if done.returncode != 0:
        raise Refused(
            f"{what} failed: {argv[0]} ended with {done.returncode}:\n{last(done.stderr or done.stdout)}",
            hint or (f"see {log}" if log else ""),
            code="image_program_failed",
        )
    return done.stdout


def last(output: str | Iterable[str]) -> str:
    """The end of what a program said, harmless for a terminal."""
    lines = output.splitlines() if isinstance(output, str) else list(output)
    return untrusted_text.several_lines("\n".join(lines[-LAST_LINES:]))
