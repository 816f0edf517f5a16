# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of a site: what its controller and its hosts alone know, in one file."""
