# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Ceph modules read, compare and plan, on answers of Ceph 16.2 and 18.2."""

from __future__ import annotations

import base64
import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import capacity as ceph_capacity
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import config as ceph_config
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import fs as ceph_fs
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import homes as ceph_homes
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import key as ceph_key
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mgr as ceph_mgr
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import pool as ceph_pool
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import snapshots as ceph_snapshots
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import step as ceph_step
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import subvolume as ceph_subvolume
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from tests.unit.plugins.ceph_answers import VERSIONS, ceph

GIB = 1 << 30


@pytest.fixture(params=VERSIONS)
def cluster(request):
    return ceph(request.param)


def words(steps):
    return [" ".join(step.words) for step in steps]


# Keys


def test_key_is_read_and_a_missing_one_is_nothing(cluster):
    assert ceph_key.read(cluster, "client.alice")["caps"] == {"mon": "allow r", "osd": "allow rw pool=home_data"}
    assert ceph_key.read(cluster, "client.nobody") is None


@pytest.mark.parametrize(
    ("osd", "same"),
    [
        ("allow rw pool=home_data", True),
        (" allow  rw  pool=home_data ", True),
        ("allow r pool=home_data", False),
        ("allow rw pool=home_data, allow r pool=other", False),
    ],
)
def test_capabilities_are_compared_by_what_they_grant(cluster, osd, same):
    found = ceph_key.read(cluster, "client.alice")
    steps = ceph_key.plan(found, "client.alice", {"osd": osd, "mon": "allow r"})
    assert (steps == []) is same
    if not same:
        assert steps[0].words == ("auth", "caps", "client.alice", "mon", "allow r", "osd", osd)


def test_order_of_grants_does_not_matter():
    assert ceph_key.same_caps({"mds": "allow r, allow rw path=/a"}, {"mds": "allow rw path=/a,allow r"})


def test_a_capability_that_is_left_out_is_taken_away(cluster):
    found = ceph_key.read(cluster, "client.alice")
    steps = ceph_key.plan(found, "client.alice", {"mon": "allow r"})
    assert words(steps) == ["auth caps client.alice mon allow r"]
    assert ceph_key.plan(found, "client.alice", None) == []


def test_a_given_secret_goes_by_standard_input_alone(cluster):
    secret = ceph_key.read(cluster, "client.alice")["key"]
    (step,) = ceph_key.plan(None, "client.new", {"mon": "allow r"}, secret)
    assert step.words == ("auth", "import")
    assert secret in step.stdin
    assert 'caps mon = "allow r"' in step.stdin


def test_another_secret_is_refused_and_not_shown(cluster):
    found = ceph_key.read(cluster, "client.alice")
    other = base64.b64encode(bytes(range(28))).decode()
    assert other != found["key"]
    with pytest.raises(Refused, match="lose access") as caught:
        ceph_key.plan(found, "client.alice", None, other)
    assert other not in str(caught.value)
    assert found["key"] not in str(caught.value)


@pytest.mark.parametrize("name", ["alice", "client.", "user.alice", " client.alice"])
def test_a_name_without_its_kind_is_refused(name):
    with pytest.raises(Refused, match="name of a key"):
        ceph_key.plan(None, name, {"mon": "allow r"})


def test_absent_removes_what_is_there_only(cluster):
    found = ceph_key.read(cluster, "client.alice")
    assert words(ceph_key.plan(found, "client.alice", None, absent=True)) == ["auth rm client.alice"]
    assert ceph_key.plan(None, "client.alice", None, absent=True) == []


# Configuration


def test_settings_are_read_with_their_masks(cluster):
    found = ceph_config.read(cluster)
    assert found["osd/class:ssd", "osd_memory_target"] == "4294967296"
    assert found["mon", "auth_allow_insecure_global_id_reclaim"] == "false"


