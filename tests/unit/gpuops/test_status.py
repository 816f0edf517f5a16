# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops status: from answers of the modules to the document and the words, and as it is called.

The answers are made up after what the modules document; the facts of GPUs are those of the made-up fleet.
"""

from __future__ import annotations

import copy
import json
import re

import jsonschema
import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from gpuops.run import events
from gpuops.status import document as status
from gpuops.status import text as status_text
from tests.bench import made_up_fleet
from tests.unit.gpuops.conftest import DEAD, HERE

SCHEMA = json.loads(status.SCHEMA.read_text())
GROUPS = {
    "gpu_cluster": ["g1", "g2", "cpu1"],
    "ceph_mons": ["s1", "s2"],
    "zookeeper": ["c1", "c2", "c3"],
    "mesos_masters": ["c1"],
}
CLUSTER = {
    "fsid": "5d1c3c5e-0000-4000-8000-000000000000",
    "mons": ["s1", "s2"],
    "osds": [{"id": 0, "uuid": "a", "up": True, "in": True}, {"id": 1, "uuid": "b", "up": False, "in": True}],
    "health": {"status": "HEALTH_WARN", "checks": {"OSD_DOWN": "1 osds down"}},
}
DF = {"stats": {"total_bytes": 4 << 40, "total_used_raw_bytes": 1 << 40, "total_avail_bytes": 3 << 40}}
SERVERS = [
    {"host": "c1", "port": 2181, "state": "serving", "mode": "leader"},
    {"host": "c2", "port": 2181, "state": "serving", "mode": "follower"},
    {"host": "c3", "port": 2181, "state": "unreachable", "mode": None},
]
AGENTS = [{"id": "A1", "hostname": "g1", "state": "active", "resources": {"gpus": 2}, "used_resources": {"gpus": 1}}]
TASKS = [
    {"id": "t", "name": "train", "framework": "marathon", "agent_id": "A1", "state": "TASK_RUNNING"}
    | {"resources": {"gpus": 1}}
]


NO_LEADER = {
    "code": "no_leader",
    "subject": "mesos",
    "cause": "no master leads: refused",
    "remedy": "start the masters",
}


def ok(host, action, task="Task", **result):
    return {
        "event": "runner_on_ok",
        "event_data": {"host": host, "task": task, "task_action": f"baremetal.gpu.{action}", "res": result},
    }


def ran(host, command, output):
    data = {"host": host, "task_action": "ansible.builtin.command", "res": {"cmd": command, "stdout": output}}
    return {"event": "runner_on_ok", "event_data": data}


def facts(verdict="ok", **reasons):
    """A node with two GPUs, of which the first one is as is said."""
    gpu = copy.deepcopy(made_up_fleet.facts_of(0))
    gpu["devices"] = gpu["devices"][:2]
    for gpu_device in gpu["devices"]:
        gpu_device["process_count"] = 0
    gpu["health"] = {
        "verdict": verdict,
        "reasons": [],
        "devices": [{"uuid": gpu_device["uuid"], "verdict": "ok", "reasons": []} for gpu_device in gpu["devices"]],
    }
    if reasons:
        gpu["health"]["devices"][0] |= {"verdict": verdict, "reasons": [{"verdict": verdict, **reasons}]}
    return {"ansible_facts": {"gpu": gpu}}


def unreachable(host, message="no route to host"):
    return {"event": "runner_on_unreachable", "event_data": {"host": host, "res": {"msg": message}}}


def well():
    return [
        ok("g1", "gpu_facts", **facts()),
        ok("g2", "gpu_facts", **facts()),
        ok("cpu1", "gpu_facts", ansible_facts={"gpu": {"present": False, "devices": [], "health": None}}),
        ok("s1", "ceph_cluster_info", cluster={**CLUSTER, "health": {"status": "HEALTH_OK", "checks": {}}}),
        ran("s1", ["ceph", "--connect-timeout=15", "df"], json.dumps(DF)),
        ok("s1", "ceph_info", subvolumes={"alice": {"size": 200 << 30, "used": 1 << 30}, "bob": {"used": 0}}),
        ok("c1", "zookeeper_info", complete=True, quorum=True, leader="c1:2181", servers=SERVERS[:2], problems=[]),
        ok("c1", "mesos_state_info", leader="http://c1:5050", agents=AGENTS, tasks=TASKS),
    ]


def read(documents, groups=GROUPS, now=1000.0):
    reader = status.Reader(groups)
    for document in documents:
        reader.take(events.typed(document))
    document = reader.document(now)
    jsonschema.validate(document, SCHEMA)
    return document


def text(document, width=100):
    return "\n".join(progress_text.plain(line) for line in status_text.lines(document, width))


def test_a_site_that_is_well():
    document = read(well())
    assert document["state"] == "ok"
    assert document["not_seen"] == []
    assert [node["state"] for node in document["nodes"]] == ["ok", "ok", "no_gpu"]
    assert status.EXIT[document["state"]] == 0
    said = text(document)
    assert re.search(r"^g1 +ok +\d+\.\d+.* +2x .*, idle$", said, re.MULTILINE)
    assert "storage    ok: 2 monitors in quorum, 1 of 2 OSDs up, 2 in; 1.0 TiB of 4.0 TiB used (25 %)" in said
    assert "home alice: 1.0 GiB of 200 GiB" in said
    assert "home bob: 0 B, no quota" in said
    assert "zookeeper  ok: quorum, led by c1:2181; 2 of 2 servers serve" in said
    assert "mesos      ok: led by http://c1:5050; 1 agent, 1 of 2 GPUs in use" in said
    assert "task train of marathon on g1, 1 GPUs: TASK_RUNNING" in said


SERVED = {**GROUPS, "registries": ["c1"], "prometheus_servers": ["c1"], "log_hosts": ["s1"], "nfs_servers": ["s1"]}
STOPPED = {
    "code": "unit_down",
    "subject": "prometheus.service",
    "cause": "prometheus.service of c1 is failed",
    "evidence": "failed",
    "remedy": "see 'sudo journalctl -u prometheus.service' on c1",
}


def served(*problems):
    return [
        ok("c1", "services_info", part="registry", problems=[]),
        ok("c1", "services_info", part="monitoring", problems=list(problems)),
        ok("s1", "services_info", part="logs", problems=[]),
        ok("s1", "services_info", part="homes", problems=[]),
    ]


def test_a_status_begins_with_a_line_for_each_part_of_the_site():
    document = read([*well(), *served()], SERVED)
    assert document["state"] == "ok"
    first = text(document).split("\n\n")[0].splitlines()
    parts = ["nodes", "mesos", "zookeeper", "storage", "homes", "registry", "monitoring", "logs"]
    assert [row.split()[0] for row in first] == parts
    assert first[0] == "nodes      ok: 3 hosts; 4 GPUs: 4 idle"
    assert first[-2:] == ["monitoring ok: c1", "logs       ok: s1"]


def test_a_service_that_is_down_is_told_above_with_its_state_and_below_with_its_remedy():
    document = read([*well(), *served(STOPPED)], SERVED)
    assert (document["state"], document["monitoring"]["state"], document["registry"]["state"]) == (
        "fatal",
        "fatal",
        "ok",
    )
    head, _blank, rest = text(document).partition("\n\n")
    assert "monitoring fatal: c1" in head
    assert "prometheus.service of c1 is failed" in rest
    assert "remedy: see 'sudo journalctl -u prometheus.service' on c1" in rest


def test_services_of_a_host_that_is_not_reached_are_not_taken_for_working():
    document = read([*well(), *served()[:2], unreachable("s1")], SERVED)
    assert document["logs"]["state"] == document["homes"]["state"] == "unreachable"
    assert "no route to host" in document["logs"]["problem"]["cause"]
    assert "logs" in document["not_seen"]


def test_nodes_that_are_not_well_come_first():
    sick = [
        ok("g2", "gpu_facts", **facts("fatal", **REASON)) if row["event_data"]["host"] == "g2" else row
        for row in well()
    ]
    said = text(read(sick))
    assert "nodes      fatal: 3 hosts, 1 not well; 4 GPUs: 1 fatal, 3 idle" in said
    assert said.index("\ng2 ") < said.index("\ng1 ")


REASON = {"code": "xid_79", "text": "the GPU has fallen off the bus", "action": "reboot", "remedy": "reboot the host"}


def test_a_sick_gpu_is_told_with_its_remedy():
    events = [ok("g1", "gpu_facts", **facts("fatal", **REASON)), *well()[1:]]
    document = read(events)
    assert document["state"] == "fatal"
    assert document["nodes"][0]["gpus"][0]["reasons"][0]["code"] == "xid_79"
    said = text(document)
    assert "GPU 0: the GPU has fallen off the bus [xid_79]" in said
    assert "remedy: reboot the host" in said


def test_a_node_whose_agent_is_not_heard_says_why():
    answer = facts("unknown")
    answer["ansible_facts"]["gpu"]["health"].update(agent_error="the report: it is of another boot\x1b[2J", problems=[])
    document = read([ok("g1", "gpu_facts", **answer), *well()[1:]])
    node = document["nodes"][0]
    assert (node["state"], document["state"]) == ("unknown", "unknown")
    assert "another boot" in node["problem"]["cause"]
    assert "another boot" in text(document)
    assert "\x1b" not in text(document)


def test_what_hinders_an_agent_is_told_of_a_node_that_is_well():
    answer = facts()
    answer["ansible_facts"]["gpu"]["health"].update(agent_error=None, problems=["the disk is full"])
    node = read([ok("g1", "gpu_facts", **answer), *well()[1:]])["nodes"][0]
    assert (node["state"], node["problem"]["cause"]) == ("ok", "the disk is full")


@pytest.mark.parametrize(("verdict", "state"), [("fatal", "fatal"), ("unknown", "unknown"), ("ok", "no_gpu")])
def test_a_node_whose_only_gpu_has_vanished_is_none_without_gpus(verdict, state):
    gone = {"uuid": "GPU-1", "index": None, "pci_address": "0000:3b:00.0", "verdict": verdict, "reasons": []}
    health = {"verdict": verdict, "reasons": [], "devices": [gone]}
    gpu = {"present": False, "devices": [], "health": health}
    node = read([ok("g1", "gpu_facts", ansible_facts={"gpu": gpu}), *well()[1:]])["nodes"][0]
    assert node["state"] == state
    assert [gpu_device["uuid"] for gpu_device in node["gpus"]] == ([] if state == "no_gpu" else ["GPU-1"])


def line_of(answer, name="g1"):
    """What the line of a node says of its GPUs."""
    said = text(read([ok(name, "gpu_facts", **answer), *well()[1:]]), 160)
    return next(line for line in said.splitlines() if line.startswith(f"{name} ")).split("  ")[-1].strip()


GONE = {"uuid": "GPU-1", "index": None, "pci_address": "0000:3b:00.0", "verdict": "fatal", "reasons": []}


def test_a_gpu_that_is_gone_is_not_idle():
    gpu = {"present": False, "devices": [], "health": {"verdict": "fatal", "reasons": [], "devices": [GONE]}}
    assert line_of({"ansible_facts": {"gpu": gpu}}) == "1x gpu, gone"
    answer = facts()
    # Nobody knows the UUID of either.
    answer["ansible_facts"]["gpu"]["health"]["devices"] += [{**GONE, "uuid": None}, {**GONE, "uuid": None}]
    assert re.fullmatch("2x .*, idle; 2x gpu, gone", line_of(answer))


@pytest.mark.parametrize("verdict", ["fatal", "unknown"])
def test_a_gpu_that_is_fatal_or_of_which_nothing_is_known_is_not_idle(verdict):
    answer = facts(verdict, code="xid_fatal", text="an Xid", remedy="reset it")
    assert re.fullmatch(f"2x .*, 1 {verdict}, 1 idle", line_of(answer))
    answer["ansible_facts"]["gpu"]["devices"][1]["process_count"] = 2
    assert re.fullmatch(f"2x .*, 1 {verdict}, 1 busy", line_of(answer))


@pytest.mark.parametrize("verdict", ["fatal", "unknown"])
def test_no_gpu_of_a_node_is_idle_that_is_fatal_as_a_whole_or_not_known(verdict):
    answer = facts()
    reasons = [{"verdict": verdict, "code": "driver", "text": "the driver does not answer", "remedy": "reboot it"}]
    answer["ansible_facts"]["gpu"]["health"].update(verdict=verdict, reasons=reasons)
    assert re.fullmatch(f"2x .*, {verdict}", line_of(answer))


def test_a_gpu_whose_processes_are_not_known_is_not_idle():
    answer = facts()
    answer["ansible_facts"]["gpu"]["devices"][0]["process_count"] = None
    assert re.fullmatch("2x .*, 1 use not known, 1 idle", line_of(answer))


def test_a_lost_gpu_that_does_not_tell_its_uuid_is_one_gpu():
    answer = facts()
    gpu = answer["ansible_facts"]["gpu"]
    gpu["devices"][0].update(uuid=None, process_count=None, pci_address="0000:3b:00.0")
    gpu["health"].update(verdict="fatal", devices=[{**gpu["health"]["devices"][1]}, GONE])
    assert re.fullmatch("2x .*, 1 fatal, 1 idle", line_of(answer))


def test_who_uses_which_gpu():
    events = well()
    gpus = events[0]["event_data"]["res"]["ansible_facts"]["gpu"]["devices"]
    gpus[0]["process_count"] = 1
    gpus[1]["process_count"] = 3
    listed = f"{gpus[0]['uuid']}, 4711, /usr/bin/python train.py, --fast, 1234\nNo devices were found\n"
    events.append(ran("g1", ["nvidia-smi", "--query-compute-apps=pid"], listed))
    document = read(events)
    assert document["nodes"][0]["gpus"][0]["users"] == [
        {"pid": 4711, "name": "/usr/bin/python train.py, --fast", "memory_mib": 1234}
    ]
    said = text(document, 160)
    assert "GPU 0: /usr/bin/python train.py, --fast (process 4711, 1234 MiB)" in said
    # Where nvidia-smi does not say who, there is at least how many.
    assert "GPU 1: 3 processes" in said
    assert ", 2 busy" in said


def test_it_works_while_parts_are_down_and_says_which():
    events = [
        unreachable("g2"),
        *[unreachable(host) for host in GROUPS["ceph_mons"]],
        ok("g1", "gpu_facts", msg="the module broke"),
        ok("c1", "zookeeper_info", complete=False, quorum=False, leader=None, servers=SERVERS, problems=["no leader"]),
        ok("c1", "mesos_state_info", msg="no master leads", problems=[NO_LEADER]),
    ]
    document = read(events)
    states = {node["name"]: node["state"] for node in document["nodes"]}
    # The run ended before it came to cpu1.
    assert states == {"g1": "unknown", "g2": "unreachable", "cpu1": "unknown"}
    assert document["not_seen"] == ["g1 (unknown)", "g2 (unreachable)", "cpu1 (unknown)", "storage", "mesos"]
    assert "none of s1, s2 can be reached: no route to host" in document["storage"]["problem"]["cause"]
    assert document["zookeeper"]["state"] == "fatal"
    assert document["mesos"]["problem"] == {"cause": "no master leads: refused", "remedy": "start the masters"}
    assert document["state"] == "fatal"
    said = text(document)
    assert "NO QUORUM; 2 of 3 servers serve" in said
    assert "the module broke" in said


def test_of_some_hosts_only_those_are_told():
    reader = status.Reader(GROUPS, partial=True)
    for event in (ok("g1", "gpu_facts", **facts()), unreachable("g2")):
        reader.take(events.typed(event))
    document = reader.document(1000.0)
    jsonschema.validate(document, SCHEMA)
    assert [(node["name"], node["state"]) for node in document["nodes"]] == [("g1", "ok"), ("g2", "unreachable")]
    assert document["storage"] is None


def test_a_site_without_storage_and_scheduler():
    document = read([ok("g1", "gpu_facts", **facts())], {"gpu_cluster": ["g1"]})
    assert (document["storage"], document["zookeeper"], document["mesos"]) == (None, None, None)
    assert "storage" not in text(document)


@pytest.mark.parametrize("change", [{"state": "fine"}, {"version": 2}, {"nodes": [{}]}, {"more": 1}])
def test_the_schema_is_strict(change):
    """What tells that a document is right must refuse one that is not."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read(well()), **change}, SCHEMA)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 30, "200 GiB"), (1 << 50, "1.0 PiB")]
)
def test_sizes(count, words):
    assert status_text.size(count) == words


