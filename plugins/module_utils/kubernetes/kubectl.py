# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects of Kubernetes that are as they are described, with kubectl on a control plane.

Server-side apply: the API server keeps who has set which field, so that fields of others stay.
Source: kubernetes.io/docs/reference/using-api/server-side-apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

ADMIN = "/etc/kubernetes/admin.conf"
MANAGER = ("--server-side", "--field-manager=baremetal-gpu", "--force-conflicts")
# `kubectl diff` ends with it where something differs.
DIFFERS = 1


class Kubectl:
    def __init__(self, run: Run, timeout_s: float, kubeconfig: str = ADMIN) -> None:
        self._run, self.timeout_s, self.kubeconfig = run, timeout_s, kubeconfig

    def _kubectl(self, *words: str, stdin: str | None = None) -> tuple[int, str, str]:
        return self._run(["kubectl", f"--kubeconfig={self.kubeconfig}", *words], stdin, self.timeout_s)

    def difference(self, objects: Sequence[Mapping[str, Any]]) -> str:
        """How the objects differ from those of the cluster; empty where they do not. Raises CallFailed."""
        status, stdout, stderr = self._kubectl("diff", *MANAGER, "--filename=-", stdin=_listed(objects))
        # It ends with 1 for other errors, too, and then shows no difference.
        if status == 0 or (status == DIFFERS and stdout):
            return stdout
        raise _failed("compare", stderr)

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Raises CallFailed."""
        status, _stdout, stderr = self._kubectl("apply", *MANAGER, "--filename=-", stdin=_listed(objects))
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

    def delete(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Raises CallFailed."""
        status, _stdout, stderr = self._kubectl("delete", "--ignore-not-found", "--filename=-", stdin=_listed(objects))
        if status != 0:
            raise _failed("delete", stderr)


def _listed(objects: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def _failed(what: str, stderr: str) -> CallFailed:
    return CallFailed(
        f"kubectl could not {what} the objects: {one_line(stderr, 400) or 'it gives no reason'}",
        "see 'kubectl get --raw=/readyz?verbose' and 'crictl ps -a' on the control plane",
        code="kubectl_failed",
        subject="kubectl",
    )
