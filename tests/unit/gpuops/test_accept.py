# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops accept: what it remembers, how it goes on after it was cut, and its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    AUDIT,
    FAIL,
    GPU,
    NETWORK,
    NODE,
    NOT_TESTABLE,
    PASS,
    SERVICES,
    STAGES,
    Item,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.accept import history, record, report
from gpuops.run.events import HostResult, Task
from tests.unit.gpuops.conftest import DEAD, HERE, Bench

ITEMS = [
    Item("node.driver", NODE, "n1", PASS, "the driver: 550"),
    Item("node.driver", NODE, "n2", FAIL, "the driver: 535", "run `gpuops up`"),
    Item("gpu.fp32", GPU, "n2", NOT_TESTABLE, "<script>alert(1)</script>", "", "GPU 1"),
]


def acceptance(**more):
    return record.Acceptance(1790000000.0, "", [NODE, GPU], 5.0, hosts={"n1": {}, "n2": {}}, **more)


def result(host, action, outcome="ok", **content):
    return HostResult(host=host, task=Task(action=action), outcome=outcome, result=content)


def test_what_a_host_returns_is_remembered_at_once(tmp_path):
    taker = record.Taker(tmp_path, acceptance(), lambda document: document)
    taker.stage = NODE
    taker.take(result("n1", "gpu_facts", ansible_facts={"gpu": {"present": True}}))
    taker.take(result("n1", "accept_info", accept={"schema": 1}))
    taker.take(result("n1", "gpu_load", "skipped"))
    taker.take(result("n2", "accept_info", "unreachable"))
    taker.take(result("other", "accept_info", accept={"schema": 1}))
    found = record.load(tmp_path)
    assert found.hosts == {"n1": {"gpu": {"present": True}, "accept": {"schema": 1}, "why_node": ""}, "n2": {}}
    assert (found.left(NODE), found.passed_by(NODE)) == (["n2"], ["n1"])
    assert found.left(GPU) == ["n1", "n2"]
    assert (tmp_path / record.FILE).stat().st_mode & 0o777 == 0o600


def pair(peer, rate=24.0):
    return {"peer": peer, "error": None, "latency_us": 30.0, "send_gbit_s": rate, "receive_gbit_s": rate}


def told(host, state="measured", **measured):
    return result(host, "accept_network", measured=measured or None, ended=state == "ended")


def test_what_a_job_of_slurm_held_is_remembered_until_the_load_has_come(tmp_path):
    found = acceptance()
    taker = record.Taker(tmp_path, found, lambda document: document)
    taker.stage = GPU
    taker.take(result("n1", "accept_hold", held={"job": 7, "minors": [0], "why": ""}))
    taker.take(result("n1", "accept_hold", held=None))
    assert found.left(GPU) == ["n1", "n2"]
    taker.take(result("n1", "gpu_load", "skipped"))
    assert found.hosts["n1"] == {"held": {"job": 7, "minors": [0], "why": ""}, "load": None, "why_gpu": ""}
    assert found.left(GPU) == ["n2"]


def test_the_network_is_measured_whole_or_not_at_all(tmp_path):
    found = acceptance()
    taker = record.Taker(tmp_path, found, lambda document: document)
    taker.stage = NETWORK
    taker.take(told("n1", **pair("n2")))
    taker.take(told("n1", "ended"))
    taker.take(result("n2", "accept_network", "failed", msg="no port is free"))
    assert found.hosts == {"n1": {"network": [pair("n2")]}, "n2": {"network": [], "why_network": "no port is free"}}
    assert found.left(NETWORK) == []
    found.begin_stage(NETWORK)
    assert found.hosts == {"n1": {}, "n2": {}}
    assert found.left(NETWORK) == ["n1", "n2"]


def test_what_is_asked_once_is_remembered_by_who_answered(tmp_path):
    found = acceptance()
    taker = record.Taker(tmp_path, found, lambda document: document)
    taker.stage = SERVICES
    taker.take(result("head", "accept_services", part="login", service={"missing": ["git"]}))
    taker.take(result("mon", "accept_services", "unreachable", msg="no route"))
    taker.take(result("stor", "ceph_cluster_info", problems=[]))
    assert found.services == {"head": {"login": {"missing": ["git"]}}, "mon": {"unreachable_services": "no route"}}
    found.stages = [SERVICES]
    rows = {(item.host, item.id): item.outcome for item in record.judge(found)}
    assert rows["head", "services.login"] == FAIL
    assert rows["mon", "services.service"] == NOT_TESTABLE
    assert record.load(tmp_path).services == found.services


