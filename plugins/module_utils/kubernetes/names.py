# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes calls our things, and what a node and the reconciler tell each other: annotations of the node's own
object.

Only the node's kubelet, and the reconciler, can write these (NodeRestriction and RBAC).
"""

from __future__ import annotations

# Of the device plugin.
RESOURCE = "nvidia.com/gpu"
# Of the driver for dynamic resource allocation.
DRIVER = "gpu.baremetal-gpu"
# Of a device in a ResourceSlice, and of a node whose whole host has a fault.
TAINT = "baremetal-gpu/fatal"
SLICES, NODES = "/apis/resource.k8s.io/v1/resourceslices", "/api/v1/nodes"
# The condition of a node.
CONDITION = "GpuHealthy"
# By the node: what it publishes (see health/published.py), and a time that is another one at each heartbeat.
VERDICT, HEARD = "baremetal-gpu/verdict", "baremetal-gpu/heard"
# All annotations of an object have 256 KiB.
VERDICT_AT_MOST = 64 << 10
# By the reconciler: {order, clear} for the node; the GPUs that it is to withhold, UUID -> code, whatever their verdict.
ORDERS, HELD = "baremetal-gpu/orders", "baremetal-gpu/held"
# By the reconciler: that it has cordoned the node, and why.
CORDONED_BY, REASON = "baremetal-gpu/cordoned-by", "baremetal-gpu/reason"
RECONCILER = "reconciler"
# By an operator: that they have drained the node, and why.
DRAINED_BY = "baremetal-gpu/drained-by-operator"
# On a namespace: whose it is, their number and those of their groups. On a node: that it has the homes.
USER_LABEL, UID_LABEL, GIDS = "baremetal-gpu/user", "baremetal-gpu/uid", "baremetal-gpu/gids"
HOMES_LABEL = "baremetal-gpu/homes"
