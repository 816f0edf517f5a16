# SPDX-License-Identifier: GPL-3.0-or-later
"""Ids that last, and ensembles that are refused. All hosts here are made up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.plugin_utils import zookeeper_ensemble

PARAMS: dict[str, Any] = {
    "id": 0,
    "removed_ids": [],
    "os_family": "Debian",
    "method": "package",
    "archive_url": "",
    "archive_path": "",
    "archive_sha256": "",
    "client_port": 2181,
    "peer_port": 2888,
    "election_port": 3888,
    "heap_mib": 512,
    "data_dir": "/var/lib/zookeeper",
    "log_dir": "",
    "tick_time": 2000,
    "init_limit": 10,
    "sync_limit": 5,
    "snapshots_kept": 5,
    "purge_interval": 24,
    "words": ["srvr", "mntr"],
    "options": {},
    "client_auth": "off",
    "user_names": [],
    "weak": [],
    "chroots": {},
    "quorum_auth": "off",
    "has_quorum_password": False,
}


class Site:
    """Hosts of a group as the role finds them: bare, until they are given something."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.variables: dict[str, dict[str, Any]] = {}
        for name in names:
            address = f"192.0.2.{10 + int(name[2:])}"
            self.variables[name] = {
                "ansible_host": address,
                "zookeeper_params": {**PARAMS, "address": address, "size": len(names)},
                "zookeeper_node": {
                    "id": None,
                    "has_data": False,
                    "data_dir": "/var/lib/zookeeper",
                    "current": {},
                    "resolved": {},
                    "addresses": ["127.0.0.1", address],
                    "held_ports": {},
                    "memory_mib": 4096,
                },
            }
        for name in names:
            self.node(name)["resolved"] = {self.address(other): [self.address(other)] for other in names}

    def address(self, name: str) -> str:
        return str(self.variables[name]["ansible_host"])

    def node(self, name: str) -> dict[str, Any]:
        return dict.__getitem__(self.variables[name], "zookeeper_node")

    def params(self, name: str) -> dict[str, Any]:
        return dict.__getitem__(self.variables[name], "zookeeper_params")

    def ran(self, **ids: int) -> Site:
        """These were an ensemble with these ids."""
        servers = {str(number): self.address(name) for name, number in ids.items()} if len(ids) > 1 else {}
        for name, number in ids.items():
            self.node(name).update(
                id=number,
                has_data=True,
                current={"data_dir": "/var/lib/zookeeper", "log_dir": "", "servers": servers, "quorum_auth": "off"},
            )
        return self

    def unseen(self, name: str) -> None:
        del self.variables[name]["zookeeper_node"], self.variables[name]["zookeeper_params"]

    def ensemble(self, names: list[str] | None = None) -> dict[str, Any]:
        return zookeeper_ensemble.ensemble(names or self.names, self.variables)

    def problems(self, name: str) -> str:
        return "; ".join(map(str, self.ensemble()["problems"][name]))

    def is_refused_everywhere(self, *words: str) -> None:
        for problems in self.ensemble()["problems"].values():
            for word in words:
                assert word in "; ".join(map(str, problems))


def three() -> Site:
    return Site("zk1", "zk2", "zk3")


def test_bare_hosts_get_ids_in_the_order_of_their_names():
    plan = three().ensemble(["zk3", "zk1", "zk2"])
    assert plan["ids"] == {"zk1": 1, "zk2": 2, "zk3": 3}
    assert plan["problems"] == {"zk1": [], "zk2": [], "zk3": []}
    assert plan["joining"] == []
    assert {row["id"]: row["host"] for row in plan["servers"]} == {1: "192.0.2.11", 2: "192.0.2.12", 3: "192.0.2.13"}


def test_ids_stay_when_hosts_come_before_the_others():
    site = Site("zk0", "zk1", "zk2", "zk3", "zk4").ran(zk1=1, zk2=2, zk3=3)
    plan = site.ensemble(["zk4", "zk3", "zk0", "zk2", "zk1"])
    assert plan["ids"] == {"zk1": 1, "zk2": 2, "zk3": 3, "zk0": 4, "zk4": 5}
    assert sorted(plan["joining"]) == ["zk0", "zk4"]
    assert not any(plan["problems"].values())


