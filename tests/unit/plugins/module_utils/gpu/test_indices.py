# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML index of a GPU, by its UUID."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.indices import index_by_uuid


def test_a_gpu_without_uuid_or_index_is_left_out():
    devices = [
        {"uuid": "GPU-a", "index": 0},
        # A template makes text of numbers.
        {"uuid": "GPU-b", "index": "1"},
        {"uuid": None, "index": 2},
        {"uuid": "GPU-d", "index": None},
        {"uuid": "GPU-e"},
    ]
    assert index_by_uuid(devices) == {"GPU-a": 0, "GPU-b": 1}
