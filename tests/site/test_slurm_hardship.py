# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster of Slurm has to bear: stopped daemons, files spoilt by hand, lost power and runs that are cut.

The tests run in order on one lab, with real daemons, after those of test_slurm.py or by themselves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from tests.site.plays import ROOT, lab, run_playbook, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE, Cluster, job

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CONF = "/etc/slurm/slurm.conf"
CUTS = 10
DOCS = ROOT / "docs" / "slurm.md"


STATE = "/var/lib/slurm/slurmctld"
# With -b slurmd says that its machine has just booted.
BOOTED = """
sudo mkdir -p /etc/systemd/system/slurmd.service.d
start=$(systemctl cat slurmd | sed -n 's/^ExecStart=\\(.*slurmd\\) /ExecStart=\\1 -b /p')
printf '[Service]\\nExecStart=\\n%s\\n' "$start" | sudo tee /etc/systemd/system/slurmd.service.d/booted.conf
"""
# Makes a node bare of Slurm.
WITHOUT_SLURM = """
sudo systemctl stop slurmd munge
dpkg -l | awk '/^ii +(slurm|munge|libpam-slurm)/ {print $2}' | DEBIAN_FRONTEND=noninteractive xargs -r sudo -E \\
    apt-get -qq -y purge
sudo rm -rf /etc/slurm /etc/munge /etc/default/slurmd /etc/systemd/system/slurmd.service.d /var/lib/slurm /run/slurm
sudo systemctl daemon-reload
"""


