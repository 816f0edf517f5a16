# SPDX-License-Identifier: GPL-3.0-or-later
"""Prolog and Epilog of Slurm on the lab's machines: a GPU that the agent has found to be out of order, and what a job
leaves behind.

The tests run in order on one lab, after those of test_slurm.py or by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.site.plays import kernel_says, run_playbook, ssh, until
from tests.site.slurm_faults import ADDRESSES
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE, Cluster, job

pytestmark = pytest.mark.lab

SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
NOTES = "/run/baremetal-gpu-slurm"
COMPUTE_MODES = "nvidia-smi --query-gpu=compute_mode,power.limit --format=csv,noheader,nounits"
CUDA_COUNT = """python3 -c "
import ctypes
cuda, count = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()
print('code', cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), 'count', count.value)" """
SET = """sudo python3 -c "
import ctypes
nvml, gpu = ctypes.CDLL('libnvidia-ml.so.1'), ctypes.c_void_p()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)),
      nvml.nvmlDeviceSetComputeMode(gpu, 3), nvml.nvmlDeviceSetPowerManagementLimit(gpu, 250000))" """


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver,agent")
    assert play.rc == 0, play.tail()
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    found.converge()
    return found


def verdicts() -> list[str]:
    shown = ssh(NODE, "gpu-agent status --json", check=False)
    return [row["verdict"] for row in json.loads(shown)["health"]["devices"]] if shown.startswith("{") else []


@pytest.fixture
def fatal(cluster: Cluster) -> Iterator[Any]:
    """fatal(place) has the agent find a GPU to be out of order, until the test is over."""

    def spoil(place: int) -> None:
        kernel_says(
            NODE, f"NVRM: Xid (PCI:{ADDRESSES[place]}): 79, pid=4242, name=python3, GPU has fallen off the bus."
        )
        until(lambda: verdicts()[place] == "fatal", 30, verdicts)

    yield spoil
    mend()


def mend() -> None:
    ssh(NODE, "sudo gpu-agent clear", check=False)
    until(lambda: verdicts() == ["ok", "ok"], 30, verdicts)


def state() -> str:
    return ssh(CONTROLLER, f"sinfo -h -n {NODE} -o %T").strip()


def shown(number: str, field: str) -> str:
    return ssh(CONTROLLER, f"scontrol show job {number} | tr ' ' '\\n' | sed -n 's/^{field}=//p'").strip()


def wait_for(number: str, field: str, *values: str) -> None:
    until(lambda: shown(number, field) in values, 60, lambda: ssh(CONTROLLER, f"scontrol show job {number}"))


def batch(command: str, *options: str) -> str:
    return ssh(CONTROLLER, f"sbatch --parsable --chdir=/tmp {' '.join(options)} --wrap '{command}'").strip()


def output(number: str) -> str:
    return ssh(NODE, f"cat /tmp/slurm-{number}.out", check=False)


def logged() -> list[dict[str, Any]]:
    """What the programs have written to the journal of the node."""
    text = ssh(NODE, "sudo journalctl -t baremetal-gpu-slurm -o cat --no-pager")
    return [json.loads(line) for line in text.splitlines()]


def test_jobs_on_healthy_gpus_start_and_leave_no_note(cluster: Cluster) -> None:
    assert job("nvidia-smi -L", "--gres=gpu:2").count("GPU ") == 2
    assert job("hostname").strip() == NODE
    until(lambda: ssh(NODE, f"ls {NOTES}").split() == [], 30, lambda: ssh(NODE, f"ls {NOTES}"))
    assert {(row["what"], row.get("verdict")) for row in logged()[-2:]} == {("prolog", "usable"), ("epilog", None)}


def test_cuda_has_the_gpus_of_the_job_alone(cluster: Cluster) -> None:
    assert job(CUDA_COUNT, "--gres=gpu:1").strip() == "code 0 0 count 1"
    assert job(CUDA_COUNT, "--gres=gpu:2").strip() == "code 0 0 count 2"


