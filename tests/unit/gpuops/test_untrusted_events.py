# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever hosts say: it is shown and written without anything that a terminal, a browser or a parser would obey."""

from __future__ import annotations

import copy
import io
import json
import random
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import cluster, kubectl
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.doctor import findings as doctor
from gpuops.inventory import snapshot
from gpuops.plan import host_plans
from gpuops.report import collect, drawings, junit, page
from gpuops.run import events as run_events
from gpuops.run import host_reports, screen
from gpuops.run.reducer import Reducer
from gpuops.site import Site
from gpuops.status import document as status
from gpuops.status import text as status_text
from tests.unit.gpuops.reported_site import TOPOLOGY, made_up, verified
from tests.unit.gpuops.test_status import DRAIN, GROUPS, REASON, SLURM, facts, ok, well
from tests.unit.plugins.module_utils.kubernetes.cluster_objects import Kubectl, condition, node, pod

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\nforged: ok\x00\ud800\u202e\"><img src=x onerror=alert(1)>'&lt;"
# What a terminal obeys, or what changes the order of what is read.
OBEYED = ("\x1b", "\x9b", "\x07", "\r", "\x00", "\u202e", "\ud800")


def everywhere(value, text=EVIL):
    """The value with ``text`` in the place of every text, and behind every key that is no name of ours."""
    if isinstance(value, dict):
        return {key: everywhere(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [everywhere(part, text) for part in value]
    return text if isinstance(value, str) else value


def entered(documents):
    """Events as a run hands them on."""
    taken = []
    for document in documents:
        run_events.Entry(taken.append)(document)
    return taken


WITH_SLURM = {**GROUPS, "slurm_controllers": ["g1"], "kubernetes_control_planes": ["g1"]}


def of_kubernetes():
    """What a control plane and a node say."""
    objects = {
        "nodes": [node("g1", 2, 1, condition("GpuHealthy", "False", "GpuWithheld", "1 of 2: GPU-0: xid_79"))],
        "pods": [
            pod("train-0", "g1", 1, owner=("Job", "train")),
            pod("next", gpus=2, why="0/1 nodes are available"),
        ],
    }
    found = cluster.read(kubectl.Kubectl(Kubectl(**objects).run, 5.0), now=0.0)
    problems = [{**DRAIN, "subject": "g1"}]
    told = [{"namespace": "alice", "name": "train-0", "gpus": ["GPU-0"]}]
    return [
        ok("g1", "kubernetes_cluster_info", **{**found, "problems": problems}),
        ok("g1", "kubernetes_node_info", leases=told, problems=problems),
    ]


def hostile_events():
    """The events of a site of which g1 lies; what Ansible itself says of a task stays."""
    events = [*well(), ok("g1", "slurm_cluster_info", **{**SLURM, "problems": [DRAIN]}), *of_kubernetes()]
    events[0] = ok("g1", "gpu_facts", **facts("fatal", **REASON))
    for event in events:
        if event["event_data"]["host"] == "g1":
            said = everywhere(event["event_data"]["res"])
            if "ansible_facts" in said:
                said["ansible_facts"]["gpu"]["topology"] = {
                    "scores": [[None, 1250], [1250, None]],
                    "kinds": {"1250": {"nvlinks": None, "pcie": EVIL}},
                }
            event["event_data"]["res"] = said
    return entered(events)


def document_of(events):
    reader = status.Reader(WITH_SLURM)
    for event in events:
        reader.take(event)
    return reader.document(1000.0)


def printed(lines):
    """What a terminal gets."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=120, highlight=False, markup=False)
    screen.Quiet(console=console).lines(lines)
    return file.getvalue()


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [name for name, _value in attrs]


def is_harmless(report):
    """Whether the three files of a report are what they are to be; the text of the page."""
    found = page.html(report)
    read = Page(found)
    assert not read.tags & {"img", "script", "iframe"}
    assert not [name for name in read.attributes if name.startswith("on")]
    json.loads(json.dumps(report, allow_nan=False))
    text = junit.junit(report)
    root = ElementTree.fromstring(text)
    for made in (found, text):
        made.encode()
        assert not [sign for sign in OBEYED if sign in made]
    assert [suite.get("name") for suite in root][: len(report["hosts"])] == [row["name"] for row in report["hosts"]]
    return found


def test_a_lying_host_is_shown_on_its_own_lines_only(tmp_path):
    document = document_of(hostile_events())
    shown = printed(status_text.lines(document, 120))
    assert not [sign for sign in OBEYED if sign in shown]
    # No line of the screen is one that the host has made.
    assert not [line for line in shown.splitlines() if line.startswith("forged")]
    assert [row["name"] for row in document["nodes"]] == [row["name"] for row in document_of(entered(well()))["nodes"]]


def test_the_report_of_a_lying_host_obeys_nobody(tmp_path):
    made_up(tmp_path)
    events = hostile_events()
    taken = collect.Facts()
    for event in events:
        taken.take(event)
    assert taken.hosts["g1"]["topology"]["kinds"]
    kept = json.dumps(
        {"g1": everywhere({"plan": {"steps": ["x"]}, "verify": {"causes": [{"where": "x"}], "devices": []}})}
    )
    (next((tmp_path / ".gpuops" / "runs").iterdir()) / host_reports.FILE).write_text(kept)
    is_harmless(collect.gather(Site(tmp_path), document_of(events), taken.hosts, [tmp_path]))


@pytest.mark.parametrize("word", ['x" onload="alert(1)', "<b>", "pix'", ["pix"], {"pix": 1}, None, 7, "../pix"])
def test_a_word_of_a_topology_is_no_attribute(word):
    found = {"scores": [[None, 7], [7, None]], "kinds": {"7": {"nvlinks": 0, "pcie": word}}}
    assert 'class="unknown"' in drawings.topology("g1", found)
    assert drawings.pairs(found) == [(0, 1, "unknown", "not known")]


@pytest.mark.parametrize(
    "found",
    [
        *(
            None,
            [],
            "x",
            {"scores": "x"},
            {"scores": [1]},
            {"scores": [[None, 1], [1]]},
            {"scores": [[None] * 2000] * 2000},
        ),
        {"scores": [[None, {}], [[], None]], "kinds": []},
    ],
)
def test_what_is_no_topology_is_not_drawn(found):
    assert drawings.topology("g1", found) == ""


def test_a_topology_is_drawn():
    assert drawings.pairs(TOPOLOGY) == [(0, 1, "nvlink", "12 NVLinks")]


def test_junit_takes_names_of_any_signs(tmp_path):
    report = made_up(tmp_path)
    for sign in ("\x00", "\x1b", "\x0b", "\ud800", "\udfff", "\ufffe", "\uffff"):
        odd = json.loads(json.dumps(report))
        odd["site"] = f"a{sign}b"
        odd["hosts"][0]["name"] = f"g{sign}1"
        odd["hosts"][0]["stages"] = {f"st{sign}age": "failed"}
        odd["hosts"][0]["gpus"][0]["index"] = f"0{sign}"
        odd["hosts"][0]["state"] = "fatal"
        odd["hosts"][0]["problem"] = {"cause": f"{sign}cause", "remedy": sign}
        text = junit.junit(odd)
        text.encode()
        assert ElementTree.fromstring(text)[0].get("name") in ("g\ufffd1", "g 1")


@pytest.mark.parametrize("kind", [progress.FAILED, progress.UNREACHABLE])
def test_a_failure_tells_a_terminal_nothing_to_obey(kind):
    failure = progress.Failure("g1", "driver", EVIL, kind, {"msg": EVIL, "stderr": EVIL, "results": 5}, 1.0)
    for ascii_only in (False, True):
        told_by_ansible = [progress_text.plain(line, ascii_only) for line in progress_text.failure_lines(failure, 80)]
        assert all(line.isprintable() for line in told_by_ansible)
    shown = printed(progress_text.failure_lines(failure, 80))
    assert not [sign for sign in OBEYED if sign in shown]


def test_roles_that_a_host_makes_up_are_no_stages():
    run = progress.Run(0.0)
    reducer = Reducer(run)
    for roles in (5, "x", {"a": 1}, ["made-up", ["x"], 7, None, "nouveau"]):
        data = {"host": "g1", "task": "t", "res": {progress.FINISHED: roles}}
        reducer.take(run_events.typed({"event": "runner_on_ok", "event_data": data}), 1.0)
    assert run.stages() == ["driver"]


def test_a_host_of_which_nothing_can_be_read_is_named_and_the_others_are_heard(capsys):
    heard = []

    def take(event):
        heard.append(len(event.result["rows"]))

    handed_on = run_events.Entry(take)
    for rows in (5, [1], 7, [1, 2]):
        handed_on({"event": "runner_on_ok", "event_data": {"host": "g1", "task": "Look", "res": {"rows": rows}}})
    assert heard == [1, 2]
    said = capsys.readouterr().err
    assert said.count("g1: the result of 'Look' cannot be read") == 1


def test_what_json_cannot_hold_is_left_out():
    deep = value = []
    for _ in range(1000):
        value.append([])
        value = value[0]
    odd = {"a": float("nan"), "b": float("inf"), "c": 10**400, "d": deep, "e": {"x" * 1000: "y"}, "f": "z" * 10**6}
    found = untrusted_document.cleaned(odd)
    text = json.dumps(found, allow_nan=False)
    assert (found["a"], found["b"], found["c"]) == (None, None, None)
    assert len(text) < 300_000
    assert max(map(len, found["e"])) <= 500


def some_value(chance, depth=2):
    kind = chance.randrange(10 if depth else 7)
    if kind < 3:
        return EVIL if chance.random() < 0.5 else chance.choice(["", "ok", "fatal", "x" * 3000, "5", "GPU-1", "-1"])
    if kind < 7:
        return chance.choice([None, True, False, 0, -1, 7, 10**18, 10**400, 1.5, -1e300, float("nan"), float("inf")])
    if kind < 9:
        return [some_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    keys = ["uuid", "verdict", "reasons", "devices", "text", EVIL]
    return {chance.choice(keys): some_value(chance, depth - 1) for _ in range(chance.randrange(4))}


def spoiled(chance, value, share):
    if chance.random() < share:
        return some_value(chance)
    if isinstance(value, dict):
        return {key: spoiled(chance, part, share) for key, part in value.items()}
    return [spoiled(chance, part, share) for part in value] if isinstance(value, list) else value


DRIFT = {"packages": [{"name": "x", "why": "is not installed", "actions": ["install"]}]}


def try_site(seed, directory):
    """All that gpuops makes of the events of a site of which every answer may be spoiled."""
    chance = random.Random(seed)
    share = chance.choice([0.005, 0.02, 0.1])
    events = well()
    events[0] = ok("g1", "gpu_facts", **facts("fatal", **REASON))
    events[0]["event_data"]["res"]["ansible_facts"]["gpu"]["topology"] = copy.deepcopy(TOPOLOGY)
    untouched = copy.deepcopy(events[1])
    report = {
        "ok": True,
        "causes": [{"where": "x", "text": "y", "remedy": "z"}],
        "devices": [verified({"uuid": "GPU-0"})],
    }
    events += [
        ok("g1", "slurm_cluster_info", **{**SLURM, "problems": [DRAIN]}),
        *of_kubernetes(),
        ok("g1", "gpu_verify_report", report=report),
        ok(
            "g1",
            "gpu_preflight_info",
            plan={"steps": ["a"], "os": {"key": "debian13"}},
            problems=[],
            advice=[],
        ),
        ok("g1", "host_drift_info", changed=True, drift=DRIFT),
        ok("g1", "ceph_osd_device", devices=[{"action": "prepare", "path": "/dev/x", "also_wipe": ["y"]}]),
    ]
    for event in events:
        if event["event_data"] != untouched["event_data"]:
            event["event_data"]["res"] = spoiled(chance, event["event_data"]["res"], share)
    run, kept, planned, examined = (
        progress.Run(0.0),
        host_reports.HostReports(),
        host_plans.Reader(),
        doctor.Reader("g1"),
    )
    reader, taken, reducer = status.Reader(WITH_SLURM), collect.Facts(), Reducer(run)
    for take in (reader.take, taken.take, kept.take, examined.take, planned.take):
        hand_on = run_events.Entry(take)
        for event in events:
            hand_on(event)
    for event in events:
        run_events.Entry(lambda given: reducer.take(given, 1.0))(event)
    document = reader.document(1000.0)
    (second,) = (row for row in document["nodes"] if row["name"] == "g2")
    assert second["state"] == "ok"
    shown = printed(status_text.lines(document, 100))
    findings = examined.findings()
    shown += printed(doctor.lines("g1", examined, findings, 100))
    run.finished(2.0)
    shown += printed(host_plans.lines(run, planned, 100, with_diffs=True)) + printed(progress_text.summary(run, 100))
    assert not [sign for sign in OBEYED if sign in shown]
    for made in (
        document,
        kept.hosts,
        doctor.as_json("g1", examined, findings),
        host_plans.as_json(planned.hosts, True),
    ):
        json.dumps(made, allow_nan=False)
    (next((directory / ".gpuops" / "runs").iterdir()) / host_reports.FILE).write_text(json.dumps(kept.hosts))
    is_harmless(collect.gather(Site(directory), document, taken.hosts, [directory]))


@pytest.fixture(scope="module")
def remembered(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    made_up(directory)
    return directory


@pytest.mark.parametrize("seed", range(60))
def test_whatever_hosts_say_it_is_shown_and_written(seed, remembered):
    try_site(seed, remembered)


def try_facts_of_a_fleet(seed, directory):
    """What the inventory makes of facts, of a snapshot that has them, and of a file that somebody has spoiled."""
    chance = random.Random(seed)
    base = facts("fatal", **REASON)["ansible_facts"]["gpu"]
    base = {**base, "pci": [{"kind": "gpu", "model": "A100", "architecture": "ampere"}]}
    outcome = snapshot.Outcome(1.0)
    snapshot.take_event(outcome, run_events.typed(ok("good", "gpu_facts", ansible_facts={"gpu": base})))
    for number in range(8):
        event = ok(f"evil{number}", "gpu_facts", ansible_facts=spoiled(chance, {"gpu": base}, 0.05))
        run_events.Entry(lambda given: snapshot.take_event(outcome, given))(event)
    assert "good" in outcome.found
    for problem in outcome.problems.values():
        assert problem.isprintable()
    path = directory / "gpus.jsonl"
    fleet_file.write(str(path), 1.0, outcome.found.values())
    for row in fleet_file.read(str(path), facts=True):
        fleet.gpus(row.facts())
        assert all(name.replace("_", "").isalnum() and name.isascii() for name in row.groups)
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 5)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data[: chance.choice([len(data), len(data) // 2])])
    rows, problem = snapshot.earlier(path)
    assert not (rows and problem)
    assert not [row for row in rows.values() if row.problem]


@pytest.mark.parametrize("seed", range(25))
def test_whatever_facts_a_fleet_has(seed, tmp_path):
    try_facts_of_a_fleet(seed, tmp_path)


@pytest.mark.slow
def test_whatever_hosts_say_for_longer(remembered):
    for seed in range(1000, 1600):
        try_site(seed, remembered)
        try_facts_of_a_fleet(seed, remembered)
