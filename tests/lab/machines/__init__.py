# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab: systemd-nspawn machines with addresses of their own, reached by SSH, and one virtual machine.

Everything but the command line (`cli.py`, `vm_cli.py`, `guard.py`) needs only the standard library, so that the
inventory scripts run under any Python 3.11. They import this package as `machines`, so its modules import each other
relatively.
"""
