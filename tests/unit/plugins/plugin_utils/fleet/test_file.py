# SPDX-License-Identifier: GPL-3.0-or-later
"""The snapshot file."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from tests.bench import made_up_fleet


@pytest.fixture
def path(tmp_path):
    made_up_fleet.write_snapshot(tmp_path / "snapshot", 5)
    return tmp_path / "snapshot"


def read(path, *, facts=True):
    return list(fleet_file.read(str(path), facts=facts))


@pytest.mark.parametrize("facts", [True, False])
def test_what_was_written_is_read(path, facts):
    rows = read(path, facts=facts)
    assert [row.host for row in rows] == [made_up_fleet.host_name(number) for number in range(5)]
    assert [sorted(row.groups) for row in rows] == [sorted(made_up_fleet.groups_of(number)) for number in range(5)]
    assert {row.time for row in rows} == {1_800_000_000.0}
    assert not any(row.problem for row in rows)
    if facts:
        assert [row.facts() for row in rows] == [made_up_fleet.facts_of(number) for number in range(5)]


def test_every_line_is_json(path):
    for line in path.read_text().splitlines():
        assert json.loads(line)


def test_broken_facts_are_not_written():
    with pytest.raises(fleet.BrokenFacts):
        fleet_file.row_of("node", 1.0, {"schema": 0})


@pytest.mark.parametrize("facts", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"[1, 2, 3]",
        b'["x", 1, "mig"]',
        b'["x", 1, [""]]',
        b'["x", 1, [{}]]',
        b'["x", {}]',
        b"\xff\xfe",
        b'["x", 1, ["mi',
        b"null",
        b'["x", NaN, []]',
        b'["x", true, []]',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_broken_line_takes_no_other_along(path, broken, facts):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], broken + b"\n", *lines[4:]]))
    rows = read(path, facts=facts)
    assert [bool(row.problem) for row in rows] == [False, False, True, False, False]
    good = [number for number in range(5) if number != 2]
    assert [rows[number].host for number in good] == [made_up_fleet.host_name(number) for number in good]
    if facts:
        assert [rows[number].facts() for number in good] == [made_up_fleet.facts_of(number) for number in good]


def broken_facts(path):
    """What is wrong with the facts of each host, None where nothing is."""
    found = []
    for row in read(path):
        assert not row.problem
        try:
            assert row.facts()
            found.append(None)
        except fleet.BrokenFacts as error:
            found.append(str(error))
    return found


def test_broken_facts_behind_good_groups_are_found_when_they_are_asked_for(path):
    text = path.read_text().replace('"devices":[', '"devices":7,"x":[', 1)
    *lines, last = text.splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], "[" * 100_000 + "\n", last[:-20] + "\n"]))
    found = broken_facts(path)
    assert [text is None for text in found] == [False, True, True, False, False]
    assert found[3].startswith("the facts cannot be read: ")
    assert found[4].startswith("the facts cannot be read: ")


def test_of_a_file_that_ends_too_early_the_rest_has_no_facts(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8]))
    assert [text is None for text in broken_facts(path)] == [True, True, False, False, False]


def test_what_is_read_can_be_written_again_though_the_last_newline_is_missing(path):
    text = path.read_text()
    path.write_text(text[:-1])
    fleet_file.write(str(path), 1_800_000_000.0, read(path))
    assert path.read_text() == text


def test_facts_are_never_taken_for_those_of_another_host(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:6], lines[7], lines[6], *lines[8:]]))
    first, second = (made_up_fleet.host_name(number) for number in (0, 1))
    assert broken_facts(path) == [
        f"the facts cannot be read: in their place are those of {second}",
        f"the facts cannot be read: in their place are those of {first}",
        *(None, None, None),
    ]


@pytest.mark.parametrize("content", ["", "\n", "all:\n  hosts:\n", '{"schema": 1}\n', "[1]\n", "null\n", "[" * 9999])
def test_another_file_is_refused_by_name_with_a_remedy(tmp_path, content):
    path = tmp_path / "hosts.yml"
    path.write_text(content)
    with pytest.raises(fleet_file.SnapshotError, match=rf"{path} is not a snapshot.*gpuops inventory"):
        read(path)


@pytest.mark.parametrize("schema", [0, 1, None, "2"])
def test_another_schema_is_refused_with_its_number_and_a_remedy(path, schema):
    path.write_text(path.read_text().replace('"schema": 2', f'"schema": {json.dumps(schema)}', 1))
    with pytest.raises(fleet_file.SnapshotError, match=rf"{path} has schema {schema!r}.*reads 2.*gpuops inventory"):
        read(path)


@pytest.mark.parametrize("hosts", [None, -1, "5"])
def test_a_header_without_the_count_of_hosts_is_refused(path, hosts):
    path.write_text(path.read_text().replace('"hosts": 5', f'"hosts": {json.dumps(hosts)}', 1))
    with pytest.raises(fleet_file.SnapshotError, match=rf"{path} does not say how many.*hosts is {hosts!r}.*gpuops"):
        read(path)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(fleet_file.SnapshotError, match=rf"{tmp_path} cannot be read: Is a directory"):
        read(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path):
    before = path.read_bytes()

    with pytest.raises(AttributeError):
        fleet_file.write(str(path), 2.0, [fleet_file.Row("whole"), None])
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
