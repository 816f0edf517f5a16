# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics of when the certificates in files end."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.system.certificate import BEGIN, NoCertificate, first_end

FILES_AT_MOST = 500
BYTES_AT_MOST = 1 << 20
PATH_AT_MOST = 300
_KEY = b"PRIVATE KEY-----"
_MARK = re.compile(r"[*?[]")


def look(patterns: Sequence[str]) -> Part:
    """The metrics of certificates.

    :param patterns: paths, or patterns as a shell has them. A path has to be there; a pattern may match nothing.
    """
    part = Part()
    named = set(patterns)
    paths = list(itertools.islice(_paths(patterns), FILES_AT_MOST + 1))
    if len(paths) > FILES_AT_MOST:
        part.complain(f"there are more than {FILES_AT_MOST} files of certificates, and the rest is not read")
    for path in paths[:FILES_AT_MOST]:
        labels = {"path": one_line(path, PATH_AT_MOST)}
        try:
            text = host_files.read(path, BYTES_AT_MOST)
            if path not in named and _KEY in text and BEGIN not in text:
                # A pattern often meets the key beside the certificate.
                continue
            end = first_end(text)
        except (OSError, NoCertificate) as why:
            part.complain(f"{labels['path']} cannot be read: {one_line(getattr(why, 'strerror', None) or why)}")
            end = None
        part.add("baremetal_gpu_certificate_readable", labels, float(end is not None))
        if end is not None:
            part.add("baremetal_gpu_certificate_expiry_timestamp_seconds", labels, end)
    return part


def _paths(patterns: Iterable[str]) -> Iterator[str]:
    seen = set()
    for pattern in patterns:
        found = glob.iglob(pattern) if _MARK.search(pattern) else [pattern]
        for path in found:
            # A pattern such as * also meets directories.
            if path not in seen and (path == pattern or not os.path.isdir(path)):
                seen.add(path)
                yield path
