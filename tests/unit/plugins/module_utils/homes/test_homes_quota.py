# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of users by the kernel's call, with a kernel that is played."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.homes import quota
from ansible_collections.baremetal.gpu.plugins.module_utils.homes.quota import FileSystem, Quotas
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

EXT4 = FileSystem("/srv", "ext4", "/dev/block/8:1", "/dev/sda1")
TABLE = """\
22 1 253:1 / / rw - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
31 22 999:16 / /srv rw,relatime shared:1 - xfs /dev/sdb1 rw,usrquota
32 31 999:17 / /srv/with\\040blank rw - ext4 /dev/sdc1 rw
33 22 999:18 / /srvs rw - btrfs /dev/sdd1 rw
"""


class Kernel:
    """Answers quotactl(2) for one device."""

    def __init__(self, flags: int = 3) -> None:
        self.flags = flags
        self.limits: dict[int, int] = {}
        self.used: dict[int, int] = {}

    def __call__(self, command: int, device: str, number: int, content: bytes) -> bytes:
        assert device == EXT4.device
        if command == quota.STATE:
            if not self.flags:
                raise OSError(errno.ENOSYS, "no quotas")
            return struct.pack("=bxH", 1, self.flags) + content[4:]
        if command == quota.GET:
            if number not in self.limits and number not in self.used:
                raise OSError(errno.ENOENT, "nobody knows the user")
            return struct.pack("=8QI4x", self.limits.get(number, 0), 0, self.used.get(number, 0), *[0] * 5, 0x3F)
        assert command == quota.SET
        hard, soft, *rest, valid = struct.unpack("=8QI4x", content)
        assert (hard, rest, valid) == (soft, [0] * 6, 1)
        self.limits[number] = hard
        return content


@pytest.mark.parametrize(
    ("directory", "path", "kind", "device"),
    [
        ("/srv/homes", "/srv", "xfs", "/dev/sdb1"),
        ("/srv", "/srv", "xfs", "/dev/sdb1"),
        ("/srv/with blank/homes", "/srv/with blank", "ext4", "/dev/sdc1"),
        ("/srvs", "/srvs", "btrfs", "/dev/sdd1"),
        ("/not-there/homes", "/", "ext4", "/dev/sda1"),
    ],
)
def test_the_file_system_of_a_directory_is_found(
    tmp_path: Path, directory: str, path: str, kind: str, device: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    found = quota.of(directory, str(table))
    assert (found.path, found.kind) == (path, kind)
    assert found.source == device
    assert path == "/" or found.device == device


def test_a_quota_is_read_and_set_in_bytes() -> None:
    kernel = Kernel()
    quotas = Quotas(EXT4, kernel)
    assert quotas.read(2001) == (0, 0)
    quotas.set(2001, 5 * 1024 + 1)
    kernel.used[2001] = 4096
    assert kernel.limits == {2001: 6}
    assert quotas.read(2001) == (6144, 4096)
    quotas.check("nfs_homes_quota")


@pytest.mark.parametrize(
    ("path", "kind", "remedy"),
    [
        ("/srv", "ext4", "sudo tune2fs -O quota /dev/sda1"),
        ("/", "ext4", "sudo quotacheck -cum /"),
        ("/srv", "xfs", "uquota"),
        ("/srv", "btrfs", "a file system of their own"),
    ],
)
@pytest.mark.parametrize("flags", [0, 1], ids=["off", "counted only"])
def test_a_file_system_that_refuses_nothing_is_refused_with_its_remedy(
    path: str, kind: str, remedy: str, flags: int
) -> None:
    quotas = Quotas(FileSystem(path, kind, EXT4.device, EXT4.source), Kernel(flags))
    with pytest.raises(Refused) as refused:
        quotas.check("nfs_homes_quota")
    assert refused.value.problem.code == "no_quotas"
    assert remedy in refused.value.problem.remedy
    assert "nfs_homes_quota: false" in refused.value.problem.remedy
