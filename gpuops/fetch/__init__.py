# SPDX-License-Identifier: GPL-3.0-or-later
"""A mirror for sites without a way out: the manifest of what a site installs, and the directory filled from it."""
