# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs are cut through the real pynvml on the simulated library, on whole hosts: what an operator would see."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import mig, nvml
from ansible_collections.baremetal.gpu.plugins.plugin_utils import nvml_binding
from tests.unit.plugins.service_account import needs_root

pytestmark = needs_root
CUT = """
import json, os, pathlib, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import mig, mig_layout
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
root, asked = os.environ["SIMULATED_ROOT"], json.loads(sys.argv[2])
calls = []
mig.time.sleep = lambda seconds: None
def run(argv, stdin, timeout):
    calls.append(argv)
    return 0, "", ""
try:
    rules = mig_layout.rules(asked["layout"], asked["config"])
    found = mig.bring_about(rules, pathlib.Path(sys.argv[1]).read_text(), run, asked["check"], root).as_dict()
except Refused as refused:
    found = {"refused": refused.problem.as_dict()}
print(json.dumps({**found, "calls": calls}))
"""


class Host:
    def __init__(self, simulated):
        self.simulated = simulated
        self.binding = simulated.write("part.py", nvml.unpack(nvml_binding.packed_source()))
        self.nvml = importlib.util.find_spec("pynvml").origin

    def __call__(self, layout, config="", check=False):
        asked = json.dumps({"layout": layout, "config": config, "check": check})
        return self.simulated.python(CUT, str(self.binding), asked)

    @property
    def devices(self):
        return self.simulated.scenario["devices"]

    def reboot(self):
        state = Path(f"{self.simulated.looker.scenario}.mig")
        state.unlink(missing_ok=True)

    def process(self, pid, comm, unit, *nodes):
        """A process of the made-up host; `nodes` are what it has open."""
        self.simulated.write(f"proc/{pid}/comm", f"{comm}\n")
        self.simulated.write(f"proc/{pid}/status", "Name:\tx\nUid:\t0\t0\t0\t0\n")
        self.simulated.write(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}\n")
        for number, node in enumerate(nodes):
            place = self.simulated.root / f"proc/{pid}/fd/{number}"
            place.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(node, place)


@pytest.fixture
def host(simulated_host):
    def make(name="h100-sxm-x2"):
        for kind in ("mig", "mig-at-boot", "mig.lock"):
            Path(f"{simulated_host.looker.scenario}.{kind}").unlink(missing_ok=True)
        simulated_host.take(name)
        return Host(simulated_host)

    yield make
    for kind in ("mig", "mig-at-boot", "mig.lock"):
        Path(f"{simulated_host.looker.scenario}.{kind}").unlink(missing_ok=True)


def profiles(result, place=0):
    return [one["profile"] for one in result["gpus"][place]["instances"]]


@pytest.mark.parametrize(
    ("name", "layout", "found"),
    [
        ("a30-x2", {"1g.6gb": 2, "2g.12gb": 1}, ["1g.6gb", "1g.6gb", "2g.12gb"]),
        ("a100-sxm4-40gb-x2", {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}, ["1g.5gb", "2g.10gb", "3g.20gb"]),
        ("h100-sxm-x2", {"1g.10gb": 7}, ["1g.10gb"] * 7),
        ("h200-sxm-x2", {"1g.35gb": 4}, ["1g.35gb"] * 4),
        ("b200-sxm-x2", {"4g.90gb": 1, "3g.90gb": 1}, ["3g.90gb", "4g.90gb"]),
    ],
)
def test_a_layout_is_brought_about_and_a_second_run_changes_nothing(host, name, layout, found):
    cut = host(name)
    foretold = cut({"all": layout}, check=True)
    assert (foretold["changed"], profiles(foretold)) == (True, [])
    done = cut({"all": layout})
    assert (done["steps"], done["before"], done["after"]) == (
        foretold["steps"],
        foretold["before"],
        foretold["after"],
    )
    assert [sorted(profiles(done, place)) for place in (0, 1)] == [found, found]
    assert all(len(one["uuids"]) == 1 for one in done["gpus"][0]["instances"])
    again = cut({"all": layout})
    assert (again["changed"], again["steps"], again["before"]) == (False, [], done["after"])
    assert again["gpus"] == done["gpus"]


@pytest.mark.parametrize("name", ["a100-sxm4-40gb-x2", "h100-sxm-x2"])
def test_what_a_reboot_forgets_is_made_again(host, name):
    cut = host(name)
    whole = "7g.40gb" if name.startswith("a100") else "7g.80gb"
    before = cut({"0": {whole: 1}})["gpus"][0]["instances"]
    cut.reboot()
    again = cut({"0": {whole: 1}})
    assert again["changed"] is True
    assert ("switch MIG on" in again["steps"]) == name.startswith("h100")
    assert (profiles(again), again["gpus"][0]["instances"][0]["uuids"] != before[0]["uuids"]) == ([whole], True)


def test_what_a_process_is_in_stays_and_the_rest_is_cut_anew(host):
    cut = host()
    first = cut({"0": {"1g.10gb": 7}})["gpus"][0]["instances"]
    busy = first[6]
    cut.devices[0]["processes"] = [
        {"pid": os.getpid(), "type": "C", "gpu_instance": busy["gpu_instance"], "compute_instance": 0}
    ]
    cut.simulated.save()
    done = cut({"0": {"1g.10gb": 1, "3g.40gb": 1}})
    assert profiles(done) == ["3g.40gb", "1g.10gb"]
    assert done["gpus"][0]["instances"][1]["uuids"] == busy["uuids"]
    refused = cut({"0": {"7g.80gb": 1}})
    assert [(one["code"], one["evidence"]) for one in refused["problems"]] == [("instance_in_use", busy["uuids"][0])]
    assert f"PID {os.getpid()}" in refused["problems"][0]["cause"]
    assert cut({"0": {"1g.10gb": 1, "3g.40gb": 1}})["changed"] is False


