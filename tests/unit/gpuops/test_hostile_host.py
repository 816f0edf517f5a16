# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that answers gpuops init with whatever it likes: nothing of it is run, and nothing but its own part is odd."""

from __future__ import annotations

import json
import random
import string

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader

from ansible_collections.baremetal.gpu.plugins.action.gpu_verify_report import write
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from gpuops.commands import init as command
from gpuops.init import answers, discover, files, proposal
from gpuops.inventory import snapshot
from gpuops.run import events
from tests.unit.gpuops.conftest import HERE
from tests.unit.project.tree import BIN, try_run


def template(canary):
    return f"{{{{ lookup('pipe', 'touch {canary}') }}}}"


def hostile_facts(evil):
    """What a host may say instead of the truth, with ``evil`` wherever a text may be."""
    names = [f'wwn-1\ncanary: "{evil}"\nx:\n  - y', f"wwn-2'{evil}", f"ata-{evil}", "../../etc/shadow"]
    disk = {"removable": "0", "sectors": "100", "size": f'1 TB\ncanary: "{evil}"', "model": f"X\x85- {evil}\u2028"}
    links = {"uuids": [], "labels": [], "ids": names}
    return {
        "gpu": {
            "schema": 1,
            "present": True,
            "pci": [{"kind": "gpu", "model": f'A100\nvars:\n  canary: "{evil}"\n# \x1b[2J'}],
            "devices": [],
        },
        "devices": {
            "sdb": {**disk, "partitions": {}, "holders": [], "links": links},
            f"sdc\n  - {evil}": {
                **disk,
                "partitions": {},
                "holders": [],
                "links": {"ids": [], "uuids": [], "labels": []},
            },
        },
        "distribution": f"Debian\n{evil}\x1b]0;owned\x07",
        "distribution_version": "13",
        "default_ipv4": {"network": f"192.0.2.0\ncanary: {evil}", "netmask": "255.255.255.0"},
    }


def everything_written(site):
    return {path: path.read_text() for path in site.rglob("*") if path.is_file()}


def test_a_hostile_host_runs_nothing_on_the_controller(bench, tmp_path):
    canary = tmp_path / "canary"
    evil = template(canary)
    said = json.dumps({"changed": False, "ansible_facts": hostile_facts(evil)})
    (tmp_path / "said.json").write_text(said)
    # In the place of Python: whatever module Ansible runs there, this is the answer.
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec cat {tmp_path}/said.json\n")
    python.chmod(0o755)
    evil_host = {"ansible_connection": "local", "ansible_python_interpreter": str(python)}
    content = {
        "become": False,
        "use_free_disks": True,
        "hosts": {
            "evil": {"roles": ["gpu", "storage"], "variables": evil_host},
            "good": {"role": "cpu", "variables": HERE},
        },
    }
    (bench.path / "answers.yml").write_text(yaml.safe_dump(content))
    done = bench.call("init", "site", "--answers", "answers.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not used:" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    site = bench.path / "site"
    listed = try_run([BIN / "ansible-inventory", "--list"], cwd=site)
    assert listed.returncode == 0, listed.stderr
    variables = json.loads(listed.stdout)["_meta"]["hostvars"]
    assert "canary" not in json.dumps(variables["good"])
    assert variables["evil"]["ceph_osd_devices"] == [{"__ansible_unsafe": "/dev/sdb"}]
    # All that a host has said, used in a task of a playbook.
    told = try_run([BIN / "ansible", "all", "-m", "debug", "-a", "var=hostvars[inventory_hostname]"], cwd=site)
    assert told.returncode == 0, told.stdout + told.stderr
    assert not canary.exists()


@pytest.mark.parametrize("hostile", ["/dev/sda\nx: {{ 1 }}", "/dev/{{ 1 }}", "/dev/../etc/shadow", "/dev/sd a", 7])
def test_a_disk_that_can_have_no_such_name_is_refused_by_host_value_and_remedy(hostile):
    site = answers.read({"hosts": {"s1": {"role": "storage"}}, "use_free_disks": True})
    found = {"s1": discover.Found(disks=[discover.Disk(hostile, "1 TB", "X", True)])}
    proposal.settle(site, found)
    with pytest.raises(files.Unwritable, match=r"host s1 reports .*name its disks in the answers file") as refused:
        files.render(site, found)
    assert "\n" not in str(refused.value)


def test_names_that_yaml_takes_for_something_else_stay_names():
    names = ["123", "1e5", "null", "yes", "0x1f", "1.5", "on"]
    site = answers.read({"hosts": {name: {"role": "gpu"} for name in names}})
    proposal.settle(site, {})
    hosts = yaml.safe_load(files.render(site, {})["inventory/hosts.yml"])["all"]["children"]["gpu_cluster"]["hosts"]
    assert list(hosts) == names


def test_what_an_operator_says_comes_back_as_it_was_said():
    odd = [
        "a\nb",
        "{{ x }}",
        "# no comment",
        "- x",
        "'",
        '"',
        "\t",
        "é \u2028",
        "!vault x",
        "*a",
        "&a",
        "%",
        "x: y",
        "",
    ]
    site = answers.read(
        {"hosts": {"a": {"role": "cpu"}}, "variables": {f"v{number}": text for number, text in enumerate(odd)}}
    )
    proposal.settle(site, {})
    made = yaml.safe_load(files.render(site, {})["inventory/group_vars/gpu_cluster.yml"])
    assert [made[f"v{number}"] for number in range(len(odd))] == odd


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"hosts": {"a\n": {"role": "cpu"}}}, "host 'a\\n': a name has letters"),
        ({"hosts": {"gpu_nodes": {"role": "cpu"}}}, "a group of the site has this name"),
        ({"hosts": {"a": {"role": "cpu", "address": "-oProxyCommand=x"}}}, "host a: address is '-oProxyCommand=x'"),
        ({"hosts": {"a": {"role": "cpu", "address": "h\nx: y"}}}, "host a: address is 'h\\nx: y'"),
        ({"hosts": {"a": {"role": "storage", "disks": ["/dev/sda\n- x"]}}}, "host a: disks are"),
        ({"hosts": {"a": {"role": "cpu"}}, "variables": {"a: b": 1}}, "variables has 'a: b', which is not a name"),
        ({"hosts": {"a": {"role": "cpu", "variables": {"x y": 1}}}}, "host a: variables has 'x y'"),
        ({"hosts": {"a": {"role": "cpu"}}, "user": "-x"}, "user is '-x'"),
        ({"hosts": {"a": {"role": "cpu"}}, "users": ["a b"]}, "cluster_users has 'a b'"),
    ],
)
def test_answers_have_a_grammar(content, said):
    with pytest.raises(answers.AnswersError) as wrong:
        answers.read(content)
    assert said in str(wrong.value)


