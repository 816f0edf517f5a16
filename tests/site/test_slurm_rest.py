# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmrestd on the lab's machines: real daemons, tokens of slurmctld, and jobs that come through the REST API.

The tests of this file run in order. By themselves they make the cluster; after those of test_slurm.py they add
slurmrestd to theirs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import Play, lab, services, ssh, until
from tests.site.test_slurm import CONTROLLER, MACHINES, NODE
from tests.site.test_slurm_accounts import Site

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ALICE, UID = "alice", 2101
ADDRESS = "127.0.0.1:6820"
API = "slurm/v0.0.42"
REQUEST = """
import json, sys, urllib.error, urllib.request
url, token, user, job = json.loads(sys.argv[1])
headers = {'X-SLURM-USER-NAME': user, 'X-SLURM-USER-TOKEN': token, 'Content-Type': 'application/json'}
made = urllib.request.Request(url, json.dumps(job).encode() if job else None, headers)
try:
    with urllib.request.urlopen(made) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as refused:
    print(json.dumps([refused.code, refused.read().decode()]))
"""
HEAD_DAEMONS = ("slurmctld", "slurmdbd")


class RestSite(Site):
    """The cluster with slurmrestd beside slurmctld.

    :ivar shown: what its runs have printed.
    """

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        groups = json.loads((base / "slurm.yml").read_text())
        (base / "slurm.yml").write_text(json.dumps({**groups, "slurm_rests": {"hosts": {CONTROLLER: {}}}}))
        self.shown = ""

    def run(self, options: str = "--diff", **variables: Any) -> Play:
        play = super().run(options, **variables)
        self.shown += play.stdout
        return play

    def forget_key(self) -> None:
        path = Path(self._variables["slurm_common_secrets_path"])
        kept = json.loads(path.read_text())
        assert len(kept.pop("jwt")) >= 32
        path.write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def announced(tmp_path_factory: pytest.TempPathFactory) -> tuple[RestSite, Play]:
    for machine in MACHINES:
        ssh(machine, f"id {ALICE} >/dev/null 2>&1 || sudo useradd --uid {UID} --create-home {ALICE}")
    site = RestSite(tmp_path_factory.mktemp("rest"))
    return site, site.announce()


@pytest.fixture(scope="module")
def site(announced: tuple[RestSite, Play]) -> Iterator[RestSite]:
    announced[0].converge()
    yield announced[0]
    # The files after this one have a cluster without it.
    ssh(CONTROLLER, "sudo systemctl disable --now slurmrestd")


def token() -> str:
    return ssh(CONTROLLER, f"sudo scontrol token username={ALICE}").strip().removeprefix("SLURM_JWT=")


