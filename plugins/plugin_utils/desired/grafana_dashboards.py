# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboards in a Grafana, and the file that tells it of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import ROLES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import settings

ROLE = "grafana_dashboards"
PACKAGE = "grafana"
UNIT = "grafana-server.service"
PROVIDER = "baremetal-gpu.yaml"
FOLDER = "GPU cluster"
_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.-]+)+", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of a host.

    :param params: ``state``, ``directory``, ``provisioning_directory`` and ``install``.
    :param facts: ``provisioned``, whether the directory is there from which Grafana reads its settings;
        ``dashboards``, the paths of those with our identities that are on the host.
    """
    problems = tuple(_problems(params, facts))
    if problems:
        return Plan(problems=problems)
    directory = params["directory"]
    provider = f"{params['provisioning_directory']}/{PROVIDER}"
    dashboards = {f"{directory}/{path.name}": path.read_text(encoding="utf-8") for path in _files()}
    former = [path for path in facts["dashboards"] if _is_in(directory, path) and path not in dashboards]
    # Grafana looks for new dashboards by itself, and reads the file that tells of them when it starts.
    unit = doc.Unit(UNIT, restart_on=[provider])
    if params["state"] == "absent":
        return Plan(doc.Document(files=[*map(doc.Absent, (provider, *dashboards, *former))], units=[unit]))
    return Plan(
        doc.Document(
            packages=[doc.Package(PACKAGE)] if params["install"] else None,
            files=[
                doc.Directory(directory),
                *(doc.File(path, text) for path, text in dashboards.items()),
                *map(doc.Absent, former),
                doc.File(provider, settings.yaml_text(ROLE, _provider(directory))),
            ],
            units=[doc.Unit.running(UNIT, [provider]) if params["install"] else unit],
        )
    )


def _is_in(directory: str, path: Any) -> bool:
    """Whether this, which the host says, is a file of the directory."""
    return isinstance(path, str) and bool(_PATH.fullmatch(path)) and path.rpartition("/")[0] == directory


def _files() -> list[Path]:
    return sorted(Path(ROLES, ROLE, "files").glob("*.json"))


def _provider(directory: str) -> dict[str, Any]:
    row = {
        "name": "baremetal.gpu",
        "folder": FOLDER,
        "folderUid": "baremetal-gpu",
        "type": "file",
        "allowUiUpdates": False,
        "options": {"path": directory},
    }
    return {"apiVersion": 1, "providers": [row]}


def _problems(params: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("directory", "provisioning_directory"):
        if not _PATH.fullmatch(params[name]):
            yield Problem(
                "wrong_setting",
                f"{ROLE}_{name}",
                "it is not an absolute path of letters, digits, dots, dashes and underscores",
                params[name],
                "give a path such as /var/lib/grafana/baremetal-gpu, without a slash at its end",
            )
    if params["directory"] == params["provisioning_directory"]:
        yield Problem(
            "wrong_setting",
            f"{ROLE}_directory",
            "the dashboards and the file that names them must be in two directories",
            params["directory"],
            "give the dashboards a directory of their own",
        )
    if params["state"] == "present" and not (facts["provisioned"] or params["install"]):
        yield Problem(
            "no_grafana",
            f"{ROLE}_provisioning_directory",
            "there is no Grafana that would read the dashboards",
            f"{params['provisioning_directory']} does not exist",
            f"put the host of Grafana into the group grafana_servers, name the directory, or set {ROLE}_install with "
            "a repository that has the "
            f"package {PACKAGE}",
        )