def test_as_it_is_called(bench):
    bench.inventory.write_text(
        json.dumps(
            {
                "all": {
                    "children": {
                        "gpu_cluster": {"hosts": {"here": HERE, "dead": DEAD}},
                        "zookeeper": {"hosts": {"here": {}}},
                        "ceph_mons": {"hosts": {"dead": {}}},
                        "portals": {"hosts": {"here": {}}, "vars": {"portal_hub_port": 1, "portal_port": 1}},
                    }
                }
            }
        )
    )
    done = bench.call("status", "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert done.returncode == status.EXIT[document["state"]] != 0
    nodes = {node["name"]: node for node in document["nodes"]}
    assert nodes["dead"]["state"] == "unreachable"
    assert "Connection refused" in nodes["dead"]["problem"]["cause"]
    assert document["storage"]["state"] == "unreachable"
    assert document["zookeeper"]["servers"][0]["host"] == "here"
    assert document["mesos"] is None
    # Nothing of it is here.
    portal = document["portal"]
    assert (portal["state"], portal["host"], portal["hub"], portal["sessions"]) == ("fatal", "here", False, None)
    assert portal["problems"][0]["cause"] == "the hub of the portal does not answer"
    done = bench.call("status", "--limit", "here")
    assert "dead" not in done.stdout.split("storage")[0]
    # A look is no run: nothing is kept of it.
    assert not (bench.path / ".gpuops").exists()


def test_the_schema_is_printed(bench):
    done = bench.call("status", "--schema")
    assert json.loads(done.stdout) == SCHEMA


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ({"code": "quorum", "subject": "s1", "cause": "no quorum", "remedy": "start s2"}, ("no quorum", "start s2")),
        ("no quorum. To do: start s2", ("no quorum. To do: start s2", "read the logs of the monitors")),
    ],
)
def test_a_storage_cluster_that_does_not_answer_says_why(problem, shown):
    events_of_site = [*well()[:3], ok("s1", "ceph_cluster_info", cluster=None, problems=[problem]), *well()[6:]]
    document = read(events_of_site)
    assert document["storage"]["problem"] == {"cause": shown[0], "remedy": shown[1]}
    assert text(document).count("no quorum") == 1


