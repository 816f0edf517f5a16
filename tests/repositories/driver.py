# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for NVIDIA's driver packages, and for its installer.

All hand-made. They have the names and the dependencies of the packages in NVIDIA's repository for Debian as far as the
role relies on them (the dependencies as apt reports them there from branch 570 on, those of Fabric Manager as in the
repository NVIDIA/apt-packaging-fabric-manager). Their kernel modules are real ones that do nothing, so DKMS really
builds and installs them for the machine's kernel, in seconds instead of minutes. Their libraries say which version they
are by their file's name.
"""

from __future__ import annotations

import hashlib
import textwrap
from typing import Any

from tests.repositories.apt import Package
from tests.repositories.stand_ins import DESCRIPTION

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
LICENCES = {"proprietary": "NVIDIA", "open": "Dual MIT/GPL"}
# By the maintainer a driver is told to be NVIDIA's and not the distribution's.
MAINTAINER = "stand-in for NVIDIA CORPORATION <cudatools@nvidia.com>"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"

MODULE = """\
/* Stand-in for a module of NVIDIA's driver: it does nothing. */
#include <linux/module.h>
MODULE_LICENSE("{licence}");
MODULE_VERSION("{version}");
MODULE_DESCRIPTION("stand-in made by a test of baremetal.gpu");
{more}"""

# The real one is a daemon that keeps a file of every GPU open. The stand-in can hold them as paths only, because the
# real kernel does not know the device.
PERSISTENCED = """#!/usr/bin/python3 -I
# Stand-in for nvidia-persistenced.
import glob, os, signal, socket, sys
if sys.argv[1:] not in ([], ["--verbose"]):
    sys.exit(f"nvidia-persistenced stand-in: unknown options {sys.argv[1:]}")
held = [os.open(path, os.O_PATH) for path in sorted(glob.glob("/dev/nvidia[0-9]*"))]
if not held:
    sys.exit("nvidia-persistenced stand-in: no device file of a GPU")
