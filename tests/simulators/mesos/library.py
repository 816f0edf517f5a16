# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""libmesos, which the real programs are linked with, and so are these of an archive: the loader of the host finds it,
or ends them.

An archive has it in lib/, with a library beside it that it needs and no host has. Whether programs and executors find
both is up to the loader: to ld.so.conf.d, or to a variable that reaches them. Those of an archive that was packed with
--origin have an rpath. A checkout has neither, and needs none.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

NAME, BUNDLED = "libmesos.so.0", "libbundled.so.7"
_HERE = Path(__file__).resolve().parent
# Of an archive: PREFIX/lib/stand-in/library.py.
_EXECUTOR = _HERE.parents[1] / "libexec/mesos/mesos-executor"
_SET_NAME = 15


def needed(environment: dict[str, str]) -> None:
    """Raises OSError where the executor of an archive does not start with this environment."""
    if not _EXECUTOR.exists():
        return
    tried = subprocess.run([_EXECUTOR], env=environment, capture_output=True, text=True)
    if tried.returncode:
        raise OSError(tried.stderr.strip() or f"{_EXECUTOR} ended with {tried.returncode}")


def named() -> None:
    """Gives the process the name of its program, which it lost when it became Python."""
    ctypes.CDLL(None).prctl(_SET_NAME, Path(sys.argv[0]).name.encode(), 0, 0, 0)


# --- for who packs an archive ----------------------------------------------------------------------------------------


def elf(place: Path, rpath: bool) -> dict[str, bytes]:
    """The libraries by their names, and `program` and `helper`, compiled in a directory.

    :param rpath: whether each finds the others by itself, in bin, sbin, lib and libexec/mesos of one prefix.
    """
    # Nothing of a C library, and none of its calls in the place of a loop.
    words = ["-nostdlib", "-ffreestanding", "-fPIC", "-O1", "-fno-stack-protector"]
    words += ["-fno-tree-loop-distribute-patterns", "-Wl,--build-id=none", "-Wl,-z,noexecstack"]
    words += ["-Wl,-rpath,$ORIGIN:$ORIGIN/../lib:$ORIGIN/../../lib"] if rpath else []

    def compiled(name: str, source: str | Path, *more: str) -> bytes:
        given = ["-x", "c", "-"] if isinstance(source, str) else [str(source)]
        text = source if isinstance(source, str) else None
        argv = ["cc", *words, "-o", str(place / name), *given, "-x", "none", *more]
        subprocess.run(argv, input=text, text=True, check=True)
        return (place / name).read_bytes()

    library = ["-shared", f"-L{place}"]
    bundled = compiled(BUNDLED, "const int bundled = 1;", *library, f"-Wl,-soname,{BUNDLED}")
    source = "extern const int bundled; const int *const needed = &bundled; const int libmesos = 1;"
    mesos = compiled(NAME, source, *library, f"-Wl,-soname,{NAME}", f"-l:{BUNDLED}")
    found = {BUNDLED: bundled, NAME: mesos}
    for name, more in (("program", ()), ("helper", ("-DHELPER",))):
        linked = ("-pie", f"-L{place}", f"-l:{NAME}", "-Wl,--allow-shlib-undefined", *more)
        found[name] = compiled(name, _HERE / "start.c", *linked)
    return found
