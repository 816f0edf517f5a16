# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts modules of module_utils into one Python file that a host runs with nothing installed.

Where they need pynvml, it is in the file too. The sources stand in it as comments, line by line, so that a diff of two
versions reads like a diff of sources.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.nvml import unpack
from ansible_collections.baremetal.gpu.plugins.plugin_utils.nvml_binding import packed_source

PACKAGE = "ansible_collections.baremetal.gpu.plugins.module_utils"
MODULES = Path(__file__).resolve().parents[1] / "module_utils"
# Parsing all of them would take a tenth of a second for each host. The expression does not ask for the beginning of a
# line, which would take three times as long.
_IMPORT = re.compile(rf"from {re.escape(PACKAGE)}((?:\.\w+)*) import (?:\(([^)]*)\)|(.*))")
# A bundle would lack what is imported in these ways.
_UNFOLLOWED_WORDS = ("from .", f"import {PACKAGE}")
_UNFOLLOWED = re.compile(rf"^[ \t]*(?:from \.|import {re.escape(PACKAGE)}).*", re.MULTILINE)

HEADER = '''#!/usr/bin/python3 {options}
# Made by baremetal.gpu from its modules, with parts of NVIDIA's pynvml where they need it; changes made here are lost.
"""One file with everything: the modules stand below as comments and are loaded from there."""

import sys

if sys.version_info < (3, 9):
    sys.exit("{entry}: needs Python 3.9 or newer, this is " + sys.version.split()[0])

import importlib.machinery
import importlib.util
import marshal
import os

MODULES = (
{modules}
)
COMPILED = "/run/baremetal-gpu-compiled"


class Bundle:
    """Finds and loads the modules of this file, and the packages that they are in.

    What Python has made of them is kept until the next boot, so that a program that starts often need not be compiled
    at every start. It is used for this Python and for a file with this content alone, and only if root wrote it.

    Without the classes of importlib.abc, which bring pathlib, tempfile and zipfile along.
    """

    def __init__(self, path):
        with open(path, "rb") as file:
            content = file.read()
        self.path, self.is_new = path, False
        self.kept = os.path.join(COMPILED, os.path.basename(path))
        self.key = importlib.util.MAGIC_NUMBER + importlib.util.source_hash(content)
        self.compiled = {{}}
        try:
            with open(self.kept, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid == 0 and not status.st_mode & 0o022 and file.read(len(self.key)) == self.key:
                    self.compiled = marshal.load(file)
        except (OSError, EOFError, ValueError, TypeError):
            pass

    def keep(self):
        """Root's work, of an installed program."""
        if not self.is_new or os.geteuid() != 0 or not self.path.startswith("/usr/"):
            return
        draft = self.kept + "." + str(os.getpid())
        try:
            os.makedirs(COMPILED, 0o755, exist_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                file.write(self.key + marshal.dumps(self.compiled))
            os.replace(draft, self.kept)
        except OSError:
            pass
        self.is_new = False

    def find_spec(self, name, path=None, target=None):
        package = any(known.startswith(name + ".") for known in MODULES)
        if name not in MODULES and not package:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self.path, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        if name not in MODULES:
            return
        if name not in self.compiled:
            where = "<" + name.rpartition(".")[2] + " in " + self.path + ">"
            self.compiled[name] = marshal.dumps(compile(self.get_source(name), where, "exec"))
            self.is_new = True
        exec(marshal.loads(self.compiled[name]), module.__dict__)

    def get_source(self, name):
        with open(self.path, encoding="utf-8") as file:
            text = file.read().partition("\\n#@ " + name + "\\n")[2].partition("\\n#@ ")[0]
        return "".join(line[2:] + "\\n" for line in text.rstrip("\\n").split("\\n"))


BUNDLE = Bundle(__file__)
sys.meta_path.insert(0, BUNDLE)

if __name__ == "__main__":
    import {package}.{entry} as entry

    # Before it runs, because a daemon does not end, and after it for what it has imported where it needs it.
    BUNDLE.keep()
    try:
        sys.exit(entry.main())
    finally:
        BUNDLE.keep()

'''


def _path(name: str) -> str:
    """The path without a suffix of a module or package of module_utils, by its name with dots (`gpu.pci`)."""
    return os.path.join(MODULES, *name.split("."))


def needed(entry: str) -> dict[str, str]:
    """The sources of a module of module_utils and of those that it imports, directly or not, sorted by their names.

    :raises LookupError: an import cannot be followed.
    """
    sources: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        with open(f"{_path(name)}.py", encoding="utf-8") as file:
            sources[name] = file.read()
        try:
            waiting += imported(sources[name])
        except LookupError as failure:
            raise LookupError(f"{entry} cannot be bundled: {name} {failure}") from None
    return dict(sorted(sources.items()))


def imported(source: str) -> list[str]:
    """The modules of module_utils that a source imports itself. Raises LookupError for one that it cannot follow."""
    line = _UNFOLLOWED.search(source) if any(words in source for words in _UNFOLLOWED_WORDS) else None
    if line:
        raise LookupError(f"has {line[0].strip()!r}; write from {PACKAGE}.… import … instead")
    found = []
    for dotted, inside, rest in _IMPORT.findall(source):
        where = dotted.lstrip(".")
        if where and not os.path.isdir(_path(where)):
            found.append(where)
            continue
        names = [part.split()[0] for part in re.sub(r"#.*", "", inside or rest).split(",") if part.strip()]
        found += [f"{where}.{name}".lstrip(".") for name in names]
    for name in found:
        if not os.path.isfile(f"{_path(name)}.py"):
            raise LookupError(f"imports {name}, which is not a module of module_utils")
    return found


def bundle(entry: str, site: bool = True) -> str:
    """The file that runs `main()` of a module of module_utils. Raises LookupError where a part of it is missing.

    :param site: whether it finds packages that are installed on the host, which Python first has to look for.
    """
    sources = {f"{PACKAGE}.{name}": source for name, source in needed(entry).items()}
    if f"{PACKAGE}.gpu.nvml" in sources:
        binding = unpack(packed_source())
        if binding is None:
            raise LookupError(
                "the controller's Python has no pynvml to take along: install nvidia-ml-py in Ansible's environment"
            )
        sources["pynvml"] = binding
    modules = "\n".join(f'    "{name}",' for name in sources)
    parts = [HEADER.format(options="-I" if site else "-IS", entry=entry, package=PACKAGE, modules=modules)]
    for name, source in sources.items():
        lines = "\n#|".join(source.splitlines())
        parts.append(f"#@ {name}\n#|{lines}\n")
    return "".join(parts)
