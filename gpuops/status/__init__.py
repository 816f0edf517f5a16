# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a site as data and as text."""
