# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make an OSD on an empty device, and bring one up to the point where its unit can start.

The same code runs at deployment and, as a program of its own, before ceph-osd@N at every start: the directory of an
OSD is in memory, and so is who owns its device node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import conf as ceph_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import devices as ceph_devices
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import label as ceph_label
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import volumes as ceph_volumes
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run, run

RECORDS = "/var/lib/baremetal-gpu/ceph-osd"
RUN = "/run"
LOCK = f"{RUN}/baremetal-gpu-ceph-osd.lock"
BOOTSTRAP = ("client.bootstrap-osd", "/var/lib/ceph/bootstrap-osd/{cluster}.keyring")
# What ceph-bluestore-tool takes out of the label into the directory.
PRIMED = ("type", "fsid", "ceph_fsid", "whoami", "keyring", "ready")

# Seconds in which an OSD in logical volumes is activated at boot, between two attempts, and for one.
PATIENCE_S, PAUSE_S, ATTEMPT_S = 1800, 10, 60
# Seconds in which a command must end.
COMMAND_S = 600
# A device, as modules take it.
DEVICE = {
    "path": {"type": "path", "required": True},
    "wipe": {"type": "bool", "default": False},
    "method": {"type": "str", "choices": ["raw", "lvm"], "default": "raw"},
    "device_class": {"type": "str", "default": ""},
    "db": {"type": "str", "default": ""},
    "wal": {"type": "str", "default": ""},
    "dmcrypt": {"type": "bool", "default": False},
    "also_wipe": {"type": "list", "elements": "str", "default": []},
    "replaces": {"type": "int"},
}
# As in the documentation fragment ceph_devices.
ARGUMENTS = {
    "cluster": {"type": "str", "default": "ceph"},
    "fsid": {"type": "str", "required": True},
    "devices": {"type": "list", "elements": "dict", "required": True, "options": DEVICE},
}


