# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is installed in an environment of Python or conda, as a lock file, and such an environment from that file again.

The lock is a file of pip's requirements, or conda's list of exact packages, with what pip has installed beside them as
comments that `restore` reads. Nothing of the environment is run to read it.
"""

from __future__ import annotations

import argparse
import email.parser
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

NAME = "gpu-environment"
PACKAGES_AT_MOST, BYTES_AT_MOST = 5000, 1 << 20
HEAD, CONDA, PIP = "# gpu-environment 1", "@EXPLICIT", "# pip: "
SYSTEM = " with the packages of the system"
PYTHON = re.compile(rf"# python (3\.[0-9]{{1,3}})({SYSTEM})?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,200}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]{1,100}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
# pip puts variables of whoever runs it in the place of ${NAME}, and reads a line on after a backslash.
_URL = re.compile(r"[a-z+]{2,20}://[!#%-\[\]-~]{1,1000}", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)
# The lines of a lock, as they are written here: anything else may be an option, for which pip also takes one behind
# blanks, or behind a package.
_EXACT = re.compile(rf"{_URL.pattern}#{_MD5.pattern}", re.ASCII)
_PINNED = re.compile(
    rf"{_PACKAGE.pattern}(?:=={_VERSION.pattern}| @ (?:https|git\+[a-z+]{{2,20}}|hg\+[a-z+]{{2,20}})://"
    r"[!#%-\[\]-~]{1,1100})",
    re.ASCII,
)


class Lock(NamedTuple):
    """:ivar text: of the file. ``left_out``: packages that it cannot have, with the reason, for people."""

    text: str
    packages: int
    left_out: list[str]


def lock(prefix: str, moment: str) -> Lock:
    """The lock of the environment in a directory. Raises Refused.

    :param moment: when it is made, for the file's head.
    """
    conda, venv, system = os.path.join(prefix, "conda-meta"), os.path.join(prefix, "pyvenv.cfg"), ""
    if os.path.isdir(conda):
        lines, left_out = _conda(conda)
        python, beside = _python(prefix), [row for row in _installed(prefix) if row.by_pip]
        exact, more = _pinned(beside)
        lines, left_out = [CONDA, *lines, *(f"{PIP}{line}" for line in exact)], left_out + more
        count = len(lines) - 1
    elif os.path.isfile(venv):
        python = _python(prefix)
        if re.search(r"^include-system-site-packages *= *true$", _read(venv), re.MULTILINE):
            system = SYSTEM
        lines, left_out = _pinned(_installed(prefix))
        count = len(lines)
    else:
        raise Refused(
            f"{one_line(prefix, 200)} is not an environment: it has neither pyvenv.cfg nor conda-meta",
            "name the directory that `python3 -m venv` or `conda create --prefix` has made",
            code="no_environment",
        )
    head = [HEAD, f"# of {one_line(prefix, 200)} at {moment}", f"# python {python}{system}"]
    return Lock("".join(f"{line}\n" for line in [*head, *lines]), count, left_out)


class _Row(NamedTuple):
    name: str
    version: str
    by_pip: bool
    origin: Mapping[str, Any]


def _python(prefix: str) -> str:
    """The release of Python, such as 3.13, from the name of its directory."""
    found = [name[6:] for name in _names(os.path.join(prefix, "lib")) if re.fullmatch(r"python3\.[0-9]{1,3}", name)]
    if len(found) != 1:
        raise Refused(
            f"{one_line(prefix, 200)} has {len(found)} directories lib/python3.*, and an environment has one",
            "name another environment, or make this one again",
            code="no_environment",
        )
    return found[0]


def _installed(prefix: str) -> Iterator[_Row]:
    place = os.path.join(prefix, "lib", f"python{_python(prefix)}", "site-packages")
    names = [name for name in _names(place) if name.endswith(".dist-info")]
    if len(names) > PACKAGES_AT_MOST:
        raise Refused(f"{place} has {len(names)} packages", f"keep {PACKAGES_AT_MOST} at most")
    for name in names:
        at = os.path.join(place, name)
        told = email.parser.HeaderParser().parsestr(_read(os.path.join(at, "METADATA")))
        origin = _object(_read(os.path.join(at, "direct_url.json")))
        by_pip = _read(os.path.join(at, "INSTALLER")).strip() != "conda"
        yield _Row(str(told.get("Name") or ""), str(told.get("Version") or ""), by_pip, origin)


def _pinned(rows: Iterator[_Row] | Sequence[_Row]) -> tuple[list[str], list[str]]:
    """Lines of requirements, and what cannot be one."""
    lines, left_out = [], []
    for row in rows:
        if not _PACKAGE.fullmatch(row.name) or not _VERSION.fullmatch(row.version):
            left_out.append(f"{one_line(row.name, 60) or 'a package'}: its name or version cannot be read")
            continue
        url = str(row.origin.get("url") or "")
        commit = str((row.origin.get("vcs_info") or {}).get("commit_id") or "")
        system = str((row.origin.get("vcs_info") or {}).get("vcs") or "")
        if not row.origin:
            lines.append(f"{row.name}=={row.version}")
        elif system in ("git", "hg") and _COMMIT.fullmatch(commit) and _URL.fullmatch(url):
            lines.append(f"{row.name} @ {system}+{url}@{commit}")
        elif url.startswith("https://") and _URL.fullmatch(url):
            lines.append(f"{row.name} @ {url}")
        else:
            left_out.append(f"{row.name}: it was installed from {one_line(url, 200) or 'a place of its own'}")
    return sorted(lines, key=str.lower), left_out


def _conda(directory: str) -> tuple[list[str], list[str]]:
    lines, left_out = [], []
    for name in [name for name in _names(directory) if name.endswith(".json")][:PACKAGES_AT_MOST]:
        told = _object(_read(os.path.join(directory, name), 16 * BYTES_AT_MOST))
        url, md5 = str(told.get("url") or ""), str(told.get("md5") or "")
        if _URL.fullmatch(url) and _MD5.fullmatch(md5):
            lines.append(f"{url}#{md5}")
        else:
            left_out.append(f"{one_line(name[:-5], 100)}: conda does not say where it is from")
    return sorted(lines), left_out


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _read(path: str, at_most: int = BYTES_AT_MOST) -> str:
    """A file of the environment; empty where there is none, or it is too large to be what it is called."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(at_most + 1)
    except OSError:
        return ""
    return text if len(text) <= at_most else ""


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- again -----------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a lock asks for. ``python`` is such as 3.13; ``system``: the packages of the system are seen, too."""

    python: str
    system: bool
    conda: list[str]
    pip: list[str]


def read(path: str) -> Wanted:
    """A lock. Raises Refused for a file that is none, and for a line that is no package."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(BYTES_AT_MOST + 1)
    except (OSError, UnicodeDecodeError) as why:
        raise Refused(f"{path} cannot be read: {why}", f"give a file that `{NAME} save` has written") from None
    lines = text.splitlines()
    python = PYTHON.fullmatch(lines[2]) if len(lines) > 2 else None
    if len(text) > BYTES_AT_MOST or python is None or lines[0] != HEAD:
        raise Refused(f"{path} is not the lock of an environment", f"give a file that `{NAME} save` has written")
    rest = lines[3:]
    if CONDA in rest:
        exact = [line for line in rest if line != CONDA and not line.startswith("#")]
        beside = [line[len(PIP) :] for line in rest if line.startswith(PIP)]
    else:
        exact, beside = [], [line for line in rest if not line.startswith("#")]
    for form, lines_of in ((_EXACT, exact), (_PINNED, beside)):
        for line in lines_of:
            if not form.fullmatch(line):
                raise Refused(f"{path} has the line {one_line(line, 100)!r}", "remove it: a lock has packages alone")
    return Wanted(python[1], bool(python[2]), exact, beside)


