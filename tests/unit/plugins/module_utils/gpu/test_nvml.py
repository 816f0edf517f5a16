# SPDX-License-Identifier: GPL-3.0-or-later
"""What is made of NVML's answers. The binding here is hand-made: it has pynvml's names and answers from a table."""

from __future__ import annotations

import base64
import importlib.util
import os
import time
import zlib
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml, nvml_messages

# Source text, since that is how the real one comes. ANSWERS: function -> value, or ("error", code), or a call.
BINDING = """
import os, signal, time

class NVMLLibraryMismatchError(Exception):
    pass

class NVMLError(Exception):
    def __init__(self, value):
        self.value = value
    def __str__(self):
        return {3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost", 999: "Unknown Error"}.get(
            self.value, "code %d" % self.value)

class Struct:
    def __init__(self, **fields):
        self.__dict__.update(fields)

ANSWERS = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetCudaDriverVersion_v2": 12040,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetPciInfo": Struct(busId="00000000:3B:00.0"),
    "nvmlDeviceGetName": b"NVIDIA A100-SXM4-40GB",
    "nvmlDeviceGetCudaComputeCapability": (8, 0),
    "nvmlDeviceGetMemoryInfo": Struct(total=40960 << 20),
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 1],
    "nvmlDeviceGetArchitecture": 7,
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetSerial": "1324520001234",
    "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 10 * counter + kind,
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: Struct(busId="00000000:C0:00.0"),
    "nvmlDeviceGetComputeRunningProcesses_v3": [Struct(pid=4711, usedGpuMemory=None)],
    "nvmlDeviceGetMinorNumber": 3,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": lambda handle, link: [1, 1, 0, ("error", 2)][link],
}
ANSWERS.update(CHANGES)

def answer(name):
    def call(*arguments):
        value = ANSWERS[name]
        if value is NVMLLibraryMismatchError:
            raise NVMLLibraryMismatchError("Unversioned function called")
        if callable(value):
            value = value(*arguments)
        if isinstance(value, tuple) and value[0] == "error":
            raise NVMLError(value[1])
        return value
    return call

for name in list(ANSWERS):
    globals()[name] = answer(name)

NVML_ERROR_NOT_SUPPORTED = 3
NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
"""


def binding(changes: str = "{}") -> str:
    return BINDING.replace("CHANGES", changes)


@pytest.fixture
def bus(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", numa=1)
    return fake_host.path


def test_every_answer_of_a_gpu(bus):
    assert gpu_facts.probe(binding(), root=bus) == {
        "error": None,
        "cuda": "12.4",
        "topology": None,
        "devices": [
            {
                "index": 0,
                "uuid": "GPU-1",
                "minor": 3,
                "pci_address": "0000:3b:00.0",
                "name": "NVIDIA A100-SXM4-40GB",
                "slug": "a100-sxm4-40gb",
                "architecture": "ampere",
                "compute_capability": "8.0",
                "memory_mib": 40960,
                "ecc": {"enabled": True, "pending": True},
                "mig": {"enabled": False, "pending": True},
                "numa_node": 1,
                "cpus": None,
                "pcie": {"generation": 1, "generation_max": 4, "width": 16, "width_max": 16},
                "nvlinks": 2,
                "not_applicable": [],
            }
        ],
    }


def test_what_a_gpu_does_not_have_is_null_and_named(bus):
    changes = """{
        "nvmlDeviceGetEccMode": ("error", 3),
        "nvmlDeviceGetMigMode": ("error", 13),
        "nvmlDeviceGetNvLinkState": ("error", 3),
        "nvmlDeviceGetArchitecture": NVMLLibraryMismatchError,
    }"""
    (gpu,) = gpu_facts.probe(binding(changes), root=bus)["devices"]
    assert gpu["not_applicable"] == ["architecture", "ecc", "mig", "nvlinks"]
    assert (gpu["ecc"], gpu["mig"], gpu["nvlinks"], gpu["architecture"]) == (None, None, None, None)
    assert "error" not in gpu
    assert gpu["memory_mib"] == 40960


def test_the_details_of_a_gpu(bus):
    (gpu,) = gpu_facts.probe(binding(), root=bus, subset=(*gpu_facts.HARDWARE, "details"))["devices"]
    assert gpu["serial"] == "1324520001234"
    assert gpu["ecc"]["volatile"] == {"corrected": 0, "uncorrected": 1}
    assert gpu["ecc"]["aggregate"] == {"corrected": 10, "uncorrected": 11}
    assert (gpu["nvlink_peers"], gpu["nvlinks_down"]) == ({"0000:c0:00.0": "0-1"}, [2])
    assert gpu["process_count"] == 1


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ("{'nvmlDeviceGetEccMode': ('error', 3), 'nvmlDeviceGetTotalEccErrors': ('error', 3)}", ["ecc"]),
        ("{'nvmlDeviceGetTotalEccErrors': ('error', 3)}", ["ecc.volatile", "ecc.aggregate"]),
        ("{'nvmlDeviceGetCurrPcieLinkWidth': ('error', 3)}", ["pcie.width"]),
        ("{'nvmlDeviceGetComputeRunningProcesses_v3': ('error', 3)}", ["process_count"]),
        ("{'nvmlDeviceGetSerial': ('error', 3)}", ["serial"]),
    ],
)
def test_each_detail_may_be_absent(bus, changes, absent):
    (gpu,) = gpu_facts.probe(binding(changes), root=bus, subset=(*gpu_facts.HARDWARE, "details"))["devices"]
    assert gpu["not_applicable"] == absent
    assert "error" not in gpu


