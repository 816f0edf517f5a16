# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a cluster must agree on, and what keeps a host out before anything is changed."""

from __future__ import annotations

import configparser

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import preflight as ceph_preflight
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ceph import osd_rows as ceph_osd_rows
from tests.unit.plugins.module_utils.ceph.ceph_captured import CLUSTER

MONITORS = [{"name": "b", "address": "192.0.2.2"}, {"name": "a", "address": "192.0.2.1"}]
OTHER = "11111111-2222-4333-8444-555555555555"


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser


def test_monitors_are_named_with_both_protocols_whatever_their_order():
    text = ceph_conf.conf(CLUSTER, MONITORS)
    assert text == ceph_conf.conf(CLUSTER, MONITORS[::-1])
    assert read(text)["global"]["mon_host"] == (
        "[v2:192.0.2.1:3300,v1:192.0.2.1:6789] [v2:192.0.2.2:3300,v1:192.0.2.2:6789]"
    )


def test_an_insecure_global_id_is_never_allowed_unless_asked_for():
    key = "auth_allow_insecure_global_id_reclaim"
    assert read(ceph_conf.conf(CLUSTER, MONITORS))["mon"][key] == "false"
    assert read(ceph_conf.conf(CLUSTER, MONITORS, options={"mon": {key: True}}))["mon"][key] == "true"


def test_secure_mode_covers_daemons_clients_and_monitors():
    secure = read(ceph_conf.conf(CLUSTER, MONITORS, secure=True))["global"]
    modes = {f"ms_{mon}{kind}_mode" for mon in ("", "mon_") for kind in ("cluster", "service", "client")}
    assert {key for key, value in secure.items() if value == "secure"} == modes
    assert "ms_client_mode" not in read(ceph_conf.conf(CLUSTER, MONITORS))["global"]


def test_ipv6_is_bracketed_and_bound():
    text = read(ceph_conf.conf(CLUSTER, [{"name": "a", "address": "2001:db8::1"}]))["global"]
    assert text["mon_host"] == "[v2:[2001:db8::1]:3300,v1:[2001:db8::1]:6789]"
    assert (text["ms_bind_ipv4"], text["ms_bind_ipv6"]) == ("false", "true")


def test_keys_are_well_formed_and_different():
    first, second = ceph_conf.new_key(), ceph_conf.new_key()
    assert first != second
    assert ceph_conf.is_key(first)
    assert ceph_conf.is_key("AQC0ZwFr7SmXORAAAAAAAAAAAAAAAAAAAAAAAA==")


@pytest.mark.parametrize("text", ["", "secret", "AQC0ZwFr7SmXORAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="])
def test_what_is_no_key_is_told(text):
    assert not ceph_conf.is_key(text)


def test_a_keyring_is_read_back():
    keys = {"client.admin": ceph_conf.new_key(), "mgr.a": ceph_conf.new_key()}
    text = ceph_conf.keyring(keys)
    assert {name: ceph_conf.key_in(text, name) for name in keys} == keys
    assert ceph_conf.key_in(text, "mgr.b") == ""
    assert '\tcaps mon = "allow *"' in text.splitlines()


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
    problems = ceph_conf.problems_of_monitors(monitors)
    assert len(problems) == 1
    assert word in problems[0]


def test_monitors_come_from_the_inventory():
    variables = {
        "stor1.example.org": {"ansible_host": "192.0.2.1"},
        "stor2.example.org": {"ansible_host": "203.0.113.2", "ceph_common_mon_address": "192.0.2.2"},
        "192.0.2.3": {"ceph_common_id": "c"},
    }
    assert ceph_preflight.monitors(list(variables), variables) == [
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
    assert f"the {kind} daemons of x.two, x.three are all called x: set ceph_common_id" in problem
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


def problems(node=None, versions=None, **more):
    given = {"traces": [], "addresses": ["127.0.0.1", "192.0.2.1"], "version": "18.2.7", **(node or {})}
    arguments = {"fsid": CLUSTER, "rows": MONITORS, "name": "a", "is_monitor": True, **more}
    return ceph_preflight.problems(given, versions=versions or {"a": "18.2.7+ds-1+deb13u1", "b": "18.2.4"}, **arguments)


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


def test_different_releases_are_refused_by_host():
    (problem,) = problems(versions={"a": "18.2.7", "b": "16.2.15+ds-0+deb12u1"})
    assert "18 on a" in problem
    assert "16 on b" in problem


@pytest.mark.parametrize(
    ("identity", "version"),
    [("debian-13", "18.2"), ("debian-12", "16.2"), ("ubuntu-24.04", "19.2"), ("gentoo-2", "")],
)
def test_what_a_distribution_has_is_known_before_its_lists_are(tmp_path, identity, version):
    name, number = identity.split("-")
    file = tmp_path / "os-release"
    file.write_text(f'PRETTY_NAME="x"\nID={name}\n\nVERSION_ID="{number}"\n')
    assert ceph_preflight.version_of_distribution(str(file)) == version


def test_a_release_that_is_too_old_is_refused():
    (problem,) = problems(versions={"a": "14.2.21-1"})
    assert "ceph_common_repositories" in problem


DEFAULTS = {"method": "raw", "device_class": "", "dmcrypt": False}
PATH = "/dev/disk/by-id/wwn-1"


def test_devices_are_named_or_described():
    asked = ceph_osd_rows.rows([PATH, {"path": PATH + "2", "device_class": "nvme"}], DEFAULTS, [PATH])
    assert asked["problems"] == []
    assert [(row["path"], row["wipe"], row["device_class"]) for row in asked["rows"]] == [
        (PATH, True, ""),
        (PATH + "2", False, "nvme"),
    ]


def test_what_may_be_wiped_of_db_and_log_is_listed_by_their_names():
    device = {"path": PATH, "method": "lvm", "db": PATH + "2", "wal": "vg/log"}
    asked = ceph_osd_rows.rows([device], DEFAULTS, [PATH + "2"])
    assert asked["problems"] == []
    assert [(row["wipe"], row["also_wipe"]) for row in asked["rows"]] == [(False, [PATH + "2"])]


WRONG_DEVICES = {
    "a name that does not last": (["/dev/sdb"], [], "ls -l /dev/disk/by-id/"),
    "twice": ([PATH, PATH], [], "twice"),
    "a typing error in what may be wiped": ([PATH], [PATH + "3"], PATH + "3"),
    "an unknown word": ([{"path": PATH, "clas": "ssd"}], [], "clas"),
    "a db that does not last": ([{"path": PATH, "method": "lvm", "db": "/dev/sdc"}], [], "its db /dev/sdc is neither"),
    "the same log twice": (
        [{"path": PATH + number, "method": "lvm", "wal": "vg/log"} for number in "12"],
        [],
        "vg/log is twice",
    ),
    "encryption without LVM": ([{"path": PATH, "dmcrypt": True}], [], "ceph_osd_method: lvm"),
}


@pytest.mark.parametrize("case", WRONG_DEVICES)
def test_devices_that_make_no_sense_are_told(case):
    devices, wipe, word = WRONG_DEVICES[case]
    (problem,) = ceph_osd_rows.rows(devices, DEFAULTS, wipe)["problems"]
    assert word in problem
