# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench.run_fleet PLAYBOOK HOSTS [ANSWERS]``: a playbook on hosts that are not there.

Runs ansible-playbook and prints what it took as JSON: the CPU time of all its processes, the highest memory of all
together (proportional set size, looked at twice a second), how many tasks were done on how many hosts, and the wall
time. ANSIBLE_FORKS and the like are Ansible's own; BENCH_DELAY is how long every module takes. With BENCH_UP it is
`gpuops up` that runs the site's playbook, with the options that BENCH_UP has.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = Path(__file__).with_name("converged_host.json")
# One group of nodes with GPUs; what a real site says of them is in inventories/example.
INVENTORY = """
[gpu_nodes]
{hosts}
[gpu_cluster:children]
gpu_nodes
[gpu_cluster:vars]
ansible_connection=canned
ansible_python_interpreter=/usr/bin/python3
cuda_versions=[]
"""
RECAP = re.compile(r"^(\S+) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+) +skipped=(\d+)", re.MULTILINE)


def tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    # Not by Path.glob, which fails where a process ends while it looks.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            content = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        children.setdefault(int(content.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def memory_mib(pid: int) -> float:
    """Shared pages count for each of their users in part. Zero for one that has ended."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def highest_memory(process: subprocess.Popen[str], most: list[float]) -> None:
    ended = threading.Event()
    while process.poll() is None:
        most[0] = max(most[0], sum(map(memory_mib, tree(process.pid))))
        ended.wait(0.5)


def main(playbook: str, hosts: int, answers: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as folder:
        inventory = Path(folder) / "hosts.ini"
        inventory.write_text(INVENTORY.format(hosts="\n".join(f"node{number}" for number in range(hosts))))
        environment = {
            **os.environ,
            "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).with_name("connection")),
            "ANSIBLE_LOCAL_TEMP": f"{folder}/tmp",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "BENCH_ANSWERS": answers,
        }
        output = Path(folder) / "output"
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), playbook]
        if (options := os.environ.get("BENCH_UP")) is not None:
            command = [sys.executable, "-m", "gpuops", "up", "-i", str(inventory), *options.split()]
        begin = time.monotonic()
        with output.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, env=environment)
            most = [0.0]
            highest_memory(process, most)
        wall = time.monotonic() - begin
        told = "".join(path.read_text() for path in (output, *Path(folder).glob(".gpuops/runs/*/output*.log")))
    rows = [(name, *map(int, counts)) for name, *counts in RECAP.findall(told)]
    if (
        process.returncode
        or len({name for name, *_counts in rows}) != hosts
        or any(changed + lost + failed for _name, _ok, changed, lost, failed, _s in rows)
    ):
        sys.exit(f"{playbook} ended with {process.returncode} on {len(rows)} of {hosts} hosts:\n{told[-4000:]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    tasks = sum(ok + skipped for _name, ok, _changed, _lost, _failed, skipped in rows)
    sample = {"cpu_s": used.ru_utime + used.ru_stime, "memory_mib": most[0], "outcome": str(tasks), "wall_s": wall}
    print(json.dumps(sample))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else str(ANSWERS))
