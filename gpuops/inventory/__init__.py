# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops inventory: a snapshot of every host's GPUs for the inventory plugin."""