def test_problems_of_an_ensemble_have_their_remedies():
    row = {"code": "server_down", "subject": "c3", "cause": "c3 does not serve", "remedy": "start it"}
    result = {"complete": False, "quorum": True, "leader": "c1:2181", "servers": SERVERS, "problems": [row, "a text"]}
    document = read([*well()[:6], ok("c1", "zookeeper_info", **result), well()[7]])
    assert document["zookeeper"]["problems"] == [
        {"cause": "c3 does not serve", "remedy": "start it"},
        {"cause": "a text", "remedy": ""},
    ]
    assert "remedy: start it" in text(document)


SLURM_GROUPS = {"gpu_cluster": ["g1", "g2"], "slurm_controllers": ["h1"]}
SLURM_NODE = {
    "state": "MIXED",
    "reason": "",
    "reason_by": "",
    "in_service": True,
    "drained": False,
    "takes_jobs": True,
    "gpus": 2,
    "gpus_used": 2,
    "gpus_free": 0,
    "cpus": 8,
    "free_cpus": 6,
    "memory_mib": 16000,
    "free_memory_mib": 12000,
    "partitions": ["all"],
}
SLURM_JOB = {
    "id": "12",
    "name": "train",
    "user": "alice",
    "account": "default",
    "partition": "all",
    "qos": "normal",
    "state": "RUNNING",
    "waits": False,
    "reason": "",
    "waits_for": "",
    "cpus": 1,
    "gpus": 1,
    "submitted": 100.0,
    "started": 200.0,
    "ends": None,
    "holder": False,
    "nodes": [{"name": "g1", "minors": [1]}],
}
WAITS = {
    "id": "14",
    "user": "bob",
    "state": "PENDING",
    "waits": True,
    "reason": "Resources",
    "waits_for": "no node has enough free resources",
    "gpus": 2,
    "started": None,
    "nodes": [],
}
SLURM = {
    "nodes": [{**SLURM_NODE, "name": "g1"}, {**SLURM_NODE, "name": "g2", "gpus_used": 0, "gpus_free": 2}],
    "partitions": [
        {"name": "all", "state": "UP", "default": True, "hidden": False, "nodes": 2, "max_time": "UNLIMITED"}
    ],
    "jobs": [SLURM_JOB, {**SLURM_JOB, **WAITS}],
    "waiting_total": 1,
    "problems": [],
}
DRAIN = {
    "code": "drained",
    "subject": "g2",
    "cause": "it was drained by root: the fan of slot 3",
    "evidence": "IDLE+DRAIN",
    "remedy": "`sudo scontrol update nodename=g2 state=resume`",
}


