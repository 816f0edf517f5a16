# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is publicly known of NVIDIA's PCI ids: models, and which architecture an id belongs to.

Only data. A GPU that is not in MODELS still gets its architecture from ARCHITECTURE_RANGES; a GPU that is in
neither is reported with architecture None, never guessed.
"""

from __future__ import annotations

from typing import Any

PCI_IDS = "pci.ids 2023.04.11, the PCI ID repository (https://pci-ids.ucw.cz)"
OPEN_README = "NVIDIA/open-gpu-kernel-modules 595.45, README.md, table of compatible GPUs"
K8S_TEST_INFRA = "NVIDIA/k8s-test-infra, captures of nvidia-smi -q on real GPUs"
GPU_EXPORTER = "utkuozdemir/nvidia_gpu_exporter, captures of nvidia-smi in its test data"
MESOS_DOCS = "apache/mesos docs/gpu-support.md, sample output of nvidia-smi"
ADMIN_TOOLS = "NVIDIA/gpu-admin-tools, gpu/devid_chips.py"
SWITCH_SOURCES = "NVIDIA/open-gpu-kernel-modules, nvswitch.c, ids of LR10 and LS10"
SWITCH_OF_VOLTA = "NVIDIA Fabric Manager user guide, bridges on an HGX-2 board"
DGX_SPARK = "lspci and nvidia-smi of DGX Spark in public logs: GB20B [GB10], class 0300, driver 580"

# PCI device id -> model, architecture, compute capability, and where the row comes from; `first_branch` of a driver
# where it is later than that of the architecture.
MODELS: dict[str, dict[str, Any]] = {
    "1022": {"model": "Tesla K20c", "architecture": "kepler", "compute_capability": "3.5", "source": (PCI_IDS,)},
    "102d": {"model": "Tesla K80", "architecture": "kepler", "compute_capability": "3.7", "source": (PCI_IDS,)},
    "13f2": {
        "model": "Tesla M60",
        "architecture": "maxwell",
        "compute_capability": "5.2",
        "source": (PCI_IDS, MESOS_DOCS),
    },
    "15f8": {
        "model": "Tesla P100 PCIe 16GB",
        "architecture": "pascal",
        "compute_capability": "6.0",
        "source": (PCI_IDS,),
    },
    "15f7": {
        "model": "Tesla P100 PCIe 12GB",
        "architecture": "pascal",
        "compute_capability": "6.0",
        "source": (PCI_IDS,),
    },
    "15f9": {
        "model": "Tesla P100 SXM2 16GB",
        "architecture": "pascal",
        "compute_capability": "6.0",
        "source": (PCI_IDS,),
    },
    "1b80": {"model": "GeForce GTX 1080", "architecture": "pascal", "compute_capability": "6.1", "source": (PCI_IDS,)},
    "1b06": {
        "model": "GeForce GTX 1080 Ti",
        "architecture": "pascal",
        "compute_capability": "6.1",
        "source": (PCI_IDS,),
    },
    "1db1": {
        "model": "Tesla V100 SXM2 16GB",
        "architecture": "volta",
        "compute_capability": "7.0",
        "source": (PCI_IDS,),
    },
    "1db5": {
        "model": "Tesla V100 SXM2 32GB",
        "architecture": "volta",
        "compute_capability": "7.0",
        "source": (PCI_IDS,),
    },
    "1db4": {
        "model": "Tesla V100 PCIe 16GB",
        "architecture": "volta",
        "compute_capability": "7.0",
        "source": (PCI_IDS,),
    },
    "1db6": {
        "model": "Tesla V100 PCIe 32GB",
        "architecture": "volta",
        "compute_capability": "7.0",
        "source": (PCI_IDS,),
    },
    "1eb8": {
        "model": "Tesla T4",
        "architecture": "turing",
        "compute_capability": "7.5",
        "source": (PCI_IDS, OPEN_README, K8S_TEST_INFRA),
    },
    "20b0": {
        "model": "A100 SXM4 40GB",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "source": (PCI_IDS, OPEN_README, K8S_TEST_INFRA),
    },
    "20f1": {
        "model": "A100 PCIe 40GB",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "source": (PCI_IDS, OPEN_README),
    },
    "20b2": {
        "model": "A100 SXM4 80GB",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "source": (PCI_IDS, OPEN_README),
    },
    "20b5": {
        "model": "A100 PCIe 80GB",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "source": (PCI_IDS, OPEN_README),
    },
    "2236": {"model": "A10", "architecture": "ampere", "compute_capability": "8.6", "source": (PCI_IDS, OPEN_README)},
    "2237": {"model": "A10G", "architecture": "ampere", "compute_capability": "8.6", "source": (PCI_IDS, OPEN_README)},
    "27b8": {"model": "L4", "architecture": "ada", "compute_capability": "8.9", "source": (PCI_IDS, OPEN_README)},
    "26b9": {
        "model": "L40S",
        "architecture": "ada",
        "compute_capability": "8.9",
        "source": (OPEN_README, K8S_TEST_INFRA, GPU_EXPORTER),
    },
    "2330": {
        "model": "H100 SXM",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "source": (PCI_IDS, OPEN_README, K8S_TEST_INFRA, GPU_EXPORTER),
    },
    "2331": {
        "model": "H100 PCIe",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "source": (PCI_IDS, OPEN_README),
    },
    "2335": {
        "model": "H200 SXM",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "source": (OPEN_README, GPU_EXPORTER),
    },
    "2901": {
        "model": "B200",
        "architecture": "blackwell",
        "compute_capability": "10.0",
        "source": (OPEN_README, K8S_TEST_INFRA),
    },
    "2941": {
        "model": "GB200",
        "architecture": "blackwell",
        "compute_capability": "10.0",
        "source": (OPEN_README, K8S_TEST_INFRA),
    },
    "3182": {
        "model": "B300",
        "architecture": "blackwell",
        "compute_capability": "10.3",
        # CUDA 12.9 is the first that builds for it.
        "first_branch": 575,
        "source": (OPEN_README,),
    },
    "31c2": {
        "model": "GB300",
        "architecture": "blackwell",
        "compute_capability": "10.3",
        "first_branch": 575,
        "source": (K8S_TEST_INFRA,),
    },
    "2e12": {
        "model": "GB10",
        "architecture": "blackwell",
        "compute_capability": "12.1",
        "first_branch": 580,
        "source": (DGX_SPARK,),
    },
    "2684": {
        "model": "GeForce RTX 4090",
        "architecture": "ada",
        "compute_capability": "8.9",
        "source": (PCI_IDS, OPEN_README),
    },
    "2bb5": {
        "model": "RTX PRO 6000 Blackwell Server",
        "architecture": "blackwell",
        "compute_capability": "12.0",
        "source": (OPEN_README,),
    },
    "2bb1": {
        "model": "RTX PRO 6000 Blackwell Workstation",
        "architecture": "blackwell",
        "compute_capability": "12.0",
        "source": (OPEN_README,),
    },
    "2bb4": {
        "model": "RTX PRO 6000 Blackwell Max-Q",
        "architecture": "blackwell",
        "compute_capability": "12.0",
        "source": (OPEN_README,),
    },
}

# (first id, last id, architecture, source), both ends included. Ids of the sound and USB functions lie between some
# of them and do not matter: only display and 3D controllers are looked up.
ARCHITECTURE_RANGES = (
    (0x06C0, 0x06DF, "fermi", PCI_IDS),
    (0x0DC0, 0x0DFF, "fermi", PCI_IDS),
    (0x0E22, 0x0E3F, "fermi", PCI_IDS),
    (0x0F00, 0x0F06, "fermi", PCI_IDS),
    (0x0FC0, 0x0FFF, "kepler", PCI_IDS),
    (0x1000, 0x103F, "kepler", PCI_IDS),
    (0x1040, 0x109F, "fermi", PCI_IDS),
    (0x1140, 0x1140, "fermi", PCI_IDS),
    (0x1180, 0x11FF, "kepler", PCI_IDS),
    (0x1200, 0x127F, "fermi", PCI_IDS),
    (0x1280, 0x12FF, "kepler", PCI_IDS),
    (0x1340, 0x143F, "maxwell", PCI_IDS),
    (0x15F0, 0x15FF, "pascal", PCI_IDS),
    (0x1600, 0x17FF, "maxwell", PCI_IDS),
    (0x1B00, 0x1D7F, "pascal", PCI_IDS),
    (0x1D80, 0x1DFF, "volta", PCI_IDS),
    (0x1E00, 0x1FFF, "turing", PCI_IDS),
    (0x2080, 0x20FF, "ampere", PCI_IDS),
    (0x2180, 0x21FF, "turing", PCI_IDS),
    (0x2200, 0x22FF, "ampere", PCI_IDS),
    (0x2300, 0x237F, "hopper", PCI_IDS),
    (0x2400, 0x25FF, "ampere", PCI_IDS),
    (0x2680, 0x28FF, "ada", PCI_IDS),
    (0x2900, 0x29FF, "blackwell", ADMIN_TOOLS),
    (0x2B80, 0x2BFF, "blackwell", ADMIN_TOOLS),
    (0x2C00, 0x2C7F, "blackwell", ADMIN_TOOLS),
    (0x2D00, 0x2DFF, "blackwell", ADMIN_TOOLS),
    (0x2E00, 0x2E7F, "blackwell", DGX_SPARK),
    (0x2F00, 0x2F7F, "blackwell", ADMIN_TOOLS),
    (0x3180, 0x327F, "blackwell", ADMIN_TOOLS),
)

# GPUs of before Fermi, among them those on the boards of old chipsets: (first id, last id, source).
TOO_OLD_RANGES = (
    (0x0008, 0x06BF, PCI_IDS),
    (0x06E0, 0x0DBF, PCI_IDS),
    (0x10A0, 0x10DF, PCI_IDS),
)

# NVSwitches that are PCI devices, each chip once: (first id, last id, source).
NVSWITCH_RANGES = (
    (0x1AC0, 0x1ACF, SWITCH_OF_VOLTA),
    (0x1AE8, 0x1AE8, SWITCH_SOURCES),
    (0x1AF0, 0x1AFF, SWITCH_SOURCES),
    # The ids that follow are the PCI bridges in front of a chip.
    (0x22A0, 0x22A7, SWITCH_SOURCES),
)

# On the boards of these (HGX) the NVSwitches are reached through ConnectX functions.
BRIDGED_MODELS = ("2901", "3182")

# What a newer id than these means is not known here; the newest architecture whose ids are.
NEWEST_ARCHITECTURE = "blackwell"
