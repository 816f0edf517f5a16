# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml takes bare machines to a cluster that schedules jobs on their GPUs, with the reconciler.

ZooKeeper is real; Mesos and Marathon are the stand-ins, whose tasks are real processes of the machines. The tests of
this file run in order on one lab.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.mesos_cluster import MACHINES, MARATHONS, Site
from tests.roles.zookeeper_cluster import CLI, mode
from tests.site import plays
from tests.site.plays import INVENTORY, ROOT, Play, kernel_says, lab, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

GPU_MACHINES = ("gpu1", "gpu2")
DAEMONS = ("zookeeper", "mesos-master", "mesos-agent", "baremetal-gpu-reconciler")
CONFIGURED = "/etc /var/lib /var/log /opt /tmp /run /usr/local"
ACT = {
    "gpu_reconciler_mode": "act",
    "gpu_reconciler_policy": {"settle_s": 2, "retry_s": 2},
    "gpu_agent_orders": ["replace"],
    "gpu_agent_interval": 2,
}


class Cluster:
    """The machines, and the playbooks that are run on all of them."""

    def __init__(self, base: Path) -> None:
        self.site = Site(base, {})
        self.logins = base / ".secrets" / "gpu_reconciler.json"
        self.variables = {
            **self.site.settings,
            "cuda_versions": [],
            "gpu_reconciler_secrets_path": str(self.logins),
        }
        self.options = self.site.groups(gpu_reconcilers=MACHINES)

    def run(self, playbook: str, options: str = "", **variables: Any) -> Play:
        return run_playbook(
            playbook,
            limit=",".join(MACHINES),
            extra_vars={**self.variables, **variables},
            options=f"{self.options} {options}",
        )

    def passes(self, playbook: str, **variables: Any) -> Play:
        play = self.run(playbook, **variables)
        assert play.rc == 0, play.tail()
        return play

    def told(self) -> Any:
        """What Marathon says of the apps; None where nothing answers."""
        return self.site.ask("cpu1", 8080, "/v2/apps?embed=apps.failures", "http:operator")

    def apps(self) -> dict[str, Any]:
        return {app["id"]: app for app in self.told()["apps"]}

    def tasks(self) -> dict[str, str]:
        """The task of each app."""
        return {app["id"]: app["tasks"][0]["id"] for app in self.apps().values()}

    def secrets(self) -> list[str]:
        """All that were generated or given."""
        files = (self.site.secrets, self.logins)
        made = [secret for file in files for secret in json.loads(file.read_text()).values()]
        return [*made, *self.site.passwords.values()]


def running() -> dict[tuple[str, str], str]:
    """Process and start of every daemon, and of the agents that watch the GPUs."""
    units = {(unit, name) for unit in DAEMONS for name in MACHINES}
    units |= {("marathon", name) for name in MARATHONS}
    units |= {("baremetal-gpu-agent", name) for name in GPU_MACHINES}
    return {
        (unit, name): ssh(name, f"systemctl show -P MainPID -P ExecMainStartTimestampMonotonic {unit}")
        for unit, name in sorted(units)
    }