def with_minors(**bad):
    """Facts of a node whose GPUs have the minors 1 and 0."""
    found = facts(**bad)
    for place, gpu in enumerate(found["ansible_facts"]["gpu"]["devices"]):
        gpu.update(index=place, minor=1 - place, process_count=0)
    return found


def of_slurm(gpus=None, **more):
    return read(
        [ok("g1", "gpu_facts", **(gpus or with_minors())), ok("h1", "slurm_cluster_info", **{**SLURM, **more})],
        {**SLURM_GROUPS, "gpu_cluster": ["g1"]},
    )


def test_who_has_which_gpu_of_slurm():
    document = of_slurm()
    uuid = document["nodes"][0]["gpus"][0]["uuid"]
    assert document["leases"] == [
        {
            "scheduler": "slurm",
            "job": "12",
            "name": "train",
            "user": "alice",
            "host": "g1",
            "gpus": [{"uuid": uuid, "index": 0}],
            "started": 200.0,
            "expected_end": None,
            "processes": 0,
        }
    ]
    assert document["slurm"]["state"] == document["state"] == "ok"
    said = text(document, 80)
    assert "slurm      ok: 2 of 2 nodes accept jobs, 2 of 4 GPUs in use; 1 job runs, 1 waits" in said
    assert re.search(r"^g1 +0 +alice +12 +\S+ +- +train \(no process on its GPUs\)$", said, re.MULTILINE)
    assert re.search(r"^ +14 +bob +all +2 +no node has enough free resources \(Resources\)$", said, re.MULTILINE)
    assert max(len(row) for row in said.split("\n")) <= 100