def test_an_id_that_was_chosen_before_the_run_was_cut_is_chosen_again():
    site = three()
    # One host has its configuration, the others have nothing yet.
    site.node("zk3").update(
        id=3,
        current={
            "data_dir": "/var/lib/zookeeper",
            "log_dir": "",
            "servers": {"7": "192.0.2.11", "8": "192.0.2.12", "3": "192.0.2.13"},
            "quorum_auth": "off",
        },
    )
    assert site.ensemble()["ids"] == {"zk1": 7, "zk2": 8, "zk3": 3}


def test_the_id_of_a_host_that_cannot_be_reached_is_known_from_the_others():
    site = three().ran(zk1=4, zk2=5, zk3=6)
    site.unseen("zk2")
    plan = site.ensemble()
    assert plan["ids"]["zk2"] == 5
    assert plan["problems"] == {"zk1": [], "zk3": []}


def test_a_host_of_which_nothing_is_known_is_named_with_the_remedy():
    site = three()
    site.unseen("zk2")
    site.is_refused_everywhere("the id of zk2 is not known", "--limit", "zookeeper_id")
    site.variables["zk2"]["zookeeper_id"] = 9
    assert site.ensemble()["ids"] == {"zk1": 1, "zk2": 9, "zk3": 2}


@pytest.mark.parametrize("size", [2, 4, 6])
def test_even_and_large_ensembles_are_refused(size: int):
    site = Site(*(f"zk{number}" for number in range(1, size + 1)))
    site.is_refused_everywhere(f"has {size} hosts", "1, 3 or 5", "zk1, zk2")


def test_the_same_id_twice_is_refused_on_every_host():
    site = three()
    for name in ("zk2", "zk3"):
        site.params(name)["id"] = 2
    site.is_refused_everywhere("zk2 and zk3 have the same id 2")


def test_a_copied_data_directory_is_refused():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    site.node("zk3")["id"] = 2
    site.is_refused_everywhere("zk2 and zk3 have the same id 2")


def test_another_id_than_the_kept_one_is_refused():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    site.params("zk2")["id"] = 5
    assert "zookeeper_id is 5, and the host keeps 2" in site.problems("zk2")
    assert "set zookeeper_id: 2" in site.problems("zk2")


def test_data_without_an_id_is_not_given_one():
    site = Site("zk1")
    site.node("zk1").update(has_data=True)
    assert "no id. To do: set the zookeeper_id" in site.problems("zk1")


def test_a_server_that_would_be_forgotten_is_named():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    for name in site.names:
        site.node(name)["current"]["servers"].update({"4": "192.0.2.14", "5": "192.0.2.15"})
    site.is_refused_everywhere("4 (192.0.2.14), 5 (192.0.2.15)", "zookeeper_removed_ids")
    site.params("zk1")["removed_ids"] = [4, 5]
    assert not any(site.ensemble()["problems"].values())


def test_one_of_three_that_lost_its_data_may_join_again():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    site.node("zk2").update(has_data=False, id=None, current={})
    plan = site.ensemble()
    assert plan["ids"]["zk2"] == 2
    assert plan["joining"] == ["zk2"]
    assert not any(plan["problems"].values())


def test_two_of_three_that_lost_their_data_are_refused():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    for name in ("zk2", "zk3"):
        site.node(name).update(has_data=False, id=None, current={})
    site.is_refused_everywhere("zk2 and zk3 lost the data", "docs/zookeeper.md")


def test_one_server_grows_to_three_and_not_to_five():
    assert not any(three().ran(zk1=1).ensemble()["problems"].values())
    Site("zk1", "zk2", "zk3", "zk4", "zk5").ran(zk1=1).is_refused_everywhere("grow by one step: 1 to 3")


def test_another_directory_than_that_of_the_data_is_refused():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    site.params("zk1")["data_dir"] = "/srv/zk"
    site.params("zk2")["log_dir"] = "/srv/log"
    assert "dataDir=/var/lib/zookeeper" in site.problems("zk1")
    assert "dataLogDir" in site.problems("zk2")
    assert site.problems("zk3") == ""


