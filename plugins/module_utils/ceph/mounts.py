# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of CephFS as units of systemd: what a client's mounts need in files and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNITS = "/etc/systemd/system"
SECRETS = "/etc/ceph/cephfs"
CONF = f"{SECRETS}/ceph.conf"
# By this line the role knows its own units again, those of mounts that are wanted no longer included.
MARK = "# Written by baremetal.gpu.cephfs_client for "
# What systemd mounts with instead of mount.ceph or ceph-fuse: mount(8) looks for the helper of a type there.
TYPE = "baremetal-gpu-cephfs"
HELPER = f"/usr/sbin/mount.{TYPE}"
WAIT = "baremetal_gpu_wait"
# Seconds that whoever looks at a path waits for a cluster that is starting, where nothing else is said.
USUAL_WAIT = 180
HELPER_TEXT = """#!/bin/sh
# Written by baremetal.gpu.cephfs_client: mounts CephFS, and tries again while the cluster is starting.
#
# After a power cut the monitors, OSDs and MDS need a minute or two, and until then a mount is refused. Whoever looked
# at the path would be told 'No such device'; so they wait instead, but not for what waiting does not mend.
#
# mount(8) calls it: WHAT WHERE [-sfnv] [-N NAMESPACE] [-t TYPE] -o OPTIONS
what=$1 where=$2
shift 2
options= wait=0 rest=
while getopts sfnvN:t:o: flag; do
    [ "$flag" != o ] || options=$OPTARG
done
old=$IFS
IFS=,
for option in $options; do
    case $option in
    baremetal_gpu_wait=*) wait=${option#*=} ;;
    *) rest=${rest:+$rest,}$option ;;
    esac
done
IFS=$old
case $what in :*) type=ceph ;; *) type=fuse.ceph ;; esac

# Not the time of day, which may be set meanwhile.
now() {
    read -r up _idle </proc/uptime
    echo "${up%%.*}"
}

# A file and no pipe: what ceph-fuse leaves running would hold that open.
said=$(mktemp -t cephfs-mount.XXXXXX) || exit 2
trap 'rm -f "$said"' EXIT
end=$(($(now) + wait))
while :; do
    mount -t "$type" -o "$rest" "$what" "$where" >"$said" 2>&1
    code=$?
    [ "$code" -ne 0 ] || exit 0
    if grep -Eiq -e 'error (1|2|13|22) =|\\((1|2|13|22)\\)|permission denied|not permitted|no such file' \\
        -e 'invalid argument|not supported|unknown filesystem|bad option' "$said"; then
        break
    fi
    [ "$(now)" -lt "$end" ] || break
    sleep 1
done
cat "$said" >&2
exit "$code"
"""
LOCAL = ["/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin"]
LOCAL += ["/srv", "/sys", "/tmp", "/usr", "/var"]


def unit_name(path: str, kind: str) -> str:
    """The name that systemd gives the unit of a path; see systemd.unit(5), 'String escaping for inclusion'."""
    parts = [part for part in path.split("/") if part]
    escaped: list[str] = []
    for part in parts:
        text = ""
        for place, byte in enumerate(part.encode()):
            char = chr(byte)
            plain = char.isascii() and (char.isalnum() or (char in ":_." and (place or char != "." or bool(escaped))))
            text += char if plain else f"\\x{byte:02x}"
        escaped.append(text)
    return f"{'-'.join(escaped) or '-'}.{kind}"


