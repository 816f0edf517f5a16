# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm.yml on the lab's machines: real daemons of Slurm, munge and MariaDB, and jobs that get GPUs.

The GPUs are simulated, but their device files are real, and so is the cgroup that denies them. The tests of this file
run in order on one lab, after those of test_site.py; by themselves they install the driver first.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, ROOT, Play, lab, run_and_cut, run_playbook, services, ssh, until

pytestmark = pytest.mark.lab

NODE, CONTROLLER = "gpu1", "cpu1"
MACHINES = (NODE, CONTROLLER)
HEAD_GROUPS = ("slurm_controllers", "slurm_databases", "slurm_logins")
# Which devices a job can open: ENXIO (6) is a device that has no driver behind it in the lab, EPERM (1) a denied one.
OPEN_DEVICES = """python3 -c "
import os
for n in (0, 1):
    try: os.open(f'/dev/nvidia{n}', os.O_RDWR)
    except OSError as e: print(n, e.errno)
" """


def secrets_path(base: Path, machine: str) -> str:
    """A file of the controller's secrets, with the key that the machine has from an earlier run, if there was one."""
    path = base / ".secrets" / "slurm.json"
    key = ssh(machine, "sudo grep -E '^[0-9a-f]{32,}$' /etc/munge/munge.key 2>/dev/null", check=False).strip()
    if key:
        path.parent.mkdir(mode=0o700)
        path.touch(mode=0o600)
        path.write_text(json.dumps({"munge": key}))
    return str(path)


