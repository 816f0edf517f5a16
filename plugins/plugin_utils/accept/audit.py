# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit that buyers use, and what of this collection mends what it finds.

`services` are {name: {"audit": what accept_audit returns}}; what hosts send is untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    AUDIT,
    FAIL,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    PASS,
    Item,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, rows

OUTCOMES = {"PASS": PASS, "FAIL": FAIL, "WARNING": NOT_TESTABLE, "SKIPPED": NOT_APPLICABLE}
INSTALL = "install it there: `python3 -m venv /opt/clustermax`, `/opt/clustermax/bin/pip install clustermax`, and a \
link to `/opt/clustermax/bin/cmax` in /usr/local/bin"
NAMED = "docs/acceptance.md, 'Stage audit', has what is here in its place"
# By the beginning of a check's name; the first that fits.
REMEDIES = {
    "securityVersions.nvidiaDriver": "`ansible-playbook baremetal.gpu.upgrade_driver`, see docs/driver.md",
    "securityVersions.nvidiaContainerToolkit": "update the packages of the nodes",
    "securityVersions.cudaToolkit": "a newer one in cuda_versions, and `gpuops up --tags cuda`",
    "securityVersions.runc": "update the packages of the host",
    "securityVersions.docker": f"update the packages of the host; {NAMED}",
    "software.lmod": "the group user_software_hosts, and `gpuops up --tags software`",
    "software.perf.installed": "linux-perf in user_software_packages, and `gpuops up --tags software`",
    "software.ncu": "nsight-compute of non-free or of NVIDIA's repository, and `gpuops up --tags software`",
    "software.nccl": "libnccl-dev of non-free or of NVIDIA's repository, and `gpuops up --tags software`",
    "gpus.gdrcopy": "gdrcopy in user_software_vendor_packages, and `gpuops up --tags software`",
    "healthChecks.dcgm": "datacenter-gpu-manager in user_software_vendor_packages, and `gpuops up --tags software`",
    "containers.nvidiaContainerToolkit": "container_runtime_toolkit_repo_url, and `gpuops up --tags containers`",
    "containers": f"Debian does not have it; {NAMED}",
    "healthChecks.monitoringStack.dcgmExporter": f"Debian does not have it; {NAMED}",
    "healthChecks.nhcInstalled": NAMED,
    "software.nvhpc": f"Debian does not have it; {NAMED}",
    "storage": "cluster_homes: cephfs or nfs, and `gpuops up --tags storage,homes`",
    "slurm.accounting": "the group slurm_databases, and `gpuops up --tags slurm`",
}
OTHER = "see what cmax says: `cmax audit review -vvv`"


def _item(host: str, row: Mapping[str, Any]) -> Item:
    key, outcome = str(row.get("id")), OUTCOMES.get(str(row.get("status")), NOT_TESTABLE)
    remedy = next((text for start, text in REMEDIES.items() if key.startswith(start)), OTHER)
    evidence = f"{row.get('title')}: {row.get('observed')}"
    return Item("audit.check", AUDIT, host, outcome, evidence, remedy if outcome == FAIL else "", key)


def items(services: Mapping[str, Mapping[str, Any]]) -> list[Item]:
    """All items of the stage."""
    found = []
    for name, parts in services.items():
        row = mapping(mapping(parts.get("audit")).get("audit"))
        if not row:
            continue
        if row.get("installed") is not True:
            found.append(Item("audit.program", AUDIT, name, NOT_TESTABLE, "cmax is not installed", INSTALL))
        elif row.get("error"):
            found.append(Item("audit.program", AUDIT, name, NOT_TESTABLE, str(row["error"])))
        found += [_item(name, check) for check in rows(row.get("rows"))]
    return found
