# SPDX-License-Identifier: GPL-3.0-or-later
"""The snapshot file."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils import fleet, fleet_file
from tests.bench import made_up_fleet


@pytest.fixture
def path(tmp_path):
    made_up_fleet.write_snapshot(tmp_path / "snapshot", 5)
    return tmp_path / "snapshot"


def test_what_was_written_is_read(path):
    rows = list(fleet_file.read(str(path)))
    assert [row.host for row in rows] == [made_up_fleet.host_name(number) for number in range(5)]
    assert [sorted(row.groups) for row in rows] == [sorted(made_up_fleet.groups_of(number)) for number in range(5)]
    assert [row.facts() for row in rows] == [made_up_fleet.facts_of(number) for number in range(5)]
    assert {row.time for row in rows} == {1_800_000_000.0}


def test_every_line_is_json(path):
    for line in path.read_text().splitlines():
        assert json.loads(line)


def test_broken_facts_are_not_written():
    with pytest.raises(fleet.BrokenFacts):
        fleet_file.line("node", 1.0, {"schema": 0})


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"[[1, 2, 3], {}]",
        b'[["x", 1, "mig"], {}]',
        b'[["x", 1, [""]], {}]',
        b'[["x", 1, [{}]], {}]',
        b"\xff\xfe",
        b'[["x", 1, ["mi',
        b"null",
    ],
)
def test_a_broken_line_takes_no_other_along(path, broken):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], broken + b"\n", *lines[4:]]))
    rows = list(fleet_file.read(str(path)))
    good = [row.host for row in rows if not row.problem]
    assert good == [made_up_fleet.host_name(number) for number in (0, 1, 3, 4)]
    assert len([row for row in rows if row.problem]) == (1 if broken else 0)


def test_broken_facts_behind_good_groups_are_found_when_they_are_asked_for(path):
    text = path.read_text().replace('"devices":[', '"devices":7,"x":[', 1)
    path.write_text(text[:-20] + "\n")
    rows = list(fleet_file.read(str(path)))
    assert not any(row.problem for row in rows)
    for row in (rows[0], rows[-1]):
        with pytest.raises(fleet.BrokenFacts):
            row.facts()
    assert rows[1].facts() == made_up_fleet.facts_of(1)


@pytest.mark.parametrize("content", ["", "\n", "all:\n  hosts:\n", '{"schema": 1}\n', "[1]\n", "null\n"])
def test_another_file_is_refused_by_name_with_a_remedy(tmp_path, content):
    path = tmp_path / "hosts.yml"
    path.write_text(content)
    with pytest.raises(fleet_file.SnapshotError, match=rf"{path} is no snapshot.*gpuops inventory"):
        list(fleet_file.read(str(path)))


@pytest.mark.parametrize("schema", [0, 2, None, "1"])
def test_another_schema_is_refused_with_its_number_and_a_remedy(path, schema):
    path.write_text(path.read_text().replace('"schema": 1', f'"schema": {json.dumps(schema)}', 1))
    with pytest.raises(fleet_file.SnapshotError, match=rf"{path} has schema {schema!r}.*reads 1.*gpuops inventory"):
        list(fleet_file.read(str(path)))


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(fleet_file.SnapshotError, match=rf"{tmp_path} cannot be read: Is a directory"):
        list(fleet_file.read(str(tmp_path)))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path):
    before = path.read_bytes()

    def lines():
        yield "half a"
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError):
        fleet_file.write(str(path), 2.0, lines())
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
