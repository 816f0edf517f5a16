# SPDX-License-Identifier: GPL-3.0-or-later
"""From what failed and what the host shows to a cause with a remedy, and from all of it to a report."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query
from tests.unit.plugins.driver_host import driver_loaded

GPU = {"address": "0000:3b:00.0", "driver": "nvidia", "kind": "gpu", "model": "A100 SXM4 40GB", "device": "20b0"}
OTHER = {**GPU, "address": "0000:af:00.0"}
STATE = {
    "gpus": [GPU, OTHER],
    "nvswitches": 0,
    "loaded": "550.163.01",
    "installed": "550.163.01",
    "module_ready": True,
    "module_anywhere": True,
    "secure_boot": False,
    "minors": {"0000:3b:00.0": 0, "0000:af:00.0": 1},
    "nodes": ["/dev/nvidia0", "/dev/nvidia1"],
    "node_differences": [],
}
UVM = {"path": "/dev/nvidia-uvm", "kind": "missing", "current": "nothing", "expected": "x", "remedy": "y"}
NODE = {"path": "/dev/nvidia0", "kind": "missing", "current": "nothing", "expected": "x", "remedy": "y"}
LINK = {"path": "/dev/char/195:0", "kind": "link_missing", "current": "nothing", "expected": "x", "remedy": "y"}


def error(code=None, name="CUDA_ERROR", call="cuInit", text="said"):
    return {"call": call, "code": code, "name": name, "text": text}


NO_LIBRARY = error(name="LIBRARY_NOT_LOADED", call="dlopen")


@pytest.mark.parametrize(
    ("failed", "state", "code"),
    [
        (error(803), {}, "driver_library_mismatch"),
        (error(999), {"installed": "535.247.01"}, "driver_library_mismatch"),
        (error(802), {"nvswitches": 6}, "fabric_manager"),
        (error(999), {"node_differences": [UVM]}, "uvm_missing"),
        (error(100), {"node_differences": [NODE]}, "device_nodes"),
        # A missing link troubles containers, and is not why cuInit fails.
        (error(999), {"node_differences": [LINK]}, "unknown"),
        (error(100, "CUDA_ERROR_NO_DEVICE"), {}, "no_device"),
        (error(999), {}, "unknown"),
        (error(214), {}, "ecc_error"),
        (error(46), {}, "device_unavailable"),
        (error(2), {}, "out_of_memory"),
        (error(35), {}, "driver_too_old"),
        (error(221), {}, "jit_compiler_missing"),
        (error(719), {}, "device_failed"),
        (error(12345), {}, "unknown"),
        (error(name="WRONG_RESULT"), {}, "wrong_result"),
        (error(name="TIMEOUT"), {}, "timeout"),
        (error(name="CRASH"), {}, "crash"),
        (NO_LIBRARY, {}, "library_missing"),
        (error(34), {}, "library_missing"),
        (NO_LIBRARY, {"loaded": None}, "driver_not_loaded"),
        (error(100), {"loaded": None, "secure_boot": True}, "secure_boot"),
        # Without an installed module Secure Boot refused nothing.
        (NO_LIBRARY, {"loaded": None, "secure_boot": True, "module_anywhere": False}, "driver_not_installed"),
        (NO_LIBRARY, {"loaded": None, "gpus": []}, "no_device"),
        (NO_LIBRARY, {"loaded": None, "gpus": [{**GPU, "driver": "nouveau"}]}, "nouveau_bound"),
        # nouveau on one GPU explains nothing about the others of a loaded driver.
        (error(999), {"gpus": [{**GPU, "driver": "nouveau"}, OTHER]}, "unknown"),
    ],
)
def test_causes(failed, state, code):
    found = verify_query.diagnose(failed, {**STATE, **state})
    assert found["code"] == code
    assert "said" in found["text"]
    assert found["remedy"] == verify_query.REMEDIES[code]


def test_the_cause_names_what_was_found():
    mismatch = verify_query.diagnose(error(803), {**STATE, "installed": "560.35.05"})
    assert "module is 550.163.01, the installed libraries are 560.35.05" in mismatch["text"]
    bound = verify_query.diagnose(error(100), {**STATE, "loaded": None, "gpus": [{**GPU, "driver": "nouveau"}]})
    assert "nouveau is bound to 0000:3b:00.0" in bound["text"]
    assert verify_query.diagnose(error(719), {**STATE, "gpus": [{**GPU, "driver": "nouveau"}, OTHER]}, "0000:3b:00.0")[
        "code"
    ] == ("nouveau_bound")


def test_every_remedy_is_short_enough_to_read_and_no_code_is_without():
    for code, remedy in verify_query.REMEDIES.items():
        assert 15 < len(remedy) < 260, code
    assert set(verify_query.BY_NUMBER.values()) < set(verify_query.REMEDIES)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\x06\x00\x00\x00\x01", True), (b"\x06\x00\x00\x00\x00", False), (b"", False), (None, None)],
)
def test_secure_boot(fake_host, content, expected):
    if content is not None:
        fake_host.write(verify_query.SECURE_BOOT_VARIABLE, content)
    assert verify_query.secure_boot(fake_host.path) is expected


def test_host_state(fake_host):
    driver_loaded(fake_host, uvm=None)
    fake_host.pci("0000:06:00.0", "1af1", pci_class="068000")
    fake_host.kernel("6.12.1")
    fake_host.kernel("6.12.2")
    fake_host.write("lib/modules/6.12.1/updates/dkms/nvidia-current.ko.xz", "")
    fake_host.write("lib/modules/6.12.2/kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", "")
    state = verify_query.host_state(fake_host.path, "6.12.2")
    assert [gpu["address"] for gpu in state["gpus"]] == ["0000:3b:00.0", "0000:af:00.0"]
    assert (state["nvswitches"], state["loaded"]) == (1, "550.163.01")
    assert (state["module_ready"], state["module_anywhere"]) == (False, True)
    assert verify_query.host_state(fake_host.path, "6.12.1")["module_ready"] is True
    kinds = {(problem["path"], problem["kind"]) for problem in state["node_differences"]}
    assert {("/dev/nvidia-uvm", "module_not_loaded"), ("/dev/nvidia0", "missing")} <= kinds


def test_host_state_of_a_bare_host(fake_host):
    state = verify_query.host_state(fake_host.path, "6.12.1")
    assert (state["gpus"], state["loaded"], state["nodes"], state["node_differences"]) == ([], None, [], [])


def device(index, gpu=GPU, **changes):
    found = {
        "index": index,
        "ok": True,
        "pci_address": gpu["address"],
        "uuid": f"GPU-{index}",
        "error": None,
        "cause": None,
        "compute_capability": "8.0",
    }
    return {**found, **changes}


def answer(*found, **changes):
    direct = {
        "ok": all(one["ok"] for one in found),
        "count": len(found),
        "cuda": "12.4",
        "error": None,
        "cause": None,
        "devices": list(found),
        "device_files": [],
    }
    direct.update(changes)
    return {
        "ok": direct["ok"],
        "causes": verify_query.causes_of(direct),
        "query": direct,
        "state": copy.deepcopy(STATE),
    }


def facts(*gpus, **driver):
    return {
        "driver": {"nvml_error": None, **driver},
        "devices": [{"index": number, "pci_address": gpu["address"]} for number, gpu in enumerate(gpus)],
    }


def test_a_good_host():
    verdict = verify_query.report(facts(GPU, OTHER), answer(device(0), device(1, OTHER)), "gpu1")
    assert verdict["ok"] is True
    assert verdict["causes"] == []
    assert verdict["counts"] == {"expected": None, "pci": 2, "driver": 2, "nvml": 2, "cuda": 2, "mig": False}
    assert verdict["host"] == "gpu1"


def test_the_gpu_that_cuda_does_not_see_is_named():
    verdict = verify_query.report(facts(GPU, OTHER), answer(device(0)), "gpu1")
    assert verdict["ok"] is False
    (cause,) = verdict["causes"]
    assert (cause["where"], cause["code"]) == ("0000:af:00.0", "count_mismatch")
    assert cause["text"].startswith("CUDA does not see the GPU at 0000:af:00.0 (A100 SXM4 40GB)")


def test_the_gpu_that_nvml_does_not_see_is_named():
    verdict = verify_query.report(facts(OTHER), answer(device(0), device(1, OTHER)))
    assert [cause["text"].split(",")[0] for cause in verdict["causes"]] == [
        "NVML does not see the GPU at 0000:3b:00.0 (A100 SXM4 40GB)"
    ]


def test_a_gpu_that_failed_before_it_told_its_address_still_counts():
    failed = {"index": 1, "ok": False, "error": error(719), "cause": verify_query.cause("device_failed", "said")}
    verdict = verify_query.report(facts(GPU, OTHER), answer(device(0), failed))
    assert [cause["code"] for cause in verdict["causes"]] == ["device_failed"]
    assert verdict["counts"]["cuda"] == 2


def test_with_mig_cuda_is_not_counted():
    known = facts(GPU, OTHER)
    known["devices"][0]["mig"] = {"enabled": True, "pending": True}
    verdict = verify_query.report(known, answer(device(0)))
    assert verdict["counts"] == {"expected": None, "pci": 2, "driver": 2, "nvml": 2, "cuda": None, "mig": True}
    assert verdict["ok"] is True


def test_nvml_that_does_not_answer_is_a_cause_and_not_a_count():
    silent = facts(nvml_error={"code": 18, "name": "x", "text": "Driver/library mismatch", "remedy": "reload"})
    verdict = verify_query.report(silent, answer(device(0), device(1, OTHER)))
    assert [cause["code"] for cause in verdict["causes"]] == ["nvml"]
    assert verdict["counts"]["nvml"] is None


def test_a_gpu_that_left_the_bus_is_missed_only_by_the_expected_number():
    both = facts(GPU, OTHER), answer(device(0), device(1, OTHER))
    assert verify_query.report(*both, "gpu1", 2)["ok"] is True
    verdict = verify_query.report(*both, "gpu1", 8)
    assert verdict["ok"] is False
    assert verdict["causes"][0]["text"] == "2 GPUs are on the PCI bus, 8 are expected"


def test_no_gpu_is_never_a_pass():
    raw = {"ok": False, "count": 0, "cuda": "12.4", "error": None, "devices": [], "device_files": []}
    judged = verify_query.judge(raw, {**STATE, "gpus": []})
    assert judged["cause"]["code"] == "no_device"
    assert verify_query.causes_of(judged)[0]["where"] == "host"


def test_causes_of_a_container_say_where():
    judged = verify_query.judge(answer(device(0, error=error(999), ok=False))["query"], STATE)
    assert verify_query.causes_of(judged, "container with 0")[0]["where"] == "container with 0 0000:3b:00.0"


def test_lines_for_a_person():
    verdict = verify_query.report(facts(GPU, OTHER), answer(device(0)), "gpu1")
    (problem,) = verify_query.problems(verdict)
    assert (problem.subject, problem.code) == ("0000:af:00.0", "count_mismatch")
    assert problem.cause.startswith("CUDA does not see")
    assert problem.remedy.startswith("look for the address in `sudo dmesg`")


def test_node_differences_are_causes():
    (cause,) = verify_query.node_causes(
        {"node_differences": [device_nodes.Difference("/dev/x", "missing", "nothing", "a node").as_dict()]}
    )
    assert (cause["where"], cause["text"]) == ("/dev/x", "/dev/x is nothing and must be a node")


def test_many_node_differences_are_one_cause_and_what_is_mended_otherwise_another():
    problems = [device_nodes.Difference(f"/dev/nvidia{number}", "missing", "nothing", "a node") for number in range(8)]
    other = device_nodes.Difference("/dev/nvidia-uvm", "module_not_loaded", "x", "y", "modprobe")
    nodes, module = verify_query.node_causes({"node_differences": [one.as_dict() for one in (*problems, other)]})
    assert nodes["where"] == "device nodes"
    assert nodes["text"].count("must be") == 4
    assert nodes["text"].endswith("; and 4 more")
    assert (module["where"], module["remedy"]) == ("/dev/nvidia-uvm", "modprobe")


def test_nvml_says_what_to_do_itself():
    known = facts(GPU, OTHER)
    known["devices"][1]["error"] = {"code": 15, "name": "lost", "text": "GPU is lost", "remedy": "reset the GPU"}
    (cause,) = verify_query.report(known, answer(device(0), device(1, OTHER)))["causes"]
    assert (cause["where"], cause["remedy"]) == ("0000:af:00.0", "reset the GPU")


def test_a_gpu_that_is_handed_through_is_not_missed_by_the_verification(fake_host):
    driver_loaded(fake_host, gpus={"0000:3b:00.0": 0})
    fake_host.pci("0000:af:00.0", "20b0", driver="vfio-pci")
    fake_host.virtual_function("0000:3b:00.4", "0000:3b:00.0", "20b0")
    state = verify_query.host_state(fake_host.path, "6.12.1")
    assert [gpu["address"] for gpu in state["gpus"]] == ["0000:3b:00.0"]
    counts, causes = verify_query.compare_counts(state, [{"pci_address": "0000:3b:00.0"}], None)
    assert (counts["pci"], counts["driver"], counts["nvml"], causes) == (1, 1, 1, [])
    direct = {"ok": True, "error": None, "cause": None, "count": 1, "cuda": "12.4", "devices": []}
    answer = {"ok": True, "causes": [], "query": direct, "state": state}
    (cause, *_more) = verify_query.report({"devices": []}, answer, expected=2)["causes"]
    assert cause["text"] == (
        "1 GPUs are on the PCI bus, 2 are expected; 0000:af:00.0 (A100 SXM4 40GB) is bound to vfio-pci, so it is "
        "another's, such as a virtual machine's"
    )


def test_bridges_to_switches_count_as_switches(fake_host):
    fake_host.pci("0000:1b:00.0", "2901", driver="nvidia")
    fake_host.switch_bridge("0000:05:00.0")
    assert verify_query.host_state(fake_host.path, "6.12.1")["nvswitches"] == 1
