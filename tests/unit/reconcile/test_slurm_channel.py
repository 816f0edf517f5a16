# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's publisher and the reconciler's receiver on loopback, with a real munged for each of the two hosts."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import courier
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import slurm as agent_slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import receiver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import store as file_store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.store import FileStore
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge, verdict_channel
from tests.local_munge import LocalMunge, NotHere
from tests.local_zookeeper import free_port
from tests.unit.simulators.mesos_cluster import until

NODE = "127.0.0.2"


@pytest.fixture(scope="module")
def munges() -> Iterator[tuple[LocalMunge, LocalMunge]]:
    """Of a node, and of a host of slurmctld."""
    try:
        node = LocalMunge(NODE)
    except NotHere as why:
        pytest.skip(str(why))
    controller = LocalMunge("127.0.0.1", node.key)
    yield node, controller
    node.remove()
    controller.remove()


def verdict(state: str = "ok", host: str = "n1") -> dict[str, Any]:
    return {"schema": 1, "host": host, "verdict": state, "reasons": [], "devices": [], "time": 1.0}


class Head:
    """A host of slurmctld."""

    def __init__(self, base: Path, munged: str, port: int = 0, directory: Path | None = None) -> None:
        base.mkdir(exist_ok=True)
        (base / "slurm.conf").write_text(
            f"# nodes\nNodeName=n1 CPUs=4 NodeAddr={NODE} State=UNKNOWN\nNodeName=n2 CPUs=4 NodeAddr=127.0.0.3\n"
        )
        self.in_charge = True
        self.news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.settings = Settings(
            scheduler="slurm",
            state_directory=str(directory or base / "state"),
            port=port or free_port(),
            slurm_conf=str(base / "slurm.conf"),
            munge=munged,
            journal=str(base / "own" / "journal.jsonl"),
        )
        self.store = self.start()

    def start(self) -> FileStore:
        self.store = FileStore(self.settings, lambda: self.in_charge)
        self.store.open()
        self.store.prepare()
        self.store.serve()
        self.store.watch(self.news.put, lambda: None)
        return self.store

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.settings.port}"

    def says(self, host: str = "n1") -> Any:
        told = self.store.verdict(host)
        return told["verdict"] if isinstance(told, dict) else told


@pytest.fixture
def head(munges, tmp_path: Path) -> Iterator[Head]:
    one = Head(tmp_path / "head1", munges[1].socket)
    yield one
    one.store.close()


@pytest.fixture
def agent(munges) -> Iterator[Callable[..., agent_slurm.SlurmController]]:
    made: list[agent_slurm.SlurmController] = []

    def make(*heads: Head | str, **more: Any) -> agent_slurm.SlurmController:
        addresses = [one if isinstance(one, str) else one.address for one in heads]
        settings = agent_slurm.Settings(addresses, **{"host": "n1", "munge": munges[0].socket, **more})
        made.append(agent_slurm.SlurmController(settings, lambda told: told))
        return made[-1]

    yield make
    for one in made:
        one.close()


def put(one: agent_slurm.SlurmController, told: dict[str, Any]) -> str:
    """Publish; gives what it says is wrong."""
    one.hear()
    try:
        one.publish(told)
    except OSError as why:
        return str(why)
    return ""


def test_a_verdict_arrives_at_once_and_so_does_the_next_one(head, agent):
    one = agent(head)
    one.publish(verdict("ok"))
    until(lambda: head.says() == "ok")
    one.publish(verdict("fatal"))
    until(lambda: head.says() == "fatal", 10)
    assert put(one, verdict("fatal")) == ""


def test_what_is_said_is_kept_for_the_next_reconciler(head, agent):
    place = head.store.place("head1:1")
    assert head.store.take(place, 1.0)
    agent(head).publish(verdict("fatal"))
    until(lambda: head.says() == "fatal")
    head.store.close()
    place.release()
    after = FileStore(head.settings)
    after.open()
    assert after.verdict("n1")["verdict"] == "fatal"
    file = Path(head.settings.state_directory) / "verdicts" / "n1.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_agent_that_stops_says_so(head, agent):
    one = agent(head)
    one.publish(verdict())
    until(lambda: head.says() == "ok")
    one.close()
    assert head.says() is None


