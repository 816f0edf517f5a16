# SPDX-License-Identifier: GPL-3.0-or-later
"""What `gpuops logs` asks of the log host, and what it makes of the answer."""
