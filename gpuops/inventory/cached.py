# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m gpuops.inventory.cached``: host names on standard input, their facts from the fact cache on output.

A process of its own, because Ansible finds plugins of collections only where it was set up before anything of a
collection was imported. The output is a line of JSON per host: [host, facts, problem].
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    from ansible.errors import AnsibleError
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    from ansible_collections.baremetal.gpu.plugins.plugin_utils import fact_cache

    try:
        for row in fact_cache.read(sys.stdin.read().splitlines()):
            print(json.dumps(row))
    except AnsibleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
