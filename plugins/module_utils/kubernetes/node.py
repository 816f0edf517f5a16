# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only a node itself tells of its part in Kubernetes: which pod has which GPU, and what is wrong on the host.

The daemon that gives the GPUs to pods asks kubelet who has them and writes that to a file: with a device plugin nothing
else tells it.
"""

from __future__ import annotations

import base64
import glob
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    list_of,
    number,
    object_of,
    text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.system.certificate import NoCertificate, first_end

LEASES = "/run/baremetal-gpu/kubernetes-leases.json"
# The daemon writes at least as often, so one that is older tells nothing.
WRITTEN_S, STALE_S = 60.0, 300.0
UUID = r"GPU-[0-9a-fA-F-]{1,59}"
_NAME = text(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", 253)
_FILE = object_of(
    {
        "time": number(0),
        "pods": list_of(object_of({"namespace": _NAME, "name": _NAME, "gpus": list_of(text(UUID, 63), 64)})),
    }
)

# A timer renews those of a control plane earlier, and kubelet its own; both are of a year.
ENDS_SOON_S = 20 * 86400.0
CERTIFICATES = ("/etc/kubernetes/pki/*.crt", "/etc/kubernetes/pki/etcd/*.crt", "/var/lib/kubelet/pki/*-current.pem")
# Files with a client's certificate in them.
KUBECONFIGS = ("/etc/kubernetes/*.conf",)
KUBELET = "/var/lib/kubelet"
# What timers run on a control plane.
TIMED = {
    "baremetal-gpu-etcd-snapshot": "no new snapshot of etcd is made",
    "baremetal-gpu-kubernetes-renew": "certificates of the control plane are not renewed",
}
_IN_KUBECONFIG = re.compile(r"^\s*client-certificate-data:\s*([A-Za-z0-9+/=]+)\s*$", re.MULTILINE)
_AT_MOST = 1 << 20


def leases_text(pods: Iterable[Mapping[str, Any]], now: float) -> str:
    return json.dumps({"time": now, "pods": list(pods)})


def leases(path: str = LEASES, now: float | None = None) -> list[dict[str, Any]]:
    """Pods and the UUIDs of their GPUs; none where nothing has told it lately."""
    try:
        found = _FILE(json_object(files.read(path, _AT_MOST)), "it")
    except (OSError, Malformed):
        return []
    is_fresh = abs((time.time() if now is None else now) - found["time"]) <= STALE_S
    return list(found["pods"]) if is_fresh else []


def problems(host: str, run: Run, now: float, root: str = "") -> list[Problem]:
    """Why the host's part in Kubernetes does not work, or will not for long."""
    found = []
    # Nothing is there before the host is a part of the cluster.
    if files.read_text(f"{root}{KUBELET}/config.yaml"):
        status, told, _error = run(["systemctl", "is-active", "kubelet.service"], None, 30)
        if status:
            state = told.strip() or "not known"
            remedy = "see `sudo journalctl -u kubelet` there; once that is repaired, `sudo systemctl restart kubelet`"
            found.append(Problem("kubelet_down", host, f"its kubelet is {state}", state, remedy))
    for unit, loss in TIMED.items():
        if run(["systemctl", "is-failed", "--quiet", f"{unit}.service"], None, 30)[0] == 0:
            remedy = f"see `sudo journalctl -u {unit}` there, and run `sudo systemctl start {unit}`"
            found.append(Problem("timer_failed", host, f"{unit} has failed: {loss}", unit, remedy))
    for path, content in certificates(root):
        try:
            end = first_end(content)
        except NoCertificate as why:
            remedy = f"compare {path} with `sudo kubeadm certs check-expiration`"
            found.append(Problem("certificate_unreadable", host, f"{path} cannot be read: {why}", path, remedy))
            continue
        if end - now < ENDS_SOON_S:
            day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end))
            cause = f"the certificate in {path} {'ended' if end <= now else 'ends'} on {day}"
            found.append(Problem("certificate_ends", host, cause, day, _renewal(path, end <= now)))
    return found


def _renewal(path: str, is_over: bool) -> str:
    if path.endswith(("/ca.crt", "-ca.crt")):
        return "it signs all others: follow 'Manual rotation of CA certificates' of Kubernetes' documentation"
    if not path.startswith(KUBELET):
        return (
            "`sudo systemctl start baremetal-gpu-kubernetes-renew` there, which renews it and starts the control plane "
            "again; its journal says why it did not in time"
        )
    if is_over:
        return f"kubelet cannot renew it any more: `sudo rm {path}` there, then `gpuops up --tags kubernetes`"
    return "kubelet renews it by itself: see `sudo journalctl -u kubelet` there for why it does not"


def certificates(root: str) -> Iterable[tuple[str, bytes]]:
    """Files with certificates, by their paths on the host."""
    for path in _there(root, CERTIFICATES):
        yield path, files.read_bytes(root + path)[:_AT_MOST]
    for path in _there(root, KUBECONFIGS):
        row = _IN_KUBECONFIG.search(files.read_text(root + path, _AT_MOST))
        if row:
            try:
                yield path, base64.b64decode(row[1], validate=True)
            except ValueError:
                yield path, b""


def _there(root: str, patterns: Sequence[str]) -> list[str]:
    return sorted(path[len(root) :] for pattern in patterns for path in glob.glob(root + pattern))
