# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the device nodes of the NVIDIA driver are as gpu_device_nodes would leave them. Reads only.

What cannot be told here differs: the module itself then says what is wrong.
"""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes


def nodes(root: str = "/") -> dict[str, str]:
    """Why nodes, and links to them, differ from what the loaded driver asks for, by path."""
    try:
        expected = device_nodes.expected_nodes(root)
    except device_nodes.DriverNotLoaded as error:
        return {"/dev/nvidiactl": str(error)}
    differences = device_nodes.module_differences(root) + device_nodes.compare(expected, root)
    return {difference.path: f"is {difference.current}, must be {difference.expected}" for difference in differences}
