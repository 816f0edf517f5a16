# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops init, as it is called, and what Ansible makes of what it writes."""

from __future__ import annotations

import json
import stat
import sys

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from gpuops.commands import init
from gpuops.init import answers, discover, files
from tests.unit.gpuops.conftest import DEAD
from tests.unit.project.tree import BIN, load_yaml, role_names, try_run

SITE = [
    *("--gpu", "gpu[1:2]=192.0.2.[31:32]", "--storage", "stor[1:3]=192.0.2.[21:23]"),
    *("--controller", "ctl1=192.0.2.11", "--cpu", "cpu1=192.0.2.51", "--user", "admin"),
]


@pytest.fixture
def make(bench):
    """Call gpuops init and return what became of it; the site is in ``site``."""

    def call(*words, **more):
        return bench.call("init", "site", *words, **more)

    return call


def listed(bench):
    """The inventory as Ansible reads it, called in the site's directory as an operator would."""
    done = try_run([BIN / "ansible-inventory", "--list"], cwd=bench.path / "site")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_site_is_complete_and_ansible_reads_it(bench, make):
    done = make(*SITE, "--offline", "--public-network", "192.0.2.0/24")
    assert done.returncode == 0, done.stdout + done.stderr
    content = listed(bench)
    hosts = content["_meta"]["hostvars"]
    assert set(hosts) == {"gpu1", "gpu2", "stor1", "stor2", "stor3", "ctl1", "cpu1"}
    assert hosts["gpu2"]["ansible_host"] == "192.0.2.32"
    assert hosts["gpu2"]["ansible_user"] == "admin"
    assert sorted(content["ceph_mons"]["hosts"]) == ["stor1", "stor2", "stor3"]
    # What is said of a kind of hosts goes before what is said of all.
    engines = {name: variables["container_runtime_engine"] for name, variables in hosts.items()}
    assert engines == {
        **dict.fromkeys(["gpu1", "gpu2", "cpu1"], "docker"),
        **dict.fromkeys(["stor1", "stor2", "stor3", "ctl1"], "none"),
    }
    # The keys are there, by way of the vault and the password in its file.
    assert set(hosts["stor1"]["vault_ceph_keys"]) == set(ceph_conf.CAPS)
    for playbook in ("site", "storage", "scheduler"):
        done = try_run(
            [BIN / "ansible-playbook", "--list-hosts", f"baremetal.gpu.{playbook}"],
            cwd=bench.path / "site",
            ANSIBLE_STDOUT_CALLBACK="default",
        )
        assert done.returncode == 0, done.stderr


def test_a_key_that_is_named_from_here_is_found_from_everywhere(bench, make):
    (bench.path / "answers.yml").write_text(
        yaml.safe_dump(
            {
                "private_key": "keys/site",
                "hosts": {
                    "gpu1": {"role": "gpu"},
                    "gpu2": {"role": "gpu", "variables": {"ansible_ssh_private_key_file": "./gpu2.key"}},
                    "gpu3": {"role": "gpu", "variables": {"ansible_ssh_private_key_file": "~/.ssh/gpu3"}},
                },
            }
        )
    )
    assert make("--offline", "--answers", "answers.yml").returncode == 0
    told = listed(bench)["_meta"]["hostvars"]
    assert {name: row["ansible_ssh_private_key_file"] for name, row in told.items()} == {
        "gpu1": str(bench.path / "keys/site"),
        "gpu2": str(bench.path / "gpu2.key"),
        "gpu3": "~/.ssh/gpu3",
    }


MONITORING = ("prometheus_servers", "node_exporters", "log_hosts", "log_senders", "grafana_servers")


def test_the_first_controller_watches_all_hosts_and_keeps_their_logs(bench, make):
    assert make(*SITE, "--offline").returncode == 0
    content = listed(bench)
    assert content["prometheus_servers"]["hosts"] == content["log_hosts"]["hosts"] == ["ctl1"]
    assert content["node_exporters"]["children"] == content["log_senders"]["children"] == ["gpu_cluster"]
    assert not content.get("grafana_servers", {}).get("hosts")
    assert content["_meta"]["hostvars"]["ctl1"]["alertmanager_receivers"] == []
    # The alerts of the storage need what its manager publishes.
    assert content["_meta"]["hostvars"]["stor1"]["ceph_mgr_modules"] == {"prometheus": True}
    done = try_run([BIN / "ansible-playbook", "--list-hosts", "baremetal.gpu.monitoring"], cwd=bench.path / "site")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [[*SITE, "--monitoring", ""], ["--gpu", "gpu1", "--cpu", "cpu1"]])