def test_an_audit_names_what_mends_each_check(tmp_path):
    found = acceptance()
    taker = record.Taker(tmp_path, found, lambda document: document)
    taker.stage = AUDIT
    rows = [
        {"id": "software.lmod.modulesStatus", "title": "Software / Lmod", "status": "FAIL", "observed": "missing"},
        {"id": "bmc-ipmi", "title": "BMC", "status": "WARNING", "observed": "not collected"},
    ]
    taker.take(result("head", "accept_audit", audit={"installed": True, "error": None, "rows": rows}))
    taker.take(result("login2", "accept_audit", audit={"installed": False, "error": None, "rows": []}))
    found.stages = [AUDIT]
    told = {(item.host, item.subject or item.id): (item.outcome, item.remedy) for item in record.judge(found)}
    assert told["head", "software.lmod.modulesStatus"][0] == FAIL
    assert "gpuops up --tags software" in told["head", "software.lmod.modulesStatus"][1]
    assert told["head", "bmc-ipmi"] == (NOT_TESTABLE, "")
    outcome, remedy = told["login2", "audit.program"]
    assert outcome == NOT_TESTABLE
    assert "pip install clustermax" in remedy


FLEET = ("n1", "n2", "n3", "n4", "n5")


def fleet():
    """A whole acceptance in which the host n1 was well."""
    hosts = {name: {"network": []} for name in FLEET}
    for number, name in enumerate(FLEET):
        hosts[name]["network"] = [pair(other) for other in FLEET[number + 1 :]]
    return record.Acceptance(1780000000.0, "", [NETWORK], 5.0, hosts=hosts)


@pytest.mark.parametrize(("rate", "wanted"), [(24.0, set()), (2.0, {"network.send", "network.receive"})])
def test_a_short_acceptance_compares_a_host_with_what_is_known_of_the_others(tmp_path, rate, wanted):
    record.add_to_fleet(tmp_path, fleet())
    short = record.begin("n1", [NETWORK], 1.0, ["n1"], ["n2", "n3", "n9"])
    taker = record.Taker(tmp_path, short, lambda document: document)
    taker.stage = NETWORK
    for event in (told("n1", **pair("n2", rate)), told("n3", **pair("n1", rate)), told("n9", **pair("n1", rate))):
        taker.take(event)
    taker.take(told("n1", "ended"))
    assert short.left(NETWORK) == []
    found = record.judge(short, fleet=record.load(tmp_path, record.FLEET_FILE))
    assert {item.host for item in found} == {"n1"}
    assert {item.id for item in found if item.outcome == FAIL} == wanted
    record.save(tmp_path, short)
    assert record.load(tmp_path) is None, "it is none that can be gone on with"


def test_what_is_known_of_the_fleet_comes_from_several_acceptances(tmp_path):
    record.add_to_fleet(tmp_path, record.Acceptance(1.0, "", [NODE], 0.0, hosts={"n1": {"accept": {}}, "gone": {}}))
    record.add_to_fleet(tmp_path, record.Acceptance(2.0, "n1", [GPU], 0.0, hosts={"n1": {"load": {}}}))
    assert record.load(tmp_path, record.FLEET_FILE).hosts == {"n1": {"accept": {}, "load": {}}, "gone": {}}
    record.add_to_fleet(tmp_path, record.Acceptance(3.0, "", [NODE], 0.0, hosts={"n1": {"accept": None}, "n2": {}}))
    assert record.load(tmp_path, record.FLEET_FILE).hosts == {"n1": {"accept": None, "load": {}}, "n2": {}}


def test_without_a_whole_acceptance_the_partners_are_the_fleet(tmp_path):
    short = record.begin("n1", [NETWORK], 1.0, ["n1"], ["n2", "n3", "n4"])
    short.hosts["n1"]["network"] = [pair(name, 2.0) for name in ("n2", "n3", "n4")]
    short.partners["n2"]["network"] = [pair("n3"), pair("n4")]
    short.partners["n3"]["network"] = [pair("n4")]
    assert {item.id for item in record.judge(short) if item.outcome == FAIL} == {"network.send", "network.receive"}