def problems(mounts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What cannot be mounted as it is asked for."""
    found = []
    seen: dict[str, int] = {}
    for number, mount in enumerate(mounts):
        path, subpath, client = mount["path"], mount.get("subpath", "/"), mount["client"]
        if not path.startswith("/") or path.rstrip("/") != path or path in LOCAL or "/../" in f"{path}/":
            found.append(f"{path!r} is no place to mount at; name an absolute path of its own below / or /home")
        if not subpath.startswith("/"):
            found.append(f"{path}: {subpath!r} is no path in the file system; begin it with /")
        if not mount.get("secret"):
            found.append(f"{path}: there is no secret for client.{client}")
        if any(char in f"{path}{subpath}{client}" for char in " \t\n,;'\"$`&|<>\\%#"):
            found.append(f"{path}: blanks, commas, quotes and signs of the shell cannot be in a path or client")
        if path in seen:
            found.append(f"{path} is asked for twice")
        seen[path] = number
    return found


def secret_path(client: str, settings: Mapping[str, Any]) -> str:
    """Where the secret of a client is: the kernel's mount wants it alone, ceph-fuse in a keyring."""
    return f"{SECRETS}/{settings['set']}/client.{client}.{'secret' if settings['kernel'] else 'keyring'}"


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
    """What is mounted, as mount(8) wants it; ceph-fuse is told by an option."""
    return f":{mount.get('subpath', '/')}" if settings["kernel"] else "none"


def kind(settings: Mapping[str, Any]) -> str:
    """Type of the file system, as mount(8) wants it."""
    return "ceph" if settings["kernel"] else "fuse.ceph"


def seconds(settings: Mapping[str, Any]) -> int:
    """How long a mount is tried again."""
    return int(settings.get("wait", USUAL_WAIT))


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


def mount_unit(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The text of a mount unit."""
    path = mount["path"]
    wanted_by = "" if settings["automount"] else "\n[Install]\nWantedBy=remote-fs.target\n"
    return (
        f"{MARK}{settings['set']}.\n[Unit]\nDescription=CephFS at {path}\nWants=network-online.target\n"
        # However often it has failed, the path stays one that is mounted when it is looked at. Otherwise systemd would
        # give it up, and programs would write into the directory below.
        f"After=network-online.target\nStartLimitIntervalSec=0\n\n"
        f"[Mount]\nWhat={source(mount, settings)}\nWhere={path}\n"
        f"Type={TYPE}\n"
        f"Options={WAIT}={seconds(settings)},{options(mount, settings, secret_path(mount['client'], settings))}\n"
        # A host whose network is gone must still shut down, and a program that waits must not hold it for ever.
        f"TimeoutSec={seconds(settings) + int(settings['timeout'])}\nLazyUnmount=yes\nDirectoryMode=0755\n{wanted_by}"
    )


def automount_unit(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The text of the unit that mounts at the first look, so that a boot never waits for the cluster."""
    path = mount["path"]
    return (
        f"{MARK}{settings['set']}.\n[Unit]\nDescription=CephFS at {path}, mounted when it is looked at\n\n"
        f"[Automount]\nWhere={path}\nDirectoryMode=0755\n\n[Install]\nWantedBy=remote-fs.target\n"
    )


def written(mount_set: str, root: str = "/") -> list[str]:
    """Paths of the units and secrets that earlier runs wrote for a set of mounts, sorted.

    :param root: where the host's file system begins.
    """
    top, line = Path(root), f"{MARK}{mount_set}."
    units = [path for suffix in ("mount", "automount") for path in (top / UNITS[1:]).glob(f"*.{suffix}")]
    ours = [path for path in units if path.is_file() and line in path.read_text("utf-8", "replace").splitlines()]
    secrets = [path for path in (top / SECRETS[1:] / mount_set).glob("client.*") if path.is_file()]
    return sorted(f"/{path.relative_to(top)}" for path in (*ours, *secrets))


def document(
    mounts: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], ours: Sequence[str], scratch: bool = False
) -> dict[str, Any]:
    """The desired document of a client.

    :param settings: kernel and automount (bool), set, filesystem, monitors, fsid, ms_mode, timeout and wait
        (seconds), package.
    :param ours: paths of the units that an earlier run wrote.
    :param scratch: whether something is to be mounted for a moment, so that a client is needed in any case.
    :raises ValueError: with everything that cannot be.
    """
    wrong = problems(mounts)
    if (mounts or scratch) and not settings["monitors"]:
        wrong.append("no monitors are named, so no client finds the cluster; set cephfs_client_monitors")
    if wrong:
        raise ValueError("; ".join(wrong))
    files: list[dict[str, Any]] = []
    units: list[dict[str, Any]] = []
    owner = {"owner": "root", "group": "root"}
    if mounts:
        files += [
            {"path": "/etc/ceph", "state": "directory", "mode": "0755", **owner},
            {"path": SECRETS, "state": "directory", "mode": "0755", **owner},
            {"path": f"{SECRETS}/{settings['set']}", "state": "directory", "mode": "0700", **owner},
            {"path": CONF, "content": conf_text(settings), "mode": "0644", **owner},
            {"path": HELPER, "content": HELPER_TEXT, "mode": "0755", **owner},
        ]
    wanted = set()
    for mount in mounts:
        path = secret_path(mount["client"], settings)
        if path not in wanted:
            text = secret_text(mount, settings)
            files.append({"path": path, "content": text, "mode": "0600", "sensitive": True, **owner})
            wanted.add(path)
        kinds = {"mount": mount_unit(mount, settings)}
        if settings["automount"]:
            kinds["automount"] = automount_unit(mount, settings)
        for suffix, content in kinds.items():
            name = unit_name(mount["path"], suffix)
            files.append({"path": f"{UNITS}/{name}", "content": content, "mode": "0644", **owner})
            wanted.add(f"{UNITS}/{name}")
        unit = unit_name(mount["path"], "automount" if settings["automount"] else "mount")
        units.append({"name": unit, "enabled": True, "state": "started"})
    # What is wanted no longer: the automount first, or a look at it would mount it again.
    for path in sorted(set(ours) - wanted):
        if path.startswith(UNITS):
            units.append({"name": path.rpartition("/")[2], "enabled": False, "state": "stopped"})
        files.append({"path": path, "state": "absent"})
    packages = [{"name": settings["package"]}] if mounts or scratch else []
    return {"packages": packages, "files": files, "units": units}
