# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster of Slurm has to bear: stopped daemons and files spoilt by hand.

The tests run in order on one lab, with real daemons, after those of test_slurm.py or by themselves.
"""

from __future__ import annotations

import pytest

from tests.site.plays import run_playbook, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE, Cluster, job

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CONF = "/etc/slurm/slurm.conf"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    found.converge()
    return found


def told() -> str:
    """What Slurm says of itself, for the message of a wait that was in vain."""
    return ssh(
        CONTROLLER,
        "squeue; sinfo -R; scontrol show node; sudo journalctl -u slurmctld -u slurmdbd -n 40 -o cat",
        check=False,
    )


def batch(command: str, *options: str) -> str:
    """A batch job with little memory: its number."""
    words = f"--mem=50 --output=/dev/null {' '.join(options)}"
    return ssh(CONTROLLER, f"sbatch --parsable {words} --wrap '{command}'").strip()


def state(number: str) -> str:
    """The state of a job that slurmctld still has."""
    return ssh(CONTROLLER, f"squeue --noheader --jobs={number} --states=all --Format=State:20 2>/dev/null").strip()


def accounted(numbers: list[str]) -> dict[str, str]:
    """The state of jobs by number, as slurmdbd has them."""
    rows = ssh(CONTROLLER, f"sacct -X -n -P -D -j {','.join(numbers)} -o JobID,State", check=False)
    return dict(row.split("|") for row in rows.split() if "|" in row)


def a_job_gets_a_gpu() -> None:
    assert job("nvidia-smi -L", "--gres=gpu:1", "--immediate=90").count("GPU ") == 1, told()


def test_jobs_that_ran_while_the_accounting_was_down_are_accounted_afterwards(cluster: Cluster) -> None:
    ssh(CONTROLLER, "sudo systemctl stop slurmdbd mariadb")
    try:
        numbers = [batch("sleep 1", "--gres=gpu:1") for _ in range(3)]
        until(lambda: {state(number) for number in numbers} == {"COMPLETED"}, 120, told)
    finally:
        ssh(CONTROLLER, "sudo systemctl start mariadb slurmdbd")
    until(lambda: accounted(numbers) == dict.fromkeys(numbers, "COMPLETED"), 120, lambda: (accounted(numbers), told()))


def test_a_configuration_spoilt_by_hand_is_shown_and_repaired(cluster: Cluster) -> None:
    ssh(CONTROLLER, f"sudo sed -i 's/^NodeName=.*/NodeName= ][ %% garbage/' {CONF}")
    ssh(CONTROLLER, "sudo systemctl restart slurmctld", check=False)
    assert ssh(CONTROLLER, "systemctl is-active slurmctld", check=False).strip() != "active"
    preview = cluster.run("--check --diff")
    assert preview.rc == 0, preview.tail()
    assert CONF in " ".join(preview.drifts[CONTROLLER, "slurmctld"])
    assert "-NodeName= ][ %% garbage" in preview.stdout
    assert f"+NodeName={NODE} " in preview.stdout
    assert "garbage" in ssh(CONTROLLER, f"cat {CONF}"), "check mode is to change nothing"
    assert cluster.converge().changed_tasks.keys() == {CONTROLLER}
    for machine, unit in ((CONTROLLER, "slurmctld"), (NODE, "slurmd")):
        assert ssh(machine, f"systemctl is-active {unit}", check=False).strip() == "active"
    a_job_gets_a_gpu()
    assert cluster.converge().changed_tasks == {}


def test_a_node_with_less_memory_than_configured_is_told_and_comes_back(cluster: Cluster) -> None:
    ssh(CONTROLLER, f"sudo sed -i -E 's/ RealMemory=[0-9]+/ RealMemory=9000000/' {CONF}")
    ssh(CONTROLLER, "sudo scontrol reconfigure")
    until(lambda: "Low RealMemory" in ssh(CONTROLLER, "sinfo -R -h -o %E"), 120, told)
    # The doctor asks the node as well as the controller.
    findings = [row for row in cluster.doctor(NODE) if "less memory" in row["text"]]
    assert len(findings) == 1, cluster.doctor(NODE)
    assert f"scontrol update nodename={NODE} state=resume" in findings[0]["remedy"]
    (told_of_all,) = (row for row in cluster.doctor(CONTROLLER) if "less memory" in row["text"])
    assert NODE in told_of_all["text"]
    assert CONTROLLER in cluster.converge().changed_tasks
    # Slurm drained it, and whether it is to serve with the memory that it has is for a human to say: the remedy.
    until(lambda: "INVALID_REG" not in ssh(CONTROLLER, f"scontrol show node {NODE}"), 60, told)
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume")
    a_job_gets_a_gpu()
    assert cluster.doctor(NODE) == []
    assert cluster.converge().changed_tasks == {}


def test_another_key_of_munge_in_the_file_is_replaced(cluster: Cluster) -> None:
    ssh(NODE, "openssl rand -hex 64 | sudo tee /etc/munge/munge.key >/dev/null; sudo systemctl restart munge")
    assert cluster.converge().changed_tasks.keys() == {NODE}
    a_job_gets_a_gpu()
