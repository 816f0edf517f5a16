# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.nvml_binding import BindingAction


class ActionModule(BindingAction):
    MODULE = "baremetal.gpu.gpu_mig"
