# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a cluster by its library and by the program `ceph`: what each answers, as JSON lines.

Standard input has one question a line, [options of Ceph, words]. It runs on a machine of a cluster, beside the modules
of the collection that do the asking.
"""

from __future__ import annotations

import json
import sys

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def asked(ceph: Ceph, words: list[str]) -> list[object]:
    try:
        return [0, ceph.json(*words)]
    except CephError as wrong:
        return [wrong.rc, wrong.message, wrong.remedy]


assert ceph_library.HERE, "the system's Python has no library of Ceph"
for line in sys.stdin:
    options, words = json.loads(line)
    library = Ceph(lambda *_argv: (99, "", "the program was asked"), library=ceph_library.connect, **options)
    print(json.dumps([asked(library, words), asked(Ceph(host_run.run, **options), words)]), flush=True)
