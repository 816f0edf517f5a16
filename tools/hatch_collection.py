# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the Ansible collection into the wheel.

A plain force-include would do, were it not for editable installs: hatchling copies forced files there too, and the
development set-up links ansible_collections/baremetal/gpu to the checkout, so pip would copy the checkout onto
itself and remove the checkout's files on uninstall. This hook therefore adds the collection to real wheels only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COLLECTION = (
    "CHANGELOG.rst",
    "LICENSE",
    "README.md",
    "changelogs/changelog.yaml",
    "changelogs/config.yaml",
    "galaxy.yml",
    "images",
    "inventories/example",
    "meta",
    "playbooks",
    "plugins",
    "portal",
    "roles",
)


class CollectionHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        included = build_data.setdefault("force_include", {})
        for name in COLLECTION:
            if not (Path(self.root) / name).exists():
                raise FileNotFoundError(f"the wheel needs {name}, which this source tree lacks")
            included[name] = f"ansible_collections/baremetal/gpu/{name}"
