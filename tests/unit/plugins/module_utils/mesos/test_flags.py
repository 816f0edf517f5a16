# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flags and variables that Mesos and Marathon would refuse, or pass over, are refused before they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flag_table as mesos_flag_table
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from tests.unit.simulators.mesos_cluster import Program

# The stand-ins' own list: transcribed apart from the product's.
STAND_INS = json.loads((Path(__file__).parents[4] / "simulators/mesos/flags.json").read_text(encoding="utf-8"))
AGENT = {"work_dir": "/var/lib/mesos", "master": "zk://zk1:2181/mesos"}
GPU = {"isolation": "filesystem/linux,cgroups/devices,gpu/nvidia"}


def found(program: str, settings: dict, flavour: str = "apache", version: str = "1.11.0") -> list[str]:
    return [str(one) for one in mesos_flags.problems(program, settings, mesos_flags.known(program, flavour, version))]


@pytest.mark.parametrize("program", mesos_flags.PROGRAMS)
def test_product_and_stand_ins_know_the_same_flags(program):
    build = tuple({**mesos_flag_table.MASTER_BUILD, **mesos_flag_table.AGENT_BUILD})
    known = mesos_flags.known(program, "apache", "1.12.0", build)
    rows = STAND_INS[program]
    assert set(known) == set(rows) | {row["alias"] for row in rows.values() if "alias" in row}
    assert {name: known[name].kind for name in rows} == {name: row["kind"] for name, row in rows.items()}
    assert {name: list(known[name].choices) for name in rows} == {n: row.get("values", []) for n, row in rows.items()}


@pytest.mark.parametrize(
    ("program", "settings", "words"),
    [
        ("agent", {**AGENT, "isolatoin": "x"}, ["no flag isolatoin", "write isolation"]),
        ("agent", {**AGENT, "strict": "yes"}, ["'yes'", "true or false"]),
        ("agent", {**AGENT, "recovery_timeout": "15 min"}, ["'15 min'", "duration"]),
        ("agent", {**AGENT, "fetcher_cache_size": "1.5GB"}, ["size"]),
        ("agent", {**AGENT, "port": 70000}, ["65535"]),
        ("agent", {**AGENT, "reconfiguration_policy": "any"}, ["equal, additive"]),
        ("agent", {**AGENT, "image_providers": "DOCKER,OCI"}, ["DOCKER, APPC"]),
        ("agent", {**AGENT, "acls": "{"}, ["JSON"]),
        ("agent", {**AGENT, "credential": "secrets"}, ["absolute path"]),
        ("agent", {"work_dir": "/x"}, ["needs the flag master"]),
        ("agent", {**AGENT, "modules": "/a", "modules_dir": "/b"}, ["exclude each other"]),
        ("agent", {**AGENT, "bounding_capabilities": "{}", "hostname": "a\nb"}, ["one line"]),
        ("agent", {**AGENT, "seccomp_config_dir": "/x"}, ["no flag seccomp_config_dir"]),
        ("agent", {**AGENT, "isolation": "gpu/nvidia,gpu/nvidia"}, ["twice"]),
        ("agent", {**AGENT, **GPU, "resources": "gpus:2"}, ["without nvidia_gpu_devices"]),
        ("agent", {**AGENT, **GPU, "nvidia_gpu_devices": "0,1"}, ["without gpus"]),
        ("agent", {**AGENT, **GPU, "nvidia_gpu_devices": "0,1", "resources": "gpus:3"}, ["counts"]),
        ("agent", {**AGENT, **GPU, "nvidia_gpu_devices": "0,0", "resources": "gpus:2"}, ["twice"]),
        ("agent", {**AGENT, **GPU, "nvidia_gpu_devices": "0, 1", "resources": "gpus:2"}, ["no blank"]),
        ("agent", {**AGENT, "nvidia_gpu_devices": "0", "resources": "gpus:1"}, ["without the isolator"]),
        ("agent", {**AGENT, "resources": "gpus:1"}, ["without the isolator"]),
        ("agent", {**AGENT, "isolation": "gpu/nvidia,filesystem/linux"}, ["add cgroups/devices"]),
        ("agent", {**AGENT, "attributes": "rack:r{1}"}, ["brackets"]),
        ("master", {"work_dir": "/x", "zk": "zk://a:1/m"}, ["without quorum"]),
        ("master", {"work_dir": "/x", "slave_ping_timeout": "1secs", "agent_ping_timeout": "1secs"}, ["twice"]),
        ("marathon", {"master": "mesos1"}, ["zk://"]),
        ("marathon", {"master": "zk://a:1/m", "enable_features": "gpus"}, ["gpu_resources"]),
        ("marathon", {"master": "zk://a:1/m", "mesos_offer_constraints": True}, ["no flag"]),
    ],
)
def test_what_the_program_would_not_take_is_refused_with_a_remedy(program, settings, words):
    told = "\n".join(found(program, settings, version="1.10.26" if program == "marathon" else "1.11.0"))
    assert ". To do: " in told
    assert "To do: " in told
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("program", "settings"),
    [
        ("master", {"work_dir": "/x", "zk": "file:///etc/mesos/zk", "quorum": 2, "authenticate_agents": True}),
        ("agent", {**AGENT, "resources": "cpus:2;gpus:0", **GPU}),
        ("agent", {**AGENT, "containerizers": "mesos,docker", "allowed_devices": {"allowed_devices": []}}),
        ("marathon", {"master": "zk://a:1,b:1/mesos", "enable_features": "gpu_resources", "ha": False}),
    ],
)
def test_what_the_program_takes_is_not_refused(program, settings):
    assert found(program, settings) == []


