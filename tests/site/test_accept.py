# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops accept on the finished machines of the lab: a sound node passes, each fault is named, and nothing else is.

The kernels really run, interpreted, so little memory is tested.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuops.accept import record, report
from tests.site.alert_faults import VARIABLES, Watch
from tests.site.plays import INVENTORY, ROOT, run_playbook, ssh, until
from tests.site.test_slurm import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODE, OTHER, SERVER = "gpu1", "gpu2", "cpu1"
SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
SMALL = ("--", "-e", "accept_memory_mib=4", "-e", "accept_copy_mib=2")
# What is the lab's host's, and not the machine's.
NOT_ITS_OWN = {"node.time", "node.iommu", "node.hugepages", "node.disk", "node.nic", "node.memory", "storage.space"}
STAGES = "node,gpu"


class Bench:
    """A directory of a site that has the lab's inventory, and gpuops called there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.inventory = directory / "inventory"
        self.inventory.mkdir()
        (self.inventory / "lab.py").write_text(f"#!/bin/sh\nexec {sys.executable} {INVENTORY}/hosts.py\n")
        (self.inventory / "lab.py").chmod(0o755)
        for name in ("group_vars", "host_vars"):
            (self.inventory / name).symlink_to(INVENTORY / name)

    def words(self, *words: str, **variables: Any) -> list[str]:
        begin = [sys.executable, "-m", "gpuops", "accept", "-i", str(self.inventory), "-o", self.output]
        return [*begin, *words, *SMALL, "-e", json.dumps(variables)]

    def groups(self, **groups: list[str]) -> None:
        """Further groups of the inventory, by their hosts."""
        content = {name: {"hosts": {host: {} for host in hosts}} for name, hosts in groups.items()}
        (self.inventory / "more.yml").write_text(json.dumps(content))

    @property
    def output(self) -> str:
        return str(self.directory / "acceptance.html")

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}

    def begin(self, *words: str, **variables: Any) -> subprocess.Popen[bytes]:
        """An acceptance that goes on by itself, and can be killed with all its children."""
        return subprocess.Popen(
            self.words(*words, **variables),
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def accept(self, *words: str, limit: str = NODE, **variables: Any) -> dict[str, Any]:
        done = subprocess.run(
            self.words("--minutes", "0", *(("--limit", limit) if limit else ()), *words, **variables),
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode in (0, 2), done.stdout + done.stderr
        found: dict[str, Any] = json.loads(Path(self.output).with_suffix(".json").read_text())
        jsonschema.validate(found, json.loads(report.SCHEMA_FILE.read_text()))
        return found


def failures(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (row["host"], row["subject"], row["id"])
        for row in found["items"]
        if row["outcome"] == "fail" and row["id"] not in NOT_ITS_OWN
    }


def scenario(change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Changes the simulated GPUs of the node; without a change they are as they were at first."""
    kept = f"{SCENARIO}.well"
    ssh(NODE, f"test -e {kept} || sudo cp {SCENARIO} {kept}")
    content = deepcopy(json.loads(ssh(NODE, f"cat {kept}")))
    if change:
        # The time that such a GPU would take, and not the time of this machine.
        content["cuda"] = {"clock": "device"}
        change(content)
    ssh(
        NODE,
        f"sudo tee {SCENARIO}.new >/dev/null <<'END'\n{json.dumps(content)}\nEND\nsudo mv {SCENARIO}.new {SCENARIO}",
    )


@pytest.fixture(scope="module", autouse=True)
def finished() -> None:
    play = run_playbook("site.yml", limit=f"{NODE},{OTHER},{SERVER}")
    assert play.rc == 0, play.tail()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    scenario(lambda content: None)
    yield Bench(tmp_path)
    scenario()


def traces() -> str:
    """What is on the node that an acceptance could have left."""
    return ssh(NODE, "sudo find /tmp /var/tmp /root /var/lib/baremetal-gpu -newer /tmp/before -type f | sort")


