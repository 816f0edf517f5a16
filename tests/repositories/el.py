# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for what a host of Enterprise Linux 9 has and for what NVIDIA's and Docker's repositories for it offer.

All hand-made, as in stand_ins.py: names, relations and the programs that the roles call, and nothing of what is inside
the real ones. Names and streams follow NVIDIA's driver installation guide and its modules nvidia-driver:BRANCH-open and
nvidia-driver:BRANCH-dkms.
"""

from __future__ import annotations

from tests.repositories.rpm import Module, Package, Workshop
from tests.repositories.stand_ins import CONFIG, CTK, NVCC, RUNTIME

KERNEL = "5.14.0-503.11.1.el9_5.x86_64"

# What Debian's shell, systemd and C library provide, and nobody's RPM does.
PROVIDED = ("/bin/sh", "/usr/sbin/ldconfig", "system-release = 9.5", "system-release(releasever) = 9")

# Knows a module once it is added and installs it for a kernel by a link, as the real one does; it builds nothing.
DKMS = """#!/bin/sh
# Stand-in for dkms.
set -e
tree=/var/lib/dkms
action=$1; shift
module= version= kernel=
while [ $# -gt 0 ]; do
  case "$1" in
  -m) module=$2 ;;
  -v) version=$2 ;;
  -k) kernel=$2 ;;
  *) echo "stand-in dkms: '$1' is not among what it stands in for" >&2; exit 64 ;;
  esac
  shift 2
done
install_one() {
  mkdir -p "$tree/$1/$2/$kernel"
  ln -sfn "$2/$kernel" "$tree/$1/kernel-$kernel-x86_64"
}
case "$action" in
add) mkdir -p "$tree/$module/$version"; ln -sfn "/usr/src/$module-$version" "$tree/$module/$version/source" ;;
install) install_one "$module" "$version" ;;
remove) rm -rf "$tree/$module/$version"; find "$tree/$module" -type l -lname "$version/*" -delete ;;
autoinstall)
  for source in "$tree"/*/*/source; do
    directory=${source%/source}
    install_one "$(basename "$(dirname "$directory")")" "$(basename "$directory")"
  done ;;
*) echo "stand-in dkms: '$action' is not among what it stands in for" >&2; exit 64 ;;
esac
"""

UNIT = "[Service]\nExecStart={command}\nExecReload=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
SOCKET = "[Socket]\nListenStream=/run/stand-in-docker.sock\n[Install]\nWantedBy=sockets.target\n"

DOCKERD = """#!/bin/sh
# Stand-in for dockerd.
case "$1 $2" in
"--validate --config-file="*) exec python3 -m json.tool "${2#--config-file=}" /dev/null ;;
" ") exec sleep infinity ;;
*) echo "stand-in dockerd: '$*' is not among what it stands in for" >&2; exit 64 ;;
esac
"""


def system() -> list[Package]:
    """What the host has from its distribution, and what EPEL adds."""
    version, release = KERNEL.removesuffix(".x86_64").split("-")
    kernel = {"release": release, "version": version}
    return [
        Package("stand-in-el", "9.5", provides=PROVIDED, directories=("/etc/pki/rpm-gpg",), architecture="noarch"),
        Package(
            "kernel-core",
            **kernel,
            files={
                f"/lib/modules/{KERNEL}/modules.builtin": "kernel/stand-in.ko\n",
                f"/lib/modules/{KERNEL}/vmlinuz": "stand-in\n",
            },
        ),
        Package("kernel-devel", **kernel, files={f"/usr/src/kernels/{KERNEL}/Makefile": "# stand-in\n"}),
        Package("kernel-devel", version, release="427.el9"),
        Package("python3-dnf-plugin-versionlock", "4.3.0", architecture="noarch"),
        Package("dkms", "3.1.0", files={"/usr/sbin/dkms": DKMS}, architecture="noarch"),
    ]


def tools() -> list[Package]:
    """Small packages of no vendor, for what dnf does with versions, dependencies and exchanges."""
    return [
        *(Package("stand-in-tool", version) for version in ("1.0", "1.1", "2.0")),
        Package("stand-in-needs", "1.0", requires=("stand-in-library",)),
        Package("stand-in-library", "1.0"),
        Package("stand-in-rival", "1.0", conflicts=("stand-in-tool",)),
    ]


def driver(branch: str, flavour: str, *versions: str) -> Module:
    """A branch of NVIDIA's driver in one flavour: a stream of the module nvidia-driver."""
    packages = tuple(package for version in versions for package in driver_release(version, flavour))
    return Module("nvidia-driver", f"{branch}-{'open' if flavour == 'open' else 'dkms'}", packages)


