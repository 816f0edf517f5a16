# SPDX-License-Identifier: GPL-3.0-or-later
"""Where reconcilers keep what they know: one suite for ZooKeeper, for the files in Slurm's state directory and for
Kubernetes' API server."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Api
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Settings as ApiSettings
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import NODES
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import VERDICT as VERDICT_NOTE
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import NotLeading
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER, manifests
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.settings import (
    Settings as KubernetesSettings,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.store import KubernetesStore
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import store as file_store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.store import FileStore, InCharge
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.store import ZooKeeperStore
from tests.simulators.kube_api import KubeApi, rights_of
from tests.unit.plugins.module_utils.kubernetes.agent_report import certificate, client
from tests.unit.simulators.mesos_cluster import until

ROW = {"memory": {**plan.empty("n1"), "known": True}, "last": [], "clear": None}
FLEET = {"schema": 1, "fences": [[1.0, "n1"]], "permitted": []}
VERDICT = {"schema": 1, "host": "n1", "verdict": "fatal", "reasons": [], "devices": []}


class Kept(Protocol):
    """A kind of store: `make` gives one more, as on another host; `say` is what an agent does."""

    def make(self) -> Any: ...
    def say(self, told: dict[str, Any] | None) -> None: ...
    def garble(self, name: str) -> None:
        """Have somebody write nonsense in the place of journal/n1, fleet or a request."""


class InZooKeeper:
    def __init__(self, request: pytest.FixtureRequest, base: Path) -> None:
        self.server = request.getfixturevalue("zookeeper")
        self.path = f"/{base.name}"
        self.made: list[ZooKeeperStore] = []

    def make(self) -> ZooKeeperStore:
        settings = Settings(zookeeper=self.server.address, path=self.path)
        self.made.append(ZooKeeperStore(settings, {}, plan))
        self.made[-1].open()
        self.made[-1].prepare()
        return self.made[-1]

    def say(self, told: dict[str, Any] | None) -> None:
        client, path = self.made[0].client, f"{self.path}/verdicts/n1"
        if client.exists(path):
            client.delete(path)
        if told is not None:
            client.create(path, json.dumps(told).encode(), ephemeral=True)

    def garble(self, name: str) -> None:
        path = f"{self.path}/{name}"
        if self.made[0].client.exists(path):
            self.made[0].client.delete(path)
        self.made[0].client.create(path, b"{nonsense")


class InFiles:
    def __init__(self, _request: pytest.FixtureRequest, base: Path) -> None:
        self.base = base
        self.made: list[FileStore] = []

    def make(self) -> FileStore:
        number = len(self.made)
        settings = Settings(
            scheduler="slurm",
            state_directory=str(self.base / "state"),
            journal=str(self.base / f"host{number}" / "journal.jsonl"),
        )
        self.made.append(FileStore(settings, lambda: True))
        self.made[-1].open()
        self.made[-1].prepare()
        return self.made[-1]

    def say(self, told: dict[str, Any] | None) -> None:
        for one in self.made:
            one.receive("n1", told)

    def garble(self, name: str) -> None:
        (self.base / "state" / f"{name}.json").write_text("{nonsense")


class InKubernetes:
    """The reconciler has its own certificate and rights, and no others."""

    def __init__(self, _request: pytest.FixtureRequest, base: Path) -> None:
        self.settings = KubernetesSettings(certificate=str(client(base, USER)))
        rights = rights_of(manifests(self.settings.namespace))
        self.api: Any = KubeApi(*certificate(base), rights=rights, clients=[certificate(base, USER)[0]])
        self.api.put(f"/api/v1/namespaces/{self.settings.namespace}", {})
        self.api.put(f"{NODES}/n1", {})
        where = ApiSettings(self.api.url, str(certificate(base)[0]), self.settings.certificate)
        self.caller = Api(where)
        self.made: list[KubernetesStore] = []

    def make(self) -> KubernetesStore:
        self.made.append(KubernetesStore(self.settings, self.caller))
        self.made[-1].open()
        self.made[-1].prepare()
        self.made[-1].serve()
        return self.made[-1]

    def say(self, told: dict[str, Any] | None) -> None:
        notes = {} if told is None else {VERDICT_NOTE: json.dumps(told)}
        self.api.put(f"{NODES}/n1", {"metadata": {"annotations": notes}})

    def garble(self, name: str) -> None:
        kind = {"journal/n1": "node", "fleet": "fleet", "requests/r-1": "request"}[name]
        known = {"node": "node.n1", "request": "request-1"}.get(kind, kind)
        about = {"labels": {"baremetal-gpu/kind": kind}}
        path = f"/api/v1/namespaces/{self.settings.namespace}/configmaps/{known}"
        self.api.put(path, {"metadata": about, "data": {"row": "{nonsense"}})


class InApiServer(InKubernetes):
    """A real one."""

    def __init__(self, request: pytest.FixtureRequest, _base: Path) -> None:
        self.settings = KubernetesSettings()
        self.api = request.getfixturevalue("api_server")
        self.api.reset()
        self.api.put(f"{NODES}/n1", {})
        self.caller = self.api.caller(USER)
        self.made = []


def take_over(store: Any, name: str) -> None:
    """As one on another host that leads since."""
    if isinstance(store, FileStore):
        store.lead(name)
    if isinstance(store, KubernetesStore):
        store.leads_until = time.monotonic() + 60.0


@pytest.fixture(params=[InZooKeeper, InFiles, InKubernetes, pytest.param(InApiServer, marks=pytest.mark.slow)])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    one = request.param(request, tmp_path)
    yield one
    for store in one.made:
        if isinstance(one, InKubernetes) and hasattr(store, "lead_place"):
            store.lead_place.release()
        store.close()
    if isinstance(one, InKubernetes) and isinstance(one.api, KubeApi):
        one.api.close()


def leading(kept: Kept, name: str = "head1:1") -> Any:
    store = kept.make()
    store.lead_place = store.place(name)
    assert store.take(store.lead_place, 10.0)
    store.load(keep=True)
    return store


def test_what_is_saved_is_what_the_next_one_loads(kept):
    first = leading(kept)
    first.save_node("n1", ROW)
    first.save_fleet(FLEET)
    first.save_node("n1", {**ROW, "last": [{"time": 1.0, "what": "begin"}]})
    fleet, rows, apart = kept.make().load()
    assert (fleet, apart) == (FLEET, {})
    assert rows == {"n1": {**ROW, "last": [{"time": 1.0, "what": "begin"}]}}


def test_nothing_is_loaded_from_an_empty_one(kept):
    assert leading(kept).load(keep=True) == ({}, {}, {})


def test_who_lost_the_lead_writes_nothing_any_more(kept):
    first = leading(kept)
    first.save_node("n1", ROW)
    second = kept.make()
    take_over(second, "head2:1")
    second.load(keep=True)
    second.save_node("n1", {**ROW, "last": [{"time": 2.0, "what": "begin"}]})
    with pytest.raises(NotLeading):
        first.save_node("n1", ROW)
    assert kept.make().load()[1]["n1"]["last"]


def test_who_leads_is_known_to_others(kept):
    asking = kept.make()
    assert asking.leader() is None
    first = leading(kept, "head1:7")
    assert asking.leader() == "head1:7"
    first.lead_place.cancel()
    first.lead_place.release()
    until(lambda: asking.leader() is None)


def test_what_operators_ask_is_there_until_it_is_done(kept):
    store, asking = leading(kept), kept.make()
    names = [asking.ask({"kind": "permit", "by": "bob"}), asking.ask({"kind": "clear", "host": "n1", "by": "bob"})]
    found = store.requests()
    assert [name for name, _row in found] == names
    assert [row["kind"] for _name, row in found] == ["permit", "clear"]
    store.done(names[0])
    store.done(names[0])
    assert [name for name, _row in store.requests()] == names[1:]


def test_a_request_that_cannot_be_read_is_told(kept):
    store = leading(kept)
    kept.garble("requests/r-1")
    (name, row) = store.requests()[0]
    assert isinstance(row, Unusable)
    store.done(name)
    assert store.requests() == []


def test_an_order_is_there_for_the_host_and_for_the_next_leader(kept):
    document = {"order": None, "clear": {"id": "r-1", "device": None}}
    leading(kept).send("n1", document)
    assert kept.make().sent("n1") == document
    assert kept.make().sent("n2") == {}


def test_verdicts_come_and_go_with_their_agents_and_that_is_news(kept):
    store = kept.make()
    news: list[str | None] = []
    end = store.watch(news.append, lambda: None)
    assert store.verdicts() == {}
    for told in (VERDICT, {**VERDICT, "verdict": "ok"}, None):
        news.clear()
        kept.say(told)
        until(lambda: news)
        found = until(lambda told=told: (store.verdicts() == ({} if told is None else {"n1": told})) or None)
        assert found
        assert store.verdict("n1") == told
    end()
    news.clear()
    kept.say(VERDICT)
    assert news == []


def test_a_verdict_of_another_shape_is_unusable(kept):
    store = kept.make()
    kept.say({**VERDICT, "devices": 1})
    assert "devices" in until(lambda: store.verdict("n1")).why
    kept.say({**VERDICT, "host": "n2"})
    until(lambda: "it belongs to n2" in store.verdict("n1").why)


def test_hosts_are_those_that_speak_or_are_remembered(kept):
    store = leading(kept)
    assert store.hosts() == set()
    kept.say(VERDICT)
    until(lambda: store.hosts() == {"n1"})
    store.save_node("n2", {**ROW, "memory": plan.empty("n2")})
    assert store.hosts() == {"n1", "n2"}


def test_what_cannot_be_read_is_kept_aside_and_told(kept):
    store = leading(kept)
    store.save_node("n1", ROW)
    kept.garble("journal/n1")
    kept.garble("fleet")
    # One that only looks changes nothing.
    kept.make().load()
    again = kept.make()
    take_over(again, "head2:1")
    fleet, rows, _apart = again.load(keep=True)
    assert (fleet, rows) == (None, {})
    assert len([text for text in again.repaired if "kept as" in text]) == 2
    again.save_fleet(FLEET)
    assert again.load(keep=True)[0] == FLEET


# --- files alone ----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InFiles]:
    one = InFiles(request, tmp_path)
    yield one
    for store in one.made:
        store.close()


def test_a_full_disk_keeps_nobody_from_fencing_and_is_told_once(in_files, monkeypatch):
    store = leading(in_files)
    write = file_store.files.write

    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_store.files, "write", full)
    store.save_node("n1", ROW)
    store.save_fleet(FLEET)
    in_files.say(VERDICT)
    store.send("n1", {"order": None, "clear": {"id": "1"}})
    assert store.verdict("n1") == VERDICT
    assert store.sent("n1")["clear"] == {"id": "1"}
    assert [text for text in store.repaired if "No space left" in text] == store.repaired
    assert len(store.repaired) == 1
    monkeypatch.setattr(file_store.files, "write", write)
    store.save_node("n1", ROW)
    assert (store.problem, in_files.make().load()[1]) == ("", {"n1": ROW})


def test_a_state_directory_that_is_not_there_is_not_made_in_its_place(tmp_path):
    """Such as where the file system of two controllers is not mounted."""
    settings = Settings(scheduler="slurm", state_directory=str(tmp_path / "none" / "state"), journal=f"{tmp_path}/j")
    store = FileStore(settings, lambda: True)
    store.open()
    store.prepare()
    assert not (tmp_path / "none").exists()
    assert "cannot be written" in store.repaired[0]
    assert store.take(store.place("head1:1"), 1.0)
    store.save_node("n1", ROW)
    store.close()


def test_one_reconciler_of_a_host_leads_at_a_time(in_files):
    first = leading(in_files)
    other = FileStore(first.settings, lambda: True)
    assert not other.take(other.place("head1:2"), 0.1)
    first.lead_place.release()
    assert other.take(other.place("head1:2"), 10.0)


def test_a_symbolic_link_in_the_place_of_a_file_is_not_written_through(in_files, tmp_path):
    store = leading(in_files)
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "state" / "journal" / "n1.json").symlink_to(target)
    store.save_node("n1", ROW)
    assert target.read_text() == "untouched"
    assert in_files.make().load()[1] == {"n1": ROW}


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(file_store.time, "monotonic", lambda: self.now)


class Controllers:
    def __init__(self, **answers: bool) -> None:
        self.answers = answers

    def controllers(self) -> dict[str, bool]:
        return self.answers


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Controllers, Callable[[], tuple[bool, bool]]]:
    clock, slurm = Clock(monkeypatch), Controllers(head1=True, head2=True)
    first, second = (InCharge(slurm, name) for name in ("head1.example.org", "head2"))  # type: ignore[arg-type]
    return clock, slurm, lambda: (first(), second())


def test_the_first_controller_that_answers_is_in_charge(both):
    clock, slurm, ask = both
    assert ask() == (True, False)
    slurm.answers = {"head1": False, "head2": True}
    assert ask() == (True, False)
    clock.now += file_store.AWAY_S + 1
    assert ask() == (False, True)
    slurm.answers = {"head1": True, "head2": True}
    assert ask() == (True, False)


def test_a_controller_that_begins_without_its_slurmctld_leaves_the_lead_to_the_other(both):
    _clock, slurm, ask = both
    slurm.answers = {"head1": False, "head2": True}
    # The second one has not seen yet that the first does not come.
    assert ask() == (False, False)


def test_a_restart_of_slurmctld_moves_no_lead(both):
    clock, slurm, ask = both
    assert ask() == (True, False)
    for _second in range(10):
        slurm.answers = {"head1": False, "head2": True}
        clock.now += 1
        assert ask() == (True, False)


def test_where_no_controller_answers_the_lead_stays(both):
    clock, slurm, ask = both
    assert ask() == (True, False)
    slurm.answers = {"head1": False, "head2": False}
    clock.now += 3600
    assert ask() == (True, False)


def test_the_only_controller_is_always_in_charge():
    assert InCharge(Controllers(head1=False), "head1")()  # type: ignore[arg-type]
