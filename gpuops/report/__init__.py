# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops report: the record of a site's bring-up, as HTML, JSON and JUnit."""
