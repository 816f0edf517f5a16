# SPDX-License-Identifier: GPL-3.0-or-later
"""Masters, agents and Marathon on three machines with a real ZooKeeper; the programs are the stand-ins of Mesos."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.mesos_cluster import (
    BARE,
    CONFIG,
    GPUS,
    MACHINES,
    MARATHONS,
    SILENT,
    UNITS,
    Site,
    debian_package,
    files,
    moments,
    processes,
    ssh,
)
from tests.simulators import generate
from tests.site import plays
from tests.site.plays import Play, lab, run_and_cut, run_playbook

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CUTS = 4
SCENARIO = generate.scenario("a100-sxm4-40gb-x2")
UUIDS = [device["uuid"] for device in SCENARIO["devices"]]
# They keep the units of a package from being started.
GUARDS = {f"/etc/systemd/system/{unit}.service.d" for unit in UNITS}

until = functools.partial(plays.until, seconds=90, told=lambda: "")


@pytest.fixture(scope="module")
def empty(driven_machine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three machines without a scheduler, of which one has a driver."""
    lab("reset", BARE)
    yield Site(tmp_path_factory.mktemp("mesos"))
    lab("reset", *MACHINES)


@pytest.fixture(scope="module")
def site(empty: Site) -> Site:
    """The cluster, made in one run of the playbook."""
    empty.converge(whole=True)
    return empty


def test_check_mode_on_bare_machines_changes_nothing(empty: Site) -> None:
    # Of ZooKeeper nothing is there either, so this is the run before the first one.
    play = empty.run("--check --diff", whole=True)
    assert play.rc == 0, play.tail()
    for name in MACHINES:
        assert play.changed(name) > 0
        assert ssh(name, f"ls -d {CONFIG} /opt/mesos /var/lib/mesos 2>/dev/null || true") == ""
    assert not empty.secrets.exists()


def test_systemd_understands_every_word_of_the_units(site: Site) -> None:
    for name in MARATHONS:
        units = "mesos-master.service mesos-agent.service marathon.service"
        said = ssh(name, f"cd /etc/systemd/system && sudo systemd-analyze verify {units} 2>&1 || true")
        assert not [line for line in said.splitlines() if "mesos" in line or "marathon" in line]
        assert set(ssh(name, "systemctl show -P KillMode -P Delegate mesos-agent").split()) == {"process", "yes"}


def test_three_masters_have_one_leader_and_all_have_their_log(site: Site) -> None:
    assert len(site.leaders()) == 1
    for name in MACHINES:
        assert site.ask(name, 5050, "/metrics/snapshot")["registrar/log/recovered"] == 1
        assert "MESOS_QUORUM=2" in ssh(name, f"sudo cat {CONFIG}/master.env")


def test_agents_give_out_what_the_facts_of_their_hosts_say(site: Site) -> None:
    agents = site.agents()
    assert {name: row["active"] for name, row in agents.items()} == dict.fromkeys(MACHINES, True)
    assert agents[GPUS]["resources"]["gpus"] == 2
    attributes = agents[GPUS]["attributes"]
    assert attributes["gpu_model"] == "a100-sxm4-40gb"
    assert (attributes["gpu_count_class"], attributes["gpu_memory_gib"], attributes["rack"]) == (2, 40, "r1")
    settings = ssh(GPUS, f"sudo cat {CONFIG}/agent.env")
    assert f"BAREMETAL_GPU_UUIDS={','.join(UUIDS)}\n" in settings
    assert "MESOS_NVIDIA_GPU_DEVICES=0,1\n" in settings
    # Without GPUs, or with GPUs that the operator keeps.
    assert agents[BARE]["resources"].get("gpus", 0) == agents[SILENT]["resources"].get("gpus", 0) == 0
    assert ssh(BARE, f"sudo grep -iE 'gpus|gpu_|nvidia' {CONFIG}/agent.env || true") == ""
    assert "gpu/nvidia" not in ssh(SILENT, f"sudo cat {CONFIG}/agent.env")


def test_programs_find_their_libraries_by_the_loader_and_have_the_plugin_of_sasl(site: Site) -> None:
    for name in MACHINES:
        units = ssh(name, "ls /etc/systemd/system/m*.service")
        assert ssh(name, "grep -L LD_LIBRARY_PATH /etc/systemd/system/m*.service") == units
        # The archive's programs have no rpath, and its tasks run all the same.
        assert ssh(name, "readlink /opt/mesos/lib").endswith("/baremetal-gpu-lib\n")
        assert "=> /opt/mesos/lib/libmesos.so.0\n" in ssh(name, "sudo ldconfig -p | grep libmesos.so.0")
        assert ssh(name, "ls /usr/lib/*/sasl2/libcrammd5.so").strip()
        # The master's user could otherwise put another directory in the place of the agent's.
        assert ssh(name, "stat -c '%U:%G %a' /var/lib/mesos") == "root:root 755\n"