def test_a_secret_is_not_shown():
    told = found("marathon", {"master": "zk://a:1/m", "zk": "zk://user:hunter2@"})
    assert told
    assert "hunter2" not in told[0]


@pytest.mark.parametrize(
    ("program", "environment", "words"),
    [
        ("agent", {"MESOS_ISOLATOIN": "x"}, ["MESOS_ISOLATOIN", "passes over", "MESOS_ISOLATION"]),
        ("marathon", {"MARATHON_GPU_BEHAVIOUR": "x"}, ["stops at"]),
        ("agent", {"LIBPROCESS_SSL_ENABLE_DOWNGRADE": "true"}, ["LIBPROCESS_SSL_SUPPORT_DOWNGRADE"]),
        ("agent", {"LIBPROCESS_NUM_WORKER_THREADS": "2000"}, ["1 to 1024"]),
        ("agent", {"MESOS_STRICT": "yes"}, ["true or false"]),
    ],
)
def test_variables_are_checked_as_flags_are(program, environment, words):
    problems = mesos_flags.environment_problems(program, environment, mesos_flags.known(program))
    told = "\n".join(map(str, problems))
    for word in words:
        assert word in told


def test_the_environment_file_is_one_that_systemd_reads_back():
    text, arguments = mesos_flags.render(
        "agent",
        {"attributes": "a:b;c:d", "strict": False, "default_container_dns": {"a": "b c"}, "hostname": 'x"$y'},
        {"LIBPROCESS_SSL_ENABLED": True},
    )
    assert text.splitlines() == [
        "LIBPROCESS_SSL_ENABLED=true",
        "MESOS_ATTRIBUTES=a:b;c:d",
        'MESOS_DEFAULT_CONTAINER_DNS="{\\"a\\":\\"b c\\"}"',
        'MESOS_HOSTNAME="x\\"\\$y"',
        "MESOS_STRICT=false",
    ]
    assert arguments == []


def test_marathon_gets_arguments_where_a_variable_cannot_say_it():
    text, arguments = mesos_flags.render(
        "marathon", {"master": "zk://a:1/m", "ha": False, "metrics": True, "killsPerBatch": 10, "disable_http": False}
    )
    assert text == "MARATHON_MASTER=zk://a:1/m\n"
    assert arguments == ["--disable_ha", "--killsPerBatch", "10", "--metrics"]


