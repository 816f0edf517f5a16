# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops up, as it is called, with playbooks that run on this machine alone."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest
import yaml

from gpuops.run import records
from tests.unit.gpuops.conftest import DEAD, HERE
from tests.unit.project.tree import ROOT
from tests.unit.terminal import read_to_end

# A host fails as long as there is a file named after it.
PLAYBOOK = """
- name: First things
  hosts: all
  gather_facts: false
  tasks:
    - name: Look at the disk
      ansible.builtin.stat:
        path: "{{ playbook_dir }}/{{ inventory_hostname }}.full"
      register: disk
    - name: Stop where it is full
      baremetal.gpu.refuse:
        problems: [{cause: the disk is full., remedy: free some space}]
      when: disk.stat.exists
    - name: Change something
      ansible.builtin.command: "true"
"""
COMPARING = """
- name: Driver, device nodes, CUDA and container engine
  hosts: all
  gather_facts: false
  tasks:
    - name: Compare
      baremetal.gpu.host_drift_info:
        roles: [nouveau, nvidia_driver, container_runtime]
      vars:
        __nvidia_driver_finished: {}
        __container_runtime_finished: {}
"""
SLOW = """
- name: Slow things
  hosts: all
  gather_facts: false
  tasks:
    - name: Wait for the post
      ansible.builtin.command: sleep 600
    - name: Never come to
      ansible.builtin.command: touch {{ playbook_dir }}/came
"""


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_failures_are_told_with_their_remedy_and_only_those_hosts_are_resumed(bench):
    bench.hosts(good=HERE, bad=HERE, dead=DEAD)
    bench.playbook(PLAYBOOK)
    (bench.path / "bad.full").touch()
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "✗ bad failed in First things" in done.stdout
    assert "  cause:  the disk is full.\n  remedy: free some space\n" in done.stdout
    assert "✗ dead unreachable" in done.stdout
    assert re.search(r"3 hosts in \d+s: 1 done \(1 changed\), 1 failed, 1 unreachable", done.stdout)
    command = re.search(r"`gpuops (up .*--resume)` runs bad, dead again", done.stdout)
    assert bench.record()["hosts"] == {"good": "done", "bad": "failed", "dead": "unreachable"}

    # One of the two was mended; the command that was given is the one that goes on.
    (bench.path / "bad.full").unlink()
    done = bench.call(*command[1].split(), "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    assert events(done)[-1]["hosts"] == {"bad": "done", "dead": "unreachable"}
    # And then the other.
    bench.hosts(good=HERE, bad=HERE, dead=HERE)
    done = bench.call("up", "-p", "play.yml", "--resume", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert events(done)[-1]["hosts"] == {"dead": "done"}
    done = bench.call("up", "-p", "play.yml", "--resume")
    assert done.returncode == 0
    assert "nothing to resume" in done.stderr
    assert len(bench.runs()) == 3


SECRETS = """
- name: First things
  hosts: one
  gather_facts: false
  tasks:
    - name: Write a secret
      ansible.builtin.command: "true"
      no_log: true
- name: Some others
  hosts: many
  gather_facts: false
  tasks:
    - name: Write secrets
      ansible.builtin.command: "true"
      loop: [1, 2]
      no_log: true
- name: All
  hosts: all
  gather_facts: false
  tasks:
    - name: Change nothing
      ansible.builtin.command: "true"
      changed_when: false
      no_log: true
"""


def test_a_change_by_a_task_whose_result_is_secret_is_counted(bench):
    bench.hosts(one=HERE, many=HERE, none=HERE)
    bench.playbook(SECRETS)
    done = bench.call("up", "-p", "play.yml")
    assert "3 done (2 changed)" in done.stdout, done.stdout + done.stderr
    assert bench.record()["changed"] == 2


IN_TURN = """
- name: The head alone
  hosts: head
  gather_facts: false
  tasks:
    - name: Stop
      baremetal.gpu.refuse:
        problems: [{cause: the disk is full., remedy: free some space}]
      when: (playbook_dir ~ '/head.full') is exists
- name: Some others
  hosts: node1:node2
  gather_facts: false
  tasks:
    - name: Change something
      ansible.builtin.command: "true"
"""


def test_hosts_of_plays_that_ansible_did_not_begin_are_not_done_and_are_resumed(bench):
    """Ansible ends a run when all hosts of a play have failed."""
    bench.hosts(head=HERE, node1=HERE, node2=HERE, other=HERE)
    bench.playbook(IN_TURN)
    (bench.path / "head.full").touch()
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 2, done.stdout + done.stderr
    assert bench.record()["hosts"] == {"head": "failed", "node1": "unfinished", "node2": "unfinished"}
    assert "0 done" in done.stdout
    (bench.path / "head.full").unlink()
    done = bench.call("up", "-p", "play.yml", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.record()["hosts"] == {"head": "done", "node1": "done", "node2": "done"}


def test_stages_that_do_not_need_the_one_that_ended_the_run_go_on_on_the_failed_host_too(bench):
    """Of the site's own playbook, in check mode: the portal of `head` is refused, and the monitoring comes after it."""
    bench.inventory.write_text(
        json.dumps(
            {
                "gpu_cluster": {"hosts": {"head": HERE, "watch": HERE}},
                "portals": {"hosts": {"head": {}}, "vars": {"portal_scheduler": "docker", "portal_wheelhouse": ""}},
                "node_exporters": {"hosts": {"head": {}, "watch": {}}},
            }
        )
    )
    done = bench.call("plan", "--tags", "portal,monitoring", "--json")
    assert done.returncode == 2, done.stdout + done.stderr
    record = bench.record()
    assert record["hosts"] == {"head": "failed", "watch": "done"}
    assert record["cells"]["head"]["portal"] == "failed"
    assert {record["cells"][name].get("monitoring") for name in ("head", "watch")} == {"changed"}


def test_what_the_portal_would_refuse_is_told_first_and_not_what_a_stage_may_still_bring(bench):
    variables = {"portal_scheduler": "docker", "portal_ssh": False, "ansible_host": "192.0.2.7"}
    variables["portal_origins"] = "one_for_people_who_trust_each_other"
    variables["portal_environments"] = [{"name": "notebook", "image": "registry.example.org/notebook:1"}]
    bench.inventory.write_text(json.dumps({"portals": {"hosts": {"head": {**HERE, **variables}}}}))
    done = bench.call("up", "-p", "baremetal.gpu.portal_preflight", "--json")
    assert done.returncode == 2, done.stdout + done.stderr
    (failure,) = [row for row in events(done) if row["event"] == "failure"]
    (reason,) = failure["reasons"]
    assert f"{bench.path}/.wheels on the controller lacks" in reason["cause"]
    assert "gpuops fetch manifest.json mirror" in reason["remedy"]


# In the place of a port, one on which the tests listen.
TAKEN = "taken"


# By stage: the groups with their hosts, variables of all of them, and what is refused.
REFUSED = {
    "an even ensemble": ("scheduler", {"zookeeper": 2}, {}, "it must have 1, 3 or 5"),
    "an even number of masters": (
        "scheduler",
        {"mesos_masters": 2},
        {},
        "2 masters (host0, host1) are not better than 1",
    ),
    "a name of a cluster": (
        "slurm",
        {"slurm_controllers": 1, "slurm_nodes": 1},
        {"slurm_common_cluster_name": "my cluster"},
        "the name of the cluster has other characters",
    ),
    "a partition of no group": (
        "slurm",
        {"slurm_controllers": 1, "slurm_nodes": 1},
        {"slurm_common_partitions": [{"name": "big", "groups": ["nobody"]}]},
        "which the inventory does not have",
    ),
    "a user without an account": (
        "slurm",
        {"slurm_controllers": 1, "slurm_databases": 1, "slurm_nodes": 1},
        {"slurm_accounts_users": [{"name": "nosuchuser"}]},
        "has no account of nosuchuser",
    ),
    "users without accounting": (
        "slurm",
        {"slurm_controllers": 1, "slurm_nodes": 1},
        {"slurm_accounts_users": [{"name": "root"}]},
        "the cluster has no accounting",
    ),
    "two hosts of one name": ("slurm", {"slurm_controllers": 1, "slurm_nodes": 2}, {}, "have the same host name"),
    "slurmrestd for everybody": (
        "slurm",
        {"slurm_controllers": 1, "slurm_nodes": 1, "slurm_rests": 1},
        {"slurm_rest_listen": "0.0.0.0:6820"},
        "slurmrestd does not encrypt",
    ),
    "agents without a source of Mesos": (
        "scheduler",
        {"mesos_agents": 1},
        {},
        "mesos_common_url",
    ),
    "a mode that no reconciler has": (
        "reconciler",
        {"slurm_controllers": 1, "slurm_nodes": 1, "gpu_reconcilers": 1},
        {"gpu_reconciler_mode": "act", "gpu_reconciler_zookeeper_servers": ["192.0.2.1:2181"]},
        "there is no login for ZooKeeper",
    ),
    "a key that munge does not take": (
        "slurm",
        {"slurm_controllers": 1, "slurm_nodes": 1},
        {"munge_key": "short"},
        "the key of munge has 5 characters",
    ),
    "a key of tokens that is too short": (
        "slurm",
        {"slurm_controllers": 1, "slurm_databases": 1, "slurm_nodes": 1, "slurm_rests": 1},
        {"slurm_common_secrets": {"munge": "m" * 40, "jwt": "short"}},
        "jwt",
    ),
    "a certificate of the registry that is not there": (
        "registry",
        {"registries": 1},
        {"registry_tls_files": {"authority": "/nowhere/ca.pem", "certificate": "/nowhere/c.pem", "key": "/nowhere/k"}},
        "/nowhere/ca.pem is not there",
    ),
    "a certificate of the log host that is not there": (
        "monitoring",
        {"log_hosts": 1, "log_senders": 1},
        {"log_host_tls_files": {"authority": "/nowhere/ca.pem", "certificate": "/nowhere/c.pem", "key": "/nowhere/k"}},
        "/nowhere/ca.pem is not there",
    ),
    "a port of another program": (
        "registry",
        {"registries": 1},
        {"registry_port": TAKEN},
        "is to be that of nginx.service, and python",
    ),
    "a registry that no host finds": (
        "registry",
        {"registries": 1, "registry_clients": 1},
        {"registry_name": "registry.cluster.invalid"},
        "finds no address of the registry registry.cluster.invalid",
    ),
    "two registries": ("registry", {"registries": 2}, {}, "the images of a site are on one"),
    "a client of no registry": ("registry", {"registry_clients": 1}, {}, "there is no registry"),
    "two Prometheus": ("monitoring", {"prometheus_servers": 2}, {}, "each alert would come from each of them"),
    "metrics without TLS": ("monitoring", {"node_exporters": 1}, {"node_exporter_tls": "off"}, "without TLS"),
    "two log hosts": ("monitoring", {"log_hosts": 2}, {}, "the journals of a site are on one"),
    "a sender to nobody": ("monitoring", {"log_senders": 1}, {}, "no host takes the journals"),
}


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_later_stage_would_refuse_by_its_settings_is_told_before_anything_is_changed(bench, case, listener):
    stage, groups, variables, cause = REFUSED[case]
    variables = {name: listener if value == TAKEN else value for name, value in variables.items()}
    inventory = {
        group: {"hosts": {f"host{number}": HERE for number in range(count)}, "vars": variables}
        for group, count in groups.items()
    }
    # The stage of the containers would be the first to change something.
    inventory["gpu_cluster"] = {"hosts": {"host0": HERE}}
    bench.inventory.write_text(json.dumps(inventory))
    done = bench.call("up", "-p", "baremetal.gpu.settings_preflight", "--json")
    assert done.returncode == 2, done.stdout + done.stderr
    failures = [row for row in events(done) if row["event"] == "failure"]
    assert failures
    assert {row["stage"] for row in failures} == {stage}
    assert cause in " ".join(reason["cause"] for row in failures for reason in row["reasons"])
    assert all(row["host"].startswith("host") for row in failures)
    assert all(reason["remedy"] for row in failures for reason in row["reasons"])
    assert all(set(cells.values()) <= {"ok", "failed"} for cells in bench.record()["cells"].values())


def test_the_settings_of_all_stages_are_checked_before_the_first_that_changes_something():
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    order = [play["ansible.builtin.import_playbook"] for play in plays]
    assert order.index("settings_preflight.yml") < order.index("node.yml")


DELEGATED = """
- name: Things for others
  hosts: good
  gather_facts: false
  tasks:
    - name: Ask the server
      ansible.builtin.command: "true"
      delegate_to: dead
"""


def test_of_a_task_for_another_host_the_host_that_cannot_be_reached_is_named(bench):
    bench.hosts(good=HERE, dead=DEAD)
    bench.playbook(DELEGATED)
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "✗ good unreachable in Things for others" in done.stdout
    assert "cause:  dead, where this has to be done for good, cannot be reached: " in done.stdout
    assert "remedy: see that `ssh dead` gets in" in done.stdout
    assert re.search(r"1 host in \d+s: 0 done, 1 unreachable", done.stdout)


INCLUDING = """
- name: For hosts with GPUs
  hosts: with_gpus
  gather_facts: false
  tasks:
    - name: Bring the toolkits
      ansible.builtin.include_role:
        name: cuda
- name: For all hosts
  hosts: all
  gather_facts: false
  tasks:
    - name: Bring the engine
      ansible.builtin.include_role:
        name: container_runtime
"""


def roles_that_do_something(bench):
    for role in ("cuda", "container_runtime"):
        tasks = bench.path / "roles" / role / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "main.yml").write_text("- name: Do it\n  ansible.builtin.command: 'true'\n")


def test_a_host_has_been_at_no_stage_of_which_it_has_no_task(bench):
    roles_that_do_something(bench)
    bench.hosts(with_gpus=HERE, without=HERE)
    bench.playbook(INCLUDING)
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.record()["cells"] == {
        "with_gpus": {"cuda": "changed", "containers": "changed"},
        "without": {"containers": "changed"},
    }


def test_stages_are_kept_in_the_order_of_a_hosts_path(bench):
    """A host without GPUs may come to a later stage before the others come to an earlier one."""
    roles_that_do_something(bench)
    bench.hosts(with_gpus=HERE)
    gpus, everyone = yaml.safe_load(INCLUDING)
    bench.playbook(yaml.safe_dump([everyone, gpus]))
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    # A play in which no role was begun yet is told by its name, after the stages of a host.
    assert list(bench.record()["stages"]) == ["cuda", "containers", "For all hosts"]


def test_a_host_on_which_nothing_is_to_be_done_has_come_through_the_stages(bench):
    """It has no task of them: one comparison has told that there is nothing to do."""
    bench.hosts(finished={**HERE, "__nouveau_finished": {}}, other={**HERE, "__nouveau_finished": None})
    bench.playbook(COMPARING)
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert bench.record()["cells"] == {"finished": {"driver": "ok", "containers": "ok"}, "other": {}}


def test_events_for_programs(bench):
    bench.hosts(good=HERE, bad=HERE)
    bench.playbook(PLAYBOOK)
    (bench.path / "bad.full").touch()
    done = bench.call("up", "-p", "play.yml", "--limit", "all", "--json")
    assert done.returncode == 2
    assert done.stderr == ""
    rows = events(done)
    assert [row["event"] for row in rows] == ["start", "stage", "failure", "end"]
    assert rows[0]["limit"] == "all"
    assert rows[1]["stage"] == "First things"
    assert rows[2] == {
        "event": "failure",
        "host": "bad",
        "kind": "failed",
        "stage": "First things",
        "task": "Stop where it is full",
        "reasons": [{"cause": "the disk is full.", "remedy": "free some space"}],
    }
    assert rows[3]["status"] == 2
    assert rows[3]["hosts"] == {"good": "done", "bad": "failed"}


REBOOTING = """
- name: Bring it up
  hosts: all
  gather_facts: false
  tasks:
    # On this machine the module refuses to do it.
    - name: Reboot for the driver
      ansible.builtin.reboot:
"""


def test_programs_and_logs_hear_of_a_reboot_when_it_begins(bench):
    bench.hosts(good=HERE)
    bench.playbook(REBOOTING)
    rows = events(bench.call("up", "-p", "play.yml", "--limit", "all", "--json"))
    assert [row["event"] for row in rows] == ["start", "stage", "rebooting", "failure", "end"]
    assert rows[2] == {"event": "rebooting", "host": "good", "stage": "Bring it up", "task": "Reboot for the driver"}
    quiet = bench.call("up", "-p", "play.yml", "--limit", "all")
    assert re.search(r"^↻ good reboots in Bring it up after \d+s$", quiet.stdout, re.MULTILINE)


def test_the_time_of_earlier_runs_is_what_the_next_expects(bench):
    bench.hosts(good=HERE)
    bench.playbook(PLAYBOOK.replace('"true"', "sleep 1"))
    assert events(bench.call("up", "-p", "play.yml", "--json"))[0]["expected_seconds"] is None
    rows = events(bench.call("up", "-p", "play.yml", "--json"))
    assert rows[0]["expected_seconds"] >= 1
    assert rows[1]["remaining_seconds"] > 0


def test_a_playbook_that_comes_to_no_host(bench):
    bench.hosts(good=HERE)
    bench.playbook("- hosts: all\n  tasks: [{no_such_module: }]\n")
    done = bench.call("up", "-p", "play.yml")
    assert done.returncode == 1
    assert "Ansible came to no host" in done.stderr
    assert "no_such_module" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_without_a_site_it_says_how_to_make_one(bench):
    (bench.path / "ansible.cfg").unlink()
    done = bench.call("up")
    assert done.returncode == 64
    assert "--inventory" in done.stderr
    assert "gpuops init" in done.stderr
    done = bench.call("up", "-i", "nowhere")
    assert done.returncode == 64
    assert "nowhere does not exist" in done.stderr


def test_nothing_to_resume_and_resume_with_a_limit(bench):
    bench.hosts(good=HERE)
    done = bench.call("up", "--resume")
    assert done.returncode == 64
    assert "nothing to resume" in done.stderr
    done = bench.call("up", "--resume", "--limit", "good")
    assert done.returncode == 64
    assert "leave them out" in done.stderr


@pytest.mark.parametrize("words", [["--tags", "nothing"], ["--limit", "nobody"]])
def test_a_name_that_matches_nothing_is_no_success(bench, words):
    bench.hosts(good=HERE)
    bench.playbook(PLAYBOOK)
    done = bench.call("up", "-p", "play.yml", *words)
    assert done.returncode == 1
    assert "Ansible came to no host" in done.stderr


def test_two_runs_do_not_get_in_each_others_way(bench):
    bench.hosts(good=HERE)
    bench.playbook(PLAYBOOK)
    remembered = bench.path / ".gpuops"
    with records.lock(remembered):
        done = bench.call("up", "-p", "play.yml")
        assert done.returncode == 1
        assert f"another gpuops up is at work on this site, process {os.getpid()}" in done.stderr
        assert not (remembered / "runs").exists()
    assert bench.call("up", "-p", "play.yml").returncode == 0


SECRET = "correct-horse-battery-staple"
LEAKY = """
- name: Leak
  hosts: all
  gather_facts: false
  tasks:
    - name: Say it aloud
      ansible.builtin.debug:
        msg: "the key is {{ vault_key }} and {{ generated }}"
    - name: Fail with it
      ansible.builtin.fail:
        msg: "no such key: {{ vault_key }}, {{ generated }}. Remedy: use {{ generated }}"
"""


def test_secrets_are_neither_shown_nor_kept(bench):
    """Even where a playbook says them aloud: those of .secrets and of the vault, of which the password is in a file."""
    generated = "AQD1WfNnJ8SVLhAAVvWhbG9jYWw9PQ=="
    bench.hosts(good={**HERE, "generated": generated})
    bench.playbook(LEAKY)
    (bench.path / ".secrets").mkdir()
    (bench.path / ".secrets" / "ceph.json").write_text(json.dumps({"keys": {"client.admin": generated}}))
    (bench.path / "password").write_text("the password of the vault\n")
    (bench.path / "ansible.cfg").write_text("[defaults]\ninventory = hosts.json\nvault_password_file = password\n")
    vault = bench.path / "group_vars" / "all"
    vault.mkdir(parents=True)
    (vault / "vault.yml").write_text(f"vault_key: {SECRET}\n")
    encrypted = subprocess.run(
        ["ansible-vault", "encrypt", str(vault / "vault.yml")],
        cwd=bench.path,
        env=bench.environment(),
        capture_output=True,
        check=False,
    )
    assert encrypted.returncode == 0, encrypted.stderr
    shown = ""
    for words in ([], ["--json"], ["--", "-vvv"]):
        done = bench.call("up", "-p", "play.yml", *words)
        assert done.returncode == 2
        shown += done.stdout + done.stderr
    assert "no such key: ********" in shown
    kept = [path for path in (bench.path / ".gpuops").rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {
        "run.json",
        "output.log",
        "events.jsonl",
        "hosts.retry",
        "hosts.json",
        "lock",
    }
    for text in (shown, *(path.read_text() for path in kept)):
        assert SECRET not in text
        assert generated not in text
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)
    assert stat.S_IMODE((bench.path / ".gpuops").stat().st_mode) == 0o700


def test_a_secret_is_found_in_whatever_form():
    redact = records.Redactor({'pass"word\\1', "longer-secret", "longer-secret-still"})
    assert redact('a pass"word\\1 b') == "a ******** b"
    assert json.loads(redact(json.dumps({"a": 'x pass"word\\1'}))) == {"a": "x ********"}
    assert redact("longer-secret-still, longer-secret") == "********, ********"


def test_a_password_is_asked_for_and_passed_on(bench):
    bench.hosts(good=HERE)
    bench.playbook("- hosts: all\n  gather_facts: false\n  tasks: [{debug: {msg: '{{ vault_key | length }}'}}]\n")
    (bench.path / "password").write_text("sesame-open-up\n")
    vault = bench.path / "group_vars" / "all"
    vault.mkdir(parents=True)
    (vault / "vault.yml").write_text(f"vault_key: {SECRET}\n")
    subprocess.run(
        ["ansible-vault", "encrypt", "--vault-password-file", "password", str(vault / "vault.yml")],
        cwd=bench.path,
        env=bench.environment(),
        capture_output=True,
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpuops", "up", "-p", "play.yml", "--", "--ask-vault-pass"],
        input="sesame-open-up\n",
        cwd=bench.path,
        env=bench.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sesame" not in "".join(path.read_text() for path in bench.runs()[-1].iterdir())


def follow(bench, words, answer):
    """Call gpuops on a terminal; ``answer`` is given the process and what was written so far, again and again."""
    ours, theirs = pty.openpty()
    environment = {**bench.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(
        [sys.executable, "-m", "gpuops", *words],
        cwd=bench.path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        written = read_to_end(ours, lambda so_far: answer(process, so_far))
    return process.returncode, written


def stopped(bench, words, when="2 busy"):
    """The same with Ctrl-C as soon as something is shown."""
    sent = []

    def stop(process, written):
        if when in written and not sent:
            sent.append(True)
            process.send_signal(signal.SIGINT)

    return follow(bench, words, stop)


def test_control_c_stops_and_says_how_to_go_on(bench):
    bench.hosts(good=HERE, other=HERE)
    bench.playbook(SLOW)
    rc, written = stopped(bench, ["up", "-p", "play.yml"])
    assert rc == 130, written
    assert re.search(r"good.*Wait for the post", written)
    assert "stopping: Ansible ends what it is at" in written
    assert "2 stopped on the way" in written
    assert "What is done stays; go on with `gpuops up" in written
    assert "Traceback" not in written
    assert bench.record()["interrupted"] is True
    assert bench.record()["hosts"] == {"good": "unfinished", "other": "unfinished"}
    assert not (bench.path / "came").exists()
    # Nothing of Ansible is left behind.
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(bench.path) not in left
    # The whole run is gone on with, not only the hosts of which something was heard.
    bench.playbook(PLAYBOOK)
    done = bench.call("up", "-p", "play.yml", "--resume", "--json")
    assert done.returncode == 0, done.stdout
    assert events(done)[-1]["hosts"] == {"good": "done", "other": "done"}


# Python forks a process for every task of every host. It drops what is raised among the functions that it calls then,
# such as its own of `logging`; this one takes long enough for Ctrl-C to fall into it.
FORKING_FOR_LONG = """
import os, time
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "forking_for_long"

    def v2_playbook_on_start(self, playbook):
        os.register_at_fork(after_in_parent=lambda: time.sleep(30))
"""


def test_control_c_that_ansible_loses_stops_it_all_the_same(bench):
    (bench.path / "callback_plugins").mkdir()
    (bench.path / "callback_plugins" / "forking_for_long.py").write_text(FORKING_FOR_LONG)
    bench.hosts(good=HERE)
    bench.playbook(SLOW)
    rc, written = stopped(bench, ["up", "-p", "play.yml"], "1 busy")
    assert rc == 130, written
    assert "1 stopped on the way" in written
    assert "Exception ignored" in (bench.runs()[-1] / "output.log").read_text()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(bench.path) not in left


def test_the_oldest_runs_are_pruned(bench):
    bench.hosts(good=HERE)
    bench.playbook("- hosts: all\n  gather_facts: false\n  tasks: [{ping: }]\n")
    runs = bench.path / ".gpuops" / "runs"
    for number in range(30):
        (runs / f"20200101T0000{number:02}Z").mkdir(parents=True)
    assert bench.call("up", "-p", "play.yml").returncode == 0
    names = [path.name for path in bench.runs()]
    assert len(names) == 20
    assert names[0] == "20200101T000011Z"
