# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of bare Debian servers: built once by mmdebstrap, kept unpacked, shared read-only by all machines."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from .aptcache import AptCache
from .mirrors import Mirrors
from .state import CACHE_ROOT, USER
from .system import LabError, locked, run, say, unmount_below, write_atomically

DIRECTORY = CACHE_ROOT / "images"
# A kernel that is older than the archive's has no headers there any more.
MAXIMUM_AGE_DAYS = 7

# Where machines keep what their compilers made; all of them share it.
COMPILER_CACHE_IN_MACHINE = "/var/cache/ccache"
# What modules of the kernel are built with.
MODULE_COMPILER = {"trixie": "x86_64-linux-gnu-gcc-14", "bookworm": "gcc-12"}
PROBE_CACHE = "/usr/lib/lab-probe-cache"
# What spares a machine of the lab work that every other machine has. Without these files it has it too.
COMPILERS_SETTINGS = "/etc/apt/apt.conf.d/ccache.conf"
DKMS_SETTINGS = "/etc/dkms/framework.conf.d/lab.conf"
INITRAMFS_SETTINGS = "/etc/initramfs-tools/conf.d/lab"
DPKG_SETTINGS = "/etc/dpkg/dpkg.cfg.d/lab"
SHORTCUTS = (COMPILERS_SETTINGS, DKMS_SETTINGS, INITRAMFS_SETTINGS, DPKG_SETTINGS)

PACKAGES = (
    "ca-certificates",
    # Kernel modules are what the lab's machines spend most time on, and are built of the same sources each time.
    "ccache",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "linux-image-amd64",
    "netbase",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd-sysv",
    "udev",
    # As on every Debian but the smallest: without it the initramfs is made the slow way.
    "zstd",
)

# The checksum is the one that the kernel can check.
QUICK_XZ = "--check=crc32 --lzma2=preset=0,dict=64KiB,mf=hc3,nice=4,depth=1"

# Run by mmdebstrap with the image's root as $1.
_HOOKS = (
    f'chroot "$1" useradd --create-home --shell /bin/bash {USER}',
    f'echo "{USER} ALL=(ALL:ALL) NOPASSWD: ALL" > "$1/etc/sudoers.d/{USER}" && chmod 0440 "$1/etc/sudoers.d/{USER}"',
    # mmdebstrap leaves the options of the build there, the proxy among them.
    'rm "$1/etc/apt/apt.conf.d/99mmdebstrap"',
    # Packages' scripts find compilers through ccache; apt names the path that they have.
    f'printf "DPkg::Path \\"{PROBE_CACHE}:/usr/lib/ccache:/usr/sbin:/usr/bin:/sbin:/bin\\";\\n" '
    f'> "$1{COMPILERS_SETTINGS}"',
    f'mkdir "$1{COMPILER_CACHE_IN_MACHINE}"',
    f'printf "cache_dir = {COMPILER_CACHE_IN_MACHINE}\\nmax_size = 3G\\n" > "$1/etc/ccache.conf"',
    # What is compressed here is read once if at all: the kernel modules of a driver are packed in 5 s in place of 36.
    'mkdir -p "$1/etc/dkms/framework.conf.d"',
    f'printf \'compress_xz_opts="{QUICK_XZ}"\\n\' > "$1{DKMS_SETTINGS}"',
    # No machine boots from it but the virtual one, whose image has settings of its own: without the drivers of all
    # disks that there are it is made in a fraction of the time.
    f'printf "MODULES=list\\nCOMPRESSLEVEL=1\\n" > "$1{INITRAMFS_SETTINGS}"',
    # Its disk need not outlast a power cut of this host: dpkg waits for no file to be on it, which is half of its time.
    f'echo force-unsafe-io > "$1{DPKG_SETTINGS}"',
    # Every machine gets keys of its own.
    'rm -f "$1"/etc/ssh/ssh_host_*',
    'chroot "$1" systemctl enable systemd-networkd.service ssh.service',
    # Updates at a random moment would hold dpkg's lock.
    'chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer',
    'rm -f "$1/etc/machine-id" && : > "$1/etc/machine-id"',
)


def hooks(suite: str) -> tuple[str, ...]:
    """What is done to an image once its packages are there."""
    script = Path(__file__).with_name("probe_cache.sh").read_text(encoding="utf-8")
    path = f'"$1{PROBE_CACHE}/{MODULE_COMPILER[suite]}"'
    return (
        *_HOOKS,
        f'mkdir "$1{PROBE_CACHE}" && printf %s {shlex.quote(script)} > {path} && chmod 0755 {path}',
    )


