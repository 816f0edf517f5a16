# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of every kind on a node: what each says of the node, and that none is left."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import collective, jobs
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import TIMED_OUT
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import maintenance

# In the shape of scontrol -o show node; the figures are made up.
NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.1 Gres=gpu:a100:2(S:0) "
    "GresUsed=gpu:a100:0(IDX:N/A) RealMemory=8000 AllocMem=0 Sockets=2 State={state} Partitions=gpuops,main "
    "SlurmdStartTime=2026-01-01T00:00:00{reason}"
)


# In the shape of nccl-tests; the figures are made up.
PERF = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 231.5\n"
# What rank 0 of the program prints.
TOLD = 'gpuops-accept: {"backend": "gloo", "ranks": 4, "wrong": 0, "gb_s": 1.5}\n'
NO_PERF = (2, "", "slurmstepd: error: execve(): all_reduce_perf: No such file or directory")
# What NCCL says without a plugin, which it does not need; the file names are NCCL's.
NO_PLUGIN = (
    "NET/Plugin: Could not find: libnccl-net.so. libnccl-net.so: cannot open shared object file: No such file or "
    "directory\nsrun: error: n1: task 0: Exited with exit code 1"
)
NO_NCCL = (
    "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file "
    "or directory\nsrun: error: n1: task 0: Exited with exit code 127"
)
CUDA_FAILURE = "n1: Test CUDA failure common.cu:892 'no CUDA-capable device is detected'\n .. n1 pid 7: Test failure\n"


class Cluster:
    """Answers in the place of Slurm's commands; `said` has what differs from a sound node, by a word of the command."""

    def __init__(self, state="IDLE", reason="", **said):
        self.line, self.said, self.calls = NODE.format(state=state, reason=reason), said, []
        self.stdin = []

    def __call__(self, argv, stdin, timeout):
        self.calls.append(argv)
        self.stdin.append(stdin)
        text = " ".join(argv)
        for word, answer in self.said.items():
            if word in text:
                return answer
        if "scontrol" in argv[0]:
            return 0, self.line, ""
        if "all_reduce_perf" in argv:
            return 0, PERF, ""
        if "nvidia-smi" in argv:
            return 0, "GPU 0: NVIDIA A100 (UUID: GPU-1)\n", ""
        if "python3" in argv:
            return 1, "", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step was OOM Killed."
        if argv[0].endswith("sacct"):
            return 0, "COMPLETED|n1\n", ""
        return (0, "7\n", "") if argv[0].endswith("sbatch") else (0, "n1\n", "")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(maintenance, "is_set_up", lambda: True)
    monkeypatch.setattr(jobs, "ACCOUNTING_S", 0.0)


def outcomes(cluster):
    found = jobs.check(cluster, "n1", "gpuops-accept-x")
    return {kind: row["ok"] for kind, row in found["kinds"].items()}


SOUND = dict.fromkeys(("batch", "array", "interactive", "gpu", "collective", "memory", "accounting"), True)


