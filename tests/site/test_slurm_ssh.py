# SPDX-License-Identifier: GPL-3.0-or-later
"""Logins by SSH to a node of Slurm on the lab's machines: real sshd, PAM and daemons.

A user without a job is refused, one with a job is held to it, and administrators come in whatever happens to Slurm. The
tests of this file run in order on one lab, after those of test_slurm.py; by themselves they install the driver first.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.site.plays import Play, lab, run_playbook, services, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE, OPEN_DEVICES, Cluster

pytestmark = pytest.mark.lab

USER, OTHER = "ada", "bob"
FILE = "/etc/pam.d/sshd"
# An administrator's own line, which is to stay.
OWN_LINE = "session    optional     pam_echo.so file=/etc/no-such-file"
WITHOUT = "-e slurm_node_adopt=false"
REFUSED = "Access denied by pam_slurm_adopt: you have no active jobs on this node"


def login(user: str, command: str = "id -un", *options: str, node: str = NODE) -> list[str]:
    """The words that log in to the node as a user of it."""
    host = json.loads(lab("inventory"))["_meta"]["hostvars"][node]
    return [
        *("ssh", "-i", host["ansible_ssh_private_key_file"], *shlex.split(host["ansible_ssh_common_args"])),
        *("-o", "BatchMode=yes", "-o", "ControlPath=none", *options, f"{user}@{host['ansible_host']}", "--", command),
    ]


def as_user(user: str, command: str = "id -un", node: str = NODE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        login(user, command, node=node),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def comes_in(user: str) -> bool:
    return as_user(user).stdout.strip() == user


def make_users(*machines: str) -> None:
    """Two users on all machines, who log in with the lab's key as root does."""
    for machine in machines:
        for number, user in enumerate((USER, OTHER), 3001):
            ssh(machine, f"id {user} 2>/dev/null || sudo useradd --create-home --uid {number} --shell /bin/bash {user}")
        for user, home in (("root", "/root"), (USER, f"/home/{USER}"), (OTHER, f"/home/{OTHER}")):
            ssh(
                machine,
                f"sudo install -d -m 700 -o {user} {home}/.ssh && "
                f"sudo install -m 600 -o {user} ~/.ssh/authorized_keys {home}/.ssh/authorized_keys",
            )


