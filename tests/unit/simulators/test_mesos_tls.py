# SPDX-License-Identifier: GPL-3.0-or-later
"""A master and an agent of the stand-ins on the way to TLS and back, with the variables that the roles give them."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.arguments import members
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import http_transport, tls_first
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import tasks_of_agent
from ansible_collections.baremetal.gpu.plugins.plugin_utils.certificates import Authority
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import tls as mesos_tls
from tests.unit.simulators.mesos_cluster import Program, free_port, until

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories as a host has them: with our authority's certificates, and with those of a stranger."""
    found = {}
    for name in ("ours", "strangers"):
        place = tmp_path_factory.mktemp(name)
        authority = Authority(str(place / "site"))
        authority.make()
        for file, prefix in (("host", ""), ("executor", "executor-")):
            authority.sign(file, [HERE], 2)
            (place / "tls").mkdir(exist_ok=True)
            (place / f"site/{file}.pem").rename(place / f"tls/{prefix}certificate.pem")
            (place / f"site/{file}-key.pem").rename(place / f"tls/{prefix}key.pem")
        (place / "site/ca.pem").rename(place / "tls-ca.pem")
        found[name] = place / "tls"
    return found


class Pair:
    """One master and one agent."""

    def __init__(self, base: Path, certificates: Path) -> None:
        self.base, self.certificates = base, certificates
        self.ca = f"{certificates}-ca.pem"
        self.ports = {"master": free_port(), "agent": free_port()}
        self.running: dict[str, Program] = {}
        self.modes: dict[str, str] = {}
        self.framework = ""
        self.anyhow = tls_first(http_transport(5.0, self.ca))

    def variables(self, mode: str, **more: str) -> dict[str, str]:
        return {**mesos_tls.libprocess(mode, str(self.certificates), "1.11.0"), **more}

    def start(self, name: str, mode: str, **more: str) -> Program:
        """Starts it, or starts it anew, with the variables of a mode."""
        if name in self.running:
            self.running[name].stop(signal.SIGKILL)
        self.modes[name] = mode
        flags = [f"--work_dir={self.base}/{name}", f"--port={self.ports[name]}", f"--ip={HERE}", "--no-hostname_lookup"]
        variables = self.variables(mode, **more)
        if name == "agent":
            flags += [f"--master={HERE}:{self.ports['master']}", "--hostname=cpu1"]
            if mode != "off":
                told = mesos_tls.executor_variables(mode, str(self.certificates), "1.11.0")
                variables.setdefault("MESOS_EXECUTOR_ENVIRONMENT_VARIABLES", told)
        # How soon an agent is back with a master that it has by its address is no matter here.
        self.running[name] = Program(name, flags, {**variables, "STAND_IN_RETURN_S": "0.1"})
        return self.running[name]

    def ask(self, name: str, path: str, body: Any = None, way: str = "") -> Any:
        """JSON of the answer by http, by https, or by the one or the other. Raises OSError."""
        transport = http_transport(5.0, self.ca) if way else self.anyhow
        data = None if body is None else json.dumps(body).encode()
        answer = transport("POST" if data else "GET", f"{way or 'http'}://{HERE}:{self.ports[name]}{path}", {}, data)
        if answer.status != 200:
            raise ConnectionError(answer.status)
        return json.loads(answer.body or b"null")

    def registered(self) -> bool:
        return bool(self.ask("agent", "/metrics/snapshot")["slave/registered"] == 1) and bool(self.slaves())

    def slaves(self) -> list[dict[str, Any]]:
        return [row for row in self.ask("master", "/slaves")["slaves"] if row["active"]]

    def launch(self, name: str) -> None:
        # A master that was started anew waits for it to come back.
        told = {"id": self.framework, "name": "test", "capabilities": [], "failover_timeout": 1000.0}
        self.framework = self.ask("master", "/stand-in/framework", told)["id"]
        task = {"id": name, "name": name, "cmd": "sleep 1000", "resources": {"cpus": 0.1, "mem": 32}}
        body = {"framework_id": self.framework, "agent_id": self.slaves()[0]["id"], "task": task}
        until(lambda: self.ask("master", "/stand-in/launch", body))

    def tasks(self) -> dict[str, dict[str, Any]]:
        """The agent's own, as it has written them down."""
        told = (self.base / "agent/meta/slaves/latest/tasks.json").read_text(encoding="utf-8")
        return dict(json.loads(told))

    def states(self) -> dict[str, str]:
        return {name: row["state"].removeprefix("TASK_") for name, row in self.tasks().items()}

    def runs(self, name: str) -> bool:
        row = self.tasks().get(name, {})
        return row.get("state") == "TASK_RUNNING" and Path(f"/proc/{row['pid']}").exists()

    def has_ended(self, names: set[str]) -> bool:
        return not any(map(self.runs, names))

    def stop(self) -> None:
        for program in self.running.values():
            program.stop(signal.SIGKILL)
        for file in self.base.glob("agent/meta/slaves/latest/tasks.json"):
            for row in json.loads(file.read_text(encoding="utf-8")).values():
                if row["pid"] and Path(f"/proc/{row['pid']}").exists():
                    os.killpg(row["pid"], signal.SIGKILL)