@pytest.mark.parametrize(("value", "same"), [("4G", True), (4294967296, True), ("4 GiB", True), ("5G", False)])
def test_sizes_are_compared_as_sizes(cluster, value, same):
    kinds = ceph_config.kinds(cluster, {"osd_memory_target"})
    steps = ceph_config.plan(ceph_config.read(cluster), {"osd/class:ssd": {"osd_memory_target": value}}, kinds)
    assert (steps == []) is same


def test_an_option_that_ceph_does_not_have_is_named(cluster):
    with pytest.raises(Refused, match="no_such_option"):
        ceph_config.kinds(cluster, {"no_such_option"})


@pytest.mark.parametrize("value", [False, "no", "off", "0", "False"])
def test_truth_is_compared_and_written_as_the_monitors_know_it(cluster, value):
    wanted = {"mon": {"auth_allow_insecure_global_id_reclaim": value}}
    kinds = {"auth_allow_insecure_global_id_reclaim": "bool"}
    assert ceph_config.plan(ceph_config.read(cluster), wanted, kinds) == []
    assert ceph_config.plan({}, wanted, kinds)[0].words[-1] == "false"


def test_null_takes_a_setting_out_once(cluster):
    wanted = {"osd/class:ssd": {"osd_memory_target": None}}
    found = ceph_config.read(cluster)
    assert words(ceph_config.plan(found, wanted, {})) == ["config rm osd/class:ssd osd_memory_target"]
    assert ceph_config.plan({}, wanted, {}) == []


def test_a_section_that_ceph_does_not_have_is_refused():
    with pytest.raises(Refused, match="not a section"):
        ceph_config.plan({}, {"osds": {"osd_memory_target": "4G"}}, {})


# Pools


def test_pool_is_read(cluster):
    pool = ceph_pool.read(cluster)["home_data"]
    assert (pool["size"], pool["bulk"], pool["quota_bytes"]) == (1, True, 1000000000)
    assert (pool["crush_rule"], pool["application"], pool["type"]) == ("replicated_rule", ["cephfs"], "replicated")


def test_a_pool_as_it_is_needs_nothing(cluster):
    pool = ceph_pool.read(cluster)["home_data"]
    wanted = {key: pool[key] for key in ("size", "min_size", "crush_rule", "bulk", "autoscale", "quota_bytes")}
    assert ceph_pool.plan(pool, "home_data", {**wanted, "application": "cephfs"}) == []


def test_min_size_is_never_above_size_on_the_way(cluster):
    pool = ceph_pool.read(cluster)["home_data"]
    up = ceph_pool.plan(pool, "home_data", {"size": 3, "min_size": 2})
    assert words(up) == ["osd pool set home_data size 3", "osd pool set home_data min_size 2"]
    down = ceph_pool.plan({**pool, "size": 3, "min_size": 2}, "home_data", {"size": 1, "min_size": 1})
    assert words(down) == [
        "osd pool set home_data min_size 1",
        "osd pool set home_data size 1 --yes-i-really-mean-it",
    ]
    with pytest.raises(Refused, match="never be written"):
        ceph_pool.plan(pool, "home_data", {"size": 2, "min_size": 3})


def test_a_new_pool(cluster):
    steps = ceph_pool.plan(None, "new", {"size": 3, "bulk": True, "crush_rule": "racks", "application": "rbd"})
    assert words(steps)[0] == "osd pool create new replicated racks --bulk"
    assert "osd pool application enable new rbd" in words(steps)


def test_a_pool_of_another_application_is_refused(cluster):
    with pytest.raises(Refused, match="in use by cephfs"):
        ceph_pool.plan(ceph_pool.read(cluster)["home_data"], "home_data", {"application": "rbd"})


def test_a_pool_goes_only_if_named_and_allowed(cluster):
    pool = ceph_pool.read(cluster)["home_data"]
    with pytest.raises(Refused, match="confirm: home_data"):
        ceph_pool.plan_removal(pool, "home_data", "home", True)
    with pytest.raises(Refused, match="mon_allow_pool_delete"):
        ceph_pool.plan_removal(pool, "home_data", "home_data", False)
    assert len(ceph_pool.plan_removal(pool, "home_data", "home_data", True)) == 1
    assert ceph_pool.plan_removal(None, "home_data", "", False) == []


