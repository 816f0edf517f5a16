# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before an agent starts: are the cards still at the indices that it is told? Ends with 1 where one is not.

Indices can move at a reboot, and the agent would give out a card that is held back. What NVML cannot tell is left to
the agent, which says so itself.
"""

import ctypes
import os
import sys

UUID_BYTES = 96


def uuid_at(nvml, index):
    """The UUID of the card at an index; None if NVML does not tell."""
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(UUID_BYTES)
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return None
    if nvml.nvmlDeviceGetUUID(handle, text, UUID_BYTES):
        return None
    return text.value.decode("ascii", "replace")


def main():
    wanted = [uuid for uuid in os.environ.get("BAREMETAL_GPU_UUIDS", "").split(",") if uuid]
    indices = [int(index) for index in os.environ.get("MESOS_NVIDIA_GPU_DEVICES", "").split(",") if index]
    if len(wanted) != len(indices):
        print(f"{len(wanted)} cards are named, and {len(indices)} indices", file=sys.stderr)
        return 1
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if nvml.nvmlInit_v2():
        return 0
    moved = []
    for place, index in enumerate(indices):
        uuid = wanted[place]
        found = uuid_at(nvml, index)
        if found and found != uuid:
            moved.append(f"index {index} is {found}, and {uuid} was meant")
    nvml.nvmlShutdown()
    if not moved:
        return 0
    print(f"{'; '.join(moved)}. To do: run playbooks/scheduler.yml for this host", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
