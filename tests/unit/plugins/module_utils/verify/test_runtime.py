# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiling the query for the CUDA runtime and keeping what was compiled; the compiler is a script of the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import runtime as verify_runtime
from tests.unit.plugins.module_utils.verify.test_query import STATE

ROOT = Path(__file__).resolve().parents[5]
SOURCE = ROOT / "roles" / "gpu_verify" / "files" / "device_query.cu"
OPTIONS = cuda_driver.Options(timeout_s=10)

# Makes a program that tells the steps of a good GPU; remembers its arguments.
COMPILER = """#!/bin/sh
echo "$@" >> "{log}"
while [ $# -gt 0 ]; do
    case $1 in -o) output=$2; shift;; esac
    shift
done
cat > "$output" <<'END'
#!/bin/sh
echo '{{"event": "counted", "count": 1, "cuda": "12.4"}}'
echo '{{"event": "device", "device": {{"index": 0, "ok": {ok}, "pci_address": "0000:3b:00.0", "error": {error}}}}}'
echo '{{"event": "end"}}'
END
"""
WRONG = '{"call": "gpu_query_vector_add", "code": null, "name": "WRONG_RESULT", "text": "1 of 5 elements"}'


@pytest.fixture
def toolkit(tmp_path):
    def make(ok=True, body=None):
        nvcc = tmp_path / "usr/local/cuda/bin/nvcc"
        nvcc.parent.mkdir(parents=True, exist_ok=True)
        text = COMPILER.format(log=tmp_path / "log", ok=str(ok).lower(), error="null" if ok else WRONG)
        nvcc.write_text(body or text)
        nvcc.chmod(0o755)
        return str(tmp_path)

    return make


def run(root, source="SOURCE", capabilities=("8.0",), execute=True, **arguments):
    return verify_runtime.run_all(
        source, OPTIONS, STATE, capabilities, execute, cache=f"{root}/cache", root=root, **arguments
    )


def compilations(root):
    log = Path(root) / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_compiled_once_and_run_every_time(toolkit):
    root = toolkit()
    first, second = run(root), run(root)
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["causes"] == second["causes"] == []
    assert second["query"]["ok"] is True
    assert second["query"]["source"] == "runtime_api"
    (line,) = compilations(root)
    assert "-gencode=arch=compute_80,code=sm_80" in line


def test_compiled_again_for_another_source_gpu_or_compiler(toolkit):
    root = toolkit()
    programs = {
        run(root)["program"],
        run(root, source="OTHER")["program"],
        run(root, capabilities=["9.0", "8.0"])["program"],
    }
    toolkit(ok=False)
    programs.add(run(root, capabilities=["9.0", "8.0"])["program"])
    assert len(programs) == 4
    # Only the last is kept.
    assert len(list(Path(root).glob("cache/*"))) == 1
    assert "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90" in compilations(root)[-1]


def test_compile_only(toolkit):
    root = toolkit(ok=False)
    answer = run(root, execute=False)
    assert (answer["query"], answer["causes"], answer["changed"]) == (None, [], True)
    assert os.access(answer["program"], os.X_OK)


def test_in_check_mode_nothing_is_compiled(toolkit):
    root = toolkit()
    answer = run(root, check_mode=True)
    assert (answer["changed"], answer["skipped"]) == (True, "it would be compiled first")
    assert compilations(root) == []
    assert not (Path(root) / "cache").exists()


def test_a_wrong_result_is_a_cause(toolkit):
    answer = run(toolkit(ok=False))
    (cause,) = answer["causes"]
    assert (cause["where"], cause["code"]) == ("CUDA runtime 0000:3b:00.0", "wrong_result")


def test_a_compiler_that_fails_is_a_cause_and_leaves_nothing(toolkit):
    root = toolkit(body="#!/bin/sh\necho \"nvcc fatal : Unsupported gpu architecture 'compute_35'\" >&2\nexit 1\n")
    answer = run(root)
    assert answer["changed"] is False
    assert answer["causes"][0]["code"] == "runtime"
    assert "Unsupported gpu architecture 'compute_35'" in answer["causes"][0]["text"]
    assert not list(Path(root).rglob("device_query*"))


def test_no_toolkit(tmp_path):
    answer = run(str(tmp_path))
    assert (answer["skipped"], answer["changed"], answer["causes"]) == ("no CUDA toolkit is installed", False, [])


def test_a_compiler_that_is_named_but_not_there(toolkit):
    answer = run(toolkit(), nvcc="/nowhere/nvcc")
    assert answer["skipped"] == "/nowhere/nvcc cannot be executed"


def test_the_default_toolkit_comes_first(toolkit):
    root = toolkit()
    for name in ("cuda-12.4", "cuda-11.8"):
        other = Path(root) / f"usr/local/{name}/bin/nvcc"
        other.parent.mkdir(parents=True)
        other.write_text("")
        other.chmod(0o755)
    assert verify_runtime.find_nvcc(root) == f"{root}/usr/local/cuda/bin/nvcc"
    Path(f"{root}/usr/local/cuda/bin/nvcc").unlink()
    assert verify_runtime.find_nvcc(root) == f"{root}/usr/local/cuda-12.4/bin/nvcc"


def test_the_real_program_compiles(tmp_path):
    nvcc = verify_runtime.find_nvcc() or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no CUDA toolkit here")
    program, error = verify_runtime.compile_program(SOURCE.read_text(), nvcc, [], 300, str(tmp_path))
    assert error is None
    done = subprocess.run([program, "--nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage:" in done.stderr