# File systems


def test_file_system_is_read(cluster):
    found = ceph_fs.read(cluster)
    there = found["filesystems"]["homefs"]
    assert (there["metadata_pool"], there["data_pools"]) == ("home_meta", ["home_data"])
    assert [daemon["state"] for daemon in there["daemons"]] == ["active"]
    assert (there["max_mds"], there["allow_standby_replay"], found["standbys"]) == (1, False, [])


def test_a_file_system_as_it_is_needs_nothing(cluster):
    found = ceph_fs.read(cluster)
    wanted = {"metadata_pool": "home_meta", "data_pools": ["home_data"], "max_mds": 1}
    assert ceph_fs.plan(found, "homefs", wanted) == []
    steps = ceph_fs.plan(found, "homefs", {"standby_count_wanted": 1, "allow_standby_replay": True})
    assert words(steps) == ["fs set homefs standby_count_wanted 1", "fs set homefs allow_standby_replay true"] or (
        # 18.2 wants a standby by itself.
        words(steps) == ["fs set homefs allow_standby_replay true"]
    )


def test_what_cannot_be_changed_is_refused(cluster):
    found = ceph_fs.read(cluster)
    with pytest.raises(Refused, match="cannot be changed"):
        ceph_fs.plan(found, "homefs", {"metadata_pool": "home_data"})
    with pytest.raises(Refused, match="make it with ceph_pool"):
        ceph_fs.plan(found, "other", {"metadata_pool": "nowhere", "data_pools": ["home_data"]})


def test_a_file_system_waits_for_an_mds_and_takes_no_pool_of_another(cluster):
    found = ceph_fs.read(cluster)
    wanted = {"metadata_pool": "a", "data_pools": ["b"]}
    found["pools"] += ["a", "b"]
    with pytest.raises(Refused, match="no MDS stands by"):
        ceph_fs.plan(found, "new", wanted)
    found["standbys"] = ["spare"]
    assert words(ceph_fs.plan(found, "new", wanted)) == ["fs new new a b"]
    with pytest.raises(Refused, match="homefs uses home_data"):
        ceph_fs.plan(found, "new", {"metadata_pool": "a", "data_pools": ["home_data"]})


def test_a_file_system_goes_only_if_named(cluster):
    found = ceph_fs.read(cluster)
    with pytest.raises(Refused, match="confirm: homefs"):
        ceph_fs.plan_removal(found, "homefs", "")
    assert words(ceph_fs.plan_removal(found, "homefs", "homefs"))[0] == "fs fail homefs"


# Subvolumes

ALICE = ceph_subvolume.Place("homefs", "homes", "alice")


def test_subvolume_is_read(cluster):
    found = ceph_subvolume.read(cluster, ALICE)
    assert (found.info["size"], found.info["uid"], found.info["mode"]) == (100000000, 2001, "0700")
    assert (found.info["namespace"], found.snapshots) == ("fsvolumens_alice", ["before"])
    assert ceph_subvolume.read(cluster, ceph_subvolume.Place("homefs", "homes", "nobody")).info is None


def test_a_subvolume_as_it_is_needs_nothing(cluster):
    found = ceph_subvolume.read(cluster, ALICE)
    wanted = {"size": 100000000, "uid": 2001, "gid": 2001, "mode": "0700", "namespace_isolated": True}
    assert ceph_subvolume.plan(found, ALICE, {**wanted, "snapshot": "before"}) == []


def test_resize_and_the_data_that_are_there(cluster):
    found = ceph_subvolume.read(cluster, ALICE)
    steps = ceph_subvolume.plan(found, ALICE, {"size": 200000000})
    assert words(steps) == ["fs subvolume resize homefs alice 200000000 --group_name homes"]
    assert ceph_subvolume.plan(found, ALICE, {"size": 0})[0].words[5] == "inf"
    found.info["used"] = 50000000
    with pytest.raises(Refused, match=r"holds 47\.68 MiB, more than the wanted 9\.537 MiB"):
        ceph_subvolume.plan(found, ALICE, {"size": 10000000})