def test_a_sound_node_is_accepted_and_has_no_trace_of_it(bench: Bench) -> None:
    ssh(NODE, "touch /tmp/before")
    before = traces()
    found = bench.accept("--stages", STAGES)
    assert failures(found) == set()
    by_id = {row["id"]: row["outcome"] for row in found["items"]}
    for id in ("gpu.present", "gpu.memory", "gpu.memory_test", "gpu.fp32", "gpu.fp64", "gpu.bf16", "gpu.copies"):
        assert by_id[id] == "pass", id
    assert by_id["gpu.peer"] == "pass"
    assert by_id["gpu.fleet.fp32"] == "not_applicable", "of two GPUs nobody can say which one is slow"
    assert [line for line in traces().splitlines() if line not in before.splitlines() and "agent" not in line] == []


def _slow(content: dict[str, Any]) -> None:
    content["cuda"]["speed"] = {"device": 1, "factor": 0.4}


def _stuck(content: dict[str, Any]) -> None:
    content["cuda"]["stuck_bit"] = {"device": 1, "byte": 1 << 20, "bit": 3}


def _wrong(content: dict[str, Any]) -> None:
    content["cuda"]["wrong_real"] = {"device": 0, "element": 7, "bit": 2}


def _narrow(content: dict[str, Any]) -> None:
    content["devices"][1]["pci"]["width"] = 8