PIECES = [
    "{{ lookup('pipe', 'touch canary') }}", "{% raw %}", "\n", "\r\n", "\x85", "\u2028", "\x1b[31m", "\x00", "'",
    ": ", " #", "- ", "!vault ", "!unsafe ", "<<: *a", "&a ", "../", "/dev/", "A100",
    "\u202e", "\ud800", "%s", "\\", "é", "|", ">", "\t", '"',
]  # fmt: skip


def some_text(chance):
    pieces = [*PIECES, *string.ascii_letters]
    return "".join(chance.choice(pieces) for _ in range(chance.choice([0, 1, 3, 10, 300])))


def some_value(chance, depth=3):
    kind = chance.randrange(9 if depth else 6)
    if kind == 0:
        return chance.choice([None, True, False, 0, -1, 10**30, 1.5, float("nan"), float("inf")])
    if kind < 6:
        return some_text(chance)
    if kind < 8:
        return [some_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {some_text(chance): some_value(chance, depth - 1) for _ in range(chance.randrange(4))}


def try_facts(seed):
    chance = random.Random(seed)
    site = answers.read(
        {"hosts": {"evil": {"roles": ["gpu", "storage"]}, "good": {"role": "storage"}}, "use_free_disks": True}
    )
    good = discover.read({"devices": {"sdb": {"sectors": 9, "links": {"ids": ["wwn-0x5"]}}}})
    facts = spoil_facts(chance)
    taken = []
    data = {"host": "evil", "res": {"ansible_facts": facts}}
    events.Entry(taken.append)({"event": "runner_on_ok", "event_data": data})
    facts = taken[0].result["ansible_facts"]
    look = discover.Look(hosts={"evil": discover.read(facts if isinstance(facts, dict) else {}), "good": good})
    proposal.settle(site, look.hosts)
    made = files.render(site, look.hosts)
    load = DataLoader().load
    hosts = load(made["inventory/hosts.yml"])["all"]["children"]
    assert set(hosts["gpu_cluster"]["hosts"]) == {"evil", "good"}
    of_good = {"ceph_osd_devices": ["/dev/disk/by-id/wwn-0x5"], "container_runtime_engine": "none"}
    assert load(made["inventory/host_vars/good.yml"]) == of_good
    for path in load(made["inventory/host_vars/evil.yml"])["ceph_osd_devices"]:
        assert answers.is_device(path)
        assert "{" not in path
    for name, text in made.items():
        values = [line.partition("#")[0] for line in text.splitlines()]
        of_ours = ("vault_", "inventory_dir")
        assert not [value for value in values if "{{" in value and not any(word in value for word in of_ours)], name
        assert text.isascii() or all(line.isprintable() for line in text.split("\n"))
        text.encode()
    command.print_facts(site, look)


def spoil_facts(chance):
    base = hostile_facts(some_text(chance))

    def keyed(value):
        if isinstance(value, dict):
            found = {}
            for key, part in value.items():
                found[some_text(chance) if chance.random() < 0.05 else key] = keyed(part)
            return found if chance.random() > 0.05 else some_value(chance)
        if isinstance(value, list):
            return [keyed(part) for part in value] if chance.random() > 0.05 else some_value(chance)
        return value if chance.random() > 0.15 else some_value(chance)

    return keyed(base)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_host_says_the_site_is_made_and_holds_no_template_of_it(seed):
    try_facts(seed)


@pytest.mark.slow
def test_whatever_a_host_says_for_longer():
    for seed in range(1000, 1600):
        try_facts(seed)


def test_a_snapshot_of_hostile_facts_has_no_more_than_its_host(tmp_path):
    found = {
        "evil": discover.Found(gpu={"schema": 1, "present": True, "pci": [{"kind": "gpu", "model": "x\n" * 9}]}),
        "odd": discover.Found(gpu={"schema": 1, "present": True, "devices": [{"slug": ["a"]}]}),
    }
    (tmp_path / "inventory").mkdir()
    files.write_snapshot(tmp_path, found)
    rows = list(fleet_file.read(str(tmp_path / "inventory" / ".gpus.jsonl"), facts=True))
    assert [row.host for row in rows] == ["evil"]


def test_facts_of_a_hostile_host_are_no_templates_in_an_inventory(bench):
    # Where the commands below are run. A whole path is longer than a name may be.
    canary = bench.path / "canary"
    evil = template(canary.name)
    gpu = {
        "index": 0,
        "uuid": evil,
        "pci_address": evil,
        "name": evil,
        "slug": evil,
        "architecture": evil,
        "pcie": evil,
    }
    facts = {"schema": 1, "present": True, "pci": [], "devices": [gpu], "driver": {"branch": evil, "loaded": evil}}
    inventory = bench.path / "inventory"
    inventory.mkdir()
    fleet_file.write(str(inventory / ".gpus.jsonl"), 1.0, [fleet_file.row_of("evil", 1.0, facts)])
    (inventory / "hosts.json").write_text(json.dumps({"all": {"hosts": {"evil": HERE, "good": HERE}}}))
    options = {
        "plugin": "baremetal.gpu.gpus",
        "snapshot": ".gpus.jsonl",
        "gpus_variable": "gpu_gpus",
        "compose": {"composed": "gpu.devices | map(attribute='name') | first", "whole": "gpu"},
        "keyed_groups": [{"key": "gpu.devices | map(attribute='name')", "prefix": "named"}],
    }
    (inventory / "zz_gpus.yml").write_text(yaml.safe_dump(options))
    environment = {"ANSIBLE_INVENTORY": str(inventory)}
    listed = try_run([BIN / "ansible-inventory", "--list"], cwd=bench.path, **environment)
    assert listed.returncode == 0, listed.stderr
    assert evil in listed.stdout.replace("\\", "")
    told = try_run([BIN / "ansible", "all", "-m", "debug", "-a", "msg={{ vars }}"], cwd=bench.path, **environment)
    assert "evil | SUCCESS" in told.stdout, told.stdout + told.stderr
    assert not canary.exists()


@pytest.mark.parametrize("value", ["x" * 5000, "\x1b[2J", ["a"], {"a": 1}, "\n" * 50, True])
def test_a_group_is_never_named_after_anything_odd(value):
    facts = {"schema": 1, "present": True, "pci": [], "devices": [{"slug": value}, {"architecture": value}]}
    try:
        found = fleet.groups(facts)
    except fleet.BrokenFacts as broken:
        found = [str(broken)]
    for name in found:
        assert name.isprintable()
        assert len(name) < 300


def test_a_host_names_no_endless_number_of_groups():
    with pytest.raises(fleet.BrokenFacts, match="more than"):
        fleet.groups({"schema": 1, "present": True, "devices": [{"slug": f"m{number}"} for number in range(5000)]})


def test_a_snapshot_takes_no_endless_facts():
    outcome = snapshot.Outcome(1.0)
    outcome.take("evil", {"schema": 1, "present": True, "pci": [], "devices": [{"name": "x" * 3_000_000}]})
    assert not outcome.found
    assert outcome.problems["evil"].startswith("its facts cannot be used: they have 3")


@pytest.mark.parametrize("host", ["../../x", "a/b", ".x", "/etc/x"])
def test_a_report_is_never_written_beside_its_directory(host, tmp_path):
    with pytest.raises(AnsibleActionFail, match="no file can have this name"):
        write(str(tmp_path / "reports"), host, {})
    assert list(tmp_path.iterdir()) == []