class Osds:
    """The OSDs of one cluster on this host."""

    def __init__(
        self, fsid: str, cluster: str = "ceph", run: Run = run, records: str = RECORDS, command_s: float = COMMAND_S
    ) -> None:
        self.fsid = fsid
        self.cluster = cluster
        self.run = run
        self.records = records
        self.command_s = command_s

    # Records

    def record_path(self, number: int) -> str:
        """Where it is written down which device is an OSD's."""
        return f"{self.records}/{self.cluster}-{number}.json"

    def begun_path(self, device: str) -> str:
        """Where it is written down that an OSD is being made on a device."""
        return f"{self.records}/begun-{device.strip('/').replace('/', '-')}.json"

    def begun(self, device: str) -> dict[str, str] | None:
        """What a run that was cut had begun on a device: osd_uuid and, where ceph-volume does not make it, key."""
        found = _load(self.begun_path(device))
        return found if found and found.get("fsid") == self.fsid else None

    def _begin(self, device: str, **more: str) -> dict[str, str]:
        begun = {"fsid": self.fsid, "osd_uuid": str(uuid.uuid4()), **more}
        _save(self.begun_path(device), begun)
        return begun

    def record_of(self, device: Mapping[str, Any], number: int, osd_uuid: str) -> dict[str, Any]:
        """What the start of an OSD has to know."""
        return {
            "cluster": self.cluster,
            "fsid": self.fsid,
            "id": number,
            "osd_uuid": osd_uuid,
            "device": device["path"],
            "method": device["method"],
        }

    def is_recorded(self, record: Mapping[str, Any]) -> bool:
        """Whether it is written down so."""
        return _load(self.record_path(record["id"])) == record

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write it down."""
        _save(self.record_path(record["id"]), record)

    # Judging

    def judge(self, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What may be done with each device: its path and the answer of ceph_devices.judge."""
        verdicts = []
        for device in devices:
            found = ceph_devices.look(device["path"], self.run)
            begun = (self.begun(device["path"]) or {}).get("osd_uuid")
            verdict = ceph_devices.judge(found, self.fsid, device["wipe"], begun, device["method"])
            if verdict["action"] == ceph_devices.PREPARE:
                verdict = self._judge_parts(device, verdict, begun)
            verdicts.append({"path": device["path"], **verdict})
        return verdicts

    def _judge_parts(self, device: Mapping[str, Any], verdict: dict[str, Any], begun: str | None) -> dict[str, Any]:
        """With what is to be wiped of its db and wal, or refused: ceph-volume would wipe what they hold unasked."""
        also = []
        for key in ceph_devices.PARTS:
            if not device[key]:
                continue
            judged = ceph_devices.judge_part(
                ceph_devices.look(_node(device[key]), self.run),
                wipe=device[key] in device["also_wipe"],
                undo=bool(begun) and self._is_left(device[key], key, str(begun)),
            )
            if judged["action"] == ceph_devices.REFUSE:
                return {**judged, "why": f"its {key} is {device[key]}: {judged['why']}"}
            also += [device[key]] if judged["wipe"] else []
        return {**verdict, "also_wipe": also}

    def _is_left(self, name: str, kind: str, osd_uuid: str) -> bool:
        """Whether a device or volume has nothing but what a run that was cut left of an OSD."""
        if name.startswith("/"):
            rows = ceph_volumes.on_device(os.path.realpath(name), self.run)
            return ceph_volumes.is_left_on_device(rows, osd_uuid, kind)
        return ceph_volumes.is_left_in_volume(ceph_volumes.named(name, self.run), osd_uuid)

    def bring_up(self, device: dict[str, Any], verdict: dict[str, Any], dry: bool) -> tuple[list[str], int | None]:
        """Do what was judged; what was (or would be) done, and the number of the OSD if it has one."""
        if verdict["action"] == ceph_devices.PREPARE:
            wiped = ["it"] if verdict["wipe"] else []
            undone = ["remove what the interrupted run left"] if verdict["undo"] else []
            steps = [*undone, *(f"wipe {name}" for name in (*wiped, *verdict["also_wipe"])), "make an OSD on it"]
            if dry:
                return steps, None
            for name in verdict["also_wipe"]:
                self.wipe(_node(name))
            record = self.prepare(device, verdict["wipe"])
            self.activate(record)
            return steps, record["id"]
        record = self.record_of(device, verdict["osd_id"], verdict["osd_uuid"])
        steps = [] if self.is_recorded(record) else [f"write down osd.{record['id']}"]
        steps += [] if self.is_active(record) else [f"activate osd.{record['id']}"]
        if not dry:
            if not self.is_recorded(record):
                self.write_record(record)
            self.activate(record)
        return steps, record["id"]

    # Making

    def prepare(self, device: Mapping[str, Any], wipe: bool) -> dict[str, Any]:
        """Make an OSD on a device that was judged to be free; what a run that was cut had begun is gone on with.

        :param device: path, method, device_class, db, wal, dmcrypt, replaces (number of a destroyed OSD, or None).
        :return: the record of the OSD.
        :raises Refused, CephError: if a command fails.
        """
        if device["method"] == "lvm":
            return self._prepare_lvm(device, wipe)
        begun = self.begun(device["path"])
        if begun and "key" not in begun:
            # It was to be in logical volumes then.
            self._undo_lvm(device, begun["osd_uuid"])
            begun = None
        begun = begun or self._begin(device["path"], key=ceph_conf.new_key())
        if wipe:
            self.wipe(device["path"])
        number = self._register(begun, device["device_class"], device["replaces"])
        self._mkfs(number, device["path"], begun)
        record = self.record_of(device, number, begun["osd_uuid"])
        self.write_record(record)
        os.unlink(self.begun_path(device["path"]))
        return record

    def wipe(self, path: str) -> None:
        """Take away every mark, those of its partitions and the first and last MiB of a device that nobody uses."""
        real = os.path.realpath(path)
        partitions = [name for name, _number in ceph_devices.partitions_of(real, ceph_devices.SYS_BLOCK)]
        for name in partitions:
            self._must(["wipefs", "--all", f"{os.path.dirname(real)}/{name}"], "see what has the partition in use")
        self._must(["wipefs", "--all", path], "see what has the device in use")
        with open(path, "r+b") as device:
            size = device.seek(0, os.SEEK_END)
            for start in (0, max(0, size - (1 << 20))):
                device.seek(start)
                device.write(bytes(1 << 20))
            device.flush()
            os.fsync(device.fileno())
        if partitions:
            # The table is gone; the kernel forgets what was in it.
            self._must(["blockdev", "--rereadpt", path], "see what has a partition in use")

    def _register(self, begun: Mapping[str, str], device_class: str, replaced: int | None) -> int:
        """The number of the OSD; asked again with the same UUID, the monitors give the same one."""
        secrets = {"cephx_secret": begun["key"]}
        if device_class:
            secrets["crush_device_class"] = device_class
        words = ["osd", "new", begun["osd_uuid"], *([] if replaced is None else [str(replaced)])]
        answer = self._bootstrap().json(*words, stdin=json.dumps(secrets))
        return int(answer["osdid"])

    def _bootstrap(self) -> Ceph:
        name, keyring = BOOTSTRAP
        return Ceph(self.run, cluster=self.cluster, name=name, keyring=keyring.format(cluster=self.cluster))

    def _mkfs(self, number: int, path: str, begun: Mapping[str, str]) -> None:
        directory = self._directory(number)
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.symlink(path, f"{directory}/block")
        _write(f"{directory}/keyring", ceph_conf.keyring({f"osd.{number}": begun["key"]}))
        self._own(directory, path)
        argv = ["ceph-osd", "--cluster", self.cluster, "--mkfs", "--id", str(number), "--osd-objectstore", "bluestore"]
        argv += ["--osd-data", directory, "--osd-uuid", begun["osd_uuid"], "--keyfile", "-"]
        argv += ["--setuser", "ceph", "--setgroup", "ceph", "--no-mon-config", "--fsid", self.fsid]
        self._must(argv, "read what it said; run again", stdin=begun["key"])

    def _prepare_lvm(self, device: Mapping[str, Any], wipe: bool) -> dict[str, Any]:
        begun = self.begun(device["path"])
        if begun:
            self._undo_lvm(device, begun["osd_uuid"])
        begun = self._begin(device["path"])
        if wipe:
            self.wipe(device["path"])
        command = ceph_volumes.prepare(self.cluster, device, begun["osd_uuid"])
        self._must(command, "read /var/log/ceph/ceph-volume.log; run again")
        verdict = ceph_devices.judge(ceph_devices.look(device["path"], self.run), self.fsid, method="lvm")
        if verdict["action"] != ceph_devices.ACTIVATE:
            raise Refused(
                f"{device['path']}: ceph-volume ended well but left no OSD; see /var/log/ceph/ceph-volume.log"
            )
        record = self.record_of(device, verdict["osd_id"], verdict["osd_uuid"])
        self.write_record(record)
        os.unlink(self.begun_path(device["path"]))
        return record

    def _undo_lvm(self, device: Mapping[str, Any], osd_uuid: str) -> None:
        """Take away what a run that was cut left of an OSD; its keys cannot be had again, so it cannot be gone on with.

        The monitors come first: they refuse to forget an OSD that was ever started, and then nothing is touched.
        """
        ceph = self._bootstrap()
        for row in ceph.json("osd", "dump")["osds"]:
            if row["uuid"] == osd_uuid:
                ceph.json("osd", "purge-new", str(row["osd"]), "--yes-i-really-mean-it")
        places = {"block": device["path"], **{key: device[key] for key in ceph_devices.PARTS if device[key]}}
        for kind, name in places.items():
            if self._is_left(name, kind, osd_uuid):
                self._must(ceph_volumes.zap(self.cluster, name), "read /var/log/ceph/ceph-volume.log; run again")

    # Starting

    def is_active(self, record: Mapping[str, Any]) -> bool:
        """Whether the directory is filled and the device is Ceph's, so that the unit can start."""
        directory = f"/var/lib/ceph/osd/{self.cluster}-{record['id']}"
        if not os.path.ismount(directory) or not os.path.exists(f"{directory}/block"):
            return False
        if not all(os.path.exists(f"{directory}/{name}") for name in PRIMED):
            return False
        if record["method"] == "raw" and os.readlink(f"{directory}/block") != record["device"]:
            return False
        return os.stat(f"{directory}/block").st_uid == pwd.getpwnam("ceph").pw_uid

    def activate(self, record: Mapping[str, Any]) -> bool:
        """Fill the directory of an OSD from its device; whether there was anything to do.

        :raises Refused: if the device is not the one that was written down.
        """
        if self.is_active(record):
            return False
        if record["method"] == "lvm":
            command = ceph_volumes.activate(self.cluster, record["id"], record["osd_uuid"])
            self._must(command, "read /var/log/ceph/ceph-volume.log")
            return True
        path = record["device"]
        self._check_label(record)
        directory = self._directory(record["id"])
        argv = ["ceph-bluestore-tool", "--cluster", self.cluster, "prime-osd-dir", "--path", directory, "--dev", path]
        self._must([*argv, "--no-mon-config"], "see `findmnt` and `sudo dmesg` on this host, then run again")
        block = f"{directory}/block"
        if os.path.lexists(block):
            os.unlink(block)
        os.symlink(path, block)
        self._own(directory, path)
        return True

    def _check_label(self, record: Mapping[str, Any]) -> None:
        try:
            with open(record["device"], "rb") as device:
                label = ceph_label.parse(device.read(ceph_label.LABEL_BYTES))
        except (OSError, ceph_label.LabelError) as wrong:
            raise Refused(
                f"osd.{record['id']}: its device {record['device']} cannot be read: {wrong}",
                "see whether the disk is still there ('ls -l /dev/disk/by-id', 'sudo dmesg')",
            ) from None
        if not label or label["osd_uuid"] != record["osd_uuid"]:
            there = f"the OSD {label['osd_uuid']}" if label else "no OSD"
            raise Refused(
                f"osd.{record['id']}: its device {record['device']} should hold {record['osd_uuid']} and holds "
                f"{there}. Nothing was written",
                "put the disk back, or replace the OSD with the playbook baremetal.gpu.storage_replace_osd",
            )

    def _directory(self, number: int) -> str:
        """The directory of an OSD, in memory as ceph-volume has it: the key is then on the device alone."""
        directory = f"/var/lib/ceph/osd/{self.cluster}-{number}"
        # What is above it is Ceph's own account's, which could lead the mount elsewhere.
        try:
            host_files.check(directory)
            host_files.make_directories(directory)
        except OSError as wrong:
            raise Refused(f"osd.{number}: {wrong}") from None
        if not os.path.ismount(directory):
            self._must(
                ["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory],
                "see `findmnt` and `sudo dmesg` on this host, then run again",
            )
        return directory

    def _own(self, directory: str, path: str) -> None:
        ceph = pwd.getpwnam("ceph")
        for name in ("", *os.listdir(directory)):
            os.chown(f"{directory}/{name}", ceph.pw_uid, ceph.pw_gid, follow_symlinks=False)
        os.chown(os.path.realpath(path), ceph.pw_uid, ceph.pw_gid)

    def _must(self, argv: list[str], remedy: str, stdin: str | None = None) -> str:
        rc, stdout, stderr = self.run(argv, stdin, self.command_s)
        if rc != 0:
            said = " / ".join((stderr or stdout).strip().splitlines()[-3:])
            raise Refused(f"'{' '.join(argv[:6])} ...' ended with {rc}: {said}", remedy)
        return stdout


@contextlib.contextmanager
def alone(path: str = LOCK, patience_s: float = COMMAND_S) -> Iterator[None]:
    """Nobody else makes or takes away OSDs here meanwhile: what a run that was cut had started may still be at work.

    :raises Refused: if it does not end.
    """
    deadline = time.monotonic() + patience_s
    with open(path, "w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"another run has been at work on OSDs here for {patience_s:.0f} s",
                        "see what it waits for ('ps -ef | grep ceph-'), then run again",
                    ) from None
                time.sleep(1)
        yield


def alone_unless(pretend: bool) -> contextlib.AbstractContextManager[None]:
    """`alone`, but for a module that only looks."""
    return contextlib.nullcontext() if pretend else alone()


def _node(name: str) -> str:
    """The device of a name as ceph-volume takes it: a path, or VOLUME_GROUP/VOLUME."""
    return name if name.startswith("/") else f"/dev/{name}"


def _load(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: str, text: str) -> None:
    host_files.write(path, text, 0o600)


def _save(path: str, content: Mapping[str, Any]) -> None:
    """Whole or not at all, and only root's to read: it may hold a key."""
    host_files.make_directories(os.path.dirname(path), 0o700)
    _write(path, json.dumps(content, indent=2) + "\n")


def main() -> int:
    """Activate the OSD of the cluster and number that are given, before its unit starts."""
    cluster, number = sys.argv[1], int(sys.argv[2])
    path = f"{RECORDS}/{cluster}-{number}.json"
    record = _load(path)
    if record is None:
        sys.stderr.write(
            f"osd.{number}: {path} does not tell its device. To do: run `gpuops up --tags storage` where "
            "the inventory is\n"
        )
        return 1
    try:
        Osds(record["fsid"], cluster, command_s=ATTEMPT_S).activate(record)
    except Refused as wrong:
        sys.stderr.write(f"{wrong}\n")
        if record["method"] == "lvm":
            try_later(number)
        return 1
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_since(number))
    return 0


def try_later(number: int, run: Run = run) -> None:
    """Have an OSD started again soon, unless that has been tried for long.

    The key of an encrypted OSD comes from the monitors, which may boot at the same time, or be out of reach. It is not
    waited for in place: whoever is to log in waits for the daemons of Ceph.
    """
    path, now = _since(number), time.monotonic()
    if not os.path.exists(path):
        _write(path, f"{now}\n")
    with open(path, encoding="ascii") as file:
        since = float(file.read())
    if now - since < PATIENCE_S:
        timer = ["systemd-run", "--collect", f"--on-active={PAUSE_S}", "--timer-property=AccuracySec=1s"]
        run([*timer, "systemctl", "start", f"ceph-osd@{number}"], None, 30)


def _since(number: int) -> str:
    """Since when the start of an OSD fails, in seconds after the boot."""
    return f"{RUN}/baremetal-gpu-ceph-osd-{number}.since"
