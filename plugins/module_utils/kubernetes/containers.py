# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containers of the control plane on this host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import ADMIN

CRICTL = ["crictl", "--runtime-endpoint=unix:///run/containerd/containerd.sock"]
# etcd comes first: the API server asks it, and all others ask that.
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COMMAND_S, START_S, POLL_S = 120.0, 300.0, 2.0


def containers(run: Run, name: str) -> list[str]:
    """The running containers of a program. Raises CallFailed."""
    where = "--label=io.kubernetes.pod.namespace=kube-system"
    return call(run, [*CRICTL, "ps", "--quiet", where, f"--name=^{name}$"]).split()


def await_restart(run: Run, name: str, before: Sequence[str], wait: Callable[[float], None]) -> None:
    """Wait until kubelet has started a container beside those of before. Raises CallFailed."""
    for _time in range(int(START_S / POLL_S)):
        if set(containers(run, name)) - set(before) and (name != "kube-apiserver" or is_ready(run)):
            return
        wait(POLL_S)
    raise CallFailed(
        f"{name} does not start again within {START_S:.0f} s",
        f"see `sudo crictl ps -a --name {name}` and `sudo journalctl -u kubelet`",
        code="not_started",
        subject=name,
    )


def is_ready(run: Run) -> bool:
    """Whether the API server answers."""
    return (
        run(["kubectl", f"--kubeconfig={ADMIN}", "--request-timeout=5s", "get", "--raw=/readyz"], None, COMMAND_S)[0]
        == 0
    )


def call(run: Run, argv: list[str]) -> str:
    """What a program prints. Raises CallFailed."""
    status, said, error = run(argv, None, COMMAND_S)
    if status:
        raise CallFailed(
            f"`{' '.join(argv[:4])}` has failed: {one_line(error or said, 300)}",
            "see `systemctl status containerd kubelet` and `sudo kubeadm certs check-expiration`",
            code="call_failed",
            subject=argv[0],
        )
    return said
