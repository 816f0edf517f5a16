# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm.yml with a primary and a backup controller: real daemons, whose state is in a real GlusterFS volume.

The third machine is the node, and serves the volume. Slurm begins with one controller and local state, as a site does
that adds a second one later. The tests of this file run in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import INVENTORY, Play, lab, run_playbook, services, ssh, until
from tests.site.test_slurm import secrets_path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PRIMARY, BACKUP, NODE = MACHINES = ("ctl1", "ctl2", "work1")
STATE, SHARED = "/shared/slurmctld", "/shared"
# Seconds after which the backup takes over; Slurm's default is 120.
TAKEOVER_S = 15


class Site:
    """The three machines as a cluster with one controller or two."""

    def __init__(self, base: Path) -> None:
        self.inventory = base / "slurm.json"
        self._variables: dict[str, Any] = {
            "slurm_common_secrets_path": secrets_path(base, PRIMARY),
            "slurm_common_options": {"SlurmctldTimeout": TAKEOVER_S},
        }
        self.has([PRIMARY])

    def has(self, controllers: list[str], **variables: Any) -> None:
        groups = {
            "slurm_controllers": controllers,
            "slurm_databases": [NODE],
            "slurm_nodes": [NODE],
            "slurm_logins": [NODE],
        }
        rows = {name: {"hosts": {host: {} for host in hosts}} for name, hosts in groups.items()}
        self.inventory.write_text(json.dumps(rows))
        self._variables |= variables

    def run(self, options: str = "") -> Play:
        return run_playbook(
            "slurm.yml",
            limit=",".join(MACHINES),
            extra_vars=self._variables,
            options=f"-i {INVENTORY} -i {self.inventory} {options}",
        )

    def converge(self) -> Play:
        play = self.run()
        assert play.rc == 0, play.tail()
        return play


def refusal(play: Play) -> str:
    assert play.rc != 0, play.tail()
    return " ".join(message for messages in play.failures.values() for message in messages)


def address_of(machine: str) -> str:
    return ssh(machine, "hostname -I").split()[0]


def share_a_directory() -> None:
    """A GlusterFS volume of the third machine, mounted by both controllers."""
    install = "sudo apt-get -qq update; sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends"
    ssh(NODE, f"{install} glusterfs-server >/dev/null && sudo systemctl start glusterd")
    # A root file system that is an overlay takes no brick; this directory lies on one of the lab's host.
    create = f"gluster --mode=script volume create state {address_of(NODE)}:/var/lib/docker/brick force"
    ssh(NODE, f"sudo mkdir -p /var/lib/docker/brick && sudo {create} && sudo gluster volume start state")
    for machine in (PRIMARY, BACKUP):
        ssh(machine, f"{install} glusterfs-client >/dev/null && sudo mkdir -p {SHARED}")
        mount(machine)


def mount(machine: str) -> None:
    ssh(machine, f"sudo mount -t glusterfs {address_of(NODE)}:/state {SHARED}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", *(word for name in MACHINES for word in ("--machine", f"{name}:trixie:no-gpu")))
    site = Site(tmp_path_factory.mktemp("slurm"))
    site.converge()
    yield site
    lab("down", *(word for name in MACHINES for word in ("--machine", name)))


def submit() -> str:
    return ssh(NODE, "sbatch --parsable --mem=50 --chdir=/ --output=/dev/null --wrap 'sleep 3600'").strip()


def hostname_of_a_job() -> str:
    return ssh(NODE, "timeout 120 srun --quiet --mem=50 hostname </dev/null").strip()


def state_of(number: str) -> str:
    return ssh(NODE, f"squeue -h -j {number} -o %T", check=False).strip()


def runs(number: str, seconds: float = 60) -> None:
    until(
        lambda: state_of(number) == "RUNNING", seconds, lambda: ssh(NODE, "squeue; sinfo; scontrol ping", check=False)
    )


def controllers() -> list[str]:
    """What scontrol tells of them, without the words that are always there."""
    return ssh(NODE, "scontrol ping", check=False).splitlines()


def in_control() -> str:
    """The controller that slurmdbd knows, which is the one that has registered last."""
    return ssh(NODE, "sacctmgr -n -P show cluster format=ControlHost").strip()


@pytest.fixture(scope="module")
def number(site: Site) -> str:
    """A job that runs from before the second controller to the end."""
    found = submit()
    runs(found)
    return found


