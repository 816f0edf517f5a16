# SPDX-License-Identifier: GPL-3.0-or-later
"""One machine: its file system in layers, its systemd-nspawn, its SSH.

Layers, from below: the image (shared, read-only), the seed (what makes it this machine: name, keys, network,
simulated devices) and the upper one, which takes every later change. A machine is bare again when its upper
layer is thrown away, and what a run changed is what lies in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from . import cgroups, images, network
from .mirrors import Mirrors
from .state import CHECKOUT, USER, Lab, MachineSpec
from .system import (
    SYSTEM_PATH,
    LabError,
    environment,
    is_locked,
    mounts_below,
    run,
    say,
    unmount_below,
    write_atomically,
)

SIMULATORS = CHECKOUT / "tests" / "simulators"
SCENARIOS = SIMULATORS / "build" / "scenarios"
SCENARIO_IN_MACHINE = "opt/baremetal-gpu-simulators/scenario.json"
# A machine has no log of a kernel of its own; this pipe is it.
KERNEL_LOG = "/usr/lib/baremetal-gpu-simulators/run/kernel-log"
# Container engines put overlay mounts there, which do not stack on another overlay.
PLAIN_DIRECTORIES = ("docker", "containerd", "containers")
# What the file systems of users, mounts at the first look, and disks in files need.
DEVICES = ("/dev/fuse", "/dev/autofs", "/dev/loop-control")
OVERLAY_OPTIONS = "index=off,metacopy=off,redirect_dir=off"
NSPAWN = Path("/run/systemd/nspawn")
# Seconds; an idle host needs three, one that builds kernel modules meanwhile a minute.
BOOT_TIMEOUT = 180

CGROUP_UNIT = """\
[Unit]
Description=Let container engines make control groups
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'for hierarchy in /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$hierarchy" || :; done'

[Install]
WantedBy=sysinit.target
"""

# The devices of the host are not the machine's to trigger; networkd waits for those of its own network only.
UDEV_TRIGGER = """\
[Service]
ExecStart=
ExecStart=-udevadm trigger --type=all --action=add --subsystem-match=net
"""


def names_left(tag: str) -> set[str]:
    """Machines of a lab that still show on this host, whatever became of the lab's own notes."""
    found = set()
    for path in NSPAWN.glob(f"*/*-{tag}"):
        found.add(path.name.removesuffix(f"-{tag}"))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            for word in path.read_bytes().split(b"\0"):
                name = word.decode(errors="replace")
                if name.startswith("--machine=") and name.endswith(f"-{tag}"):
                    found.add(name.removeprefix("--machine=").removesuffix(f"-{tag}"))
    return found