@pytest.fixture(scope="module")
def cluster(bare_lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The whole way, in one run from bare machines."""
    one = Cluster(tmp_path_factory.mktemp("scheduler"))
    one.passes("site.yml")
    yield one
    lab("reset", *MACHINES)


def test_three_zookeepers_and_three_masters_have_a_leader_each(cluster: Cluster) -> None:
    modes = [mode(cluster.site.addresses[name]) for name in MACHINES]
    assert sorted(modes) == ["follower", "follower", "leader"]
    assert len(cluster.site.leaders()) == 1
    for name in MACHINES:
        assert cluster.site.ask(name, 5050, "/metrics/snapshot")["registrar/log/recovered"] == 1


def test_agents_give_out_the_healthy_gpus_and_attributes_of_their_facts(cluster: Cluster) -> None:
    agents = cluster.site.agents()
    assert {name: row["active"] for name, row in agents.items()} == dict.fromkeys(MACHINES, True)
    for name in GPU_MACHINES:
        facts = json.loads(ssh(name, "sudo gpu-agent status --json"))["facts"]
        devices = facts["devices"]
        assert agents[name]["resources"]["gpus"] == len(devices) > 0
        settings = ssh(name, "sudo cat /etc/baremetal-gpu/mesos/agent.env")
        assert f"BAREMETAL_GPU_UUIDS={','.join(row['uuid'] for row in devices)}\n" in settings
        attributes = agents[name]["attributes"]
        assert attributes["gpu_model"] == devices[0]["slug"]
        assert attributes["rack"] == "r1"
    assert agents["cpu1"]["resources"].get("gpus", 0) == 0
    assert not [name for name in agents["cpu1"]["attributes"] if name.startswith("gpu")]


def test_the_reconciler_leads_hears_of_every_host_with_gpus_and_only_tells(cluster: Cluster) -> None:
    end = time.monotonic() + 120
    while True:
        told = json.loads(ssh("cpu1", "sudo gpuops-reconciler status --json"))
        verdicts = {name: row["verdict"] for name, row in told["nodes"].items()}
        if told["leader"] and set(verdicts) == set(GPU_MACHINES):
            break
        assert time.monotonic() < end, told
        time.sleep(1)
    assert set(verdicts.values()) == {"ok"}
    assert told["leader"].split(":")[0] in MACHINES
    settings = json.loads(ssh("cpu1", "sudo cat /etc/baremetal-gpu/reconciler.json"))
    assert settings["policy"]["mode"] == "dry-run"
    assert settings["masters"] == [f"http://{cluster.site.addresses[name]}:5050" for name in MACHINES]


def test_nobody_without_the_password_can_give_orders_to_the_hosts(cluster: Cluster) -> None:
    lines = "create /baremetal-gpu/orders/other x\\ncreate /baremetal-gpu/other y\\nquit\\n"
    said = ssh("cpu1", f"printf '{lines}' | {CLI} -server 127.0.0.1:2181 2>&1 || true")
    assert said.count("Insufficient permission") == 2, said[-2000:]


def test_root_on_one_host_cannot_speak_for_another(cluster: Cluster) -> None:
    read = "import json; told = json.load(open('/etc/baremetal-gpu/agent-zookeeper.json')); print(told['user'], sep='')"
    users = [ssh(name, f"sudo python3 -c {shlex.quote(read)}").strip() for name in GPU_MACHINES]
    assert users == [f"gpu-agent-{name}" for name in GPU_MACHINES]
    one, other = GPU_MACHINES[:2]
    told = json.loads(ssh(one, "sudo cat /etc/baremetal-gpu/agent-zookeeper.json"))
    where = f"/baremetal-gpu/hosts/{other}"
    words = [
        f"addauth digest {told['user']}:{told['password']}",
        f"set {where}/verdict x",
        f"delete {where}/verdict",
        f"create {where}/more x",
        "create /baremetal-gpu/hosts/new x",
        f"create /baremetal-gpu/orders/{other} x",
        f"get {where}/verdict",
        "quit",
    ]
    lines = "\\n".join(words) + "\\n"
    said = ssh("cpu1", f"printf '{lines}' | {CLI} -server 127.0.0.1:2181 2>&1 || true")
    assert said.count("Insufficient permission") == 6, said[-2000:]


def test_the_smoke_job_is_deployed_placed_on_every_model_and_healthy(cluster: Cluster) -> None:
    play = cluster.run("apps/smoke.yml", "--check --diff")
    assert play.rc == 0, play.tail()
    assert cluster.apps() == {}
    cluster.passes("apps/smoke.yml")
    apps = cluster.apps()
    assert {app["tasks"][0]["host"] for app in apps.values()} == set(GPU_MACHINES)
    assert [(app["tasksHealthy"], app["gpus"]) for app in apps.values()] == [(1, 1), (1, 1)]
    assert cluster.passes("apps/smoke.yml").changed_tasks == {}


def test_a_notebook_lets_in_its_key_alone(cluster: Cluster, tmp_path: Path) -> None:
    ssh("gpu1", "id alice >/dev/null 2>&1 || sudo useradd --create-home alice")
    for name in ("own", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    asked = {
        "marathon_apps_notebook_user": "alice",
        "marathon_apps_notebook_ssh_keys": [(tmp_path / "own.pub").read_text().strip()],
        "marathon_apps_notebook_model": "a100-sxm4-40gb",
        "marathon_apps_notebook_cpus": 0.2,
        "marathon_apps_notebook_mem": 256,
        # Stands in for Jupyter Lab.
        "marathon_apps_notebook_program": "exec python3 -c 'import os, socket, time; "
        "s = socket.socket(socket.AF_UNIX); "
        's.bind(os.environ["NOTEBOOK_SOCKET"]); time.sleep(86400)\'',
    }
    cluster.passes("apps/notebook.yml", **asked)
    (task,) = cluster.apps()["/notebooks/alice"]["tasks"]
    address = cluster.site.addresses["gpu1"]
    assert logs_in(tmp_path / "own", address, task["ports"][0]) == (0, "alice")
    assert logs_in(tmp_path / "other", address, task["ports"][0])[0] != 0
    home = ssh("gpu1", "getent passwd alice").split(":")[5]
    own = f"{home}/.local/share/baremetal-gpu/notebook"
    assert ssh("gpu1", f"sudo stat -c '%a %U' {own}/notebook.sock").split() == ["700", "alice"]
    assert cluster.passes("apps/notebook.yml", **asked).changed_tasks == {}
    cluster.passes("apps/notebook.yml", **asked, marathon_apps_state="absent")
    assert "/notebooks/alice" not in cluster.apps()


def logs_in(key: Path, address: str, port: int) -> tuple[int, str]:
    """Status and user of a login by that key alone."""
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "IdentitiesOnly=yes")
    words = [part for option in options for part in ("-o", option)]
    command = ["ssh", "-F", "none", *words, "-i", str(key), "-p", str(port), f"alice@{address}", "id -un"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip()


def test_a_second_run_changes_nothing_and_restarts_nothing(cluster: Cluster) -> None:
    before = running(), cluster.tasks()
    play = cluster.passes("site.yml")
    assert play.changed_tasks == {}
    assert (running(), cluster.tasks()) == before


def test_after_a_loss_of_power_the_jobs_come_back_by_themselves(cluster: Cluster) -> None:
    before = cluster.tasks()
    lab("power-cut", *MACHINES)
    lab("up")

    def active() -> set[str]:
        agents = cluster.site.agents() if cluster.site.leaders() else {}
        return {name for name, row in agents.items() if row["active"]}

    def healthy() -> set[str]:
        # One that has only been started is without a leader to ask, or answers nothing.
        return {app["id"] for app in (cluster.told() or {}).get("apps", []) if app["tasksHealthy"] == 1}

    plays.until(lambda: active() == set(MACHINES), 300, active)
    plays.until(lambda: healthy() == before.keys(), 300, healthy)
    assert not set(cluster.tasks().values()) & set(before.values()), "no process outlives a loss of power"
    assert cluster.passes("site.yml").changed_tasks == {}


def journal() -> list[dict[str, Any]]:
    """What the reconcilers of all hosts have written down, in the order of time."""
    # Only where one has led is there a journal.
    show = "sudo cat /var/lib/baremetal-gpu/reconciler/journal.jsonl 2>/dev/null || true"
    rows = [json.loads(line) for name in MACHINES for line in ssh(name, show).splitlines()]
    return sorted(rows, key=lambda row: row["time"])


until = functools.partial(plays.until, seconds=180, told=lambda: journal()[-5:])


def test_told_to_act_it_takes_out_a_fatal_gpu_when_the_jobs_have_ended_and_brings_it_back(cluster: Cluster) -> None:
    play = cluster.run("site.yml", "--tags gpu_agent,gpu_reconciler", **ACT)
    assert play.rc == 0, play.tail()
    uuids = [row["uuid"] for row in json.loads(ssh("gpu1", "/etc/ansible/facts.d/gpu.fact"))["devices"]]

    kernel_says("gpu1", "NVRM: Xid (PCI:0000:af:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    until(lambda: cluster.site.agents()["gpu1"]["deactivated"])
    until(lambda: [row for row in journal() if row["what"] == "wait" and "may finish" in row["why"]])
    (own,) = (app for app in cluster.apps().values() if app["tasks"][0]["host"] == "gpu1")
    assert own["tasksHealthy"] == 1, "the job on the other GPU is to go on"

    cluster.passes("apps/smoke.yml", marathon_apps_state="absent")
    until(lambda: cluster.site.agents().get("gpu1", {"resources": {}})["resources"].get("gpus") == 1)
    until(lambda: cluster.site.agents()["gpu1"]["active"])
    settings = ssh("gpu1", "sudo cat /etc/baremetal-gpu/mesos/agent.env")
    assert f"BAREMETAL_GPU_UUIDS={uuids[0]}\n" in settings
    # A run in the meantime leaves what the reconciler has done.
    play = cluster.run("scheduler.yml", "--skip-tags zookeeper", **ACT)
    assert play.rc == 0, play.tail()
    assert play.changed_tasks == {}

    leader = json.loads(ssh("cpu1", "sudo gpuops-reconciler status --json"))["leader"]
    assert ssh("cpu1", f"sudo gpuops-reconciler clear gpu1:{uuids[1]}").strip() == f"asked {leader}"
    until(lambda: cluster.site.agents().get("gpu1", {"resources": {}})["resources"].get("gpus") == 2)
    way = ["deactivate", "drain", "order", "settle", "close"] * 2
    until(lambda: [row["kind"] for row in journal() if row["what"] == "begin" and row["host"] == "gpu1"] == way)


def test_no_secret_is_on_a_command_line_in_a_log_or_in_a_file_that_others_can_read(cluster: Cluster) -> None:
    secrets = cluster.secrets()
    assert len(set(secrets)) == 8
    play = cluster.run("scheduler.yml", "-vvv --diff --skip-tags zookeeper")
    assert play.rc == 0, play.tail()
    assert not [secret for secret in secrets if secret in play.stdout]
    words = " ".join(f"-e {secret}" for secret in secrets)
    for name in MACHINES:
        # As a user without rights: what it finds, everybody can read.
        assert ssh(name, f"sudo -u nobody grep -rslF {words} {CONFIGURED} || true") == ""
        listing = ssh(name, f"sudo grep -rslF {words} /etc | xargs -r sudo stat -c '%a %n'")
        assert {line.split()[0] for line in listing.splitlines()} == {"600"}
        assert ssh(name, f"sudo journalctl --no-pager | grep -F {words} | grep -v COMMAND= || true") == ""
        assert ssh(name, f"ps -eo args | grep -v grep | grep -F {words} || true") == ""
    for file in (cluster.site.secrets, cluster.logins):
        assert oct(file.stat().st_mode & 0o777) == "0o600"
    kept = [INVENTORY / ".gpuops", ROOT / "artifacts"]
    found = subprocess.run(
        ["grep", "-rlF", *(part for secret in secrets for part in ("-e", secret)), *kept],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
