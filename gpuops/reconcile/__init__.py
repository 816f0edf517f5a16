# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops reconcile``: acts on the nodes' verdicts, with the scheduler's credentials."""