class Machine:
    """One machine of a lab."""

    def __init__(self, lab: Lab, spec: MachineSpec) -> None:
        self.lab = lab
        self.spec = spec
        self.directory = lab.directory / "machines" / spec.name
        self.root = self.directory / "root"
        self.seed = self.directory / "seed"
        self.upper = self.directory / "upper"
        self.lock = self.directory / "run.lock"
        self.log = self.directory / "console.log"
        self.baseline = self.directory / "baseline.json"
        # Unique on this host: systemd-nspawn names the interface after it.
        self.unit_name = f"{spec.name}-{lab.tag}"

    def running(self) -> bool:
        """Whether its supervisor lives."""
        return is_locked(self.lock)

    # Layers

    def prepare(self, mirrors: Mirrors) -> None:
        """Make the seed layer, once."""
        if (self.directory / "seeded").exists():
            return
        say(f"{self.spec.name}: preparing ({self.spec.suite}, scenario {self.spec.scenario})")
        unmount_below(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        for name in ("root", "seed", "seed-work"):
            (self.directory / name).mkdir(parents=True)
        self.discard_changes()
        self._mount(self.seed, self.directory / "seed-work", [images.root_of(self.spec.image)])
        try:
            self._write_seed(mirrors)
            self._install_simulators()
        finally:
            run("umount", self.root)
        (self.directory / "seeded").touch()

    def discard_changes(self) -> None:
        """An empty upper layer; only while the machine does not run."""
        unmount_below(self.directory)
        for name in ("upper", "work", *(f"data/{name}" for name in PLAIN_DIRECTORIES)):
            shutil.rmtree(self.directory / name, ignore_errors=True)
            (self.directory / name).mkdir(parents=True)

    def mount(self) -> None:
        """Put the layers together."""
        if not mounts_below(self.root):
            self._mount(self.upper, self.directory / "work", [self.seed, images.root_of(self.spec.image)])

    def _mount(self, upper: Path, work: Path, lower: list[Path]) -> None:
        layers = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work}"
        try:
            run("mount", "-t", "overlay", self.unit_name, "-o", f"{layers},{OVERLAY_OPTIONS}", self.root)
        except LabError as error:
            kind = run("stat", "--file-system", "--format=%T", upper, check=False).stdout.strip()
            raise LabError(
                f"{self.spec.name}: overlayfs does not work on {upper} (file system: {kind}); "
                f"it needs ext4, xfs or btrfs there, not another overlay as in containers\n{error}"
            ) from error

    def _write_seed(self, mirrors: Mirrors) -> None:
        def write(name: str, text: str, mode: int = 0o644) -> None:
            write_atomically(self.root / name, text, mode)

        write("etc/hostname", f"{self.spec.name}\n")
        hosts = "".join(f"{spec.address} {spec.name}\n" for spec in self.lab.machines.values())
        write("etc/hosts", f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{hosts}")
        write("etc/resolv.conf", "".join(f"nameserver {server}\n" for server in network.name_servers()))
        # Sorts before Debian's 80-container-host0.network, which asks for DHCP.
        write(
            "etc/systemd/network/10-host0.network",
            f"[Match]\nName=host0\n\n[Network]\nAddress={self.spec.address}/{self.lab.network.prefixlen}\n"
            f"Gateway={self.lab.gateway}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
        )
        images.write_seed_sources(self.root, self.spec.suite, mirrors)
        # What the image was built with: the address of the cache as its builder saw it. It would win over ours.
        (self.root / "etc/apt/apt.conf.d/99mmdebstrap").unlink(missing_ok=True)
        self.write_apt_settings(mirrors)
        key = self.directory / "ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.spec.name, "-f", key)
        write("etc/ssh/ssh_host_ed25519_key", key.read_text(encoding="ascii"), 0o600)
        write("etc/ssh/ssh_host_ed25519_key.pub", key.with_suffix(".pub").read_text(encoding="ascii"))
        self._authorize()
        write("etc/systemd/system/systemd-udev-trigger.service.d/lab.conf", UDEV_TRIGGER)
        if cgroups.is_legacy():
            unit = "lab-cgroups.service"
            write(f"etc/systemd/system/{unit}", CGROUP_UNIT)
            wants = self.root / "etc/systemd/system/sysinit.target.wants"
            wants.mkdir(exist_ok=True)
            (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")

    def write_apt_settings(self, mirrors: Mirrors) -> None:
        """Packages come through the host's cache, under the host's own rules on the age of lists."""
        options = "".join(f'{key} "{value}";\n' for key, value in mirrors.options.items())
        write_atomically(self.root / "etc/apt/apt.conf.d/80lab", f"{self.lab.apt_proxy}\n{options}")

    def _authorize(self) -> None:
        directory = self.root / "home" / USER / ".ssh"
        directory.mkdir(mode=0o700)
        keys = directory / "authorized_keys"
        write_atomically(keys, self.lab.private_key.with_suffix(".pub").read_text(encoding="ascii"), 0o600)
        owner = (self.root / "home" / USER).stat()
        for path in (directory, keys):
            os.chown(path, owner.st_uid, owner.st_gid)

    def _install_simulators(self) -> None:
        install = SIMULATORS / "install"
        if not install.exists():
            say(f"{self.spec.name}: no {install}, so without simulated devices")
            return
        run(install, self.root, self.spec.scenario)

    # Life

    def start(self) -> None:
        """Boot, unless it runs."""
        if self.running():
            return
        self.kill()
        self.mount()
        self._write_command()
        say(f"{self.spec.name}: booting")
        # -P, so that nothing in the root directory of this host takes the place of the package.
        supervisor = [sys.executable, "-P", "-m", f"{__package__}.supervisor", str(self.directory)]
        if Path("/run/systemd/system").is_dir():
            # Under systemd a machine wants a control group of its own, not the one of the login that made it.
            unit = f"--unit=baremetal-gpu-lab-{self.unit_name}"
            unit_options = ["--quiet", "--collect", unit, "-p", "Delegate=yes", "-p", "KillMode=mixed"]
            unit_options += [f"--setenv=PYTHONPATH={CHECKOUT}", "-p", f"StandardOutput=append:{self.log}"]
            unit_options += ["-p", f"StandardError=append:{self.log}"]
            supervisor = ["systemd-run", *unit_options, *supervisor]
        with self.log.open("a", encoding="utf-8") as log:
            subprocess.Popen(
                supervisor,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env=environment(PYTHONPATH=str(CHECKOUT)),
            )

    def _write_command(self) -> None:
        argv = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.root}",
            "--boot",
            f"--machine={self.unit_name}",
            f"--hostname={self.spec.name}",
            f"--uuid={uuid.uuid5(uuid.NAMESPACE_DNS, self.unit_name)}",
            "--register=no",
            "--keep-unit",
            f"--network-bridge={self.lab.bridge}",
            "--capability=all",
            "--system-call-filter=@keyring bpf perf_event_open",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
        ]
        argv += [f"--bind={self.directory}/data/{name}:/var/lib/{name}" for name in PLAIN_DIRECTORIES]
        compiled = images.compiler_cache()
        argv.append(f"--bind={compiled}:{images.COMPILER_CACHE_IN_MACHINE}")
        argv += [f"--bind={device}" for device in DEVICES if Path(device).exists()]
        if cgroups.is_legacy():
            # Debian 13's systemd boots on such a host only when told so; Debian 12's does not know the word.
            argv.append("--setenv=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
        env = {"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes"}
        if self.spec.cgroup_v1:
            # Otherwise it has what its host has: on many both versions, at which a real Mesos agent ends.
            env["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "0"
        write_atomically(
            self.directory / "run.json", json.dumps({"name": self.unit_name, "argv": argv, "env": env}, indent=2) + "\n"
        )

    def wait(self, fresh: bool) -> None:
        """Until SSH answers and systemd has started everything."""
        deadline = time.monotonic() + BOOT_TIMEOUT
        state = ""
        while time.monotonic() < deadline:
            time.sleep(0.3)
            if not self.running():
                tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
                # The supervisor needs a moment to take its lock.
                if time.monotonic() > deadline - BOOT_TIMEOUT + 5:
                    raise LabError(f"{self.spec.name} ended while it booted (log: {self.log}):\n{tail}")
                continue
            state = self.ssh("systemctl is-system-running --wait", check=False, timeout=BOOT_TIMEOUT).stdout.strip()
            if state in ("running", "degraded"):
                break
        if state == "degraded":
            failed = self.ssh("systemctl list-units --failed --plain --no-legend", check=False).stdout.strip()
            if fresh:
                raise LabError(f"{self.spec.name} booted with failed units:\n{failed}")
            say(f"{self.spec.name}: up, with failed units: {failed}")
        elif state == "running":
            say(f"{self.spec.name}: up at {self.spec.address}")
        else:
            raise LabError(f"{self.spec.name} is not up after {BOOT_TIMEOUT} s (log: {self.log})")
        if fresh:
            self.record_baseline()

    def kill(self) -> None:
        """Cut the power: kill the supervisor and everything that runs on the machine's file system."""
        self.close_connections()
        for pid in set(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while self.running() or any(self.processes()):
            if time.monotonic() > deadline:
                raise LabError(
                    f"{self.spec.name}: processes do not end: {' '.join(map(str, sorted(set(self.processes()))))}"
                )
            time.sleep(0.05)
        cgroups.remove(self.unit_name)
        self._remove_runtime_files()
        self._remove_interface()

    def _remove_runtime_files(self) -> None:
        """What a killed systemd-nspawn leaves in /run; newer versions refuse to start where they find it."""
        for kind in ("unix-export", "propagate"):
            unmount_below(NSPAWN / kind / self.unit_name)
            with contextlib.suppress(OSError):
                (NSPAWN / kind / self.unit_name).rmdir()
        if self.root.exists():
            status = self.root.stat()
            (NSPAWN / "locks" / f"inode-{status.st_dev}:{status.st_ino}").unlink(missing_ok=True)

    def _remove_interface(self) -> None:
        """The bridge's end of a killed machine's cable. The kernel removes it when it gets round to it, which on a busy
        host is later than the next boot, and systemd-nspawn refuses to start while there is one of that name."""
        cable = f"vb-{self.unit_name}"
        deadline = time.monotonic() + 20
        while run("ip", "link", "show", cable, check=False).returncode == 0 and time.monotonic() < deadline:
            run("ip", "link", "delete", cable, check=False)
            time.sleep(0.05)

    def _stop(self) -> None:
        """Kill it and give back what the host keeps for it."""
        loops = self.loop_devices()
        self.kill()
        for name in loops:
            run("losetup", "--detach", name, check=False)
        unmount_below(self.directory)

    def processes(self) -> Iterator[int]:
        """The supervisor, systemd-nspawn, and whatever has the machine's upper layer as its root."""
        yield from cgroups.processes(self.unit_name)
        directory, upper = str(self.directory).encode(), f"upperdir={self.upper},".encode()
        ours = os.stat("/proc/self/ns/mnt").st_ino
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if f"--machine={self.unit_name}".encode() in words or directory in words:
                    yield int(entry.name)
                elif (entry / "ns/mnt").stat().st_ino != ours:
                    mounts = (entry / "mountinfo").read_bytes().splitlines()
                    if any(line.split(b" ")[4] == b"/" and upper in line + b"," for line in mounts):
                        yield int(entry.name)

    def remove(self) -> None:
        """Kill it and remove all its files."""
        self._stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            raise LabError(f"{self.directory} cannot be removed: {', '.join(os.listdir(self.directory))}")

    def take_disks_out(self) -> None:
        """Stop it, and put the files of its disks aside."""
        self._stop()
        (self.directory / "disks").rename(self._disks_aside)

    def put_disks_in(self) -> None:
        self._disks_aside.rename(self.directory / "disks")

    @property
    def _disks_aside(self) -> Path:
        return self.directory.with_name(f"{self.spec.name}-disks")

    def file_systems(self) -> set[str]:
        """The device numbers of the file systems that are this machine's alone, while they are there."""
        held: set[str] = set()
        shared: set[str] = set()
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields = line.split(" ")
            (held if fields[4].startswith(f"{self.directory}/") else shared).add(fields[2])
        for pid in self.processes():
            with contextlib.suppress(OSError):
                mounts = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
                held.update(line.split(" ")[2] for line in mounts)
        return held - shared

    def loop_devices(self) -> list[str]:
        """Loop devices on files of this machine; they are the host's, and do not go with it."""
        listed = run("losetup", "--list", "--json", "--output", "NAME,BACK-MAJ:MIN,BACK-INO").stdout or "{}"
        devices = json.loads(listed).get("loopdevices", [])
        if not devices:
            return []
        held = self.file_systems()
        # The plain directories lie on a file system of the host: there only the file itself tells.
        files = {(f"{os.major(s.st_dev)}:{os.minor(s.st_dev)}", s.st_ino) for s in self._plain_files()}
        backing = {device["name"]: (device["back-maj:min"].strip(), int(device["back-ino"])) for device in devices}
        return [name for name, (system, inode) in backing.items() if system in held or (system, inode) in files]

    def _plain_files(self) -> Iterator[os.stat_result]:
        for directory, _, names in (*os.walk(self.directory / "data"), *os.walk(self.directory / "disks")):
            for name in names:
                with contextlib.suppress(OSError):
                    yield os.lstat(Path(directory, name))

    # SSH

    def ssh_options(self) -> list[str]:
        """What ssh and Ansible need to reach this machine and no other."""
        options = {
            "UserKnownHostsFile": self.lab.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "ConnectTimeout": "5",
            "ServerAliveInterval": "10",
        }
        return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def ssh_command(self, *command: str, user: str = USER) -> list[str]:
        """The words that run a command there."""
        target = f"{user}@{self.spec.address}"
        return ["ssh", "-F", "/dev/null", "-i", str(self.lab.private_key), *self.ssh_options(), target, *command]

    def ssh(self, command: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command there."""
        return run(*self.ssh_command("--", command), check=check, timeout=timeout)

    def host_key(self) -> str:
        """Its line in known_hosts."""
        kind, key = (self.directory / "ssh_host_ed25519_key.pub").read_text(encoding="ascii").split()[:2]
        return f"{self.spec.address} {kind} {key}\n"

    def close_connections(self) -> None:
        """End the connections that Ansible keeps open: after a reset they would hang."""
        for control in self.lab.control_sockets.glob(f"{self.spec.name}-*"):
            run("ssh", "-F", "/dev/null", "-o", f"ControlPath={control}", "-O", "exit", "lab", check=False)
            control.unlink(missing_ok=True)

    # Changes

    def record_baseline(self) -> None:
        """Remember what booting alone leaves in the upper layer."""
        from . import changes

        write_atomically(self.baseline, json.dumps(changes.snapshot(self.upper), indent=0) + "\n")
