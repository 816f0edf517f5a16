# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops report: HTML, JSON and JUnit from a made-up site, and as it is called."""

from __future__ import annotations

import html.parser
import itertools
import json
import os
import re
from xml.etree import ElementTree

import pytest

from gpuops.report import collect, drawings, junit, page
from gpuops.site import Site
from tests.unit.gpuops.conftest import HERE
from tests.unit.gpuops.reported_site import HOSTILE, TOPOLOGY, made_up, verified
from tests.unit.gpuops.test_status import DOWN, DRAIN, SLURM, SLURM_JOB, facts, of_portal, of_slurm, ok, read


@pytest.fixture
def site(tmp_path):
    return made_up(tmp_path)


def test_what_is_measured_stands_beside_what_is_nominal(site):
    host = site["hosts"][0]
    proof = host["gpus"][0]["verification"]
    assert (proof["host_to_device_gb_s"], proof["device_to_device_gb_s"]) == (24.1, 640.0)
    # 1215 MHz, two transfers a clock, 5120 bits: 1555 GB/s, of which a copy gets half.
    assert proof["copy_nominal_gb_s"] == 777.6
    # The made-up GPUs have 16 lanes; a lane's rate is that of its generation.
    generation = facts()["ansible_facts"]["gpu"]["devices"][0]["pcie"]["generation"]
    assert proof["pcie_nominal_gb_s"] == round(16 * collect.PCIE_LANE_GB_S[generation], 1)
    assert host["plan"] == ["install driver 570"]
    assert host["system"] == "Debian 13"
    assert site["hosts"][1]["verified"] is None


def left_by_the_role(directory, host, devices, when):
    proof = directory / f"{host}.json"
    proof.write_text(json.dumps({"ok": True, "causes": [], "devices": devices}))
    os.utime(proof, (when, when))


# The run that is remembered was at 1000.
@pytest.mark.parametrize(("when", "shown"), [(999, 24.1), (1001, 9.9)])
def test_of_two_verifications_the_newer_one_counts(tmp_path, site, when, shown):
    gpu = verified(site["hosts"][0]["gpus"][0])
    gpu["copy"]["host_to_device_gb_s"] = 9.9
    left_by_the_role(tmp_path, "g1", [gpu], when)
    (host, *_others) = made_up(tmp_path)["hosts"]
    assert host["gpus"][0]["verification"]["host_to_device_gb_s"] == shown


def test_what_ansible_alone_has_verified_is_shown_unless_it_is_of_other_gpus(tmp_path, site):
    gpu = verified(site["hosts"][1]["gpus"][0])
    left_by_the_role(tmp_path, "g2", [gpu], 1)
    host = made_up(tmp_path)["hosts"][1]
    assert host["verified"] == {"ok": True, "causes": []}
    assert host["gpus"][0]["verification"]["device_to_host_gb_s"] == 25.2
    left_by_the_role(tmp_path, "g2", [{**gpu, "uuid": "GPU-of-another-site"}], 1)
    host = made_up(tmp_path)["hosts"][1]
    assert (host["verified"], host["gpus"][0]["verification"]) == (None, None)