# The driver's libraries see by the socket that the daemon is there.
os.makedirs("/run/nvidia-persistenced", exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/nvidia-persistenced/socket")
listener.listen()
signal.pause()
"""
PERSISTENCED_UNIT = """\
[Unit]
Description=Stand-in for NVIDIA Persistence Daemon

[Service]
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""

# As strict as the real one: it serves a driver of its own version only, and only where there are NVSwitches.
FABRIC_MANAGER = """#!/usr/bin/python3 -I
# Stand-in for nv-fabricmanager.
import os, signal, sys
loaded = open("/sys/module/nvidia/version").read().strip()
if loaded != "{version}":
    sys.exit(f"nv-fabricmanager stand-in {version} does not go with the driver {{loaded}}")
if "nvidia-nvswitch" not in open("/proc/devices").read():
    sys.exit("nv-fabricmanager stand-in: there is no NVSwitch")
held = os.open("/dev/nvidiactl", os.O_PATH)
with open("/run/nvidia-fabricmanager/nv-fabricmanager.pid", "w") as stream:
    stream.write(str(os.getpid()))
signal.pause()
"""
FABRIC_MANAGER_UNIT = """\
[Unit]
Description=Stand-in for NVIDIA fabric manager service

[Service]
RuntimeDirectory=nvidia-fabricmanager
ExecStart=/usr/bin/nv-fabricmanager

[Install]
WantedBy=multi-user.target
"""

# Of the real one's options those that the role and the drivers use.
MODPROBE = """#!/usr/bin/python3 -I
# Stand-in for nvidia-modprobe.
import os, stat, subprocess, sys
def number(name):
    for line in open("/proc/devices"):
        words = line.split()
        if words[1:] == [name]:
            return int(words[0])
    sys.exit(1)
def make(path, major, minor):
    if not os.path.exists(path):
        os.umask(0)
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
words = sys.argv[1:]
while words:
    word = words.pop(0)
    if word == "-c" and words and words[0].isdigit():
        minor = int(words.pop(0))
        make("/dev/nvidiactl" if minor == 255 else f"/dev/nvidia{minor}", 195, minor)
    elif word == "-u":
        subprocess.run(["modprobe", "nvidia-uvm"], check=True)
        make("/dev/nvidia-uvm", number("nvidia-uvm"), 0)
        make("/dev/nvidia-uvm-tools", number("nvidia-uvm"), 1)
    else:
        sys.exit(f"nvidia-modprobe stand-in: unknown option {word}")
subprocess.run(["modprobe", "nvidia"], check=True)
"""

SMI = """#!/bin/sh
# Stand-in for nvidia-smi.
echo "NVIDIA-SMI {version} (stand-in)"
"""

DKMS_POSTINST = """#!/bin/sh
set -e
# As dh_dkms writes it: what cannot be built fails the package.
if [ "$1" = configure ]; then
  dkms add -m {name} -v {version} 2>/dev/null || true
  for kernel in /lib/modules/*/build; do
    kernel=$(basename "$(dirname "$kernel")")
    dkms build -m {name} -v {version} -k "$kernel"
    dkms install -m {name} -v {version} -k "$kernel" --force
  done
fi
"""
DKMS_PRERM = """#!/bin/sh
set -e
case "$1" in remove|upgrade|deconfigure) dkms remove -m {name} -v {version} --all || true ;; esac
"""


def dkms_source(version: str, flavour: str, broken: bool = False, name: str = "nvidia") -> dict[str, str]:
    """The files under /usr/src/NAME-VERSION, by their names there, from which DKMS builds the modules.

    :param name: what DKMS calls it, and how the names of the modules begin; Debian calls it nvidia-current.
    """
    modules = [module.replace("nvidia", name, 1) for module in MODULES]
    conf = f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
    conf += f'MAKE[0]="make -C ${{kernel_source_dir}} M=${{dkms_tree}}/{name}/{version}/build modules"\n'
    for number, module in enumerate(modules):
        conf += f'BUILT_MODULE_NAME[{number}]="{module}"\nDEST_MODULE_LOCATION[{number}]="/updates/dkms"\n'
    kbuild = "obj-m := " + " ".join(f"{module}.o" for module in modules) + "\n"
    files = {"dkms.conf": conf, "Kbuild": kbuild}
    for module in modules:
        more = "#error this stand-in does not go with this kernel\n" if broken and module == name else ""
        files[f"{module}.c"] = MODULE.format(licence=LICENCES[flavour], version=version, more=more)
    return files


def kernel_package(
    name: str, version: str, revision: str, flavour: str, *, dkms: str = "nvidia", broken: bool = False, **fields: Any
) -> Package:
    """A package whose kernel modules DKMS builds when it is configured."""
    source = dkms_source(version, flavour, broken, dkms)
    return Package(
        name,
        revision,
        description=DESCRIPTION.format(name=name),
        files={f"/usr/src/{dkms}-{version}/{file}": text for file, text in source.items()},
        scripts={
            "postinst": DKMS_POSTINST.format(name=dkms, version=version),
            "prerm": DKMS_PRERM.format(name=dkms, version=version),
        },
        **fields,
    )


def driver(version: str, broken: bool = False) -> list[Package]:
    """The packages of a driver of one version, both flavours of the kernel module."""
    revision = f"{version}-1"
    branch = int(version.split(".")[0])

    def same(*names: str) -> str:
        return ", ".join(f"{name} (= {revision})" for name in names)

    def package(name: str, depends: str = "", **fields: Any) -> Package:
        description = DESCRIPTION.format(name=name)
        return Package(name, revision, depends=depends, description=description, maintainer=MAINTAINER, **fields)

    def library(name: str, file: str, depends: str = "") -> Package:
        return package(
            name,
            depends,
            files={f"{LIBRARIES}/{file}.{version}": f"stand-in {version}\n"},
            links={f"{LIBRARIES}/{file}.1": f"{file}.{version}"},
        )

    def kernel(name: str, flavour: str, other: str) -> Package:
        return kernel_package(
            name,
            version,
            revision,
            flavour,
            broken=broken,
            depends=f"dkms, {same('nvidia-kernel-support', 'firmware-nvidia-gsp')}",
            conflicts=other,
            maintainer=MAINTAINER,
        )

    # With branch 580 the branch went from the name.
    fabric_manager = f"nvidia-fabricmanager-{branch}" if branch < 580 else "nvidia-fabricmanager"
    return [
        kernel("nvidia-kernel-dkms", "proprietary", "nvidia-kernel-open-dkms"),
        kernel("nvidia-kernel-open-dkms", "open", "nvidia-kernel-dkms"),
        package("nvidia-kernel-support", "nvidia-modprobe"),
        package("firmware-nvidia-gsp"),
        library("libnvidia-ml1", "libnvidia-ml.so"),
        library("libcuda1", "libcuda.so", same("libnvidia-ptxjitcompiler1", "libnvidia-pkcs11-openssl3")),
        library("libnvidia-cfg1", "libnvidia-cfg.so"),
        package("libnvidia-gpucomp"),
        package("libnvidia-ptxjitcompiler1", same("libnvidia-gpucomp")),
        package("libnvidia-pkcs11-openssl3"),
        package("libcudadebugger1", same("libcuda1")),
        package("nvidia-smi", same("libnvidia-ml1"), files={"/usr/bin/nvidia-smi": SMI.format(version=version)}),
        package("nvidia-modprobe", files={"/usr/bin/nvidia-modprobe": MODPROBE}),
        package(
            "nvidia-persistenced",
            same("libnvidia-cfg1"),
            files={
                "/usr/bin/nvidia-persistenced": PERSISTENCED,
                "/usr/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED_UNIT,
            },
        ),
        package("nvidia-driver-cuda", same("libcuda1", "libcudadebugger1", "libnvidia-ml1", "nvidia-smi")),
        package(
            fabric_manager,
            provides="nvidia-fabricmanager" if branch < 580 else "",
            replaces="nvidia-fabricmanager",
            conflicts="nvidia-fabricmanager",
            files={
                "/usr/bin/nv-fabricmanager": FABRIC_MANAGER.format(version=version),
                "/usr/lib/systemd/system/nvidia-fabricmanager.service": FABRIC_MANAGER_UNIT,
            },
        ),
    ]


def debian_kernel(version: str) -> Package:
    """Debian's own nvidia-kernel-dkms with modules that build at once; the rest of Debian's driver is the real one.

    Its revision is newer than Debian's, so apt prefers it.
    """
    return kernel_package(
        "nvidia-kernel-dkms",
        version,
        f"{version}-99+standin",
        "proprietary",
        dkms="nvidia-current",
        depends=f"firmware-nvidia-gsp (= {version}), nvidia-kernel-support--v1, nvidia-installer-cleanup, dkms",
        provides=f"nvidia-kernel-{version}, nvidia-kernel-dkms-any (= {version})",
    )


def runfile(version: str) -> str:
    """An installer like NVIDIA-Linux-x86_64-VERSION.run: a shell script that knows the real one's options only.

    It leaves /usr/bin/nvidia-uninstall, which takes everything away again and wants --silent.
    """
    source = dkms_source(version, "proprietary")
    here_documents = "".join(
        f"cat > /usr/src/nvidia-{version}/{name} <<'END-OF-FILE'\n{text}END-OF-FILE\n" for name, text in source.items()
    )
    libraries = "".join(
        f"echo 'stand-in {version}' > {LIBRARIES}/{name}.{version}; ln -sf {name}.{version} {LIBRARIES}/{name}.1\n"
        for name in ("libnvidia-ml.so", "libcuda.so", "libnvidia-cfg.so")
    )
    return (
        textwrap.dedent(
            f"""\
            #!/bin/sh
            # Stand-in for NVIDIA's installer, made by a test of baremetal.gpu.
            set -eu
            silent= dkms=
            for word; do
              case "$word" in
              --silent) silent=1 ;;
              --dkms) dkms=1 ;;
              --no-questions|--ui=none|--no-x-check|--no-nouveau-check|--kernel-module-type=proprietary) ;;
              *) echo "ERROR: Unrecognized option: '$word'" >&2; exit 1 ;;
              esac
            done
            [ -n "$silent" ] && [ -n "$dkms" ] || {{ echo "ERROR: asks questions" >&2; exit 1; }}
            if grep -q "^nvidia " /proc/modules; then
              echo "ERROR: An NVIDIA kernel module 'nvidia' appears to be already loaded in your kernel." >&2
              exit 1
            fi
            [ ! -x /usr/bin/nvidia-uninstall ] || /usr/bin/nvidia-uninstall --silent
            mkdir -p /usr/src/nvidia-{version}
            """
        )
        + here_documents
        + textwrap.dedent(
            f"""\
            dkms add -m nvidia -v {version}
            for kernel in /lib/modules/*/build; do
              dkms install -m nvidia -v {version} -k "$(basename "$(dirname "$kernel")")"
            done
            """
        )
        + libraries
        + f"cat > /usr/bin/nvidia-smi <<'END-OF-FILE'\n{SMI.format(version=version)}END-OF-FILE\n"
        + f"cat > /usr/bin/nvidia-persistenced <<'END-OF-FILE'\n{PERSISTENCED}END-OF-FILE\n"
        + f"cat > /usr/bin/nvidia-modprobe <<'END-OF-FILE'\n{MODPROBE}END-OF-FILE\n"
        + "cat > /usr/lib/systemd/system/nvidia-persistenced.service <<'END-OF-FILE'\n"
        + f"{PERSISTENCED_UNIT}END-OF-FILE\n"
        + textwrap.dedent(
            f"""\
            cat > /usr/bin/nvidia-uninstall <<'END-OF-FILE'
            #!/bin/sh
            # Stand-in for NVIDIA's uninstaller.
            [ "$*" = --silent ] || {{ echo "nvidia-uninstall stand-in: asks questions" >&2; exit 1; }}
            dkms remove -m nvidia -v {version} --all
            rm -rf /usr/src/nvidia-{version} {LIBRARIES}/libnvidia-ml.so.* {LIBRARIES}/libcuda.so.* \\
              {LIBRARIES}/libnvidia-cfg.so.* /usr/bin/nvidia-smi /usr/bin/nvidia-modprobe \\
              /usr/bin/nvidia-persistenced /usr/lib/systemd/system/nvidia-persistenced.service
            rm /usr/bin/nvidia-uninstall
            END-OF-FILE
            chmod 755 /usr/bin/nvidia-smi /usr/bin/nvidia-modprobe /usr/bin/nvidia-persistenced
            chmod 755 /usr/bin/nvidia-uninstall
            systemctl daemon-reload
            ldconfig
            """
        )
    )


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
