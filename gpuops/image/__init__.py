# SPDX-License-Identifier: GPL-3.0-or-later
"""Images for containers: built without a hub, pushed to the site's registry, brought to nodes, kept from sessions."""
