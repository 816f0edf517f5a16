# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run in check mode announces, host by host."""
