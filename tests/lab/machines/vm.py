# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual machine with a kernel of its own, for what a systemd-nspawn machine cannot show.

qemu emulates it in software, so it needs neither /dev/kvm nor the host's kernel, and is ten to twenty times
slower. It has one disk (a layer over the cached image) and those that it is given, an SSH port on the host's loopback,
and no way to any other network but that of the lab's machines, if it joins them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import disks, needs, state, vm_image
from .system import LabError, locked, run, say, write_atomically

NAMES = NAME, SECOND = ("metal1", "metal2")
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
}
# Below the range that the kernel takes ports of outgoing connections from.
PORTS = range(20000, 30000)
MEMORY_MIB = 1536
CORES = 2
# Places of the machines in the network of the lab's machines, which count upwards from 10.
LAN_HOSTS = {NAME: 250, SECOND: 251}
# From the power button to an answer by SSH, on a host that does other things too.
BOOT_SECONDS = 900.0


@dataclass
class Shape:
    """What can be asked for of a machine."""

    memory_mib: int = MEMORY_MIB
    # Further disks, by the names that they have in /dev/disk/by-id, with their sizes in GiB.
    disks: dict[str, int] = field(default_factory=dict)
    # Whether it is in the network of the lab's machines, which have to be up.
    joins: bool = False


@dataclass
class Spec:
    """What a machine that exists was made of."""

    port: int
    image: str
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        if isinstance(self.shape, dict):
            self.shape = Shape(**self.shape)


