# SPDX-License-Identifier: GPL-3.0-or-later
"""What is in an image, as CycloneDX: the packages of Debian and of Python. Runs inside the image while it is built."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from urllib.parse import quote

FORMAT = "${Package}\t${Version}\t${Architecture}\t${db:Status-Abbrev}\n"


def debian() -> list[dict[str, str]]:
    """The packages that dpkg has installed."""
    told = subprocess.run(["dpkg-query", "-W", "-f", FORMAT], check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in told.splitlines()]
    return [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}",
        }
        for name, version, architecture, status in rows
        if status.startswith("ii")
    ]


def python() -> list[dict[str, str]]:
    """The distributions of Python that no package of Debian has brought."""
    found = {}
    for one in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        if "/usr/local/" in str(one.locate_file("")):
            found[name] = {
                "type": "library",
                "name": name,
                "version": one.version,
                "purl": f"pkg:pypi/{name}@{quote(one.version)}",
            }
    return [found[name] for name in sorted(found)]


def document(name: str) -> dict[str, object]:
    """The whole, with the time that all files of the image have."""
    moment = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "name": name},
        },
        "components": [*debian(), *python()],
    }


if __name__ == "__main__":
    json.dump(document(sys.argv[1]), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
