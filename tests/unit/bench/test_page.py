# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of all benchmarks, from results that are made up."""

from __future__ import annotations

import json

import pytest

from tests.bench import harness, page
from tests.bench.__main__ import names


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "benchmarks.md")
    return tmp_path


ROWS = [
    harness.Comparison("loading", "CPU", "s", 8.7, 0.4, 21.75, 20.9, 22.4, 7, 20.0),
    harness.Figure("a fault", "wall", "s", 0.0123, 0.0456, 100, 0.2),
]


def test_the_page_has_what_was_measured_and_on_what(results):
    for name in ("inventory", "agent_latency"):
        harness.report(name, ROWS)
    assert page.write(["inventory", "agent_latency"]) == "benchmarks.md is written"
    text = (results / "benchmarks.md").read_text()
    assert "| loading | CPU | 8.70 s | 0.400 s | 21.8 (20.9 to 22.4, n=7) | ≥ 20 | yes |\n" in text
    assert "| a fault | wall | 0.0123 s | 0.0456 s | 100 | ≤ 0.2 s | yes |\n" in text
    assert "## agent_latency\n" in text
    machine = json.loads((results / "inventory.json").read_text())["machine"]
    assert f" on {machine['cpus']} cores of {machine['cpu']} " in text


def test_no_page_without_every_benchmark(results):
    harness.report("inventory", ROWS)
    assert page.write(["inventory", "agent_cost"]) == "benchmarks.md is as it was: not measured here yet: agent_cost"
    assert not (results / "benchmarks.md").exists()


def test_what_was_measured_in_another_checkout_stays(results):
    for name in ("agent_cost", "inventory", "node"):
        harness.report(name, ROWS)
    names = ["agent_cost", "inventory", "node"]
    page.write(names)
    before = (results / "benchmarks.md").read_text().split("\n## ")
    for name in ("agent_cost", "node"):
        (results / f"{name}.json").unlink()
    harness.report("inventory", ROWS[:1])
    assert page.write(names) == "benchmarks.md is written"
    after = (results / "benchmarks.md").read_text()
    head, agent_cost, inventory, node = after.split("\n## ")
    assert [head, agent_cost, node] == [before[0], before[1], before[3]]
    assert "a fault" in before[2]
    assert "a fault" not in inventory

    # Each is told with the machine that has measured it.
    kept = json.loads((results / "inventory.json").read_text())
    elsewhere = f" on {kept['machine']['cpus']} cores of {kept['machine']['cpu']} with "
    kept["machine"]["cpu"] = "an abacus"
    (results / "inventory.json").write_text(json.dumps(kept))
    assert page.write(names) == "benchmarks.md is written"
    sections = (results / "benchmarks.md").read_text().split("\n## ")
    assert " cores of an abacus with " in sections[2]
    assert all(elsewhere in section for section in (sections[1], sections[3]))


def test_what_cannot_be_measured_is_named_with_its_reason(results):
    harness.report("inventory", ROWS)
    assert page.write(["inventory", "placement"], {"placement": "there is no trace"}) == "benchmarks.md is written"
    text = (results / "benchmarks.md").read_text()
    assert "## Not measured on this machine\n\n- placement: there is no trace\n" in text
    # What was measured earlier is shown, although it could not be this time.
    harness.report("placement", ROWS)
    page.write(["inventory", "placement"], {"placement": "there is no trace"})
    assert "Not measured" not in (results / "benchmarks.md").read_text()


def test_what_was_recorded_stays_until_it_is_measured_again(results, monkeypatch):
    table = {
        "columns": harness.COLUMNS[harness.Figure],
        "rows": [["a fence", "wall", "0.28 s", "0.61 s", "200", "", ""]],
    }
    (results / "recorded.json").write_text(json.dumps({"slurm_fence": {"date": "2026-11-27", "tables": [table]}}))
    monkeypatch.setattr(page, "RECORDED", results / "recorded.json")
    assert page.write(["slurm_fence"]) == "benchmarks.md is written"
    text = (results / "benchmarks.md").read_text()
    assert "Measured on 2026-11-27 in the lab" in text
    assert "| a fence | wall | 0.28 s | 0.61 s | 200 |  |  |\n" in text
    harness.report("slurm_fence", ROWS)
    page.write(["slurm_fence"])
    assert "a fence" not in (results / "benchmarks.md").read_text()


def test_every_benchmark_is_on_the_page_of_the_documentation():
    text = page.PAGE.read_text(encoding="utf-8")
    listed = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert [name for name in listed if name in names()] == names()


def test_a_goal_of_nothing_is_a_goal():
    figure = harness.Figure("a finished host", "packets sent", "", 0.0, 0.0, 1, 0.0)
    assert harness.cells(figure)[2:] == ("0", "0", "1", "≤ 0", "yes")


def test_a_quick_run_is_not_for_the_page(results):
    harness.report("inventory", ROWS, keep=False)
    assert list(results.iterdir()) == []