def recipe_key(suite: str) -> str:
    """Names an image after everything that goes into it."""
    recipe = json.dumps([suite, PACKAGES, hooks(suite)])
    return f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def root_of(image: str) -> Path:
    """The unpacked image."""
    return DIRECTORY / image / "root"


def compiler_cache() -> Path:
    """The directory of this host that all machines have as their compilers' cache."""
    directory = CACHE_ROOT / "ccache"
    directory.mkdir(exist_ok=True)
    return directory


def newest(suite: str) -> str | None:
    """The newest image of today's recipe, if there is one."""
    found = sorted(path.name for path in DIRECTORY.glob(f"{recipe_key(suite)}-*") if (path / "complete").exists())
    return found[-1] if found else None


def age_days(image: str) -> float:
    """Days since an image was built."""
    return (time.time() - (DIRECTORY / image / "complete").stat().st_mtime) / 86400


def ensure(suite: str, mirrors: Mirrors) -> str:
    """The name of an image of this suite, built now if there is none or only an old one."""
    with locked(CACHE_ROOT / "locks" / f"image-{suite}.lock", f"another lab that builds the {suite} image"):
        present = newest(suite)
        limit = float(os.environ.get("GPUOPS_LAB_IMAGE_MAX_AGE_DAYS", MAXIMUM_AGE_DAYS))
        if present and age_days(present) <= limit:
            return present
        try:
            return _build(suite, mirrors)
        except LabError as error:
            if present is None:
                raise
            say(f"image {suite}: kept the one of {age_days(present):.0f} days ago; building a new one failed: {error}")
            return present


def _build(suite: str, mirrors: Mirrors) -> str:
    name = f"{recipe_key(suite)}-{int(time.time())}"
    sweep(suite)
    building = DIRECTORY / f".build-{name}"
    building.mkdir(parents=True)
    log = CACHE_ROOT / "log" / f"image-{suite}.log"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    say(f"image {suite}: building (about two minutes; log: {log})")
    cache, user = AptCache(), f"build-{os.getpid()}"
    port = cache.acquire(user, mirrors)
    started = time.monotonic()
    try:
        options = [f'--aptopt={key} "{value}"' for key, value in mirrors.options.items()]
        run(
            "mmdebstrap",
            "--mode=root",
            "--variant=apt",
            f"--include={','.join(PACKAGES)}",
            f'--aptopt=Acquire::http::Proxy "http://127.0.0.1:{port}"',
            *options,
            *(f"--customize-hook={hook}" for hook in hooks(suite)),
            suite,
            building / "root",
            "-",
            stdin=mirrors.one_line(suite),
            log=log,
        )
    except BaseException:
        unmount_below(building)
        shutil.rmtree(building, ignore_errors=True)
        raise
    finally:
        cache.release(user)
    (building / "complete").touch()
    building.rename(DIRECTORY / name)
    say(f"image {suite}: built in {time.monotonic() - started:.0f} s")
    return name


def sweep(suite: str) -> None:
    """Remove what builds of this suite that were killed have left (their lock is ours now)."""
    for left in DIRECTORY.glob(f".build-{suite}-*"):
        unmount_below(left)
        shutil.rmtree(left, ignore_errors=True)


def prune(in_use: Iterable[str]) -> None:
    """Remove images that a newer one has replaced and no lab uses."""
    keep = set(in_use)
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    for path in DIRECTORY.glob("[a-z]*-*-*"):
        suite = path.name.split("-")[0]
        if path.name not in keep and path.name != newest(suite) and f"{path}/root" not in mounts:
            with locked(CACHE_ROOT / "locks" / f"image-{suite}.lock"):
                shutil.rmtree(path, ignore_errors=True)


def write_seed_sources(root: Path, suite: str, mirrors: Mirrors) -> None:
    """A machine's apt sources as Debian's installer of that release writes them."""
    listed = root / "etc/apt/sources.list"
    if suite == "bookworm":
        write_atomically(listed, mirrors.one_line(suite, signed=False))
    else:
        listed.unlink(missing_ok=True)
        write_atomically(root / "etc/apt/sources.list.d/debian.sources", mirrors.deb822(suite))