def test_reports_are_kept_and_what_cannot_be_read_is_passed_over(tmp_path):
    found = report.document(acceptance(), ITEMS, "s")
    path = history.keep(tmp_path, found)
    assert path.stat().st_mode & 0o777 == 0o600
    (path.parent / "0.json").write_text("{")
    (path.parent / "1.json").write_text('{"version": 1, "started": 1, "hosts": ["n1"], "items": [7]}')
    assert history.earlier(tmp_path) == [json.loads(json.dumps(found))]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2, "hosts": {}}', '{"hosts": 7}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / record.FILE).write_text(text)
    assert record.load(tmp_path) is None


def test_the_document_holds_to_its_schema():
    found = report.document(acceptance(ended=1790000600.0), ITEMS, "mysite")
    schema = json.loads(report.SCHEMA_FILE.read_text())
    jsonschema.validate(found, schema)
    assert found["accepted"] is False
    assert found["counts"] == {"pass": 1, "fail": 1, "not_applicable": 0, "not_testable": 1}


def test_nothing_that_passes_is_nothing_accepted():
    assert report.document(acceptance(), [], "s")["accepted"] is False
    assert report.document(acceptance(), ITEMS[2:], "s")["accepted"] is False
    assert report.document(acceptance(), ITEMS[:1], "s")["accepted"] is True


def test_the_files_tell_the_same_and_what_hosts_say_is_no_markup(tmp_path):
    found = report.document(acceptance(ended=1790000600.0), ITEMS, "mysite")
    page, data, suites = report.write(found, tmp_path / "a" / "acceptance.html")
    assert json.loads(data.read_text()) == found
    text = page.read_text()
    assert "Not accepted" in text
    assert "the driver: 535" in text
    assert "<script>" not in text
    cases = {
        (case.get("classname"), case.get("name")): [part.tag for part in case]
        for case in ElementTree.parse(suites).iter("testcase")
    }
    assert cases == {
        ("n1", "node.driver"): [],
        ("n2", "node.driver"): ["failure"],
        ("n2", "gpu.fp32 GPU 1"): ["skipped"],
    }


def test_one_table_has_what_came_of_each_host_at_each_stage():
    found = report.document(acceptance(), [*ITEMS, Item("node.os", NODE, "n2", FAIL, "another")], "s")
    rows = [progress_text.plain(line).split("  ") for line in report.table(found, 100)]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [["HOST", "node", "gpu"], ["n1", "pass", "-"], ["n2", "2 fail", "not tested"]]


def test_of_many_hosts_those_where_something_fails_are_in_the_table():
    many = record.Acceptance(1790000000.0, "", [NODE], 5.0, hosts={f"n{number}": {} for number in range(100)})
    items = [Item("node.driver", NODE, f"n{number}", FAIL if number == 77 else PASS, "") for number in range(100)]
    lines = [progress_text.plain(line) for line in report.table(report.document(many, items, "s"), 100)]
    assert [line.split()[0] for line in lines] == ["HOST", "n77"]


def test_what_fails_is_printed_with_its_remedy():
    first, last = report.lines(report.document(acceptance(), ITEMS, "s"))
    assert first == "n2 node.driver: the driver: 535. Remedy: run `gpuops up`"
    assert last == "Not accepted: 1 pass, 1 fail, 0 not applicable, 1 not testable here"


def test_a_signed_report_is_known_by_its_signature(tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (_page, data, _suites) = report.write(report.document(acceptance(), ITEMS, "s"), tmp_path / "acceptance.html")
    for _again in range(2):
        signature = report.sign(data, key)
    signers = tmp_path / "signers"
    signers.write_text(f"site {Path(f'{key}.pub').read_text()}")

    def verified():
        done = subprocess.run(
            ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "site", "-n", report.NAMESPACE, "-s", signature],
            stdin=data.open(),
            check=False,
        )
        return done.returncode == 0

    assert verified()
    data.write_text(data.read_text().replace("535", "550"))
    assert not verified()


def test_a_key_that_is_none_is_refused_with_its_name(tmp_path):
    (tmp_path / "key").write_text("no key")
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(report.SigningFailed, match=r"could not be signed with .*key"):
        report.sign(tmp_path / "report.json", tmp_path / "key")


def group(bench: Bench, **hosts):
    bench.inventory.write_text(json.dumps({"gpu_cluster": {"hosts": hosts}}))