@pytest.mark.parametrize(
    ("code", "state"),
    [("holder_waits", "degraded"), ("guarded", "degraded"), ("no_uid", "degraded"), ("reserved", "ok")],
)
def test_a_holder_that_does_not_start_is_told_and_the_site_is_not_well(code, state):
    problem = {**DRAIN, "code": code, "cause": "a bad GPU of it is not out of service", "remedy": "run slurm"}
    document = of_slurm(problems=[problem])
    assert document["slurm"]["state"] == state
    said = text(document)
    assert "g2: a bad GPU of it is not out of service" in said
    assert "remedy: run slurm" in said


def test_a_holder_that_waits_is_no_job_of_anybodys():
    waiting = {**SLURM_JOB, **WAITS, "id": "15", "user": "slurm", "partition": "gpuops", "holder": True}
    document = of_slurm(jobs=[SLURM_JOB, waiting])
    assert [job["id"] for job in document["slurm"]["jobs"]] == ["12"]
    assert "slurm      ok" in text(document)
    assert " 15 " not in text(document)


def test_a_node_that_is_reserved_accepts_no_jobs():
    closed = {**SLURM_NODE, "name": "g2", "state": "IDLE+RESERVED", "takes_jobs": False, "gpus_used": 0}
    document = of_slurm(nodes=[{**SLURM_NODE, "name": "g1"}, closed])
    assert "1 of 2 nodes accept jobs" in text(document)


