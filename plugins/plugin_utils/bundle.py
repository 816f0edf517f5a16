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

import importlib.machinery
import sys

if sys.version_info < (3, 9):
    sys.exit("{entry}: needs Python 3.9 or newer, this is " + sys.version.split()[0])


class Bundle:
    """Finds and loads the modules of this file, and the packages that they are in.

    Without the classes of importlib.abc, which bring pathlib, tempfile and zipfile along.
    """

    def __init__(self, path):
        self.path, self.sources, lines = path, {{}}, []
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("#@ "):
                    lines = self.sources.setdefault(line[3:].strip(), [])
                elif line.startswith("#|"):
                    lines.append(line[2:])

    def find_spec(self, name, path=None, target=None):
        package = any(known.startswith(name + ".") for known in self.sources)
        if name not in self.sources and not package:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self.path, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)

    def get_source(self, name):
        return "".join(self.sources.get(name, ()))

    def get_code(self, name):
        return compile(self.get_source(name), "<" + name.rpartition(".")[2] + " in " + self.path + ">", "exec")


sys.meta_path.insert(0, Bundle(__file__))

if __name__ == "__main__":
    import {package}.{entry} as entry

    sys.exit(entry.main())

'''


def _path(name: str) -> str:
    """The path without a suffix of a module or package of module_utils, by its name with dots (`gpu.pci`)."""
    return os.path.join(MODULES, *name.split("."))


def needed(*entries: str) -> dict[str, str]:
    """The sources of modules of module_utils and of those that they import, directly or not, sorted by their names.

    :raises LookupError: an import cannot be followed.
    """
    sources: dict[str, str] = {}
    waiting = [*entries]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        with open(f"{_path(name)}.py", encoding="utf-8") as file:
            sources[name] = file.read()
        try:
            waiting += imported(sources[name])
        except LookupError as failure:
            raise LookupError(f"{', '.join(entries)} cannot be bundled: {name} {failure}") from None
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
    parts = [HEADER.format(options="-I" if site else "-IS", entry=entry, package=PACKAGE)]
    for name, source in sources.items():
        lines = "\n#|".join(source.splitlines())
        parts.append(f"#@ {name}\n#|{lines}\n" if lines else f"#@ {name}\n")
    return "".join(parts)