def test_local_state_is_refused_before_anything_is_changed(site: Site, number: str) -> None:
    before = {machine: lab("changes", machine) for machine in MACHINES}
    site.has([PRIMARY, BACKUP])
    told = refusal(site.run())
    assert "/var/lib/slurm/slurmctld is not on a shared file system" in told
    assert "slurm_common_state_directory" in told
    site.has([PRIMARY, BACKUP], slurm_common_state_directory="/srv/slurmctld")
    assert "/srv/slurmctld is not on a shared file system" in refusal(site.run())
    after = {machine: lab("changes", machine) for machine in MACHINES}
    assert after[BACKUP] == before[BACKUP]
    assert "slurm" not in after[BACKUP]
    assert state_of(number) == "RUNNING"


def test_a_directory_that_only_one_controller_has_mounted_is_refused(site: Site) -> None:
    share_a_directory()
    site.has([PRIMARY, BACKUP], slurm_common_state_directory=STATE)
    ssh(BACKUP, f"sudo umount {SHARED}")
    told = refusal(site.run())
    assert f"{STATE} is not on a shared file system" in told
    assert f"on {BACKUP}" in told
    mount(BACKUP)


def test_state_is_not_left_behind_and_the_commands_of_the_refusal_move_it(site: Site, number: str) -> None:
    told = refusal(site.run())
    assert f"slurmctld has its state in /var/lib/slurm/slurmctld on {PRIMARY}" in told
    command = told.split(f"run on {PRIMARY}: `")[1].split("`")[0]
    ssh(PRIMARY, command)
    site.converge()
    runs(number)
    assert any(f" at {PRIMARY} is UP" in line for line in controllers())
    assert any(f" at {BACKUP} is UP" in line for line in controllers())


def test_a_second_run_changes_nothing_and_restarts_no_daemon(site: Site) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    assert site.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_the_backup_takes_over_while_a_job_runs_and_starts_the_next(site: Site, number: str) -> None:
    assert in_control() == address_of(PRIMARY)
    ssh(PRIMARY, "sudo systemctl kill --signal=KILL slurmctld; sudo systemctl stop slurmctld")
    until(lambda: in_control() == address_of(BACKUP), 10 * TAKEOVER_S, lambda: (controllers(), in_control()))
    assert state_of(number) == "RUNNING"
    later = submit()
    runs(later, 120)
    ssh(NODE, f"scancel {later}")
    # A slurmd that starts has its configuration from the backup.
    ssh(NODE, "sudo systemctl restart slurmd")
    assert state_of(number) == "RUNNING"
    assert hostname_of_a_job() == NODE
    rows = f"sacct -X -n -P -j {number},{later} -o JobID,State"
    until(lambda: f"{later}|CANCELLED" in ssh(NODE, rows), 60, lambda: ssh(NODE, rows))
    assert f"{number}|RUNNING" in ssh(NODE, rows)


def test_the_primary_takes_control_again(site: Site, number: str) -> None:
    ssh(PRIMARY, "sudo systemctl start slurmctld")
    until(lambda: in_control() == address_of(PRIMARY), 10 * TAKEOVER_S, lambda: (controllers(), in_control()))
    assert state_of(number) == "RUNNING"
    assert hostname_of_a_job() == NODE
    assert site.converge().changed_tasks == {}


def test_a_changed_configuration_restarts_one_controller_after_the_other(site: Site, number: str) -> None:
    site.has([PRIMARY, BACKUP], slurm_common_options={"SlurmctldTimeout": TAKEOVER_S, "MaxJobCount": 20000})
    site.converge()
    began = {
        machine: int(ssh(machine, "systemctl show -P ExecMainStartTimestampMonotonic slurmctld"))
        for machine in (PRIMARY, BACKUP)
    }
    # The machines have one kernel, and so one clock.
    assert began[BACKUP] < began[PRIMARY]
    assert "MaxJobCount             = 20000" in ssh(NODE, "scontrol show config")
    assert state_of(number) == "RUNNING"


def test_slurmctld_does_not_start_without_its_file_system(site: Site) -> None:
    ssh(BACKUP, f"sudo systemctl stop slurmctld && sudo umount {SHARED}")
    try:
        ssh(BACKUP, "sudo systemctl start slurmctld", check=False)
        assert ssh(BACKUP, "systemctl is-active slurmctld", check=False).strip() != "active"
        assert f"{STATE} is not on a shared file system" in refusal(site.run())
    finally:
        mount(BACKUP)
        ssh(BACKUP, "sudo systemctl start slurmctld")


def test_the_node_is_drained_while_the_first_controller_cannot_be_reached(site: Site, number: str) -> None:
    ssh(NODE, f"scancel {number}")
    lab("power-cut", PRIMARY)
    play = run_playbook(
        "drain.yml",
        extra_vars={"target_hosts": NODE, "drain_reason": "a fan", "drain_timeout": 120},
        options=f"-i {INVENTORY} -i {site.inventory}",
    )
    assert play.rc == 0, play.tail()
    assert "gpuops drain: a fan" in ssh(NODE, f"sinfo -h -n {NODE} -o %E")
