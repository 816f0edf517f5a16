# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of the playbooks that gpuops runs."""

from __future__ import annotations

SITE = "baremetal.gpu.site"
PREFLIGHT, STORAGE_PREFLIGHT = "baremetal.gpu.preflight", "baremetal.gpu.storage_preflight"
HOMES_PREFLIGHT, PORTAL_PREFLIGHT = "baremetal.gpu.homes_preflight", "baremetal.gpu.portal_preflight"
SETTINGS_PREFLIGHT = "baremetal.gpu.settings_preflight"
STATUS, DOCTOR = "baremetal.gpu.status", "baremetal.gpu.doctor"
USAGE = "baremetal.gpu.usage"
DRAIN, RESTORE = "baremetal.gpu.drain", "baremetal.gpu.restore"
READ_LOGS = "baremetal.gpu.read_logs"
PREFETCH_IMAGE, SAVE_SESSION = "baremetal.gpu.prefetch_image", "baremetal.gpu.save_session"
USER_CHANGES, USER_INVITE = "baremetal.gpu.user_changes", "baremetal.gpu.user_invite"
USER_KUBECONFIG = "baremetal.gpu.user_kubeconfig"
ACCEPT = "baremetal.gpu.accept"
FETCH_BACKUP, RESTORE_HEAD = "baremetal.gpu.fetch_backup", "baremetal.gpu.restore_head"
