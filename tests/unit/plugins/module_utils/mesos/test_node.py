# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has of Mesos. The files are made by hand, the lines of mountinfo as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node

TMPFS = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
V1 = "36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n"
BESIDE = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
ELSEWHERE = "90 23 0:26 / /mnt/cg rw - cgroup2 cgroup2 rw\n"


def put(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        (TMPFS + V1, "v1"),
        (TMPFS + V1 + BESIDE, "hybrid"),
        (V2, "v2"),
        (TMPFS + V1 + ELSEWHERE, "v1"),
        (TMPFS, "none"),
    ],
)
def test_cgroups_are_told_by_their_mounts(tmp_path: Path, mounts: str, kind: str) -> None:
    put(tmp_path, "proc/self/mountinfo", mounts)
    assert mesos_node.cgroups(str(tmp_path)) == kind


def test_a_checkpoint_is_told_by_its_link_and_a_reboot_by_its_boot_id(tmp_path: Path) -> None:
    assert mesos_node.checkpoint("/var/lib/a", str(tmp_path)) == {"agent_id": None, "rebooted": False}
    put(tmp_path, "proc/sys/kernel/random/boot_id", "now\n")
    put(tmp_path, "var/lib/a/meta/boot_id", "now")
    (tmp_path / "var/lib/a/meta/slaves").mkdir()
    (tmp_path / "var/lib/a/meta/slaves/latest").symlink_to("/var/lib/a/meta/slaves/the-id-S3")
    assert mesos_node.checkpoint("/var/lib/a", str(tmp_path)) == {"agent_id": "the-id-S3", "rebooted": False}
    put(tmp_path, "var/lib/a/meta/boot_id", "then")
    assert mesos_node.checkpoint("/var/lib/a", str(tmp_path))["rebooted"] is True


def test_a_replicated_log_counts_when_something_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "m/replicated_log").mkdir(parents=True)
    assert not mesos_node.has_log("/m", str(tmp_path))
    put(tmp_path, "m/replicated_log/CURRENT", "x")
    assert mesos_node.has_log("/m", str(tmp_path))


def test_the_disk_is_that_of_the_nearest_directory_there(tmp_path: Path) -> None:
    assert mesos_node.disk_mib("/not/yet/there", str(tmp_path)) == mesos_node.disk_mib("/", str(tmp_path)) > 0


def test_directories_among_the_device_nodes_are_found_but_for_the_one_that_belongs_there(tmp_path: Path) -> None:
    put(tmp_path, "dev/nvidia0", "")
    for name in ("nvidia-caps", "nvidia-fs"):
        (tmp_path / "dev" / name).mkdir()
    assert mesos_node.device_directories(str(tmp_path)) == ["/dev/nvidia-fs"]


def test_an_address_that_others_cannot_reach_is_none() -> None:
    local = {"127.0.0.1", "127.0.1.1", "10.0.0.5", "fe80::1"}
    names = {"own": ["127.0.1.1"], "dns": ["10.0.0.5", "fe80::1"], "other": ["10.0.0.6"]}
    assert mesos_node.own_addresses(names, local) == {"own": None, "dns": "10.0.0.5", "other": None}


def test_settings_are_read_as_they_were_written() -> None:
    settings = {"work_dir": "/w", "resources": 'cpus:1;x:{a "b" \\ $c}', "master": "zk://u:p@h:1/m"}
    text, _arguments = mesos_flags.render("agent", settings)
    assert mesos_node.environment("# a comment\n\n" + text) == {
        "MESOS_WORK_DIR": "/w",
        "MESOS_RESOURCES": settings["resources"],
    }
