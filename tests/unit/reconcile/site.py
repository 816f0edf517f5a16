# SPDX-License-Identifier: GPL-3.0-or-later
"""A small site on loopback: a real ZooKeeper, a stand-in master with agents, nodes that publish, and reconcilers.

A node here is hand-made: it publishes the verdicts that a test gives it, and takes orders the way the real one does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl, make_digest_acl_credential

from tests.local_zookeeper import ROOT, LocalEnsemble, LocalZooKeeper
from tests.unit.reconcile import places
from tests.unit.simulators.mesos_cluster import Cluster, Program, free_port, until

ISOLATION = "--isolation=cgroups/cpu,cgroups/devices,filesystem/linux,gpu/nvidia"
# One node in Mesos' own words.
OUT = ("deactivated", "draining", "drained")


class SomeNode:
    """`name` with so many GPUs, in Mesos and in ZooKeeper."""

    def __init__(
        self,
        cluster: Any,
        name: str,
        gpus: int,
        zookeeper: str,
        path: str = "/baremetal-gpu",
        login: tuple[str, str] | None = None,
    ) -> None:
        self.cluster, self.name, self.path = cluster, name, path
        self.uuids = [f"GPU-{name}-{number}" for number in range(gpus)]
        self.fatal: set[str] = set()
        self.listed = list(self.uuids)
        self.port = free_port()
        self.answer: dict[str, Any] | None = None
        # What the host itself tells of its Mesos agent.
        self.unit, self.executors = "active", 0
        self.program = self.start()
        self.login = login
        self.client = KazooClient(zookeeper, timeout=4, auth_data=[("digest", ":".join(login))] if login else None)
        self.client.start()
        self.lock = threading.Lock()
        self.live = True
        self.publish()
        self.client.DataWatch(f"{path}/orders/{name}", self.ordered)

    def start(self) -> Program:
        indices = ",".join(str(self.uuids.index(uuid)) for uuid in self.listed)
        flags = [ISOLATION, f"--resources=gpus:{len(self.listed)}", f"--nvidia_gpu_devices={indices}"]
        return self.cluster.agent(self.name, *flags, gpus=",".join("ok" for _uuid in self.uuids), port=self.port)

    def verdict(self) -> dict[str, Any]:
        reason = {"code": "xid", "verdict": "fatal", "action": "reset_gpu", "text": "Xid 79"}
        rows = [
            {
                "uuid": uuid,
                "index": index,
                "pci_address": f"0000:{index:02x}:00.0",
                "verdict": "fatal" if uuid in self.fatal else "ok",
                "reasons": [reason] if uuid in self.fatal else [],
            }
            for index, uuid in enumerate(self.uuids)
        ]
        return {
            "schema": 1,
            "host": self.name,
            "time": time.time(),
            "boot_id": "1",
            "verdict": "fatal" if self.fatal else "ok",
            "reasons": [],
            "devices": rows,
            "listed": self.listed,
            "order": self.answer,
            "mesos": {"agent_id": self.latest(), "unit": self.unit, "executors": self.executors},
        }

    def latest(self) -> str | None:
        """The id that its Mesos agent would come back with."""
        link = self.cluster.base / self.name / "meta/slaves/latest"
        return link.resolve().name if link.is_symlink() else None

    def publish(self) -> None:
        # Also after a session that did not outlive the start of a server.
        with self.lock:
            KazooRetry(max_tries=100, delay=0.2, backoff=1)(self._publish)

    def _publish(self) -> None:
        path = f"{self.path}/hosts/{self.name}/verdict" if self.login else f"{self.path}/verdicts/{self.name}"
        data = json.dumps(self.verdict()).encode()
        # As the real one does, for itself and for the reconciler.
        acl = (
            [make_digest_acl(*self.login, all=True), make_digest_acl(*places.LOGIN, read=True)] if self.login else None
        )
        try:
            self.client.set(path, data)
        except NoNodeError:
            try:
                self.client.create(path, data, acl=acl, ephemeral=True)
            except NodeExistsError:
                self.client.set(path, data)

    def fault(self, number: int) -> None:
        self.fatal.add(self.uuids[number])
        self.publish()

    def mend(self, number: int) -> None:
        self.fatal.discard(self.uuids[number])
        self.publish()

    def ordered(self, data: bytes | None, _stat: Any) -> bool:
        order = json.loads(data)["order"] if data else None
        if order and (self.answer is None or self.answer["id"] != order["id"]):
            threading.Thread(target=self.obey, args=(order,), daemon=True).start()
        return self.live

    def obey(self, order: dict[str, Any]) -> None:
        meta = self.cluster.base / self.name / "meta/slaves/latest"
        if order.get("withdrawn"):
            self.answer = {"id": order["id"], "state": "failed", "error": "withdrawn"}
        elif meta.exists() and meta.resolve().name != order["agent_id"]:
            self.answer = {"id": order["id"], "state": "failed", "error": f"it is {meta.resolve().name}"}
        else:
            self.program.stop()
            if meta.is_symlink():
                meta.unlink()
            self.listed = list(order["gpus"])
            self.program = self.start()
            self.answer = {"id": order["id"], "state": "done"}
        while self.live:
            try:
                self.publish()
                break
            except KazooException:
                time.sleep(0.2)

    @property
    def state(self) -> str:
        row = self.cluster.slave(self.name)
        if row is None:
            return "gone"
        if "drain_info" in row:
            return str(row["drain_info"]["state"]).lower()
        return "deactivated" if row["deactivated"] else "active"

    def stop(self) -> None:
        self.live = False
        self.client.stop()
        self.client.close()


class Site:
    def __init__(self, base: Path, zookeeper: LocalZooKeeper | LocalEnsemble, *flags: str, **settings: Any) -> None:
        self.base, self.zookeeper = base, zookeeper
        # Each site has a part of the server for itself.
        self.path = f"/{base.name}"
        self.cluster = Cluster(base / "mesos", *flags)
        self.nodes: list[SomeNode] = []
        self.reconcilers: list[subprocess.Popen[str]] = []
        policy = {"mode": "act", "settle_s": 0, "retry_s": 0.5, **settings.pop("policy", {})}
        self.config = base / "reconciler.json"
        self.secrets = places.private(
            base / "secrets", {"zookeeper_user": places.LOGIN[0], "zookeeper_password": places.LOGIN[1]}
        )
        self.logins: dict[str, str] = {}
        places.private(base / "logins", self.logins)
        self.journal = base / "journal.jsonl"
        self.settings = {
            "zookeeper": zookeeper.address,
            "path": self.path,
            "masters": [self.cluster.url],
            "journal": str(self.journal),
            "poll_s": 0.3,
            "session_s": 2,
            "policy": policy,
            "credentials": str(self.secrets),
            "logins": str(base / "logins"),
            **settings,
        }
        self.config.write_text(json.dumps(self.settings))
        self.client = places.as_reconciler(zookeeper.address)

    def login(self, name: str) -> tuple[str, str]:
        """Of a host, which the reconciler learns of."""
        self.logins[name] = make_digest_acl_credential(*places.login_of(name))
        places.private(self.base / "logins", self.logins)
        return places.login_of(name)

    def place(self, name: str) -> tuple[str, str]:
        """A login of a host, and its node as the reconciler makes it."""
        self.login(name)
        return places.make(self.client, self.path, name)

    def node(self, name: str, gpus: int = 2) -> SomeNode:
        one = SomeNode(self.cluster, name, gpus, self.zookeeper.address, self.path, self.place(name))
        self.nodes.append(one)
        until(lambda: one.state == "active")
        return one

    def reconciler(self, *words: str, program: list[str] | None = None) -> subprocess.Popen[str]:
        """A process of its own. `program` takes the place of gpuops."""
        command = program or [sys.executable, "-m", "gpuops", "reconcile"]
        with (self.base / "reconciler.log").open("a") as log:
            process = subprocess.Popen(
                [*command, "--config", str(self.config), *words],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self.reconcilers.append(process)
        return process

    def leading(self, *words: str) -> subprocess.Popen[str]:
        before = len(self.entries("lead"))
        process = self.reconciler(*words)
        until(lambda: len(self.entries("lead")) > before)
        return process

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpuops", *words, "--config", str(self.config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def entries(self, what: str = "", host: str = "") -> list[dict[str, Any]]:
        """Lines of the journal."""
        if not self.journal.exists():
            return []
        rows = [json.loads(line) for line in self.journal.read_text().splitlines() if line.endswith("}")]
        return [row for row in rows if what in ("", row["what"]) and host in ("", row["host"])]

    def way(self, host: str) -> list[str]:
        """The steps that were begun."""
        return [row["kind"] for row in self.entries("begin", host)]

    def stop(self) -> None:
        for process in self.reconcilers:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(20)
        for node in self.nodes:
            node.stop()
        self.cluster.stop()
        self.client.stop()
        self.client.close()
        shutil.rmtree(self.base / "mesos", ignore_errors=True)
