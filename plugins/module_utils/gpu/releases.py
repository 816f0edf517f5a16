# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Public data on which driver runs which GPU and which CUDA.

Only data; compatibility.py holds the rules. Every row names the public text it comes from.
"""

from __future__ import annotations

from typing import Any

RELEASE_NOTES = "NVIDIA CUDA Toolkit 13.2 Update 2 release notes, Table 3"
RELEASE_NOTES_13_3 = "NVIDIA CUDA Toolkit 13.3 release notes, as quoted by two independent public copies"
MINOR_COMPATIBILITY = (
    "CUDA Toolkit 13.2 Update 2 release notes, Table 2; "
    "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
)
SUPPORTED_DRIVERS = "https://docs.nvidia.com/datacenter/tesla/drivers/supported-drivers-and-cuda-toolkit-versions.html"
KERNEL_MODULES = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html (branch 610)"
KERNEL_OPEN = "NVIDIA driver 580.159.03 README, kernel_open.html"
UNIX_LEGACY = "https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/"
FEATURES_ARCHIVE = "https://docs.nvidia.com/cuda/cuda-features-archive/"
CLANG = "llvm/llvm-project commit 0f49116e, supported CUDA architectures"
FIRST_BRANCH = "the branch that a toolkit of that version was first released with (TOOLKIT_DRIVERS)"
SMI_HEADERS = "headers of nvidia-smi 565.57.01 in public logs; there was no toolkit 12.7"
DEBIAN = "package indices of Debian (main, contrib, non-free, non-free-firmware) on amd64, read in November 2026"
DRIVER_CONTAINER = "NVIDIA/gpu-driver-container at 06a208c"

# The oldest driver that each toolkit was built and tested with: (CUDA, update, driver, source).
TOOLKIT_DRIVERS = (
    ("13.3", 1, "610.43.02", RELEASE_NOTES_13_3),
    ("13.3", 0, "610.43.02", RELEASE_NOTES_13_3),
    ("13.2", 2, "595.71.05", RELEASE_NOTES),
    ("13.2", 1, "595.58.03", RELEASE_NOTES),
    ("13.2", 0, "595.45.04", RELEASE_NOTES),
    ("13.1", 1, "590.48.01", RELEASE_NOTES),
    ("13.1", 0, "590.44.01", RELEASE_NOTES),
    ("13.0", 2, "580.95.05", RELEASE_NOTES),
    ("13.0", 1, "580.82.07", RELEASE_NOTES),
    ("13.0", 0, "580.65.06", RELEASE_NOTES),
    ("12.9", 1, "575.57.08", RELEASE_NOTES),
    ("12.9", 0, "575.51.03", RELEASE_NOTES),
    ("12.8", 1, "570.124.06", RELEASE_NOTES),
    ("12.8", 0, "570.26", RELEASE_NOTES),
    ("12.6", 3, "560.35.05", RELEASE_NOTES),
    ("12.6", 2, "560.35.03", RELEASE_NOTES),
    ("12.6", 1, "560.35.03", RELEASE_NOTES),
    ("12.6", 0, "560.28.03", RELEASE_NOTES),
    ("12.5", 1, "555.42.06", RELEASE_NOTES),
    ("12.5", 0, "555.42.02", RELEASE_NOTES),
    ("12.4", 1, "550.54.15", RELEASE_NOTES),
    ("12.4", 0, "550.54.14", RELEASE_NOTES),
    ("12.3", 1, "545.23.08", RELEASE_NOTES),
    ("12.3", 0, "545.23.06", RELEASE_NOTES),
    ("12.2", 2, "535.104.05", RELEASE_NOTES),
    ("12.2", 1, "535.86.09", RELEASE_NOTES),
    ("12.2", 0, "535.54.03", RELEASE_NOTES),
    ("12.1", 1, "530.30.02", RELEASE_NOTES),
    ("12.1", 0, "530.30.02", RELEASE_NOTES),
    ("12.0", 1, "525.85.12", RELEASE_NOTES),
    ("12.0", 0, "525.60.13", RELEASE_NOTES),
    ("11.8", 0, "520.61.05", RELEASE_NOTES),
    ("11.7", 1, "515.48.07", RELEASE_NOTES),
    ("11.7", 0, "515.43.04", RELEASE_NOTES),
    ("11.6", 2, "510.47.03", RELEASE_NOTES),
    ("11.6", 1, "510.47.03", RELEASE_NOTES),
    ("11.6", 0, "510.39.01", RELEASE_NOTES),
    ("11.5", 2, "495.29.05", RELEASE_NOTES),
    ("11.5", 1, "495.29.05", RELEASE_NOTES),
    ("11.5", 0, "495.29.05", RELEASE_NOTES),
    ("11.4", 4, "470.82.01", RELEASE_NOTES),
    ("11.4", 3, "470.82.01", RELEASE_NOTES),
    ("11.4", 2, "470.57.02", RELEASE_NOTES),
    ("11.4", 1, "470.57.02", RELEASE_NOTES),
    ("11.4", 0, "470.42.01", RELEASE_NOTES),
    ("11.3", 1, "465.19.01", RELEASE_NOTES),
    ("11.3", 0, "465.19.01", RELEASE_NOTES),
    ("11.2", 2, "460.32.03", RELEASE_NOTES),
    ("11.2", 1, "460.32.03", RELEASE_NOTES),
    ("11.2", 0, "460.27.03", RELEASE_NOTES),
    ("11.1", 1, "455.32", RELEASE_NOTES),
    ("11.1", 0, "455.23", RELEASE_NOTES),
    ("11.0", 1, "450.51.06", RELEASE_NOTES),
    ("11.0", 0, "450.51.05", RELEASE_NOTES),
    ("10.2", 0, "440.33", RELEASE_NOTES),
    ("10.1", 0, "418.39", RELEASE_NOTES),
    ("10.0", 0, "410.48", RELEASE_NOTES),
    ("9.2", 1, "396.37", RELEASE_NOTES),
    ("9.2", 0, "396.26", RELEASE_NOTES),
    ("9.1", 0, "390.46", RELEASE_NOTES),
    ("9.0", 0, "384.81", RELEASE_NOTES),
    ("8.0", 2, "375.26", RELEASE_NOTES),
    ("8.0", 0, "367.48", RELEASE_NOTES),
    ("7.5", 0, "352.31", RELEASE_NOTES),
)

# Within a CUDA major version from 11 on, any driver from here on runs any toolkit of that major version, short of
# features that need the newer driver: (CUDA major version, oldest driver, source). There is no upper bound: a newer
# driver runs older CUDA. Before CUDA 11 the driver of TOOLKIT_DRIVERS is a hard minimum.
MINOR_VERSION_COMPATIBILITY = (
    (13, "580.65.06", MINOR_COMPATIBILITY),
    (12, "525.60.13", MINOR_COMPATIBILITY),
    (11, "450.80.02", MINOR_COMPATIBILITY),
)

# The newest CUDA that the drivers of a branch report: (branch, CUDA, source).
BRANCH_CUDA = (
    (346, "7.0", FIRST_BRANCH),
    (352, "7.5", FIRST_BRANCH),
    (367, "8.0", FIRST_BRANCH),
    (375, "8.0", FIRST_BRANCH),
    (384, "9.0", FIRST_BRANCH),
    (390, "9.1", FIRST_BRANCH),
    (396, "9.2", FIRST_BRANCH),
    (410, "10.0", FIRST_BRANCH),
    (418, "10.1", FIRST_BRANCH),
    (440, "10.2", FIRST_BRANCH),
    (450, "11.0", FIRST_BRANCH),
    (455, "11.1", FIRST_BRANCH),
    (460, "11.2", FIRST_BRANCH),
    (465, "11.3", FIRST_BRANCH),
    (470, "11.4", FIRST_BRANCH),
    (495, "11.5", FIRST_BRANCH),
    (510, "11.6", FIRST_BRANCH),
    (515, "11.7", FIRST_BRANCH),
    (520, "11.8", FIRST_BRANCH),
    (525, "12.0", FIRST_BRANCH),
    (530, "12.1", FIRST_BRANCH),
    (535, "12.2", FIRST_BRANCH),
    (545, "12.3", FIRST_BRANCH),
    (550, "12.4", FIRST_BRANCH),
    (555, "12.5", FIRST_BRANCH),
    (560, "12.6", FIRST_BRANCH),
    (565, "12.7", SMI_HEADERS),
    (570, "12.8", FIRST_BRANCH),
    (575, "12.9", FIRST_BRANCH),
    (580, "13.0", FIRST_BRANCH),
    (590, "13.1", FIRST_BRANCH),
    (595, "13.2", FIRST_BRANCH),
    (610, "13.3", RELEASE_NOTES_13_3),
)

# How long NVIDIA supports a data-centre branch: (branch, kind, end of life, source).
BRANCH_SUPPORT = (
    (535, "lts", "2026-06", SUPPORTED_DRIVERS),
    (570, "production", "2026-02", SUPPORTED_DRIVERS),
    (580, "lts", "2028-08", SUPPORTED_DRIVERS),
)

# Per architecture: the last branch that drives it (None: still current), the first toolkit that knew it (which gives
# the first branch), the toolkit that dropped it, and the kernel modules that drive it.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "fermi": {
        "last_branch": (390, UNIX_LEGACY),
        "first_toolkit": None,
        "dropped_by_toolkit": ("9.0", FEATURES_ARCHIVE),
        "flavours": (("proprietary",), KERNEL_MODULES),
    },
    "kepler": {
        "last_branch": (470, UNIX_LEGACY),
        "first_toolkit": None,
        "dropped_by_toolkit": ("12.0", CLANG),
        "flavours": (("proprietary",), KERNEL_MODULES),
    },
    "maxwell": {
        "last_branch": (580, SUPPORTED_DRIVERS),
        "first_toolkit": None,
        "dropped_by_toolkit": ("13.0", FEATURES_ARCHIVE),
        "flavours": (("proprietary",), KERNEL_MODULES),
    },
    "pascal": {
        "last_branch": (580, SUPPORTED_DRIVERS),
        "first_toolkit": ("8.0", FEATURES_ARCHIVE),
        "dropped_by_toolkit": ("13.0", FEATURES_ARCHIVE),
        "flavours": (("proprietary",), KERNEL_MODULES),
    },
    "volta": {
        "last_branch": (580, SUPPORTED_DRIVERS),
        "first_toolkit": ("9.0", FEATURES_ARCHIVE),
        "dropped_by_toolkit": ("13.0", FEATURES_ARCHIVE),
        "flavours": (("proprietary",), KERNEL_MODULES),
    },
    "turing": {
        "last_branch": None,
        "first_toolkit": ("10.0", FEATURES_ARCHIVE),
        "dropped_by_toolkit": None,
        "flavours": (("open", "proprietary"), KERNEL_MODULES),
    },
    "ampere": {
        "last_branch": None,
        "first_toolkit": ("11.0", FEATURES_ARCHIVE),
        "dropped_by_toolkit": None,
        "flavours": (("open", "proprietary"), KERNEL_MODULES),
    },
    "ada": {
        "last_branch": None,
        "first_toolkit": ("11.8", FEATURES_ARCHIVE),
        "dropped_by_toolkit": None,
        "flavours": (("open", "proprietary"), KERNEL_MODULES),
    },
    "hopper": {
        "last_branch": None,
        "first_toolkit": ("11.8", FEATURES_ARCHIVE),
        "dropped_by_toolkit": None,
        "flavours": (("open", "proprietary"), KERNEL_MODULES),
    },
    "blackwell": {
        "last_branch": None,
        "first_toolkit": ("12.8", FEATURES_ARCHIVE),
        "dropped_by_toolkit": None,
        "flavours": (("open",), KERNEL_OPEN),
    },
}

# The open kernel modules for data-centre GPUs came with this branch; from OPEN_DEFAULT_BRANCH on they are NVIDIA's
# own default where the GPU allows both.
OPEN_FIRST_BRANCH = (515, "https://developer.nvidia.com/blog/nvidia-releases-open-source-gpu-kernel-modules/")
OPEN_DEFAULT_BRANCH = (560, DRIVER_CONTAINER)

# What the distribution itself brings: branch, exact version when the index was read, the package that builds the
# kernel module per flavour, the version of its CUDA toolkit, and the oldest branch whose libcuda the packages of that
# toolkit accept. An empty list of drivers means that the distribution has none, None that which ones it has is not
# known here.
DISTRO_DRIVERS: dict[str, dict[str, Any]] = {
    "debian12": {
        "drivers": (
            {
                "branch": 535,
                "version": "535.261.03",
                "dkms": {"proprietary": "nvidia-kernel-dkms", "open": "nvidia-open-kernel-dkms"},
            },
            {"branch": 470, "version": "470.256.02", "dkms": {"proprietary": "nvidia-tesla-470-kernel-dkms"}},
        ),
        "cuda": "11.8",
        "cuda_libcuda": 520,
        "source": DEBIAN,
    },
    "debian13": {
        "drivers": (
            {
                "branch": 550,
                "version": "550.163.01",
                "dkms": {"proprietary": "nvidia-kernel-dkms", "open": "nvidia-open-kernel-dkms"},
            },
            {"branch": 535, "version": "535.274.02", "dkms": {"proprietary": "nvidia-tesla-535-kernel-dkms"}},
        ),
        "cuda": "12.4",
        "cuda_libcuda": 550,
        "source": DEBIAN,
    },
    "ubuntu22.04": {"drivers": None, "cuda": None, "source": "not read: the archive adds branches during a release"},
    "ubuntu24.04": {"drivers": None, "cuda": None, "source": "not read: the archive adds branches during a release"},
    "el8": {"drivers": None, "cuda": None, "source": "not read: the sources are the operator's"},
    "el9": {"drivers": None, "cuda": None, "source": "not read: the sources are the operator's"},
    "el10": {"drivers": None, "cuda": None, "source": "not read: the sources are the operator's"},
}

# Which branch `auto` takes where the source offers many: the newest that NVIDIA supports for long.
PREFERRED_BRANCHES = (580, 535, 470, 390)