def test_a_bridgeless_gpu_has_no_link_up(bus):
    (gpu,) = gpu_facts.probe(binding('{"nvmlDeviceGetNvLinkState": lambda h, link: 0}'), root=bus)["devices"]
    assert gpu["nvlinks"] == 0


def test_a_question_that_fails_leaves_the_others(bus):
    (gpu,) = gpu_facts.probe(binding('{"nvmlDeviceGetMemoryInfo": ("error", 999)}'), root=bus)["devices"]
    assert gpu["memory_mib"] is None
    assert gpu["nvlinks"] == 2
    assert gpu["error"]["name"] == "unknown"
    assert gpu["error"]["remedy"].startswith("look into `sudo dmesg` for Xid and NVRM lines")


def test_a_lost_gpu_is_not_asked_on_and_the_others_are(bus):
    changes = """{
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: ("error", 15) if index == 0 else "handle",
    }"""
    lost, good = gpu_facts.probe(binding(changes), root=bus)["devices"]
    assert lost == {
        "index": 0,
        "error": {
            "code": 15,
            "name": "gpu_is_lost",
            "text": "GPU is lost",
            "remedy": "the GPU fell off the bus: reboot the host; if it happens again, reseat the GPU and check its "
            "power, then have it replaced",
        },
    }
    assert good["uuid"] == "GPU-1"


@pytest.mark.parametrize(
    ("code", "name", "remedy"),
    [
        (9, "driver_not_loaded", "load the module with `sudo modprobe nvidia`"),
        (12, "library_not_found", "install the driver's libraries"),
        (15, "gpu_is_lost", "the GPU fell off the bus"),
        (16, "reset_required", "drain the host and reset the GPU"),
        (18, "lib_rm_version_mismatch", "the library and the loaded kernel module are of different versions"),
        (999, "unknown", "look into `sudo dmesg`"),
        (77, "nvml_77", "look into `sudo dmesg`"),
    ],
)
def test_why_nvml_does_not_start(code, name, remedy):
    answer = gpu_facts.probe(binding(f'{{"nvmlInit": ("error", {code})}}'))
    assert (answer["error"]["code"], answer["error"]["name"]) == (code, name)
    assert answer["error"]["remedy"].startswith(remedy)
    assert answer["devices"] == []


def test_a_library_older_than_the_binding_is_no_nvml_error():
    answer = gpu_facts.probe(binding('{"nvmlInit": NVMLLibraryMismatchError}'))
    assert answer["error"]["name"] == "library_too_old"


def test_a_hanging_gpu_costs_the_deadline_and_no_more(bus):
    start = time.monotonic()
    answer = gpu_facts.probe(binding('{"nvmlDeviceGetUUID": lambda handle: time.sleep(60)}'), deadline_s=0.5, root=bus)
    assert time.monotonic() - start < 3
    assert answer["error"]["name"] == "timeout"
    assert answer["error"]["text"] == "NVML did not answer within 0.5 s; asked for uuid of GPU 0"
    assert answer["error"]["device"] == 0
    assert "reboot" in answer["error"]["remedy"]
    assert answer["devices"] == []


def test_a_crashing_library_takes_nobody_along():
    answer = gpu_facts.probe(binding('{"nvmlInit": lambda: os.kill(os.getpid(), signal.SIGKILL)}'))
    assert answer["error"]["name"] == "crashed"
    assert answer["error"]["text"] == "the process that asked NVML ended by signal 9"


def test_an_accident_in_the_child_is_told():
    answer = gpu_facts.probe("raise RuntimeError('broken binding')")
    assert answer["error"]["text"] == "RuntimeError: broken binding"


def test_without_any_binding(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    answer = gpu_facts.probe(None)
    assert answer["error"]["name"] == "no_pynvml"
    assert answer["error"]["remedy"].startswith("install nvidia-ml-py in the controller's Python environment")


def test_the_child_lets_go_of_what_the_caller_prints_to():
    """A hung child would otherwise keep the connection to the controller open."""
    answer = nvml.in_child(lambda: {"targets": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]}, 5)
    assert answer == {"targets": [os.devnull] * 3}


def test_a_long_answer_comes_whole():
    assert nvml.in_child(lambda: {"text": "x" * 1_000_000}, 10)["text"] == "x" * 1_000_000


def test_a_child_that_closed_its_pipe_and_does_not_end_is_not_waited_for():
    def go_silent():
        os.closerange(3, 1024)
        time.sleep(3600)
        return {}

    error = nvml.in_child(go_silent, 30)["error"]
    assert error["name"] == "timeout"
    assert "does not come to its end" in error["text"]


def test_no_child_is_left(monkeypatch):
    """Asked for by its number: the session of the tests may have other children, such as a lab that boots."""
    children, fork = [], os.fork

    def recorded():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", recorded)
    gpu_facts.probe(binding())
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_the_real_binding_loads_from_source_and_finds_no_library(monkeypatch):
    source = Path(importlib.util.find_spec("pynvml").origin).read_text()
    answer = gpu_facts.probe(source + "\ndef CDLL(name):\n    raise OSError(name)\n")
    assert (answer["error"]["code"], answer["error"]["name"]) == (12, "library_not_found")
    assert answer["error"]["text"] == "NVML Shared Library Not Found"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("Tesla K20c", "tesla-k20c"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
    ],
)
def test_slug(name, slug):
    assert nvml_messages.slug(name) == slug


def test_unpack():
    packed = base64.b64encode(zlib.compress("x = 'ä'\n".encode())).decode()
    assert nvml.unpack(packed) == "x = 'ä'\n"
    assert nvml.unpack(None) is None