class Vm:
    """One virtual machine of a lab: its files, its process, and the way into it.

    :param name: one of NAMES; the image calls the machine by the first of them, whatever it is.
    """

    def __init__(self, identifier: str | None = None, name: str = NAME) -> None:
        self.lab, self.name = identifier or state.lab_id(), name
        self.number = NAMES.index(name) + 1
        self.directory = state.STATE_ROOT / f"{self.lab}.vm{'' if name == NAME else self.number}"
        self.disk = self.directory / "disk.qcow2"
        self.pid_file = self.directory / "pid"
        self.console = self.directory / "console.log"
        self.key = self.directory / "id_ed25519"
        self.known_hosts = self.directory / "known_hosts"
        self.spec_file = self.directory / "vm.json"
        self.lock = state.CACHE_ROOT / "locks" / f"{self.directory.name}.lock"

    # What there is

    def spec(self) -> Spec | None:
        """What the machine was made of; None where there is none."""
        try:
            return Spec(**json.loads(self.spec_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LabError(f"{self.spec_file} cannot be read ({error}); 'tools/lab vm down' removes it") from error

    def pid(self) -> int | None:
        """The machine's process, looked for by its command line: a pid file outlives a crash."""
        wanted = str(self.pid_file).encode()
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (directory / "cmdline").read_bytes().split(b"\0")
                    if words[0].endswith(b"qemu-system-x86_64") and wanted in words:
                        return int(directory.name)
        return None

    def ssh_command(self, *command: str) -> list[str]:
        """The words of an ssh command to the machine."""
        spec = self.spec()
        if spec is None:
            raise LabError(f"lab {self.lab} has no virtual machine; 'tools/lab vm up' makes it")
        return ["ssh", *self.ssh_options(), "-p", str(spec.port), f"{state.USER}@127.0.0.1", *command]

    def ssh_options(self) -> list[str]:
        """Options that keep the user's own SSH settings and known hosts out of it."""
        options = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": self.name,
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "8",
        }
        return ["-F", "none", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def inventory(self) -> dict[str, object]:
        """The machine as an Ansible inventory; empty where there is none."""
        spec = self.spec()
        if spec is None:
            return {"_meta": {"hostvars": {}}}
        variables = {
            "ansible_host": "127.0.0.1",
            "ansible_port": spec.port,
            "ansible_user": state.USER,
            "ansible_become": True,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": shlex.join(self.ssh_options()),
            "ansible_control_path_dir": str(self.directory / "cp"),
        }
        return {"metal": {"hosts": [self.name]}, "_meta": {"hostvars": {self.name: variables}}}

    # What changes it

    def up(self, shape: Shape | None = None) -> None:
        """Make the machine, or start it, or only wait until it answers: whatever is missing.

        :param shape: for a machine that is made; one that is there has to have it.
        """
        needs.refuse_unless_root()
        with locked(self.lock, f"another command on the virtual machine of lab {self.lab}"):
            needs.ensure(PROGRAMS)
            spec = self.spec()
            if spec is not None and not Path(spec.image).exists():
                say("vm: the image below its disk is gone; making it anew")
                self._remove()
                spec = None
            if spec is None:
                spec = self._create(shape or Shape())
            if shape not in (None, spec.shape):
                raise LabError(
                    f"{self.name} was made otherwise, with {spec.shape}; 'tools/lab vm down' removes it first"
                )
            if self.pid() is None:
                self._start(spec)
            self._wait()

    def down(self) -> None:
        """Stop the machine and remove everything of it but the cached image."""
        with locked(self.lock, f"another command on the virtual machine of lab {self.lab}"):
            self._remove()

    def power_cut(self, restart: bool = True) -> None:
        """Take the power away: what the machine has not written to its disk is lost; then boot it again."""
        with locked(self.lock, f"another command on the virtual machine of lab {self.lab}"):
            spec = self.spec()
            if spec is None or self.pid() is None:
                raise LabError(f"the virtual machine of lab {self.lab} does not run; 'tools/lab vm up' starts it")
            self._stop()
            if restart:
                self._start(spec)
                self._wait()

    def _create(self, shape: Shape) -> Spec:
        for name in shape.disks:
            disks.check_name(name)
        image = vm_image.ensure()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o700)
        (self.directory / "cp").mkdir()
        for file in (self.key, self.directory / "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"baremetal-gpu-lab {self.lab}", "-f", file)
        host_key = (self.directory / "host_key.pub").read_text(encoding="utf-8").split()
        self.known_hosts.write_text(f"{self.name} {host_key[0]} {host_key[1]}\n", encoding="utf-8")
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image, self.disk)
        for name, gibibytes in shape.disks.items():
            run("qemu-img", "create", "-q", "-f", "qcow2", self._image_of(name), f"{gibibytes}G")
        spec = Spec(free_port(self.directory.name), str(image), shape)
        # Last: a machine without this file was not made to its end.
        write_atomically(self.spec_file, json.dumps(asdict(spec)) + "\n")
        return spec

    def _image_of(self, disk: str) -> Path:
        return self.directory / f"disk-{disk}.qcow2"

    def _tmpfiles(self, lab: state.Lab | None) -> str:
        """Keys for the machine, as lines for systemd-tmpfiles: it takes them from qemu at boot.

        So the cached image holds no key, and two machines share none.
        """
        home, user = f"/home/{state.USER}/.ssh", state.USER
        private, public = (
            base64.b64encode((self.directory / name).read_bytes()).decode() for name in ("host_key", "id_ed25519.pub")
        )
        lines = [
            f"f~ /etc/ssh/ssh_host_ed25519_key 0600 root root - {private}",
            f"d {home} 0700 {user} {user} -",
            f"f~ {home}/authorized_keys 0600 {user} {user} - {public}",
        ]
        if lab is not None:
            lines.append(f"f+ /etc/apt/apt.conf.d/80lab 0644 root root - {lab.apt_proxy}")
        return "".join(f"{line}\n" for line in lines)

    def _start(self, spec: Spec) -> None:
        self.pid_file.unlink(missing_ok=True)
        # The port of a process that was just killed is free a moment later; inventories in use keep it.
        deadline = time.monotonic() + 10
        while not port_is_free(spec.port) and time.monotonic() < deadline:
            time.sleep(0.2)
        if not port_is_free(spec.port):
            spec.port = free_port(self.directory.name)
            write_atomically(self.spec_file, json.dumps(asdict(spec)) + "\n")
        say(f"vm: starting {self.name}, SSH on 127.0.0.1:{spec.port}, console in {self.console}")
        lab = self._neighbours() if spec.shape.joins else None
        (self.directory / "tmpfiles").write_text(self._tmpfiles(lab), encoding="utf-8")
        run(
            "qemu-system-x86_64",
            *("-name", f"{self.name}-{self.lab}", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-smp", str(CORES), "-m", str(spec.shape.memory_mib), "-nodefaults", "-no-user-config", "-vga", "std"),
            *("-display", "none", "-monitor", "none", "-daemonize", "-pidfile", str(self.pid_file)),
            *("-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"),
            # Only qemu is ever killed, never the host: what the machine flushed is safe in the host's memory.
            *disk_words("system", self.disk, "bootindex=0"),
            *(
                word
                for name in spec.shape.disks
                for word in disk_words(name, self._image_of(name), f"serial=lab-{name}")
            ),
            *("-netdev", f"user,id=net,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:{spec.port}-10.0.2.15:22"),
            *("-device", f"virtio-net-pci,netdev=net,mac={vm_image.MAC},romfile=", "-device", "virtio-rng-pci"),
            *("-fw_cfg", f"name=opt/io.systemd.credentials/tmpfiles.extra,file={self.directory}/tmpfiles"),
            *(self._lan_words(lab) if lab else ()),
        )
        if lab is not None:
            run("ip", "link", "set", lan_interface(lab, self.name), "master", lab.bridge, "up")

    def _neighbours(self) -> state.Lab:
        """The lab whose network the machine joins."""
        lab = state.Lab(self.lab)
        if not Path("/sys/class/net", lab.bridge).exists():
            raise LabError(f"lab {self.lab} has no network for {self.name} to join; 'tools/lab up' makes it")
        return lab

    def _lan_words(self, lab: state.Lab) -> list[str]:
        """qemu's words for the network of the lab's machines, and the machine's address in it."""
        wired, mac = self.directory / "lan.network", f"52:54:00:12:35:{self.number:02x}"
        address = lan_address(lab, self.name)
        wired.write_text(
            f"[Match]\nMACAddress={mac}\n\n[Network]\nAddress={address}/{lab.network.prefixlen}\n"
            f"Gateway={lab.gateway}\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
            encoding="utf-8",
        )
        return [
            *("-netdev", f"tap,id=lan,ifname={lan_interface(lab, self.name)},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=lan,mac={mac},romfile="),
            *("-fw_cfg", f"name=opt/io.systemd.credentials/network.network.20-lan,file={wired}"),
        ]

    def _wait(self) -> None:
        """Return when the machine answers by SSH and has finished booting."""
        deadline = time.monotonic() + BOOT_SECONDS
        # One command that waits in the machine; a login costs seconds there.
        command = self.ssh_command("systemctl is-system-running --wait || true")
        said = ""
        while time.monotonic() < deadline:
            if self.pid() is None:
                raise LabError(f"the virtual machine stopped while booting; its console: {self.console}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
                said = (done.stdout or done.stderr).strip()
                if done.returncode == 0 and said:
                    say(f"vm: {self.name} answers, system {said}")
                    return
            time.sleep(3)
        raise LabError(f"{self.name} did not answer within {BOOT_SECONDS:.0f} s ({said}); its console: {self.console}")

    def _stop(self) -> None:
        self._close_connections()
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while self.pid() is not None:
            if time.monotonic() > deadline:
                raise LabError(f"the virtual machine's process {pid} does not end")
            time.sleep(0.1)
        say(f"vm: {self.name} stopped")

    def _close_connections(self) -> None:
        """End the SSH connections that Ansible keeps open; they would only notice minutes later."""
        for path in (self.directory / "cp").glob("*"):
            run("ssh", "-F", "none", "-o", f"ControlPath={path}", "-O", "exit", "x", check=False, timeout=10)
            path.unlink(missing_ok=True)

    def _remove(self) -> None:
        self._stop()
        if self.directory.exists():
            shutil.rmtree(self.directory)
            say(f"vm: nothing left of the virtual machine of lab {self.lab}")
        with contextlib.suppress(OSError):
            state.STATE_ROOT.rmdir()


def disk_words(name: str, image: Path, more: str) -> list[str]:
    """qemu's words for a disk; by a serial the machine finds it in /dev/disk/by-id, as virtio-SERIAL."""
    drive = f"file={image},if=none,id={name},format=qcow2,cache=unsafe,discard=unmap"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},{more}"]


def lan_address(lab: state.Lab, name: str = NAME) -> str:
    """A machine's address among the lab's machines."""
    return str(lab.network[LAN_HOSTS[name]])


def lan_interface(lab: state.Lab, name: str = NAME) -> str:
    """This host's end of the cable from a machine to the lab's bridge."""
    return f"{lab.bridge}{'vw'[NAMES.index(name)]}"


def port_is_free(port: int) -> bool:
    """Whether something on this host could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(identifier: str) -> int:
    """The port that the lab's name asks for, or the next one that is free."""
    first = int(hashlib.sha256(identifier.encode()).hexdigest()[:8], 16) % len(PORTS)
    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        if port_is_free(port):
            return port
    raise LabError(f"no free port from {PORTS.start} to {PORTS.stop - 1} for the virtual machine's SSH")