def test_a_change_of_owner_keeps_the_quota(cluster):
    (step,) = ceph_subvolume.plan(ceph_subvolume.read(cluster, ALICE), ALICE, {"uid": 3001})
    assert words([step]) == [
        "fs subvolume create homefs alice --group_name homes --size 100000000 --uid 3001 --gid 2001 --mode 700 "
        "--namespace-isolated"
    ]


def test_isolation_cannot_be_changed(cluster):
    with pytest.raises(Refused, match="settled when it is made"):
        ceph_subvolume.plan(ceph_subvolume.read(cluster, ALICE), ALICE, {"namespace_isolated": False})


def test_a_subvolume_goes_only_if_named_and_its_snapshots_first(cluster):
    found = ceph_subvolume.read(cluster, ALICE)
    with pytest.raises(Refused, match="confirm: alice"):
        ceph_subvolume.plan_removal(found, ALICE, "")
    assert words(ceph_subvolume.plan_removal(found, ALICE, "alice")) == [
        "fs subvolume snapshot rm homefs alice before --group_name homes",
        "fs subvolume rm homefs alice --group_name homes",
    ]


@pytest.mark.parametrize("name", ["../etc", ".hidden", "-f", "a b", "a/b", ""])
def test_a_name_that_is_no_plain_directory_is_refused(name):
    with pytest.raises(Refused, match="cannot name a subvolume"):
        ceph_subvolume.check_name(name)


def test_a_key_for_one_subvolume_reaches_no_other_objects(cluster):
    caps = ceph_subvolume.caps(ALICE, ceph_subvolume.read(cluster, ALICE).info)
    assert caps["osd"] == "allow rw pool=home_data namespace=fsvolumens_alice"
    assert caps["mds"].startswith("allow rw fsname=homefs path=/volumes/homes/alice/")


# Manager's modules


def test_modules_of_the_manager(cluster):
    found = cluster.json("mgr", "module", "ls")
    assert ceph_mgr.plan(found, ["volumes", "nfs"], True) == []
    assert words(ceph_mgr.plan(found, ["nfs"], False)) == ["mgr module disable nfs"]
    with pytest.raises(Refused, match="has no module nothing"):
        ceph_mgr.plan(found, ["nothing"], True)
    with pytest.raises(Refused, match="always on"):
        ceph_mgr.plan(found, ["volumes"], False)


def test_a_module_that_cannot_be_loaded_is_refused_with_the_managers_reason(cluster):
    found = copy.deepcopy(cluster.json("mgr", "module", "ls"))
    module = found["disabled_modules"][0]
    module.update(can_run=False, error_string="PyO3 modules do not yet support subinterpreters")
    with pytest.raises(Refused, match="PyO3"):
        ceph_mgr.plan(found, [module["name"]], True)


# Snapshots


class Restarting:
    """A cluster whose manager has yet to load the module that was switched on: made by hand, in Ceph 18.2's words."""

    def __init__(self, *refusals, enabled=True):
        self.refusals, self.enabled = list(refusals), enabled

    def json(self, *given, stdin=None):
        if given == ("mgr", "module", "ls"):
            return {"enabled_modules": ["snap_schedule"] if self.enabled else [], "always_on_modules": []}
        if self.refusals:
            raise CephError(*self.refusals.pop(0), given, "read what it said")
        return [{"path": "/volumes/homes", "schedule": "1h", "retention": {"h": 24}}]


NOT_LOADED = ("Module 'snap_schedule' is not enabled/loaded", 95)
NOBODY_ANSWERS = ("it did not end within 40 s", 124)


