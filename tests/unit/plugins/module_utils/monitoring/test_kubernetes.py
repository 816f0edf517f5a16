# SPDX-License-Identifier: GPL-3.0-or-later
"""The numbers of a control plane: from objects of the API that are made by hand, and a server with etcd's metrics."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import kubernetes
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.module_utils.kubernetes.cluster_objects import (
    UNPLUGGED,
    UUIDS,
    Kubectl,
    claim,
    condition,
    control_plane,
    namespace,
    node,
    of_job,
    pod,
    resource_slice,
)

# As etcd 3.6 prints them, with others in between.
ETCD = """\
# HELP etcd_server_has_leader Whether or not a leader exists. 1 is existence, 0 is not.
# TYPE etcd_server_has_leader gauge
etcd_server_has_leader 1
etcd_server_is_leader 1
etcd_mvcc_db_total_size_in_bytes 2.4870912e+07
etcd_server_quota_backend_bytes 2.147483648e+09
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 53
etcd_disk_wal_fsync_duration_seconds_sum 12.5
etcd_disk_wal_fsync_duration_seconds_count 1000
"""
URL = "http://127.0.0.1:2381"
MANIFEST = f"    - etcd\n    - --listen-metrics-urls={URL}\n    - --data-dir=/var/lib/etcd\n"


def look(tmp_path: Path, etcd: Any = ETCD, manifest: str = MANIFEST, at: str = "head1", **lists: Any) -> Part:
    kubectl = Kubectl(**{"nodes": [control_plane(), node("gpu1")], **lists})
    return asked(tmp_path, kubectl, etcd, manifest, at)


def asked(tmp_path: Path, kubectl: Kubectl, etcd: Any = ETCD, manifest: str = MANIFEST, at: str = "head1") -> Part:
    (tmp_path / "etcd.yaml").write_text(manifest)

    def ask(url: str) -> str:
        assert url == URL
        if isinstance(etcd, OSError):
            raise etcd
        return str(etcd)

    return kubernetes.look(at, str(tmp_path / "snapshots"), kubectl.run, ask, str(tmp_path / "etcd.yaml"))


def values(part: Part, name: str) -> dict[tuple[str, ...], float]:
    """Of a metric, by the values of its labels."""
    found = parse(exposition(part.samples, METRICS)).get(name)
    order = METRICS[name][1]
    rows = {} if found is None else found.series
    return {tuple(dict(labels).get(label, "") for label in order): value for labels, value in rows.items()}


def verdict(**minors: int) -> dict[str, str]:
    devices = [{"uuid": UUIDS[int(name[1:])], "minor": minor} for name, minor in minors.items()]
    # With the words of reasons it is long.
    return {"baremetal-gpu/verdict": json.dumps({"host": "gpu1", "reasons": ["x" * 2000], "devices": devices})}


def annotated(made: dict[str, Any], notes: dict[str, str]) -> dict[str, Any]:
    made["metadata"]["annotations"] = notes
    return made


def test_a_lease_names_a_gpu_by_the_number_of_its_device_file(tmp_path: Path) -> None:
    allocated = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": UUIDS[1], "health": "Healthy"}]}]
    part = look(
        tmp_path,
        nodes=[control_plane(), annotated(node("gpu1"), verdict(g0=4, g1=7)), node("gpu2")],
        pods=[
            pod(
                "train-0",
                "gpu1",
                1,
                owner=("Job", "train"),
                status={"containerStatuses": [{"name": "main", "allocatedResourcesStatus": allocated}]},
            ),
            # Its kubelet does not say which.
            pod("old", "gpu2", 1),
            pod("without", "gpu1"),
        ],
        namespaces=[namespace("alice", "alice")],
    )
    assert values(part, "gpu_lease_info") == {
        ("kubernetes", "gpu1", "7", "alice/train-0", "train", "alice", "alice", "alice"): 1.0,
        ("kubernetes", "gpu2", "", "alice/old", "old", "alice", "alice", "alice"): 1.0,
    }
    assert values(part, "gpu_lease_start_timestamp_seconds")["kubernetes", "gpu1", "alice/train-0"] == 1796025600.0


def test_a_lease_by_a_claim_is_known_too(tmp_path: Path) -> None:
    part = look(
        tmp_path,
        nodes=[control_plane(), annotated(node("gpu1", None), verdict(g0=4, g1=7))],
        resourceslices=[resource_slice("gpu1", *UUIDS[:2])],
        resourceclaims=[claim("c", UUIDS[0])],
        pods=[pod("notebook", "gpu1", **of_job("g", {"g": "c"}))],
        namespaces=[namespace("alice")],
    )
    assert values(part, "gpu_lease_info") == {
        ("kubernetes", "gpu1", "4", "alice/notebook", "notebook", "", "alice", "alice"): 1.0
    }


def test_gpus_of_a_node_are_counted_once_each(tmp_path: Path) -> None:
    part = look(tmp_path, nodes=[control_plane(), node("gpu1", 4, 3)], pods=[pod("a", "gpu1", 1)])
    counts = {state: value for (_node, state), value in values(part, "kubernetes_node_gpus").items()}
    assert counts == {"allocated": 1.0, "held": 1.0, "free": 2.0, "closed": 0.0}
    assert values(part, "kubernetes_node_withheld_gpus") == {("gpu1",): 1.0}
    closed = look(tmp_path, nodes=[control_plane(), node("gpu1", 4, 3, unschedulable=True)], pods=[])
    counts = {state: value for (_node, state), value in values(closed, "kubernetes_node_gpus").items()}
    assert counts == {"allocated": 0.0, "held": 1.0, "free": 0.0, "closed": 3.0}


def test_nodes_have_their_states_and_problems(tmp_path: Path) -> None:
    silent = condition("Ready", "Unknown", "NodeStatusUnknown", UNPLUGGED)
    labelled = node("gpu2", None)
    labelled["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    part = look(tmp_path, nodes=[control_plane(), node("gpu1", 2, None, silent), labelled])
    assert values(part, "kubernetes_node_info") == {
        ("gpu1", "Unknown"): 1.0,
        ("gpu2", "Ready"): 1.0,
        ("head1", "Ready"): 1.0,
    }
    assert values(part, "kubernetes_node_problem") == {
        ("gpu1", "kubelet_silent"): 1.0,
        ("gpu2", "gpus_not_registered"): 1.0,
    }
    assert values(part, "kubernetes_node_available")["gpu1",] == 0.0


def test_pods_that_wait_are_counted_and_the_oldest_with_gpus_has_its_time(tmp_path: Path) -> None:
    old = pod("old", gpus=2)
    old["metadata"]["creationTimestamp"] = "2026-11-30T06:00:00Z"
    part = look(tmp_path, pods=[pod("next", gpus=1), old, pod("cpu"), pod("runs", "gpu1", 1)])
    assert values(part, "kubernetes_pods") == {("alice", "placed"): 1.0, ("alice", "waiting"): 3.0}
    assert values(part, "kubernetes_gpu_pod_waiting_timestamp_seconds") == {("alice",): 1796018400.0}


def test_one_of_several_control_planes_has_the_metrics_of_the_cluster(tmp_path: Path) -> None:
    gone = control_plane("head1")
    gone["status"]["conditions"] = [condition("Ready", "Unknown", "NodeStatusUnknown", UNPLUGGED)]
    for first, speaker in ((control_plane("head1"), "head1"), (gone, "head2")):
        nodes = [first, control_plane("head2"), control_plane("head3"), node("gpu1")]
        parts = {name: look(tmp_path, at=name, nodes=nodes) for name in ("head1", "head2", "head3")}
        assert {name for name, part in parts.items() if values(part, "kubernetes_node_info")} == {speaker}
        assert {name for name, part in parts.items() if values(part, "kubernetes_api_up") == {(): 1.0}} == set(parts)


def test_etcd_is_read_where_its_manifest_says(tmp_path: Path) -> None:
    part = look(tmp_path)
    names = [name for name in METRICS if name.startswith("kubernetes_etcd") and "snapshot" not in name]
    assert {name: values(part, name) for name in names} == {
        "kubernetes_etcd_has_leader": {(): 1.0},
        "kubernetes_etcd_database_bytes": {(): 24870912.0},
        "kubernetes_etcd_quota_bytes": {(): 2147483648.0},
        "kubernetes_etcd_fsync_seconds_total": {(): 12.5},
        "kubernetes_etcd_fsyncs_total": {(): 1000.0},
    }
    assert not part.complaints
    # etcd on hosts of its own.
    assert not values(look(tmp_path, manifest=""), "kubernetes_etcd_has_leader")


def test_the_newest_snapshot_has_its_time_and_none_has_zero(tmp_path: Path) -> None:
    name = "kubernetes_etcd_snapshot_timestamp_seconds"
    assert values(look(tmp_path), name) == {(): 0.0}
    (tmp_path / "snapshots").mkdir()
    for file, at in (("head1-1.db", 1000), ("head1-2.db", 2000), ("half.db.part", 3000)):
        (tmp_path / "snapshots" / file).write_text("x")
        os.utime(tmp_path / "snapshots" / file, (at, at))
    assert values(look(tmp_path), name) == {(): 2000.0}


def test_etcd_that_does_not_answer_has_no_leader(tmp_path: Path) -> None:
    part = look(tmp_path, ConnectionRefusedError(111, "Connection refused"))
    assert values(part, "kubernetes_etcd_has_leader") == {(): 0.0}
    assert part.complaints == [f"etcd does not answer at {URL}: Connection refused"]
    assert values(part, "kubernetes_api_up") == {(): 1.0}


def test_without_the_api_server_etcd_still_has_its_numbers(tmp_path: Path) -> None:
    kubectl = Kubectl(nodes=[control_plane()])
    kubectl.fails = (
        1,
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?",
    )
    part = asked(tmp_path, kubectl)
    assert values(part, "kubernetes_api_up") == {(): 0.0}
    assert values(part, "kubernetes_etcd_has_leader") == {(): 1.0}
    assert "the API server does not run" in part.complaints[0]
    assert not values(part, "kubernetes_last_success_timestamp_seconds")


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ETCD.encode() if self.path == "/metrics" else b"")

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    found.server_close()


def test_a_page_is_fetched_over_http_and_a_port_without_a_server_is_an_error(server: str) -> None:
    assert kubernetes.ask(server) == ETCD
    with pytest.raises(ConnectionRefusedError):
        kubernetes.ask("http://127.0.0.1:1")