def test_a_run_with_an_agent_that_no_master_takes_is_not_green(site: Site) -> None:
    """Marked gone it ends with 0 whenever it is started."""
    leader, agent = site.leaders()[0], site.agents()[BARE]["id"]
    call = {"type": "MARK_AGENT_GONE", "mark_agent_gone": {"agent_id": {"value": agent}}}
    site.ask(leader, 5050, "/api/v1", "operator", call)
    until(lambda: BARE not in site.agents())
    play = site.run("--tags mesos_agent", limit=BARE, mesos_agent_ready_timeout=15)
    assert "the agent does not do its work" in " ".join(play.failures[BARE])
    assert f"ended by itself with 0 and kept its id {agent}" in " ".join(play.failures[BARE])
    ssh(BARE, "sudo rm /var/lib/mesos/agent/meta/slaves/latest")
    play = site.run("--tags mesos_agent", limit=BARE)
    assert play.rc == 0, play.tail()
    assert site.agents()[BARE]["id"] != agent


def test_marathon_leads_and_knows_of_gpus(site: Site) -> None:
    told = site.ask(GPUS, 8080, "/v2/info", "http:operator")
    assert "gpu_resources" in told["marathon_config"]["features"]
    leaders = {site.ask(name, 8080, "/v2/leader", "http:operator")["leader"] for name in MARATHONS}
    assert len(leaders) == 1
    assert leaders <= {f"{site.addresses[name]}:8080" for name in MARATHONS}


def deploy(site: Site, app: dict[str, Any]) -> Play:
    """An app by the module, as a playbook of a site has it."""
    task = {
        "baremetal.gpu.marathon_app": {
            "urls": [f"http://{site.addresses[name]}:8080" for name in MARATHONS],
            "user": "operator",
            "password": site.secret("http:operator"),
            "app": app,
            "timeout": 90,
        }
    }
    playbook = site.base / "app.yml"
    playbook.write_text(json.dumps([{"hosts": BARE, "gather_facts": False, "tasks": [task]}]))
    return run_playbook(playbook, limit=BARE)


def test_an_app_with_a_gpu_runs_where_gpus_are_and_one_with_docker_is_refused(site: Site) -> None:
    app = {
        "id": "/smoke",
        "cmd": "sleep 3601",
        "cpus": 0.1,
        "mem": 32,
        "gpus": 1,
        "container": {"type": "MESOS"},
        "constraints": [["gpu_model", "IS", "a100-sxm4-40gb"]],
    }
    play = deploy(site, {**app, "container": {"type": "DOCKER", "docker": {"image": "x"}}})
    assert "gpus" in " ".join(play.failures[BARE])
    assert site.ask(GPUS, 8080, "/v2/apps", "http:operator")["apps"] == []
    play = deploy(site, app)
    assert play.rc == 0, play.tail()
    assert ssh(GPUS, "pgrep -f '^sleep 3601'").strip()
    assert deploy(site, app).changed_tasks == {}
    assert deploy(site, {**app, "instances": 0}).rc == 0


def test_who_has_no_secret_can_change_nothing(site: Site) -> None:
    call = {"type": "DRAIN_AGENT", "drain_agent": {"agent_id": {"value": "x"}}}
    assert site.ask(site.leaders()[0], 5050, "/api/v1", body=call) == {"status": 401}
    assert site.ask(site.leaders()[0], 5050, "/api/v1", "marathon", body=call) == {"status": 403}
    assert site.ask(GPUS, 8080, "/v2/apps") == {"status": 401}


def test_a_second_run_changes_nothing_and_restarts_nothing(site: Site) -> None:
    before = processes(), files()
    play = site.run(whole=True)
    assert play.rc == 0, play.tail()
    assert play.changed_tasks == {}
    assert (processes(), files()) == before