def test_a_gpu_that_no_host_tells_of_is_not_guessed():
    unknown = {**SLURM_JOB, "nodes": [{"name": "g2", "minors": [0]}, {"name": "g1", "minors": [None]}]}
    document = of_slurm(jobs=[unknown])
    assert [lease["gpus"] for lease in document["leases"]] == [[{"uuid": None, "index": None}]] * 2
    assert [lease["processes"] for lease in document["leases"]] == [None, None]
    assert "1 of ?" in text(document)


def test_a_gpu_that_the_reconciler_holds_is_nobodys():
    bad = with_minors(verdict="fatal")
    gpu = bad["ansible_facts"]["gpu"]
    gpu["health"]["devices"][0] |= {"verdict": "fatal", "reasons": [{**REASON, "verdict": "fatal"}]}
    holder = {**SLURM_JOB, "id": "13", "user": "slurm", "partition": "gpuops", "holder": True}
    document = of_slurm(bad, jobs=[holder], nodes=[{**SLURM["nodes"][0], "fenced": [1]}, SLURM["nodes"][1]])
    assert (document["slurm"]["state"], document["slurm"]["unfenced"]) == ("ok", [])
    uuid = gpu["devices"][0]["uuid"]
    assert document["leases"] == []
    assert document["slurm"]["jobs"] == []
    assert document["slurm"]["held"] == [{"host": "g1", "index": 0, "uuid": uuid, "job": "13", "code": "xid_79"}]
    assert "g1 GPU 0 held: out of service, xid_79" in text(document)
    assert "1 of 4 GPUs in use, 1 held" in text(document)


