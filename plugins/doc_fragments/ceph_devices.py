# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Devices for OSDs; the arguments are ceph_osd.ARGUMENTS."""

    DOCUMENTATION = r"""
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  fsid:
    description: UUID of the cluster; a device with one of its OSDs counts as ours.
    type: str
    required: true
  devices:
    description: The devices.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Name of the device in C(/dev/disk/by-id), which stays the same over reboots and slots.
        type: path
        required: true
      wipe:
        description: Whether what the device holds may be destroyed. Never touches an OSD of this cluster.
        type: bool
        default: false
      method:
        description: V(raw) gives the whole device to the OSD, V(lvm) creates logical volumes with ceph-volume.
        type: str
        choices: [raw, lvm]
        default: raw
      device_class:
        description: Device class in the CRUSH map. By default Ceph detects V(hdd), V(ssd) or V(nvme).
        type: str
        default: ""
      db:
        description:
          - Device in C(/dev/disk/by-id), or logical volume as C(GROUP/VOLUME), for RocksDB, with V(lvm). It is checked
            before an OSD is created, and refused if it holds anything.
        type: str
        default: ""
      wal:
        description: The same for the write-ahead log, with V(lvm).
        type: str
        default: ""
      dmcrypt:
        description: Whether the data is encrypted, with V(lvm).
        type: bool
        default: false
      also_wipe:
        description: >-
          Those of O(devices[].db) and O(devices[].wal) that may be wiped if they hold something and are not in use.
        type: list
        elements: str
        default: []
      replaces:
        description: Number of a destroyed OSD, which the new OSD takes over.
        type: int
"""