def test_nobody_is_watched_where_no_host_is_to_do_it(bench, make, words):
    assert make(*words, "--offline").returncode == 0
    text = (bench.path / "site/inventory/hosts.yml").read_text()
    assert not [group for group in MONITORING if group in text]
    assert not (bench.path / "site/inventory/group_vars/prometheus_servers.yml").exists()
    storage = bench.path / "site/inventory/group_vars/storage_nodes.yml"
    assert not storage.exists() or "ceph_mgr_modules" not in storage.read_text()


def test_another_host_can_watch_and_one_that_is_not_there_cannot(bench, make):
    done = make(*SITE, "--offline", "--monitoring", "ctl9")
    assert done.returncode == 64
    assert "monitoring is 'ctl9', which is no host of the site" in done.stderr
    assert make(*SITE, "--offline", "--monitoring", "cpu1").returncode == 0
    assert listed(bench)["log_hosts"]["hosts"] == ["cpu1"]


@pytest.mark.parametrize(("answer", "watcher"), [(None, "ctl1"), ("none", ""), ("gpu1", "gpu1")])
def test_the_terminal_asks_who_watches_and_offers_the_first_controller(monkeypatch, answer, watcher):
    given = {"Nodes without": "", "GPU nodes": "gpu1", "Storage": "", "Controllers": "ctl1 ctl2", "Account": "admin"}

    def prompt(question, default="", **_more):
        if question.startswith("Host that watches"):
            return default if answer is None else answer
        return next(text for words, text in given.items() if question.startswith(words))

    monkeypatch.setattr(init.typer, "prompt", prompt)
    monkeypatch.setattr(init.typer, "confirm", lambda *_words, **_more: False)
    assert answers.read(init.prompted({})).watcher == watcher


def options_of_roles():
    specs = {}
    for role in role_names():
        content = load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
        specs.update({name: spec for entry in content.values() for name, spec in entry.get("options", {}).items()})
    return specs


def test_every_variable_is_one_that_a_role_takes_and_is_explained(bench, make):
    assert make(*SITE, "--offline").returncode == 0
    specs = options_of_roles()
    for path in sorted((bench.path / "site" / "inventory").glob("*_vars/*.yml")):
        text = path.read_text()
        content = yaml.safe_load(text)
        chosen = {name: value for name, value in content.items() if not name.startswith("ansible_")}
        assert set(chosen) <= set(specs), path
        literal = {name: value for name, value in chosen.items() if "{{" not in str(value)}
        validator = ArgumentSpecValidator({name: {**specs[name], "required": False} for name in literal})
        assert validator.validate(literal).error_messages == [], path
        assert text.startswith("---\n# "), path
        assert max(map(len, text.splitlines())) <= 120, path


def test_secrets_are_private_and_differ_from_site_to_site(bench, make):
    assert make(*SITE, "--offline").returncode == 0
    site = bench.path / "site"
    password = site / "inventory" / ".secrets" / "vault-password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert stat.S_IMODE(password.parent.stat().st_mode) == 0o700
    vault = site / "inventory" / "group_vars" / "all" / "vault.yml"
    assert vault.read_text().startswith("$ANSIBLE_VAULT;1.1;AES256")
    assert ".secrets/" in (site / ".gitignore").read_text()
    keys = listed(bench)["_meta"]["hostvars"]["stor1"]["vault_ceph_keys"]
    clear = [path for path in site.rglob("*") if path.is_file()]
    assert not [path for path in clear for key in keys.values() if key in path.read_text()]
    assert bench.call("init", "other", *SITE, "--offline").returncode == 0
    assert (bench.path / "other/inventory/.secrets/vault-password").read_text() != password.read_text()


def test_nothing_is_overwritten(bench, make):
    assert make(*SITE, "--offline").returncode == 0
    before = {path: path.read_bytes() for path in (bench.path / "site").rglob("*") if path.is_file()}
    done = make("--gpu", "other", "--offline")
    assert done.returncode == 64
    assert "nothing is overwritten" in done.stderr
    assert {path: path.read_bytes() for path in (bench.path / "site").rglob("*") if path.is_file()} == before