def test_wrong_options_are_refused_before_anything_runs(bench):
    group(bench, n1=HERE)
    for words, told in (
        (("--stages", "node,moon"), "moon is not a stage; the stages are node, gpu, network, storage, sched"),
        (("--resume",), "there is no acceptance to go on with"),
        (("--resume", "--short"), "leave --resume or --short out"),
        (("--limit", "nobody"), "nobody"),
        (("--sign-key", "nowhere"), "nowhere is not a file"),
    ):
        done = bench.call("accept", *words)
        assert (done.returncode, told in done.stderr) == (64, True), done.stderr
    assert not (bench.path / ".gpuops" / "runs").exists()


@pytest.mark.slow
def test_hosts_are_looked_at_and_one_that_is_dead_is_not_accepted_for_it(bench):
    group(bench, n1=HERE, n2=DEAD)
    done = bench.call("accept", "--minutes", "0")
    assert done.returncode in (4, 6), done.stdout + done.stderr
    # One table, in which each stage is a column; while they run, each stage is a line.
    lines = done.stdout.splitlines()
    assert [line.split() for line in lines if line.startswith("HOST")] == [["HOST", *STAGES]]
    assert [line.partition(":")[0] for line in lines if " in " in line and line.partition(":")[0] in STAGES] == list(
        STAGES
    )
    assert "Accept the hosts" not in done.stdout
    found = json.loads((bench.path / "acceptance.json").read_text())
    assert found["hosts"] == ["n1", "n2"]
    dead = [row for row in found["items"] if row["host"] == "n2"]
    # That it is no node of Slurm, and has no registry, the inventory tells.
    told = {row["outcome"] for row in dead if row["stage"] not in ("scheduler", "services")}
    assert told == {"not_testable"}
    assert not {row["outcome"] for row in dead} & {"pass", "fail"}
    alive = {row["id"]: row["outcome"] for row in found["items"] if row["host"] == "n1"}
    assert alive["node.kernel"] == "not_applicable", "there is no other host to compare it with"
    assert "node.time" in alive


@pytest.mark.slow
def test_every_host_measures_with_every_other_one_and_listens_no_more(bench):
    here = {**HERE, "ansible_host": "127.0.0.1"}
    group(bench, n1=here, n2=here, n3=here, n4=DEAD)
    done = bench.call("accept", "--stages", "network", "--", "-e", "accept_network_seconds=0.2")
    assert done.returncode & 4, done.stdout + done.stderr
    found = record.load(bench.path / ".gpuops")
    rows = [(host, row["peer"]) for host in found.hosts for row in found.hosts[host].get("network", [])]
    assert {"".join(sorted(pair)) for pair in rows} == {"n1n2", "n1n3", "n2n3"}
    assert not [row for host in found.hosts.values() for row in host.get("network", []) if row["error"]]
    assert found.left("network") == ["n4"]
    items = json.loads((bench.path / "acceptance.json").read_text())["items"]
    assert {row["outcome"] for row in items if row["host"] == "n4"} == {"not_testable"}
    assert {row["host"] for row in items if row["id"] == "network.send"} == {"n1", "n2", "n3"}


@pytest.mark.slow
def test_a_host_that_is_not_accepted_is_not_brought_back(bench):
    group(bench, n1=DEAD)
    done = bench.call("restore", "n1", "--accept")
    assert done.returncode & 4, done.stdout + done.stderr
    assert "nothing was brought back" in done.stderr
    assert {json.loads((path / "run.json").read_text())["playbook"] for path in bench.runs()} == {
        "baremetal.gpu.accept"
    }
    assert not (bench.path / ".gpuops" / record.FILE).exists()
    assert (bench.path / "acceptance-short.json").exists()


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(bench):
    group(bench, n1=HERE, n2=HERE)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuops", "accept", "--minutes", "0"],
        cwd=bench.path,
        env=bench.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    remembered = bench.path / ".gpuops"
    # As soon as a host has gone through the first stage.
    while process.poll() is None and not ((found := record.load(remembered)) and found.passed_by(NODE)):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = record.load(remembered)
    assert before.passed_by(NODE)
    done = bench.call("accept", "--resume")
    assert done.returncode in (0, 2), done.stdout + done.stderr
    after = record.load(remembered)
    assert after.started == before.started
    assert after.left(NODE) == after.left(GPU) == []
    assert all(after.done[host].count(NODE) == 1 for host in before.passed_by(NODE))
    assert json.loads((bench.path / "acceptance.json").read_text())["hosts"] == ["n1", "n2"]
