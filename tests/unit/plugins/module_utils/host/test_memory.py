# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of a host."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.host.memory import memory_mib


def test_memory_is_that_of_the_host(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       24595912 kB\nMemFree: 1 kB\n")
    assert memory_mib(str(tmp_path)) == 24019


def test_memory_that_cannot_be_told_is_none(tmp_path):
    assert memory_mib(str(tmp_path)) == 0