def test_all_that_is_wrong_is_said_at_once(bench, make):
    (bench.path / "answers.yml").write_text(
        "engine: rkt\nreboot: maybe\npublic_network: 192.0.2.1/24\ncolour: red\n"
        "hosts:\n  'g 1': {role: gpu}\n  a: {role: gpu, address: 192.0.2.1}\n  b: {role: cpu, address: 192.0.2.1}\n"
        "  c: {role: king}\n  d: {role: storage, disks: sda, port: 99999}\n"
    )
    done = make("--answers", "answers.yml", "--offline")
    assert done.returncode == 64
    said = done.stderr
    for words in (
        "engine is 'rkt'; take one of docker",
        "reboot is 'maybe'; take one of",
        "public_network is '192.0.2.1/24'",
        "colour is unknown",
        "host 'g 1': a name has",
        "host b: 192.0.2.1 is the address of a too",
        "host c: its role is king; take of controller",
        "host d: disks are 'sda'",
        "host d: port is 99999",
    ):
        assert words in said
    assert not (bench.path / "site").exists()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no host is named"),
        (["--gpu", "g[1:3]=192.0.2.[1:2]"], "3 names and 2 addresses"),
        (["--gpu", "g[3:1]"], "from 3 to 1 is not a range"),
        (["--answers", "nowhere.yml"], "nowhere.yml cannot be read"),
    ],
)
def test_answers_that_are_no_site(bench, make, words, said):
    done = make(*words, "--offline")
    assert done.returncode == 64
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ranges_of_names():
    assert answers.expand("r[1:2]n[08:10]") == ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]


def test_options_and_answers_together_make_hosts_with_several_roles(bench, make):
    (bench.path / "answers.yml").write_text("hosts:\n  all1: {role: gpu, address: 192.0.2.1}\nusers: [alice]\n")
    done = make("--answers", "answers.yml", "--storage", "all1", "--offline", "--engine", "podman")
    assert done.returncode == 0, done.stderr
    content = listed(bench)
    assert content["gpu_nodes"]["hosts"] == content["storage_nodes"]["hosts"] == ["all1"]
    variables = content["_meta"]["hostvars"]["all1"]
    # A host with GPUs runs containers, also where it has disks.
    assert variables["container_runtime_engine"] == "podman"
    assert variables["cephfs_homes_users"] == [{"name": "alice"}]
    assert (variables["ceph_mds_pool_size"], variables["ceph_mds_failure_domain"]) == (2, "osd")


@pytest.mark.parametrize("way", ["answers", "options"])
def test_a_controller_with_disks_gets_no_engine_however_its_roles_are_given(bench, make, way):
    (bench.path / "answers.yml").write_text("hosts: {head: {roles: [controller, storage]}, gpu1: {role: gpu}}\n")
    words = {"answers": ["--answers", "answers.yml"]}
    words["options"] = ["--controller", "head", "--storage", "head", "--gpu", "gpu1"]
    done = make(*words[way], "--offline")
    assert done.returncode == 0, done.stderr
    content = listed(bench)
    engines = {name: row["container_runtime_engine"] for name, row in content["_meta"]["hostvars"].items()}
    assert engines == {"head": "none", "gpu1": "docker"}
    assert (bench.path / "site/inventory/group_vars/controllers.yml").exists()
    assert content["prometheus_servers"]["hosts"] == content["ceph_mons"]["hosts"] == ["head"]


def test_only_hosts_for_jobs_get_an_engine_also_where_groups_have_both_kinds(bench, make):
    hosts = {"ctl1": "[controller]", "ctl2": "[controller, gpu]", "stor1": "[storage]", "stor2": "[storage, cpu]"}
    rows = ", ".join(f"{name}: {{roles: {roles}}}" for name, roles in hosts.items())
    (bench.path / "answers.yml").write_text(f"hosts: {{{rows}}}\n")
    done = make("--answers", "answers.yml", "--offline")
    assert done.returncode == 0, done.stderr
    variables = listed(bench)["_meta"]["hostvars"]
    engines = {name: row["container_runtime_engine"] for name, row in variables.items()}
    assert engines == {"ctl1": "none", "ctl2": "docker", "stor1": "none", "stor2": "docker"}