def test_a_process_that_only_has_the_capability_open_is_a_client_too(host):
    cut = host()
    (one,) = cut({"0": {"1g.10gb": 1}})["gpus"][0]["instances"]
    where = f"proc/driver/nvidia/capabilities/gpu0/mig/gi{one['gpu_instance']}"
    cut.simulated.write(f"{where}/access", "DeviceFileMinor: 66\n")
    cut.simulated.write(f"{where}/ci0/access", "DeviceFileMinor: 67\n")
    cut.process(4242, "python3", "slurmstepd.scope", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap67")
    (problem,) = cut({"0": False})["problems"][:1]
    assert problem["code"] == "instance_in_use"
    assert "python3 (PID 4242, user root)" in problem["cause"]


def test_a_foreign_client_keeps_the_mode_and_ours_are_stopped_and_started(host):
    cut = host()
    cut.process(77, "gpu-agent", "baremetal-gpu-agent.service", "/dev/nvidiactl", "/dev/nvidia0")
    cut.process(4242, "python3", "user@1000.service", "/dev/nvidia0")
    refused = cut({"0": {"1g.10gb": 1}})
    assert [one["code"] for one in refused["problems"]] == ["gpu_in_use"]
    assert "python3 (PID 4242, user root)" in refused["problems"][0]["cause"]
    assert refused["calls"] == []
    (cut.simulated.root / "proc/4242/fd/0").unlink()
    done = cut({"0": {"1g.10gb": 1}})
    assert profiles(done) == ["1g.10gb"]
    assert [call[1:] for call in done["calls"]] == [
        ["stop", "baremetal-gpu-agent.service"],
        ["start", "--no-block", "baremetal-gpu-agent.service"],
    ]
    # The mode stays, so nothing has to stop for the next layout.
    assert cut({"0": {"1g.10gb": 2}})["calls"] == []


def test_units_are_started_again_where_nvml_refuses(host):
    cut = host()
    cut.process(77, "nvidia-persiste", "nvidia-persistenced.service", "/dev/nvidia0")
    cut.simulated.scenario["faults"] = [{"call": "nvmlDeviceCreateGpuInstanceWithPlacement", "error": 999}]
    cut.simulated.save()
    answer = cut({"0": {"1g.10gb": 1}})
    assert answer["refused"]["code"] == "mig_refused"
    assert "NVML refused to create 1g.10gb at 0" in answer["refused"]["cause"]
    assert [call[1] for call in answer["calls"]] == ["stop", "start"]


@pytest.mark.parametrize("cut_at", range(10))
def test_a_run_that_was_cut_off_anywhere_is_continued(host, cut_at):
    """Before each of the first ten instances that are made, GPU and compute instances alike."""
    cut = host()
    cut({"0": {"3g.40gb": 2}})
    cut.simulated.scenario["faults"] = [{"call": "nvml*Create*Instance*", "after": cut_at, "crash": True}]
    cut.simulated.save()
    assert cut({"all": {"1g.10gb": 7}})["refused"]["code"] == "nvml_failed"
    cut.simulated.scenario["faults"] = []
    cut.simulated.save()
    done = cut({"all": {"1g.10gb": 7}})
    assert any(step.startswith("make the compute instance") for step in done["steps"]) == bool(cut_at % 2)
    assert [profiles(done, place) for place in (0, 1)] == [["1g.10gb"] * 7] * 2
    assert cut({"all": {"1g.10gb": 7}})["changed"] is False


def test_a_guest_that_cannot_reset_its_gpu_says_what_to_do(host):
    cut = host("a100-sxm4-40gb-x2")
    for gpu in cut.devices:
        gpu["mig"]["cannot_reset"] = 1
    cut.simulated.save()
    answer = cut({"all": {"1g.5gb": 7}})
    assert answer["refused"]["code"] == "reset_required"
    assert "sudo nvidia-smi --gpu-reset" in answer["refused"]["remedy"]
    cut.reboot()
    assert profiles(cut({"0": {"1g.5gb": 7}})) == ["1g.5gb"] * 7


def test_a_host_without_mig_is_refused_by_name(host):
    (problem,) = host("t4-x1")({"all": {"1g.10gb": 1}})["problems"]
    assert (problem["code"], "Tesla T4" in problem["evidence"]) == ("no_mig", True)


def test_nothing_is_refused_after_something_was_changed(host):
    cut = host()
    refused = cut({"0": {"1g.10gb": 1}, "1": {"1g.5gb": 1}})
    assert [one["code"] for one in refused["problems"]] == ["unknown_profile"]
    assert [gpu["enabled"] for gpu in cut({"0": {}}, check=True)["gpus"]] == [False, False]


def test_a_host_whose_driver_is_not_loaded(host):
    cut = host()
    cut.simulated.scenario["kernel"] = "stand-in"
    cut.simulated.save()
    assert cut({"all": {}})["refused"]["code"] == "nvml_failed"


def test_processes_of_this_host_are_known_by_user_and_unit():
    own = mig.client(os.getpid())
    assert (own.pid, own.user, bool(own.name)) == (os.getpid(), "root", True)
    assert mig.client(1 << 30).name == ""
