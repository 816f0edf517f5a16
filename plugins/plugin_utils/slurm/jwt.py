# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens (JSON Web Tokens) as logins of slurmctld and slurmdbd, beside munge. Pure.

The two daemons sign and verify tokens with one key. Each has it in a file of its own, so that each role sees when its
daemon has to restart. No other host needs the key.
"""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

PACKAGE = "slurm-wlm-jwt-plugin"
# HS256 wants a key as long as its hash.
SHORTEST = 32


def path(daemon: str) -> str:
    """Where the key of slurmctld or slurmdbd is."""
    return f"/etc/slurm/jwt-{daemon}.key"


def settings(daemon: str, *more: str) -> dict[str, str]:
    """The settings of slurm.conf or slurmdbd.conf; `more` are further parameters."""
    return {"AuthAltTypes": "auth/jwt", "AuthAltParameters": ",".join([f"jwt_key={path(daemon)}", *more])}


def key_file(daemon: str, key: str) -> doc.File:
    """The file of the key, as a desired document has it."""
    return doc.File(path(daemon), key, "0400", "slurm", "slurm", sensitive=True)


def problems(key: str) -> Iterator[Problem]:
    """What keeps a key from being one. The key itself is not told."""
    if len(key) < SHORTEST:
        yield Problem(
            "short_key",
            "jwt",
            f"the key of tokens has {len(key)} characters, and it is to have {SHORTEST} or more",
            remedy="set jwt in slurm_common_secrets, or slurm_common_secrets_path to a file that the role may make",
        )
