# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of a node's GPUs while the pods of a Job come and go and daemons are killed, and what became of the pods.

What is given out is read where it is decided: with the device plugin at kubelet's own socket, twenty times a second;
with the driver from the ResourceSlice and the claims that the API server has.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.site.kubernetes_lab import GPU, HEAD, kubectl
from tests.site.plays import ROOT, ssh, until, xid

LOG = "/var/tmp/faults"
# By their positions, where the simulated GPUs are on the PCI bus.
ADDRESSES = ("0000:3b:00", "0000:af:00")
# A static pod that was killed for the third time waits 40 s.
PATIENCE_S, AGAIN_S = 300.0, 30.0
# Both print a line for each change: the GPUs that a next pod may get, and a pod that was given one.
SHOW = r"""
import json, re, subprocess, sys, threading, time


def show(**row):
    sys.stdout.write(json.dumps({"at": time.time(), **row}) + "\n")
    sys.stdout.flush()


"""
# The answers are read as text: a name comes before the GPUs that belong to it.
WATCH_KUBELET = r"""
import grpc

SOCKET = "unix:///var/lib/kubelet/pod-resources/kubelet.sock"
WORD = re.compile(rb"(faults-[a-z0-9-]{5})|(GPU-[0-9a-f-]{36})")


def ask(name):
    with grpc.insecure_channel(SOCKET) as channel:
        return channel.unary_unary("/v1.PodResourcesLister/" + name)(b"", timeout=2)


free, given = None, set()
while True:
    time.sleep(0.05)
    try:
        now = sorted(match[2].decode() for match in WORD.finditer(ask("GetAllocatableResources")) if match[2])
        pod, has = "", set()
        for match in WORD.finditer(ask("List")):
            pod = match[1].decode() if match[1] else pod
            if match[2]:
                has.add((pod, match[2].decode()))
    except grpc.RpcError:
        # kubelet is away, and gives out nothing.
        now, has = [], given
    for pod, gpu in sorted(has - given):
        show(pod=pod, gpu=gpu)
    given = has
    if now != free:
        free = now
        show(free=free)
"""
WATCH_API = r"""
NODE = sys.argv[1]
KUBECTL = ["kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "get", "--raw"]
GROUP = "/apis/resource.k8s.io/v1/"
names, given = {}, set()


def of_slice(found):
    if found["spec"].get("nodeName") == NODE:
        rows = found["spec"]["devices"]
        names.update({row["name"]: row["attributes"]["uuid"]["string"] for row in rows})
        show(free=[names[row["name"]] for row in rows if not row.get("taints")])


def of_claim(found):
    for row in (found.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ()):
        if row["pool"] == NODE:
            for pod in found["metadata"].get("ownerReferences", ()):
                one = pod["name"], names[row["device"]]
                if one not in given:
                    given.add(one)
                    show(pod=one[0], gpu=one[1])


def follow(path, take):
    # An API server that was killed ends it.
    while True:
        with subprocess.Popen([*KUBECTL, GROUP + path + "?watch=true"], stdout=subprocess.PIPE, text=True) as told:
            for line in told.stdout:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    take(event["object"])
        time.sleep(0.2)


threading.Thread(target=follow, args=("resourceslices", of_slice)).start()
follow("resourceclaims", of_claim)
"""
WORK = """
gpus=$(for gpu in /dev/nvidia[0-9]; do echo -n "$gpu "; done)
echo "begin $(hostname) $gpus" >>/log/pods
sleep $((1 + RANDOM % 3))
echo "end $(hostname)" >>/log/pods
"""
KILLED: tuple[tuple[str, str, str], ...] = (
    (HEAD, "etcd", "pkill -KILL -x etcd"),
    (HEAD, "kube-apiserver", "pkill -KILL -x kube-apiserver"),
    (HEAD, "reconciler", "systemctl kill --kill-whom=main -s KILL baremetal-gpu-reconciler"),
    # The daemons alone: containers are in their control groups.
    (GPU, "kubelet", "systemctl kill --kill-whom=main -s KILL kubelet"),
    (GPU, "containerd", "systemctl kill --kill-whom=main -s KILL containerd"),
    (GPU, "plugin", "systemctl kill --kill-whom=main -s KILL baremetal-gpu-kubernetes"),
    # Before the fault: the lab's log of the kernel is a pipe, and what an agent has read and not reported is lost with
    # it, where the kernel's own log would still have it.
    (GPU, "agent", "systemctl kill --kill-whom=main -s KILL baremetal-gpu-agent"),
)


