# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent publishes: metrics for Prometheus and facts for Ansible. The result is hand-made."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.publish import (
    ResultFile,
    Textfile,
    exposition,
    facts,
    samples,
)
from tests.unit.plugins.health_host import Host, uuid


def result(host: Host) -> dict[str, Any]:
    host.look(3)
    return {
        "schema": 1,
        "time": 1.0,
        "boot_id": host.boot_id,
        "interval_s": 15.0,
        "agent": {
            "probe_error": None,
            "probe_seconds": 0.01,
            "probe_time": 1.0,
            "stuck": 0,
            "problems": [],
            "xids": [{"uuid": uuid(0), "pci_address": "0000:3b:00.0", "xid": 79, "count": 2, "last": 5.0}],
        },
        "snapshot": host.snapshot(),
        "health": copy.deepcopy(host.report),
    }


def text(host: Host) -> str:
    return exposition(samples(result(host)))


def test_verdicts_are_numbers():
    host = Host(gpus=2)
    host.read("ecc_volatile", {"corrected": 0, "uncorrected": 4}, gpu=1)
    said = text(host)
    assert f'gpu_health_status{{uuid="{uuid(0)}",gpu="0",pci_address="0000:3b:00.0"}} 0\n' in said
    assert f'gpu_health_status{{uuid="{uuid(1)}",gpu="1",pci_address="0000:3c:00.0"}} 2\n' in said
    assert 'code="ecc_uncorrected",action="reset_gpu"} 2\n' in said
    assert "\ngpu_node_health_status 2\n" in said


def test_a_look_that_nvml_refuses_has_not_succeeded_where_there_are_gpus():
    host = Host(gpus=2)
    found = result(host)
    assert "\ngpu_probe_success 1\n" in exposition(samples(found))
    found["snapshot"]["driver"]["nvml_error"] = {"code": 20, "name": "memory", "text": "short of memory", "remedy": ""}
    found["agent"]["probe_time"] = None
    said = exposition(samples(found))
    assert "\ngpu_probe_success 0\n" in said
    assert "gpu_probe_last_success" not in said
    # Without GPUs there is nothing to look at.
    found["snapshot"]["pci"] = []
    assert "\ngpu_probe_success 1\n" in exposition(samples(found))


def test_a_metric_has_its_help_and_type_once_and_before_its_series():
    lines = text(Host(gpus=2)).splitlines()
    for name in ("gpu_temperature_celsius", "gpu_ecc_errors_total"):
        first = next(number for number, line in enumerate(lines) if line.startswith(f"{name}{{"))
        kind = "counter" if name.endswith("_total") else "gauge"
        assert f"# TYPE {name} {kind}" in lines[:first]
        assert sum(line.startswith(f"# HELP {name} ") for line in lines) == 1


def test_what_a_gpu_does_not_have_has_no_series():
    host = Host()
    host.devices[0]["readings"]["temperature_c"] = {"state": "unknown", "code": 999, "text": "Unknown Error"}
    said = text(host)
    assert 'sensor="gpu"' not in said
    assert "gpu_retired_pages" not in said
    assert 'gpu_temperature_celsius{uuid="' in said


def test_labels_are_escaped():
    host = Host()
    host.devices[0]["name"] = 'A "GPU"\\'
    assert 'model="A \\"GPU\\"\\\\"' in text(host)


def test_the_textfile_ends_with_the_agent(tmp_path):
    path = tmp_path / "gpu.prom"
    place = Textfile(str(path))
    place.publish(result(Host()))
    assert path.read_text().endswith("\n")
    assert list(tmp_path.iterdir()) == [path]
    place.close()
    place.close()
    assert not path.exists()


# What gpu_facts and the agent tell of one machine: the same program takes both.
BOTH = """
import json, os
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish as agent_publish
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdicts as gpu_verdicts
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
root = os.environ["SIMULATED_ROOT"]
look = snapshot.Reader(nvml.load_binding(None), root).read(slow=True)
told = agent_publish.facts({"snapshot": look, "health": health.judge_once(look, [])})
gathered = gpu_facts.gather(gpu_facts.COMPACT, root=root, verdicts=gpu_verdicts)
print(json.dumps([json.loads(json.dumps(told)), gathered]))
"""


@pytest.mark.parametrize(
    "name",
    [
        "k20c-x1",
        "gtx1080-x2",
        "v100-sxm2-16gb-x8",
        "a100-sxm4-40gb-x8-mig",
        "h100-sxm-x8",
        "mixed",
        "lost-one-of-eight",
        "gpu-handle-unknown",
        "driver-library-mismatch",
        "no-gpu",
    ],
)
def test_the_agents_facts_are_those_of_gpu_facts(simulated_host, name):
    simulated_host.take(name)
    told, gathered = simulated_host.python(BOTH)
    health, seen = told.pop("health"), gathered.pop("health")
    # A host without GPUs is not judged by gpu_facts; its agent, where somebody wants one, says that it is well.
    if seen is None:
        assert (told["present"], health["verdict"], health["devices"]) == (False, "ok", [])
    else:
        assert (health.pop("source"), seen.pop("source")) == ("agent", "look")
        assert health["verdict"] == seen["verdict"]
        assert [set(row) for row in health["devices"]] == [set(row) for row in seen["devices"]]
        assert set(health) == set(seen)
    gathered.pop("topology")
    assert told["devices"] == gathered["devices"]
    assert told == gathered


def test_facts_say_why_there_are_no_gpus_to_tell_of():
    host = Host()
    host.fail({"code": 9, "name": "driver_not_loaded", "text": "Driver Not Loaded", "remedy": "load it"})
    assert facts(result(host))["reason"] == "Driver Not Loaded: load it"


def test_the_result_is_what_readers_find(tmp_path):
    path = tmp_path / "gpu.json"
    ResultFile(str(path)).publish(result(Host()))
    told = json.loads(path.read_text())
    assert set(told) == {"schema", "time", "boot_id", "interval_s", "agent", "health", "facts"}
