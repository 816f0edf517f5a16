# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An all-reduce as a job of Slurm: over the GPUs of a node, or over nodes. Slurm starts all ranks at the same time.

With torch on the nodes it goes through NCCL, or through gloo and the processors where there are no GPUs. Every rank
compares the sum with the right one.

Torch lets in whoever comes to the port where the ranks meet. So the ranks are processes of nobody's, send only numbers,
and meet at a port that is drawn anew; they read it from their standard input, which no other user sees.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import TIMED_OUT, Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

SRUN = "/usr/bin/srun"
PERF = "all_reduce_perf"
MEMORY_MIB, START_S, PATIENCE_S = 4000, 60, 300.0
MIB = 64
BUSY = ("Requested nodes are busy", "Resources temporarily unavailable", "Immediate execution impossible")
NO_TORCH = "gpuops-accept: no torch"
NOBODY = 65534
# What the job does needs no rights; Slurm starts it as root.
WITHOUT_RIGHTS = (
    *("/usr/bin/env", "HOME=/nonexistent"),
    *("/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
)
# Ports that a host gives to no outgoing connection of its own.
PORTS = range(20000, 32768)
# What a rank does. The first node of the job is where all meet; addresses are those of the inventory.
PROGRAM = r"""
import json, os, subprocess, sys, time
from datetime import timedelta
told = json.load(sys.stdin)
try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit("gpuops-accept: no torch")
names = subprocess.run(
    ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]], capture_output=True, text=True, check=True
).stdout.split()
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
os.environ["MASTER_ADDR"] = told["addresses"].get(names[0]) or names[0]
os.environ["MASTER_PORT"] = str(told["port"])
gpus = torch.cuda.is_available() and dist.is_nccl_available()
if gpus:
    torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]) % torch.cuda.device_count())
where = "cuda" if gpus else "cpu"
dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=world, timeout=timedelta(seconds=120))
count = (told["mib"] << 20) // 4
data = torch.empty(count, dtype=torch.float32, device=where)
def once():
    data.fill_(float(rank + 1))
    if gpus:
        torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(data)
    if gpus:
        torch.cuda.synchronize()
    return time.perf_counter() - began
once()
seconds = sorted(once() for _turn in range(5))[2]
wrong = torch.tensor([int((data != world * (world + 1) / 2).sum())], dtype=torch.int64, device=where)
dist.all_reduce(wrong)
if rank == 0:
    rate = 2 * (world - 1) / world * count * 4 / seconds / 1e9
    told = {"backend": "nccl" if gpus else "gloo", "ranks": world, "wrong": int(wrong), "gb_s": round(rate, 3)}
    print("gpuops-accept: " + json.dumps(told), flush=True)
dist.destroy_process_group()
"""
# slurmstepd or setpriv could not start the program. A library that a program lacks is "No such file", too.
_NOT_STARTED = r"(?:failed to execute |execve\(\):? *)(?:\S*/)?{name}: {why}"
_ABSENT, _FORBIDDEN = "No such file or directory", "Permission denied"
# What nccl-tests and NCCL say of what went wrong, among much else.
_WENT_WRONG = re.compile(r"failure|error|FAILED|terminate|signal", re.IGNORECASE)
_HARMLESS = re.compile(r"plugin|\bINFO\b", re.IGNORECASE)
_ANSWER = re.compile(r"^gpuops-accept: (\{.*\})$", re.MULTILINE)
_BANDWIDTH = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*([0-9.]+)", re.MULTILINE)
_OUT_OF_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)", re.MULTILINE)

Row = dict[str, Any]


def _told(ok: bool | None, text: str, **more: Any) -> Row:
    return {"ok": ok, "text": one_line(text, 300), **more}