def test_authentication_between_servers_goes_step_by_step_on_a_running_ensemble():
    site = three().ran(zk1=1, zk2=2, zk3=3)
    for name in site.names:
        site.params(name).update(quorum_auth="required", has_quorum_password=True)
    assert "off → offered → sent → required" in site.problems("zk1")
    for name in site.names:
        site.params(name).update(quorum_auth="offered")
    assert site.problems("zk1") == ""
    new = three()
    for name in new.names:
        new.params(name).update(quorum_auth="required", has_quorum_password=True)
    assert new.problems("zk1") == ""


def test_names_ports_and_memory_are_listed_together():
    site = three()
    site.node("zk1").update(
        held_ports={"2181": "java (pid 815)"},
        memory_mib=600,
        resolved={"192.0.2.11": ["192.0.2.11"], "192.0.2.12": [], "192.0.2.13": ["192.0.2.13"]},
    )
    problems = site.problems("zk1")
    for words in ("port 2181 is held by java (pid 815)", "at most 450", "192.0.2.12 does not resolve here"):
        assert words in problems
    assert site.problems("zk2") == ""


def test_an_own_name_that_leads_to_the_loopback_is_refused():
    site = three()
    site.node("zk1")["resolved"]["192.0.2.11"] = ["127.0.1.1"]
    site.node("zk2")["resolved"]["192.0.2.12"] = ["192.0.2.99"]
    assert "where no other server reaches it" in site.problems("zk1")
    assert "is none of its addresses" in site.problems("zk2")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"dataDir": "/x"}}, "zookeeper_options sets dataDir, which comes from zookeeper_data_dir"),
        ({"options": {"server.9": "x:1:2"}}, "server.9, which comes from the inventory"),
        ({"words": ["ruok"]}, "zookeeper_words lacks srvr and mntr"),
        ({"snapshots_kept": 2}, "keeps at least 3"),
        ({"tick_time": 0}, "zookeeper_tick_time is 0"),
        ({"data_dir": "relative"}, "absolute path"),
        ({"data_dir": "/var/lib/$(reboot)"}, "absolute path"),
        ({"user_names": ["a b"]}, "zookeeper_users has the name 'a b'"),
        ({"weak": ["mesos"]}, "the password of mesos"),
        ({"chroots": {"mesos": "m"}}, "zookeeper_chroots has 'mesos'"),
        ({"chroots": {"/mesos": "a:b"}}, "a user has letters"),
        ({"quorum_auth": "offered"}, "zookeeper_quorum_password is not set"),
        ({"client_auth": "required"}, "zookeeper_users is empty"),
        (
            {"quorum_auth": False, "has_quorum_password": True},
            'zookeeper_quorum_auth is False. To do: give "off", with',
        ),
        ({"client_auth": False}, 'zookeeper_client_auth is False. To do: give "off", with quotes'),
        ({"os_family": "RedHat"}, "zookeeper_method: archive"),
        ({"method": "archive"}, "one of zookeeper_archive_url and zookeeper_archive_path"),
        ({"method": "archive", "archive_url": "https://x", "archive_sha256": "abc"}, "64 hexadecimal digits"),
        ({"peer_port": 2181}, "give each one of its own"),
        ({"id": 256}, "from 1 to 255"),
    ],
)
def test_settings_that_make_no_sense(changed: dict[str, Any], words: str):
    site = Site("zk1")
    site.params("zk1").update(changed)
    assert words in site.problems("zk1")


def test_ports_that_differ_between_hosts_are_refused():
    site = three()
    site.params("zk2")["peer_port"] = 2889
    site.is_refused_everywhere("zookeeper_peer_port is 2888 on zk1, 2889 on zk2")


NAMES = [f"zk{number}" for number in range(10, 15)]


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), max_size=4), st.data())
def test_ids_are_kept_and_unique_whatever_the_order(order: list[str], kept: set[str], data: Any) -> None:
    site = Site(*NAMES)
    numbers = data.draw(st.lists(st.integers(1, 255), min_size=len(kept), max_size=len(kept), unique=True))
    had = dict(zip(sorted(kept), numbers, strict=True))
    for name, number in had.items():
        site.node(name)["id"] = number
    ids = site.ensemble(list(order))["ids"]
    assert {name: ids[name] for name in had} == had
    assert len(set(ids.values())) == len(NAMES)
    assert ids == site.ensemble(NAMES)["ids"]
