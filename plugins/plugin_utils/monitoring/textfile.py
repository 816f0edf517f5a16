# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory that node_exporter's textfile collector reads, as the plans of those that write there have it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc

# What is a word in a unit file, without quotes.
_DIRECTORY = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


def directory_problems(variable: str, path: str) -> Iterator[Problem]:
    """What is wrong with the value of a variable; empty for no metrics."""
    if path and not _DIRECTORY.fullmatch(path):
        yield Problem(
            "wrong_setting",
            variable,
            "it is not an absolute path of letters, digits, dots, hyphens and underscores",
            path,
            "give the directory of the textfile collector, such as /var/lib/prometheus/node-exporter",
        )


def directory(path: str) -> list[doc.Directory]:
    """Its entry among the files of a desired document; none for no metrics."""
    # It is the exporter's, which may have made it its own.
    return [doc.Directory(path, mode=None, owner=None, group=None)] if path else []
