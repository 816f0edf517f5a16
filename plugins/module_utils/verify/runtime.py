# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The query of the GPUs through the CUDA runtime: a program that the toolkit's nvcc compiles here."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import query as verify_query

CACHE = "/var/cache/baremetal-gpu/device_query"
NVCC_PLACES = ("/usr/local/cuda/bin/nvcc", "/usr/bin/nvcc", "/usr/local/cuda-*/bin/nvcc")


def find_nvcc(root: str = "/") -> str | None:
    """The default toolkit's compiler, else any."""
    for pattern in NVCC_PLACES:
        for path in sorted(glob.glob(os.path.join(root, pattern.lstrip("/"))), reverse=True):
            if os.access(path, os.X_OK):
                return path
    return None


def architecture_flags(capabilities: Iterable[str]) -> list[str]:
    """Machine code for exactly the GPUs that are here; without a GPU nvcc's own choice."""
    numbers = sorted({capability.replace(".", "") for capability in capabilities})
    return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]


def key(source: str, nvcc: str, flags: Iterable[str]) -> str:
    """A name for the program that changes with everything that goes into it, the compiler's file included."""
    status = os.stat(os.path.realpath(nvcc))
    parts = [source, os.path.realpath(nvcc), str(status.st_size), str(status.st_mtime_ns), *flags]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def compile_program(
    source: str, nvcc: str, flags: list[str], timeout_s: float, cache: str = CACHE
) -> tuple[str, str | None]:
    """The program's path, and what the compiler said if there is none."""
    directory = os.path.join(cache, key(source, nvcc, flags))
    program = os.path.join(directory, "device_query")
    os.makedirs(cache, mode=0o755, exist_ok=True)
    for old in os.listdir(cache):
        # Of a toolkit or a source that is no more.
        if os.path.join(cache, old) != directory:
            shutil.rmtree(os.path.join(cache, old), ignore_errors=True)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as build:
        path = os.path.join(build, "device_query.cu")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(source)
        output = os.path.join(build, "device_query")
        command = [nvcc, "-O2", "-Wno-deprecated-gpu-targets", *flags, "-o", output, path]
        environment = {"PATH": host_run.SYSTEM_PATH, "TMPDIR": build}
        try:
            status, stdout, stderr = host_run.execute(command, timeout_s, environment=environment)
        except (OSError, host_run.TimedOut) as error:
            return program, str(error)
        if status:
            return program, host_run.text(stderr or stdout).strip()[-1500:] or f"status {status}"
        os.chmod(output, 0o755)
        os.rename(output, program)
    return program, None


def run_all(
    source: str,
    options: cuda_driver.Options,
    state: dict[str, Any],
    capabilities: Iterable[str],
    execute: bool,
    nvcc: str | None = None,
    check_mode: bool = False,
    cache: str = CACHE,
    root: str = "/",
) -> dict[str, Any]:
    """Compile where that was not done yet, and run where that is asked for."""
    answer: dict[str, Any] = {
        "changed": False,
        "nvcc": nvcc or find_nvcc(root),
        "program": None,
        "query": None,
        "skipped": None,
        "causes": [],
    }
    compiler = answer["nvcc"]
    if not compiler or not os.access(compiler, os.X_OK):
        answer["skipped"] = f"{compiler} cannot be executed" if compiler else "no CUDA toolkit is installed"
        return answer
    flags = architecture_flags(capabilities)
    program = os.path.join(cache, key(source, compiler, flags), "device_query")
    if not os.access(program, os.X_OK):
        answer["changed"] = True
        if check_mode:
            answer["skipped"] = "it would be compiled first"
            return answer
        # Compiling takes seconds on an idle machine; a loaded one gets its time.
        program, error = compile_program(source, compiler, flags, max(options.timeout_s, 300), cache)
        if error:
            answer["changed"] = False
            answer["causes"] = [{"where": "CUDA runtime", **verify_query.cause("runtime", f"{compiler}: {error}")}]
            return answer
    answer["program"] = program
    if execute:
        answer["query"] = verify_query.judge(cuda_driver.run(options, program), state)
        answer["causes"] = verify_query.causes_of(answer["query"], "CUDA runtime")
    return answer