@pytest.mark.parametrize("fenced", [[], [0], None, "1", [None, 0]])
def test_a_fatal_gpu_that_jobs_can_still_get_is_told_with_the_command_that_closes_the_node(fenced):
    bad = with_minors(verdict="fatal")
    bad["ansible_facts"]["gpu"]["health"]["devices"][0] |= {
        "verdict": "fatal",
        "reasons": [{**REASON, "verdict": "fatal"}],
    }
    document = of_slurm(bad, nodes=[{**SLURM["nodes"][0], "fenced": fenced}])
    assert document["slurm"]["state"] == "fatal"
    said = text(document)
    assert "g1: GPU 0 is fatal (xid_79) and not fenced, so Slurm still gives it to jobs" in said
    assert "`gpuops drain g1`" in said
    closed = of_slurm(bad, nodes=[{**SLURM["nodes"][0], "fenced": fenced, "takes_jobs": False}])
    assert closed["slurm"]["unfenced"] == []


def test_no_gpu_of_a_host_that_is_fatal_may_be_given_to_jobs():
    bad = with_minors(verdict="fatal")
    bad["ansible_facts"]["gpu"]["health"]["reasons"] = [{**REASON, "verdict": "fatal"}]
    causes = [row["cause"] for row in of_slurm(bad, nodes=[{**SLURM["nodes"][0], "fenced": [1]}])["slurm"]["unfenced"]]
    assert causes == ["g1: GPU 1 is fatal (xid_79) and not fenced, so Slurm still gives it to jobs"]


def test_a_node_of_slurm_that_takes_no_jobs_is_told_with_its_remedy():
    drained = [SLURM["nodes"][0], {**SLURM["nodes"][1], "drained": True, "state": "IDLE+DRAIN"}]
    document = of_slurm(nodes=drained, problems=[DRAIN])
    assert document["slurm"]["state"] == "degraded"
    said = text(document)
    assert "g2: it was drained by root: the fan of slot 3" in said
    assert "remedy: `sudo scontrol update nodename=g2 state=resume`" in said
    assert "1 of 2 nodes accept jobs" in said


def test_a_controller_that_is_down_while_the_other_works_is_told():
    down = {
        "code": "controller_down",
        "subject": "h2",
        "cause": "slurmctld does not answer there",
        "remedy": "start it",
    }
    document = of_slurm(problems=[down])
    assert document["slurm"]["state"] == "degraded"
    assert "h2: slurmctld does not answer there" in text(document)
    assert of_slurm()["slurm"]["state"] == "ok"


def test_a_slurmctld_that_does_not_answer_says_why():
    silent = {"code": "no_answer", "subject": "slurmctld", "cause": "slurmctld does not answer", "remedy": "start it"}
    document = read([ok("h1", "slurm_cluster_info", msg="Slurm: no", problems=[silent])], SLURM_GROUPS)
    assert document["slurm"]["state"] == "unreachable"
    assert document["slurm"]["problem"] == {"cause": "slurmctld does not answer", "remedy": "start it"}
    assert "slurm" in document["not_seen"]
    assert document["leases"] == []


@pytest.mark.parametrize(
    "answer",
    [
        {"nodes": 5},
        {"nodes": [{"name": {}, "gpus": "x"}], "jobs": [{"id": []}, 7, {"id": "1", "nodes": [{"minors": "x"}]}]},
        {
            "nodes": [],
            "jobs": [{"id": "1", "started": 1e300, "nodes": [{"name": "g1", "minors": [1e300, "a", -1] * 99}]}],
        },
    ],
)
def test_an_answer_of_another_shape_keeps_nothing_from_being_shown(answer):
    document = read([ok("g1", "gpu_facts", **with_minors()), ok("h1", "slurm_cluster_info", **answer)], SLURM_GROUPS)
    assert document["nodes"][0]["state"] == "ok"
    assert text(document)


