# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the homes on CephFS hold, by the attributes that CephFS gives a directory.

The attributes: https://docs.ceph.com/en/latest/cephfs/quota/ and /dev/cephfs-snapshots (ceph.dir.rbytes, which the
metadata server keeps for each directory, so that nothing is walked).
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import probe
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part

HOMES_AT_MOST = 10000
NAME_AT_MOST = 100
USED, QUOTA = "ceph.dir.rbytes", "ceph.quota.max_bytes"
# Without a quota, and on another file system, there is no such attribute.
NONE = (errno.ENODATA, errno.EOPNOTSUPP)

# The path of a directory and the name of an attribute; its value. Raises OSError.
Read = Callable[[str, str], bytes]


def _read(path: str, name: str) -> bytes:
    return os.getxattr(path, name, follow_symlinks=False)


def look(root: str, table: str = "/proc/self/mountinfo", read: Read = _read) -> Part:
    """The metrics of the homes that are mounted below `root`, each by itself or all with it.

    A home that is mounted only when somebody looks at it is not looked at, unless it is mounted now.
    """
    part = Part()
    root = os.path.normpath(root)
    homes = list(itertools.islice(_homes(root, set(probe.mounted(table))), HOMES_AT_MOST + 1))
    if len(homes) > HOMES_AT_MOST:
        part.complain(f"{root} has more than {HOMES_AT_MOST} homes, and the rest is not looked at")
    for name in homes[:HOMES_AT_MOST]:
        path, labels = os.path.join(root, name), {"user": one_line(os.fsencode(name), NAME_AT_MOST)}
        try:
            used, quota = _number(read, path, USED), _number(read, path, QUOTA)
        except (OSError, ValueError) as why:
            told = one_line(getattr(why, "strerror", None) or why)
            part.complain(f"the home of {labels['user']} in {root} cannot be read: {told}")
            continue
        if used is not None:
            part.add("cephfs_home_used_bytes", labels, float(used))
            part.add("cephfs_home_quota_bytes", labels, float(quota or 0))
    return part


def _homes(root: str, mounts: set[str]) -> Iterator[str]:
    """The names of the directories of homes in `root`, sorted as far as they are mounts."""
    own = sorted(os.path.basename(path) for path in mounts if os.path.dirname(path) == root != path)
    yield from own
    if any(root == path or root.startswith(f"{path.rstrip('/')}/") for path in mounts):
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name not in own and entry.is_dir(follow_symlinks=False):
                    yield entry.name


def _number(read: Read, path: str, name: str) -> int | None:
    """An attribute; None where there is none."""
    try:
        value = read(path, name)
    except OSError as why:
        if why.errno in NONE:
            return None
        raise
    if not re.fullmatch(rb"\d{1,20}", value):
        raise ValueError(f"{name} is not a number")
    return int(value)
