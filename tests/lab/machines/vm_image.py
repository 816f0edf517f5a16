# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk of the virtual machine: Debian 13 on a bootable disk, made once per recipe and never written again.

The disk boots as a server's does: the BIOS reads GRUB from it, GRUB reads the kernel and the initramfs from
it. So a reboot uses what the machine itself has written to its /boot. (qemu's -kernel and -initrd would hand
it the files that the host kept, and a rebuilt initramfs would never be tried.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

from . import aptcache, mirrors, state
from .system import LabError, environment, locked, run, say, unmount_below

SUITE = "trixie"
DISK_MIB = 6144
# The first partition starts at 1 MiB, as everywhere; GRUB's core lies in the gap before it.
PARTITION_START = 1024 * 1024
SECTOR = 512
# Of the GPU behind which the host reaches the machine.
MAC = "52:54:00:12:34:56"
PACKAGES = (
    "ca-certificates",
    "dbus",
    "e2fsprogs",
    "grub-common",
    "grub-pc-bin",
    "initramfs-tools",
    "iproute2",
    "kmod",
    "linux-image-amd64",
    "openssh-server",
    "pciutils",
    "python3",
    "python3-apt",
    "sudo",
    "systemd-sysv",
    "udev",
    "zstd",
)
GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "normal", "linux", "echo", "configfile", "serial", "terminal")
# Features that GRUB cannot read, or that the kernel would only enable for larger disks.
EXT4_FEATURES = "^metadata_csum_seed,^orphan_file"

# Configuration of the machine, written before the kernel is installed, so that the first initramfs has it too.
FILES = {
    "/etc/initramfs-tools/conf.d/lab": (
        "# A small initramfs that is quick to build without hardware virtualisation.\n"
        "MODULES=list\nCOMPRESS=zstd\nCOMPRESSLEVEL=1\n"
    ),
    "/etc/initramfs-tools/hooks/lab": (
        "#!/bin/sh\n"
        "# What Debian's own MODULES=most would take: the disk's driver, and every driver of a display.\n"
        '[ "$1" = prereqs ] && exit 0\n'
        ". /usr/share/initramfs-tools/hook-functions\n"
        "manual_add_modules virtio_pci virtio_blk ext4 nouveau\n"
    ),
    # udev loads a driver by the alias that the kernel gives a device. Here the display adapter gets the alias
    # of an A100 on the way; all the rest, from the rule that loads to the blacklist, is Debian's own.
    # initramfs-tools copies local rules into the initramfs, so nouveau is loaded from there, as on a real host.
    "/etc/udev/rules.d/79-display-gpu.rules": (
        'ACTION=="add", SUBSYSTEM=="pci", ATTR{vendor}=="0x1234", ATTR{class}=="0x030000", '
        'ENV{MODALIAS}="pci:v000010DEd000020B0sv000010DEsd0000134Fbc03sc02i00"\n'
    ),
    "/boot/grub/grub.cfg": (
        "serial --unit=0 --speed=115200\nterminal_output serial\nset timeout=0\n"
        "menuentry Debian {\n"
        "  linux /vmlinuz root=LABEL=root ro console=tty0 console=ttyS0,115200 quiet\n"
        "  initrd /initrd.img\n"
        "}\n"
    ),
    "/etc/fstab": "LABEL=root / ext4 errors=remount-ro 0 1\n",
    "/etc/systemd/network/10-wired.network": (
        f"[Match]\nMACAddress={MAC}\n\n[Network]\nAddress=10.0.2.15/24\nLinkLocalAddressing=no\n"
    ),
    "/etc/sudoers.d/lab": f"{state.USER} ALL=(ALL) NOPASSWD: ALL\n",
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 metal1\n",
    "/etc/hostname": "metal1\n",
}
EXECUTABLE = ("/etc/initramfs-tools/hooks/lab",)
# Everything else that is done in the tree, with a shell in it.
FINISH = f"""set -eu
useradd --create-home --shell /bin/bash {state.USER}
chmod 0440 /etc/sudoers.d/lab
rm -f /etc/ssh/ssh_host_*
: >/etc/machine-id
systemctl enable systemd-networkd.service systemd-network-generator.service ssh.service
systemctl mask systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer
systemctl mask e2scrub_all.timer e2scrub_reap.service fstrim.timer man-db.timer dpkg-db-backup.timer
grub-mkimage --format=i386-pc --output=/boot/grub/core.img --prefix='(hd0,msdos1)/boot/grub' {" ".join(GRUB_MODULES)}
cp /usr/lib/grub/i386-pc/boot.img /boot/grub/boot.img
mkdir -p /boot/grub/i386-pc
cp /usr/lib/grub/i386-pc/*.mod /usr/lib/grub/i386-pc/*.lst /boot/grub/i386-pc/
rm -f /etc/apt/apt.conf.d/99mmdebstrap
rm -rf /usr/share/doc/* /usr/share/man/* /var/cache/apt/*.bin /var/lib/apt/lists/*
"""