def test_tasks_of_mesos_are_leases_whose_gpus_are_not_known():
    (lease,) = read(well())["leases"]
    assert (lease["scheduler"], lease["job"], lease["host"], lease["user"]) == ("mesos", "t", "g1", None)
    assert lease["gpus"] == [{"uuid": None, "index": None}]


def of_portal(*documents):
    return read([*well(), *documents], {**GROUPS, "portals": ["login1"]})


def test_the_portal_is_shown_with_its_sessions():
    document = of_portal(ok("login1", "portal_info", hub=True, proxy=True, sessions={"run": 3, "wait": 1}, problems=[]))
    assert document["state"] == "ok"
    assert document["portal"]["sessions"] == {"run": 3, "wait": 1}
    assert "portal     ok: login1; 3 sessions run, 1 waits" in text(document)
    assert read(well())["portal"] is None


DOWN = {
    "code": "hub_down",
    "subject": "hub",
    "cause": "the hub of the portal does not answer",
    "remedy": "see its journal",
}


def test_a_portal_whose_hub_is_down_is_broken_and_says_what_to_do():
    document = of_portal(ok("login1", "portal_info", hub=False, proxy=True, sessions=None, problems=[DOWN]))
    assert document["state"] == document["portal"]["state"] == "fatal"
    said = text(document)
    assert "the hub of the portal does not answer" in said
    assert "remedy: see its journal" in said


def test_a_portal_with_a_problem_that_works_is_degraded():
    problem = {**DOWN, "cause": "2 sessions send no measurements"}
    document = of_portal(
        ok("login1", "portal_info", hub=True, proxy=True, sessions={"run": 2, "wait": 0}, problems=[problem])
    )
    assert document["portal"]["state"] == "degraded"


def test_a_portal_whose_host_is_not_reached_is_named():
    document = of_portal(unreachable("login1"))
    assert document["portal"]["state"] == "unreachable"
    assert "portal" in document["not_seen"]
    assert "none of login1 can be reached" in text(document)


def test_nonsense_of_the_portals_host_is_no_number():
    document = of_portal(ok("login1", "portal_info", hub="yes", proxy=[], sessions={"run": "many"}, problems="none"))
    assert document["portal"]["state"] == "fatal"
    assert document["portal"]["sessions"] == {"run": 0, "wait": 0}


def of_backup(*documents):
    return read([*well(), *documents], {**GROUPS, "backup_hosts": ["head1", "head2"]}, now=1_700_000_000.0)


def archives(host, *ages):
    """So many seconds before the look."""
    return ok(host, "ansible.builtin.find", files=[{"path": "/x", "mtime": 1_700_000_000.0 - age} for age in ages])


def test_archives_of_the_last_nights_are_well():
    document = of_backup(archives("head1", 90000, 80), archives("head2", 90000))
    assert document["backup"]["state"] == "ok"
    assert "backup     ok: the oldest of the newest archives is of " in text(document)
    assert read(well())["backup"] is None


def test_a_host_without_an_archive_of_two_days_is_told_with_what_to_read():
    document = of_backup(archives("head1", 3 * 86400, 4 * 86400), archives("head2"))
    assert document["backup"]["state"] == document["state"] == "degraded"
    assert [row["newest"] is None for row in document["backup"]["hosts"]] == [False, True]
    said = text(document)
    assert "head1 has no archive of the last 2 days" in said
    assert "journalctl -u baremetal-gpu-backup` on head2" in said


def test_a_timer_that_has_not_had_its_night_yet_is_no_fault():
    timer = {"path": "/etc/systemd/system/baremetal-gpu-backup.timer"}
    files = {age: [{**timer, "mtime": 1_700_000_000.0 - age}] for age in (80, 3 * 86400)}
    find = "ansible.builtin.find"
    document = of_backup(ok("head1", find, files=files[80]), archives("head2", 80))
    assert document["backup"]["state"] == "ok"
    assert [row["newest"] is None for row in document["backup"]["hosts"]] == [True, False]
    document = of_backup(ok("head1", find, files=files[3 * 86400]), archives("head2", 80))
    assert document["backup"]["state"] == "degraded"


def test_archives_of_hosts_that_are_not_reached_are_not_seen():
    document = of_backup(unreachable("head1"), unreachable("head2"))
    assert document["backup"]["state"] == "unreachable"
    assert "backup" in document["not_seen"]