@contextmanager
def job(*options: str, controller: str = CONTROLLER) -> Iterator[str]:
    """A job of the user on the node that runs."""
    words = f"sudo -u {USER} sbatch --parsable --output=/dev/null --chdir=/ {' '.join(options)} --wrap 'sleep 900'"
    number = ssh(controller, words).strip()
    try:
        until(
            lambda: ssh(controller, f"squeue -h -j {number} -o %T").strip() == "RUNNING",
            60,
            lambda: ssh(controller, f"scontrol show job {number}"),
        )
        node = ssh(controller, f"squeue -h -j {number} -o %N").strip()
        # slurmctld says so a moment before the node has the step that logins come into.
        extern = f"pgrep -f '[s]lurmstepd: .{number}.extern'"
        until(lambda: ssh(node, extern, check=False).strip(), 60, lambda: ssh(node, "ps -eo args"))
        yield number
    finally:
        ssh(controller, f"sudo scancel {number}", check=False)
        until(lambda: not ssh(controller, "squeue -h").strip(), 60, lambda: ssh(controller, "squeue"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver")
    assert play.rc == 0, play.tail()
    make_users(*MACHINES)
    # The lab's image is without it; every installed server has it.
    ssh(NODE, "sudo apt-get -q -y install libpam-systemd")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    play = cluster.run(WITHOUT)
    assert play.rc == 0, play.tail()
    ssh(
        NODE, f"grep -qF {OWN_LINE!r} {FILE} || echo {OWN_LINE!r} | sudo tee -a {FILE} && sudo cp {FILE} /root/sshd.own"
    )
    yield cluster
    ssh(NODE, f"sudo sed -i '/no-such-file/d' {FILE}")


@pytest.fixture(scope="module")
def announced(cluster: Cluster) -> Play:
    assert comes_in(USER), "the test's own user cannot log in without pam_slurm_adopt"
    play = cluster.run("--check --diff")
    assert play.rc == 0, play.tail()
    assert comes_in(USER), "check mode changed who comes in"
    return play


@pytest.fixture(scope="module")
def adopting(cluster: Cluster, announced: Play) -> Cluster:
    cluster.converge()
    return cluster


def test_check_mode_shows_the_lines(announced: Play) -> None:
    assert "+account required pam_slurm_adopt.so" in announced.stdout
    assert f"+++ after: {FILE}" in announced.stdout


def test_a_user_without_a_job_is_refused_and_told_why(adopting: Cluster) -> None:
    done = as_user(USER)
    assert done.returncode == 255
    assert REFUSED in done.stderr
    assert done.stdout == ""


def test_a_user_with_a_job_is_in_it_and_has_its_gpu_alone(adopting: Cluster) -> None:
    with job("--gres=gpu:1") as number:
        assert f"/job_{number}/" in as_user(USER, "cat /proc/self/cgroup").stdout
        assert as_user(USER, OPEN_DEVICES).stdout.split("\n")[:2] == ["0 6", "1 1"]
        assert as_user(USER, "printenv SLURM_JOB_ID").stdout.strip() == number
        # A session of systemd would have taken the login out of the job.
        assert f"/job_{number}/" in as_user(USER, "sleep 1; cat /proc/self/cgroup").stdout
        assert not comes_in(OTHER), "somebody else's job let a user in"


def test_a_login_ends_with_its_job(adopting: Cluster) -> None:
    with job() as number:
        shell = subprocess.Popen(login(USER, "echo in; sleep 900"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"in\n"
        ssh(CONTROLLER, f"sudo scancel {number}")
        shell.wait(timeout=120)
    assert not comes_in(USER)


def test_administrators_have_a_session_of_systemd_and_users_need_none(adopting: Cluster) -> None:
    assert ssh(NODE, "printenv XDG_SESSION_ID").strip()
    with job():
        assert as_user(USER, "printenv XDG_SESSION_ID").stdout == ""


def test_administrators_come_in_without_slurm_and_users_do_not(adopting: Cluster) -> None:
    try:
        ssh(CONTROLLER, "sudo systemctl stop slurmctld")
        ssh(NODE, "sudo systemctl stop slurmd munge")
        assert comes_in("root")
        assert comes_in("admin")
        assert not comes_in(USER)
    finally:
        # slurmd waits for its configuration from slurmctld.
        ssh(CONTROLLER, "sudo systemctl start slurmctld")
        ssh(NODE, "sudo systemctl start munge slurmd")
        # A daemon has started before it answers.
        until(
            lambda: ssh(CONTROLLER, "sinfo -h -o %T", check=False).strip() == "idle",
            120,
            lambda: ssh(CONTROLLER, "sinfo", check=False),
        )


def test_administrators_come_in_without_the_module_and_users_do_not(adopting: Cluster) -> None:
    found = ssh(NODE, "dpkg -L libpam-slurm-adopt | grep pam_slurm_adopt.so").strip()
    ssh(NODE, f"sudo mv {found} {found}.away")
    try:
        assert comes_in("root")
        assert comes_in("admin")
        assert not comes_in(USER)
    finally:
        ssh(NODE, f"sudo mv {found}.away {found}")


def test_a_password_asked_for_by_pam_lets_nobody_out_of_his_job(adopting: Cluster, tmp_path: Path) -> None:
    """sshd then asks PAM from a process of its own, and it is that one that is put into the job."""
    setting = "/etc/ssh/sshd_config.d/00-test.conf"
    answer = tmp_path / "answer"
    answer.write_text("#!/bin/sh\necho secret\n")
    answer.chmod(0o700)
    ssh(NODE, f"echo {USER}:secret | sudo chpasswd; echo 'KbdInteractiveAuthentication yes' | sudo tee {setting}")
    ssh(NODE, "sudo systemctl reload ssh")
    try:
        with job():
            words = login(USER, "cat /proc/self/cgroup", "-o", "PreferredAuthentications=keyboard-interactive")
            words[words.index("BatchMode=yes")] = "BatchMode=no"
            done = subprocess.run(
                words,
                env={"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force", "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode != 0
            assert "the login is not in a job" in done.stdout
            assert "devices" not in done.stdout, "the command ran"
    finally:
        ssh(NODE, f"sudo rm {setting}; sudo systemctl reload ssh; sudo passwd -d {USER}")


def test_a_second_run_changes_nothing_and_restarts_nothing(adopting: Cluster) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    text = ssh(NODE, f"cat {FILE}")
    assert adopting.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before
    assert ssh(NODE, f"cat {FILE}") == text


def test_what_another_has_set_up_is_told_before_anything_is_changed(adopting: Cluster) -> None:
    # As a requirement it would keep the lab's account out, which is why it is refused.
    ssh(NODE, "echo 'account [default=ignore] pam_slurm_adopt.so' | sudo tee -a /etc/pam.d/common-account")
    try:
        play = adopting.run()
        assert "pam_slurm_adopt is set up already" in " ".join(play.failures[NODE])
        assert NODE not in play.changed_tasks
    finally:
        ssh(NODE, "sudo sed -i '/pam_slurm_adopt/d' /etc/pam.d/common-account")


def test_without_the_setting_the_file_is_as_it_was(adopting: Cluster) -> None:
    play = adopting.run(WITHOUT)
    assert play.rc == 0, play.tail()
    assert ssh(NODE, f"sudo cmp {FILE} /root/sshd.own && echo same").strip() == "same"
    assert comes_in(USER)
