# SPDX-License-Identifier: GPL-3.0-or-later
"""Register the character devices that the NVIDIA modules would register, until this process ends.

The machine has no GPU, so NVIDIA's modules cannot be loaded. /proc/devices gets their names and numbers from CUSE
(character devices in user space) instead; what opens them gets nowhere.
"""

from __future__ import annotations

import os
import signal
import socket
import struct

# Name and major number, 0 for the next free one. Minor 99 is none that the driver uses.
DEVICES = {"nvidia": 195, "nvidia-uvm": 0}
UNUSED_MINOR = 99


def register(name: str, major: int) -> int:
    """A descriptor that keeps the device registered. Layouts: struct cuse_init_in and cuse_init_out of linux/fuse.h."""
    descriptor = os.open("/dev/cuse", os.O_RDWR)
    request = os.read(descriptor, 8192)
    unique, protocol_major, protocol_minor = struct.unpack_from("<8xQ24xII", request)
    sizes = (4096, 4096)
    answer = struct.pack("<8I40x", protocol_major, protocol_minor, 0, 0, *sizes, major, UNUSED_MINOR)
    answer += f"DEVNAME={name}\0".encode()
    os.write(descriptor, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
    return descriptor


def tell_systemd() -> None:
    """The unit counts as started from here on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])


if __name__ == "__main__":
    for name, major in DEVICES.items():
        register(name, major)
    tell_systemd()
    signal.pause()
