# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment of Python with exactly the packages of a list, made of wheels that lie on the host.

It is a link to a directory that is named after the list. A new list makes a new directory beside the old one, and then
the link leads there: so what runs from the old one goes on, and an environment is whole or is not there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

PYTHON = "/usr/bin/python3"
PIP_S, TELL_S = 1200.0, 60.0
# What every environment has beside its list.
OWN = {"pip", "setuptools"}
# Of site-packages: Python looks into the directories that it names, too.
PATHS = "baremetal-gpu.pth"
_INFO = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9.+!]+)\.dist-info")


@dataclass(frozen=True)
class Environment:
    """`packages` is name -> version. `directory` is empty where the link leads nowhere."""

    directory: str = ""
    python: str = ""
    packages: Mapping[str, str] | None = None
    paths: Sequence[str] = ()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def current(link: str) -> Environment:
    """What is there."""
    directory = os.path.realpath(link) if os.path.islink(link) else ""
    if not os.path.isdir(directory):
        return Environment()
    version = re.search(r"^version = (\d+\.\d+)", read_text(os.path.join(directory, "pyvenv.cfg")), re.MULTILINE)
    python = version[1] if version else ""
    place = os.path.join(directory, "lib", f"python{python}", "site-packages")
    try:
        names = os.listdir(place)
    except OSError:
        names = []
    rows = (_INFO.fullmatch(name) for name in names)
    found = {normal(row[1]): row[2] for row in rows if row}
    packages = {name: version for name, version in found.items() if name not in OWN}
    return Environment(directory, python, packages, read_text(os.path.join(place, PATHS)).splitlines())


def system_python(run: Run = host_run.run) -> str:
    """Major and minor version of the host's Python. Raises CallFailed."""
    status, out, error = run([PYTHON, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], None, TELL_S)
    if status:
        raise CallFailed(f"{PYTHON}: {one_line(error, 200)}", "install python3 and python3-venv")
    return out.strip()


def differences(found: Environment, wanted: Mapping[str, str], python: str, paths: Sequence[str] = ()) -> list[str]:
    """Why an environment is not as it should be, a line for each reason."""
    if not found.directory:
        return ["it is not there"]
    if found.python != python:
        return [f"it is of Python {found.python or 'unknown'}, and the host has {python}"]
    has = found.packages or {}
    lines = [f"{name} {version} is not installed" for name, version in wanted.items() if name not in has]
    lines += [
        f"{name} is {has[name]}, not {version}" for name, version in wanted.items() if has.get(name, version) != version
    ]
    lines += [f"{name} {version} is not on the list" for name, version in has.items() if name not in wanted]
    lines += [f"it does not look into {path}" for path in paths if path not in found.paths]
    return sorted(lines + [f"it looks into {path}" for path in found.paths if path not in paths])


def place(link: str, lock: str, python: str) -> str:
    """The directory that a list makes."""
    return f"{link}.d/{hashlib.sha256(f'{python}{lock}'.encode()).hexdigest()[:16]}"


def make(link: str, lock: str, wheels: str, python: str, run: Run = host_run.run, paths: Sequence[str] = ()) -> None:
    """Make the environment and lead the link there. Raises CallFailed; then the link leads where it did.

    :param lock: path of the list with hashes, as pip reads it.
    :param wheels: the directory with the wheels. Nothing is asked of a network.
    :param paths: directories into which its Python looks beside its packages. They need not be there yet.
    """
    before = os.path.realpath(link) if os.path.islink(link) else ""
    target = place(link, read_text(lock), python)
    if target == before:
        # Somebody has changed what is in it, and something may run from it.
        target += "-again"
    # Of a run that was cut.
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    _call(run, [PYTHON, "-I", "-m", "venv", target])
    options = ["--no-index", "--no-deps", "--require-hashes", "--no-cache-dir", "--disable-pip-version-check"]
    pip = [f"{target}/bin/python", "-I", "-m", "pip", "install", "--quiet", *options]
    _call(run, [*pip, f"--find-links={wheels}", f"--requirement={lock}"])
    if paths:
        with open(f"{target}/lib/python{python}/site-packages/{PATHS}", "w", encoding="utf-8") as file:
            file.writelines(f"{path}\n" for path in paths)
    if os.path.lexists(f"{link}.new"):
        os.unlink(f"{link}.new")
    os.symlink(target, f"{link}.new")
    os.replace(f"{link}.new", link)
    _remove_others(link, {target, before})


def _call(run: Run, argv: list[str]) -> None:
    status, out, error = run(argv, None, PIP_S)
    if status:
        why = one_line(error or out, 400)
        raise CallFailed(
            f"{' '.join(argv[:5])} ended with {status}: {why}", "see that every wheel of the list is there"
        )


def _remove_others(link: str, kept: Iterable[str]) -> None:
    """What still runs may be of the one before; of older ones nothing does."""
    for name in os.listdir(f"{link}.d"):
        path = os.path.join(f"{link}.d", name)
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def remove(link: str) -> None:
    if os.path.islink(link):
        os.unlink(link)
    shutil.rmtree(f"{link}.d", ignore_errors=True)
