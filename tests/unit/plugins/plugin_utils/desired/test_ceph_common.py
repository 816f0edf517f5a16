# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a cluster must agree on, and what keeps a host out before anything is changed."""

from __future__ import annotations

import configparser

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import conf_text, site_problems
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import hosts as ceph_hosts
from tests.unit.plugins.module_utils.ceph.ceph_captured import CLUSTER
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("ceph_common"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("ceph_common", case)


MONITORS = [{"name": "b", "address": "192.0.2.2"}, {"name": "a", "address": "192.0.2.1"}]
OTHER = "11111111-2222-4333-8444-555555555555"
PARAMS = {
    **ceph_roles.documents("ceph_common")["all_daemons_on_debian"]["params"],
    "host": "a",
    "id": "",
    "secrets": {"fsid": CLUSTER, "keys": ceph_roles.KEYS},
}


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser


def test_monitors_are_named_with_both_protocols_whatever_their_order():
    text = conf_text.text(CLUSTER, MONITORS)
    assert text == conf_text.text(CLUSTER, MONITORS[::-1])
    assert read(text)["global"]["mon_host"] == (
        "[v2:192.0.2.1:3300,v1:192.0.2.1:6789] [v2:192.0.2.2:3300,v1:192.0.2.2:6789]"
    )


def test_an_insecure_global_id_is_never_allowed_unless_asked_for():
    key = "auth_allow_insecure_global_id_reclaim"
    assert read(conf_text.text(CLUSTER, MONITORS))["mon"][key] == "false"
    assert read(conf_text.text(CLUSTER, MONITORS, options={"mon": {key: True}}))["mon"][key] == "true"


def test_secure_mode_covers_daemons_clients_and_monitors():
    secure = read(conf_text.text(CLUSTER, MONITORS, secure=True))["global"]
    modes = {f"ms_{mon}{kind}_mode" for mon in ("", "mon_") for kind in ("cluster", "service", "client")}
    assert {key for key, value in secure.items() if value == "secure"} == modes
    assert "ms_client_mode" not in read(conf_text.text(CLUSTER, MONITORS))["global"]


def test_ipv6_is_bracketed_and_bound():
    text = read(conf_text.text(CLUSTER, [{"name": "a", "address": "2001:db8::1"}]))["global"]
    assert text["mon_host"] == "[v2:[2001:db8::1]:3300,v1:[2001:db8::1]:6789]"
    assert (text["ms_bind_ipv4"], text["ms_bind_ipv6"]) == ("false", "true")


def test_daemons_leave_the_ports_of_slurm_alone():
    assert int(read(conf_text.text(CLUSTER, MONITORS))["global"]["ms_bind_port_min"]) > 6820


WRONG_MONITORS = {
    "two of a name": ([{"name": "a", "address": "192.0.2.1"}, {"name": "a", "address": "192.0.2.2"}], "ceph_common_id"),
    "one address": ([{"name": "a", "address": "192.0.2.1"}, {"name": "b", "address": "192.0.2.1"}], "a, b"),
    "a name as address": ([{"name": "a", "address": "stor1.example.org"}], "stor1.example.org"),
    "a loopback address": ([MONITORS[0], {"name": "a", "address": "127.0.1.1"}], "127.0.1.1"),
    "both kinds of address": ([MONITORS[0], {"name": "a", "address": "2001:db8::1"}], "IPv6"),
}


@pytest.mark.parametrize("case", WRONG_MONITORS)
def test_monitors_that_cannot_make_a_cluster_are_told(case):
    monitors, word = WRONG_MONITORS[case]
    problems = site_problems.of_monitors(monitors)
    assert len(problems) == 1
    assert word in str(problems[0])
    assert problems[0].remedy


def test_monitors_come_from_the_inventory():
    variables = {
        "stor1.example.org": {"ansible_host": "192.0.2.1"},
        "stor2.example.org": {"ansible_host": "203.0.113.2", "ceph_common_mon_address": "192.0.2.2"},
        "192.0.2.3": {"ceph_common_id": "c"},
    }
    assert ceph_hosts.monitors(list(variables), variables) == [
        {"name": "stor1", "address": "192.0.2.1"},
        {"name": "stor2", "address": "192.0.2.2"},
        {"name": "c", "address": "192.0.2.3"},
    ]


GROUPS = {"ceph_mons": ["m.one"], "ceph_mgrs": ["a.one", "b.one"], "ceph_mdss": ["c.one"], "ceph_osds": []}


@pytest.mark.parametrize("group", ["ceph_mgrs", "ceph_mdss"])
def test_daemons_of_any_kind_that_would_be_called_the_same_are_refused(group):
    groups = {**GROUPS, group: [*GROUPS[group], "x.two", "x.three"]}
    variables = {host: {} for hosts in groups.values() for host in hosts}
    (problem,) = problems(groups=groups, variables=variables)
    kind = {"ceph_mgrs": "mgr", "ceph_mdss": "mds"}[group]
    assert f"the {kind} daemons of x.two, x.three are all called x. To do: set ceph_common_id" in problem
    assert problems(groups=groups, variables={**variables, "x.two": {"ceph_common_id": "y"}}) == []


def test_hosts_that_the_crush_map_would_take_for_one_are_refused():
    """As the daemons do, by what the hosts call themselves, not by what the inventory does."""
    groups = {**GROUPS, "ceph_osds": ["d.one", "e.one", "f.one"]}
    known = {"d.one": "stor1", "e.one": "stor1", "f.one": "stor2"}
    variables = {host: {} for hosts in groups.values() for host in hosts}
    variables.update({host: {"ceph_common_node": {"hostname": name}} for host, name in known.items()})
    (problem,) = problems(groups=groups, variables=variables)
    assert "the hosts d.one, e.one are all stor1 in the CRUSH map" in problem
    variables["e.one"]["ceph_common_crush_location"] = "root=default host=stor7"
    assert problems(groups=groups, variables=variables) == []
    # Not looked at yet.
    assert problems(groups=groups, variables={**variables, "d.one": {}, "e.one": {}}) == []


def test_hosts_that_the_inventory_names_by_address_are_told_what_to_do():
    groups = {**GROUPS, "ceph_mdss": ["192.0.2.7", "192.0.2.8"]}
    variables = {host: {} for hosts in groups.values() for host in hosts}
    found = problems(groups=groups, variables=variables)
    assert any("the mds daemons of 192.0.2.7, 192.0.2.8 are all called 192" in problem for problem in found)
    assert any("must not begin with a digit" in problem for problem in found)
    assert all("set ceph_common_id" in problem for problem in found)


def problems(node=None, versions=None, is_monitor=True, groups=None, variables=None):
    """What the role says of the host of monitor a, which is the first of MONITORS' cluster by name."""
    current = {"traces": [], "addresses": ["127.0.0.1", "192.0.2.1"], "version": "18.2.7", **(node or {})}
    if groups is None:
        known = versions or {"a": "18.2.7+ds-1+deb13u1", "b": "18.2.4"}
        groups = {"ceph_mons": ["a", "b"] if is_monitor else ["b"], "ceph_mgrs": ["a"]}
        variables = {"a": {"ansible_host": "192.0.2.1"}, "b": {"ansible_host": "192.0.2.2"}}
        for host, version in known.items():
            variables[host] = {**variables[host], "ceph_common_node": {"version": version}}
    else:
        # The host of this monitor is none of those that are looked at.
        variables = {host: {"ansible_host": f"192.0.2.{10 + n}", **v} for n, (host, v) in enumerate(variables.items())}
    params = {**PARAMS, "node": current}
    plan = desired(params, "ceph_common", ceph_roles.DEBIAN_12, {"hosts": ceph_hosts.hosts(groups, variables)})
    return [str(Problem(**problem)) for problem in plan["problems"]]


def test_a_bare_host_and_one_of_ours_pass():
    assert problems() == []
    assert problems({"traces": [{"fsid": CLUSTER, "where": "/etc/ceph/ceph.conf"}]}) == []


def test_a_host_of_another_cluster_is_refused_with_the_place():
    (problem,) = problems({"traces": [{"fsid": OTHER, "where": "/var/lib/ceph/osd/ceph-3"}]})
    assert OTHER in problem
    assert "/var/lib/ceph/osd/ceph-3" in problem


def test_a_monitor_without_its_address_is_refused_and_another_host_is_not():
    (problem,) = problems({"addresses": ["127.0.0.1", "198.51.100.7"]})
    assert "192.0.2.1" in problem
    assert "198.51.100.7" in problem
    assert problems({"addresses": ["198.51.100.7"]}, is_monitor=False) == []


def test_a_monitor_without_room_is_refused_before_anything_is_changed_and_one_that_only_warns_is_not():
    (problem,) = problems({"room": 4.9})
    assert "only 4.9 % of the file system of /var/lib/ceph" in problem
    assert problems({"room": 16.0}) == []
    assert problems({"room": 1.0}, is_monitor=False) == []


def test_different_releases_are_refused_by_host():
    (problem,) = problems(versions={"a": "18.2.7", "b": "16.2.15+ds-0+deb12u1"})
    assert "18 on a" in problem
    assert "16 on b" in problem


def test_a_release_that_is_too_old_is_refused():
    (problem,) = problems(versions={"a": "14.2.21-1"})
    assert "ceph_common_repositories" in problem


def settings_of(params, hosts):
    document = ceph_roles.documents("ceph_common")["all_daemons_on_debian"]
    files = desired({**document["params"], **params}, "ceph_common", document["facts"], {"hosts": hosts})["desired"]
    paths = [file["path"] for file in files["files"]]
    settings = {
        file["path"].rpartition("/")[2].removesuffix(".conf"): file["content"]
        for file in files["files"]
        if file["path"].startswith("/var/lib/baremetal-gpu/ceph-settings/")
        if "content" in file
    }
    # A run that is cut between the two finds a difference in those that come later.
    assert paths.index("/etc/ceph/ceph.conf") < paths.index("/var/lib/baremetal-gpu/ceph-settings/osd.conf")
    return settings


def test_what_daemons_read_at_their_start_is_kept_by_kind_without_the_monitors():
    hosts = ceph_roles.documents("ceph_common")["all_daemons_on_debian"]["peers"]["hosts"]
    before = settings_of({}, hosts)
    assert set(before) == {"mon", "mgr", "osd", "mds"}

    def changed(params, rows=hosts):
        after = settings_of(params, rows)
        return {kind for kind in before if after[kind] != before[kind]}

    assert changed({"options": {"osd": {"osd_memory_target": 1}}}) == {"osd"}
    assert changed({"options": {"mon.two": {"debug_mon": 5}}}) == {"mon"}
    assert changed({"options": {"global": {"debug_ms": 1}}}) == set(before)
    assert changed({"secure": True}) == set(before)
    assert changed({"cluster_network": "192.0.2.0/24"}) == set(before)
    assert changed({"options": {"client.rgw": {"rgw_thing": 1}}}) == set()
    # Running daemons hear of a monitor that comes or goes from the others.
    fewer = {name: row for name, row in hosts.items() if not name.startswith("stor3")}
    assert changed({}, fewer) == set()