@pytest.fixture
def pair(tmp_path: Path, certificates: dict[str, Path]) -> Iterator[Pair]:
    one = Pair(tmp_path, certificates["ours"])
    yield one
    one.stop()


def seen(pair: Pair, name: str, scheme: str, **more: Any) -> list[str]:
    """What mesos_ready_info would complain of."""
    row = {"name": name, "url": f"{scheme}://{HERE}:{pair.ports[name]}"}
    asked = {"program": name, "members": [row], "user": "", "password": "", "gpus": -1, "ca_file": pair.ca}
    # As the roles name it.
    encrypted = pair.modes["master"] == "required"
    asked["masters"] = [f"{'https' if encrypted else 'http'}://{HERE}:{pair.ports['master']}"]
    found: list[str] = members({**asked, "tls_first": False, **more}).look()["problems"]
    return found


def test_by_way_of_downgrade_work_goes_on_there_and_back(pair: Pair) -> None:
    pair.start("master", "off")
    pair.start("agent", "off")
    until(pair.registered)
    now = {"master": "off", "agent": "off"}
    # Each task that runs, and what the agent spoke when it was launched.
    alive: dict[str, str] = {}
    there = [("master", "downgrade"), ("agent", "downgrade"), ("master", "required"), ("agent", "required")]
    back = [("agent", "downgrade"), ("master", "downgrade"), ("agent", "off"), ("master", "off")]
    for number, (name, mode) in enumerate([("agent", "off"), *there, *back]):
        pair.start(name, mode)
        now[name] = mode
        until(pair.registered)
        # What the roles refuse to do while such a task runs: its executor and the agent cannot talk.
        lost = {task for task, then in alive.items() if {then, now["agent"]} == {"off", "required"}}
        assert bool(lost) == ((name, mode) in (("agent", "required"), ("agent", "off")) and number > 0)
        # An agent that is registered may still be ending them.
        until(functools.partial(pair.has_ended, lost))
        assert {task: pair.runs(task) for task in alive} == {task: task not in lost for task in alive}
        assert {pair.states()[task] for task in lost} <= {"FAILED"}
        alive = {task: then for task, then in alive.items() if task not in lost}
        pair.launch(f"task-{number}")
        until(lambda task=f"task-{number}": pair.runs(task))
        alive[f"task-{number}"] = now["agent"]
        path = "/version" if name == "master" else "/state"
        if mode == "required":
            assert (seen(pair, name, "https"), len(seen(pair, name, "http"))) == ([], 1)
            with pytest.raises(OSError, match=r"no answer in HTTP|reset"):
                pair.ask(name, path, way="http")
        elif mode == "downgrade":
            assert (seen(pair, name, "http"), seen(pair, name, "https")) == ([], [])
        # However far it is, the role that takes it there finds it.
        assert seen(pair, name, "http", tls_first=True) == []
    assert seen(pair, "master", "https")


def test_who_speaks_nothing_but_tls_and_who_speaks_none_do_not_meet(pair: Pair) -> None:
    pair.start("master", "required")
    pair.start("agent", "off")
    until(lambda: pair.ask("master", "/version"))
    until(lambda: pair.ask("agent", "/state"))
    assert "not registered" in seen(pair, "agent", "http")[0]
    assert pair.slaves() == []
    with socket.create_connection((HERE, pair.ports["master"]), 5) as plain:
        plain.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.recv(100) == b""