def commands(wanted: Wanted, prefix: str, here: str, work: str) -> list[list[str]]:
    """What makes the environment again, in order; `work` is a directory with the files exact.txt and beside.txt."""
    if wanted.conda:
        found = [["conda", "create", "--yes", "--prefix", prefix, "--file", os.path.join(work, "exact.txt")]]
    elif wanted.python != here:
        raise Refused(
            f"the lock is of Python {wanted.python}, and this host has {here}",
            f"start a session on a node with Python {wanted.python}, or install the packages without their versions",
            code="other_python",
        )
    else:
        found = [[sys.executable, "-m", "venv", *(["--system-site-packages"] if wanted.system else []), prefix]]
    if wanted.pip:
        pip = [os.path.join(prefix, "bin", "python"), "-m", "pip", "install", "--no-deps", "--requirement"]
        found.append([*pip, os.path.join(work, "beside.txt")])
    return found


def save(prefix: str, target: str) -> Lock:
    """Write the lock of an environment. A file that is there is replaced only if it is a lock. Raises Refused."""
    found = lock(prefix, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    try:
        if os.path.lexists(target):
            _must_be_lock(target)
        os.makedirs(os.path.dirname(target) or ".", mode=0o755, exist_ok=True)
        host_files.write(target, found.text)
    except OSError as why:
        remedy = "free space in your home, or name another file"
        raise Refused(f"{target} cannot be written: {why.strerror or why}", remedy) from why
    return found


def _must_be_lock(path: str) -> None:
    try:
        read(path)
    except Refused as why:
        raise Refused(why.problem.cause, "move it away, or give another name") from None


def restore(path: str, prefix: str) -> None:
    """Make the environment of a lock in a new directory. Raises Refused; what a cut has left is to be removed first."""
    wanted = read(path)
    if os.path.lexists(prefix):
        raise Refused(f"{prefix} is there already", "name a new directory, or remove that one")
    work = f"{os.path.abspath(prefix)}.lock.d"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    steps = commands(wanted, prefix, here, work)
    os.makedirs(work, exist_ok=True)
    host_files.write(os.path.join(work, "exact.txt"), "".join(f"{line}\n" for line in [CONDA, *wanted.conda]))
    host_files.write(os.path.join(work, "beside.txt"), "".join(f"{line}\n" for line in wanted.pip))
    for argv in steps:
        try:
            status = subprocess.run(argv, check=False).returncode
        except OSError as why:
            raise Refused(f"{argv[0]} cannot be started: {why.strerror}", "load it first, or install it") from why
        if status:
            raise Refused(f"{' '.join(argv[:4])} … ended with {status}", f"read what it said, and remove {prefix}")
    host_files.remove(work)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Keep an environment as a lock file, and make it again.")
    orders = parser.add_subparsers(dest="order", required=True)
    order = orders.add_parser("save", help="write what is installed into a file")
    order.add_argument("prefix", metavar="ENVIRONMENT", help="directory of venv or conda")
    order.add_argument("lock", metavar="LOCK", help="the file")
    order = orders.add_parser("restore", help="make an environment of such a file")
    order.add_argument("lock", metavar="LOCK")
    order.add_argument("prefix", metavar="ENVIRONMENT", help="a new directory")
    asked = parser.parse_args(words)
    try:
        if asked.order == "save":
            found = save(asked.prefix, asked.lock)
            for line in found.left_out:
                print(f"left out: {line}")
            print(f"{asked.lock} has {found.packages} packages of {asked.prefix}")
        else:
            restore(asked.lock, asked.prefix)
            print(f"{asked.prefix} is there")
    except Refused as why:
        sys.stderr.write(f"{why}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
