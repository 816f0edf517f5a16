# SPDX-License-Identifier: GPL-3.0-or-later
"""The query in containers: what the engine is asked for, and how what a container saw is judged."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import container as verify_container
from tests.unit.plugins.driver_host import UUIDS
from tests.unit.plugins.module_utils.verify.test_query import STATE

GPUS = [cdi.Gpu(0, 0, "0000:3b:00.0", UUIDS[0]), cdi.Gpu(1, 3, "0000:af:00.0", UUIDS[1])]
FOUND = cdi.Found(
    "550.163.01",
    GPUS,
    control_nodes=["/dev/nvidiactl", "/dev/nvidia-uvm"],
    libraries=[cdi.Library("/usr/lib/x/libcuda.so.550.163.01", ("libcuda.so.1",))],
    library_directory="/usr/lib/x86_64-linux-gnu",
)


def seen(*gpus, **changes):
    """What the query in a container prints."""
    devices = [
        {"index": number, "ok": True, "uuid": gpu.uuid, "pci_address": gpu.address, "error": None}
        for number, gpu in enumerate(gpus)
    ]
    files = ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in gpus)]
    result = {"ok": True, "count": len(gpus), "error": None, "devices": devices, "device_files": sorted(files)}
    return {**result, **changes}


class Engine:
    """A container engine that answers as told and remembers what it was asked."""

    def __init__(self, answers=(), cdi_directories=("/etc/cdi",), runtimes=("runc",), image=True, imports=0):
        self.answers = list(answers)
        self.info = {"CDISpecDirs": cdi_directories, "Runtimes": {key: {} for key in runtimes}}
        self.image, self.imports = image, imports
        self.asked = []

    def __call__(self, command, stdin, timeout_s):
        self.asked.append((command, stdin))
        if command[0] == "ldd":
            return (
                0,
                b"\tlinux-vdso.so.1 (0x7ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f00)\n\t/lib64/ld.so (0x7f01)\n",
                b"",
            )
        if command[1] == "info":
            field = command[-1].split(".")[1].rstrip("}")
            if self.info[field] is None:
                return 1, b"", b"template: :1:8: executing: can't evaluate field"
            return 0, json.dumps(self.info[field]).encode(), b""
        if command[1:3] == ["image", "inspect"]:
            return (0 if self.image else 1), b"[]", b""
        if command[1] == "import":
            self.image = self.imports == 0
            return self.imports, b"", b"no space left on device\n"
        assert command[1] == "run"
        return self.answers.pop(0)

    @property
    def runs(self):
        return [(command, stdin) for command, stdin in self.asked if command[1:2] == ["run"]]


def run(engine, mode="auto", **arguments):
    return verify_container.run_all("SOURCE", "docker", mode, FOUND, STATE, run=engine, **arguments)


def answers(*results):
    return [(0, json.dumps(result).encode(), b"") for result in results]


@pytest.fixture(autouse=True)
def docker_is_installed(monkeypatch):
    monkeypatch.setattr(verify_container.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_by_cdi_one_gpu_and_then_all():
    engine = Engine(answers(seen(GPUS[0]), seen(*GPUS)))
    answer = run(engine, mounts=["/opt/more"])
    assert (answer["mode"], answer["changed"], answer["causes"]) == ("cdi", False, [])
    assert [(one["name"], one["ok"]) for one in answer["containers"]] == [("0", True), ("all", True)]
    (first, stdin), (second, _) = engine.runs
    assert stdin == b"SOURCE"
    assert "nvidia.com/gpu=0" in first
    assert "nvidia.com/gpu=all" in second
    assert "/opt/more:/opt/more:ro" in first
    # Nothing of the driver but what the engine itself gives, and nothing that a container could misuse.
    assert not [part for part in first if "cuda" in part or part.startswith("/dev/")]
    for wanted in (["--network", "none"], ["--cap-drop", "ALL"], ["--security-opt", "no-new-privileges"]):
        assert first[first.index(wanted[0]) + 1] == wanted[1]
    assert first[-6:] == ["-S", "-", "--copy-mib", "16", "--timeout", "60"]


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        ({}, "cdi"),
        ({"cdi_directories": None}, "explicit"),
        ({"cdi_directories": []}, "explicit"),
        ({"cdi_directories": None, "runtimes": ("runc", "nvidia")}, "runtime"),
    ],
)
def test_the_engine_is_asked_what_it_can_do(engine, mode):
    answer = run(Engine(answers(seen(GPUS[0]), seen(*GPUS)), **engine))
    assert (answer["mode"], answer["causes"]) == (mode, [])


def test_podman_is_not_asked():
    engine = Engine(answers(seen(GPUS[0]), seen(*GPUS)), cdi_directories=None)
    answer = verify_container.run_all("SOURCE", "podman", "auto", FOUND, STATE, run=engine)
    assert (answer["mode"], answer["causes"]) == ("cdi", [])


def test_by_the_runtime_of_nvidia():
    engine = Engine(answers(seen(GPUS[0]), seen(*GPUS)))
    assert run(engine, "runtime")["causes"] == []
    (first, _), (second, _) = engine.runs
    assert first[first.index("--gpus") + 1] == f'"device={UUIDS[0]}"'
    assert second[second.index("--gpus") + 1] == "all"


def test_explicitly():
    engine = Engine(answers(seen(GPUS[0]), seen(*GPUS)))
    assert run(engine, "explicit")["causes"] == []
    first = engine.runs[0][0]
    assert [first[at + 1] for at, part in enumerate(first) if part == "--device"] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert "/usr/lib/x/libcuda.so.550.163.01:/usr/lib/x86_64-linux-gnu/libcuda.so.1:ro" in first


def test_a_container_that_sees_a_gpu_too_many():
    # It has the device file of the second GPU as well.
    both = seen(GPUS[0], device_files=["/dev/nvidia0", "/dev/nvidia3", "/dev/nvidiactl"])
    answer = run(Engine(answers(both, seen(*GPUS))))
    (cause,) = answer["causes"]
    assert (cause["where"], cause["code"]) == ("container with 0", "container_isolation")
    assert cause["text"] == "it was given /dev/nvidia0 and has /dev/nvidia0, /dev/nvidia3"


def test_the_remedy_names_the_file_that_the_engine_takes_the_gpu_from(tmp_path):
    """Docker says where it looks; the directory that it names last goes first."""
    directories = [str(tmp_path / "etc"), str(tmp_path / "run")]
    for directory in directories:
        os.makedirs(directory)
        with open(f"{directory}/nvidia.yaml", "w") as file:
            file.write('kind: "nvidia.com/gpu"\ndevices:\n- name: "0"\n- name: all\n')
    engine = Engine([(125, b"", b"unresolvable CDI devices nvidia.com/gpu=0\n")] * 2, cdi_directories=directories)
    causes = run(engine)["causes"]
    assert [cause["remedy"].rpartition("; ")[2] for cause in causes] == [
        f"nvidia.com/gpu={name} is taken from {tmp_path}/run/nvidia.yaml" for name in ("0", "all")
    ]
    with open(f"{tmp_path}/run/other.json", "w") as file:
        file.write('{"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}')
    engine = Engine([(125, b"", b"unresolvable CDI devices nvidia.com/gpu=0\n")] * 2, cdi_directories=directories)
    one, _all = run(engine)["causes"]
    assert f"{tmp_path}/run/nvidia.yaml and {tmp_path}/run/other.json, so it is taken from none" in one["remedy"]
    assert (
        "is in no file of" in run(Engine([(125, b"", b"x\n")] * 2, cdi_directories=["/nowhere"]))["causes"][0]["remedy"]
    )


def test_a_container_that_sees_another_gpu():
    other = seen(GPUS[0])
    other["devices"][0]["uuid"] = UUIDS[1]
    (cause,) = run(Engine(answers(other, seen(*GPUS))))["causes"]
    assert cause["text"] == f"it was given {UUIDS[0]} and sees {UUIDS[1]}"


def test_a_container_in_which_cuda_does_not_start():
    failed = seen(GPUS[0], devices=[], ok=False, error={"call": "cuInit", "code": 999, "name": "x", "text": "said"})
    answer = run(Engine(answers(failed, seen(*GPUS))))
    assert [(cause["where"], cause["code"]) for cause in answer["causes"]] == [("container with 0", "unknown")]
    assert [one["ok"] for one in answer["containers"]] == [False, True]


def test_a_container_that_does_not_start():
    refused = (125, b"", b"x\ndocker: unresolvable CDI devices nvidia.com/gpu=0\n")
    answer = run(Engine([refused, *answers(seen(*GPUS))]))
    assert [one["ok"] for one in answer["containers"]] == [False, True]
    assert "status 125: docker: unresolvable CDI devices nvidia.com/gpu=0" in answer["causes"][0]["text"]


def test_with_one_gpu_there_is_one_container():
    (only,) = verify_container.requests_for(GPUS[:1])
    assert (only.name, only.files) == ("0", ("/dev/nvidia0",))


def test_the_image_is_imported_once():
    engine = Engine(answers(seen(GPUS[0]), seen(*GPUS)) * 2, image=False)
    assert run(engine)["changed"] is True
    assert run(engine)["changed"] is False
    assert [command[1] for command, _ in engine.asked].count("import") == 1


def test_in_check_mode_nothing_is_imported_and_nothing_runs():
    engine = Engine(image=False)
    answer = run(engine, check_mode=True)
    assert (answer["changed"], answer["skipped"]) == (True, "the image would be imported first")
    assert not [command for command, _ in engine.asked if command[1] in ("import", "run")]


def test_in_check_mode_the_engine_may_be_missing(monkeypatch):
    monkeypatch.setattr(verify_container.shutil, "which", lambda name: None)
    engine = Engine()
    assert run(engine, check_mode=True)["skipped"] == "docker would be installed first"
    assert engine.asked == []


def test_an_image_that_cannot_be_imported():
    answer = run(Engine(image=False, imports=1))
    assert answer["causes"][0]["text"] == "the empty image cannot be imported: no space left on device"


def test_an_engine_that_is_not_installed():
    with pytest.raises(verify_container.EngineError, match="no-such-engine is not installed"):
        verify_container.run_command(["no-such-engine", "info"], b"", 5)


def test_an_engine_that_hangs():
    with pytest.raises(verify_container.EngineError, match=r"did not end within 0\.2 s"):
        verify_container.run_command(["sleep", "5"], b"", 0.2)


def test_the_image_is_always_the_same_and_holds_directories_only():
    first = verify_container.image_tar()
    assert first == verify_container.image_tar()
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        entries = {entry.name: entry for entry in tar}
    assert entries["lib64"].linkname == "usr/lib64"
    assert not [name for name, entry in entries.items() if entry.isfile()]


def test_what_is_mounted_is_enough_for_the_interpreter(tmp_path):
    """The loader itself, told to look nowhere else, starts the interpreter with the libraries that are mounted."""
    python, mounts = verify_container.interpreter_mounts(verify_container.run_command)
    targets = {target: source for source, target in mounts}
    assert targets[python] == os.path.realpath(sys.executable)
    loader = next(source for source, target in mounts if "ld-linux" in target or "/ld-" in target)
    for source, target in mounts:
        assert os.path.exists(source), source
        if ".so" in os.path.basename(target):
            (tmp_path / os.path.basename(target)).symlink_to(source)
    done = subprocess.run(
        [
            loader,
            "--library-path",
            str(tmp_path),
            "--inhibit-cache",
            python,
            "-I",
            "-S",
            "-c",
            "import ctypes, json, select, array",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert done.returncode == 0, done.stderr
