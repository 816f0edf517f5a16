# SPDX-License-Identifier: GPL-3.0-or-later
"""A real ensemble on three machines: grown from one server, changed under a client that writes, broken and mended."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.zookeeper_cluster import (
    MACHINES,
    WRITER,
    address,
    cli,
    lab,
    mode,
    moments,
    scheduler,
    srvr,
    ssh,
    started,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# What an archive of zookeeper.apache.org looks like, filled with the jars of Debian's packages.
PACK = """
set -e
mkdir -p /tmp/pack/apache-zookeeper-bin/lib
cd /tmp/pack
python3 - <<'END'
import os, shutil, zipfile
manifest = zipfile.ZipFile("/usr/share/java/zookeeper.jar").read("META-INF/MANIFEST.MF").decode()
lines = manifest.replace("\\r\\n", "\\n").replace("\\n ", "").splitlines()
fields = dict(line.split(": ", 1) for line in lines if ": " in line)
# Of the jars that it names some are for other programs, and not installed.
for jar in filter(os.path.exists, [*fields["Class-Path"].split(), "/usr/share/java/slf4j-simple.jar"]):
    shutil.copy(jar, "apache-zookeeper-bin/lib/")
shutil.copy("/usr/share/java/zookeeper.jar", "apache-zookeeper-bin/lib/zookeeper-0.jar")
END
tar -czf archive.tar.gz apache-zookeeper-bin
"""

PASSWORDS = {name: secrets.token_hex(12) for name in ("mesos", "marathon", "quorum", "client")}
CHROOTS = [
    {"path": "/mesos", "user": "mesos", "password": PASSWORDS["mesos"], "everyone": "read"},
    {"path": "/marathon", "user": "marathon", "password": PASSWORDS["marathon"]},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zookeeper")


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, str]]:
    """Three bare machines of Debian 13, with their addresses."""
    lab("up", *(word for name in MACHINES for word in ("--machine", f"{name}:trixie:no-gpu")))
    yield {name: address(name) for name in MACHINES}
    lab("down", *(word for name in MACHINES for word in ("--machine", name)))


@pytest.fixture(scope="module")
def alone(machines: dict[str, str], base: Path) -> dict[str, str]:
    """One server, with something in it that must not be lost."""
    play = scheduler(base, "zk2")
    assert play.rc == 0, play.tail()
    assert mode(machines["zk2"]) == "standalone"
    assert "Created /precious" in cli("zk2", "create /precious kept")
    return machines


@pytest.fixture(scope="module")
def ensemble(alone: dict[str, str], base: Path) -> dict[str, str]:
    """It, grown to three."""
    play = scheduler(base, *MACHINES)
    assert play.rc == 0, play.tail()
    return alone


def converge(base: Path, **variables: Any) -> None:
    play = scheduler(base, *MACHINES, **variables)
    assert play.rc == 0, play.tail()


def modes(machines: dict[str, str]) -> list[str]:
    return sorted(mode(where) for where in machines.values())


def test_check_mode_on_bare_machines_changes_nothing(machines: dict[str, str], base: Path) -> None:
    play = scheduler(base, *MACHINES, options="--check --diff")
    assert play.rc == 0, play.tail()
    for name in MACHINES:
        assert play.changed(name) > 0
        assert "zoo.cfg" in " ".join(play.drifts[name, "zookeeper"])
        assert ssh(name, "ls -d /etc/zookeeper /var/lib/zookeeper 2>/dev/null || true") == ""


def test_one_server_grows_to_three_and_keeps_its_id_and_its_data(ensemble: dict[str, str]) -> None:
    assert modes(ensemble) == ["follower", "follower", "leader"]
    ids = {name: ssh(name, "sudo cat /var/lib/zookeeper/myid").strip() for name in MACHINES}
    assert ids == {"zk2": "1", "zk1": "2", "zk3": "3"}
    for name in MACHINES:
        assert "kept" in cli(name, "get /precious")


def test_a_second_run_changes_nothing_whatever_the_order_of_the_inventory(ensemble: dict[str, str], base: Path) -> None:
    before = started()
    play = scheduler(base, "zk3", "zk1", "zk2")
    assert play.rc == 0, play.tail()
    assert play.changed_tasks == {}
    assert started() == before


def test_nodes_belong_to_their_users_and_no_secret_is_readable(ensemble: dict[str, str], base: Path) -> None:
    converge(
        base, zookeeper_chroots=CHROOTS, zookeeper_users={"app": PASSWORDS["client"]}, zookeeper_client_auth="offered"
    )
    play = scheduler(
        base,
        *MACHINES,
        zookeeper_chroots=CHROOTS,
        zookeeper_users={"app": PASSWORDS["client"]},
        zookeeper_client_auth="offered",
        options="-vvv --diff",
    )
    assert play.changed_tasks == {}, play.tail()
    assert "NoAuth" in cli("zk1", "create /marathon/x y") or "permission" in cli("zk1", "create /marathon/x y")
    assert "Created /marathon/x" in cli(
        "zk1", f"addauth digest marathon:{PASSWORDS['marathon']}", "create /marathon/x y"
    )
    assert re.search(r"^\[\]$", cli("zk3", "ls /mesos"), re.MULTILINE)
    for name in MACHINES:
        assert ssh(name, "stat -c '%a %U' /etc/zookeeper/ensemble/jaas.conf").strip() == "600 zookeeper"
        words = " ".join(f"-e {password}" for password in PASSWORDS.values())
        seen = ssh(name, f"grep -rlF {words} /etc /var/log /var/lib/zookeeper /tmp /run 2>/dev/null || true")
        assert seen == ""
        assert ssh(name, f"sudo journalctl --no-pager | grep -F {words} || true") == ""
        assert ssh(name, f"ps -eo args | grep -v grep | grep -F {words} || true") == ""
    assert not [password for password in PASSWORDS.values() if password in play.stdout]


def test_a_change_rolls_one_server_at_a_time_under_a_client_that_writes(ensemble: dict[str, str], base: Path) -> None:
    cli("zk1", "create /written")
    script = WRITER.replace("SERVERS", ",".join(f"{where}:2181" for where in ensemble.values()))
    ssh("zk1", f"cat >/tmp/writer <<'END_OF_SCRIPT'\n{script}END_OF_SCRIPT")
    ssh("zk1", "sudo systemd-run --unit=writer bash /tmp/writer")
    wait_for("grep -q 'Created /written' /tmp/written")
    leader = next(name for name, where in ensemble.items() if mode(where) == "leader")
    before = started()
    converge(base, zookeeper_tick_time=2500)
    after = started()
    assert all(before[name] != after[name] for name in MACHINES)
    assert modes(ensemble) == ["follower", "follower", "leader"]
    # None was stopped before the one before it had started, and the leader was last.
    order = sorted(MACHINES, key=lambda name: moments(name)[1])
    assert order[-1] == leader
    for one, following in itertools.pairwise(order):
        assert moments(following)[0] > moments(one)[1]
    last = len(written())
    wait_for(f"test $(grep -c '^Created /written' /tmp/written) -gt {last}")
    ssh("zk1", "touch /tmp/stop-writing")
    wait_for("test -e /tmp/writing-ended")
    acknowledged = set(written())
    kept = set(re.findall(r"n\d{10}", cli("zk2", "ls /written").rpartition("[")[2]))
    assert len(acknowledged) > 20
    assert acknowledged <= kept
    assert not any(scheduler(base, *MACHINES, zookeeper_tick_time=2500).changed_tasks.values())


def wait_for(command: str) -> None:
    deadline = time.monotonic() + 120
    while ssh("zk1", f'sudo sh -c "{command}" && echo yes || true').strip() != "yes":
        assert time.monotonic() < deadline, ssh("zk1", "tail -20 /tmp/written")
        time.sleep(0.5)


def written() -> list[str]:
    """What the client was told to be written."""
    return re.findall(r"^Created /written/(n\d{10})$", ssh("zk1", "sudo cat /tmp/written"), re.MULTILINE)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"zookeeper_id": 7}, ["have the same id 7", "an id never changes"]),
        ({"zookeeper_data_dir": "/srv/other"}, ["dataDir=/var/lib/zookeeper"]),
        ({"zookeeper_quorum_auth": "required", "zookeeper_quorum_password": PASSWORDS["quorum"]}, ["off → offered"]),
        ({"zookeeper_heap_mib": 10**6, "zookeeper_options": {"dataDir": "/x"}}, ["zookeeper_heap_mib", "dataDir"]),
        ({"zookeeper_client_port": 22}, ["port 22 is held by", "sshd"]),
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(
    ensemble: dict[str, str], base: Path, variables: dict[str, Any], words: list[str]
) -> None:
    before = started()
    play = scheduler(base, *MACHINES, **variables)
    assert play.changed_tasks == {}
    for name in MACHINES:
        told = " ".join(play.failures[name])
        assert told.startswith(f"{name}: ")
        for word in words:
            assert word in told
    assert started() == before


def test_a_group_that_lost_a_host_is_refused(ensemble: dict[str, str], base: Path) -> None:
    play = scheduler(base, "zk1", "zk2")
    assert play.changed_tasks == {}
    told = " ".join(play.failures["zk1"])
    assert "has 2 hosts" in told
    assert f"3 ({ensemble['zk3']})" in told


def test_a_server_that_does_not_come_back_stops_the_others_from_being_restarted(
    ensemble: dict[str, str], base: Path
) -> None:
    before = started()
    play = scheduler(base, *MACHINES, zookeeper_jvm_flags=["-XX:NoSuchFlag"], zookeeper_ready_timeout=15)
    after = started()
    touched = [name for name in MACHINES if before[name] != after[name]]
    assert len(touched) == 1
    assert "Unrecognized VM option" in " ".join(play.failures[touched[0]])
    for name in set(MACHINES) - set(touched):
        assert "a restart is due and was not done" in " ".join(play.failures[name])
    assert "kept" in cli(next(name for name in MACHINES if name not in touched), "get /precious")
    converge(base)
    assert modes(ensemble) == ["follower", "follower", "leader"]
    assert is_converged(base)


def is_converged(base: Path) -> bool:
    return not any(scheduler(base, *MACHINES).changed_tasks.values())


def test_a_server_that_lost_its_data_comes_back_with_its_id(ensemble: dict[str, str], base: Path) -> None:
    ssh("zk3", "sudo systemctl stop zookeeper && sudo rm -rf /var/lib/zookeeper /etc/zookeeper/ensemble")
    converge(base)
    assert ssh("zk3", "sudo cat /var/lib/zookeeper/myid").strip() == "3"
    assert "kept" in cli("zk3", "get /precious")


def test_two_servers_that_lost_their_data_are_refused(ensemble: dict[str, str], base: Path) -> None:
    for name in ("zk1", "zk3"):
        ssh(name, "sudo systemctl stop zookeeper && sudo mv /var/lib/zookeeper /var/lib/moved")
    play = scheduler(base, *MACHINES)
    for name in MACHINES:
        assert "zk1 and zk3 lost the data" in " ".join(play.failures[name])
    assert play.changed_tasks == {}
    for name in ("zk1", "zk3"):
        ssh(name, "sudo mv /var/lib/moved /var/lib/zookeeper")
    converge(base)
    assert modes(ensemble) == ["follower", "follower", "leader"]


def test_servers_learn_to_know_each_other_step_by_step(ensemble: dict[str, str], base: Path) -> None:
    for step in ("offered", "sent", "required"):
        converge(base, zookeeper_quorum_auth=step, zookeeper_quorum_password=PASSWORDS["quorum"])
        assert modes(ensemble) == ["follower", "follower", "leader"]
    # One that does not know the password stays outside.
    ssh("zk1", 'sudo sed -i s/password=.*/password=\\"wrong-password\\"\\;/ /etc/zookeeper/ensemble/jaas.conf')
    ssh("zk1", "sudo systemctl restart zookeeper")
    wait_for("journalctl -q -u zookeeper | grep -q 'Authentication failed against server'")
    assert mode(ensemble["zk1"]) == ""
    converge(base, zookeeper_quorum_auth="required", zookeeper_quorum_password=PASSWORDS["quorum"])
    assert modes(ensemble) == ["follower", "follower", "leader"]


def test_a_server_that_is_taken_away_leaves_its_data_unless_it_is_named(ensemble: dict[str, str], base: Path) -> None:
    converge(base, zookeeper_state="absent", zookeeper_purge=["zk3"])
    assert [srvr(where) for where in ensemble.values()] == ["", "", ""]
    there = {name: ssh(name, "sudo test -e /var/lib/zookeeper/version-2 && echo yes || true") for name in MACHINES}
    assert {name: found.strip() for name, found in there.items()} == {"zk1": "yes", "zk2": "yes", "zk3": ""}
    assert not any(scheduler(base, *MACHINES, zookeeper_state="absent", zookeeper_purge=["zk3"]).changed_tasks.values())


def test_an_archive_is_taken_only_with_its_checksum_and_then_serves(ensemble: dict[str, str], base: Path) -> None:
    ssh("zk1", f"cat >/tmp/pack.sh <<'END_OF_SCRIPT'\n{PACK}END_OF_SCRIPT")
    ssh("zk1", "sh /tmp/pack.sh")
    archive = base / "archive.tar.gz"
    archive.write_bytes(base64.b64decode(ssh("zk1", "base64 /tmp/pack/archive.tar.gz")))
    given = {"zookeeper_method": "archive", "zookeeper_archive_path": str(archive)}
    refused = scheduler(base, "zk3", **given, zookeeper_archive_sha256="0" * 64)
    assert "SHA-256 did not match" in " ".join(refused.failures["zk3"])
    assert srvr(ensemble["zk3"]) == ""
    given["zookeeper_archive_sha256"] = hashlib.sha256(archive.read_bytes()).hexdigest()
    play = scheduler(base, "zk3", **given)
    assert play.rc == 0, play.tail()
    assert mode(ensemble["zk3"]) == "standalone"
    assert "/opt/zookeeper/" in ssh("zk3", "ps -o args= -C java")
    assert scheduler(base, "zk3", **given).changed_tasks == {}