def test_hosts_are_asked_and_one_that_is_not_reached_does_not_keep_the_site_from_being_made(bench, make):
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    content = {
        "become": False,
        "hosts": {
            "gpu1": {"role": "gpu", "variables": here},
            "stor1": {"role": "storage", "variables": here},
            "dead": {"role": "gpu", "address": DEAD["ansible_host"], "port": DEAD["ansible_port"]},
        },
    }
    (bench.path / "answers.yml").write_text(yaml.safe_dump(content))
    done = make("--answers", "answers.yml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "asking 3 hosts" in done.stdout
    assert "Connection refused" in done.stdout
    assert "remedy: see that `ssh dead` gets in" in done.stdout
    assert "free disk" in done.stdout
    assert "cd site && gpuops plan && gpuops up" in done.stdout
    content = listed(bench)
    assert set(content["_meta"]["hostvars"]) == {"gpu1", "stor1", "dead"}
    # What was seen is in the groups at once.
    assert content["gpu_unknown"]["hosts"] == ["dead"]


@pytest.mark.parametrize(("config", "accepts"), [("", False), ("host_key_checking = false", True)])
def test_whether_a_host_key_is_accepted_is_for_the_settings_of_ssh_and_ansible(bench, make, config, accepts):
    """A stand-in for ssh notes its options; that of accepting any key comes only where ansible.cfg has it."""
    called = bench.path / "called"
    program = bench.path / "ssh"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {called}\necho 'Host key verification failed.' >&2\nexit 255\n")
    program.chmod(0o755)
    with (bench.path / "ansible.cfg").open("a") as file:
        file.write(f"{config}\n")
    variables = {"ansible_ssh_executable": str(program)}
    content = {"hosts": {"gpu1": {"role": "gpu", "address": "192.0.2.31", "variables": variables}}}
    (bench.path / "answers.yml").write_text(yaml.safe_dump(content))
    done = make("--answers", "answers.yml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert ("StrictHostKeyChecking=no" in called.read_text()) is accepts
    assert "remedy: compare the host's key at its console" in done.stdout


def disk(**more):
    base = {"partitions": {}, "holders": [], "links": {"ids": [], "uuids": [], "labels": []}, "removable": "0"}
    return {**base, "sectors": 100, "size": "1.00 TB", "model": "DISK", **more}


# Made up after what the module setup returns.
DEVICES = {
    "sda": disk(partitions={"sda1": {}}),
    "sdb": disk(links={"ids": ["ata-X_1", "wwn-0x5000"], "uuids": [], "labels": []}),
    "sdc": disk(links={"ids": ["wwn-0x6000"], "uuids": ["abc"], "labels": []}),
    "sdd": disk(holders=["dm-0"]),
    "sde": disk(removable="1"),
    "sdf": disk(sectors=0),
    "nvme0n1": disk(),
    "loop0": disk(),
    "sr0": disk(),
    "dm-0": disk(),
}


def test_free_disks_are_those_that_hold_nothing_by_their_lasting_names():
    found = discover.free_disks(DEVICES)
    assert [(row.path, row.lasting) for row in found] == [
        ("/dev/nvme0n1", False),
        ("/dev/disk/by-id/wwn-0x5000", True),
    ]


def read_by_ansible(text):
    return DataLoader().load(text)


def site_of(**hosts):
    return answers.read({"hosts": {name: {"role": role} for name, role in hosts.items()}})


def test_groups_by_model_are_proposed_where_all_nodes_could_be_asked():
    site = site_of(g1="gpu", g2="gpu", g3="gpu")
    gpus = {"g1": ["A100 SXM4 40GB"] * 4, "g2": ["A100 SXM4 40GB"] * 4, "g3": ["GeForce GTX 1080", "Tesla K80"]}
    found = {name: discover.Found(gpus=rows) for name, rows in gpus.items()}
    assert discover.model_groups(site, found) == {"gpu_nodes_a100_sxm4_40gb": ["g1", "g2"]}
    del found["g3"]
    assert discover.model_groups(site, found) == {}


def test_what_the_hosts_said_is_in_the_files():
    site = site_of(g1="gpu", g2="gpu", s1="storage", s2="storage")
    found = {
        "g1": discover.Found(gpus=["A100 SXM4 40GB"] * 4),
        "g2": discover.Found(gpus=["A100 SXM4 40GB"] * 4),
        "s1": discover.Found(disks=discover.free_disks(DEVICES), network="192.0.2.0/24"),
    }
    made = files.render(site, found)
    model = yaml.safe_load(made["inventory/group_vars/gpu_nodes_a100_sxm4_40gb.yml"])
    assert model == {"gpu_verify_expected": 4}
    hosts = yaml.safe_load(made["inventory/hosts.yml"])["all"]["children"]
    assert list(hosts["gpu_nodes"]["children"]) == ["gpu_nodes_a100_sxm4_40gb"]
    storage = read_by_ansible(made["inventory/group_vars/storage_nodes.yml"])
    assert storage["ceph_common_public_network"] == "192.0.2.0/24"
    # A disk is proposed, and taken only when somebody says so.
    proposed = made["inventory/host_vars/s1.yml"]
    assert "#  - !unsafe '/dev/disk/by-id/wwn-0x5000' # 1.00 TB DISK" in proposed
    assert read_by_ansible(proposed) == {"ceph_osd_devices": []}
    site.use_free_disks = True
    taken = read_by_ansible(files.render(site, found)["inventory/host_vars/s1.yml"])
    assert taken == {"ceph_osd_devices": ["/dev/nvme0n1", "/dev/disk/by-id/wwn-0x5000"]}
