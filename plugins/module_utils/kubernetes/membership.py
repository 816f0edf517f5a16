# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a host a member of a cluster of Kubernetes with kubeadm, and notices where an earlier attempt was cut.

kubeadm refuses a host on which an attempt has left files or ports. They may be those of a cluster that is in use, so
they are ignored only where a record tells that the attempt was this program's own and did not end.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.etcd import Member
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import SNAPSHOT
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import CRICTL, PROGRAMS, call
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.etcd_restore import unpack

# What kubeadm checks and an attempt that was cut has left. Source: `kubeadm init --help` and `kubeadm join --help`.
LEFT = {
    "init": (
        *(f"FileAvailable--etc-kubernetes-manifests-{name}.yaml" for name in PROGRAMS),
        *(f"Port-{port}" for port in (6443, 10250, 10257, 10259, 2379, 2380)),
        "DirAvailable--var-lib-etcd",
    ),
    "join": (
        "FileAvailable--etc-kubernetes-bootstrap-kubelet.conf",
        "FileAvailable--etc-kubernetes-kubelet.conf",
        "FileAvailable--etc-kubernetes-pki-ca.crt",
        "Port-10250",
    ),
}
EVIDENCE_AT_MOST = 1000


@dataclass(frozen=True)
class Membership:
    """A host and the cluster that it is to be a member of.

    :ivar command: `init` for the first control plane, which creates the cluster, or `join`.
    :ivar server: host:port of the API server of the cluster.
    :ivar ignored: further checks of kubeadm that are not made.
    :ivar root: the directory that is the host's.
    """

    run: Run
    command: str
    server: str
    ignored: tuple[str, ...] = ()
    root: Path = Path("/")

    @property
    def kubelet(self) -> Path:
        return self.root / "etc/kubernetes/kubelet.conf"

    @property
    def snapshot(self) -> Path:
        """Where `gpuops restore-head` puts the snapshot of etcd of a lost host."""
        return self.root / SNAPSHOT[1:]

    @property
    def begun(self) -> Path:
        return self.root / "var/lib/baremetal-gpu/kubeadm-begun"

    def is_due(self) -> bool:
        """Whether the host is not yet a member. Raises Refused where it must not become one."""
        if self.begun.exists():
            return True
        if self.kubelet.exists():
            if self.command == "join":
                self._check_server()
            elif self.snapshot.exists():
                raise Refused(
                    f"{SNAPSHOT} is that of a backup, and the host has a cluster already",
                    "run the playbook baremetal.gpu.kubernetes_restore with it, or move it away",
                    code="snapshot_left",
                    subject="etcd",
                )
            return False
        etcd = self.root / "var/lib/etcd/member"
        if self.command == "init" and etcd.exists():
            raise Refused(
                f"/{etcd.relative_to(self.root)} has the data of a cluster, and /etc/kubernetes has no files of it",
                "move /var/lib/etcd away, and put both back from a backup with `gpuops restore-head`",
                code="data_without_cluster",
                subject="etcd",
            )
        return True

    def _check_server(self) -> None:
        """A kubelet that has joined speaks to the API server of its cluster."""
        found = re.search(r"^\s*server: *(?:https://)?(\S+)$", self.kubelet.read_text(encoding="utf-8"), re.MULTILINE)
        has = found[1] if found else ""
        if has != self.server:
            raise Refused(
                f"the host is a node of the cluster at {one_line(has) or 'an unknown address'}, and this one is at "
                f"{self.server}",
                "drain it there and run 'kubeadm reset' on it, or correct kubernetes_common_endpoint",
                code="other_cluster",
                subject="kubelet",
            )

    def perform(self, config: str, timeout_s: float) -> None:
        """Run kubeadm with this configuration, which may have a token. Raises CallFailed with what kubeadm says."""
        was_begun = self.begun.exists()
        self.begun.parent.mkdir(parents=True, exist_ok=True)
        self.begun.touch()
        with config_file(config) as path:
            has_data = self.command == "init" and self.snapshot.exists() and self._restore(config, path)
            ignored = [*self.ignored, *(LEFT[self.command] if was_begun or has_data else ())]
            words = ["kubeadm", self.command, f"--config={path}"]
            if ignored:
                words.append(f"--ignore-preflight-errors={','.join(ignored)}")
            status, _stdout, stderr = self.run(words, None, timeout_s)
        if status != 0:
            raise CallFailed(
                f"kubeadm {self.command} has failed: {reason(stderr)}",
                "correct what it names and run again; 'sudo journalctl -u kubelet' and 'sudo crictl ps -a' there have "
                "more",
                code="kubeadm_failed",
                subject="kubeadm",
                evidence=stderr[-EVIDENCE_AT_MOST:],
            )
        if self.command == "init" and self.snapshot.exists():
            self.snapshot.replace(f"{self.snapshot}.restored")
        self.begun.unlink()

    def _restore(self, config: str, path: str) -> bool:
        """Make the data of etcd from the snapshot of a backup, once. Raises Refused and CallFailed."""
        if (self.root / "var/lib/etcd/member").exists():
            return True
        images = call(self.run, ["kubeadm", "config", "images", "list", f"--config={path}"]).split()
        image = next(name for name in images if "/etcd:" in name)
        call(self.run, [*CRICTL, "pull", image])
        about = json.loads(config.split("---\n", 1)[0])
        name, address = about["nodeRegistration"]["name"], about["localAPIEndpoint"]["advertiseAddress"]
        url = f"https://{f'[{address}]' if ':' in address else address}:2380"
        unpack(
            self.run,
            Member(name, url, "/var/lib/etcd", image),
            str(self.snapshot),
            [f"{name}={url}"],
            name,
            str(self.root).rstrip("/"),
        )
        return True


@contextmanager
def config_file(config: str) -> Iterator[str]:
    """The path of a file with a configuration of kubeadm: for root alone, and gone afterwards."""
    handle, path = tempfile.mkstemp(suffix=".yaml")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(config)
        yield path
    finally:
        os.unlink(path)


def reason(stderr: str) -> str:
    """The sentence of what kubeadm has written that says why it ended."""
    lines = [line.strip() for line in stderr.splitlines()]
    errors = [line.replace("[ERROR ", "[") for line in lines if line.startswith("[ERROR ")]
    named = [line for line in lines if line.lower().startswith(("error", "caused by"))]
    return one_line("; ".join(errors) or " ".join(named) or " ".join(lines[-1:]) or "it gives no reason", 400)
