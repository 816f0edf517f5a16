# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a kernel module in use, as a GPU's console or display server would, until this process ends.

Without a GPU nothing can open nouveau's devices. A BPF program that is written against one of a module's
functions holds a reference on it, too: the kernel then refuses to unload it, with the same message.

Usage: hold_module.py MODULE
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from pathlib import Path

BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_LOAD, OBJ_GET_INFO_BY_FD, BTF_GET_FD_BY_ID, BTF_GET_NEXT_ID = 5, 15, 19, 23
PROG_TYPE_TRACING, TRACE_FENTRY = 26, 24
KIND_FUNC = 12
# Bytes that follow a type's twelve, by kind: fixed ones, and per member ('vlen').
EXTRA = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12)}
EXTRA |= {17: (4, 0), 19: (0, 12)}

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """The bpf system call; attributes are what its union bpf_attr holds, and come back as the kernel left them."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(BPF_SYSCALL, command, buffer, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result, buffer.raw


def types(path: Path) -> list[tuple[int, int]]:
    """The types that a BTF file defines, in order: kind, and offset of the name."""
    data = path.read_bytes()
    header_length, type_offset, type_length = struct.unpack_from("<III", data, 4)
    at, end = header_length + type_offset, header_length + type_offset + type_length
    users = []
    while at < end:
        name, info = struct.unpack_from("<II", data, at)
        kind = info >> 24 & 0x1F
        fixed, each = EXTRA.get(kind, (0, 0))
        at += 12 + fixed + each * (info & 0xFFFF)
        users.append((kind, name))
    return users


def type_information(module: str) -> int:
    """A descriptor of the module's type information as the kernel holds it."""
    identifier = 0
    while True:
        identifier = struct.unpack_from("<I", bpf(BTF_GET_NEXT_ID, struct.pack("<III", identifier, 0, 0))[1], 4)[0]
        descriptor = bpf(BTF_GET_FD_BY_ID, struct.pack("<III", identifier, 0, 0))[0]
        name = ctypes.create_string_buffer(64)
        # struct bpf_btf_info: btf, btf_size, id, name, name_len, kernel_btf
        info = ctypes.create_string_buffer(struct.pack("<QIIQII", 0, 0, 0, ctypes.addressof(name), 64, 0), 32)
        bpf(OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", descriptor, 32, ctypes.addressof(info)))
        if name.value.decode() == module:
            return descriptor
        os.close(descriptor)


def hold(module: str) -> int:
    """A descriptor of a program against the first of the module's functions that the kernel lets one use."""
    # A module's types are numbered on from the kernel's, whose first has number 1.
    base = len(types(Path("/sys/kernel/btf/vmlinux"))) + 1
    descriptor = type_information(module)
    # r0 = 0; exit
    program = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0), 16)
    license_name = ctypes.create_string_buffer(b"GPL")
    reason = OSError(f"no function in the type information of {module}")
    for number, (kind, _) in enumerate(types(Path("/sys/kernel/btf", module)), base):
        if kind != KIND_FUNC:
            continue
        attributes = bytearray(144)
        struct.pack_into(
            "<IIQQ", attributes, 0, PROG_TYPE_TRACING, 2, ctypes.addressof(program), ctypes.addressof(license_name)
        )
        # expected_attach_type; attach_btf_id and attach_btf_obj_fd
        struct.pack_into("<I", attributes, 68, TRACE_FENTRY)
        struct.pack_into("<II", attributes, 108, number, descriptor)
        try:
            return bpf(PROG_LOAD, bytes(attributes))[0]
        except OSError as error:
            reason = error
    raise reason


if __name__ == "__main__":
    hold(sys.argv[1])
    print(f"{sys.argv[1]}: {Path('/sys/module', sys.argv[1], 'refcnt').read_text().strip()} users", flush=True)
    signal.pause()
