# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from tests.unit.plugins.fake_host import FakeHost


@pytest.fixture
def fake_host(tmp_path):
    return FakeHost(tmp_path)
