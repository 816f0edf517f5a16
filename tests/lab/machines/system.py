# SPDX-License-Identifier: GPL-3.0-or-later
"""Running programs, locking files and printing progress: what every other module of the lab leans on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_started = time.monotonic()
_output_lock = threading.Lock()


class LabError(Exception):
    """Something the user can act on; its text is all that is shown."""


def search_path() -> str:
    """The caller's PATH, with the administrators' directory beside each one for users."""
    directories = os.environ.get("PATH", SYSTEM_PATH).split(":")
    beside = [
        f"{name.removesuffix('/bin')}/sbin" for name in directories if name in ("/bin", "/usr/bin", "/usr/local/bin")
    ]
    return ":".join([*directories, *(name for name in beside if name not in directories)])


def environment(**extra: str) -> dict[str, str]:
    """The caller's environment with administrators' programs on PATH and plain English messages."""
    env = dict(os.environ)
    env["PATH"] = search_path()
    env["LC_ALL"] = "C.UTF-8"
    env.update(extra)
    return env


def run(
    *argv: str | Path,
    check: bool = True,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a failure names the command and the end of what it said.

    With `log`, the output goes to that file instead of being returned.
    """
    words = [str(word) for word in argv]
    shown = " ".join(words)
    try:
        if log is None:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                input=stdin,
                env=env or environment(),
                timeout=timeout,
                check=False,
            )
            said = done.stderr or done.stdout
        else:
            with log.open("a", encoding="utf-8") as sink:
                done = subprocess.run(
                    words,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    text=True,
                    input=stdin,
                    env=env or environment(),
                    timeout=timeout,
                    check=False,
                )
            said = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed (needed for: {shown})") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"no end after {timeout:.0f} s: {shown}") from error
    if check and done.returncode != 0:
        tail = "\n".join(said.strip().splitlines()[-12:])
        where = f" (whole log: {log})" if log else ""
        raise LabError(f"exit status {done.returncode} from: {shown}{where}\n{tail}".rstrip())
    return done


@contextlib.contextmanager
def locked(path: Path, waiting_for: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a file; say so once when somebody else holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {waiting_for or path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock on this file."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def say(text: str) -> None:
    """One line of progress, with the seconds since the start, on stderr (stdout is for results)."""
    with _output_lock:
        print(f"[{time.monotonic() - _started:6.1f}s] {text}", file=sys.stderr, flush=True)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old content or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(mode)
    temporary.replace(path)


def mounts_below(directory: Path) -> list[str]:
    """Mount points at or below a directory, the deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split(" ")[4].encode().decode("unicode_escape")
        if point == str(directory) or point.startswith(f"{directory}/"):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def unmount_below(directory: Path) -> None:
    """Unmount everything at or below a directory, also what is still in use."""
    for point in mounts_below(directory):
        run("umount", "--lazy", point, check=False)


def words_of(text: str, separators: str = ",") -> Sequence[str]:
    """The non-empty words of a list written with commas or blanks."""
    for separator in separators:
        text = text.replace(separator, " ")
    return text.split()
