# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops init, as it is called, and what Ansible makes of what it writes."""

from __future__ import annotations

import json
import re
import stat
import sys

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from gpuops.commands import init
from gpuops.init import answers, discover, files, proposal
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


def test_nobody_is_watched_where_no_host_is_to_do_it(bench, make):
    assert make(*SITE, "--monitoring", "", "--offline").returncode == 0
    text = (bench.path / "site/inventory/hosts.yml").read_text()
    assert not [group for group in MONITORING if group in text]
    assert not (bench.path / "site/inventory/group_vars/prometheus_servers.yml").exists()
    storage = bench.path / "site/inventory/group_vars/storage_nodes.yml"
    assert "ceph_mgr_modules" not in storage.read_text()


def test_another_host_can_watch_and_one_that_is_not_there_cannot(bench, make):
    done = make(*SITE, "--offline", "--monitoring", "ctl9")
    assert done.returncode == 64
    assert "monitoring is 'ctl9', which is not a host of the site" in done.stderr
    assert make(*SITE, "--offline", "--monitoring", "cpu1").returncode == 0
    assert listed(bench)["log_hosts"]["hosts"] == ["cpu1"]


@pytest.mark.parametrize(("answer", "watcher"), [(None, "ctl1"), ("none", ""), ("gpu1", "gpu1")])
def test_the_terminal_asks_where_everything_runs_and_leaves_what_is_auto_to_the_proposal(monkeypatch, answer, watcher):
    given = {"Hosts": "", "Nodes without": "", "GPU nodes": "gpu1", "Storage": "", "Controllers": "ctl1 ctl2"}
    asked = []

    def prompt(question, default="", **_more):
        asked.append(question)
        if question.startswith("Host that watches") and answer is not None:
            return answer
        return next((text for words, text in given.items() if question.startswith(words)), default)

    monkeypatch.setattr(init.typer, "prompt", prompt)
    monkeypatch.setattr(init.typer, "confirm", lambda *_words, **_more: False)
    site = answers.read(init.prompted({"domain": "example.org"}))
    proposal.settle(site, {})
    assert (site.monitoring, site.scheduler, site.homes, site.portal) == (watcher, "slurm", "nfs", "ctl1")
    assert site.user == "admin"
    # What an option has said is not asked again.
    assert not [question for question in asked if question.startswith("Domain")]


CLUSTER = ("192.0.2.11", "192.0.2.[31:32]", "--user", "admin")
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'J' * 43} alice@laptop"
PEOPLE = f"""name,full_name,mail,groups,key
alice,Alice Example,alice@example.org,physics research,{KEY}
bob,Bob Example,,physics,
"""
# The fourth has none; of the second nothing is known.
SEEN = {"192.0.2.11": ["A100"] * 2, "192.0.2.13": ["A100"], "192.0.2.14": []}


