# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes calls our things, for those who give GPUs to it and those who only look."""

from __future__ import annotations

# Of the device plugin.
RESOURCE = "nvidia.com/gpu"
# Of the driver for dynamic resource allocation, with the taint of a GPU whose verdict is fatal.
DRIVER = "gpu.baremetal-gpu"
TAINT = "baremetal-gpu/fatal"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
# The condition of a node.
CONDITION = "GpuHealthy"