def driver_release(version: str, flavour: str) -> list[Package]:
    epoch = 3
    exact = f"= {epoch}:{version}"
    open_kernel, closed_kernel = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
    kernel, other = (open_kernel, closed_kernel) if flavour == "open" else (closed_kernel, open_kernel)
    return [
        Package(
            kernel,
            version,
            epoch=epoch,
            files={f"/usr/src/nvidia-{version}/dkms.conf": f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\n'},
            scripts={
                "post": f"dkms add -m nvidia -v {version}\ndkms install -m nvidia -v {version} -k {KERNEL}",
                "preun": f"dkms remove -m nvidia -v {version}",
            },
            requires=("dkms", f"nvidia-kmod-common {exact}"),
            provides=(f"nvidia-kmod {exact}",),
            conflicts=(other,),
            architecture="noarch",
        ),
        Package("nvidia-kmod-common", version, epoch=epoch, requires=(f"nvidia-kmod {exact}",), architecture="noarch"),
        Package("nvidia-driver-cuda-libs", version, epoch=epoch),
        Package(
            "nvidia-driver-cuda",
            version,
            epoch=epoch,
            requires=(f"nvidia-driver-cuda-libs {exact}", f"nvidia-kmod-common {exact}"),
        ),
        Package("nvidia-modprobe", version, epoch=epoch),
        Package(
            "nvidia-persistenced",
            version,
            epoch=epoch,
            files={"/usr/lib/systemd/system/nvidia-persistenced.service": UNIT.format(command="sleep infinity")},
        ),
    ]


def cuda_toolkit(version: str) -> list[Package]:
    """A toolkit that is named by its version, such as 12.4; it registers itself with the alternatives as NVIDIA's."""
    dashed, full = version.replace(".", "-"), f"{version}.99"
    home = f"/usr/local/cuda-{version}"
    common = f"cuda-toolkit-{dashed}-config-common"
    return [
        Package(
            common,
            full,
            files={f"{home}/version.txt": f"stand-in {version}\n"},
            scripts={
                "post": f"update-alternatives --install /usr/local/cuda cuda {home} {version.replace('.', '')}",
                "preun": f"[ $1 -ne 0 ] || update-alternatives --remove cuda {home}",
            },
            architecture="noarch",
        ),
        Package(
            f"cuda-nvcc-{dashed}", full, requires=(common,), files={f"{home}/bin/nvcc": NVCC.format(version=version)}
        ),
        Package(
            f"cuda-toolkit-{dashed}",
            full,
            requires=(f"cuda-nvcc-{dashed}",),
            files={f"{home}/lib64/stand-in.txt": f"libraries of CUDA {version}\n"},
        ),
    ]


def docker() -> list[Package]:
    """Docker's own packages, whose daemons only sleep."""
    units = "/usr/lib/systemd/system"
    return [
        Package(
            "docker-ce",
            "27.5.1",
            epoch=3,
            requires=("containerd.io", "docker-ce-cli"),
            files={
                "/usr/bin/dockerd": DOCKERD,
                f"{units}/docker.service": UNIT.format(command="/usr/bin/dockerd"),
                f"{units}/docker.socket": SOCKET,
            },
        ),
        Package("docker-ce-cli", "27.5.1", epoch=1),
        Package(
            "containerd.io", "1.7.25", files={f"{units}/containerd.service": UNIT.format(command="sleep infinity")}
        ),
        Package("docker-buildx-plugin", "0.20.0"),
        Package("docker-compose-plugin", "2.32.4"),
    ]


def container_toolkit(version: str) -> list[Package]:
    """The four packages of NVIDIA Container Toolkit at one version."""
    exact = f"= {version}"
    return [
        Package("libnvidia-container1", version, release="1"),
        Package("libnvidia-container-tools", version, release="1", requires=(f"libnvidia-container1 {exact}",)),
        Package(
            "nvidia-container-toolkit-base",
            version,
            release="1",
            files={
                "/usr/bin/nvidia-ctk": CTK.format(version=version),
                "/usr/bin/nvidia-container-runtime": RUNTIME,
                "/etc/nvidia-container-runtime/config.toml": CONFIG,
            },
        ),
        Package(
            "nvidia-container-toolkit",
            version,
            release="1",
            requires=(f"nvidia-container-toolkit-base {exact}", f"libnvidia-container-tools {exact}"),
        ),
    ]


def workshop(directory: str) -> Workshop:
    """Every repository of the tests. `forged` is signed by somebody else than its key says."""
    made = Workshop(directory)
    made.repository("system", system(), "Distribution")
    made.repository("tools", tools(), "Vendor")
    made.repository("forged", [Package("stand-in-forged", "1.0")], "Forger", claims="Vendor")
    made.repository(
        "cuda",
        [*cuda_toolkit("12.4"), *cuda_toolkit("12.6")],
        "Vendor",
        modules=[
            driver("550", "open", "550.54.15", "550.163.01"),
            driver("570", "proprietary", "570.133.20"),
        ],
    )
    made.repository("docker", docker(), "Vendor")
    made.repository("toolkit", [*container_toolkit("1.17.7"), *container_toolkit("1.17.8")], "Vendor")
    return made
