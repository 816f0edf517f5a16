# SPDX-License-Identifier: GPL-3.0-or-later
"""A proof that failed fails again until its cause is gone.

The role is run on this machine, in a mount namespace of its own. Only the engine is a stand-in, which does or does not
run containers, and its package is one that every Debian has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("unshare") or not Path("/var/lib/dpkg/status").exists(),
        reason="needs root, unshare and dpkg, to run a role in a mount namespace",
    ),
]

# /etc and /var/lib keep what is written between two runs, and the machine does not see it.
NAMESPACE = """
set -e
for name in etc var/lib; do
    mkdir -p "$0/upper/$name" "$0/scratch/$name"
    mount -t overlay overlay -o "lowerdir=/$name,upperdir=$0/upper/$name,workdir=$0/scratch/$name" "/$name"
done
exec "$@"
"""
PODMAN = """#!/bin/sh
echo "$*" >> {place}/asked
if [ -e {place}/broken ]; then echo "{broken}" >&2; exit 125; fi
case "$1 $*" in
    version*) echo 5.4.2 ;;
    exec*memory.max*) echo 67108864; echo "50000 100000" ;;
    exec*dd*) exit 137 ;;
    exec*times*) echo "0m0.00s 0m0.00s"; echo "0m0.00s 0m0.00s" ;;
esac
"""
BROKEN = "crun: executable file not found"
VARIABLES = {
    "container_runtime_engine": "podman",
    # As if it were the engine's own.
    "container_runtime_packages": ["dash"],
    "container_runtime_podman_config": {"containers": {"pids_limit": 4096}},
}


class Machine:
    """This machine with a podman that can be broken."""

    def __init__(self, place: Path) -> None:
        self.place = place
        # An overlay cannot lie on another one.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        self.broken, self.asked = place / "broken", place / "asked"
        programs = place / "programs"
        programs.mkdir()
        podman = PODMAN.format(place=place, broken=BROKEN)
        for name, text in (("podman", podman), ("systemctl", "#!/bin/sh\n")):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        }

    def run(self, *options: str, **variables: Any) -> tuple[bool, str, int]:
        """Whether the role succeeded, what Ansible said, and how often a container was started."""
        self.asked.write_text("")
        role = {"ansible.builtin.import_role": {"name": "baremetal.gpu.container_runtime"}}
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [role]}
        (self.place / "play.yml").write_text(yaml.safe_dump([{**play, "vars": {**VARIABLES, **variables}}]))
        command = ["unshare", "--mount", "sh", "-c", NAMESPACE, str(self.place)]
        command += [str(BIN / "ansible-playbook"), *options, str(self.place / "play.yml")]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, cwd=ROOT)
        started = re.findall(r"^run ", self.asked.read_text(), re.MULTILINE)
        return done.returncode == 0, done.stdout + done.stderr, len(started)


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    made = Machine(tmp_path)
    yield made
    subprocess.run(["umount", tmp_path], check=True)


def changed(told: str) -> int:
    return int(re.findall(r"changed=(\d+)", told)[-1])


def test_a_proof_that_failed_fails_again_until_its_cause_is_gone(machine: Machine) -> None:
    machine.broken.touch()
    well, told, _started = machine.run()
    assert not well
    assert BROKEN in told
    # Before the change, so that a run that is cut leaves it too.
    assert told.index("Record the pending proof") < told.index("Merge the settings into the engine")
    # The file is as wanted now, and nothing differs. Before, this run was green.
    well, told, _started = machine.run()
    assert not well
    assert BROKEN in told
    # What is to be done is told, and no container is run for it.
    well, told, started = machine.run("--check")
    assert well
    assert started == 0
    due = "prove that podman runs containers within their limits (it is due since an earlier run: "
    assert due in " ".join(told.split())
    machine.broken.unlink()
    well, told, started = machine.run()
    assert well, told
    assert started == 1
    # Once it has passed, it is made no more.
    well, told, started = machine.run()
    assert (well, started, changed(told)) == (True, 0, 0), told
