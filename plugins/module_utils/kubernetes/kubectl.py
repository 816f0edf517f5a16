# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects of Kubernetes that are as they are described, with kubectl on a control plane.

Server-side apply: the API server keeps who has set which field, so that fields of others stay.
Source: kubernetes.io/docs/reference/using-api/server-side-apply.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

ADMIN = "/etc/kubernetes/admin.conf"
MANAGER = "baremetal-gpu"
# `kubectl diff` ends with it where something differs.
DIFFERS = 1


class Kubectl:
    """:param manager: whose fields those of the objects are. What it does not name any more, it has taken back."""

    def __init__(self, run: Run, timeout_s: float, kubeconfig: str = ADMIN, manager: str = MANAGER) -> None:
        self._run, self.timeout_s, self.kubeconfig = run, timeout_s, kubeconfig
        self._managed = ("--server-side", f"--field-manager={manager}", "--force-conflicts")

    def _kubectl(self, *words: str, stdin: str | None = None, timeout_s: float | None = None) -> tuple[int, str, str]:
        return self._run(["kubectl", f"--kubeconfig={self.kubeconfig}", *words], stdin, timeout_s or self.timeout_s)

    def is_set_up(self) -> bool:
        """Whether this host has the credentials of a cluster."""
        return os.path.exists(self.kubeconfig)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object as the API has it; None for one that is not there. Raises CallFailed."""
        status, stdout, stderr = self._kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        if status != 0:
            raise _failed("read", stderr)
        try:
            found = json.loads(stdout) if stdout.strip() else None
        except (ValueError, RecursionError) as why:
            raise _failed("read", f"what it prints is not JSON: {why}") from why
        return found if isinstance(found, dict) else None

    def raw(self, path: str) -> str | None:
        """What the API server answers to a path; None for one that it does not know. Raises CallFailed with what
        kubectl says."""
        limit = f"--request-timeout={self.timeout_s:g}s"
        status, stdout, stderr = self._kubectl(limit, "get", "--raw", path, timeout_s=self.timeout_s + 5)
        if status and "(NotFound)" in stderr:
            return None
        if status:
            raise CallFailed(one_line(stderr or stdout, 400) or f"kubectl ended with status {status}")
        return stdout

    def patch(self, kind: str, name: str, patch: str) -> None:
        """Merge a patch into an object. Raises CallFailed."""
        status, _stdout, stderr = self._kubectl("patch", kind, name, "--type=merge", f"--patch={patch}")
        if status != 0:
            raise _failed("change", stderr)

    def drain(self, node: str, timeout_s: float) -> tuple[int, str]:
        """Evict the pods of a node, those of daemons excepted: exit status, and why pods are left."""
        words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={timeout_s:.0f}s")
        status, _stdout, stderr = self._kubectl(*words, timeout_s=timeout_s + self.timeout_s)
        errors = [line for line in stderr.splitlines() if not line.startswith(("Warning:", "evicting"))]
        return status, one_line(" ".join(errors or stderr.splitlines()[-1:]), 600)

    def difference(self, objects: Sequence[Mapping[str, Any]]) -> str:
        """How the objects differ from those of the cluster; empty where they do not. Raises CallFailed.

        What is in a namespace that is to come with them cannot be compared, and is listed.
        """
        spaces = {one["metadata"]["name"]: one for one in objects if one.get("kind") == "Namespace"}
        there = self.present(list(spaces.values())) if spaces else []
        to_come = {name for name in spaces if f"namespace/{name}" not in there}
        new = [one for one in objects if _space(one) in to_come]
        listed = "".join(f"+{one['kind']} {one['metadata']['name']}\n" for one in new)
        known = [one for one in objects if one not in new]
        return listed + (self._difference(known) if known else "")

    def _difference(self, objects: Sequence[Mapping[str, Any]]) -> str:
        status, stdout, stderr = self._kubectl("diff", *self._managed, "--filename=-", stdin=_listed(objects))
        # It ends with 1 for other errors, too, and then shows no difference.
        if status == 0 or (status == DIFFERS and stdout):
            return stdout
        raise _failed("compare", stderr)

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Raises CallFailed."""
        status, _stdout, stderr = self._kubectl("apply", *self._managed, "--filename=-", stdin=_listed(objects))
        if status != 0:
            raise _failed("apply", stderr)

    def present(self, objects: Sequence[Mapping[str, Any]]) -> list[str]:
        """The names of those of them that the cluster has. Raises CallFailed."""
        status, stdout, stderr = self._kubectl(
            "get", "--ignore-not-found", "--output=name", "--filename=-", stdin=_listed(objects)
        )
        if status != 0:
            raise _failed("find", stderr)
        return stdout.split()

    def delete(self, objects: Sequence[Mapping[str, Any]], grace_s: int | None = None) -> None:
        """Raises CallFailed.

        :param grace_s: in which pods are to end, whatever they ask for. Their end is not waited for.
        """
        how = [] if grace_s is None else [f"--grace-period={grace_s}", "--wait=false"]
        words = ("delete", "--ignore-not-found", *how, "--filename=-")
        status, _stdout, stderr = self._kubectl(*words, stdin=_listed(objects))
        if status != 0:
            raise _failed("delete", stderr)


def _space(one: Mapping[str, Any]) -> str | None:
    """The namespace that an object is, or is in."""
    name: str | None = one["metadata"].get("name" if one.get("kind") == "Namespace" else "namespace")
    return name


def _listed(objects: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def _failed(what: str, stderr: str) -> CallFailed:
    return CallFailed(
        f"kubectl could not {what} the objects: {one_line(stderr, 400) or 'it gives no reason'}",
        "see 'sudo crictl ps -a' and 'sudo journalctl -u kubelet' on the control plane",
        code="kubectl_failed",
        subject="kubectl",
    )