def test_the_user_of_a_job_on_a_fatal_gpu_reads_why_and_the_node_stays_in_service(fatal: Any) -> None:
    fatal(0)
    told = job("echo it runs", "--gres=gpu:1")
    assert "it runs" not in told
    assert "is out of order, so this job does not run on it" in told
    assert "xid_fatal" in told
    assert "remedy:" in told
    assert "it runs" not in job("echo it runs", "--gres=gpu:2")
    # Who needs no GPU has no part in it.
    assert job("echo it runs").strip() == "it runs"
    assert state() == "idle"


def test_a_job_on_the_healthy_gpu_starts(fatal: Any) -> None:
    fatal(1)
    assert job("echo it runs", "--gres=gpu:1").strip() == "it runs"


def test_a_batch_job_is_queued_again_and_runs_when_the_gpu_is_mended(fatal: Any) -> None:
    fatal(0)
    number = batch("echo it runs", "--gres=gpu:1")
    wait_for(number, "Restarts", "1")
    wait_for(number, "JobState", "PENDING")
    assert "is out of order" in output(number)
    mend()
    ssh(CONTROLLER, f"sudo scontrol update jobid={number} starttime=now")
    wait_for(number, "JobState", "COMPLETED")
    assert "it runs" in output(number)
    assert state() == "idle"


def test_what_a_job_has_set_is_put_back(cluster: Cluster) -> None:
    before = ssh(NODE, COMPUTE_MODES)
    assert job(SET, "--gres=gpu:1").strip() == "0 0 0 0"
    until(lambda: ssh(NODE, COMPUTE_MODES) == before, 30, lambda: ssh(NODE, COMPUTE_MODES))
    assert logged()[-1]["put_back"] == {"0": {"compute_mode": 0, "power_limit_mw": 400000}}
    assert state() in ("idle", "completing")


def test_a_process_that_a_job_has_left_on_its_gpu_is_ended(cluster: Cluster) -> None:
    """Started by the user's service manager, it is not in the cgroup of the job."""
    scenario = ssh(NODE, f"cat {SCENARIO}")
    number = batch("sudo systemd-run --uid=$(id -u) --unit=left-behind sleep 600; sleep 15", "--gres=gpu:1")
    until(lambda: ssh(NODE, "pgrep -x sleep -u $(id -u)", check=False).split(), 30, lambda: output(number))
    pid = int(ssh(NODE, "systemctl show left-behind -p MainPID --value"))
    changed = json.loads(scenario)
    changed["devices"][0]["processes"] = [{"pid": pid, "type": "C", "memory_mib": 100}]
    set_scenario(json.dumps(changed))
    try:
        wait_for(number, "JobState", "COMPLETED")
        until(
            lambda: ssh(NODE, "systemctl is-active left-behind", check=False).strip() != "active",
            30,
            lambda: logged()[-3:],
        )
        assert logged()[-1]["ended"] == [f"{pid} sleep"]
    finally:
        set_scenario(scenario)
        ssh(NODE, "sudo systemctl stop left-behind; sudo systemctl reset-failed left-behind", check=False)


def set_scenario(text: str) -> None:
    ssh(NODE, f"sudo tee {SCENARIO}.new >/dev/null <<'END'\n{text}\nEND")
    ssh(NODE, f"sudo mv {SCENARIO}.new {SCENARIO}")


def test_without_the_agents_verdict_jobs_run(cluster: Cluster) -> None:
    ssh(NODE, "sudo systemctl stop baremetal-gpu-agent")
    ssh(NODE, "sudo rm -f /run/baremetal-gpu/gpu.json")
    try:
        assert job("echo it runs", "--gres=gpu:1").strip() == "it runs"
        prologs = [row for row in logged() if row["what"] == "prolog"]
        assert prologs[-1]["verdict"] == "unknown"
        assert "there is none" in prologs[-1]["why"]
    finally:
        ssh(NODE, "sudo systemctl start baremetal-gpu-agent")
    until(lambda: verdicts() == ["ok", "ok"], 60, verdicts)


def test_a_slurmd_that_runs_with_an_older_configuration_takes_the_new_one(cluster: Cluster) -> None:
    ssh(NODE, "echo '# older' | sudo tee -a /run/slurm/conf/slurm.conf")
    assert NODE in cluster.converge().changed_tasks
    assert "# older" not in ssh(NODE, "cat /run/slurm/conf/slurm.conf")


def test_a_second_run_changes_nothing(cluster: Cluster) -> None:
    assert cluster.converge().changed_tasks == {}