def request(path: str, with_token: str, user: str = ALICE, job: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and answer of a request that is made on the host of slurmrestd."""
    words = json.dumps([f"http://{ADDRESS}/{API}/{path}", with_token, user, job])
    status, answer = json.loads(ssh(CONTROLLER, f"python3 -c {shlex.quote(REQUEST)} {shlex.quote(words)}"))
    try:
        return status, json.loads(answer)
    except ValueError:
        return status, answer


def keys() -> list[str]:
    return [ssh(CONTROLLER, f"sudo cat /etc/slurm/jwt-{daemon}.key") for daemon in ("slurmctld", "slurmdbd")]


def pids() -> list[str]:
    return [ssh(CONTROLLER, f"systemctl show -P MainPID {daemon}").strip() for daemon in HEAD_DAEMONS]


def test_check_mode_tells_of_slurmrestd_and_the_tokens(announced: tuple[RestSite, Play]) -> None:
    play = announced[1]
    assert play.rc == 0, play.tail()
    assert "slurmrestd" in " ".join(play.drifts[CONTROLLER, "slurmrestd"])
    assert "AuthAltTypes=auth/jwt" in play.stdout
    assert "jwt-slurmctld.key" in " ".join(play.drifts[CONTROLLER, "slurmctld"])


def test_the_key_is_one_for_both_daemons_and_only_slurm_reads_it(site: RestSite) -> None:
    ofctld, ofdbd = keys()
    assert ofctld == ofdbd
    assert ofctld not in site.shown
    assert ssh(CONTROLLER, "sudo stat -c '%a %U' /etc/slurm/jwt-*.key").split() == ["400", "slurm"] * 2
    assert ssh(NODE, "ls /etc/slurm/jwt-* 2>/dev/null || true") == ""


def test_a_token_of_a_user_gets_an_answer_of_slurmctld(site: RestSite) -> None:
    status, answer = request("ping", token())
    assert status == 200, answer
    assert [row["pinged"] for row in answer["pings"]] == ["UP"]


def test_a_job_of_the_api_runs_as_its_user(site: RestSite) -> None:
    job = {
        "name": "api",
        "script": "#!/bin/sh\nid -un\n",
        "current_working_directory": f"/home/{ALICE}",
        "standard_output": f"/home/{ALICE}/api.out",
        "environment": ["PATH=/usr/bin:/bin"],
    }
    status, answer = request("job/submit", token(), job={"job": job})
    assert status == 200, answer
    number = answer["job_id"]
    show = f"scontrol show job {number}"
    until(lambda: "JobState=COMPLETED" in ssh(CONTROLLER, show), 60, lambda: ssh(CONTROLLER, show))
    assert f"UserId={ALICE}({UID})" in ssh(CONTROLLER, show)
    assert ssh(NODE, f"sudo cat /home/{ALICE}/api.out").strip() == ALICE


@pytest.mark.parametrize("of", ["nobody", "slurm", "root"])
def test_a_token_is_good_for_its_own_user_alone(site: RestSite, of: str) -> None:
    status, answer = request("jobs", token(), user=of)
    assert status != 200, answer


def test_no_token_and_a_wrong_one_are_refused(site: RestSite) -> None:
    head, body, signature = token().split(".")
    for wrong in ("", f"{head}.{body}.{signature[::-1]}", f"{head}.{body}."):
        status, answer = request("jobs", wrong)
        assert status != 200, (wrong, answer)


def listening() -> list[str]:
    """The addresses of slurmrestd."""
    return [line.split()[3] for line in ssh(CONTROLLER, "sudo ss -Hltnp").splitlines() if "slurmrestd" in line]


def test_other_machines_cannot_connect(site: RestSite) -> None:
    assert listening() == [ADDRESS]
    address = json.loads(lab("inventory"))["_meta"]["hostvars"][CONTROLLER]["ansible_host"]
    connect = "python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)' 2>&1"
    assert "Connection refused" in ssh(NODE, f"{connect} {address} 6820", check=False)
    # That of slurmctld on the same address is open.
    assert ssh(NODE, f"{connect} {address} 6817") == ""


def test_slurmrestd_is_of_an_account_without_rights(site: RestSite) -> None:
    pid = ssh(CONTROLLER, "systemctl show -P MainPID slurmrestd").strip()
    status = ssh(CONTROLLER, f"cat /proc/{pid}/status")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert set(fields["Uid"].split()) & {"0", "64030"} == set()
    assert set(fields["Gid"].split()) & {"0", "64030"} == set()
    assert (fields["CapBnd"].strip(), fields["CapEff"].strip()) == ("0" * 16, "0" * 16)
    assert fields["NoNewPrivs"].strip() == "1"


def test_a_second_run_changes_nothing_and_restarts_no_daemon(site: RestSite) -> None:
    before = {machine: services(machine) for machine in MACHINES}
    assert "slurmrestd.service" in before[CONTROLLER]
    assert site.converge().changed_tasks == {}
    assert {machine: services(machine) for machine in MACHINES} == before


def test_an_address_that_others_reach_is_refused(site: RestSite) -> None:
    before = services(CONTROLLER)
    play = site.run(slurm_rest_listen="0.0.0.0:6820")
    (message,) = play.failures[CONTROLLER]
    assert "slurmrestd does not encrypt" in message
    assert "To do: set 127.0.0.1:6820" in message
    assert services(CONTROLLER) == before


def test_a_new_key_makes_the_old_tokens_invalid_and_jobs_go_on(site: RestSite) -> None:
    number = ssh(CONTROLLER, "sbatch --parsable --output=/dev/null --wrap 'sleep 600'").strip()
    state = f"squeue -h -j {number} -o %T"
    until(lambda: ssh(CONTROLLER, state).strip() == "RUNNING", 60, lambda: ssh(CONTROLLER, "squeue"))
    old_token, old_keys, old_pids = token(), keys(), pids()
    site.forget_key()
    site.converge()
    assert set(keys()) & set(old_keys) == set()
    assert [one for one, other in zip(pids(), old_pids, strict=True) if one == other] == []
    assert request("jobs", old_token)[0] != 200
    assert request("jobs", token())[0] == 200
    assert ssh(CONTROLLER, state).strip() == "RUNNING"
    ssh(CONTROLLER, f"scancel {number}")


def test_slurmrestd_listens_on_a_socket_instead(site: RestSite) -> None:
    # The run itself asks slurmctld through it.
    site.converge(slurm_rest_listen="unix:/run/slurmrestd/api.socket")
    assert listening() == []
    assert "api.socket" in ssh(CONTROLLER, "sudo ss -Hlxp | grep slurmrestd")