class Reader(html.parser.HTMLParser):
    """What a browser would find: elements that are closed in order, ids, references and text."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.tags, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.references += [given[name] for name in ("href", "src", "action", "data") if name in given]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def browser(site):
    reader = Reader()
    reader.feed(page.html(site))
    assert reader.open == []
    return reader


def test_the_page_says_what_matters(browser):
    text = " ".join(" ".join(browser.text).split())
    for words in (
        "✗ fatal",
        "install driver 570",
        "the GPU has fallen off the bus",
        "Remedy: reboot the host",
        "12 NVLinks",
        "777.6",
        "the mirror was away",
        "try again",
        "1.0 TiB of 4.0 TiB used",
        "quorum, led by c1:2181",
        "1m30s",
    ):
        assert words in text, words


def test_the_page_needs_nothing_else_and_runs_nothing(browser, site):
    assert browser.references
    assert all(reference.startswith("#") and reference[1:] in browser.ids for reference in browser.references)
    assert {tag for tag, _given in browser.tags}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not [name for _tag, given in browser.tags for name in given if name.startswith("on")]
    written = page.html(site)
    assert "url(" not in written
    # What hosts and tasks are called is text, whatever it is.
    assert HOSTILE not in written
    assert "&lt;script&gt;" in written


def test_the_page_is_accessible(browser):
    assert browser.tags[0] == ("html", {"lang": "en"})
    assert len(set(browser.ids)) == len(browser.ids)
    headings = [int(tag[1]) for tag, _given in browser.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    assert [given for tag, given in browser.tags if tag == "th" and "scope" not in given] == []
    drawn = [given for tag, given in browser.tags if tag == "svg"]
    assert drawn
    assert all(given.get("role") == "img" and given.get("aria-label") for given in drawn)
    tables = [tag for tag, _given in browser.tags if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * (len(tables) // 2)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(site, scheme):
    """Level AA: 4.5 to 1 for text, on the page and on its bands."""
    schemes = re.findall(r":root \{(.*?)\}", page.html(site), re.DOTALL)
    assert len(schemes) == 2
    colours = dict(re.findall(r"--(\w+): (#\w{6})", schemes[scheme]))
    for name in ("text", "soft", "ok", "degraded", "bad", "link"):
        for ground in ("page", "band"):
            light, dark = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def test_junit_has_a_case_for_every_stage_and_gpu(site):
    root = ElementTree.fromstring(junit.junit(site))
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"g1", "g2", "cpu1", "storage", "zookeeper", "mesos"}
    failed = {
        (suite.get("name"), case.get("name")): case.find("failure").get("message")
        for suite in root
        for case in suite
        if case.find("failure") is not None
    }
    assert failed == {
        ("g1", "GPU 0 healthy"): "the GPU has fallen off the bus. Remedy: reboot the host",
        ("g2", "stage cuda"): "the mirror was away. Remedy: try again",
    }
    assert suites["g1"].find("testcase[@name='stage cuda']/skipped") is not None
    assert suites["g1"].find("testcase[@name='GPU 1 computes']") is not None
    assert (suites["g2"].get("tests"), suites["g2"].get("failures")) == (str(len(suites["g2"])), "1")


def test_pairs_are_told_in_words():
    assert drawings.pairs(TOPOLOGY) == [(0, 1, "nvlink", "12 NVLinks")]
    pcie = {"scores": [[None, 10], [10, None]], "kinds": {"10": {"nvlinks": 0, "pcie": "sys"}}}
    assert drawings.pairs(pcie) == [(0, 1, "pcie-sys", "different NUMA nodes")]
    assert drawings.pairs(None) == []
    assert drawings.topology("g1", {"scores": [[None]], "kinds": {}}) == ""


@pytest.mark.parametrize("place", [".gpuops/verify", "reports", "artifacts/gpu_verify"])
def test_what_ansible_alone_has_verified_is_found_where_the_role_leaves_it(tmp_path, monkeypatch, place):
    """And where it left it once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "g1.json").write_text(json.dumps({"ok": True, "devices": [{"uuid": "GPU-1", "ok": True}]}))
    found = collect.proof({}, [{"uuid": "GPU-1"}], [folder / "g1.json" for folder in collect.places(Site(tmp_path))])
    assert found["ok"] is True


def test_the_newest_of_several_reports_counts(tmp_path):
    for number, name in enumerate(("new", "old")):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"ok": name == "new", "devices": [{"uuid": "GPU-1"}]}))
        os.utime(path, (1000 - number, 1000 - number))
    for paths in ([tmp_path / "new.json", tmp_path / "old.json"], [tmp_path / "old.json", tmp_path / "new.json"]):
        assert collect.proof({}, [{"uuid": "GPU-1"}], paths)["ok"] is True
    # A GPU whose UUID is not known is not the same GPU as another such.
    assert collect.proof({}, [{"uuid": None}], [tmp_path / "new.json"]) == {}


def test_a_site_of_which_nothing_is_known(tmp_path):
    nothing = collect.gather(Site(tmp_path), read([], {"gpu_cluster": ["g1"]}), {})
    assert nothing["run"] is None
    assert "not yet" in page.html(nothing)
    assert ElementTree.fromstring(junit.junit(nothing)).find("testsuite").get("name") == "g1"


