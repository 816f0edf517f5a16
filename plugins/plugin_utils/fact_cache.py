# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of many hosts' GPUs from Ansible's fact cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.plugins.loader import cache_loader

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet

# A cache plugin keeps what it has read, and that is all facts of a host, not only those of its GPUs. So a plugin
# reads this many hosts and is then thrown away.
HOSTS_PER_PLUGIN = 100

REMEDY = (
    "set `fact_caching = jsonfile` and `fact_caching_connection` to a directory in ansible.cfg, or write a snapshot "
    "with `gpuops inventory` and name it as `snapshot`"
)


def _plugin(**options: Any) -> Any:
    """Raises AnsibleError."""
    found = cache_loader.get(C.CACHE_PLUGIN, **options)
    if not found._persistent:
        raise AnsibleError(
            f"fact_caching is {C.CACHE_PLUGIN!r}, which keeps no facts from one run to the next; {REMEDY}"
        )
    return found


def hosts() -> list[str]:
    """Every host that the cache has facts of. Raises AnsibleError."""
    try:
        return list(_plugin().keys())
    except TypeError:
        # Ansible's file caches can only list what has a prefix, be it an empty one (ansible-core 2.19).
        return list(_plugin(_prefix="").keys())


def read(names: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    """(host, facts of its GPUs, problem) for every host that the cache has such facts of, or has broken ones of.

    Raises AnsibleError where there is no cache.
    """
    plugin = _plugin()
    for number, host in enumerate(names, 1):
        if number % HOSTS_PER_PLUGIN == 0:
            plugin = _plugin()
        try:
            found = fleet.facts_of(plugin.get(host))
        except KeyError:
            continue
        except (AnsibleError, ValueError, TypeError) as error:
            yield host, None, str(error)
            continue
        if found is not None:
            yield host, found, ""