DOMAIN = {"fault_domain": {"region": {"name": "r"}, "zone": {"name": "z"}}}
# (program, flag, value, a word of the remedy). All of the right kind.
ENDS = [
    ("agent", "isolation", "cgroups/cpu,cgroups/nope", "cgroups/nope"),
    ("agent", "isolation", "gpu/nvidea,filesystem/linux", "gpu/nvidea"),
    ("agent", "isolation", "linux/seccomp", "ENABLE_SECCOMP_ISOLATOR"),
    ("agent", "isolation", "filesystem/linux,filesystem/posix", "one of filesystem/linux, filesystem/posix"),
    ("agent", "isolation", "filesystem/linux,gpu/nvidia,cgroups/devices", "with gpu/nvidia behind cgroups/devices"),
    ("agent", "isolation", "cgroups/devices,gpu/nvidia,filesystem/linux", "with gpu/nvidia behind filesystem/linux"),
    ("agent", "image_providers", "DOCKER", "filesystem/linux"),
    ("agent", "default_role", "", "empty"),
    ("agent", "default_role", "a b", "role"),
    ("agent", "default_role", "-a", "role"),
    ("agent", "domain", {}, "region"),
    ("agent", "domain", "{}", "region"),
    ("master", "domain", {"fault_domain": {"region": {"name": "r"}}}, "zone"),
    ("agent", "executor_environment_variables", {"A": 1}, "text"),
    ("agent", "executor_environment_variables", '{"A": null}', "text"),
    ("agent", "executor_environment_variables", ["A"], "text"),
    ("agent", "resources", "cpus:1;ports:[32000-31000]", "32000-31000"),
    ("agent", "gc_disk_headroom", 1.5, "0 to 1"),
    ("agent", "hostname", "", "empty"),
    ("master", "agent_ping_timeout", "20mins", "15mins"),
    ("master", "agent_reregister_timeout", "5mins", "10mins"),
    ("master", "max_agent_ping_timeouts", 0, "1 or more"),
    ("master", "recovery_agent_removal_limit", "50", "percentage"),
]


@pytest.mark.parametrize(("program", "flag", "value", "word"), ENDS)
def test_a_value_of_the_right_kind_at_which_the_program_ends_is_refused(program, flag, value, word):
    (told,) = found(program, {**(AGENT if program == "agent" else {"work_dir": "/x"}), flag: value})
    assert told.startswith(f"{program} flag {flag} is ")
    assert word in told.partition("To do: ")[2]


@pytest.mark.parametrize(
    ("program", "settings"),
    [
        ("agent", {"isolation": "my_org_Isolator,cgroups/cpu", "modules": "file:///etc/modules.json"}),
        ("agent", {"isolation": "process,posix/disk,network/cni,volume/csi"}),
        ("agent", {"default_role": "*"}),
        ("agent", {"default_role": "eng/ml-1"}),
        ("agent", {"domain": DOMAIN}),
        ("agent", {"domain": "file:///etc/domain.json"}),
        ("agent", {"executor_environment_variables": {"A": "1", "B": ""}}),
        ("agent", {"resources": "ports:[31000-31000,32000-32001]"}),
        ("agent", {**GPU, "nvidia_gpu_devices": "0,2,", "resources": "gpus:2"}),
        ("master", {"agent_ping_timeout": "1secs", "agent_reregister_timeout": "10mins", "domain": DOMAIN}),
        ("master", {"recovery_agent_removal_limit": "12.5%", "max_agent_ping_timeouts": 1}),
    ],
)
def test_what_is_at_the_bounds_is_taken(program, settings):
    assert found(program, {**(AGENT if program == "agent" else {"work_dir": "/x"}), **settings}) == []


def test_an_isolator_of_the_build_is_taken_where_the_build_is_told():
    flags = mesos_flags.known("agent", "clusterd", "1.11.0", ("ENABLE_SECCOMP_ISOLATOR",))
    assert mesos_flags.problems("agent", {**AGENT, "isolation": "linux/seccomp"}, flags) == []


# At what follows from several flags, and from the build, the stand-in does not look.
ENDS_IT = [row for row in ENDS if row[0] == "agent" and row[2] in ("", {}, "{}", "cgroups/cpu,cgroups/nope")]


@pytest.mark.parametrize(("_program", "flag", "value", "_word"), [row for row in ENDS_IT if row[1] != "hostname"])
def test_the_stand_in_ends_at_them_too(_program, flag, value, _word, tmp_path):
    text = value if isinstance(value, str) else json.dumps(value)
    assert Program("agent", ["--master=a:1", f"--work_dir={tmp_path}", f"--{flag}={text}"]).ended()[0] == 1