def test_a_host_without_gpus_has_nothing_to_verify(site):
    (row,) = re.findall(r">cpu1</a></th>.*?</tr>", page.html(site), re.DOTALL)
    assert "not yet" not in row


def test_a_stage_that_a_host_skipped_is_no_work_of_it(site):
    """It waited 95 seconds for the other host."""
    shown = re.findall(r"<title>(g\d), (\w+): ", page.html(site))
    assert shown == [("g1", "preflight"), ("g2", "preflight"), ("g2", "cuda")]
    stages = {
        suite.get("name"): suite.find("testcase[@name='stage cuda']").get("time")
        for suite in ElementTree.fromstring(junit.junit(site))
        if suite.get("name") in ("g1", "g2")
    }
    assert stages == {"g1": "0.0", "g2": "95.0"}


def test_as_it_is_called(bench):
    bench.inventory.write_text(json.dumps({"all": {"children": {"gpu_cluster": {"hosts": {"here": HERE}}}}}))
    bench.playbook("- hosts: all\n  gather_facts: false\n  tasks: [{ping: }]\n")
    assert bench.call("up", "-p", "play.yml").returncode == 0
    done = bench.call("report", "--output", "out/mine.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["out/mine.html", "out/mine.json", "out/mine.xml"]
    content = json.loads((bench.path / "out/mine.json").read_text())
    assert content["run"]["hosts"] == {"here": "done"}
    assert content["hosts"][0]["name"] == "here"
    assert content["site"] in (bench.path / "out/mine.html").read_text()
    done = bench.call("report", "--output", "play.yml/report.html")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


def test_no_report_is_written_where_ansible_would_read_it(bench):
    """Called in the inventory's own directory, say: the next run would take report.json for inventory."""
    (bench.path / "inventory").mkdir()
    (bench.path / "inventory/hosts.yml").write_text("gpu_cluster: {hosts: {}}\n")
    (bench.path / "ansible.cfg").write_text("[defaults]\ninventory = inventory\n")
    done = bench.call("report", "--output", "inventory/report.html")
    assert done.returncode == 64
    assert "would read it as inventory" in done.stderr
    assert [path.name for path in (bench.path / "inventory").iterdir()] == ["hosts.yml"]
    Site(bench.path / "inventory").refuse_inside(bench.path / "inventory/.gpuops/report.html")
    Site(bench.path / "inventory").refuse_inside(bench.path / "report.html")


def test_the_page_shows_the_nodes_of_slurm_and_who_has_which_gpu(tmp_path):
    drained = {**SLURM["nodes"][1], "drained": True, "state": "IDLE+DRAIN", "reason": "the fan of slot 3"}
    hostile = {**SLURM_JOB, "name": HOSTILE}
    status = of_slurm(nodes=[SLURM["nodes"][0], drained], jobs=[hostile], problems=[DRAIN])
    report = collect.gather(Site(tmp_path), status, {}, [tmp_path])
    shown = page.html(report)
    assert "Slurm: " in shown
    assert "<td>IDLE+DRAIN</td><td>the fan of slot 3</td>" in shown
    uuid = status["leases"][0]["gpus"][0]["uuid"]
    assert re.search(rf"0 <span class=\"uuid\">{uuid}</span></td><td>alice</td><td>12 ", shown)
    assert "1970-01-01 00:03:20 UTC</td><td>open" in shown
    assert "<script>" not in shown
    assert 'testsuite name="slurm" tests="1" failures="1"' in junit.junit(report)


def test_the_page_shows_the_portal_and_what_is_wrong_with_it(tmp_path):
    result = {"hub": False, "proxy": True, "sessions": {"run": 1, "wait": 2}, "problems": [{**DOWN, "cause": HOSTILE}]}
    report = collect.gather(Site(tmp_path), of_portal(ok("login1", "portal_info", **result)), {}, [tmp_path])
    shown = page.html(report)
    assert 'href="#portal"' in shown
    assert "on login1; 1 session runs, 2 wait" in shown
    assert "Remedy: see its journal" in shown
    assert "<script>" not in shown
    assert 'testsuite name="portal" tests="1" failures="1"' in junit.junit(report)
