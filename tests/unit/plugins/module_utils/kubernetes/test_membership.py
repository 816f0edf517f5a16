# SPDX-License-Identifier: GPL-3.0-or-later
"""A host becomes a member of a cluster once, and an attempt that was cut continues."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import SNAPSHOT
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.membership import Membership

SERVER = "10.0.0.1:6443"
# As kubeadm 1.36.3 writes it.
SWAP = """\
[preflight] Some fatal errors occurred:
\t[ERROR Swap]: swap is supported for cgroup v2 only.
\t[ERROR Port-10250]: Port 10250 is in use
[preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`
error: error execution phase preflight
"""


class Kubeadm:
    """A stand-in of the program: writes what it writes, and ends as it is told to."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls, self.configs = root, list[list[str]](), list[str]()
        self.status, self.stderr = 0, ""

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        config = Path(argv[2].removeprefix("--config="))
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        self.calls.append(argv)
        self.configs.append(config.read_text())
        if self.status == 0:
            write(self.root / "etc/kubernetes/kubelet.conf", f"    server: https://{SERVER}\n")
        return self.status, "", self.stderr


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def kubeadm(tmp_path: Path) -> Kubeadm:
    return Kubeadm(tmp_path)


def member(kubeadm: Kubeadm, command: str = "join", server: str = SERVER) -> Membership:
    return Membership(kubeadm, command, server, root=kubeadm.root)


def ignored(argv: list[str]) -> list[str]:
    return [word for word in argv if word.startswith("--ignore-preflight-errors")]


@pytest.mark.parametrize("command", ["init", "join"])
def test_a_host_becomes_a_member_once(kubeadm: Kubeadm, command: str) -> None:
    assert member(kubeadm, command).is_due()
    member(kubeadm, command).perform("token: secret\n", 9.0)
    assert kubeadm.configs == ["token: secret\n"]
    assert not ignored(kubeadm.calls[0]), "kubeadm makes all of its checks on a host that had no attempt"
    assert not Path(kubeadm.calls[0][2].removeprefix("--config=")).exists()
    assert not member(kubeadm, command).is_due()


def test_an_attempt_that_was_cut_continues(kubeadm: Kubeadm) -> None:
    kubeadm.status, kubeadm.stderr = 1, SWAP
    with pytest.raises(Refused):
        member(kubeadm).perform("", 9.0)
    # What it left.
    write(kubeadm.root / "etc/kubernetes/kubelet.conf", "server: https://10.0.0.9:6443\n")
    assert member(kubeadm).is_due()
    kubeadm.status = 0
    member(kubeadm).perform("", 9.0)
    (words,) = ignored(kubeadm.calls[-1])
    assert "FileAvailable--etc-kubernetes-kubelet.conf" in words
    assert not member(kubeadm).is_due()


def test_what_kubeadm_complains_of_is_told(kubeadm: Kubeadm) -> None:
    kubeadm.status, kubeadm.stderr = 1, SWAP
    with pytest.raises(Refused, match=r"\[Swap\]: swap is supported for cgroup v2 only.; \[Port-10250\]") as caught:
        member(kubeadm).perform("", 9.0)
    assert caught.value.problem.code == "kubeadm_failed"


def test_a_node_of_another_cluster_is_not_taken(kubeadm: Kubeadm) -> None:
    write(kubeadm.root / "etc/kubernetes/kubelet.conf", "    server: https://192.0.2.1:6443\n")
    with pytest.raises(Refused, match=r"192\.0\.2\.1:6443") as caught:
        member(kubeadm).is_due()
    assert caught.value.problem.code == "other_cluster"
    assert kubeadm.calls == []


def test_data_of_etcd_without_its_cluster_are_not_overwritten(kubeadm: Kubeadm) -> None:
    (kubeadm.root / "var/lib/etcd/member").mkdir(parents=True)
    with pytest.raises(Refused) as caught:
        member(kubeadm, "init").is_due()
    assert caught.value.problem.code == "data_without_cluster"
    assert member(kubeadm, "join").is_due()


def test_a_snapshot_of_a_backup_is_not_put_over_a_cluster(kubeadm: Kubeadm) -> None:
    write(kubeadm.root / "etc/kubernetes/kubelet.conf", f"    server: https://{SERVER}\n")
    write(kubeadm.root / SNAPSHOT[1:], "")
    with pytest.raises(Refused) as caught:
        member(kubeadm, "init").is_due()
    assert caught.value.problem.code == "snapshot_left"
