# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench.fill_fact_cache HOSTS``: the made-up fleet's facts into the fact cache of the environment."""

from __future__ import annotations

import sys


def main(hosts: int) -> None:
    from ansible import constants
    from ansible.plugins.loader import cache_loader, init_plugin_loader

    init_plugin_loader()
    from tests.bench import made_up_fleet

    cache = cache_loader.get(constants.CACHE_PLUGIN)
    for number in range(hosts):
        cache.set(made_up_fleet.host_name(number), {"gpu": made_up_fleet.facts_of(number)})


if __name__ == "__main__":
    main(int(sys.argv[1]))
    print('{"cpu_s": 0, "memory_mib": 0, "outcome": "filled"}')
