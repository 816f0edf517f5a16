# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs for people who compute, and the module files of what is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.system.user_software import DIRECTORY, MARK
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import wrong

ROLE = "user_software"
NAME = re.compile(r"[a-z0-9][a-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)?", re.ASCII)
PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+(:[a-z0-9]+)?", re.ASCII)
PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.@+-]*)+", re.ASCII)
PROOF = "user_software"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables without their prefix.
    :param facts: ``os_family``; ``policy``, the lines of `apt-cache policy` for the packages that a release may not
        have; ``software``, the answer of user_software_info, empty before.
    :returns: The document has repositories and packages. The parts are `modules`, the document of the module files;
        `asked`, packages whose presence in the release matters; and `loaded`, the names of the modules.
    """
    problems = tuple(_problems(params, facts))
    rows = [row for row in (facts["software"] or {}).get("modules", ()) if NAME.fullmatch(row["name"])]
    parts = {
        "modules": {} if problems else _modules(rows, (facts["software"] or {}).get("written", ())).plain,
        "asked": [*params["optional_packages"], *params["vendor_packages"]],
        "loaded": [row["name"] for row in rows],
    }
    if problems:
        return Plan(problems=problems, parts=parts)
    there = available(facts["policy"])
    optional = [name for name in params["optional_packages"] if name in there]
    names = dict.fromkeys([*params["packages"], *optional, *params["vendor_packages"]])
    return Plan(doc.Document(repositories=params["repositories"], packages=[*map(doc.Package, names)]), parts=parts)


def available(policy: Sequence[str]) -> set[str]:
    """Packages with a candidate, from the lines of `apt-cache policy`."""
    found, name = set(), ""
    for line in policy:
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif line.strip().startswith("Candidate:") and not line.endswith("(none)"):
            found.add(name)
    return found


def _problems(params: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Problem]:
    if facts["os_family"] != "Debian":
        cause = "the role knows packages and modules of Debian and Ubuntu alone"
        remedy = "take the host out of the group user_software_hosts"
        yield Problem("unknown_system", ROLE, cause, str(facts["os_family"]), remedy)
    for kind in ("packages", "optional_packages", "vendor_packages"):
        for name in params[kind]:
            if not PACKAGE.fullmatch(str(name)):
                yield wrong(f"user_software_{kind}", f"{name!r} is not the name of a package", name, "correct it")
    for name, path in params["environments"].items():
        if not NAME.fullmatch(str(name)) or not PATH.fullmatch(str(path)):
            cause = f"{name!r} in {path!r} is not the name of a module with a directory"
            remedy = "write them as pytorch/2.6: /opt/environments/pytorch"
            yield wrong("user_software_environments", cause, name, remedy)
    missing = sorted(set(params["vendor_packages"]) - available(facts["policy"]))
    if missing and not params["repositories"]:
        cause = f"no repository of the host has {', '.join(missing)}"
        remedy = "name one in user_software_repositories, or take NVIDIA's for the toolkits (cuda_method: nvidia_repo)"
        yield wrong("user_software_vendor_packages", cause, ", ".join(missing), remedy)


def _modules(rows: Sequence[Mapping[str, Any]], written: Sequence[str]) -> doc.Document:
    """The module files of what is there; those of what is gone are removed."""
    texts = {}
    for row in rows:
        # A name without a version is a file beside the directories of the others.
        texts[f"{DIRECTORY}/{row['name']}.lua"] = render(ROLE, "module.lua.j2", mark=MARK, **row)
        if row["default"]:
            family = row["name"].partition("/")[0]
            texts[f"{DIRECTORY}/{family}/.modulerc.lua"] = render(ROLE, "modulerc.lua.j2", mark=MARK, name=row["name"])
    directories = sorted({DIRECTORY, *(path.rpartition("/")[0] for path in texts)})
    return doc.Document(
        files=[
            *(doc.Directory(path) for path in directories if texts),
            *(doc.File(path, text) for path, text in texts.items()),
            *(doc.Absent(path) for path in written if path not in texts),
        ],
        proofs=[doc.Proof(PROOF, "that each module can be loaded in a login shell")] if texts else None,
    )
