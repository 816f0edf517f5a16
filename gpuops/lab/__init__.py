# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab: systemd-nspawn machines with addresses of their own, reached by SSH.

Everything but the command line (`cli.py`) needs only the standard library, so that the inventory script
runs under any Python 3.11.
"""