def _hot(content: dict[str, Any]) -> None:
    content["devices"][1]["throttle"]["reasons"] = 0x40


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], set[tuple[str, str]], set[str]]] = {
    "a slow GPU": (_slow, {("GPU 1", "gpu.nominal.memory"), ("GPU 1", "gpu.nominal.fp32")}, {"GPU 1"}),
    "a flipped bit": (_stuck, {("GPU 1", "gpu.memory")}, {"GPU 1"}),
    "wrong arithmetic": (_wrong, {("GPU 0", "gpu.fp32"), ("GPU 0", "gpu.bf16")}, {"GPU 0"}),
    "a narrow link": (_narrow, {("GPU 1", "node.pcie_width"), ("GPU 1", "gpu.pcie_load")}, {"GPU 1", ""}),
    "heat": (_hot, {("GPU 1", "gpu.throttle")}, {"GPU 1", ""}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_nothing_else(bench: Bench, name: str) -> None:
    change, wanted, subjects = FAULTS[name]
    scenario(change)
    found = failures(bench.accept("--stages", STAGES))
    assert {(subject, id) for _host, subject, id in found} >= wanted
    assert {host for host, _subject, _id in found} == {NODE}
    assert {subject for _host, subject, _id in found} <= subjects
    # What is about the host itself is what its agent says of the same fault.
    assert {id for _host, subject, id in found if not subject} <= {"node.health"}


def test_two_nodes_with_different_drivers_are_told_apart(bench: Bench) -> None:
    found = failures(bench.accept("--stages", "node", limit=""))
    assert {(NODE, "", "node.driver"), (OTHER, "", "node.driver")} <= found


def test_killed_at_any_moment_it_goes_on(bench: Bench) -> None:
    for moment in (5.0, 15.0):
        process = bench.begin("--minutes", "0", "--limit", NODE, "--stages", STAGES)
        time.sleep(moment)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kept = record.load(bench.inventory / ".gpuops")
        found = bench.accept("--resume", limit="") if kept else bench.accept("--stages", STAGES)
        assert failures(found) == set()
        assert kept is None or found["started"] == kept.started
    # The children of the killed ones have gone with their parents.
    until(lambda: not ssh(NODE, "pgrep -f '[g]pu_load'", check=False).strip(), 60.0, lambda: ssh(NODE, "ps -ef"))


# --- The network ------------------------------------------------------------------------------------------------------

# The machines share two cores, so that what each of them measures varies a lot.
NETWORK = ("--stages", "network", "--network-tolerance", "0.8")


def listeners() -> list[str]:
    """Processes of the user nobody that listen, on any of the machines."""
    told = [ssh(machine, "sudo ss -Hltnp | grep -c python3 || true").strip() for machine in (NODE, OTHER, SERVER)]
    return [number for number in told if number != "0"]


def test_a_sound_network_passes_and_nobody_listens_any_more(bench: Bench) -> None:
    before = listeners()
    found = bench.accept(*NETWORK, limit="")
    assert failures(found) == set()
    assert {row["host"] for row in found["items"] if row["id"] == "network.send"} >= {NODE, OTHER, SERVER}
    assert listeners() == before


def test_a_narrow_link_is_named_and_nothing_else(bench: Bench) -> None:
    device = ssh(NODE, "ip -o route show default | grep -oP 'dev \\K\\S+'").strip()
    narrow = ssh(NODE, f"sudo tc qdisc add dev {device} root tbf rate 20mbit burst 64k latency 100ms 2>&1", check=False)
    if narrow.strip():
        pytest.skip(f"the kernel of the lab's host cannot narrow a link: {narrow.strip()}")
    try:
        assert failures(bench.accept(*NETWORK, limit="")) == {(NODE, "", "network.send")}
        # The same in the short form, in which the others are partners alone.
        assert failures(bench.accept(*NETWORK, "--short")) == {(NODE, "", "network.send")}
    finally:
        ssh(NODE, f"sudo tc qdisc del dev {device} root")
    assert failures(bench.accept(*NETWORK, "--short")) == set()


def test_a_listener_of_a_run_that_was_killed_goes_away(bench: Bench) -> None:
    before = listeners()
    process = bench.begin(*NETWORK, accept_network_idle=10, accept_network_seconds=20)
    until(lambda: listeners() != before, 120.0, listeners)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: listeners() == before, 120.0, listeners)


# --- Services ---------------------------------------------------------------------------------------------------------


def test_a_dead_exporter_is_named_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    watched = [SERVER, NODE, OTHER]
    bench.groups(prometheus_servers=[SERVER], node_exporters=watched)
    Watch(SERVER).prepare(watched)
    play = run_playbook(
        "monitoring.yml",
        options=f"-i {bench.inventory / 'more.yml'}",
        extra_vars={**VARIABLES, "node_exporter_tls_path": str(tmp_path / "tls")},
    )
    assert play.rc == 0, play.tail()
    targets = Watch(SERVER).targets
    until(lambda: set(targets().values()) == {"up"}, 120.0, targets)

    def found() -> set[tuple[str, str, str]]:
        return failures(bench.accept("--stages", "services"))

    # The alert that always fires comes within a minute.
    until(lambda: not found(), 180.0, found)
    ssh(NODE, "sudo systemctl stop prometheus-node-exporter")
    try:
        until(lambda: targets()[NODE] == "down", 120.0, targets)
        assert found() == {(NODE, "node", "services.exporter")}
    finally:
        ssh(NODE, "sudo systemctl start prometheus-node-exporter")


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    made.converge()
    return made


@pytest.fixture
def slurm(bench: Bench, cluster: Cluster) -> Bench:
    bench.groups(slurm_nodes=[NODE], slurm_controllers=[SERVER], slurm_logins=[SERVER], slurm_databases=[SERVER])
    return bench


def test_a_node_takes_jobs_of_every_kind_and_keeps_none(slurm: Bench) -> None:
    found = slurm.accept("--stages", "scheduler")
    outcomes = {row["id"]: row["outcome"] for row in found["items"] if row["host"] == NODE}
    for kind in ("state", "batch", "array", "interactive", "gpu", "memory", "accounting"):
        assert outcomes[f"scheduler.{kind}"] == "pass", [row for row in found["items"] if row["outcome"] != "pass"]
    assert outcomes["scheduler.collective"] == "not_testable", "the machines have no torch"
    until(lambda: not ssh(SERVER, "squeue -h").strip(), 60.0, lambda: ssh(SERVER, "squeue"))


def test_a_node_that_somebody_took_out_is_named_and_our_own_is_not_testable(slurm: Bench, cluster: Cluster) -> None:
    ssh(SERVER, f"sudo scontrol update nodename={NODE} state=drain reason=broken")
    try:
        assert failures(slurm.accept("--stages", "scheduler")) == {(NODE, "", "scheduler.state")}
    finally:
        ssh(SERVER, f"sudo scontrol update nodename={NODE} state=resume")
    cluster.operate("drain", NODE)
    try:
        found = slurm.accept("--stages", "scheduler")
        assert failures(found) == set()
        (state,) = [row for row in found["items"] if row["host"] == NODE and row["id"] == "scheduler.state"]
        assert (state["outcome"], f"gpuops restore {NODE}" in state["remedy"]) == ("not_testable", True)
    finally:
        cluster.operate("restore", NODE)


# The job that has the GPUs while they are under load.
HOLDER = f"gpuops-accept-gpu-{NODE}"


def running(name: str) -> str:
    """The number of the job of that name that runs."""
    return ssh(SERVER, f"sudo squeue --noheader --name={name} --states=running --format=%A").strip()


def no_job_is_left() -> None:
    until(lambda: not ssh(SERVER, "sudo squeue --all --noheader").strip(), 60.0, lambda: ssh(SERVER, "squeue --all"))


def as_job(slurm: Bench) -> subprocess.Popen[bytes]:
    """An acceptance that has begun, whose job has the GPUs."""
    process = slurm.begin("--minutes", "0", "--limit", NODE, "--stages", "gpu", "--as-jobs")
    until(lambda: bool(running(HOLDER)), 120.0, lambda: ssh(SERVER, "squeue --all"))
    return process


def test_as_a_job_it_leaves_gpus_to_the_jobs_that_have_them_and_lets_none_begin(slurm: Bench) -> None:
    submit = "sbatch --parsable --chdir=/tmp --output=/dev/null --gres=gpu:1 --wrap"
    theirs = ssh(SERVER, f"{submit} 'sleep infinity'").strip()
    try:
        until(lambda: bool(running("wrap")), 60.0, lambda: ssh(SERVER, "squeue --all"))
        process = as_job(slurm)
        holder = running(HOLDER)
        waiting = ssh(SERVER, f"{submit} 'sleep 1'").strip()
        assert process.wait(600) == 0
        found = json.loads(Path(slurm.output).with_suffix(".json").read_text())["items"]
        outcomes = {(row["subject"], row["id"]): (row["outcome"], row["evidence"]) for row in found}
        assert outcomes["GPU 0", "gpu.free"] == ("not_testable", "another job of Slurm has the GPU")
        assert outcomes["GPU 1", "gpu.memory"][0] == "pass"
        assert ("GPU 0", "gpu.memory") not in outcomes
        assert theirs in running("wrap").split(), "the job that was there goes on"

        def rows(job: str, column: str) -> str:
            return ssh(
                SERVER, f"sudo sacct --jobs={job} --allocations --parsable2 --noheader --format={column}"
            ).strip()

        until(
            lambda: rows(waiting, "State") == "COMPLETED", 90.0, lambda: ssh(SERVER, "squeue --all; sacct --allusers")
        )
        assert rows(waiting, "Start") >= rows(holder, "End"), "a job began on a GPU under load"
    finally:
        ssh(SERVER, "scancel --me")
    no_job_is_left()


def test_the_job_of_a_run_that_was_killed_goes_with_the_next(slurm: Bench) -> None:
    process = as_job(slurm)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = slurm.accept("--stages", "gpu", "--as-jobs")
    assert failures(found) == set()
    outcomes = {(row["subject"], row["id"]): row["outcome"] for row in found["items"]}
    assert (outcomes["GPU 0", "gpu.memory"], outcomes["GPU 1", "gpu.memory"]) == ("pass", "pass")
    no_job_is_left()
