# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node tells: who has its GPUs, from a stand-in for kubelet to who looks, and what is wrong on the host."""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import node
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.pod_resources import LOOK_S, PodLeases
from tests.simulators.kubelet import PodResources
from tests.unit.plugins.module_utils.kubernetes.agent_report import UUIDS
from tests.unit.plugins.module_utils.monitoring.test_certificates import certificate

NOW = datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()
TRAIN = ("alice", "train-0", "main")


class Told:
    """A node's kubelet, the daemon's part, and the file between that and who looks."""

    def __init__(self, base: Path) -> None:
        self.kubelet = PodResources(base / "kubelet.sock")
        self.path = base / "run/leases.json"
        self.leases = PodLeases(str(self.kubelet.path), str(self.path))

    def seen(self, now: float) -> dict[str, list[str]]:
        self.leases.show(now)
        return {f"{row['namespace']}/{row['name']}": row["gpus"] for row in node.leases(str(self.path), now)}


@pytest.fixture
def told() -> Iterator[Told]:
    # The name of a socket has at most 107 characters, so not tmp_path.
    with tempfile.TemporaryDirectory(prefix="leases-") as base:
        made = Told(Path(base))
        yield made
        made.kubelet.stop()


def test_who_has_which_gpu_is_told_by_plugin_and_by_claim(told: Told) -> None:
    told.kubelet.plugin[TRAIN] = UUIDS[2:0:-1]
    told.kubelet.plugin["bob", "other", "main"] = ["some-other-device"]
    told.kubelet.cdi["carol", "claims", "main"] = [f"nvidia.com/gpu={UUIDS[3]}"]
    assert told.seen(NOW) == {"alice/train-0": UUIDS[1:3], "carol/claims": [UUIDS[3]]}
    assert told.leases.problem == ""
    assert stat.S_IMODE(told.path.stat().st_mode) == 0o640


def test_a_pod_that_is_gone_is_not_told_any_more_and_kubelet_is_not_asked_all_the_time(told: Told) -> None:
    told.kubelet.plugin[TRAIN] = UUIDS[:1]
    assert told.seen(NOW)
    told.kubelet.plugin.clear()
    assert told.seen(NOW + LOOK_S / 2)
    assert told.kubelet.asked == 1
    assert told.seen(NOW + LOOK_S) == {}


def test_the_file_is_written_where_something_changes_and_stays_fresh(told: Told) -> None:
    told.kubelet.plugin[TRAIN] = UUIDS[:1]
    told.seen(NOW)
    first = told.path.stat().st_ino
    told.seen(NOW + LOOK_S)
    assert told.path.stat().st_ino == first
    told.seen(NOW + node.WRITTEN_S)
    assert told.path.stat().st_ino != first
    os.unlink(told.path)
    assert told.seen(NOW + node.WRITTEN_S + LOOK_S) == {"alice/train-0": UUIDS[:1]}


def test_while_kubelet_is_away_the_last_that_it_told_stays_until_it_is_too_old(told: Told) -> None:
    told.kubelet.plugin[TRAIN] = UUIDS[:1]
    told.seen(NOW)
    told.kubelet.stop()
    assert told.seen(NOW + LOOK_S) == {"alice/train-0": UUIDS[:1]}
    assert "which pod has which GPU is not known" in told.leases.problem
    assert told.seen(NOW + node.STALE_S + 1) == {}
    told.kubelet.start()
    assert told.seen(NOW + 2 * node.STALE_S) == {"alice/train-0": UUIDS[:1]}
    assert told.leases.problem == ""


@pytest.mark.parametrize("content", ["", "[]", '{"time": 1, "pods": [{"namespace": "a", "name": "b; c", "gpus": []}]}'])
def test_a_file_of_another_shape_tells_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "leases.json"
    path.write_text(content)
    assert node.leases(str(path), NOW) == []


class Host:
    """A host's files, and what systemctl says of kubelet."""

    def __init__(self, root: Path) -> None:
        self.root, self.kubelet, self.failed = root, "active", ""
        self.put("var/lib/kubelet/config.yaml", b"kind: KubeletConfiguration\n")

    def put(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if "is-failed" in argv:
            return int(argv[-1] != self.failed), "", ""
        return (0 if self.kubelet == "active" else 3), f"{self.kubelet}\n", ""

    def problems(self) -> list[tuple[str, str, str]]:
        found = node.problems("gpu1", self.run, NOW, str(self.root))
        return [(one.code, one.cause, one.remedy) for one in found]


LATER, SOON, OVER = (
    datetime(2027, 6, 1, tzinfo=UTC),
    datetime(2026, 12, 9, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
)


def test_nothing_is_wrong_with_a_node_that_is_well_or_not_yet_one(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.put("etc/kubernetes/pki/apiserver.crt", certificate(LATER))
    host.put("var/lib/kubelet/pki/kubelet-client-current.pem", certificate(LATER))
    assert host.problems() == []
    host.kubelet = "inactive"
    (tmp_path / "var/lib/kubelet/config.yaml").unlink()
    assert host.problems() == []


def test_a_kubelet_that_does_not_run_is_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kubelet = "activating"
    ((code, cause, remedy),) = host.problems()
    assert (code, cause) == ("kubelet_down", "its kubelet is activating")
    assert "journalctl -u kubelet" in remedy


def test_a_timer_that_has_failed_is_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.failed = "baremetal-gpu-etcd-snapshot.service"
    ((code, cause, remedy),) = host.problems()
    assert (code, cause) == ("timer_failed", "baremetal-gpu-etcd-snapshot has failed: no new snapshot of etcd is made")
    assert "systemctl start baremetal-gpu-etcd-snapshot`" in remedy


@pytest.mark.parametrize(
    ("path", "end", "word", "remedy"),
    [
        ("etc/kubernetes/pki/apiserver.crt", SOON, "ends", "baremetal-gpu-kubernetes-renew"),
        ("etc/kubernetes/pki/etcd/server.crt", OVER, "ended", "baremetal-gpu-kubernetes-renew"),
        ("etc/kubernetes/pki/ca.crt", SOON, "ends", "Manual rotation of CA certificates"),
        ("var/lib/kubelet/pki/kubelet-client-current.pem", SOON, "ends", "journalctl -u kubelet"),
        ("var/lib/kubelet/pki/kubelet-client-current.pem", OVER, "ended", "gpuops up --tags kubernetes"),
    ],
)
def test_a_certificate_that_ends_is_told_with_its_day(
    tmp_path: Path, path: str, end: datetime, word: str, remedy: str
) -> None:
    host = Host(tmp_path)
    host.put(path, certificate(end))
    ((code, cause, told),) = host.problems()
    assert (code, cause) == ("certificate_ends", f"the certificate in /{path} {word} on {end:%Y-%m-%d %H:%M UTC}")
    assert remedy in told


def test_a_certificate_within_a_kubeconfig_is_read_too(tmp_path: Path) -> None:
    host = Host(tmp_path)
    inside = base64.b64encode(certificate(SOON)).decode()
    host.put("etc/kubernetes/admin.conf", f"users:\n- user:\n    client-certificate-data: {inside}\n".encode())
    host.put(
        "etc/kubernetes/kubelet.conf", b"    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n"
    )
    ((_code, cause, _remedy),) = host.problems()
    assert "/etc/kubernetes/admin.conf ends on 2026-12-09" in cause


def test_a_damaged_certificate_is_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.put("etc/kubernetes/pki/apiserver.crt", certificate(LATER)[:200])
    assert [code for code, _cause, _remedy in host.problems()] == ["certificate_unreadable"]
