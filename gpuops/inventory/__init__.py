# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops inventory: a snapshot of every host's cards for the inventory plugin."""