def test_an_agent_that_is_killed_is_silent_after_a_while(head, agent, monkeypatch):
    monkeypatch.setattr(file_store, "SILENT_S", 1.0)
    one = agent(head, heartbeat_s=0.3)
    one.publish(verdict())
    until(lambda: head.says() == "ok")
    time.sleep(1.5)
    # It lives, so its heartbeats keep the verdict.
    assert head.says() == "ok"
    while not head.news.empty():
        head.news.get()
    os.kill(one.process, signal.SIGKILL)
    until(lambda: head.says() is None, 20)
    assert until(lambda: head.news.get(timeout=10), 20) == "n1"


def test_an_agent_that_hangs_says_nothing_for_its_child_either(head, agent, monkeypatch):
    monkeypatch.setattr(file_store, "SILENT_S", 1.0)
    one = agent(head, heartbeat_s=0.3, silent_s=0.5)
    one.publish(verdict())
    until(lambda: head.says() == "ok")
    until(lambda: head.says() is None, 20)


def test_it_is_said_again_until_there_is_an_answer(head, agent):
    head.store.close()
    one = agent(head)
    put(one, verdict("fatal"))
    until(lambda: "no host of slurmctld has the verdict" in put(one, verdict("fatal")))
    head.start()
    until(lambda: head.says() == "fatal", 20)
    until(lambda: put(one, verdict("fatal")) == "", 20)


@pytest.mark.parametrize(
    ("whose", "said"), [(0, "munge makes no credential"), (1, "it refuses")], ids=["of the node", "of the controller"]
)
def test_munged_that_is_away_delays_a_verdict_and_loses_none(head, agent, munges, whose, said):
    munges[whose].stop(signal.SIGKILL)
    one = agent(head)
    try:
        put(one, verdict("fatal"))
        until(lambda: said in put(one, verdict("fatal")), 20)
        assert head.says() is None
    finally:
        munges[whose].start()
    until(lambda: head.says() == "fatal", 20)


def test_both_controllers_hear_it_and_one_that_is_away_keeps_the_other_not_waiting(munges, agent, tmp_path):
    heads = [Head(tmp_path / name, munges[1].socket, directory=tmp_path / "shared") for name in ("head1", "head2")]
    # Nothing listens at the first address.
    one = agent(f"127.0.0.1:{free_port()}", *heads)
    one.publish(verdict("fatal"))
    for head in heads:
        until(lambda head=head: head.says() == "fatal", 10)
    # It is for gpuops status to name a controller that is away.
    until(lambda: put(one, verdict("fatal")) == "")
    for head in heads:
        head.store.close()


def test_what_an_operator_says_comes_with_the_answer_of_who_leads(head, agent):
    orders = {"order": None, "clear": {"id": "r-1", "device": "GPU-1"}}
    one = agent(head, heartbeat_s=0.6)
    place = head.store.place("head1:1")
    one.publish(verdict("fatal"))
    until(lambda: head.says() == "fatal")
    assert one.hear() == []
    head.store.take(place, 1.0)
    head.store.send("n1", orders)
    found: list[dict[str, Any]] = []

    def heard() -> list[dict[str, Any]]:
        found.extend(one.hear())
        return found

    assert until(heard, 20) == [orders]
    place.release()


def test_a_child_that_is_killed_is_started_again(head, agent, monkeypatch):
    monkeypatch.setattr(courier, "RESTART_S", 0.0)
    one = agent(head)
    one.publish(verdict("ok"))
    until(lambda: head.says() == "ok")
    os.kill(one.process, signal.SIGKILL)
    until(lambda: put(one, verdict("fatal")) == "" and head.says() == "fatal", 20)


# --- what is not believed -----------------------------------------------------------------------------------------