@dataclass(frozen=True)
class Fault:
    """When its line was in the kernel's log, when kubelet gave the GPU to no further pod, when it was cleared."""

    gpu: str
    at: float
    closed: float
    cleared: float
    killed: str


@dataclass
class Outcome:
    """What became of the pods.

    :ivar lost: did not come to their end.
    :ivar refused: never ran, since kubelet had no GPU for them: the scheduler had sent them before it heard of the
        fault, or kubelet was restarted and did not know the GPUs yet. The Job started others.
    :ivar by_engine: came to their end, while containerd was killed, which does not know how they ended.
    """

    pods: int
    lost: list[str] = field(default_factory=list)
    on_withheld: list[str] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    by_engine: list[str] = field(default_factory=list)


class Faults:
    """:param way: in which pods get GPUs, `device_plugin` or `dra`."""

    def __init__(self, image: str, way: str, seed: int = 0) -> None:
        self.image, self.way, self.dice = image, way, random.Random(seed)
        self._where = HEAD if way == "dra" else GPU
        listed = ssh(GPU, "nvidia-smi --query-gpu=uuid --format=csv,noheader").split()
        self.gpus = dict(zip(listed, ADDRESSES, strict=True))
        self.faults: list[Fault] = []
        self.free: list[tuple[float, set[str]]] = []
        self.given: list[tuple[float, str, str]] = []
        self._watch: subprocess.Popen[str] | None = None
        self._kills = itertools.cycle(KILLED)

    def begin(self) -> None:
        """Start the load, and wait until pods run."""
        ssh(GPU, f"sudo install -d -m 0777 {LOG}; sudo rm -f {LOG}/pods")
        ssh(self._where, "cat >/tmp/watch.py", given=SHOW + (WATCH_API if self.way == "dra" else WATCH_KUBELET))
        command = ["ssh", self._where, "--", f"sudo python3 /tmp/watch.py {GPU}"]
        words = [sys.executable, "-m", "tests.lab.machines", *command]
        self._watch = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=[self._watch.stdout], daemon=True).start()
        made = [self._job(), *([self._template()] if self.way == "dra" else [])]
        kubectl("apply -f -", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
        until(lambda: len(self.given) > 2, 120, lambda: kubectl("describe job faults"))

    def _template(self) -> dict[str, Any]:
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        return {**kind, "metadata": {"name": "faults"}, "spec": {"spec": spec}}

    def _job(self) -> dict[str, Any]:
        by_claim = self.way == "dra"
        container = {
            "name": "main",
            "image": self.image,
            "command": ["/bin/sh", "-c", WORK],
            "resources": {"claims": [{"name": "gpu"}]} if by_claim else {"limits": {"nvidia.com/gpu": "1"}},
            "volumeMounts": [{"name": "log", "mountPath": "/log"}],
        }
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": GPU},
            "containers": [container],
            "volumes": [{"name": "log", "hostPath": {"path": LOG}}],
            **({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "faults"}]} if by_claim else {}),
        }
        # More wait than there are GPUs.
        work = {"completions": 100000, "parallelism": 4, "backoffLimit": 100000, "template": {"spec": spec}}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "faults"}, "spec": work}

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            row = json.loads(line)
            if "pod" in row:
                self.given.append((row["at"], row["pod"], row["gpu"]))
            else:
                self.free.append((row["at"], set(row["free"])))

    def many(self, number: int, kill_every: int = 0) -> None:
        """So many faults, one after the other; at each `kill_every`th the next of the daemons is killed."""
        for turn in range(1, number + 1):
            fault = self.one(kill=bool(kill_every) and turn % kill_every == 0)
            took, killed = fault.closed - fault.at, f", {fault.killed} killed" if fault.killed else ""
            print(f"{turn}: closed {took:.3f} s after the fault{killed}", flush=True)

    def one(self, kill: bool = False) -> Fault:
        """A fault, and the operator who clears it."""
        gpu = self.dice.choice(list(self.gpus))
        time.sleep(self.dice.uniform(0.1, 1.0))
        machine, killed, how = next(self._kills) if kill else ("", "", "")
        if kill:
            delay = 0.0 if killed == "agent" else self.dice.uniform(0.0, 1.5)
            ssh(machine, f"(sleep {delay:.2f}; sudo {how}) >/dev/null 2>&1 </dev/null &")
        at = xid(GPU, self.gpus[gpu])
        closed = self._when(lambda free: gpu not in free, at)
        time.sleep(self.dice.uniform(0.5, 3.0))
        cleared = time.time()
        self._clear()
        self._when(lambda free: gpu in free, cleared, self._clear)
        self.faults.append(Fault(gpu, at, closed, cleared, killed))
        return self.faults[-1]

    def _clear(self) -> None:
        """As an operator does it: what was said to a reconciler that had not heard of the fault is said again."""
        ssh(HEAD, f"for n in $(seq 100); do sudo gpuops-reconciler clear {GPU} >/dev/null 2>&1 && break; sleep 1; done")

    def _when(
        self, wanted: Callable[[set[str]], bool], since: float, again: Callable[[], None] = lambda: None
    ) -> float:
        """When the GPUs that are given out were so, since then; `again` is called while they are not."""
        called = time.monotonic()

        def seen() -> float:
            nonlocal called
            if time.monotonic() > called + AGAIN_S:
                again()
                called = time.monotonic()
            before = [free for at, free in list(self.free) if at < since]
            if before and wanted(before[-1]):
                return since
            return next((at for at, free in list(self.free) if at >= since and wanted(free)), 0.0)

        return float(until(seen, PATIENCE_S, lambda: self.free[-3:]))

    def end(self) -> Outcome:
        """Let the pods that run come to their end, and count."""
        kubectl(f"cordon {GPU}")
        running = "get pods --selector=job-name=faults --field-selector=status.phase=Running --output=name"
        until(lambda: not kubectl(running).strip(), 60, lambda: kubectl(running))
        pods = json.loads(kubectl("get pods --selector=job-name=faults --output=json"))["items"]
        if self._watch is not None:
            self._watch.kill()
            ssh(self._where, "sudo pkill -f /tmp/watch.p[y]", check=False)
        kubectl("delete job faults --wait=true --cascade=foreground")
        kubectl(f"uncordon {GPU}")
        lines = [line.split() for line in ssh(GPU, f"cat {LOG}/pods").splitlines()]
        begun = {line[1] for line in lines if line[0] == "begin"}
        ended = {line[1] for line in lines if line[0] == "end"}
        found = Outcome(len(begun), lost=sorted(begun - ended))
        for pod in pods:
            name, status = pod["metadata"]["name"], pod["status"]
            if status["phase"] == "Failed":
                was_refused = status.get("reason") == "UnexpectedAdmissionError" and name not in begun
                of = found.refused if was_refused else found.by_engine if name in ended else found.lost
                of.append(f"{name}: {status.get('reason')}")
        for fault in self.faults:
            found.on_withheld += [
                name for at, name, gpu in self.given if gpu == fault.gpu and fault.closed < at < fault.cleared
            ]
            found.reopened += [
                f"{fault.gpu} at {at - fault.at:.2f} s"
                for at, free in self.free
                if fault.gpu in free and fault.closed < at < fault.cleared
            ]
        return found

    def told(self, outcome: Outcome) -> str:
        """The figures."""
        times = {
            what: [one.closed - one.at for one in self.faults if bool(one.killed) is is_kill]
            for what, is_kill in (("without a kill", False), ("with one", True))
        }
        texts = [
            f"{len(row)} faults {what}: closed after {statistics.median(row):.3f} s (median), {max(row):.3f} s at most"
            for what, row in times.items()
            if row
        ]
        return f"{'; '.join(texts)}; {outcome}"