def _words(name: str, partition: str, nodes: Sequence[str], ranks: int, gpus: int) -> list[str]:
    words = [
        SRUN,
        f"--job-name={name}",
        f"--partition={partition}",
        f"--nodelist={','.join(nodes)}",
        "--kill-on-bad-exit=1",
    ]
    words += [
        f"--nodes={len(nodes)}",
        f"--ntasks-per-node={ranks}",
        "--time=5",
        "--deadline=now+10minutes",
        "--chdir=/",
    ]
    words += [f"--mem={MEMORY_MIB}M", f"--immediate={START_S}"]
    return [*words, *([f"--gres=gpu:{gpus}"] if gpus else [])]


def is_not_started(program: str, error: str, why: str = _ABSENT) -> bool:
    """Whether the program could not be started because it is not there, or for another reason."""
    return bool(re.search(_NOT_STARTED.format(name=re.escape(program.rpartition("/")[2]), why=why), error))


def _why(out: str, error: str) -> str:
    """The lines that say what went wrong, or else all."""
    lines = [line.strip() for line in (out + "\n" + error).splitlines()]
    wrong = [line for line in lines if _WENT_WRONG.search(line) and not _HARMLESS.search(line)]
    return "; ".join(dict.fromkeys(wrong)) or error or out


def with_perf(run: Run, name: str, partition: str, node: str, gpus: int) -> Row | None:
    """What nccl-tests says of the GPUs of a node; None where the program is not installed there."""
    words = _words(name, partition, [node], 1, gpus)
    argv = [*words, *WITHOUT_RIGHTS, PERF, "-b", f"{MIB}M", "-e", f"{MIB}M", "-g", str(gpus)]
    status, out, error = run(argv, None, PATIENCE_S)
    rate, wrong = _BANDWIDTH.search(out), _OUT_OF_BOUNDS.search(out)
    if rate and wrong and (not status or wrong[1] != "0"):
        text = f"{PERF} over {gpus} GPUs: {float(rate[1]):.1f} GB/s, {wrong[1]} wrong values"
        return _told(wrong[1] == "0", text, gb_s=float(rate[1]))
    if is_not_started(PERF, error):
        return None
    if status == TIMED_OUT or any(text in error for text in BUSY):
        return _told(None, "the job did not start in time: the node has other jobs")
    return _told(False, f"{PERF} ended with {status}: {_why(out, error)}")


def with_torch(
    run: Run,
    name: str,
    partition: str,
    nodes: Sequence[str],
    ranks: int,
    gpus: int,
    python: str,
    addresses: Mapping[str, str],
) -> Row:
    """What torch says of all ranks of the nodes together."""
    port = PORTS.start + secrets.randbelow(len(PORTS))
    # srun gives its standard input to every task.
    told = json.dumps({"addresses": dict(addresses), "port": port, "mib": MIB})
    argv = [*_words(name, partition, nodes, ranks, gpus), "--export=ALL", *WITHOUT_RIGHTS, python, "-c", PROGRAM]
    status, out, error = run(argv, told, PATIENCE_S)
    if NO_TORCH in error or is_not_started(python, error):
        return _told(None, f"{python} on the nodes has no torch")
    if is_not_started(python, error, _FORBIDDEN):
        return _told(
            None, f"`nobody` may not run {python} on the nodes: set accept_python to one that everybody may run"
        )
    if any(text in error for text in BUSY):
        return _told(None, "the job did not start in time: the nodes have other jobs")
    answer = _ANSWER.search(out)
    try:
        found = json.loads(answer[1]) if answer else {}
        backend, count, wrong, rate = (
            str(found["backend"]),
            int(found["ranks"]),
            int(found["wrong"]),
            float(found["gb_s"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        how = "it hung" if status == TIMED_OUT else f"it ended with {status}: {_why(out, error)}"
        return _told(False, f"the all-reduce of {len(nodes)} nodes failed: {how}")
    text = f"all-reduce of {count} ranks on {len(nodes)} nodes through {backend}: {rate:.2f} GB/s, {wrong} wrong values"
    return _told(status == 0 and not wrong, text, gb_s=rate, backend=backend)
