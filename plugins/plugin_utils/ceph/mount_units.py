# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd that mount CephFS on a client, and the program that they mount with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mounts import MARK, SECRETS, options, source
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

ROLE = "cephfs_client"
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


def secret_path(client: str, settings: Mapping[str, Any]) -> str:
    """Where the secret of a client is: the kernel's mount takes it alone, ceph-fuse in a keyring."""
    return f"{SECRETS}/{settings['set']}/client.{client}.{'secret' if settings['kernel'] else 'keyring'}"


def seconds(settings: Mapping[str, Any]) -> int:
    """How long a mount is tried again."""
    return int(settings.get("wait", USUAL_WAIT))


def mount_unit(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The text of a mount unit."""
    return render(
        ROLE,
        "cephfs.mount.j2",
        mark=f"{MARK}{settings['set']}.",
        path=mount["path"],
        what=source(mount, settings),
        type=TYPE,
        options=options(mount, settings, secret_path(mount["client"], settings)),
        wait=f"{WAIT}={seconds(settings)}",
        timeout=seconds(settings) + int(settings["timeout"]),
        automount=settings["automount"],
    )


def automount_unit(mount: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The text of the unit that mounts at the first look, so that a boot never waits for the cluster."""
    return render(ROLE, "cephfs.automount.j2", mark=f"{MARK}{settings['set']}.", path=mount["path"])