def commands(heading: str) -> str:
    """The commands in the section of docs/slurm.md that begins with a bold heading."""
    (section,) = re.findall(rf"\*\*{heading}\.\*\*.*?```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return section


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


def field(number: str, name: str) -> str:
    """A field of a job as scontrol shows it; empty where slurmctld does not answer."""
    shown = ssh(CONTROLLER, f"scontrol show job {number} 2>/dev/null", check=False)
    return shown.partition(f" {name}=")[2].partition(" ")[0]


def accounted(numbers: list[str]) -> dict[str, str]:
    """The state of jobs by number, as slurmdbd has them."""
    rows = ssh(CONTROLLER, f"sacct -X -n -P -D -j {','.join(numbers)} -o JobID,State", check=False)
    return dict(row.split("|") for row in rows.split() if "|" in row)


def runs(number: str, seconds: float = 120) -> None:
    until(lambda: state(number) == "RUNNING", seconds, told)


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


def test_accounting_comes_back_from_a_backup(cluster: Cluster) -> None:
    """By the commands of docs/slurm.md."""
    before = batch("true", "--gres=gpu:1")
    until(lambda: accounted([before]) == {before: "COMPLETED"}, 120, told)
    ssh(CONTROLLER, commands("Back up"))
    ssh(CONTROLLER, "sudo mariadb -e 'DROP DATABASE slurm_acct_db'")
    ssh(CONTROLLER, commands("Restore"))
    until(lambda: accounted([before]) == {before: "COMPLETED"}, 120, told)
    after = batch("true", "--gres=gpu:1")
    until(lambda: accounted([before, after]) == dict.fromkeys((before, after), "COMPLETED"), 120, told)
    assert cluster.converge().changed_tasks == {}


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


def test_another_key_in_a_running_munge_is_told_with_its_host(cluster: Cluster) -> None:
    """The file is right again, but munged still has what it read when it started: nothing differs to be changed."""
    ssh(
        NODE,
        "sudo cp -a /etc/munge/munge.key /root/munge.key; "
        "openssl rand -hex 64 | sudo tee /etc/munge/munge.key >/dev/null; sudo systemctl restart munge; "
        "sudo cp -a /root/munge.key /etc/munge/munge.key; sudo rm /root/munge.key",
    )
    try:
        play = cluster.run()
        assert play.rc != 0
        messages = [f"{host}: {text}" for host, texts in play.failures.items() for text in texts]
        # The first host makes the credential, and the other refuses it; the node may be either.
        (refusal,) = [message for message in messages if "does not take a credential" in message]
        assert NODE in refusal
        assert "systemctl restart munge" in refusal
    finally:
        ssh(NODE, "sudo systemctl restart munge; sudo systemctl restart slurmd")
    assert cluster.converge().changed_tasks == {}
    a_job_gets_a_gpu()


def test_after_a_loss_of_power_jobs_and_daemons_come_back_by_themselves(cluster: Cluster) -> None:
    ended = batch("true", "--gres=gpu:1")
    until(lambda: accounted([ended]) == {ended: "COMPLETED"}, 120, told)
    number = batch("sleep 3600", "--gres=gpu:1", "--requeue")
    runs(number)
    # slurmctld writes its state every few seconds.
    ssh(CONTROLLER, "sleep 15")
    # A machine of the lab has the uptime of the host, by which slurmctld knows a boot; a real one has its own.
    ssh(NODE, BOOTED)
    lab("power-cut", *MACHINES)
    lab("up")
    # BeginTime holds a requeued job for half a minute.
    until(lambda: int(field(number, "Restarts") or 0) >= 1, 300, told)
    runs(number, 300)
    ssh(NODE, "sudo rm /etc/systemd/system/slurmd.service.d/booted.conf; sudo systemctl daemon-reload", check=False)
    assert accounted([ended]) == {ended: "COMPLETED"}
    ssh(CONTROLLER, f"scancel {number}")
    a_job_gets_a_gpu()
    assert cluster.converge().changed_tasks == {}


@pytest.fixture
def small_state(cluster: Cluster) -> Iterator[None]:
    """A file system of 128 MiB for what slurmctld saves, until the test is over."""
    ssh(
        CONTROLLER,
        f"sudo systemctl stop slurmctld; sudo cp -a {STATE} {STATE}.kept; "
        f"sudo mount -t tmpfs -o size=128m,mode=0700,uid=slurm,gid=slurm tmpfs {STATE}; "
        f"sudo cp -a {STATE}.kept/. {STATE}/; sudo systemctl start slurmctld",
    )
    yield
    ssh(
        CONTROLLER,
        f"sudo scancel --user=$(id -un); sudo systemctl stop slurmctld; sudo rm -rf {STATE}.kept; "
        f"sudo cp -a {STATE} {STATE}.kept; sudo umount {STATE}; sudo cp -a {STATE}.kept/. {STATE}/; "
        f"sudo rm -rf {STATE}.kept; sudo systemctl start slurmctld",
    )


def test_with_a_full_state_directory_jobs_go_on_and_it_is_named(cluster: Cluster, small_state: None) -> None:
    number = batch("sleep 3600", "--gres=gpu:1")
    runs(number)
    ssh(CONTROLLER, f"sudo dd if=/dev/zero of={STATE}/fill bs=64k 2>/dev/null", check=False)
    refused = ssh(CONTROLLER, "sbatch --mem=50 --output=/dev/null --wrap true 2>&1", check=False)
    assert "I/O error writing script/environment to file" in refused
    assert state(number) == "RUNNING"
    (finding,) = (row for row in cluster.doctor(CONTROLLER) if STATE in row["text"])
    assert "full" in finding["text"]
    ssh(CONTROLLER, f"sudo rm {STATE}/fill")
    assert not [row for row in cluster.doctor(CONTROLLER) if STATE in row["text"]]
    waiting = batch("sleep 3600", "--begin=now+1hour")
    # With room again it is saved, which shows where slurmctld reads it anew.
    ssh(CONTROLLER, "sleep 15; sudo systemctl restart slurmctld")
    until(lambda: (state(number), state(waiting)) == ("RUNNING", "PENDING"), 60, told)
    ssh(CONTROLLER, f"scancel {number} {waiting}")
    a_job_gets_a_gpu()


def test_a_run_that_was_cut_ten_times_converges(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    play = cluster.run("-e slurm_node_adopt=false")
    assert play.rc == 0, play.tail()
    # The node keeps its driver, which takes long to build.
    ssh(NODE, WITHOUT_SLURM)
    lab("reset", CONTROLLER)
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    fresh = Cluster(tmp_path_factory.mktemp("cut"))
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    cut_at: list[str] = []
    for _run in range(2 * CUTS):
        # Each cut falls later than the one before, so that the whole of the way is covered.
        task = 8 + 5 * len(cut_at) + chosen.randint(0, 4)
        # None where the run failed before, on what the last cut left at work.
        where = fresh.run_and_cut(task, chosen.uniform(0, 3))
        if where is not None:
            cut_at.append(where)
        if len(cut_at) == CUTS:
            break
    print(f"seed {seed}; cut at: {cut_at}")
    last = fresh.run()
    assert last.rc == 0, f"seed {seed}, cut at {cut_at}\n{last.tail()}"
    again = fresh.converge()
    assert again.changed_tasks == {}, f"seed {seed}, cut at {cut_at}"
    a_job_gets_a_gpu()
    assert len(cut_at) == CUTS, cut_at
    assert len(set(cut_at)) >= CUTS // 2, cut_at
