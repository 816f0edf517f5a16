# SPDX-License-Identifier: GPL-3.0-or-later
"""Merging settings into documents of others, as properties where there are any."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge

keys = st.sampled_from(["a", "b", "c", "features", "log-opts"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("xyz", max_size=2)
values = scalars | st.lists(scalars, max_size=3)
documents = st.dictionaries(
    keys, st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=8), max_size=4
)


def fits(data: dict, wanted: dict) -> bool:
    try:
        merge.merge(data, wanted)
    except merge.Conflict:
        return False
    return True


def test_tables_are_merged_and_the_order_stays():
    data = {"log-driver": "json-file", "features": {"buildkit": True}, "debug": False}
    wanted = {"features": {"cdi": True}, "data-root": "/srv/docker", "debug": True}
    result = merge.merge(data, wanted)
    assert list(result) == ["log-driver", "features", "debug", "data-root"]
    assert result["features"] == {"buildkit": True, "cdi": True}
    assert result["debug"] is True
    assert data["features"] == {"buildkit": True}, "the given document was changed"


@pytest.mark.parametrize(("lists", "expected"), [("replace", ["c", "a"]), ("union", ["a", "b", "c"])])
def test_lists(lists, expected):
    assert merge.merge({"l": ["a", "b"]}, {"l": ["c", "a"]}, lists) == {"l": expected}


@pytest.mark.parametrize(
    ("data", "wanted", "path"),
    [({"a": {"b": 1}}, {"a": 1}, "a"), ({"a": {"b": 1}}, {"a": {"b": {"c": 2}}}, "a.b"), ({"a": [1]}, {"a": {}}, "a")],
)
def test_a_table_and_a_value_do_not_replace_each_other(data, wanted, path):
    with pytest.raises(merge.Conflict, match=f"^{path} is ") as caught:
        merge.merge(data, wanted)
    assert merge.name(caught.value.path) == path


def test_null_gives_way_to_a_table():
    assert merge.merge({"a": None}, {"a": {"b": 1}}) == {"a": {"b": 1}}


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([1], [True])])
def test_values_that_python_takes_for_equal_and_a_reader_does_not(one, other):
    assert not merge.same(one, other)
    assert merge.merge({"a": one}, {"a": other}) == {"a": other}
    assert type(merge.merge({"a": one}, {"a": other})["a"]) is type(other)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("features", "cdi"), {"features": {"buildkit": True}, "debug": True}),
        (("features",), {"debug": True}),
        (("features", "cdi", "deeper"), {"features": {"cdi": True, "buildkit": True}, "debug": True}),
        (("nowhere", "cdi"), {"features": {"cdi": True, "buildkit": True}, "debug": True}),
    ],
)
def test_remove(path, expected):
    assert merge.remove({"features": {"cdi": True, "buildkit": True}, "debug": True}, path) == expected


def test_remove_takes_tables_along_that_it_empties():
    assert merge.remove({"a": {"b": {"c": 1}}, "d": {}}, ("a", "b", "c")) == {"d": {}}


@given(documents, documents)
def test_a_second_merge_changes_nothing(data, wanted):
    for lists in ("replace", "union"):
        if fits(data, wanted):
            once = merge.merge(data, wanted, lists)
            assert merge.same(merge.merge(once, wanted, lists), once)


@given(documents, documents)
def test_what_was_not_asked_for_stays(data, wanted):
    if not fits(data, wanted):
        return
    result = merge.merge(data, wanted)
    asked = merge.leaves(wanted)
    for path, value in merge.leaves(data).items():
        # A null or an empty table gives way to the table that is asked for in its place.
        if path not in asked and value not in ({}, None):
            assert merge.same(merge.get(result, path), value)
    assert [key for key in result if key in data] == list(data)


@given(documents, documents, st.sampled_from(["replace", "union"]))
def test_what_was_put_in_and_is_withdrawn_leaves_what_was_there(data, wanted, lists):
    if not fits(data, wanted):
        return
    after, claims, replaced = merge.apply(data, wanted, [], lists, None)
    assert merge.same(merge.withdraw(after, wanted, [], lists, claims, replaced), data)


@given(documents, documents, documents, st.sampled_from(["replace", "union"]))
@example({"a": None}, {"a": {"a": None}}, {"a": None}, "replace")
def test_a_changed_wish_ends_as_if_it_had_been_the_only_one(data, first, second, lists):
    if not fits(data, first) or not fits(data, second):
        return
    between, claims, replaced = merge.apply(data, first, [], lists, None)
    try:
        after, claims, replaced = merge.apply(between, second, [], lists, claims, replaced)
    except merge.Conflict:
        return
    direct, _claims, _replaced = merge.apply(data, second, [], lists, None)
    found, expected = merge.leaves(after), merge.leaves(direct)
    assert found.keys() == expected.keys()
    for path, value in found.items():
        if isinstance(value, list) and lists == "union":
            assert sorted(map(json.dumps, value)) == sorted(map(json.dumps, expected[path]))
        else:
            assert merge.same(value, expected[path])
    assert merge.same(merge.withdraw(after, {}, [], lists, claims, replaced), data)


@given(documents, documents, st.sampled_from(["replace", "union"]))
def test_a_second_run_claims_the_same(data, wanted, lists):
    if not fits(data, wanted):
        return
    once, *remembered = merge.apply(data, wanted, [], lists, None)
    twice, *again = merge.apply(once, wanted, [], lists, *remembered)
    assert merge.same(once, twice)
    assert remembered == again


def test_an_empty_list_of_ours_goes_with_the_rest():
    """Docker refuses a runtime that has arguments and no path."""
    wanted = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}
    data, claims, replaced = merge.apply({"debug": True}, wanted, [], "union", None)
    data, claims, replaced = merge.apply(data, wanted, [], "union", claims, replaced)
    assert merge.withdraw(data, {}, [], "union", claims, replaced) == {"debug": True}


def test_a_setting_that_was_there_before_is_not_claimed():
    wanted = {"debug": True, "features": {"cdi": True}}
    assert merge.apply({"debug": True}, wanted, [])[1:] == ({("features", "cdi"): True}, {})


def test_a_claim_that_someone_has_changed_stays():
    assert merge.withdraw({"debug": False}, {}, [], claims={("debug",): True}) == {"debug": False}


def test_what_somebody_has_put_in_the_place_of_ours_is_what_comes_back():
    _data, *remembered = merge.apply({"default-runtime": "crun"}, {"default-runtime": "nvidia"}, [])
    data, *remembered = merge.apply(
        {"default-runtime": "kata"}, {"default-runtime": "nvidia"}, [], "union", *remembered
    )
    assert data == {"default-runtime": "nvidia"}
    assert merge.withdraw(data, {}, [], "union", *remembered) == {"default-runtime": "kata"}


@pytest.mark.parametrize("theirs", [None, {}, {"features": None}, {"features": {}}, {"features": {"cdi": False}}])
def test_whatever_was_there_comes_back(theirs):
    data = {"a": theirs, "labels": ["site=a"]}
    wanted = {"a": {"features": {"cdi": True}}, "labels": ["ours"]}
    for lists in ("replace", "union"):
        after, *remembered = merge.apply(data, wanted, [], lists)
        assert merge.get(after, ("a", "features", "cdi")) is True
        assert merge.withdraw(after, {}, [], lists, *remembered) == data


def test_only_our_items_of_a_united_list_are_taken_back():
    data = {"mirrors": ["https://site"]}
    after, claims, replaced = merge.apply(data, {"mirrors": ["https://site", "https://ours"]}, [], "union", None)
    assert after == {"mirrors": ["https://site", "https://ours"]}
    assert claims == {("mirrors",): ["https://ours"]}
    assert merge.withdraw(after, {}, [], "union", claims, replaced) == data


def test_what_is_removed_for_good_is_named():
    data = {"graph": "/srv", "features": {"cdi": True, "buildkit": True}}
    claims = {("features", "cdi"): True}
    assert merge.lost(data, [("graph",), ("features",)], claims) == [("features", "buildkit"), ("graph",)]
    assert merge.lost(data, [("nothing",)], claims) == []


def test_parse_json_keeps_order_and_takes_an_empty_text_for_an_empty_object():
    assert list(merge.parse_json('{"b": 1, "a": {"d": 1, "c": 2}}')) == ["b", "a"]
    assert merge.parse_json(" \n") == {}


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ('{\n  "debug": true,\n}', 3, 1, "Expecting property name|Illegal trailing comma"),
        ('{"a": 1', 1, 8, "Expecting ',' delimiter"),
        ('{"a": 1} x', 1, 10, "Extra data"),
        ('{\n "a": 1,\n "b": {"x": 1, "x": 2}}', 3, 7, 'the key "x" occurs twice'),
        ('{\n "a": NaN}', 2, 7, "NaN is not a JSON number"),
        ("[1]", 1, 1, "no JSON object"),
        ('\ufeff{"a": }', 1, 7, "Expecting value"),
        ("[" * 100000, 1, 1, "nested too deeply|Expecting value"),
    ],
)
def test_parse_json_says_where_a_text_is_broken(text, line, column, reason):
    with pytest.raises(merge.Malformed, match=reason) as caught:
        merge.parse_json(text)
    if "[[[" not in text:
        assert (caught.value.line, caught.value.column) in {(line, column), (2, 16)}


@pytest.mark.parametrize("text", ['\ufeff{"a": 1}', '\ufeff{\n  "a": 1\n}\n', "\ufeff", "\ufeff \n"])
def test_a_byte_order_mark_is_passed_over_as_the_programs_do_and_stays(text):
    data = merge.parse_json(text)
    assert data == ({"a": 1} if "a" in text else {})
    after = merge.render_json({**data, "b": 2}, text)
    assert after.startswith("\ufeff{")
    assert after.count("\ufeff") == 1
    assert merge.parse_json(after) == {**data, "b": 2}
    if "\n  " in text:
        assert after == '\ufeff{\n  "a": 1,\n  "b": 2\n}\n'


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_render_json_keeps_the_indent(indent):
    text = f'{{\n{indent}"a": {{\n{indent * 2}"b": "é"\n{indent}}}\n}}\n'
    assert merge.render_json(merge.parse_json(text), text) == text


@given(documents)
def test_json_round_trip(data):
    assert merge.same(merge.parse_json(merge.render_json(data)), data)


@given(documents, documents)
def test_differences_are_empty_exactly_for_the_same_documents(one, other):
    assert merge.differences(one, one) == []
    assert bool(merge.differences(one, other)) == (not merge.same(one, other))
