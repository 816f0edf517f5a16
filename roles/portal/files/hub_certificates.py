# SPDX-License-Identifier: GPL-3.0-or-later
"""Run before the proxy starts: `baremetal_gpu_portal.certificates` says what it does."""

from baremetal_gpu_portal import certificates

certificates.main()