class Line:
    """A connection by hand."""

    def __init__(self, head: Head, at: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((at, head.settings.port), 5)
        self.end = time.monotonic() + 10
        self.key = secrets.token_hex(32)
        self.nonce = verdict_channel.nonce_of(verdict_channel.read_line(self.socket, 1024, self.end))

    def payload(self, host: str = "n1", told: dict[str, Any] | None = None, **more: Any) -> bytes:
        said = json.loads(verdict_channel.message(host, told or verdict("ok", host), self.nonce, self.key))
        return json.dumps({**said, **more}).encode()

    def say(self, credential: str | bytes) -> dict[str, Any]:
        self.socket.sendall((credential.encode() if isinstance(credential, str) else credential) + b"\n")
        try:
            line = verdict_channel.read_line(self.socket, 1 << 16, self.end)
        finally:
            self.socket.close()
        return json.loads(line)


def refused(head: Head, line: Line, credential: str | bytes, host: str = "n1") -> str:
    told = line.say(credential)
    assert "answer" not in told
    assert head.store.verdict(host) is None
    until(lambda: head.store.repaired)
    return str(told["refused"])


def test_what_a_user_of_the_node_says_is_refused(head, munges):
    line = Line(head)
    argv = [munge.MUNGE, f"--socket={munges[0].socket}", "--restrict-uid=0"]
    done = subprocess.run(argv, input=line.payload(), capture_output=True, user=65534, check=True)
    assert "uid 65534" in refused(head, line, done.stdout.strip())


def test_what_another_node_says_of_this_one_is_refused(head, munges):
    line = Line(head)
    why = refused(head, line, munge.encode(line.payload("n2"), socket=munges[0].socket), "n2")
    assert "comes from 127.0.0.1, and slurm.conf has that node at 127.0.0.3" in why
    assert "set slurm_common_address of n2" in why
    assert any("127.0.0.3" in text for text in head.store.repaired)


def test_what_another_host_says_of_a_node_is_refused_also_from_that_nodes_address(head, munges):
    other = LocalMunge("192.0.2.7", munges[0].key)
    line = Line(head)
    try:
        assert "comes from 192.0.2.7" in refused(head, line, munge.encode(line.payload(), socket=other.socket))
    finally:
        other.remove()


def test_a_node_that_has_its_own_name_as_a_loopback_address_is_known_by_its_connection(head, munges):
    """As Debian's installer writes it into /etc/hosts."""
    conf = Path(head.settings.slurm_conf)
    conf.write_text(conf.read_text().replace(NODE, "127.0.0.1"))
    debian = LocalMunge("127.0.1.1", munges[0].key)
    line = Line(head)
    try:
        assert "answer" in line.say(munge.encode(line.payload(), socket=debian.socket))
    finally:
        debian.remove()
    assert head.says() == "ok"


def test_a_node_without_an_ipv4_address_is_known_by_its_connection(head, munges):
    """Its munged has no address of the host, and says 0.0.0.0."""
    conf = Path(head.settings.slurm_conf)
    conf.write_text(conf.read_text().replace(NODE, "::1"))
    munged = LocalMunge("0.0.0.0", munges[0].key)
    try:
        line = Line(head)
        why = refused(head, line, munge.encode(line.payload(), socket=munged.socket))
        assert "comes from 127.0.0.1, and slurm.conf has that node at ::1" in why
        line = Line(head, "::1")
        assert "answer" in line.say(munge.encode(line.payload(), socket=munged.socket))
    finally:
        munged.remove()
    assert head.says() == "ok"


def test_a_node_that_the_cluster_does_not_have_is_refused(head, munges):
    line = Line(head)
    why = refused(head, line, munge.encode(line.payload("n9"), socket=munges[0].socket), "n9")
    assert "n9 is not a node of this cluster" in why


def test_a_replayed_credential_is_refused_also_by_the_other_controller(head, munges, tmp_path):
    first = Line(head)
    credential = munge.encode(first.payload(told=verdict("fatal")), socket=munges[0].socket)
    assert "answer" in first.say(credential)
    again = Line(head).say(credential)
    assert "used before" in again["refused"].lower()
    # To the munged of another host it is new. It was made for another connection.
    other_munge = LocalMunge("127.0.0.9", munges[0].key)
    other = Head(tmp_path / "head2", other_munge.socket)
    try:
        assert "another connection" in refused(other, Line(other), credential)
    finally:
        other.store.close()
        other_munge.remove()


def test_a_credential_of_another_cluster_is_refused(head):
    foreign = LocalMunge(NODE)
    try:
        line = Line(head)
        refused(head, line, munge.encode(line.payload(), socket=foreign.socket))
    finally:
        foreign.remove()


@pytest.mark.parametrize(
    "more",
    [{"schema": 2}, {"key": "x"}, {"nonce": None}, {"verdict": []}, {"host": 1}],
    ids=lambda more: next(iter(more)),
)
def test_what_is_no_message_is_refused(head, munges, more):
    line = Line(head)
    refused(head, line, munge.encode(line.payload(**more), socket=munges[0].socket))


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff\x00", b"MUNGE:AAAA:"], ids=repr)
def test_garbage_is_refused(head, data):
    refused(head, Line(head), data)


def test_a_line_without_an_end_is_cut_off(head):
    line = Line(head)
    told = b""
    with contextlib.suppress(OSError):
        line.socket.sendall(b"M" * (munge.CREDENTIAL_AT_MOST + 2))
        told = line.socket.recv(1 << 16)
    line.socket.close()
    assert b"answer" not in told
    assert head.says() is None


def test_a_malformed_verdict_of_a_node_is_that_nodes_alone(head, agent, munges):
    line = Line(head)
    told = {**verdict(), "devices": "none"}
    assert "answer" in line.say(munge.encode(line.payload(told=told), socket=munges[0].socket))
    assert "devices" in head.store.verdict("n1").why


def test_who_holds_connections_open_keeps_nobody_out(head, munges, monkeypatch):
    """Not even root of the same node, and also where all connections are held."""
    monkeypatch.setattr(receiver, "AT_MOST", 12)
    held = [Line(head) for _number in range(2 * receiver.OF_ONE_AT_MOST)]
    line = Line(head)
    assert "answer" in line.say(munge.encode(line.payload(), socket=munges[0].socket))
    # The oldest were ended for it.
    assert held[0].socket.recv(1) == b""
    monkeypatch.setattr(receiver, "OF_ONE_AT_MOST", 99)
    held += [Line(head) for _number in range(2 * receiver.AT_MOST)]
    line = Line(head)
    assert "answer" in line.say(munge.encode(line.payload(), socket=munges[0].socket))
    for one in held:
        one.socket.close()


def test_no_more_is_done_for_one_address_at_the_same_time_than_for_a_node(head, munges, monkeypatch):
    """munged that hangs leaves no thread for each who asks again."""
    munged_answers = threading.Event()

    def hangs(*_words: Any) -> None:
        munged_answers.wait(20)
        raise CallFailed("it does not answer")

    monkeypatch.setattr(receiver.munge, "decode", hangs)
    lines = [Line(head) for _number in range(receiver.OF_ONE_AT_MOST)]
    for line in lines:
        line.socket.sendall(b"MUNGE:AAAA:\n")
    until(lambda: not head.store._receiver._silent)
    one_more = Line(head)
    one_more.socket.sendall(b"MUNGE:AAAA:\n")
    assert one_more.socket.recv(1) == b""
    munged_answers.set()
    for line in lines:
        line.socket.close()


def test_an_answer_of_whoever_has_the_port_is_not_believed(agent):
    """Such as of a user, while the reconciler is away."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = agent(f"127.0.0.1:{listener.getsockname()[1]}")
    put(one, verdict("fatal"))
    connection, _address = listener.accept()
    connection.sendall(verdict_channel.greeting(secrets.token_hex(32)))
    connection.recv(1 << 16)
    connection.sendall(verdict_channel.answer({"leads": True, "orders": {}}, secrets.token_hex(32)))
    connection.close()
    listener.close()
    until(lambda: "cluster's key of munge" in put(one, verdict("fatal")), 20)
