# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of a control plane, made anew before they end.

kubeadm makes those of the control plane for a year and renews them with an upgrade only; kubelet renews its own. A
program of the control plane goes on with the certificate that it has read, so its container is started again.
"""

from __future__ import annotations

import base64
import os
import re
import time
from dataclasses import dataclass
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import (
    CRICTL,
    PROGRAMS,
    await_restart,
    call,
    containers,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.node import certificates
from ansible_collections.baremetal.gpu.plugins.module_utils.system.certificate import NoCertificate, first_end

KUBERNETES = "/etc/kubernetes"
# What `kubeadm certs renew all` makes anew; the certificates that sign these end after ten years.
RENEWED = (
    *(
        f"{KUBERNETES}/pki/{name}.crt"
        for name in ("apiserver", "apiserver-etcd-client", "apiserver-kubelet-client", "front-proxy-client")
    ),
    *(f"{KUBERNETES}/pki/etcd/{name}.crt" for name in ("server", "peer", "healthcheck-client")),
    *(f"{KUBERNETES}/{name}.conf" for name in ("admin", "super-admin", "controller-manager", "scheduler")),
)
# Certificates are new, and the programs have not been started again yet.
RESTART = "/var/lib/baremetal-gpu/kubernetes-restart"
DAY_S = 86400.0
_DATA = re.compile(r"^\s*client-(certificate|key)-data: *([A-Za-z0-9+/=]+) *$", re.MULTILINE)


@dataclass(frozen=True)
class Renewal:
    """:ivar days: how long before its end a certificate is made anew.
    :ivar root: the directory that is the host's.
    """

    run: Run
    days: int
    root: str = ""
    wait: Callable[[float], None] = time.sleep

    def due(self, now: float) -> list[str]:
        """The certificates of the control plane that end soon."""
        return [path for path, content in certificates(self.root) if path in RENEWED and self._ends_soon(content, now)]

    def _ends_soon(self, content: bytes, now: float, otherwise: bool = False) -> bool:
        try:
            return first_end(content) - now < self.days * DAY_S
        except NoCertificate:
            # kubeadm cannot renew what it cannot read; `gpuops doctor` names it.
            return otherwise

    def perform(self, now: float) -> list[str]:
        """Renew what is due and start the programs again; the paths. Raises CallFailed; the next one goes on."""
        found, restart = self.due(now), f"{self.root}{RESTART}"
        if found:
            host_files.make_directories(os.path.dirname(restart))
            host_files.write(restart, "")
            call(self.run, ["kubeadm", "certs", "renew", "all"])
        if os.path.exists(restart):
            for name in PROGRAMS:
                self._restart(name)
            os.unlink(restart)
        return found

    def _restart(self, name: str) -> None:
        before = containers(self.run, name)
        if before:
            call(self.run, [*CRICTL, "stop", "--timeout=30", *before])
        await_restart(self.run, name, before, self.wait)

    def client_is_due(self, path: str, now: float) -> bool:
        """Whether a client's certificate, with its key in one file, is not there or ends soon."""
        try:
            return self._ends_soon(host_files.read(f"{self.root}{path}", 1 << 20), now, otherwise=True)
        except OSError:
            return True

    def renew_client(self, path: str, user: str) -> None:
        """Have kubeadm make a certificate of a year for a user of the cluster. Raises CallFailed and OSError."""
        text = call(self.run, ["kubeadm", "kubeconfig", "user", f"--client-name={user}", "--validity-period=8760h"])
        parts = {kind: base64.b64decode(data) for kind, data in _DATA.findall(text)}
        if set(parts) != {"certificate", "key"}:
            raise CallFailed(
                f"kubeadm makes no certificate for {user}",
                "see `sudo kubeadm certs check-expiration`",
                code="no_certificate",
                subject="kubeadm",
            )
        host_files.make_directories(os.path.dirname(f"{self.root}{path}"))
        host_files.write(f"{self.root}{path}", parts["certificate"] + parts["key"], 0o600)