def test_three_addresses_and_a_list_of_users_are_a_whole_cluster(bench, make):
    (bench.path / "users.csv").write_text(PEOPLE)
    done = make(*CLUSTER, "--offline", "--users", "users.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    content = listed(bench)
    hosts = content["_meta"]["hostvars"]
    assert {name: row["ansible_host"] for name, row in hosts.items()} == {
        "head1": "192.0.2.11",
        "gpu1": "192.0.2.31",
        "gpu2": "192.0.2.32",
    }
    once = ("nfs_servers", "portals", "registries", "prometheus_servers", "log_hosts")
    for group in (*once, "slurm_controllers", "slurm_databases", "slurm_logins", "backup_hosts"):
        assert content[group]["hosts"] == ["head1"], group
    # What keeps jobs off faulty GPUs comes with Slurm.
    assert not {"zookeeper", "gpu_reconcilers"} & set(content)
    assert content["slurm_nodes"]["children"] == content["registry_clients"]["children"] == ["gpu_nodes"]
    assert content["user_software_hosts"] == {"hosts": ["head1"], "children": ["gpu_nodes"]}
    head = hosts["head1"]
    assert head["cluster_homes"] == "nfs"
    # What needs no DNS.
    assert (head["portal_name"], head["portal_check_names"]) == ("portal.cluster.internal", False)
    assert head["registry_name"] == "192.0.2.11"
    assert head["cluster_users"] == [
        {
            "name": "alice",
            "full_name": "Alice Example",
            "mail": "alice@example.org",
            "groups": ["physics", "research"],
            "ssh_keys": [
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJJ alice@laptop"
            ],
        },
        {"name": "bob", "full_name": "Bob Example", "groups": ["physics"]},
    ]
    assert head["cluster_groups"] == [{"name": "physics"}, {"name": "research"}]
    # Every choice is told, with its reason, on the screen and in the files.
    told = (bench.path / "site/inventory/group_vars/all/cluster.yml").read_text()
    for words in ("the first host, since none could be looked at", "by NFS from head1", "https://portal.cluster.int"):
        assert words in done.stdout
        assert words in told


def test_a_domain_gives_names_that_the_dns_is_asked_for(bench, make):
    assert make(*CLUSTER, "--offline", "--domain", "hpc.example.org", "--portal", "192.0.2.31").returncode == 0
    content = listed(bench)
    assert content["portals"]["hosts"] == ["gpu1"]
    # The portal submits jobs.
    assert content["slurm_logins"]["hosts"] == ["head1", "gpu1"]
    portal = content["_meta"]["hostvars"]["gpu1"]
    assert portal["portal_name"] == "portal.hpc.example.org"
    assert "portal_check_names" not in portal
    assert content["_meta"]["hostvars"]["head1"]["registry_name"] == "registry.hpc.example.org"


def proposed(seen, *names, **more):
    site = answers.read({"hosts": answers.named(names), **more})
    former = proposal.settle(site, {name: discover.Found(gpus=gpus) for name, gpus in seen.items()})
    return site, former


def test_the_host_without_a_gpu_is_the_head_and_hosts_are_called_by_what_they_are(bench):
    site, former = proposed(SEEN, "192.0.2.11", "192.0.2.12", "192.0.2.13", "192.0.2.14", "big=192.0.2.15")
    assert {host.name: host.roles for host in site.hosts} == {
        "gpu1": ("gpu",),
        "gpu2": ("gpu",),
        "gpu3": ("gpu",),
        "head1": ("controller",),
        "big": ("gpu",),
    }
    assert former["head1"] == "192.0.2.14"
    assert (site.head, site.reasons["head"]) == ("head1", "it has no GPU")


def test_where_every_host_has_gpus_the_first_is_the_head_and_runs_jobs_too():
    site, _former = proposed({"192.0.2.11": ["A100"], "192.0.2.12": ["A100"]}, "192.0.2.11", "192.0.2.12")
    assert site.hosts[0].roles == ("controller", "gpu")
    content = yaml.safe_load(files.render(site, {})["inventory/hosts.yml"])["all"]["children"]
    assert list(content["gpu_nodes"]["hosts"]) == ["head1", "gpu1"]


@pytest.mark.parametrize(
    ("options", "mount", "quotas"),
    [
        ("rw,quota,usrquota", "/srv/homes", True),
        ("rw,relatime,usrjquota=aquota.user", "/srv/homes", True),
        ("rw,noquota", "/srv/homes", False),
        ("rw,usrquota", "/srv", False),
    ],
)
def test_homes_have_quotas_where_a_file_system_for_them_was_seen(options, mount, quotas):
    head = discover.read({"mounts": [{"mount": "/", "options": "rw"}, {"mount": mount, "options": options}]})
    site = answers.read({"hosts": answers.named(["192.0.2.11", "192.0.2.12"])})
    proposal.settle(site, {"192.0.2.11": head})
    text = files.render(site, {})["inventory/group_vars/all/cluster.yml"]
    assert yaml.safe_load(text)["nfs_homes_quota"] is quotas
    assert ("None was seen there" in text) is not quotas


@pytest.mark.parametrize(
    ("systems", "images"),
    [(["Debian 13.1", "Debian 13"], True), (["Debian 13.1", "Debian 12.11"], False), (["Debian 13.1", ""], False)],
)
def test_jobs_run_images_where_every_host_has_a_release_that_can(systems, images):
    hosts = ["192.0.2.11", "192.0.2.12"]
    site = answers.read({"hosts": answers.named(hosts)})
    proposal.settle(site, {host: discover.Found(system) for host, system in zip(hosts, systems, strict=True)})
    content = yaml.safe_load(files.render(site, {})["inventory/group_vars/all/cluster.yml"])
    assert content["slurm_common_containers"] is images


def test_one_host_is_a_cluster_with_its_own_homes():
    site, _former = proposed({"192.0.2.11": ["A100"]}, "192.0.2.11")
    assert (site.homes, site.portal, site.reasons["head"]) == ("local", "head1", "the only host")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scheduler": "mesos"}, "give mesos_common_url, mesos_common_sha256, marathon_url"),
        ({"scheduler": "kubernetes"}, "give kubernetes_common_repo_key_url and kubernetes_common_repo_key_sha256"),
        ({"scheduler": "kubernetes", "engine": "podman"}, "give --engine containerd"),
        ({"scheduler": "kubernetes", "portal": "192.0.2.12"}, "portal has no sessions on Kubernetes"),
        ({"homes": "cephfs"}, "no host has disks for it; give --storage, or --homes nfs"),
        ({"homes": "local", "portal": "192.0.2.12"}, "both need the same homes"),
        ({"scheduler": "none", "portal": "192.0.2.12"}, "portal needs a scheduler"),
        ({"portal": "192.0.2.99"}, "portal is '192.0.2.99', which is not a host of the site"),
        ({"domain": "Example.org"}, "domain is 'Example.org'; write one in lower case"),
        ({"users": ["Alice"]}, "cluster_users has 'Alice' as the name of a user; give at most 32 lower-case letters"),
        ({"users": ["alice", {"name": "alice"}]}, "has the user alice twice"),
        ({"users": [{"name": "alice", "ssh_keys": ["a\nb"]}]}, "key 1 of alice is not a public key without options"),
        (
            {"users": [{"name": "alice", "colour": "red"}]},
            "the user alice has unknown keys: colour; keys of a user are name, uid",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_give(more, said):
    with pytest.raises(answers.AnswersError) as refused:
        proposed({}, "192.0.2.11", "192.0.2.12", **more)
    assert any(said in problem for problem in refused.value.problems), refused.value.problems


def test_mesos_with_its_sources_has_masters_agents_and_marathon():
    variables = {"mesos_common_url": "https://mirror.example.com/mesos.tgz", "mesos_common_sha256": "0" * 64}
    site, _former = proposed({}, "192.0.2.11", "192.0.2.12", scheduler="mesos", variables=variables)
    made = files.render(site, {})
    groups = yaml.safe_load(made["inventory/hosts.yml"])["all"]["children"]
    for group in ("zookeeper", "mesos_masters", "marathon", "gpu_reconcilers"):
        assert list(groups[group]["hosts"]) == ["head1"], group
    assert list(groups["mesos_agents"]["children"]) == ["gpu_nodes"]
    assert "slurm_nodes" not in groups
    assert "portals" not in groups


SIGNED = {
    "kubernetes_common_repo_key_url": "https://mirror.example.com/k",
    "kubernetes_common_repo_key_sha256": "0" * 64,
}


@pytest.mark.parametrize(
    ("hosts", "plane", "bare"),
    [
        ({"cpu1": ("controller",), "gpu1": ("gpu",)}, "cpu1", []),
        ({"stor1": ("storage",), "ctl1": ("controller",), "gpu1": ("gpu",)}, "ctl1", ["storage_nodes"]),
        ({"stor1": ("storage",), "gpu1": ("gpu",)}, "gpu1", ["storage_nodes"]),
    ],
)
def test_kubernetes_has_a_control_plane_with_containerd(hosts, plane, bare):
    rows = {
        name: {"roles": list(roles), "address": f"192.0.2.{number}"}
        for number, (name, roles) in enumerate(hosts.items(), 1)
    }
    site = answers.read({"hosts": rows, "scheduler": "kubernetes", "variables": SIGNED})
    proposal.settle(site, {})
    made = files.render(site, {})
    groups = yaml.safe_load(made["inventory/hosts.yml"])["all"]["children"]
    assert list(groups["kubernetes_control_planes"]["hosts"]) == [plane]
    assert list(groups["kubernetes_nodes"]["children"]) == ["gpu_nodes"]
    assert "slurm_controllers" not in groups
    assert "portals" not in groups
    assert yaml.safe_load(made["inventory/group_vars/gpu_cluster.yml"])["container_runtime_engine"] == "containerd"
    engineless = [name for name in ("controllers", "storage_nodes") if _engine(made, name) == "none"]
    assert engineless == bare


def _engine(made, group):
    return (yaml.safe_load(made.get(f"inventory/group_vars/{group}.yml", "")) or {}).get("container_runtime_engine")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("u.csv", "name;mail\nalice;a@example.org\n", [{"name": "alice", "mail": "a@example.org"}]),
        (
            "u.csv",
            "\ufeffname,full_name\nalice,Alice\nbob,\n",
            [{"name": "alice", "full_name": "Alice"}, {"name": "bob"}],
        ),
        (
            "u.yml",
            "[alice, {name: bob, until: 2027-03-31}]",
            [{"name": "alice"}, {"name": "bob", "until": "2027-03-31"}],
        ),
        ("u.yml", "cluster_users: [{name: bob, home_size: 10G}]", [{"name": "bob", "home_size": "10G"}]),
        ("u.csv", "name,colour\nalice,red\n", "has the columns name, colour"),
        ("u.csv", "name,mail\nalice,a,b\n", "line 2 of u.csv has not 2 columns"),
        ("u.yml", "a: [", "is not valid YAML"),
        ("nowhere.csv", None, "nowhere.csv cannot be read"),
    ],
)
def test_lists_of_users_as_spreadsheets_and_people_write_them(bench, make, name, text, said):
    if text is not None:
        (bench.path / name).write_text(text, encoding="utf-8")
    done = make(*CLUSTER, "--offline", "--users", name)
    if isinstance(said, str):
        assert done.returncode == 64
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert listed(bench)["_meta"]["hostvars"]["gpu1"]["cluster_users"] == said