def test_no_secret_can_be_read_by_others(site: Site) -> None:
    secrets = list(json.loads(site.secrets.read_text()).values())
    assert len(secrets) == 4
    secrets += site.passwords.values()
    play = site.run("-vvv --diff")
    assert play.changed_tasks == {}, play.tail()
    assert not [secret for secret in secrets if secret in play.stdout]
    words = " ".join(f"-e {secret}" for secret in secrets)
    for name in MACHINES:
        assert (
            ssh(name, f"grep -rlF {words} /etc /var/log /opt/mesos /opt/marathon /tmp /run 2>/dev/null || true") == ""
        )
        assert ssh(name, f"sudo journalctl --no-pager | grep -F {words} | grep -v COMMAND= || true") == ""
        assert ssh(name, f"ps -eo args | grep -v grep | grep -F {words} || true") == ""
        listing = ssh(name, f"sudo grep -rlF {words} {CONFIG} | xargs sudo stat -c '%a %n'")
        assert {line.split()[0] for line in listing.splitlines()} == {"600"}
    assert oct(site.secrets.stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"mesos_master_flags": {"quorun": 2}}, ["has no flag quorun", "write quorum"]),
        ({"mesos_master_quorum": 3}, ["quorum 3 of 3 masters"]),
        ({"mesos_master_port": 22}, ["port 22 is held by", "sshd"]),
        ({"mesos_agent_flags": {"no_such_flag": True}}, ["has no flag no_such_flag"]),
        ({"mesos_agent_attributes": {"site": "x[1]"}}, ["attribute site: 'x[1]'"]),
        ({"mesos_agent_rack": "r2"}, ["attribute rack", "drain the agent"]),
        ({"mesos_agent_reserve": {"cpus": 10000, "mem": 0, "disk": 0}}, ["10000 are reserved"]),
        ({"marathon_flags": {"gpu_behaviour": "x"}}, ["has no flag gpu_behaviour"]),
        ({"mesos_common_sha256": "0123"}, ["mesos_common_sha256 is '0123'"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(
    site: Site, variables: dict[str, Any], words: list[str]
) -> None:
    before = processes(), files()
    play = site.run(**variables)
    assert play.rc != 0
    told = " ".join(itertools.chain.from_iterable(play.failures.values()))
    for word in words:
        assert word in told
    assert play.changed_tasks == {}
    assert (processes(), files()) == before


def test_two_masters_are_refused(site: Site) -> None:
    before = processes(), files()
    play = site.run(members={"mesos_masters": (GPUS, BARE)}, mesos_master_quorum=2)
    assert "2 masters (cpu1, gpu1) are not better than 1" in " ".join(play.failures[GPUS]) or (
        "2 masters (gpu1, cpu1) are not better than 1" in " ".join(play.failures[GPUS])
    )
    assert play.changed_tasks == {}
    assert (processes(), files()) == before


def test_secrets_that_others_could_read_are_refused(site: Site) -> None:
    site.secrets.chmod(0o644)
    try:
        play = site.run()
    finally:
        site.secrets.chmod(0o600)
    assert f"chmod 600 {site.secrets}" in " ".join(play.failures[GPUS])
    assert play.changed_tasks == {}


def test_a_changed_flag_rolls_one_master_at_a_time_the_leader_last(site: Site) -> None:
    before, leader = processes(), site.leaders()[0]
    agents = {name: row["id"] for name, row in site.agents().items()}
    site.converge(mesos_master_flags={"max_agent_ping_timeouts": 6})
    after = processes()
    assert all(before["mesos-master", name] != after["mesos-master", name] for name in MACHINES)
    for unit, names in (("mesos-agent", MACHINES), ("marathon", MARATHONS)):
        assert all(before[unit, name] == after[unit, name] for name in names)
    order = sorted(MACHINES, key=lambda name: moments("mesos-master", name)[1])
    assert order[-1] == leader
    for one, following in itertools.pairwise(order):
        assert moments("mesos-master", following)[0] > moments("mesos-master", one)[1]
    assert len(site.leaders()) == 1
    until(lambda: {name: row["id"] for name, row in site.agents().items()} == agents)
    site.converge()


def stayed() -> str:
    """Process of the task that the next test starts, on one of the two hosts that it may be on."""
    found = [ssh(name, "pgrep -f '^sleep 3600' || true").strip() for name in (BARE, SILENT)]
    return next(filter(None, found), "")


def test_agents_are_restarted_under_their_ids_and_their_tasks_run_on(site: Site) -> None:
    agents = {name: row["id"] for name, row in site.agents().items()}
    site.ask(GPUS, 8080, "/v2/apps", "http:operator", {"id": "/stay", "cmd": "sleep 3600", "cpus": 0.1, "mem": 32})
    task = until(stayed)
    before = processes()
    site.converge(mesos_agent_attributes={"zone": "a"})
    after = processes()
    assert all(before["mesos-agent", name] != after["mesos-agent", name] for name in MACHINES)
    now = site.agents()
    assert {name: row["id"] for name, row in now.items()} == agents
    assert {row["attributes"]["zone"] for row in now.values()} == {"a"}
    assert stayed() == task
    site.settings["mesos_agent_attributes"] = {"zone": "a"}


def test_an_upgrade_goes_from_masters_to_agents_to_marathon_and_tasks_run_on(site: Site) -> None:
    """And the programs come from a package now."""
    package = debian_package(Path(site.settings["mesos_common_path"]), site.base)
    site.settings.update(
        mesos_common_method="package",
        mesos_common_path=str(package),
        mesos_common_sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
    )
    agents = {name: row["id"] for name, row in site.agents().items()}
    task = stayed()
    assert task
    before = processes()
    site.converge()
    after = processes()
    assert all(before[daemon] != after[daemon] for daemon in before)
    begun = {unit: [moments(unit, name)[1] for name in names] for unit, names in UNITS.items()}
    assert max(begun["mesos-master"]) < min(begun["mesos-agent"])
    assert max(begun["mesos-agent"]) < min(begun["marathon"])
    until(lambda: {name: row["id"] for name, row in site.agents().items() if row["active"]} == agents)
    assert stayed() == task
    assert "/usr/sbin/mesos-master" in ssh(GPUS, "ps -eo args | grep mesos-master")
    assert site.run().changed_tasks == {}


def test_another_list_of_gpus_is_refused_where_the_agent_has_registered_and_taken_where_not(site: Site) -> None:
    before, agent = (processes(), files()), site.agents()[GPUS]["id"]
    play = site.run(mesos_agent_exclude_gpus=[UUIDS[0]], options="--tags mesos_agent", limit=GPUS)
    told = " ".join(play.failures[GPUS])
    assert f"its list of GPUs changes from 2 to 1, without {UUIDS[0]}" in told
    assert "remove /var/lib/mesos/agent/meta/slaves/latest" in told
    assert (processes(), files()) == before
    # The way that it names.
    call = {"agent_id": {"value": agent}, "max_grace_period": {"seconds": 1}}
    site.ask(site.leaders()[0], 5050, "/api/v1", "operator", {"type": "DRAIN_AGENT", "drain_agent": call})
    until(lambda: site.agents()[GPUS]["drain_info"]["state"] == "DRAINED")
    ssh(GPUS, "sudo systemctl stop mesos-agent && sudo rm /var/lib/mesos/agent/meta/slaves/latest")
    play = site.run(mesos_agent_exclude_gpus=[UUIDS[0]], options="--tags mesos_agent", limit=GPUS)
    assert play.rc == 0, play.tail()
    again = until(lambda: site.agents()[GPUS] if site.agents()[GPUS]["active"] else None)
    assert again["id"] != agent
    assert again["resources"]["gpus"] == 1
    assert "MESOS_NVIDIA_GPU_DEVICES=1\n" in ssh(GPUS, f"sudo cat {CONFIG}/agent.env")
    ssh(GPUS, "sudo systemctl stop mesos-agent && sudo rm /var/lib/mesos/agent/meta/slaves/latest")
    site.converge()
    until(lambda: site.agents()[GPUS]["resources"].get("gpus") == 2)


def test_a_master_that_does_not_come_back_stops_what_comes_after(site: Site) -> None:
    before = processes()
    ssh(BARE, "sudo chmod a-x /usr/sbin/mesos-master && sudo systemctl stop mesos-master")
    try:
        play = site.run(mesos_master_flags={"max_agent_ping_timeouts": 7}, mesos_master_ready_timeout=10)
    finally:
        ssh(BARE, "sudo chmod a+x /usr/sbin/mesos-master")
    assert play.rc != 0
    after = processes()
    for name in (GPUS, SILENT):
        assert before["mesos-master", name] == after["mesos-master", name]
        assert before["mesos-agent", name] == after["mesos-agent", name]
    assert site.leaders()
    assert "a restart is due and was not done" in " ".join(play.failures[GPUS] + play.failures[SILENT])
    site.converge()
    assert site.run().changed_tasks == {}


KEPT = "/etc/baremetal-gpu /var/lib/mesos /var/lib/baremetal-gpu /run /tmp"
STRANGER = "sudo setpriv --reuid 65533 --regid 65533 --clear-groups"
# What stands in every environment file that strangers may read, and what no file that they may read has.
SETTING, KEY = "LIBPROCESS_SSL_KEY_FILE=", "-BEGIN.*PRIVATE KEY"


def begin_anew(site: Site) -> str:
    """The process of the task that stays, begun again as its agent is set up now."""
    app = {"id": "/stay", "cmd": "sleep 3600", "cpus": 0.1, "mem": 32}
    for instances in (0, 1):
        play = deploy(site, {**app, "instances": instances})
        assert play.rc == 0, play.tail()
    return str(until(stayed))


def test_tls_comes_in_two_passes_and_goes_in_two_and_tasks_run_on(site: Site) -> None:
    before = processes(), files()
    play = site.run(mesos_common_tls="required")
    assert "downgrade" in " ".join(itertools.chain.from_iterable(play.failures.values()))
    # Certificates are kept on the controller, like secrets; nothing is changed on a host.
    made = {"Read or generate the certificates of the host"}
    assert set(itertools.chain.from_iterable(play.changed_tasks.values())) == made
    assert (processes(), files()) == before

    agents = {name: row["id"] for name, row in site.agents().items()}
    site.converge(mesos_common_tls="downgrade")
    # Plaintext is still answered.
    assert len(site.leaders()) == 1
    task = begin_anew(site)
    site.converge(mesos_common_tls="required")
    assert site.leaders() == []
    site.is_encrypted = True
    until(lambda: {name: row["id"] for name, row in site.agents().items() if row["active"]} == agents)
    assert stayed() == task
    assert site.run(mesos_common_tls="required").changed_tasks == {}
    for name in MACHINES:
        # grep ends with 1 where it finds nothing, and with 2 where it may not look.
        found = {word: ssh(name, f"{STRANGER} grep -rsl -e '{word}' {KEPT} || true") for word in (SETTING, KEY)}
        assert CONFIG in found[SETTING]
        assert found[KEY] == ""
    key = site.certificates / "ca-key.pem"
    assert oct(key.stat().st_mode & 0o777) == "0o600"
    task = begin_anew(site)
    assert stayed() == task

    site.converge(mesos_common_tls="downgrade")
    site.is_encrypted = False
    task = begin_anew(site)
    site.converge(mesos_common_tls="off")
    assert stayed() == task
    for name in MACHINES:
        # Here and below ls ends with 2 where there is nothing, as is wanted.
        assert ssh(name, f"ls -d {CONFIG}/tls-* 2>/dev/null || true") == ""
    assert {name: row["id"] for name, row in site.agents().items()} == agents
    assert site.run().changed_tasks == {}


def test_runs_that_are_cut_converge(site: Site, tmp_path: Path) -> None:
    """From nothing of Mesos, with ZooKeeper there."""
    absent = site.run(
        mesos_master_state="absent",
        mesos_agent_state="absent",
        marathon_state="absent",
        mesos_master_purge=list(MACHINES),
        mesos_agent_purge=list(MACHINES),
    )
    assert absent.rc == 0, absent.tail()
    for name in MACHINES:
        assert ssh(name, f"ls /var/lib/mesos/agent /var/lib/mesos/master {CONFIG}/* 2>/dev/null || true") == ""
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    cut_at = [
        run_and_cut(site.words(), chosen.randint(35 * number + 30, 45 * number + 40), chosen.uniform(0, 2))
        for number in range(CUTS)
    ]
    print(f"seed {seed}; cut at: {cut_at}")
    play = site.run()
    assert play.rc == 0, f"seed {seed}, cut at {cut_at}\n{play.tail()}"
    assert site.run().changed_tasks == {}, f"seed {seed}, cut at {cut_at}"
    assert len(site.leaders()) == 1
    assert site.agents()[GPUS]["resources"]["gpus"] == 2
    assert any(cut_at)


def test_what_is_taken_away_is_gone_but_for_what_must_not_be_lost(site: Site) -> None:
    absent = {"mesos_master_state": "absent", "mesos_agent_state": "absent", "marathon_state": "absent"}
    site.converge(**absent, mesos_agent_purge=[BARE])
    for name in MACHINES:
        assert ssh(name, f"ls {CONFIG}/* 2>/dev/null || true") == ""
        # A package of the programs stays where there was one, and its guards with it.
        left = ssh(name, r"find /etc/systemd/system -maxdepth 1 \( -name 'mesos-*' -o -name 'marathon*' \)").split()
        assert set(left) in (set(), GUARDS)
        assert ssh(name, "systemctl is-active mesos-master mesos-agent marathon || true").split() == ["inactive"] * 3
        assert ssh(name, "sudo test -e /var/lib/mesos/master/replicated_log && echo kept").strip() == "kept"
        kept = ssh(name, "sudo test -e /var/lib/mesos/agent && echo kept || true").strip()
        assert kept == ("" if name == BARE else "kept")
    assert site.run(**absent, mesos_agent_purge=[BARE]).changed_tasks == {}
