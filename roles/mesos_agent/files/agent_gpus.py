# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before an agent starts: are the GPUs still at the indices that it is told? Ends with 1 where one is not.

Indices can move at a reboot, and the agent would give out a GPU that is held back. What NVML cannot tell is left to
the agent, which says so itself.

With an environment file, before an agent that runs is restarted with it: would it come back? An agent that names a GPU
that does not answer ends at once, each time again, and its jobs are lost with it. Ends with 1 where one does not.
"""

import ctypes
import os
import sys

UUID_BYTES = 96


def settings(path):
    """The two variables in an environment file as the role writes it."""
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").partition("=") for line in file if not line.startswith("#")]
    return {name: value.strip('"') for name, sign, value in rows if sign}


def library():
    """(NVML, opened; why there is none)."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as why:
        return None, str(why)
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    code = nvml.nvmlInit_v2()
    if code:
        return None, f"NVML does not start: {nvml.nvmlErrorString(code).decode('ascii', 'replace')}"
    return nvml, ""


def uuid_at(nvml, index):
    """(UUID of the GPU at an index, why NVML does not tell it)."""
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(UUID_BYTES)
    code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    code = code or nvml.nvmlDeviceGetUUID(handle, text, UUID_BYTES)
    if code:
        return None, nvml.nvmlErrorString(code).decode("ascii", "replace")
    return text.value.decode("ascii", "replace"), ""


def told(variables):
    """(UUIDs, indices) of the GPUs that an agent is told of."""
    wanted = [uuid for uuid in variables.get("BAREMETAL_GPU_UUIDS", "").split(",") if uuid]
    return wanted, [int(index) for index in variables.get("MESOS_NVIDIA_GPU_DEVICES", "").split(",") if index]


def look(wanted, indices):
    """(GPUs that are at another place, GPUs that do not answer), a few words each."""
    nvml, why = library()
    if nvml is None:
        return [], [why]
    moved, silent = [], []
    for place, index in enumerate(indices):
        uuid = wanted[place]
        found, why = uuid_at(nvml, index)
        if found is None:
            silent.append(f"{uuid} at index {index} does not answer: {why}")
        elif found != uuid:
            moved.append(f"index {index} is {found}, and {uuid} was meant")
    nvml.nvmlShutdown()
    return moved, silent


def main(arguments):
    wanted, indices = told(settings(arguments[0]) if arguments else os.environ)
    if len(wanted) != len(indices):
        print(f"{len(wanted)} GPUs are named, and {len(indices)} indices", file=sys.stderr)
        return 1
    moved, silent = look(wanted, indices) if wanted else ([], [])
    if arguments and moved + silent:
        print(f"{'; '.join(moved + silent)}. To do: see what gpu-agent status says of the GPU there", file=sys.stderr)
        return 1
    if not moved:
        return 0
    print(f"{'; '.join(moved)}. To do: run `gpuops up --tags scheduler` for this host", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
