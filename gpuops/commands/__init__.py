# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of gpuops, a file each: options, the call, and what is printed."""
