#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvcc_check
short_description: Prove that CUDA toolkits compile
version_added: 0.1.0
description:
  - Compiles and links a small CUDA program with each compiler, for the GPUs of the host, and runs it with O(run). It
    tries every compiler, and reports all failures together.
  - Works in a temporary directory and leaves nothing behind.
options:
  compilers:
    description: Paths of the compilers.
    type: list
    elements: path
    default: [/usr/local/cuda/bin/nvcc]
  login:
    description:
      - Compiler that must have the version of the C(nvcc) that a user finds after login. Another one on the host may
        come before it in the path.
    type: path
  capabilities:
    description: Compute capabilities of the GPUs, such as V(8.0). With none the compiler decides.
    type: list
    elements: str
    default: []
  run:
    description:
      - Whether to run the program too. It adds two vectors on the first GPU and compares the sum. Needs a loaded
        driver.
    type: bool
    default: false
  timeout:
    description: Seconds that a compiler has, and the program.
    type: int
    default: 300
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Prove that both toolkits compile for an A100
  baremetal.gpu.nvcc_check:
    compilers:
      - /usr/local/cuda-12.4/bin/nvcc
      - /usr/local/cuda-11.8/bin/nvcc
    capabilities: ["8.0"]
"""

RETURN = r"""
toolkits:
  description: What each compiler is and did.
  returned: always
  type: list
  elements: dict
  contains:
    compiler:
      description: Its path.
      type: str
    version:
      description: Its version, or null.
      type: str
      sample: 12.4.131
    compiled:
      description: Whether it made the program.
      type: bool
    ran:
      description: Whether the program was run and its result was right.
      type: bool
    error:
      description: What went wrong, or null.
      type: str
"""

import os
import re
import tempfile
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.verify.runtime import architecture_flags

# Uses the compiler, the linker, the runtime library and its headers, which is what a broken installation lacks.
PROGRAM = r"""
#include <cstdio>
#include <cuda_runtime.h>

__global__ void add(const int *a, const int *b, int *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

#define TRY(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); return 1; } } while (0)

int main() {
    const int n = 1000;
    int a[n], b[n], sum[n], *device[3];
    for (int i = 0; i < n; ++i) { a[i] = i; b[i] = 3 * i; sum[i] = -1; }
    for (int i = 0; i < 3; ++i) TRY(cudaMalloc(&device[i], sizeof a));
    TRY(cudaMemcpy(device[0], a, sizeof a, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(device[1], b, sizeof b, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(device[0], device[1], device[2], n);
    TRY(cudaGetLastError());
    TRY(cudaMemcpy(sum, device[2], sizeof sum, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; ++i)
        if (sum[i] != 4 * i) { std::fprintf(stderr, "wrong sum at %d: %d\n", i, sum[i]); return 2; }
    std::puts("right");
    return 0;
}
"""


SHELLS = ("/bin/bash", "/bin/sh")


def call(command: Sequence[str], timeout: float, directory: str) -> tuple[str, str | None]:
    """Output of a command, and what went wrong."""
    environment = {"PATH": host_run.SYSTEM_PATH, "TMPDIR": directory}
    try:
        status, stdout, stderr = host_run.execute(command, timeout, environment=environment, directory=directory)
    except FileNotFoundError:
        return "", f"{command[0]} is not there"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    except host_run.TimedOut:
        return "", f"{command[0]} did not end within {timeout:g} s"
    if status:
        words = host_run.text(stderr or stdout).strip()[-1500:]
        return host_run.text(stdout), f"{command[0]} ended with {status}: {words or 'it said nothing'}"
    return host_run.text(stdout), None


def try_toolkit(compiler: str, capabilities: Sequence[str], run: bool, timeout: float) -> dict[str, Any]:
    result: dict[str, Any] = {"compiler": compiler, "version": None, "compiled": False, "ran": False, "error": None}
    with tempfile.TemporaryDirectory(prefix="baremetal-gpu-nvcc-") as directory:
        out, result["error"] = call([compiler, "--version"], timeout, directory)
        if result["error"]:
            return result
        result["version"] = version_of(out)
        source, program = os.path.join(directory, "add.cu"), os.path.join(directory, "add")
        with open(source, "w", encoding="utf-8") as stream:
            stream.write(PROGRAM)
        flags = architecture_flags(capabilities)
        _out, result["error"] = call(
            [compiler, "-Wno-deprecated-gpu-targets", *flags, "-o", program, source], timeout, directory
        )
        if result["error"]:
            return result
        result["compiled"] = True
        if run:
            _out, result["error"] = call([program], timeout, directory)
            result["ran"] = result["error"] is None
    return result


def version_of(out: str) -> str | None:
    found = re.search(r"\bV([0-9]+(?:\.[0-9]+)+)", out)
    return found.group(1) if found else None


def login_trouble(compiler: str, timeout: float) -> str | None:
    """Why a user who logs in does not get this compiler's version; None if they do."""
    shell = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
    with tempfile.TemporaryDirectory(prefix="baremetal-gpu-nvcc-") as directory:
        out, error = call([compiler, "--version"], timeout, directory)
        if error:
            return error
        # As by anybody: with no home there is nothing of one user's own.
        login = ["env", "-i", "HOME=/nonexistent", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", shell, "-lc"]
        told, error = call([*login, "command -v nvcc && nvcc --version"], timeout, directory)
        wanted, found = version_of(out), version_of(told)
        if error or found != wanted:
            place = next((line for line in told.splitlines() if line.endswith("/nvcc")), "none")
            return (
                f"a user who logs in and calls nvcc gets {place} ({found or 'of no version'}) and not {compiler} "
                f"({wanted}); see what else sets PATH in /etc/profile.d or /etc/environment"
            )
    return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "compilers": {"type": "list", "elements": "path", "default": ["/usr/local/cuda/bin/nvcc"]},
            "login": {"type": "path"},
            "capabilities": {"type": "list", "elements": "str", "default": []},
            "run": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    toolkits = [
        try_toolkit(compiler, params["capabilities"], params["run"], params["timeout"])
        for compiler in params["compilers"]
    ]
    errors = [toolkit["error"] for toolkit in toolkits if toolkit["error"]]
    if params["login"] and not errors and (trouble := login_trouble(params["login"], params["timeout"])):
        module.fail_json(msg=f"The toolkits compile, but {trouble}.", toolkits=toolkits)
    if errors:
        module.fail_json(
            msg=f"A CUDA toolkit does not do what it is for: {'; '.join(errors)}. Install its packages again, and "
            "see that the host's compiler is one that this CUDA supports.",
            toolkits=toolkits,
        )
    module.exit_json(changed=False, toolkits=toolkits)


if __name__ == "__main__":
    main()
