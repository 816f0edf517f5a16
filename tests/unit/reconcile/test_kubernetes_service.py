# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole way on loopback but kubelet: what nodes tell with their own certificates, a strict stand-in for the API
server, and the reconciler with its certificate and rights alone."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import CORDONED_BY, HELD, NODES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import command
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.service import Service
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import store as kubernetes_store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER, manifests
from tests.simulators.kube_api import NODE_USER, KubeApi, rights_of
from tests.unit.plugins.module_utils.kubernetes.agent_report import UUIDS, certificate, client, until
from tests.unit.plugins.module_utils.kubernetes.kube_node import Node

NAMES = [f"n{number}" for number in range(1, 5)]
NAMESPACE = "baremetal-gpu"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class Site:
    """Four nodes, whose daemons run, and reconcilers that may lead."""

    def __init__(self, base: Path) -> None:
        self.base = base
        users = [USER, *(f"{NODE_USER}{name}" for name in NAMES)]
        clients = [certificate(base, user)[0] for user in users]
        self.api = KubeApi(*certificate(base), rights=rights_of(manifests(NAMESPACE)), clients=clients)
        self.api.put(f"/api/v1/namespaces/{NAMESPACE}", {})
        self.nodes = {name: Node(base / name, self.api, base, name) for name in NAMES}
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(node,)) for node in self.nodes.values()]
        for node in self.nodes.values():
            node.says()
        for thread in self.threads:
            thread.start()
        self.config = base / "reconciler.json"
        self.settings: dict[str, Any] = {
            "scheduler": "kubernetes",
            "server": self.api.url,
            "ca_file": str(certificate(base)[0]),
            "certificate": str(client(base, USER)),
            "journal": str(base / "journal.jsonl"),
            "poll_s": 0.5,
        }
        self.set()
        self.running: list[tuple[Service, threading.Thread]] = []

    def set(self, **policy: Any) -> None:
        policy = {"mode": "act", "settle_s": 0.5, **policy}
        self.config.write_text(json.dumps({**self.settings, "policy": policy}))

    def _run(self, node: Node) -> None:
        while not self.ended.wait(0.05):
            node.gpus.refresh()
            node.own.tell()
            node.own.hand_on()

    def start(self, name: str = "head1:1") -> Service:
        settings = reconciler_settings.load(self.config)
        kubernetes = reconciler_settings.SCHEDULERS["kubernetes"]
        service = Service(settings, kubernetes.backend(settings, {}), kubernetes.store(settings, {}))
        service.name = name
        thread = threading.Thread(target=service.run)
        thread.start()
        self.running.append((service, thread))
        return service

    def stop(self) -> None:
        service, thread = self.running.pop(0)
        service.stop()
        thread.join(30)
        assert not thread.is_alive()

    def close(self) -> None:
        while self.running:
            self.stop()
        self.ended.set()
        for thread in self.threads:
            thread.join(30)
        for node in self.nodes.values():
            node.close()
        self.api.close()

    def held(self, name: str = "n1") -> dict[str, str]:
        found: dict[str, str] = json.loads(self.nodes[name].notes().get(HELD, "{}"))
        return found

    def fault(self, name: str = "n1") -> None:
        self.nodes[name].fatal[UUIDS[1]] = "xid_79"
        self.nodes[name].says()

    def mend(self, name: str = "n1") -> None:
        self.nodes[name].fatal.clear()
        self.nodes[name].says()

    def leader(self) -> str:
        lease = self.api.objects.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/reconciler", {})
        found: str = lease.get("spec", {}).get("holderIdentity", "")
        return found

    def journal(self) -> list[dict[str, Any]]:
        path = self.base / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert command.status(self.config, as_json=True) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    # The name of a socket has at most 107 characters, so not tmp_path.
    with tempfile.TemporaryDirectory(prefix="kube-") as base:
        one = Site(Path(base))
        yield one
        one.close()


