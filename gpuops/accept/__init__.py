# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a cluster is fit to be handed over: what is remembered of an acceptance, and its report."""
