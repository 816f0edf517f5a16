# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub of the portal: sessions as jobs, logins that map to Unix accounts, and the page of who uses what.

What can be decided without JupyterHub is decided in the collection's own modules (plugins/module_utils/portal), which
the programs that work as root have, too. This package is between them and JupyterHub, and nothing else imports that.
"""
