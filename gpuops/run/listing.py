# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory of a site as Ansible reads it: groups, and variables without their templates filled in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops.run.environment import as_if_called_here
from gpuops.site import Site, SiteError, redactor


@dataclass(frozen=True)
class Listing:
    """:ivar content: what `ansible-inventory --list` says."""

    content: Mapping[str, Any]

    def hosts(self, group: str) -> list[str]:
        return self._members(group, set())

    def of(self, host: str) -> Mapping[str, Any]:
        """The variables of a host."""
        found = ((self.content.get("_meta") or {}).get("hostvars") or {}).get(host)
        return found if isinstance(found, Mapping) else {}

    def _members(self, group: str, seen: set[str]) -> list[str]:
        if group in seen:
            return []
        seen.add(group)
        row = self.content.get(group) or {}
        found = list(row.get("hosts") or [])
        for child in row.get("children") or []:
            found += self._members(child, seen)
        return list(dict.fromkeys(found))


def read(site: Site, words: Sequence[str] = ()) -> Listing:
    """Raises SiteError.

    :param words: further options for Ansible's commands; those of its vault count.
    """
    vault = [word for word in words if word.startswith("--vault-")]
    done = subprocess.run(
        ["ansible-inventory", "-i", str(site.inventory), "--list", *vault],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **as_if_called_here()},
    )
    if done.returncode:
        # Where YAML is broken, Ansible shows the line.
        output = redactor(site, words)(untrusted_text.several_lines(done.stderr).strip())
        raise SiteError(f"the inventory {site.inventory} cannot be read: {output[-2000:]}")
    return Listing(json.loads(done.stdout))
