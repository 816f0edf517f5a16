# SPDX-License-Identifier: GPL-3.0-or-later
"""The front door's default for a small cluster: homes on NFS from its head, with quotas, on kernels that have both.

The machines of the lab share a kernel that has neither; these are two virtual machines, emulated and slow, without
GPUs: a head, which is the NFS server, and a node. Of Slurm, users and homes nothing is left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.machines.state import USER, Lab
from tests.lab.machines.vm import NAMES, Shape, Vm, lan_address
from tests.site.front_door import Site
from tests.site.plays import ROOT, lab, services, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

# Whose network the virtual machines join.
DOOR = "door1"
HEAD, NODE = NAMES
DISK, EXPORT = "/dev/disk/by-id/virtio-lab-homes", "/srv/homes"
# A job that writes a line each second, and ends where a write fails.
WRITER = "for line in $(seq 100000); do echo $line >>lines && sleep 1 || exit 1; done"


class Term(Site):
    def __init__(self, base: Path) -> None:
        self.machines = {name: Vm(name=name) for name in NAMES}
        super().__init__(base / "site", {name: lan_address(Lab(), name) for name in NAMES}, str(base / "key"))

    def root(self, machine: str, command: str) -> str:
        """What a command of root prints."""
        words = self.machines[machine].ssh_command(f"sudo bash -c {shlex.quote(command)}")
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def on_node(self, user: str, command: str) -> str:
        """What a command of a user prints on the node, where users log in only while a job of theirs runs there."""
        return self.root(NODE, f"runuser -u {user} -- bash -c {shlex.quote(f'cd && {command}')}")

    def running(self) -> dict[str, dict[str, str]]:
        return {name: services(name, self.root) for name in NAMES}


@pytest.fixture(scope="module")
def term(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Term]:
    kept = os.environ.get("GPUOPS_KEEP_LAB")
    base = ROOT / ".cache" / f"nfs-{os.environ['GPUOPS_LAB_ID']}" if kept else tmp_path_factory.mktemp("nfs")
    base.mkdir(exist_ok=True)
    lab("up", "--machine", f"{DOOR}:trixie:no-gpu")
    made = Term(base)
    shapes = [Shape(2560, {"homes": 1}, joins=True), Shape(2048, joins=True)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(Vm.up, made.machines.values(), shapes))
    if not Path(made.key).exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made.key], check=True)
    yield made
    if not kept:
        for machine in made.machines.values():
            machine.down()
        lab("down", "--machine", DOOR)
        shutil.rmtree(base)


def test_two_addresses_are_a_cluster_with_homes_on_nfs_and_quotas(term: Term) -> None:
    if term.directory.exists():
        pytest.skip("the site is there from an earlier run")
    for name in NAMES:
        term.root(name, f"hostnamectl set-hostname {name} && sed -i 's/metal1/{name}/' /etc/hosts")
    fstab = f"{DISK} {EXPORT} ext4 usrquota,nofail 0 2"
    term.root(HEAD, f"mke2fs -q -t ext4 -O quota {DISK} && mkdir -p {EXPORT} && echo '{fstab}' >>/etc/fstab")
    term.root(HEAD, f"systemctl daemon-reload && mount {EXPORT}")
    hosts = {}
    for name, role in ((HEAD, "controller"), (NODE, "cpu")):
        variables = term.machines[name].inventory()["_meta"]["hostvars"][name]
        own = {key: value for key, value in variables.items() if key not in ("ansible_host", "ansible_port")}
        hosts[name] = {"address": term.addresses[name], "role": role, "variables": own}
    public = Path(f"{term.key}.pub").read_text().strip()
    users = [{"name": name, "ssh_keys": [public], "home_size": "50M"} for name in ("alice", "bob")]
    answers = {
        "user": USER,
        "hosts": hosts,
        "users": users,
        "portal": "",
        "registry": "",
        "monitoring": "",
        "engine": "none",
        # An emulated machine unpacks compilers for an hour, and two of them share the clock of their host.
        "variables": {
            "user_software_packages": ["lmod"],
            "user_software_optional_packages": [],
            "gpu_preflight_refuse": [],
            "slurm_common_memory_reserve_mib": 512,
        },
    }
    path = term.directory.with_suffix(".json")
    path.write_text(json.dumps(answers))
    told = term.gpuops("init", str(term.directory), "--answers", str(path))
    assert re.search(rf"homes +by NFS from {HEAD}", told)
    assert "nfs_homes_quota: true" in (term.directory / "inventory/group_vars/all/cluster.yml").read_text()


def test_one_run_makes_it_and_a_second_changes_and_restarts_nothing(term: Term) -> None:
    term.gpuops("up")
    before = term.running()
    assert term.changed() == 0
    assert term.running() == before


def test_a_user_has_one_home_on_the_head_on_the_node_and_in_jobs(term: Term) -> None:
    term.does("alice", "echo mine >file", HEAD)
    assert term.login("alice", "true", NODE)[0] == 255
    assert term.on_node("alice", "cat file; findmnt -no FSTYPE -T ~ | tail -n 1").split() == ["mine", "nfs4"]
    assert term.does("alice", "srun --quiet --mem=100 sh -c 'hostname; cat file'", HEAD).split() == [NODE, "mine"]
    assert "Permission denied" in term.on_node("bob", "! ls ~alice 2>&1")
    assert "Permission denied" in term.root(NODE, "ls ~alice 2>&1 || true")


def test_a_home_that_is_full_takes_no_more(term: Term) -> None:
    wrote = "dd if=/dev/zero of=big bs=1M count=80 oflag=sync"
    status, told = term.login("bob", f"srun --quiet --mem=100 {wrote}", HEAD)
    assert status != 0
    assert re.search("[Qq]uota exceeded", told), told
    # The kernel of the node keeps a file open whose write was refused: what is only removed would count until it boots.
    term.does("bob", ": >big && rm big", HEAD)
    assert term.does("bob", "srun --quiet --mem=100 sh -c 'echo more >small && cat small'", HEAD) == "more"


def test_a_head_that_loses_its_power_costs_a_job_on_the_node_nothing(term: Term) -> None:
    job = term.does("bob", f"sbatch --parsable --mem=100 --wrap {shlex.quote(WRITER)}", HEAD)
    read = "[ ! -e lines ] || cat lines"
    until(lambda: term.on_node("bob", read).strip().endswith("5"), 300, lambda: term.does("bob", "squeue", HEAD))
    term.machines[HEAD].power_cut()
    until(lambda: term.login("bob", f"squeue -h -j {job} -o %T", HEAD)[1] == "RUNNING", 900, lambda: term.running())
    before = len(term.on_node("bob", "cat lines").split())
    until(lambda: len(term.on_node("bob", "cat lines").split()) > before, 300, lambda: before)
    numbers = term.on_node("bob", "cat lines").split()
    assert numbers == [str(number + 1) for number in range(len(numbers))]
    term.does("bob", f"scancel {job}", HEAD)


def test_a_user_who_is_closed_has_no_way_in_and_the_home_stays(term: Term) -> None:
    term.does("alice", "sbatch --mem=100 --wrap 'sleep 3600'", HEAD)
    term.gpuops("user", "close", "alice", "--yes")
    assert {term.login("alice", "true", name)[0] for name in NAMES} == {255}
    assert not term.root(HEAD, "squeue -h -u alice").strip()
    assert term.root(HEAD, f"cat {EXPORT}/alice/file") == "mine\n"


def test_a_last_run_changes_nothing(term: Term) -> None:
    assert term.changed() == 0
