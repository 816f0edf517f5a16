# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops doctor: findings from results, which are made up after those of the modules, and as it is called."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.doctor import findings as doctor
from gpuops.run import events
from tests.unit.gpuops.conftest import DEAD, HERE
from tests.unit.project.tree import ROOT


def event(kind, action="ansible.builtin.command", task="Task", host="g1", **result):
    data = {"host": host, "task": task, "task_action": action, "res": result}
    return events.typed({"event": f"runner_on_{kind}", "event_data": data})


FACTS, PREFLIGHT = "baremetal.gpu.gpu_facts", "baremetal.gpu.gpu_preflight_info"
# The commands of the playbook.
UNITS, JOURNAL = ["systemctl", "list-units", "--failed"], ["journalctl", "--no-pager", "--unit", "docker.service"]
AGENT, LEFT = ["systemctl", "show", "baremetal-gpu-agent.service"], ["grep", "--recursive", "", "/var/lib"]


def gpu(**more):
    return {"ansible_facts": {"gpu": {"present": True, "driver": {}, "health": {"reasons": [], "devices": []}, **more}}}


def well():
    return [
        event("ok", PREFLIGHT, problems=[]),
        event("ok", FACTS, **gpu()),
        event("ok", cmd=UNITS, stdout=""),
        event("ok", cmd=AGENT, stdout="UnitFileState=enabled\nActiveState=active\n"),
        event("ok", cmd=LEFT, stdout=""),
    ]


def examine(*events, last=None):
    reader = doctor.Reader("g1")
    for row in events:
        reader.take(row)
    return reader, reader.findings(last)


def test_nothing_is_found_on_a_host_that_is_well():
    reader, findings = examine(*well())
    assert findings == []
    assert doctor.exit_status(findings) == 0
    said = [progress_text.plain(line) for line in doctor.lines("g1", reader, findings, 100)]
    assert said[0] == "g1: nothing was found"
    assert said[1].startswith("checked: preflight, driver and GPUs")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("ssh: Could not resolve hostname g1: Name or service not known", "name"),
        ("ssh: connect to host 192.0.2.1 port 22: No route to host", "network"),
        ("ssh: connect to host 192.0.2.1 port 22: Connection timed out", "network"),
        ("Host key verification failed.", "host_key"),
        ("admin@192.0.2.1: Permission denied (publickey,password).", "login"),
        ("Missing sudo password", "become"),
        ("something new", "network"),
    ],
)
def test_why_a_host_is_not_reached(said, cause):
    _reader, findings = examine(event("unreachable", msg=f"Failed to connect to the host via ssh: {said}"))
    assert [row.cause for row in findings] == [cause]
    assert doctor.exit_status(findings) == doctor.CAUSES[cause][0]
    assert said in findings[0].evidence
    assert findings[0].remedy


def test_sudo_and_python_are_told_from_a_sick_host():
    for words, cause in (("Missing sudo password", "become"), ("/bin/sh: 1: /usr/bin/python3: not found", "python")):
        _reader, findings = examine(
            event("failed", PREFLIGHT, msg=words), event("ok", FACTS, msg=words, failed_when_result=False)
        )
        assert [row.cause for row in findings] == [cause]


def test_a_fatal_gpu_comes_first_and_the_clock_last():
    clock = {"code": "time_unsynchronised", "cause": "nothing keeps the clock in step", "evidence": "", "remedy": "x"}
    full = {"code": "disk_full", "cause": "no room on /usr", "evidence": "200 MiB", "remedy": "free 3 GiB"}
    reason = {"code": "xid_79", "verdict": "fatal", "text": "it has fallen off the bus", "action": "reboot"}
    worn = {"code": "pcie_width", "verdict": "degraded", "text": "8 of 16 lanes", "action": "inspect"}
    health = {"reasons": [], "devices": [{"index": 0, "reasons": [reason]}, {"index": 1, "reasons": [worn]}]}
    facts = event("ok", FACTS, **gpu(health=health, driver={"nvml_error": {"name": "X", "text": "no NVML"}}))
    _reader, findings = examine(event("ok", PREFLIGHT, problems=[clock, full]), facts)
    assert [row.cause for row in findings] == ["gpu_fatal", "preflight", "driver", "gpu_degraded", "preflight"]
    assert findings[-1].evidence == "time_unsynchronised"
    assert doctor.exit_status(findings) == 31


