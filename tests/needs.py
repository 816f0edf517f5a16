# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests need of a machine beside what tools/setup and the lab bring: `python -m tests.needs [--full]`
installs it.

tests/run does that before it starts, so that no test is skipped for want of a package of Debian's.
"""

from __future__ import annotations

import os
import sys

from gpuops.fetch import debian
from tests import debian_programs, portal_programs
from tests.lab.machines import needs
from tests.lab.machines.system import LabError

# For ZooKeeper's server (tests/local_zookeeper.py), the manual page, certificates, repositories that are signed,
# images, and the mirror of a site without a way out.
PROGRAMS = {
    "java": "default-jre-headless",
    "groff": "groff-base",
    "openssl": "openssl",
    "gpg": "gnupg",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "skopeo": "skopeo",
    **debian.TOOLS,
}
# For the slow tests alone.
SLOW_PROGRAMS = {"configurable-http-proxy": "node-configurable-http-proxy"}


def main(words: list[str]) -> int:
    """The exit status. Who is not root gets no package, and tests that skip and say why.

    :param words: --full for the slow tests too.
    """
    is_full = "--full" in words
    faults = [debian_programs.fetch(), portal_programs.fetch() if is_full else ""]
    for fault in filter(None, faults):
        sys.stderr.write(f"tests: without them some are skipped: {fault}\n")
    gaps = needs.absent({**PROGRAMS, **(SLOW_PROGRAMS if is_full and not os.environ.get("GPUOPS_PROXY") else {})})
    if not gaps:
        return 0
    if os.geteuid() != 0:
        packages = " ".join(sorted(gaps.values()))
        sys.stderr.write(
            f"tests: without {', '.join(sorted(gaps))} some are skipped; as root: apt-get install {packages}\n"
        )
        return 0
    try:
        needs.install("make test", gaps)
    except LabError as why:
        sys.stderr.write(f"tests: {why}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