def test_schedules_are_read_once_the_manager_has_loaded_its_module(monkeypatch):
    waits = []
    monkeypatch.setattr(ceph_snapshots.time, "sleep", waits.append)
    cluster = Restarting(NOT_LOADED, NOBODY_ANSWERS, NOT_LOADED)
    found = ceph_snapshots.read(cluster, "cephfs", "/volumes/homes")
    assert found == {"schedules": ["1h"], "retention": {"h": 24}}
    assert len(waits) == 3


def test_without_the_managers_module_there_is_no_schedule():
    nothing = {"schedules": [], "retention": {}}
    assert ceph_snapshots.read(Restarting(NOT_LOADED, enabled=False), "cephfs", "/volumes/homes") == nothing


@pytest.mark.parametrize("refusal", [NOT_LOADED, NOBODY_ANSWERS])
def test_a_module_that_is_never_loaded_is_named(refusal):
    with pytest.raises(CephError, match=r"see that a manager is active .* why the module snap_schedule, which is on"):
        ceph_snapshots.read(Restarting(refusal), "cephfs", "/volumes/homes", patience_s=-1)


def test_another_error_is_told_at_once():
    with pytest.raises(CephError, match="Permission denied"):
        ceph_snapshots.read(Restarting(("Permission denied", 13)), "cephfs", "/volumes/homes")


# Capacity


def test_usable_is_what_copies_and_the_ratio_leave(cluster):
    found = ceph_capacity.read(cluster, "home_data")
    df = cluster.json("df", "detail")
    others = sum(pool["stats"]["bytes_used"] for pool in df["pools"] if pool["name"] != "home_data")
    assert found == ceph_capacity.Capacity(2 * GIB, others, 1, 0.85)
    assert found.usable == int(2 * GIB * 0.85 - others)


@pytest.mark.parametrize(
    ("promised", "overcommit", "fits"),
    [
        ({"a": 800 * GIB}, 1, True),
        ({"a": 800 * GIB, "b": 60 * GIB}, 1, False),
        ({"a": 800 * GIB, "b": 60 * GIB}, 1.5, True),
        ({"a": 0}, 1, False),
        ({"a": 0}, 2, True),
    ],
)
def test_what_is_promised_must_fit(promised, overcommit, fits):
    # 3000 GiB of disks, 150 of them taken by others, 3 copies: (3000 * 0.85 - 150) / 3 = 800.
    found = ceph_capacity.Capacity(3000 * GIB, 150 * GIB, 3, 0.85)
    if fits:
        ceph_capacity.check(found, promised, overcommit)
    else:
        with pytest.raises(Refused, match="To do: "):
            ceph_capacity.check(found, promised, overcommit)


# Homes

SETTINGS = ceph_homes.Settings("homefs", "homes", "0700", "home.", 1.0, 30)


def entry(name, **more):
    return {"name": name, "state": "present", "size": "1M", "uid": None, "gid": None, "confirm": "", **more}


def test_a_list_of_homes_is_refused_with_everything_that_is_wrong():
    given = [
        entry("alice", uid=2001, gid=2001),
        entry("alice", uid=2009, gid=2001),
        entry("bob", uid=2001, gid=2002),
        entry("carol"),
        entry("root", uid=0, gid=0),
        entry("../x", uid=1, gid=1),
        entry("dave", uid=5, gid=5, size="lots"),
    ]
    with pytest.raises(Refused) as caught:
        ceph_homes.wanted_homes(given)
    for part in ("alice is listed twice", "same uid 2001", "carol has no uid", "be root", "'../x'", "'lots'"):
        assert part in str(caught.value)


def test_homes_that_nobody_listed_count_and_stay(cluster):
    homes = ceph_homes.wanted_homes([entry("bob", uid=2002, gid=2002, size="2G")])
    there = ceph_homes.There({"homes"}, ceph_subvolume.read_all(cluster, "homefs", "homes"), {"bob": None})
    promised = ceph_homes.promised(there, homes)
    assert promised == {"alice": 100000000, "bob": 2 * GIB}
    with pytest.raises(Refused, match="Largest: bob 2 GiB, alice"):
        ceph_homes.check_capacity(there, homes, SETTINGS, ceph_capacity.read(cluster, "home_data"))
    assert ceph_homes.plan_place(there, homes[0], SETTINGS)[0].does == "make the subvolume homes/bob"