SHARED = {"cluster_homes": "str", "cluster_users": "list", "cluster_groups": "list"}


def options_of_roles():
    specs = {}
    for role in role_names():
        content = load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
        specs.update({name: spec for entry in content.values() for name, spec in entry.get("options", {}).items()})
    return specs


def test_every_variable_is_one_that_a_role_takes_and_is_explained(bench, make):
    assert make(*SITE, "--offline").returncode == 0
    specs = options_of_roles()
    # Not one role's alone: the lists of people and what keeps the homes.
    specs |= {name: {"type": kind} for name, kind in SHARED.items()}
    for path in sorted((bench.path / "site" / "inventory").glob("*_vars/**/*.yml")):
        if path.name == "vault.yml":
            continue
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


def test_variables_of_the_answers_stand_in_the_place_of_those_that_init_proposes():
    own = {"gpu_preflight_refuse": [], "container_runtime_nvidia": "toolkit"}
    site, _former = proposed({"192.0.2.11": ["A100"]}, "192.0.2.11", variables=own)
    text = files.render(site, {})["inventory/group_vars/gpu_cluster.yml"]
    found = yaml.safe_load(text)
    assert {name: found[name] for name in own} == own
    assert all(text.count(f"\n{name}:") == 1 for name in own)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("portal_name", "init writes it to inventory/group_vars/portals.yml; leave it out"),
        ("converge_reboot", "give `reboot` instead"),
        ("container_runtime_engine", "give `engine` instead"),
    ],
)
def test_a_variable_of_the_answers_that_another_file_would_override_is_refused(name, remedy):
    site, _former = proposed({"192.0.2.11": ["A100"]}, "192.0.2.11", variables={name: "show"})
    with pytest.raises(answers.AnswersError, match=re.escape(remedy)):
        files.render(site, {})


def test_each_file_is_read_once_as_ansible_will(monkeypatch):
    site, _former = proposed({"192.0.2.11": ["A100"]}, "192.0.2.11")
    read, names = files.read, []
    monkeypatch.setattr(files, "read", lambda name, text: names.append(name) or read(name, text))
    made = files.render(site, {})
    assert sorted(names) == sorted(name for name in made if name.endswith(".yml"))


def test_a_file_that_would_be_no_yaml_is_named(monkeypatch):
    site, _former = proposed({"192.0.2.11": ["A100"]}, "192.0.2.11")
    monkeypatch.setattr(files, "in_yaml", lambda _value: "[")
    with pytest.raises(files.Unwritable, match=r"inventory/hosts\.yml would be no YAML: .*odd characters"):
        files.render(site, {})


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
    assert variables["cluster_users"] == [{"name": "alice"}]
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
    site = answers.read({"hosts": {name: {"role": role} for name, role in hosts.items()}})
    proposal.settle(site, {})
    return site


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
