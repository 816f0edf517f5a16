# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of a site's users, as a file that people edit too."""
