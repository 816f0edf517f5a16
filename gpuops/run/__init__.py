# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks run through ansible-runner: typed events, records, progress on the screen."""
