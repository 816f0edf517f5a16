# SPDX-License-Identifier: GPL-3.0-or-later
"""What `nvidia-smi -L` prints, by the same library: a line with number, name and UUID for each GPU."""

import ctypes

nvml = ctypes.CDLL("libnvidia-ml.so.1")


def call(name, *arguments):
    status = getattr(nvml, name)(*arguments)
    if status:
        raise SystemExit(f"{name} answers {status}")


count = ctypes.c_uint()
call("nvmlInit_v2")
call("nvmlDeviceGetCount_v2", ctypes.byref(count))
for index in range(count.value):
    device, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
    call("nvmlDeviceGetName", device, name, 96)
    call("nvmlDeviceGetUUID", device, uuid, 96)
    print(index, uuid.value.decode(), name.value.decode())
call("nvmlShutdown")
