# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops user on two machines of the lab: people come, log in by SSH, leave, and nobody gets the number of another.

The tests of this file run in order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site.plays import INVENTORY, lab, run_gpuops, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SUITES = {"desk1": "trixie", "desk2": "bookworm"}


class Site:
    """The two machines as a site of their own, with its own list of users."""

    def __init__(self, base: Path) -> None:
        self.inventory, self.key = base / "site", base / "key"
        self.inventory.mkdir()
        for path in INVENTORY.iterdir():
            if path.suffix == ".py":
                (self.inventory / path.name).symlink_to(path)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        hosts = json.loads(lab("inventory"))["_meta"]["hostvars"]
        self.addresses = {name: str(hosts[name]["ansible_host"]) for name in SUITES}

    def gpuops(self, *words: str, status: int = 0) -> str:
        return run_gpuops(self.inventory, *words, status=status).stdout

    def login(self, user: str, machine: str, command: str) -> tuple[int, str]:
        options = ["-i", self.key, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        words = ["ssh", *map(str, options), f"{user}@{self.addresses[machine]}", command]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout.strip()

    def uid(self, user: str) -> set[str]:
        return {ssh(machine, f"id -u {user} 2>/dev/null || echo none").strip() for machine in SUITES}

    def changed(self) -> int:
        """How many tasks a run of the stage changes."""
        self.gpuops("up", "--tags", "users", "--limit", ",".join(SUITES))
        runs = sorted((self.inventory / ".gpuops" / "runs").iterdir())
        return int(json.loads((runs[-1] / "run.json").read_text())["changed"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab("up", *(word for name, suite in SUITES.items() for word in ("--machine", f"{name}:{suite}:no-gpu")))
    yield Site(tmp_path_factory.mktemp("users"))
    lab("down", *(word for name in SUITES for word in ("--machine", name)))


def test_a_user_is_made_on_all_machines_and_logs_in_without_a_home(site: Site) -> None:
    site.gpuops("user", "add", "alice", "--groups", "physics", "--key", f"{site.key}.pub", "--yes")
    site.gpuops("user", "add", "bob", "--key", f"{site.key}.pub", "--until", "2100-01-01", "--yes")
    assert site.uid("alice") != site.uid("bob") != {"none"}
    assert [len(site.uid(name)) for name in ("alice", "bob")] == [1, 1]
    for machine in SUITES:
        assert site.login("alice", machine, "id -un; id -Gn") == (0, "alice\nalice physics")
        assert ssh(machine, "sudo getent shadow alice").split(":")[1] == "!"
        assert "Jan 01, 2100" in ssh(machine, "sudo chage --list bob")


def test_a_second_run_changes_nothing(site: Site) -> None:
    assert site.changed() == 0


def test_a_closed_user_has_no_way_in_and_no_process(site: Site) -> None:
    number = site.uid("alice")
    for machine in SUITES:
        ssh(machine, "sudo install -d -o alice -g alice /home/alice; sudo -u alice touch ~alice/thesis")
        ssh(machine, "sudo systemd-run --quiet --uid=alice sleep 3600")
        # A key that she put there herself opens nothing either.
        ssh(machine, "sudo install -d -o alice -g alice -m 700 ~alice/.ssh")
        ssh(
            machine,
            f"echo '{site.key.with_suffix('.pub').read_text().strip()}' "
            "| sudo -u alice tee ~alice/.ssh/authorized_keys >/dev/null",
        )
    site.gpuops("user", "close", "alice", "--yes")
    for machine in SUITES:
        assert site.login("alice", machine, "true")[0] == 255
        assert ssh(machine, "pgrep -u alice || echo none").strip() == "none"
        assert ssh(machine, "ls /home/alice").strip() == "thesis"
        assert site.login("bob", machine, "true")[0] == 0
    assert site.uid("alice") == number
    assert site.changed() == 0
    site.gpuops("user", "reopen", "alice", "--yes")
    assert all(site.login("alice", machine, "true")[0] == 0 for machine in SUITES)


def test_a_removed_user_leaves_a_number_that_nobody_gets(site: Site) -> None:
    (number,) = site.uid("alice")
    site.gpuops("user", "remove", "alice", "alice", "--yes")
    assert site.uid("alice") == {"none"}
    site.gpuops("user", "add", "carol", "--yes")
    assert site.uid("carol") != {number}
    assert json.loads((site.inventory / ".users-ledger.json").read_text())["users"]["alice"] == int(number)


def test_a_machine_that_lacks_the_ledger_s_numbers_stops_all(site: Site) -> None:
    kept = site.inventory / ".users-ledger.json"
    text = kept.read_text()
    kept.unlink()
    said = site.gpuops("user", "add", "dave", "--yes", status=2)
    assert "git checkout" in said
    assert (site.uid("dave"), kept.exists()) == ({"none"}, False)
    kept.write_text(text)


def test_an_account_of_somebody_else_is_refused_before_anything_is_changed(site: Site) -> None:
    ssh("desk2", "sudo useradd --uid 2345 eve")
    before = {machine: lab("changes", machine) for machine in SUITES}
    said = site.gpuops("up", "--tags", "users", "--limit", "desk2", status=0)
    site.gpuops("user", "add", "eve", "--no-run", "--yes")
    said = site.gpuops("up", "--tags", "users", "--limit", "desk2", status=2)
    assert "desk2" in said
    assert "gpuops user change eve --uid 2345" in said
    assert {machine: lab("changes", machine) for machine in SUITES} == before
    until(lambda: site.login("bob", "desk2", "true")[0] == 0, 30, lambda: "bob cannot log in")
