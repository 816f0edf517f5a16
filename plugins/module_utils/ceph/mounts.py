# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host mounts CephFS: options, secrets, its ceph.conf, and the files that earlier runs wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNITS = "/etc/systemd/system"
SECRETS = "/etc/ceph/cephfs"
CONF = f"{SECRETS}/ceph.conf"
# By this line the role knows its own units again, those of mounts that are no longer listed included.
MARK = "# Written by baremetal.gpu.cephfs_client for "


def options(mount: Mapping[str, Any], settings: Mapping[str, Any], secret: str, conf: str = CONF) -> str:
    """Mount options.

    :param secret: path of the file that has the secret.
    """
    client, filesystem = mount["client"], settings["filesystem"]
    common = ["_netdev", "nosuid", "nodev", "ro" if mount.get("read_only") else "rw"]
    if settings["kernel"]:
        own = [f"name={client}", f"secretfile={secret}", f"conf={conf}", f"mds_namespace={filesystem}"]
        # A client that the cluster gave up while the network was away comes back by itself.
        own += [f"ms_mode={settings['ms_mode']}", "recover_session=clean", "noatime"]
    else:
        own = [f"ceph.id={client}", f"ceph.keyring={secret}", f"ceph.conf={conf}", f"ceph.client_fs={filesystem}"]
        own += [f"ceph.client_mountpoint={mount.get('subpath', '/')}", "ceph.client_reconnect_stale=true"]
    return ",".join(own + common)


def source(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What is mounted, as mount(8) takes it; ceph-fuse takes it from an option."""
    return f":{mount.get('subpath', '/')}" if settings["kernel"] else "none"


def kind(settings: Mapping[str, Any]) -> str:
    """Type of the file system, as mount(8) takes it."""
    return "ceph" if settings["kernel"] else "fuse.ceph"


def secret_text(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Content of the file that has the secret."""
    secret = mount["secret"]
    return f"{secret}\n" if settings["kernel"] else f"[client.{mount['client']}]\n\tkey = {secret}\n"


def conf_text(settings: Mapping[str, Any]) -> str:
    """Content of the client's ceph.conf."""
    fsid = f"fsid = {settings['fsid']}\n" if settings["fsid"] else ""
    # Where the kernel mounts, no daemon is there to log; ceph-fuse writes to the journal of its unit.
    log = "\n[client]\nlog_to_file = false\nadmin_socket =\n"
    return f"[global]\n{fsid}mon_host = {','.join(settings['monitors'])}\n{log}"


def written(mount_set: str, root: str = "/") -> list[str]:
    """Paths of the units and secrets that earlier runs wrote for a set of mounts, sorted.

    :param root: where the host's file system begins.
    """
    top, line = Path(root), f"{MARK}{mount_set}."
    units = [path for suffix in ("mount", "automount") for path in (top / UNITS[1:]).glob(f"*.{suffix}")]
    ours = [path for path in units if path.is_file() and line in path.read_text("utf-8", "replace").splitlines()]
    secrets = [path for path in (top / SECRETS[1:] / mount_set).glob("client.*") if path.is_file()]
    return sorted(f"/{path.relative_to(top)}" for path in (*ours, *secrets))