def test_what_takes_back_is_let_through_even_if_too_much_was_promised(cluster):
    homes = ceph_homes.wanted_homes([entry("alice", uid=2001, gid=2001, size="50M")])
    there = ceph_homes.There({"homes"}, ceph_subvolume.read_all(cluster, "homefs", "homes"), {"alice": None})
    tiny = ceph_capacity.Capacity(1000, 0, 1, 0.85)
    ceph_homes.check_capacity(there, homes, SETTINGS, tiny)
    more = ceph_homes.wanted_homes([entry("alice", uid=2001, gid=2001, size="100M")])
    with pytest.raises(Refused, match="add up to"):
        ceph_homes.check_capacity(there, more, SETTINGS, tiny)


def test_keys_of_all_homes_are_read_by_one_command(cluster):
    """The list of all keys is made by hand, of the one that the cluster told of."""
    answers = cluster.run
    answers.record["auth ls"] = {"rc": 0, "answer": {"auth_dump": answers.record["auth get client.alice"]["answer"]}}
    there = ceph_homes.read(
        cluster,
        ceph_homes.Settings("homefs", "homes", "0700", "", 1.0, 30),
        ceph_homes.wanted_homes([entry("alice", uid=2001, gid=2001), entry("bob", uid=2002, gid=2002)]),
    )
    assert there.keys == {"alice": ceph_key.read(cluster, "client.alice"), "bob": None}
    assert list(there.homes) == ["alice"]
    about_keys = [words for words in answers.asked if words[0] == "auth"]
    assert about_keys == [("auth", "ls"), ("auth", "get", "client.alice")]


def test_archiving_keeps_the_data_and_cuts_off_what_is_mounted(cluster):
    (home,) = ceph_homes.wanted_homes([entry("alice", state="archived")])
    key = {"entity": "client.home.alice", "key": "", "caps": {}}
    there = ceph_homes.There({"homes"}, ceph_subvolume.read_all(cluster, "homefs", "homes"), {"alice": key})
    assert words(ceph_homes.plan_place(there, home, SETTINGS)) == [
        "fs subvolume snapshot create homefs alice archived --group_name homes"
    ]
    assert words(ceph_homes.plan_key(there, home, SETTINGS)) == [
        "auth rm client.home.alice",
        "tell mds.homefs:0 client evict auth_name=home.alice",
    ]


# Carrying out


class Recorder:
    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def json(self, *given, stdin=None):
        self.asked.append(given)
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def test_check_mode_runs_nothing():
    recorder = Recorder(None)
    steps = [Step("do it", ("osd", "set", "noout"))]
    assert ceph_step.converge(recorder, lambda: None, lambda _found: steps, pretend=True) == steps
    assert recorder.asked == []


def test_a_command_that_says_well_done_and_did_nothing_is_an_error():
    with pytest.raises(CephError, match="left undone: do it"):
        ceph_step.converge(Recorder(None), lambda: None, lambda _: [Step("do it", ("osd", "set", "noout"))], False)


def test_plain_text_is_as_good_as_json_where_the_effect_counts():
    step = Step("do it", ("auth", "rm", "x"))
    ceph_step.act(Recorder(CephError("it answered no JSON but 'updated'", 0, step.words, "")), step)
    with pytest.raises(CephError):
        ceph_step.act(Recorder(CephError("Operation not permitted", 1, step.words, "")), step)


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), (10, 10), ("1K", 1024), ("1.5 GiB", 3 << 29), ("2TB", 2 << 40), ("1b", 1)]
)
def test_sizes(text, size):
    assert ceph_step.size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1G", "1.0001", "5X", "nan", "inf"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(Refused):
        ceph_step.size_in_bytes(text)
