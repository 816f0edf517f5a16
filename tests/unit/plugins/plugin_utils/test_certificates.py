# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of the operator: a wrong name, and a day on which they are not valid, are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificates

NAME = "portal.example.org"


def kept(directory: Path, *names: str) -> dict[str, Any]:
    """What the module says of a certificate for NAME that is valid for 30 days, where these names are needed."""
    own = certificates.Authority(str(directory))
    if not own.exists():
        own.make()
        own.sign("portal", [NAME], 30)
    pair = own.pair("portal")
    row = {"name": "portal", "names": names, "certificate": pair.certificate, "key": pair.key}
    params = {"path": "", "certificates": [row], "authority": own.certificate, "days": 365, "renew": 10, "held": []}
    return certificates.keep(params, True, lambda warning: None)


def test_names_and_days_of_a_certificate_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(tmp_path, NAME)["certificates"]["portal"]["certificate"].endswith("portal.pem")
    with pytest.raises(Refused, match=r"is not for DNS:\*\.portal\.example\.org"):
        kept(tmp_path, NAME, f"*.{NAME}")
    today = datetime.now(UTC)
    for days, why in ((31, "has ended on"), (-1, "is not valid before")):
        monkeypatch.setattr(certificates, "_now", lambda days=days: today + timedelta(days=days))
        with pytest.raises(Refused, match=why):
            kept(tmp_path, NAME)
