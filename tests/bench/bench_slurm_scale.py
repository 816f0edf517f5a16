# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of Slurm with 1,000 nodes of 8 GPUs: what its configuration costs, and 200 nodes that fail at once.

slurmctld is real. Each node is a slurmd started with `-N`, all of them on one machine of the lab: Debian's
slurm-wlm-emulator does not start (24.11.5: it requires front ends in slurm.conf and refuses them there). So the device
files of the GPUs are empty files, there are no cgroups and no accounting, and the holders of all nodes share the cores
of one machine. A slurmd and a slurmstepd have some ten threads each: without enough process numbers slurmctld ends with
"pthread_create error".
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_common
from tests.bench.harness import ROOT, Figure, Row
from tests.bench.lab_run import lab
from tests.unit.plugins.plugin_utils.slurm import test_cluster

MACHINE = "scale1"
NODES, FAILING, GPUS = 1000, 200, 8
RENDER_GOAL_S = 10.0
PROCESSORS = {"sockets": 2, "cores_per_socket": 8, "threads_per_core": 1, "cores": [[core] for core in range(16)]}
FIRST_PORT = 20000
PID_MAX, THREADS = "/proc/sys/kernel/pid_max", 60000
# What needs cgroups, accounting or programs that the emulated nodes do not have.
LEFT_OUT = (
    "Prolog",
    "TaskProlog",
    "Epilog",
    "TaskPlugin",
    "ProctrackType",
    "JobAcctGather",
    "Accounting",
    "SlurmctldParameters",
    "SlurmdSpoolDir",
    "Priority",
)
IN_PLACE = """\
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides,conmgr_threads=2
SlurmdSpoolDir=/var/lib/slurm/slurmd.%n
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
"""
INSTALL = """
printf '#!/bin/sh\\nexit 101\\n' | sudo tee /usr/sbin/policy-rc.d >/dev/null; sudo chmod 755 /usr/sbin/policy-rc.d
sudo apt-get update -q >/dev/null && sudo apt-get install -y -q slurmctld slurmd slurm-client munge >/dev/null
sudo mkdir -p /etc/slurm /var/lib/slurm/slurmctld /var/log/slurm /tmp/bench
sudo chown -R slurm:slurm /var/lib/slurm /var/log/slurm
"""
START = """
for number in $(seq 0 7); do sudo touch /dev/nvidia$number; done
sudo systemctl start munge
sudo /usr/sbin/slurmctld
for number in $(seq NODES); do sudo /usr/sbin/slurmd -N n$number; done
for second in $(seq 300); do [ "$(sinfo -h -t idle -o %D)" = NODES ] && exit 0; sleep 1; done
sinfo --list-reasons; exit 1
"""


def rendered(nodes: int) -> dict[str, str]:
    """The configuration of so many nodes, from their facts."""
    devices = [test_cluster.device(minor, "0-15") for minor in range(GPUS)]
    scores = [[None if one == other else 1210 for one in range(GPUS)] for other in range(GPUS)]
    gpus = {"devices": devices, "topology": {"scores": scores, "kinds": {"1210": {"nvlinks": 12, "pcie": "sys"}}}}
    names = [f"n{number}" for number in range(1, nodes + 1)]
    hosts = {MACHINE: test_cluster.host(MACHINE, "10.0.0.1")}
    for number, name in enumerate(names):
        hosts[name] = test_cluster.host(name, f"10.1.{number // 250}.{number % 250 + 1}", gpus, processors=PROCESSORS)
    groups = {"slurm_controllers": [MACHINE], "slurm_databases": [MACHINE], "slurm_nodes": names}
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    plan = slurm_common.desired(test_cluster.PARAMS, {}, {"groups": groups, "hostvars": hostvars})
    if plan.problems:
        raise SystemExit(f"the cluster is refused: {plan.problems[:3]}")
    return dict(plan.parts)


def emulated(text: str) -> str:
    """slurm.conf with all nodes on one machine."""
    lines = [line for line in text.splitlines() if not line.startswith(LEFT_OUT)]
    place = next(number for number, line in enumerate(lines) if line.startswith("NodeName="))
    lines[place:place] = IN_PLACE.splitlines()
    port = FIRST_PORT
    for number, line in enumerate(lines):
        if line.startswith("NodeName="):
            port += 1
            lines[number] = re.sub(
                r"NodeHostname=\S+ NodeAddr=\S+", f"NodeHostname={MACHINE} NodeAddr=127.0.0.1 Port={port}", line
            )
        elif line.startswith("SlurmctldHost="):
            lines[number] = f"SlurmctldHost={MACHINE}(127.0.0.1)"
    return "\n".join(lines) + "\n"


def send(files: dict[str, bytes]) -> None:
    """Put files into the machine, by their paths there."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    subprocess.run(
        [ROOT / "tools" / "lab", "ssh", MACHINE, "--", "sudo tar -xz --no-same-owner -C /"],
        input=buffer.getvalue(),
        check=True,
        capture_output=True,
    )


def run(quick: bool) -> list[Row]:
    nodes, failing = (40, 8) if quick else (NODES, FAILING)
    if not quick and int(Path(PID_MAX).read_text()) < THREADS:
        raise SystemExit(
            f"{PID_MAX} is too low for {nodes} nodes on one machine. To do: sysctl -w kernel.pid_max=4194304"
        )
    began = time.monotonic()
    files = rendered(nodes)
    render_s = time.monotonic() - began
    lab("up", "--machine", f"{MACHINE}:trixie:no-gpu")
    try:
        found = _fences(files, nodes, failing)
    finally:
        lab("down", "--machine", MACHINE)
    if found["held"] != failing or len(found["guard"]) != failing:
        raise SystemExit(f"{found['held']} of {failing} GPUs are held, {len(found['guard'])} nodes were closed")
    print(f"{nodes} nodes, {failing} fail at once; one look at all takes {found['look_s']:.2f} s")
    what = f"{failing} of {nodes} nodes of Slurm fail at once →"
    return [
        Figure(f"slurm.conf and gres.conf of {nodes} nodes", "wall", "s", render_s, render_s, 1, RENDER_GOAL_S),
        Figure.of(f"{what} no new job on the node", "wall", "s", found["guard"]),
        Figure.of(f"{what} the GPU is held and the node open", "wall", "s", found["unguard"]),
    ]


def _fences(files: dict[str, str], nodes: int, failing: int) -> dict[str, Any]:
    lab("ssh", MACHINE, "--", INSTALL)
    utils = ROOT / "plugins" / "module_utils"
    base = "/tmp/bench/ansible_collections/baremetal/gpu/plugins/module_utils"
    send(
        {
            "/etc/slurm/slurm.conf": emulated(files["slurm_conf"]).encode(),
            "/etc/slurm/gres.conf": files["gres_conf"].encode(),
            "/tmp/bench/driver.py": (ROOT / "tests" / "bench" / "slurm_scale_driver.py").read_bytes(),
            **{f"{base}/{path.relative_to(utils)}": path.read_bytes() for path in utils.rglob("*.py")},
        }
    )
    lab("ssh", MACHINE, "--", START.replace("NODES", str(nodes)))
    told = lab("ssh", MACHINE, "--", f"sudo python3 /tmp/bench/driver.py /tmp/bench {nodes} {failing}")
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found