def test_a_sound_node_takes_jobs_of_every_kind_and_keeps_none():
    cluster = Cluster()
    assert outcomes(cluster) == SOUND
    submitted = [argv for argv in cluster.calls if argv[0] in (jobs.SBATCH, jobs.SRUN)]
    for argv in submitted:
        assert {"--nodelist=n1", "--partition=main", "--job-name=gpuops-accept-x"} <= set(argv)
        assert {word.partition("=")[0] for word in argv} >= {"--time", "--deadline"}
    assert all("--output=/dev/null" in argv for argv in submitted if argv[0] == jobs.SBATCH)
    assert cluster.calls[-1][:2] == [jobs.SCANCEL, "--name=gpuops-accept-x"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"--array": (1, "8\n", "")}, "array"),
        ({"hostname": (1, "", "srun: error: timed out waiting for task launch")}, "interactive"),
        ({"hostname": (0, "", "")}, "interactive"),
        ({"nvidia-smi": (0, "GPU 0: A\nGPU 1: A\n", "")}, "gpu"),
        ({"bytearray": (0, "", "")}, "memory"),
        ({"all_reduce_perf": (0, PERF.replace(": 0 OK", ": 3 FAILED"), "")}, "collective"),
        ({"all_reduce_perf": (1, "", "NCCL failure")}, "collective"),
        ({"all_reduce_perf": (127, "", NO_NCCL)}, "collective"),
        ({"all_reduce_perf": (1, PERF.replace(": 0 OK", ": 8 FAILED"), NO_PLUGIN)}, "collective"),
        ({"all_reduce_perf": (1, CUDA_FAILURE, NO_PLUGIN)}, "collective"),
        ({"sacct": (0, "\n", "")}, "accounting"),
        ({"sacct": (1, "", "sacct: error: slurmdbd: Connection refused")}, "accounting"),
    ],
)
def test_a_kind_that_fails_is_the_only_one(said, kind):
    assert outcomes(Cluster(**said)) == {**SOUND, kind: False}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ((0, PERF, NO_PLUGIN), "231.5 GB/s, 0 wrong values"),
        ((1, PERF.replace(": 0 OK", ": 8 FAILED"), NO_PLUGIN), "8 wrong values"),
        ((1, CUDA_FAILURE, NO_PLUGIN), "ended with 1: n1: Test CUDA failure common.cu:892 'no CUDA-capable device"),
        ((127, "", NO_NCCL), "ended with 127: all_reduce_perf: error while loading shared libraries: libnccl.so.2"),
        ((13, "", "setpriv: failed to execute all_reduce_perf: Permission denied"), "Permission denied"),
    ],
)
def test_what_the_program_of_nccl_says_is_told(said, text):
    found = jobs.check(Cluster(all_reduce_perf=said), "n1", "x")["kinds"]["collective"]
    assert text in found["text"]


def test_what_could_not_be_tried_is_no_failure():
    busy = (1, "", "srun: error: Unable to allocate resources: Requested nodes are busy")
    found = outcomes(
        Cluster(hostname=busy, bytearray=(127, "", "python3: command not found"), array=(TIMED_OUT, "", ""))
    )
    assert found == {**SOUND, "interactive": None, "memory": None, "array": None}


def test_a_cluster_without_accounting_is_not_asked_for_it():
    found = outcomes(Cluster(sacct=(1, "", "Slurm accounting storage is disabled")))
    assert "accounting" not in found


@pytest.mark.parametrize(
    ("state", "reason", "owner"),
    [
        ("IDLE+DRAIN", " Reason=gpuops drain: a fan [root@2026-01-01T00:00:00]", "operator"),
        ("IDLE+DRAIN", " Reason=broken [bob@2026-01-01T00:00:00]", "other"),
        ("DOWN*", " Reason=Not responding [slurm@2026-01-01T00:00:00]", None),
    ],
)
def test_a_node_that_takes_no_jobs_gets_none(state, reason, owner):
    cluster = Cluster(state, reason)
    found = jobs.check(cluster, "n1", "x")
    assert (found["owner"], found["kinds"], found["why"]) == (owner, {}, "the node takes no jobs")
    assert {argv[0] for argv in cluster.calls} == {"/usr/bin/scontrol"}


def test_a_node_that_others_use_whole_gets_none():
    cluster = Cluster()
    cluster.line = cluster.line.replace("CPUAlloc=0", "CPUAlloc=8")
    assert jobs.check(cluster, "n1", "x")["why"] == "the jobs of others take all of the node"
    cluster = Cluster()
    cluster.line = cluster.line.replace("a100:0(IDX:N/A)", "a100:2(IDX:0-1)")
    assert outcomes(cluster) == {**SOUND, "gpu": None, "collective": None}