class Cluster:
    """Two machines as a cluster of Slurm: one is the node, the other is everything else."""

    def __init__(self, base: Path, node: str = NODE, controller: str = CONTROLLER) -> None:
        self.machines = (node, controller)
        machines = {"slurm_nodes": node, **dict.fromkeys(HEAD_GROUPS, controller)}
        groups = {name: {"hosts": {machine: {}}} for name, machine in machines.items()}
        (base / "slurm.yml").write_text(json.dumps(groups))
        # The same two as one site, which gpuops wants.
        self.inventory = base / "site"
        self.inventory.mkdir()
        for path in INVENTORY.iterdir():
            if not path.name.startswith("."):
                (self.inventory / path.name).symlink_to(path)
        (self.inventory / "slurm.yml").symlink_to(base / "slurm.yml")
        self._options = f"-i {INVENTORY} -i {base / 'slurm.yml'}"
        # The fence has tests of its own, and others want to see what is without it.
        self._variables: dict[str, Any] = {
            "slurm_common_secrets_path": secrets_path(base, node),
            "gpu_reconciler_state": "absent",
        }

    def run(self, options: str = "", limit: str = "") -> Play:
        return run_playbook(
            "slurm.yml",
            limit=limit or ",".join(self.machines),
            extra_vars=self._variables,
            options=f"{self._options} {options}",
        )

    def announce(self) -> Play:
        """What a run would do; it changes nothing."""
        before = {machine: lab("changes", machine) for machine in self.machines}
        play = self.run("--check --diff")
        assert {machine: lab("changes", machine) for machine in self.machines} == before, "check mode changed files"
        return play

    def run_and_cut(self, task: int, seconds: float) -> str | None:
        """Cut a run `seconds` after its `task`-th task began: its name; None if the run ended before."""
        variables = self.inventory.parent / "variables.json"
        variables.write_text(json.dumps(self._variables))
        words = [*self._options.split(), "-l", ",".join(self.machines), "-e", f"@{variables}"]
        return run_and_cut([*words, ROOT / "playbooks" / "slurm.yml"], task, seconds)

    def rotate_key(self, limit: str = "") -> Play:
        return run_playbook(
            "slurm_rotate_key.yml",
            limit=limit or ",".join(self.machines),
            extra_vars=self._variables,
            options=self._options,
        )

    def gpuops(self, *words: str, status: int | None = None) -> str:
        """What `gpuops` prints about the site; `status` is what it is to end with."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuops", *words[:1], "-i", str(self.inventory), *words[1:]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.stdout, done.stderr
        assert status in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    def operate(self, *words: str, status: int = 0) -> str:
        """What `gpuops drain` and `gpuops restore` print, in one line."""
        return " ".join(self.gpuops(*words, status=status).split())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.gpuops("status", "--json", "--limit", ",".join(self.machines)))
        return found

    def doctor(self, host: str) -> list[dict[str, str]]:
        """What the doctor says of Slurm."""
        found = json.loads(self.gpuops("doctor", "--json", host))
        return [row for row in found["findings"] if row["cause"] == "slurm"]

    def upgrade(self, options: str) -> Play:
        return run_playbook("upgrade_driver.yml", limit=self.machines[0], options=f"{self._options} {options}")

    def share_cores(self, jobs: int) -> None:
        """As many jobs as that can have each core of a node at the same time, until the cluster converges again."""
        all_nodes = {"name": "all", "groups": ["slurm_nodes"], "default": True}
        shared = {**all_nodes, "options": {"OverSubscribe": f"FORCE:{jobs}"}}
        before = self._variables
        self._variables = {**before, "slurm_common_partitions": [shared], "slurm_common_memory_reserve_mib": 512}
        try:
            self.converge()
        finally:
            self._variables = before

    def converge(self) -> Play:
        play = self.run()
        assert play.rc == 0, play.tail()
        return play


@pytest.fixture(scope="module")
def driven_node() -> None:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()


@pytest.fixture(scope="module")
def announced(driven_node: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, Play]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    return cluster, cluster.announce()


@pytest.fixture(scope="module")
def cluster(announced: tuple[Cluster, Play]) -> Cluster:
    announced[0].converge()
    return announced[0]


def job(command: str, *options: str, on: str = CONTROLLER) -> str:
    """What a job prints that is submitted on the login, and the errors of srun itself."""
    return ssh(on, f"srun --quiet {' '.join(options)} {command} 2>&1 || true")


def test_check_mode_tells_what_a_run_would_install(announced: tuple[Cluster, Play]) -> None:
    play = announced[1]
    assert play.rc == 0, play.tail()
    assert "munge" in " ".join(play.drifts[NODE, "munge"])
    assert "slurmd" in " ".join(play.drifts[NODE, "slurmd"])
    assert "slurm.conf" in " ".join(play.drifts[CONTROLLER, "slurmctld"])


def test_a_job_has_the_gpu_that_it_asked_for_and_is_refused_the_other(cluster: Cluster) -> None:
    assert job("nvidia-smi -L", "--gres=gpu:1").count("GPU ") == 1
    assert job("printenv CUDA_VISIBLE_DEVICES", "--gres=gpu:a100:1").strip() == "0"
    assert job(OPEN_DEVICES, "--gres=gpu:1").split("\n")[:2] == ["0 6", "1 1"]


def test_a_job_without_gpus_is_refused_both(cluster: Cluster) -> None:
    assert job(OPEN_DEVICES).split("\n")[:2] == ["0 1", "1 1"]


def test_more_gpus_than_there_are_are_refused_at_once(cluster: Cluster) -> None:
    assert "Requested node configuration is not available" in job("true", "--gres=gpu:3")


def test_a_job_that_takes_more_memory_than_it_has_is_killed(cluster: Cluster) -> None:
    assert "oom" in job("python3 -c 'bytearray(300 << 20)'", "--mem=100").lower()


def test_accounting_knows_who_had_how_many_gpus(cluster: Cluster) -> None:
    job("true", "--gres=gpu:2", "--job-name=both")
    rows = ssh(CONTROLLER, "sleep 2; sacct -X -n -P --name=both -o User,AllocTRES,State")
    user, resources, state = rows.strip().split("\n")[-1].split("|")
    assert user == ssh(CONTROLLER, "id -un").strip()
    assert "gres/gpu=2" in resources
    assert state == "COMPLETED"


def test_a_second_run_changes_nothing_and_restarts_no_daemon(cluster: Cluster) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    assert cluster.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_a_run_without_the_nodes_leaves_them_as_they_are(cluster: Cluster) -> None:
    play = cluster.run(limit=CONTROLLER)
    assert play.rc == 0, play.tail()
    assert play.changed_tasks == {}
    assert f"{NODE} was not looked at in this run and stays as slurm.conf has it." in play.stdout


def test_a_job_survives_a_configuration_that_was_broken_by_hand_and_mended(cluster: Cluster) -> None:
    number = ssh(CONTROLLER, "sbatch --parsable --gres=gpu:1 --output=/dev/null --wrap 'sleep 600'").strip()
    ssh(CONTROLLER, "for i in $(seq 30); do squeue -h -t R | grep -q . && break; sleep 1; done")
    ssh(CONTROLLER, "echo Broken=yes | sudo tee -a /etc/slurm/slurm.conf")
    play = cluster.converge()
    assert CONTROLLER in play.changed_tasks
    assert NODE not in play.changed_tasks
    assert ssh(CONTROLLER, f"squeue -h -j {number} -o %T").strip() == "RUNNING"
    ssh(CONTROLLER, f"scancel {number}")


def test_a_wrong_key_of_munge_is_replaced(cluster: Cluster) -> None:
    ssh(
        NODE,
        "head -c 64 /dev/urandom | base64 | sudo tee /etc/munge/munge.key >/dev/null; sudo systemctl restart munge",
    )
    assert NODE in cluster.converge().changed_tasks
    assert job("hostname").strip() == NODE


def submit(*options: str) -> str:
    """A job that ends when it is cancelled: its number."""
    words = " ".join(options)
    return ssh(CONTROLLER, f"sbatch --parsable {words} --mem=50 --output=/dev/null --wrap 'sleep 3600'").strip()


def test_status_tells_who_has_which_gpu_since_when_and_why_a_job_waits(cluster: Cluster) -> None:
    number = submit("--gres=gpu:1", "--time=2:00:00", "--job-name=train")
    try:
        until(lambda: ssh(CONTROLLER, f"squeue -h -j {number} -o %T").strip() == "RUNNING", 60, cluster.status)
        wants_both = submit("--gres=gpu:2", "--job-name=both")
        uuid = re.findall(r"GPU-[0-9a-f-]+", job("nvidia-smi -L", f"--jobid={number}", "--overlap"))
        since = int(ssh(CONTROLLER, f"date +%s --date=$(squeue -h -j {number} -o %S)"))
        # Slurm looks for a place for it a moment later, and has a reason then.
        until(lambda: "Resources" in ssh(CONTROLLER, f"squeue -h -j {wants_both} -o %r"), 60, cluster.status)
        found = cluster.status()
        (lease,) = found["leases"]
        assert (lease["scheduler"], lease["job"], lease["name"], lease["host"]) == ("slurm", number, "train", NODE)
        assert lease["user"] == ssh(CONTROLLER, "id -un").strip()
        assert [gpu["uuid"] for gpu in lease["gpus"]] == uuid
        assert lease["started"] == since
        assert lease["expected_end"] == since + 2 * 3600
        jobs = {row["id"]: row for row in found["slurm"]["jobs"]}
        assert jobs[number]["hosts"] == [NODE]
        assert (jobs[wants_both]["waits"], jobs[wants_both]["gpus"]) == (True, 2)
        assert jobs[wants_both]["waits_for"] == "no node has enough free resources"
        text = cluster.gpuops("status", "--limit", ",".join(MACHINES))
        assert re.search(rf"^{NODE} +0 +\S+ +{number} +.* train", text, re.MULTILINE)
        assert re.search(rf"^ +{wants_both} .*no node has enough free resources \(Resources\)", text, re.MULTILINE)
    finally:
        ssh(CONTROLLER, "scancel --user=$(id -un)")


def test_status_and_doctor_tell_why_a_node_was_drained(cluster: Cluster) -> None:
    assert cluster.doctor(NODE) == []
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=drain reason='the fan of slot 3'")
    try:
        (finding,) = cluster.doctor(NODE)
        assert re.search("drained by root since .*: the fan of slot 3", finding["text"])
        assert f"scontrol update nodename={NODE} state=resume" in finding["remedy"]
        slurm = cluster.status()["slurm"]
        assert slurm["state"] == "degraded"
        assert "the fan of slot 3" in slurm["problems"][0]["cause"]
    finally:
        ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume")


def test_doctor_tells_of_a_node_without_munge(cluster: Cluster) -> None:
    ssh(NODE, "sudo systemctl stop munge")
    try:
        causes = [row["text"] for row in cluster.doctor(NODE)]
        assert any("munge does not run there" in cause for cause in causes), causes
    finally:
        ssh(NODE, "sudo systemctl start munge")
        ssh(NODE, "sudo systemctl restart slurmd")


@pytest.fixture
def jobs(cluster: Cluster) -> Iterator[None]:
    """There is no job, and afterwards none is left and the node takes jobs."""
    ssh(CONTROLLER, "scancel --user=$(id -un)")
    until(lambda: not ssh(CONTROLLER, "squeue -h").strip(), 60, lambda: ssh(CONTROLLER, "squeue"))
    yield
    ssh(CONTROLLER, "scancel --user=$(id -un)")
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume", check=False)


def state_of(number: str) -> str:
    return ssh(CONTROLLER, f"squeue -h -j {number} -o %T", check=False).strip()


def node_state() -> str:
    """State and reason of the node, as Slurm tells its users."""
    return ssh(CONTROLLER, f"sinfo -h -n {NODE} -o '%T %E'").strip()


def runs(number: str) -> None:
    until(lambda: state_of(number) == "RUNNING", 60, lambda: ssh(CONTROLLER, "squeue; sinfo"))


def test_a_drain_waits_for_a_job_and_never_ends_it(cluster: Cluster, jobs: None) -> None:
    number = submit("--gres=gpu:1", "--time=2:00:00")
    runs(number)
    assert f"{NODE}: its node of Slurm would be drained" in cluster.operate("drain", NODE, "--check")
    assert "gpuops" not in node_state()
    told = cluster.operate("drain", NODE, "--timeout", "3", "--reason", "another fan", status=2)
    user = ssh(CONTROLLER, "id -un").strip()
    assert re.search(
        rf"job {number} of {user} \(/dev/nvidia[01]; time limit 02:00:00, at most 01:5\d:\d\d to go\)", told
    )
    assert f"scancel {number}" in told
    assert node_state() == "draining gpuops drain: another fan"
    late = submit("--gres=gpu:1", "--time=2:00:00")
    ssh(CONTROLLER, "sleep 5")
    assert (state_of(number), state_of(late)) == ("RUNNING", "PENDING")
    ssh(CONTROLLER, f"scancel {number}")
    assert f"{NODE}: its node of Slurm is drained already; `gpuops restore` brings it back" in cluster.operate(
        "drain", NODE
    )
    assert node_state() == "drained gpuops drain: another fan"
    assert f"{NODE}: its node of Slurm takes jobs again" in cluster.operate("restore", NODE)
    runs(late)
    assert f"{NODE}: its node of Slurm takes jobs already" in cluster.operate("restore", NODE)


def test_what_an_administrator_drained_is_named_and_stays_drained(cluster: Cluster, jobs: None) -> None:
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=drain reason='a smell of smoke'")
    told = cluster.operate("drain", NODE)
    assert re.search(r"taken out by root since \S+ with the reason 'a smell of smoke'", told)
    told = cluster.operate("restore", NODE, status=2)
    assert re.search(r"drained by root since \S+ with the reason 'a smell of smoke', and not from here", told)
    assert node_state() == "drained a smell of smoke"
    cluster.operate("restore", NODE, "--takeover")
    assert node_state().startswith("idle")


def test_a_node_takes_no_jobs_before_its_slurmd_has_registered(cluster: Cluster, jobs: None) -> None:
    cluster.operate("drain", NODE)
    ssh(NODE, "sudo systemctl stop slurmd")
    try:
        assert "slurmd does not run" in cluster.operate("restore", NODE, "--timeout", "5", status=2)
        assert node_state().startswith("drained")
    finally:
        ssh(NODE, "sudo systemctl start slurmd")
    cluster.operate("restore", NODE)
    runs(submit("--gres=gpu:1", "--time=2:00:00"))


def test_an_upgrade_tells_in_check_mode_that_it_would_drain_the_node(cluster: Cluster, jobs: None) -> None:
    held = ssh(NODE, "apt-mark showhold").split()
    ssh(NODE, f"sudo apt-mark unhold {' '.join(held)}")
    try:
        play = cluster.upgrade("--check --diff")
    finally:
        ssh(NODE, f"sudo apt-mark hold {' '.join(held)}")
    assert play.rc == 0, play.tail()
    assert f"{NODE}: drained, gpuops drain: upgrade of the driver" in play.stdout
    assert "gpuops" not in node_state()


@pytest.mark.slow
def test_the_key_of_munge_is_exchanged_on_all_hosts_while_a_job_runs(cluster: Cluster) -> None:
    def keys() -> set[str]:
        return {ssh(machine, "sudo sha256sum /etc/munge/munge.key") for machine in MACHINES}

    number = ssh(CONTROLLER, "sbatch --parsable --output=/dev/null --wrap 'sleep 600'").strip()
    until(lambda: ssh(CONTROLLER, f"squeue -h -j {number} -o %T").strip() == "RUNNING", 60, keys)
    before = keys()
    play = cluster.rotate_key()
    assert play.rc == 0, play.tail()
    assert len(keys()) == 1
    assert keys() != before
    assert ssh(CONTROLLER, f"squeue -h -j {number} -o '%T %r'").split()[0] == "RUNNING"
    assert job("printenv SLURM_JOB_ID").strip().isdigit()
    ssh(CONTROLLER, f"scancel {number}")
    assert cluster.converge().changed_tasks == {}


@pytest.mark.slow
def test_the_key_is_not_exchanged_on_some_hosts_alone(cluster: Cluster) -> None:
    before = ssh(NODE, "sudo sha256sum /etc/munge/munge.key")
    play = cluster.rotate_key(NODE)
    assert play.rc != 0
    messages = [message for host in play.failures.values() for message in host]
    assert "hosts of the cluster are not in this run" in " ".join(messages)
    assert ssh(NODE, "sudo sha256sum /etc/munge/munge.key") == before