def test_a_fatal_gpu_is_held_and_comes_back_when_it_is_well(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.start()
    site.fault()
    until(site.held)
    assert site.held() == {UUIDS[1]: "xid_79"}
    until(lambda: site.nodes["n1"].gpus.found[UUIDS[1]].code == "xid_79")
    found = site.status(capsys)
    assert found["leader"] == "head1:1"
    assert found["nodes"]["n1"]["verdict"] == "fatal"
    assert command.status(site.config, as_json=False) == 0
    assert "1 held back" in capsys.readouterr().out
    site.mend()
    until(lambda: not site.held())
    until(lambda: [row["kind"] for row in site.journal() if row["what"] == "end"] == ["hold", "release", "close"])


def test_a_fault_of_the_host_cordons_its_node_and_no_other(site: Site) -> None:
    site.start()
    site.nodes["n2"].host = "driver_version_mismatch"
    site.nodes["n2"].says()
    until(lambda: site.api.objects[f"{NODES}/n2"]["spec"].get("unschedulable"))
    assert [name for name, node in site.nodes.items() if CORDONED_BY in node.notes()] == ["n2"]
    site.nodes["n2"].host = None
    site.nodes["n2"].says()
    until(lambda: not site.api.objects[f"{NODES}/n2"]["spec"].get("unschedulable"))


def test_the_breaker_keeps_many_faults_at_once_from_taking_the_fleet_out(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.set(breaker_count=1, breaker_share=0.25)
    for node in site.nodes.values():
        node.host = "driver_version_mismatch"
        node.says()
    until(lambda: all(node.notes() for node in site.nodes.values()))
    site.start()
    until(lambda: [row for row in site.journal() if row["what"] == "breaker"])
    assert not any(CORDONED_BY in node.notes() for node in site.nodes.values())
    assert command.clear(site.config, None, breaker=True) == 0
    assert capsys.readouterr().out.startswith("asked ")
    until(lambda: all(CORDONED_BY in node.notes() for node in site.nodes.values()))
    until(lambda: not [name for name in site.api.objects if f"{MAPS}/request" in name])


def test_a_fault_while_the_reconciler_is_away_is_held_when_it_is_back(site: Site) -> None:
    site.fault()
    site.start()
    until(site.held)
    site.stop()
    assert site.leader() == ""
    site.mend()
    site.start()
    until(lambda: not site.held())


def test_an_api_server_that_is_away_is_told_and_the_work_goes_on_when_it_is_back(site: Site) -> None:
    site.start()
    until(lambda: site.leader() == "head1:1")
    site.api.down = True
    site.fault()
    until(lambda: not site.running[0][0].connected.is_set())
    # The node has it already.
    until(lambda: not site.nodes["n1"].gpus.found[UUIDS[1]].is_well)
    site.api.down = False
    until(site.held)


def test_what_is_remembered_and_cannot_be_read_is_kept_aside(site: Site) -> None:
    site.fault()
    site.start()
    until(site.held)
    site.stop()
    path = f"{MAPS}/node.n1"
    site.api.put(path, {**site.api.objects[path], "data": {"row": "{half"}})
    site.start()
    until(lambda: [row for row in site.journal() if row["what"] == "repair"])
    aside = [one["data"] for name, one in site.api.objects.items() if f"{MAPS}/aside" in name]
    assert aside == [{"name": "node.n1", "row": "{half"}]
    site.mend()
    until(lambda: not site.held())


def test_an_operator_clears_a_gpu_and_the_agent_hears_it(site: Site) -> None:
    site.start()
    site.fault()
    until(site.held)
    assert command.clear(site.config, f"n1:{UUIDS[1]}", breaker=False) == 0
    (heard,) = until(lambda: site.nodes["n1"].heard[:1])
    assert (heard["do"], heard["orders"]["clear"]["device"]) == ("hear", UUIDS[1])
    assert not site.nodes["n2"].heard


def test_the_second_reconciler_leads_when_the_first_is_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_store, "LEASE_S", 2)
    monkeypatch.setattr(kubernetes_store, "GIVE_UP_S", 1.5)
    monkeypatch.setattr(kubernetes_store, "RENEW_S", 0.2)
    site.start("head1:1")
    until(lambda: site.leader() == "head1:1")
    site.start("head2:2")
    site.fault()
    until(site.held)
    # Cut off: it renews nothing any more, and gives the lead up before another has it.
    first = site.running[0][0]
    monkeypatch.setattr(first.store.api, "_call", away)
    until(lambda: site.leader() == "head2:2")
    assert first.store.leads_until == 0.0
    site.mend()
    until(lambda: not site.held())


def away(*_words: Any) -> None:
    raise kubernetes_store.CallFailed("it is not reached")


def test_a_node_that_leaves_the_cluster_keeps_nobody_waiting(site: Site) -> None:
    site.start()
    site.fault("n1")
    until(lambda: site.held("n1"))
    site.nodes["n1"].close()
    site.api.remove(f"{NODES}/n1")
    site.fault("n2")
    until(lambda: site.held("n2"))


def test_a_verdict_that_cannot_be_used_leaves_its_node_as_it_is(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    site.fault("n1")
    until(lambda: site.held("n1"))
    monkeypatch.setattr(site.nodes["n1"].own, "tell", lambda: None)
    site.nodes["n1"].note(**{"baremetal-gpu/verdict": '{"schema": 1, "host": "n2"}'})
    until(lambda: (site.status(capsys)["nodes"]["n1"]["problem"] or "").startswith("its verdict is ignored"))
    assert site.held("n1")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"server": "http://127.0.0.1"}, "give https://HOST:6443"), ({"certificate": "/nowhere.pem"}, "cannot be read")],
)
def test_settings_that_cannot_be_used_are_named(site: Site, wrong: dict[str, str], why: str) -> None:
    site.settings.update(wrong)
    site.set()
    with pytest.raises(Wrong, match=why):
        site.start()


def test_a_certificate_that_others_can_read_is_refused(site: Site) -> None:
    Path(site.settings["certificate"]).chmod(0o644)
    with pytest.raises(Wrong, match="has mode 0644"):
        site.start()


def test_without_its_namespace_it_says_what_to_do(site: Site) -> None:
    site.api.remove(f"/api/v1/namespaces/{NAMESPACE}")
    site.api.rights = {}
    site.start()
    until(lambda: any("gpuops up --tags kubernetes" in str(row.get("why")) for row in site.journal()))
