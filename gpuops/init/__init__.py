# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops init: from a few answers to the complete inventory of a site."""
