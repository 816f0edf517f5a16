# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for packages that only NVIDIA's own repositories have.

All hand-made. They have the names, the dependencies and the file names of the real ones as far as the roles rely on
them, and their programs do the least that tells whether the roles use them rightly. Where they are strict (arguments,
order), they are so on purpose: what the real program would refuse, they refuse too.
"""

from __future__ import annotations

from tests.repositories.apt import Package

DESCRIPTION = "stand-in for NVIDIA's {name}, made by a test of baremetal.gpu"

# NVIDIA Container Toolkit ------------------------------------------------------------------------------------------

# What `nvidia-ctk config` of the real package writes into a new file, abridged.
CONFIG = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]
"""

CTK = """#!/bin/sh
# Stand-in for nvidia-ctk.
case "$1" in
--version) echo "NVIDIA Container Toolkit CLI version {version} (stand-in)" ;;
*) echo "stand-in nvidia-ctk: '$*' is not among what it stands in for" >&2; exit 64 ;;
esac
"""

# The real one edits the OCI specification and then runs runc; this one leaves a trace and runs runc.
RUNTIME = """#!/bin/sh
# Stand-in for nvidia-container-runtime.
echo "$*" >> /run/nvidia-container-runtime-stand-in.log
exec runc "$@"
"""

TOOLKIT_POSTINST = """#!/bin/sh
set -e
# The real package makes its configuration like this, only where there is none.
if [ "$1" = configure ] && [ ! -e /etc/nvidia-container-runtime/config.toml ]; then
  mkdir -p /etc/nvidia-container-runtime
  cp /usr/share/nvidia-container-toolkit/config.toml.new /etc/nvidia-container-runtime/config.toml
fi
"""


def container_toolkit(version: str = "1.17.8") -> list[Package]:
    """The four packages of NVIDIA Container Toolkit at one version."""
    revision = f"{version}-1"

    def package(name: str, **fields: object) -> Package:
        return Package(name, revision, description=DESCRIPTION.format(name=name), **fields)  # type: ignore[arg-type]

    return [
        package("libnvidia-container1"),
        package("libnvidia-container-tools", depends=f"libnvidia-container1 (= {revision})"),
        package(
            "nvidia-container-toolkit-base",
            files={
                "/usr/bin/nvidia-ctk": CTK.format(version=version),
                "/usr/bin/nvidia-container-runtime": RUNTIME,
                "/usr/share/nvidia-container-toolkit/config.toml.new": CONFIG,
            },
            scripts={"postinst": TOOLKIT_POSTINST},
        ),
        package(
            "nvidia-container-toolkit",
            depends=f"nvidia-container-toolkit-base (= {revision}), libnvidia-container-tools (= {revision})",
        ),
    ]


# CUDA --------------------------------------------------------------------------------------------------------------

# Makes a program only of a CUDA source, and only with the arguments that the real one takes.
NVCC = """#!/bin/sh
# Stand-in for nvcc.
case "$1" in
--version)
  echo "nvcc: NVIDIA (R) Cuda compiler driver (stand-in)"
  echo "Cuda compilation tools, release {version}, V{version}.99"
  exit 0 ;;
esac
output= source=
while [ $# -gt 0 ]; do
  case "$1" in
  -o) output=$2; shift ;;
  -gencode=arch=compute_*,code=sm_*|-Wno-deprecated-gpu-targets|-O2) ;;
  *.cu) source=$1 ;;
  *) echo "nvcc fatal   : Unknown option '$1'" >&2; exit 1 ;;
  esac
  shift
done
[ -n "$output" ] && grep -q __global__ "$source" || {{ echo "nvcc fatal   : no CUDA source" >&2; exit 1; }}
printf '#!/bin/sh\\necho "made by the stand-in nvcc {version}"\\n' > "$output"
chmod 755 "$output"
"""

# The real cuda-toolkit-X-Y-config-common registers its directory with the alternatives system.
CUDA_POSTINST = """#!/bin/sh
set -e
[ "$1" != configure ] || update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{version} {priority}
"""
CUDA_PRERM = """#!/bin/sh
set -e
[ "$1" != remove ] || update-alternatives --remove cuda /usr/local/cuda-{version}
"""


def cuda_toolkit(version: str) -> list[Package]:
    """A toolkit that is named by its version, such as 12.4."""
    dashed = version.replace(".", "-")
    revision = f"{version}.99-1"
    priority = version.replace(".", "")
    return [
        Package(
            f"cuda-toolkit-{dashed}-config-common",
            revision,
            description=DESCRIPTION.format(name=f"cuda-toolkit-{dashed}-config-common"),
            files={f"/usr/local/cuda-{version}/version.txt": f"stand-in {version}\n"},
            scripts={
                "postinst": CUDA_POSTINST.format(version=version, priority=priority),
                "prerm": CUDA_PRERM.format(version=version),
            },
        ),
        Package(
            f"cuda-nvcc-{dashed}",
            revision,
            description=DESCRIPTION.format(name=f"cuda-nvcc-{dashed}"),
            depends=f"cuda-toolkit-{dashed}-config-common",
            files={f"/usr/local/cuda-{version}/bin/nvcc": NVCC.format(version=version)},
        ),
        Package(
            f"cuda-toolkit-{dashed}",
            revision,
            description=DESCRIPTION.format(name=f"cuda-toolkit-{dashed}"),
            depends=f"cuda-nvcc-{dashed}",
            files={f"/usr/local/cuda-{version}/lib64/stand-in.txt": f"libraries of CUDA {version}\n"},
        ),
    ]