def recipe() -> str:
    """Everything that decides what is on the disk; its hash names the cached image."""
    parts = [SUITE, str(DISK_MIB), *PACKAGES, *GRUB_MODULES, EXT4_FEATURES, FINISH, *EXECUTABLE]
    parts += [f"{path}\n{content}" for path, content in FILES.items()]
    return "\n--\n".join(parts)


def boot_record(boot_image: bytes, core_image: bytes, sectors: int) -> bytes:
    """The start of the disk: GRUB's first stage with a partition table of one bootable entry, then its core."""
    if len(core_image) + SECTOR > PARTITION_START:
        raise LabError(f"GRUB's core image of {len(core_image)} bytes does not fit before the first partition")
    start = PARTITION_START // SECTOR
    # Cylinders and heads mean nothing any more; these values say 'beyond what they can count'.
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", start, sectors - start)
    signature = struct.pack("<I", 0x62676C31) + b"\0\0"
    return boot_image[:440] + signature + entry + bytes(48) + b"\x55\xaa" + core_image


def write_files(tree: Path) -> None:
    """The machine's configuration, into a tree that has no packages configured yet."""
    for name, content in FILES.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        path.chmod(0o755 if name in EXECUTABLE else 0o644)


def _make_tree(work: Path, port: int, found: mirrors.Mirrors) -> Path:
    """Debian with the machine's packages and configuration, as a directory."""
    tree, prepared, log = work / "tree", work / "files", work / "build.log"
    write_files(prepared)
    sources = work / "sources.list"
    sources.write_text(found.one_line(SUITE), encoding="utf-8")
    options = {"Acquire::http::Proxy": f"http://127.0.0.1:{port}", **found.options}
    run(
        "mmdebstrap",
        "--variant=apt",
        f"--include={','.join(PACKAGES)}",
        *(f'--aptopt={name} "{value}"' for name, value in options.items()),
        f"--essential-hook=cp -r '{prepared}'/. \"$1\"/",
        SUITE,
        tree,
        sources,
        env=environment(DEBIAN_FRONTEND="noninteractive"),
        log=log,
    )
    # Packages may have had their own opinion of these.
    write_files(tree)
    run("chroot", tree, "/bin/sh", "-c", FINISH, env=environment(DEBIAN_FRONTEND="noninteractive"), log=log)
    return tree


def _make_disk(tree: Path, disk: Path) -> None:
    """A sparse disk image with the tree as its only partition, which the BIOS can boot."""
    size = DISK_MIB * 1024 * 1024
    with disk.open("wb") as image:
        image.truncate(size)
        record = boot_record(
            (tree / "boot/grub/boot.img").read_bytes(),
            (tree / "boot/grub/core.img").read_bytes(),
            size // SECTOR,
        )
        image.write(record)
    run(
        "mke2fs",
        *("-q", "-t", "ext4", "-L", "root", "-O", EXT4_FEATURES, "-d", tree),
        *("-E", f"offset={PARTITION_START}", "-F", disk, f"{DISK_MIB - 1}M"),
    )


def ensure() -> Path:
    """The image of the present recipe; made if the cache has none."""
    text = recipe()
    cache = state.CACHE_ROOT / "vm"
    wanted = cache / hashlib.sha256(text.encode()).hexdigest()[:16]
    disk = wanted / "disk.raw"
    with locked(state.CACHE_ROOT / "locks" / "vm-image.lock", "the virtual machine's image, which another lab builds"):
        if disk.exists():
            return disk
        say(f"vm: building the disk image {wanted.name} (about a minute)")
        work = cache / ".building"
        # What a build that was killed has left; its lock is ours now.
        _discard(work)
        work.mkdir(parents=True)
        try:
            _build(work)
            (work / "recipe").write_text(text, encoding="utf-8")
            _prune(cache)
            work.rename(wanted)
        finally:
            _discard(work)
        say(f"vm: disk image {wanted.name} is ready")
    return disk


def _build(work: Path) -> None:
    found = mirrors.find()
    # The name says which process uses the cache, so that its end is noticed.
    packages, user = aptcache.AptCache(), f"build-{os.getpid()}"
    port = packages.acquire(user, found)
    try:
        tree = _make_tree(work, port, found)
    finally:
        packages.release(user)
    _make_disk(tree, work / "disk.raw")
    shutil.rmtree(tree)


def _discard(work: Path) -> None:
    unmount_below(work)
    shutil.rmtree(work, ignore_errors=True)


def _prune(cache: Path) -> None:
    """Remove images of older recipes that no lab's machine stands on."""
    used = set()
    for note in state.STATE_ROOT.glob("*.vm*/vm.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            used.add(Path(json.loads(note.read_text(encoding="utf-8"))["image"]).parent)
    for entry in cache.iterdir():
        if entry not in used and not entry.name.startswith("."):
            shutil.rmtree(entry, ignore_errors=True)