def test_the_first_cause_decides_and_all_are_told():
    problem = {"code": "disk_full", "cause": "no room on /usr", "evidence": "200 MiB", "remedy": "free 3 GiB"}
    reason = {
        "code": "pcie_width",
        "verdict": "degraded",
        "text": "the PCIe link has 8 of 16 lanes",
        "action": "inspect",
        "remedy": "reseat the GPU",
        "evidence": {"value": 8, "threshold": 16, "since": 1790000000.0},
    }
    health = {"reasons": [], "devices": [{"index": 2, "reasons": [reason]}]}
    reader, findings = examine(
        event("ok", cmd=LEFT, stdout="/var/lib/baremetal-gpu/pending/drained:reboot because of nouveau\n"),
        event("ok", cmd=AGENT, stdout="UnitFileState=enabled\nActiveState=failed\n"),
        event("ok", cmd=UNITS, stdout="docker.service loaded failed failed Docker\n"),
        event("ok", results=[{"item": "docker.service", "cmd": JOURNAL, "stdout": "no space left\nexit 1"}]),
        event("ok", FACTS, **gpu(health=health)),
        event("ok", PREFLIGHT, problems=[problem]),
    )
    assert [row.cause for row in findings] == ["preflight", "gpu_degraded", "agent", "unit", "left_over"]
    assert doctor.exit_status(findings) == 20
    assert findings[0].evidence == "disk_full: 200 MiB"
    assert findings[1].text == "GPU 2: the PCIe link has 8 of 16 lanes"
    assert findings[1].evidence.startswith("pcie_width, value 8, threshold 16, since 2026-")
    assert findings[3].evidence == "no space left | exit 1"
    assert findings[4].evidence == "reboot because of nouveau"
    said = "\n".join(progress_text.plain(line) for line in doctor.lines("g1", reader, findings, 100))
    assert "  remedy:   free 3 GiB" in said
    assert "Begin with the first" in said


def test_a_driver_that_does_not_answer():
    error = {"name": "driver_not_loaded", "text": "Driver Not Loaded", "remedy": "load it with modprobe nvidia"}
    _reader, findings = examine(event("ok", FACTS, **gpu(driver={"nvml_error": error})))
    assert [(row.cause, row.evidence) for row in findings] == [("driver", "driver_not_loaded")]
    # A host without GPUs needs none.
    assert examine(event("ok", FACTS, **gpu(present=False, driver={"nvml_error": error})))[1] == []


def test_an_agent_that_is_not_heard_is_a_finding():
    """Its unit may run all the same: the report is of another boot, say."""
    health = {"reasons": [], "devices": [], "agent_error": "the report cannot be used: it is of another boot"}
    rows = well()
    rows[1] = event("ok", FACTS, **gpu(health=health))
    _reader, findings = examine(*rows)
    assert [(row.cause, "another boot" in row.text) for row in findings] == [("agent", True)]
    assert doctor.exit_status(findings) == 33


def test_what_hinders_an_agent_and_a_log_that_was_not_read_are_told():
    health = {"reasons": [], "devices": [], "problems": ["the disk is full\x1b[2J"], "log_error": "no right to"}
    rows = well()
    rows[1] = event("ok", FACTS, **gpu(health=health))
    reader, findings = examine(*rows)
    assert [row.cause for row in findings] == ["agent"]
    assert findings[0].text.isprintable()
    assert "the disk is full" in findings[0].text
    assert any("no right to" in text for text in reader.checked)


def test_the_last_failure_counts_where_nothing_else_is_found():
    last = {"stage": "cuda", "task": "Install", "reasons": [{"cause": "mirror was away", "remedy": "try again"}]}
    _reader, findings = examine(*well(), last=last)
    assert [(row.cause, row.remedy) for row in findings] == [("last_run", "try again")]
    _reader, findings = examine(event("ok", cmd=UNITS, stdout="x.service loaded failed failed X\n"), last=last)
    assert [row.cause for row in findings] == ["unit"]


def test_silence_is_no_health():
    _reader, findings = examine()
    assert [row.cause for row in findings] == ["unknown"]


def test_of_many_hosts_the_most_basic_problem_comes_first_and_those_that_are_well_are_one_line():
    readers = doctor.Readers(["g1", "g2", "g3", "g4"])
    for name in ("g1", "g3"):
        for row in well():
            readers.take(dataclasses.replace(row, host=name))
    readers.take(event("ok", cmd=UNITS, stdout="docker.service loaded failed failed Docker", host="g2"))
    readers.take(event("unreachable", host="g4", msg="ssh: connect to host g4 port 22: Connection refused"))
    readers.take(event("ok", FACTS, host="of another site"))
    found = {name: reader.findings() for name, reader in readers.readers.items()}
    said = "\n".join(progress_text.plain(line) for line in doctor.lines_of_all(readers, found, 100))
    assert said.index("network: g4") < said.index("unit: g2")
    assert "remedy:" in said
    assert said.endswith("g1, g3: nothing was found")


