# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a Slurm cluster that a site switches on, on the lab's machines: its network, the health check of
slurmd, and containers.

The tests run in order on one lab, after those of test_slurm.py or by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import kernel_says, run_playbook, ssh, until
from tests.site.slurm_faults import ADDRESSES
from tests.site.test_slurm import CONTROLLER, HEAD_GROUPS, MACHINES, NODE, Cluster, job
from tests.site.test_slurm_prolog import mend, verdicts

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SWITCHES = [{"name": "spine"}, {"name": "leaf1", "parent": "spine"}, {"name": "leaf2", "parent": "spine"}]


class Site:
    """A cluster with variables of its own."""

    def __init__(self, base: Path) -> None:
        self._inventory = base / "slurm.yml"
        self.cluster = Cluster(base)

    def set(self, node: dict[str, Any] | None = None, **variables: Any) -> None:
        """Variables of the node, and of the cluster. Those that were set before are gone."""
        groups = {name: {"hosts": {CONTROLLER: {}}, "vars": variables} for name in HEAD_GROUPS}
        nodes = {"slurm_nodes": {"hosts": {NODE: node or {}}, "vars": variables}}
        self._inventory.write_text(json.dumps({**groups, **nodes}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    play = run_playbook("site.yml", limit=",".join(MACHINES), options="--tags driver,agent")
    assert play.rc == 0, play.tail()
    found = Site(tmp_path_factory.mktemp("slurm"))
    found.cluster.converge()
    yield found
    # What comes after has none of it.
    found.set()
    found.cluster.converge()


def state(number: str) -> str:
    return ssh(CONTROLLER, f"squeue -h -j {number} -o %T", check=False).strip()


def place() -> str:
    """Where a job finds itself in the network."""
    return job("printenv SLURM_TOPOLOGY_ADDR").strip()


def test_a_network_that_is_no_tree_is_refused_before_anything_is_changed(site: Site) -> None:
    site.set({"slurm_common_switch": "leaf1"}, slurm_common_switches=SWITCHES[1:])
    play = site.cluster.run()
    assert play.rc != 0
    assert play.changed_tasks == {}
    assert "the switch leaf1 is below spine, which is not listed" in play.stdout.replace("\n", " ")


def test_a_job_finds_its_place_in_the_network_and_a_change_of_it_costs_no_job(site: Site) -> None:
    site.set({"slurm_common_switch": "leaf1"}, slurm_common_switches=SWITCHES)
    site.cluster.converge()
    assert place() == f"spine.leaf1.{NODE}"
    number = ssh(CONTROLLER, "sbatch --parsable --mem=50 --output=/dev/null --wrap 'sleep 3600'").strip()
    until(lambda: state(number) == "RUNNING", 60, lambda: ssh(CONTROLLER, "squeue"))
    try:
        site.set({"slurm_common_switch": "leaf2"}, slurm_common_switches=SWITCHES)
        site.cluster.converge()
        assert place() == f"spine.leaf2.{NODE}"
        assert state(number) == "RUNNING"
        assert site.cluster.converge().changed_tasks == {}
    finally:
        ssh(CONTROLLER, f"scancel {number}")


@pytest.fixture
def spoiled(site: Site) -> Iterator[None]:
    """A GPU is fatal and no reconciler runs; the HealthCheckProgram runs every few seconds."""
    site.set(
        {"slurm_node_health_grace": 20},
        slurm_common_health_check=True,
        slurm_common_options={"HealthCheckInterval": 5},
    )
    site.cluster.converge()
    kernel_says(NODE, f"NVRM: Xid (PCI:{ADDRESSES[1]}): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    until(lambda: "fatal" in verdicts(), 30, verdicts)
    yield
    mend()
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume", check=False)


def node_state() -> str:
    """State and reason of the node, as Slurm tells its users."""
    return ssh(CONTROLLER, f"sinfo -h -n {NODE} -o '%T %E'").strip()


def health_checks() -> list[dict[str, Any]]:
    """What the program has logged."""
    text = ssh(NODE, "sudo journalctl -t baremetal-gpu-slurm -o cat --no-pager")
    return [row for row in map(json.loads, text.splitlines()) if row["what"] == "health-check"]


def test_slurmd_drains_a_node_with_a_fatal_gpu_that_nobody_has_fenced(site: Site, spoiled: None) -> None:
    # The grace period.
    assert node_state().startswith("idle")
    until(lambda: node_state().startswith("drained"), 120, node_state)
    assert "gpuops: health check: fatal and not fenced: GPU-" in node_state()
    assert "xid_fatal" in node_state()
    assert "xid_fatal" in health_checks()[-1]["drained"]
    (finding,) = site.cluster.doctor(NODE)
    assert "its health check drained it" in finding["text"]
    # Who drains it next gives it a reason that stays.
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=drain reason='a smell of smoke'")
    ssh(CONTROLLER, "sleep 15")
    assert node_state() == "drained a smell of smoke"
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume")
    until(lambda: "gpuops: health check" in node_state(), 60, node_state)
    number = len(health_checks())
    mend()
    ssh(CONTROLLER, f"sudo scontrol update nodename={NODE} state=resume")
    ssh(CONTROLLER, "sleep 15")
    assert node_state().startswith("idle")
    assert len(health_checks()) == number


SPECIFY = """---
- name: The GPUs as container engines know them
  hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: Write the CDI specification
      baremetal.gpu.nvidia_cdi:
        hooks: never
"""
# A root file system with a shell and the libraries that nvidia-smi needs, but nothing of NVIDIA's.
MAKE_BUNDLE = """set -e
sudo apt-get install -y -q busybox-static >/dev/null
rm -rf ~/bundle
mkdir -p ~/bundle/rootfs/bin ~/bundle/rootfs/usr/lib64 ~/bundle/rootfs/usr/lib/x86_64-linux-gnu
cd ~/bundle
cp /bin/busybox rootfs/bin/
for name in sh ls sleep; do ln -s busybox rootfs/bin/$name; done
ln -s usr/lib rootfs/lib
ln -s usr/lib64 rootfs/lib64
cp -L /lib64/ld-linux-x86-64.so.2 rootfs/usr/lib64/
for name in c dl m pthread rt; do
  cp -L /usr/lib/x86_64-linux-gnu/lib$name.so.[0-9] rootfs/usr/lib/x86_64-linux-gnu/
done
crun spec --rootless
python3 - <<'END'
import json
found = json.load(open("config.json"))
found["process"]["terminal"] = False
stand_ins = "/usr/lib/baremetal-gpu-simulators"
found["mounts"].append({"source": stand_ins, "destination": stand_ins, "type": "none", "options": ["rbind", "ro"]})
json.dump(found, open("config.json", "w"))
END
"""


@pytest.fixture
def bundle(site: Site, tmp_path: Path) -> str:
    """The path of an OCI bundle on the node, whose jobs can have containers."""
    playbook = tmp_path / "specify.yml"
    playbook.write_text(SPECIFY)
    play = run_playbook(playbook, limit=NODE)
    assert play.rc == 0, play.tail()
    site.set(slurm_common_containers=True)
    site.cluster.converge()
    ssh(NODE, MAKE_BUNDLE)
    return ssh(NODE, "echo ~/bundle").strip()


def left_behind() -> str:
    """Directories of containers that slurmd has on the node."""
    return ssh(NODE, "sudo find /var/lib/slurm/slurmd -name 'oci-*'").strip()


def test_a_container_has_the_gpus_of_its_job(site: Site, bundle: str) -> None:
    within = f"--container={bundle} --mem=200"
    assert job("/usr/bin/nvidia-smi -L", "--gres=gpu:1", within).count("GPU ") == 1
    assert job("/usr/bin/nvidia-smi -L", "--gres=gpu:2", within).count("GPU ") == 2
    devices = job("/bin/sh -c 'ls /dev'", "--gres=gpu:1", within).split()
    assert {"nvidia0", "nvidiactl"} <= set(devices)
    assert "nvidia1" not in devices
    assert "nvidia0" not in job("/bin/sh -c 'ls /dev'", within).split()
    # It is the root file system of the bundle, which has no Python.
    assert "not found" in job("/usr/bin/python3 --version", within)
    number = ssh(
        CONTROLLER,
        f"sbatch --parsable --gres=gpu:1 {within} --output=/dev/null --chdir=/ --wrap 'sleep 1000'",
    ).strip()
    until(lambda: state(number) == "RUNNING", 60, lambda: ssh(CONTROLLER, "squeue"))
    ssh(CONTROLLER, f"scancel {number}")
    until(lambda: not state(number) and not left_behind(), 60, left_behind)
    assert site.cluster.converge().changed_tasks == {}
