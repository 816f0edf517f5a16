# SPDX-License-Identifier: GPL-3.0-or-later
"""Xids that NVML itself reports, to a thread beside the one that takes looks."""

from __future__ import annotations

import json

# Takes looks while a thread listens; prints the events that came until the last line of its orders was done.
LISTENER = """
import json, os, sys, threading, time, pynvml
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import session as nvml_session
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
scenario = os.environ["NVML_SIMULATOR_SCENARIO"]
reader = snapshot.Reader(pynvml, os.environ["SIMULATED_ROOT"])
reader.read()
heard = []
def listen():
    for event in reader.events(int(sys.argv[2])):
        heard.append(event)
threading.Thread(target=listen, daemon=True).start()
time.sleep(0.3)
looks = []
for change in json.loads(sys.argv[1]):
    nvml_session.RETRY_S = change.get("retry_s", 3600.0)
    document = json.load(open(scenario))
    document["events"] += change.get("events", [])
    for index, state in change.get("states", {}).items():
        document["devices"][int(index)]["state"] = state
    with open(scenario + ".new", "w") as file:
        json.dump(document, file)
    os.rename(scenario + ".new", scenario)
    if change.get("reopen"):
        reader.close()
    wanted = len(heard) + change.get("comes", 0)
    end = time.monotonic() + 20
    while True:
        looks.append([bool(row["error"]) for row in reader.read()["devices"]])
        if len(heard) >= wanted or time.monotonic() > end:
            break
        time.sleep(0.05)
    # What comes while the listener begins anew is left to the kernel's log.
    time.sleep(change.get("pause_s", 0))
print(json.dumps({"heard": heard, "looks": looks}))
"""


def listen(host, *orders, wait_ms=100):
    return host.python(LISTENER, json.dumps(orders), str(wait_ms))


def test_an_event_names_its_gpu(simulated_host):
    simulated_host.take("a100-sxm4-40gb-x2")
    told = listen(simulated_host, {"events": [{"id": 1, "device": 1, "xid": 31}], "comes": 1})
    (event,) = told["heard"]
    assert (event["kind"], event["pci_address"], event["xid"]) == ("nvml_xid", "0000:af:00.0", 31)
    assert event["boot_id"] == "5c3a1f2e-8f6b-4c1d-9e2a-000000000001"
    assert (event["text"], event["sequence"]) == ("NVML reports Xid 31", None)


def test_a_lost_gpu_does_not_silence_the_others(simulated_host):
    """NVML ends the wait for all GPUs when one is lost."""
    simulated_host.take("a100-sxm4-40gb-x8")
    told = listen(
        simulated_host,
        {"states": {"5": "lost"}, "pause_s": 1},
        {"events": [{"id": 1, "device": 2, "xid": 94}], "comes": 1},
        {"states": {"5": "ok"}, "retry_s": 0, "pause_s": 1},
        {"events": [{"id": 2, "device": 5, "xid": 45}], "comes": 1},
    )
    assert [(event["pci_address"], event["xid"]) for event in told["heard"]] == [
        (simulated_host.scenario["devices"][2]["pci"]["address"], 94),
        (simulated_host.scenario["devices"][5]["pci"]["address"], 45),
    ]
    assert told["looks"][-1] == [False] * 8
    assert [True in look for look in told["looks"]].count(True) > 0


def test_who_listens_goes_on_at_once_when_nvml_was_opened_anew(simulated_host):
    """An operator's clear has the agent do that. What happened while nobody listened is past for NVML."""
    simulated_host.take("a100-sxm4-40gb-x2")
    told = listen(
        simulated_host,
        {"reopen": True, "pause_s": 1},
        {"events": [{"id": 1, "device": 0, "xid": 79}], "comes": 1},
        wait_ms=5000,
    )
    assert [event["xid"] for event in told["heard"]] == [79]