@pytest.mark.parametrize(
    "no_perf", [NO_PERF, (127, "", NO_PERF[2].replace("slurmstepd: error: execve():", "setpriv: failed to execute"))]
)
def test_without_the_program_of_nccl_the_all_reduce_goes_through_torch(no_perf):
    cluster = Cluster(all_reduce_perf=no_perf, init_process_group=(0, TOLD, ""))
    found = jobs.check(cluster, "n1", "x")["kinds"]["collective"]
    assert (found["ok"], found["backend"], found["gb_s"]) == (True, "gloo", 1.5)
    (argv,) = [argv for argv in cluster.calls if collective.PROGRAM in argv]
    assert {"--ntasks-per-node=2", "--gres=gpu:2", "--export=ALL"} <= set(argv)


@pytest.mark.parametrize(
    ("said", "ok", "text"),
    [
        ((1, "", "gpuops-accept: no torch"), None, "has no torch"),
        ((127, "", "setpriv: failed to execute python3: No such file or directory"), None, "has no torch"),
        ((126, "", "setpriv: failed to execute python3: Permission denied"), None, "`nobody` may not run python3"),
        ((1, "", "ImportError: libcudart.so.12: cannot open shared object file: No such file"), False, "libcudart"),
        ((1, "", "RuntimeError: CUDA error: device-side assert triggered\n"), False, "device-side assert"),
    ],
)
def test_torch_that_is_there_and_fails_is_no_torch_that_is_not_there(said, ok, text):
    found = jobs.check(Cluster(all_reduce_perf=NO_PERF, init_process_group=said), "n1", "x")["kinds"]["collective"]
    assert found["ok"] is ok
    assert text in found["text"]


def test_the_ranks_have_no_rights_and_meet_at_a_port_that_nobody_can_know():
    ports = set()
    for _run in range(8):
        cluster = Cluster(all_reduce_perf=NO_PERF, init_process_group=(0, TOLD, ""))
        jobs.check(cluster, "n1", "x")
        for argv, stdin in zip(cluster.calls, cluster.stdin, strict=True):
            if collective.PERF in argv or collective.PROGRAM in argv:
                assert {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"} <= set(argv)
            if collective.PROGRAM in argv:
                port = json.loads(stdin)["port"]
                ports.add(port)
                # Everybody on a host reads the arguments of all processes.
                assert not any(str(port) in word for word in argv)
    assert len(ports) > 4


def test_an_all_reduce_takes_the_free_nodes_of_one_partition():
    cluster = Cluster(init_process_group=(0, TOLD, ""))
    one, other, busy = (cluster.line.replace("n1", name) for name in ("n1", "n2", "n3"))
    cluster.line = "\n".join((one, other, busy.replace("State=IDLE", "State=MIXED")))
    found = jobs.between(cluster, {"n1": "10.0.0.1", "n2": "", "n3": ""}, "x")
    assert (found["nodes"], found["ok"]) == (["n1", "n2"], True)
    (argv,) = [argv for argv in cluster.calls if collective.PROGRAM in argv]
    assert {"--nodelist=n1,n2", "--nodes=2", "--partition=main"} <= set(argv)
    assert cluster.calls[-1][:2] == [jobs.SCANCEL, "--name=x"]


@pytest.mark.parametrize(
    ("answer", "ok"),
    [
        ((0, TOLD.replace('"wrong": 0', '"wrong": 9'), ""), False),
        ((1, "", "NCCL error"), False),
        ((TIMED_OUT, "", "it did not end"), False),
        ((0, "gpuops-accept: {}", ""), False),
        ((1, "", "gpuops-accept: no torch"), None),
        ((1, "", "srun: error: Unable to allocate resources: Requested nodes are busy"), None),
    ],
)
def test_an_all_reduce_between_nodes_that_does_not_go_well(answer, ok):
    cluster = Cluster(init_process_group=answer)
    cluster.line += "\n" + cluster.line.replace("n1", "n2")
    assert jobs.between(cluster, {"n1": "", "n2": ""}, "x")["ok"] is ok


def test_one_free_node_is_no_collective():
    cluster = Cluster()
    assert jobs.between(cluster, {"n1": ""}, "x")["ok"] is None
    assert jobs.between(cluster, {}, "x")["ok"] is None
    assert not [argv for argv in cluster.calls if argv[0] == jobs.SRUN]