def test_the_exit_statuses_are_documented_where_people_look(bench):
    page = (ROOT / "docs/gpuops.md").read_text()
    shown = " ".join(bench.call("doctor", "--help").stdout.split())
    for cause, (number, _text) in doctor.CAUSES.items():
        assert re.search(rf"^\| {number} \| `{cause}` \|", page, re.MULTILINE), cause
        assert f"{number} {cause}" in shown
    assert len({number for number, _text in doctor.CAUSES.values()}) == len(doctor.CAUSES)


def test_as_it_is_called(bench):
    bench.hosts(here=HERE, dead=DEAD)
    done = bench.call("doctor", "dead", "--json")
    assert done.returncode == 11, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["findings"][0]["cause"] == "network"
    assert "Connection refused" in document["findings"][0]["evidence"]
    done = bench.call("doctor", "here", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["status"]
    assert "preflight" in document["checked"]
    assert "driver and GPUs" in document["checked"]


def test_without_a_host_all_are_examined(bench):
    bench.hosts(here=HERE, dead=DEAD)
    done = bench.call("doctor")
    assert done.returncode == 11, done.stdout + done.stderr
    assert "examining 2 hosts" in done.stderr
    assert "network: dead" in done.stdout
    assert re.search(r"here", done.stdout)
    done = bench.call("doctor", "--json")
    document = json.loads(done.stdout)
    assert {row["host"]: row["status"] for row in document["hosts"]}["dead"] == 11


@pytest.mark.parametrize("host", ["nobody", "all"])
def test_a_name_that_is_no_single_host(bench, host):
    bench.hosts(here=HERE, dead=DEAD)
    done = bench.call("doctor", host)
    assert done.returncode == 64
    assert host in done.stderr
    assert "Traceback" not in done.stderr


SLURM = "baremetal.gpu.slurm_cluster_info"
DRAINED = {
    "code": "drained",
    "subject": "g1",
    "cause": "it was drained by alice: the fan of slot 3",
    "evidence": "IDLE+DRAIN: the fan of slot 3",
    "remedy": "`sudo scontrol update nodename=g1 state=resume`",
}


def test_why_slurm_gives_a_host_no_jobs():
    reader, findings = examine(*well(), event("ok", SLURM, nodes=[{"name": "g1"}], problems=[DRAINED]))
    (finding,) = findings
    assert (finding.cause, finding.text) == ("slurm", "it was drained by alice: the fan of slot 3")
    assert finding.evidence == "IDLE+DRAIN: the fan of slot 3"
    assert doctor.exit_status(findings) == 34
    assert "Slurm" in reader.checked


def test_what_is_not_of_the_host_itself_is_named():
    waits = {**DRAINED, "subject": "job 12", "cause": "it is held"}
    _reader, findings = examine(*well(), event("ok", SLURM, nodes=[], problems=[waits]))
    assert findings[0].text == "job 12: it is held"


def test_a_host_that_cannot_ask_slurm_is_told_of_by_the_controller():
    silent = {**DRAINED, "subject": "slurmctld", "cause": "munge does not run here"}
    events_of_host = [
        event("ok", SLURM, msg="Slurm: munge does not run here", problems=[silent]),
        event("ok", SLURM, nodes=[], problems=[DRAINED]),
    ]
    _reader, findings = examine(*well(), *events_of_host)
    assert [row.text for row in findings] == ["slurmctld: munge does not run here", DRAINED["cause"]]


KUBERNETES, NODE = "baremetal.gpu.kubernetes_cluster_info", "baremetal.gpu.kubernetes_node_info"


def test_why_a_host_takes_no_pods_is_told_with_what_only_the_host_knows():
    ends = {"code": "certificate_ends", "subject": "g1", "cause": "the certificate in /a ends", "evidence": "soon"}
    cni = {"code": "cni_missing", "subject": "g1", "cause": "it has no network for pods", "evidence": "NotReady: cni"}
    reader, findings = examine(
        *well(),
        event("ok", NODE, leases=[], problems=[{**ends, "remedy": "`sudo kubeadm certs renew all`"}]),
        event("ok", KUBERNETES, nodes=[{"name": "g1"}], problems=[{**cni, "remedy": "`gpuops up --tags kubernetes`"}]),
    )
    assert [(row.cause, row.text) for row in findings] == [("kubernetes", ends["cause"]), ("kubernetes", cni["cause"])]
    assert findings[1].remedy == "`gpuops up --tags kubernetes`"
    assert doctor.exit_status(findings) == 35
    assert "Kubernetes" in reader.checked


def test_a_controller_that_is_not_reached_is_no_fault_of_the_host():
    lost = events.typed(
        {
            "event": "runner_on_unreachable",
            "stdout": 'fatal: [g1 -> head1(192.0.2.1)]: UNREACHABLE! => {"msg": "timed out"}',
            "event_data": {"host": "g1", "task_action": SLURM, "res": {"msg": "timed out", "unreachable": True}},
        }
    )
    _reader, findings = examine(*well(), lost)
    assert findings == []
