# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmrestd, and the tokens that slurmctld and slurmdbd accept with it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import (
    slurm_common,
    slurm_controller,
    slurm_database,
    slurm_rest,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from tests.unit.plugins.plugin_utils.slurm.test_cluster import PARAMS, host, site

KEY = "0123456789abcdef" * 3
DROP_IN = "/etc/systemd/system/slurmrestd.service.d/baremetal-gpu.conf"


def common(*rests: str, **options: str) -> Plan:
    """The plan of slurm_common for a site with these hosts of slurmrestd."""
    groups, hosts = site(rest1=host("rest1", "10.0.0.9"))
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    params = {**PARAMS, "options": options}
    return slurm_common.desired(params, {}, {"groups": {**groups, "slurm_rests": rests}, "hostvars": hostvars})


def rest(listen: str = "127.0.0.1:6820") -> Plan:
    return slurm_rest.desired({"listen": listen}, {}, {"cluster": common("rest1").as_dict()})


def controller(*rests: str, key: str = KEY) -> Plan:
    return slurm_controller.desired({"jwt_key": key}, {}, {"cluster": common(*rests).as_dict(), "nodes": {}, "has": []})


def database(*rests: str, key: str = KEY) -> Plan:
    return slurm_database.desired({"options": {}, "jwt_key": key}, {}, {"rests": rests})


def files(plan: Plan) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in plan.desired["files"]}


def packages(plan: Plan) -> set[str]:
    return {row["name"] for row in plan.desired["packages"]}


def drop_in(plan: Plan) -> list[str]:
    return str(files(plan)[DROP_IN]["content"]).splitlines()


def test_slurmctld_accepts_tokens_only_with_a_host_of_slurmrestd() -> None:
    lines = common("rest1").parts["slurm_conf"].splitlines()
    assert "AuthType=auth/munge" in lines
    assert "AuthAltTypes=auth/jwt" in lines
    assert "AuthAltParameters=jwt_key=/etc/slurm/jwt-slurmctld.key,max_token_lifespan=86400" in lines
    assert "AuthAlt" not in common().parts["slurm_conf"]


def test_the_operator_may_allow_tokens_another_life() -> None:
    parameters = "jwt_key=/etc/slurm/jwt-slurmctld.key,max_token_lifespan=600"
    text = common("rest1", AuthAltParameters=parameters).parts["slurm_conf"]
    assert f"AuthAltParameters={parameters}\n" in text
    assert text.count("AuthAltParameters") == 1


@pytest.mark.parametrize(("of", "daemon"), [(controller, "slurmctld"), (database, "slurmdbd")])
def test_the_key_is_a_secret_file_of_slurm_and_a_new_one_restarts_the_daemon(of: Any, daemon: str) -> None:
    plan = of("rest1")
    row = files(plan)[f"/etc/slurm/jwt-{daemon}.key"]
    assert (row["content"], row["mode"], row["owner"], row["sensitive"]) == (KEY, "0400", "slurm", True)
    assert row["path"] in plan.desired["units"][0]["restart_on"]
    assert [path for path, other in files(plan).items() if KEY in str(other.get("content"))] == [row["path"]]
    assert "slurm-wlm-jwt-plugin" in packages(plan)


@pytest.mark.parametrize("of", [controller, database])
def test_without_slurmrestd_there_is_no_key(of: Any) -> None:
    plan = of(key="")
    assert plan.problems == ()
    assert not [path for path in files(plan) if "jwt" in path]
    assert "slurm-wlm-jwt-plugin" not in packages(plan)
    assert "AuthAlt" not in str(plan.desired)


@pytest.mark.parametrize("of", [controller, database])
def test_a_short_key_is_refused_and_not_told(of: Any) -> None:
    (problem,) = of("rest1", key="hunter2hunter2").problems
    assert problem.code == "short_key"
    assert "14 characters" in problem.cause
    assert "hunter2" not in str(problem.as_dict())
    assert of("rest1", key="hunter2hunter2").desired == {}


def test_a_host_of_slurmrestd_is_checked_like_the_others() -> None:
    groups, hosts = site(rest1=host("rest1", "10.0.0.9", candidate="22.05.8-4+deb12u3"))
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    peers = {"groups": {**groups, "slurm_rests": ["rest1"]}, "hostvars": hostvars}
    (problem,) = slurm_common.desired(PARAMS, {}, peers).problems
    assert problem.code == "releases"
    assert "22.05 on rest1" in problem.cause


def test_slurmrestd_listens_where_it_is_told_and_nowhere_else() -> None:
    lines = drop_in(rest())
    # The line of Debian's unit, which listens on all addresses, goes first.
    assert lines[lines.index("ExecStart=") + 1] == "ExecStart=/usr/sbin/slurmrestd -a rest_auth/jwt 127.0.0.1:6820"
    # What an administrator or the package writes into it could name further addresses.
    assert "EnvironmentFile=" in lines
    assert files(rest())[DROP_IN]["early"]


def test_slurmrestd_is_neither_root_nor_slurm_and_cannot_use_munge() -> None:
    lines = drop_in(rest())
    assert {"DynamicUser=yes", "User=slurmrestd", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(lines)
    assert "CapabilityBoundingSet=" in lines
    assert "InaccessiblePaths=-/etc/munge -/run/munge" in lines


def test_the_host_of_slurmrestd_has_the_configuration_and_not_the_key() -> None:
    plan = rest()
    assert "SlurmctldHost=ctl(10.0.0.1)\n" in files(plan)["/etc/slurm/slurmrestd.conf"]["content"]
    assert not [path for path in files(plan) if path.endswith(".key")]
    assert set(plan.desired["units"][0]["restart_on"]) >= {"/etc/slurm/slurmrestd.conf", DROP_IN}


def test_a_socket_is_in_a_directory_that_systemd_makes() -> None:
    plan = rest("unix:/run/slurmrestd/api.socket")
    lines = drop_in(plan)
    assert "ExecStart=/usr/sbin/slurmrestd -a rest_auth/jwt unix:/run/slurmrestd/api.socket" in lines
    assert "RuntimeDirectory=slurmrestd" in lines
    assert plan.parts["socket"] == "/run/slurmrestd/api.socket"


@pytest.mark.parametrize("listen", ["127.0.0.1:6820", "127.0.0.2:1024", "127.0.0.1:65535"])
def test_addresses_of_the_host_alone_are_taken(listen: str) -> None:
    assert rest(listen).problems == ()
    assert rest(listen).parts == {"url": f"http://{listen}", "socket": ""}


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "0.0.0.0:6820",
        "10.0.0.9:6820",
        "[::]:6820",
        "[::1]:6820",
        ":6820",
        "localhost:6820",
        "127.0.0.1",
        "127.0.0.1:1023",
        "127.0.0.1:65536",
        "127.0.0.999:6820",
        "127.0.0.1:6820 0.0.0.0:6820",
        "127.0.0.1:6820\nUser=root",
        "unix:/run/slurmrestd/../munge/munge.socket.2",
        "unix:/run/slurmrestd/a b",
        "unix:/tmp/api.socket",
    ],
)
def test_other_addresses_are_refused_with_what_to_set(listen: str) -> None:
    (problem,) = rest(listen).problems
    assert (problem.code, problem.subject, problem.evidence) == ("not_loopback", "slurm_rest_listen", listen)
    assert "127.0.0.1:6820" in problem.remedy
    assert rest(listen).desired == {}