def test_a_strangers_certificate_is_refused_by_all(pair: Pair, certificates: dict[str, Path]) -> None:
    pair.start("master", "required")
    until(lambda: pair.ask("master", "/version"))
    stranger = Pair(pair.base / "x", certificates["strangers"])
    url = f"https://{HERE}:{pair.ports['master']}"
    for transport in (http_transport(5.0, stranger.ca), http_transport(5.0), tls_first(http_transport(5.0))):
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            transport("GET", f"{url}/version", {}, None)
    # Not even where it could do without.
    pair.start("master", "downgrade")
    until(lambda: pair.ask("master", "/version"))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        tls_first(http_transport(5.0))("GET", f"http://{HERE}:{pair.ports['master']}/version", {}, None)
    # An agent that trusts others than this master's does not register.
    pair.start("master", "required")
    until(lambda: pair.ask("master", "/version"))
    pair.start("agent", "required", LIBPROCESS_SSL_CA_FILE=stranger.ca)
    until(lambda: pair.ask("agent", "/state"))
    assert "not registered" in seen(pair, "agent", "https")[0]


def test_a_task_that_cannot_read_its_executors_key_does_not_start(pair: Pair, tmp_path: Path) -> None:
    pair.start("master", "required")
    told = {**mesos_tls.libprocess("required", str(pair.certificates), "1.11.0", "executor-")}
    told["LIBPROCESS_SSL_KEY_FILE"] = str(tmp_path / "nosuch.pem")
    pair.start("agent", "required", MESOS_EXECUTOR_ENVIRONMENT_VARIABLES=json.dumps(told))
    until(pair.registered)
    pair.launch("a")
    until(lambda: pair.states().get("a") == "FAILED")
    assert "could not read LIBPROCESS_SSL_KEY_FILE" in pair.tasks()["a"]["message"]
    pair.start("agent", "required", MESOS_EXECUTOR_ENVIRONMENT_VARIABLES="{}")
    until(pair.registered)
    pair.launch("b")
    until(lambda: pair.states().get("b") == "FAILED")
    assert "could not register" in pair.tasks()["b"]["message"]


@pytest.mark.parametrize("program", ["master", "agent"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"LIBPROCESS_SSL_KEY_FILE": ""}, "SSL requires key"),
        ({"LIBPROCESS_SSL_CERT_FILE": ""}, "SSL requires certificate"),
        ({"LIBPROCESS_SSL_CERT_FILE": "/nosuch"}, "Could not load"),
        ({"LIBPROCESS_SSL_CA_FILE": "/nosuch"}, "Could not load CA file"),
    ],
)
def test_a_program_without_its_files_does_not_start(
    pair: Pair, program: str, change: dict[str, str], words: str
) -> None:
    status, told = pair.start(program, "downgrade", **change).ended()
    assert status == 1
    assert words in told


def test_what_libprocess_offers_by_itself_is_not_enough_for_a_client_of_today(pair: Pair) -> None:
    client = ssl.create_default_context(cafile=pair.ca)
    # What browsers and Go offer, and Python as its authors build it. That of a distribution may offer more.
    client.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")

    def version() -> Any:
        url = f"https://{HERE}:{pair.ports['master']}/version"
        with urllib.request.urlopen(url, timeout=5.0, context=client) as answer:
            return json.load(answer)["version"]

    pair.start("master", "downgrade", LIBPROCESS_SSL_CIPHERS="")
    until(lambda: pair.ask("master", "/version"))
    with pytest.raises(urllib.error.URLError, match="HANDSHAKE_FAILURE"):
        version()
    pair.start("master", "downgrade")
    assert until(version)


def test_the_agent_is_asked_for_its_tasks_by_tls(pair: Pair) -> None:
    pair.start("master", "required")
    pair.start("agent", "required")
    until(pair.registered)
    url = f"https://{HERE}:{pair.ports['agent']}"
    assert tasks_of_agent(url, ca_file=pair.ca) == []
    # One that is not trusted is not one without tasks.
    with pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"):
        tasks_of_agent(url)
    with pytest.raises(Refused, match="cannot be read"):
        tasks_of_agent(url, ca_file="/nosuch")


def test_openssl_itself_finds_nothing_wrong_with_it(pair: Pair) -> None:
    pair.start("master", "required")
    until(lambda: pair.ask("master", "/version"))
    connect = ["openssl", "s_client", "-connect", f"{HERE}:{pair.ports['master']}", "-CAfile", pair.ca, "-verify_ip"]
    done = subprocess.run(
        [*connect, HERE, "-verify_return_error"], input="", capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, "Verify return code: 0 (ok)" in done.stdout) == (0, True), done
